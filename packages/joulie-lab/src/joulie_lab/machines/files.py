"""A machine's files in process, in a time of the caller's."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from joulie_lab.machines.file_tree import File, Folder, failure
from joulie_lab.machines.machine import Machine
from joulie_lab.machines.tree import tree_of

_IOCTL_HSMP = 0xC02CF800  # _IOWR(0xF8, 0, struct hsmp_message of 44 bytes)


class LightPath(str):
    """The few things that adapters do with a Path, fast; pathlib would take most of the time of a simulated agent."""

    __slots__ = ()

    def __truediv__(self, name: str) -> LightPath:
        return LightPath(f"{self}/{name}")

    @property
    def name(self) -> str:
        """Last part."""
        return self.rpartition("/")[2]

    @property
    def parent(self) -> LightPath:
        """The path without its last part."""
        return LightPath(self.rpartition("/")[0])


def light_path(path: str) -> Path:
    """A `LightPath` where a Path is asked for."""
    return cast("Path", LightPath(path))


class MachineFiles:
    """Files of a machine; a `HostFiles`. Before each access the machine runs up to the present.

    Attributes:
        machine: the machine.
        tree: its files.

    Args:
        machine: the machine.
        clock: time, s.
        root: folder in which its sys, proc and dev are.
        privileged: whether root accesses them; other users read less and write nothing.
    """

    def __init__(
        self, machine: Machine, clock: Callable[[], float], root: Path = Path("/machine"), *, privileged: bool = True
    ) -> None:
        self.machine = machine
        self.tree = tree_of(machine.spec)
        self._clock = clock
        self._root = root
        self._start = len(str(root)) + 1
        self._privileged = privileged

    def read(self, file: Path) -> str:
        """See `HostFiles.read`."""
        node = self._file(file)
        if not self._privileged and not node.mode & 0o004:
            raise failure(errno.EACCES, str(file))
        self.machine.advance(self._clock())
        return node.read(self.machine)

    def write(self, file: Path, text: str) -> None:
        """See `HostFiles.write`."""
        node = self._file(file)
        if node.write is None or not self._privileged:
            raise failure(errno.EACCES, str(file))
        self.machine.advance(self._clock())
        node.write(self.machine, text)

    def names(self, folder: Path) -> Sequence[str]:
        """See `HostFiles.names`."""
        node = self._find(folder)
        if not isinstance(node, Folder):
            raise failure(errno.ENOTDIR, str(folder))
        return node.names

    def resolve(self, path: Path) -> Path:
        """See `HostFiles.resolve`."""
        return self._root / self.tree.real(str(path)[self._start :])

    def exists(self, path: Path) -> bool:
        """See `HostFiles.exists`."""
        try:
            self._find(path)
        except OSError:
            return False
        return True

    def writable(self, file: Path) -> bool:
        """See `HostFiles.writable`."""
        return self.exists(file) and self._privileged

    def ioctl(self, device: Path, request: int, buffer: bytearray, *, write: bool) -> None:
        """See `HostFiles.ioctl`."""
        node = self._file(device)
        if write and not self._privileged:
            raise failure(errno.EACCES, str(device))
        if node.ioctl is None or request != _IOCTL_HSMP:
            raise failure(errno.ENOTTY, str(device))
        self.machine.advance(self._clock())
        node.ioctl(self.machine, buffer, write)

    def _find(self, path: Path) -> File | Folder:
        text = str(path)
        node = self.tree.nodes.get(text[self._start :])
        if isinstance(node, File | Folder):
            return node
        if not text.startswith(str(self._root)):
            raise failure(errno.ENOENT, text)
        return self.tree.find(text[self._start :])

    def _file(self, path: Path) -> File:
        node = self._find(path)
        if isinstance(node, File):
            return node
        raise failure(errno.EISDIR, str(path))
