"""Maximum CPU frequency limits through the cpufreq policies of sysfs.

Source: Linux, Documentation/admin-guide/pm/{cpufreq,intel_pstate,amd-pstate}.rst. Frequencies are in kHz there.
Reading `scaling_max_freq` back returns the lowest of all limits in force, including thermal and firmware limits, and
drivers with a frequency table round down to one of its entries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from joulie.domain.quantities import positive_number
from joulie.host_files import OS_FILES, HostFiles, matching, read_number, read_text, write_number
from joulie.ports.devices import ControlFailedError, FrequencyPolicy

_HZ_PER_KHZ = 1e3
_FAMILIES = {
    "intel_pstate": "intel_pstate",
    "intel_cpufreq": "intel_pstate",  # its passive mode
    "amd-pstate": "amd-pstate",
    "amd-pstate-epp": "amd-pstate",  # its active mode
}
READ_BACK_TOLERANCE = 0.01
"""Relative tolerance of the frequency read back: drivers without a table may round."""


@dataclass(frozen=True)
class _Hardware:
    """What the driver states about a policy's CPUs: their range, and the frequencies that it can set; empty for any."""

    min_hz: float
    max_hz: float
    steps_hz: tuple[float, ...]


class Cpufreq:
    """Frequency limits of the policies with at least one CPU online; a `FrequencyLimiter`.

    What the driver states is read once a policy, limits and frequencies every time. An administrator may change the
    former (turbo, another driver): each listing reads that of one policy again, in turn, and of all once one differs.

    Args:
        host_sys: mount point of the host's /sys.
        files: files of the host.
    """

    def __init__(self, host_sys: Path = Path("/sys"), files: HostFiles = OS_FILES) -> None:
        self._files = files
        self._folder = host_sys / "devices/system/cpu/cpufreq"
        self._known: dict[str, _Hardware] = {}
        self._listings = 0

    @property
    def driver(self) -> str:
        """Family of the scaling driver: ``intel_pstate``, ``amd-pstate``, else the driver's name; empty without one."""
        for path in self._policy_folders():
            if name := read_text(self._files, path / "scaling_driver"):
                return _FAMILIES.get(name, name)
        return ""

    def unavailable(self) -> str | None:
        """See `FrequencyLimiter.unavailable`."""
        first = next(self._policies(), None)
        if first is None:
            return f"no cpufreq policy in {self._folder}: no scaling driver, or a virtual machine"
        file = self._folder / first.id / "scaling_max_freq"
        return None if self._files.writable(file) else f"{file} is not writable: needs root and a writable mount"

    def policies(self) -> Sequence[FrequencyPolicy]:
        """See `FrequencyLimiter.policies`; policies whose CPUs are all offline are unreadable and omitted."""
        folders = self._policy_folders()
        if folders:
            self._listings += 1
            self._check(folders[self._listings % len(folders)])
        return [policy for path in folders if (policy := self._policy(path))]

    def set_limit(self, policy_id: str, limit_hz: float) -> float:
        """See `FrequencyLimiter.set_limit`; the driver may round down to the next supported frequency."""
        limit_hz = positive_number("limit_hz", limit_hz)
        path = self._folder / policy_id
        file = path / "scaling_max_freq"
        action = f"write {limit_hz / 1e6:g} MHz to {file}"
        in_force_hz = write_number(self._files, file, round(limit_hz / _HZ_PER_KHZ), action) * _HZ_PER_KHZ
        if not self._min_expected_hz(path, limit_hz) <= in_force_hz <= limit_hz * (1 + READ_BACK_TOLERANCE):
            raise ControlFailedError(
                f"{action}: accepted, but {in_force_hz / 1e6:g} MHz is in force", in_force=in_force_hz
            )
        return in_force_hz

    def _policies(self) -> Iterator[FrequencyPolicy]:
        return (policy for path in self._policy_folders() if (policy := self._policy(path)))

    def _policy_folders(self) -> list[Path]:
        folders = [
            path for path in matching(self._files, self._folder, "policy*") if re.fullmatch(r"policy\d+", path.name)
        ]
        return sorted(folders, key=lambda path: int(path.name.removeprefix("policy")))

    def _policy(self, path: Path) -> FrequencyPolicy | None:
        try:
            limit_hz = _hertz(self._files, path / "scaling_max_freq")
            hardware = self._hardware(path)
        except (OSError, ValueError):
            self._known.pop(path.name, None)
            return None
        current_hz = _hertz_or_none(self._files, path / "scaling_cur_freq")
        return FrequencyPolicy(path.name, hardware.min_hz, hardware.max_hz, limit_hz, current_hz, hardware.steps_hz)

    def _check(self, path: Path) -> None:
        """Forget what is known of all policies if one of them differs from it."""
        if (known := self._known.pop(path.name, None)) is None:
            return
        try:
            differs = self._hardware(path) != known
        except (OSError, ValueError):
            return
        if differs:
            self._known.clear()

    def _hardware(self, path: Path) -> _Hardware:
        """What the driver states about a policy; raises OSError or ValueError."""
        if (known := self._known.get(path.name)) is not None:
            return known
        files = self._files
        tables = [path / f"scaling_{table}_frequencies" for table in ("available", "boost")]
        texts = [read_text(files, table) for table in tables]
        steps = " ".join(text or "" for text in texts).split()
        hardware = _Hardware(
            _hertz(files, path / "cpuinfo_min_freq"),
            _hertz(files, path / "cpuinfo_max_freq"),
            tuple(int(step) * _HZ_PER_KHZ for step in steps if step.isdecimal()),
        )
        unread = any(text is None and files.exists(table) for text, table in zip(texts, tables, strict=True))
        if not unread and all(step_hz >= hardware.min_hz for step_hz in hardware.steps_hz):
            self._known[path.name] = hardware
        return hardware

    def _min_expected_hz(self, path: Path, limit_hz: float) -> float:
        """Minimum frequency that may be read back after `limit_hz` was written, Hz."""
        try:
            steps_hz = self._hardware(path).steps_hz
        except (OSError, ValueError):
            steps_hz = ()
        return max((step for step in steps_hz if step <= limit_hz), default=limit_hz) * (1 - READ_BACK_TOLERANCE)


def _hertz(files: HostFiles, file: Path) -> float:
    return read_number(files, file) * _HZ_PER_KHZ


def _hertz_or_none(files: HostFiles, file: Path) -> float | None:
    try:
        return _hertz(files, file)
    except (OSError, ValueError):
        return None
