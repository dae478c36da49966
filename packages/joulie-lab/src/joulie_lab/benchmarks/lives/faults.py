"""Faults of the host's files, GPUs and saved limits, at a moment that was drawn beforehand."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joulie.adapters.saved_limits import SavedLimits
from joulie.domain.saved_records import SavedRecords
from joulie.ports.devices import ControlFailedError, ControlRefusedError
from joulie_lab.machines.files import MachineFiles


class Killed(BaseException):
    """The agent's process is killed: nothing of it runs any more."""


@dataclass(frozen=True)
class Fault:
    """A fault that comes up in one cycle of a life.

    Attributes:
        kind: what goes wrong, as `KINDS` names it.
        call: kind of access that it hits: read, list, write, written, ioctl, save, saved, gpu.
        cycle: number of the cycle.
        nth: number of the access of this kind in that cycle from which on it goes wrong, from 0.
        count: number of accesses that go wrong.
        value: error number, or text that is read instead.
    """

    kind: str
    call: str
    cycle: int
    nth: int
    count: int = 1
    value: Any = None


@dataclass
class Faults:
    """The faults of one life, and what came of them.

    Attributes:
        planned: faults to come.
        cycle: number of the present cycle.
        met: number of accesses that went wrong, by kind.
        calls: number of accesses of the present cycle, by kind of access.
    """

    planned: Sequence[Fault] = ()
    cycle: int = 0
    met: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)

    def start_cycle(self, cycle: int) -> None:
        """Begin to count the accesses of a cycle."""
        self.cycle = cycle
        self.calls.clear()

    def at(self, call: str) -> Fault | None:
        """The fault that hits this access, if any; a kill is raised."""
        number = self.calls[call]
        self.calls[call] = number + 1
        for fault in self.planned:
            if fault.cycle == self.cycle and fault.call == call and fault.nth <= number < fault.nth + fault.count:
                self.met[fault.kind] += 1
                if fault.kind == "kill":
                    raise Killed
                return fault
        return None


class FaultyFiles:
    """A machine's files with faults; a `HostFiles`."""

    def __init__(self, files: MachineFiles, faults: Faults) -> None:
        self._files = files
        self._faults = faults
        self._earlier: dict[Path, str] = {}

    def read(self, file: Path) -> str:
        """See `HostFiles.read`."""
        fault = self._faults.at("read")
        if fault is None:
            text = self._files.read(file)
        elif fault.kind == "read error":
            raise _error(fault, file)
        elif fault.kind == "garbage":
            return str(fault.value)
        elif fault.kind == "short read":
            text = self._files.read(file)
            return text[: int(fault.value * len(text))]
        else:  # stale
            text = self._earlier.get(file) or self._files.read(file)
        self._earlier[file] = text
        return text

    def write(self, file: Path, text: str) -> None:
        """See `HostFiles.write`."""
        fault = self._faults.at("write")
        if fault is not None and fault.kind == "write refused":
            raise _error(fault, file)
        if fault is None:
            self._files.write(file, text)
        self._faults.at("written")

    def names(self, folder: Path) -> Sequence[str]:
        """See `HostFiles.names`."""
        if fault := self._faults.at("list"):
            raise _error(fault, folder)
        return self._files.names(folder)

    def resolve(self, path: Path) -> Path:
        """See `HostFiles.resolve`."""
        return self._files.resolve(path)

    def exists(self, path: Path) -> bool:
        """See `HostFiles.exists`."""
        return self._files.exists(path)

    def writable(self, file: Path) -> bool:
        """See `HostFiles.writable`."""
        return self._files.writable(file)

    def ioctl(self, device: Path, request: int, buffer: bytearray, *, write: bool) -> None:
        """See `HostFiles.ioctl`."""
        if fault := self._faults.at("ioctl"):
            raise _error(fault, device)
        self._files.ioctl(device, request, buffer, write=write)
        self._faults.at("written" if write else "answered")

    def forget(self) -> None:
        """What was read before a reboot or a pause is never read again."""
        self._earlier.clear()


def guard_gpu(faults: Faults, call: str, gpu: str) -> None:
    """The guard of `ModelledGpus`."""
    fault = faults.at({"write": "gpu write", "written": "written"}.get(call, "gpu"))
    if fault is not None:
        refused = fault.kind == "gpu write refused"
        raise (ControlRefusedError if refused else ControlFailedError)(f"GPU {gpu}: {os.strerror(fault.value)}")


class FaultyStore(SavedLimits):
    """Saved limits whose writes fail or are the last thing that a process does."""

    def __init__(self, path: Path, host_proc: Path, files: FaultyFiles, faults: Faults) -> None:
        super().__init__(path, host_proc, files)
        self._faults = faults
        self._place = path

    def save(self, saved: SavedRecords) -> None:
        """See `SavedLimits.save`."""
        if fault := self._faults.at("save"):
            raise _error(fault, self._place)
        super().save(saved)
        self._faults.at("saved")


def _error(fault: Fault, file: Path) -> OSError:
    return OSError(fault.value, os.strerror(fault.value), str(file))
