"""A machine's files mounted by FUSE, so that any program reads and writes them. Importing this needs libfuse."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mfusepy

from joulie_lab.machines.file_tree import File, Folder, Link, failure
from joulie_lab.machines.machine import Machine
from joulie_lab.machines.tree import tree_of

_PAGE_BYTES = 4096
_IOCTL_SIZE_SHIFT, _IOCTL_SIZE_MASK = 16, 0x3FFF


class _OpenFile:
    """An open file: as in sysfs, its content is made by the first read."""

    def __init__(self, file: File, flags: int) -> None:
        self.file = file
        self.content: bytes | None = None
        self.writes = flags & os.O_ACCMODE == os.O_WRONLY


class _Operations(mfusepy.Operations):  # type: ignore[misc] # mfusepy is untyped
    """What the kernel asks for; one call at a time."""

    use_ns = True

    def __init__(self, machine: Machine, clock: Callable[[], float], on_ready: Callable[[], None]) -> None:
        self._machine = machine
        self._tree = tree_of(machine.spec)
        self._clock = clock
        self._on_ready = on_ready
        self._open: dict[int, _OpenFile] = {}
        self._last_handle = 0
        self.mounted = False

    def init(self, path: str) -> None:
        self.mounted = True
        self._on_ready()

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        node = self._node(path)
        common = {"st_uid": os.geteuid(), "st_gid": os.getegid(), "st_nlink": 1}
        if isinstance(node, Folder):
            return common | {"st_mode": stat.S_IFDIR | 0o755}
        if isinstance(node, Link):
            return common | {"st_mode": stat.S_IFLNK | 0o777, "st_size": len(self.readlink(path))}
        return common | {"st_mode": stat.S_IFREG | node.mode, "st_size": _PAGE_BYTES}

    def readdir(self, path: str, fh: int) -> list[str]:
        node = self._node(path)
        return [".", "..", *node.names] if isinstance(node, Folder) else []

    def readlink(self, path: str) -> str:
        node = self._node(path)
        if not isinstance(node, Link):
            raise failure(errno.EINVAL, path)
        return os.path.relpath(f"/{node.target}", Path(path).parent)

    def open(self, path: str, flags: int) -> int:
        node = self._node(path)
        if not isinstance(node, File):
            raise failure(errno.EISDIR, path)
        if flags & os.O_ACCMODE != os.O_RDONLY and node.write is None and node.ioctl is None:
            raise failure(errno.EACCES, path)  # root too, as in sysfs
        self._last_handle += 1
        self._open[self._last_handle] = _OpenFile(node, flags)
        return self._last_handle

    def release(self, path: str, fh: int) -> int:
        self._open.pop(fh, None)
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        opened = self._open[fh]
        if opened.content is None or offset == 0:
            opened.content = opened.file.read(self._running()).encode()
        return opened.content[offset : offset + size]

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        file = self._open[fh].file
        if file.write is None:
            raise failure(errno.EIO, path)
        file.write(self._running(), data.decode(errors="replace"))
        return len(data)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        return 0  # sysfs ignores O_TRUNC

    def ioctl(self, path: str, cmd: int, arg: Any, fh: int, flags: int, data: Any) -> int:
        opened = self._open[fh]
        if opened.file.ioctl is None:
            raise failure(errno.ENOTTY, path)
        size = cmd >> _IOCTL_SIZE_SHIFT & _IOCTL_SIZE_MASK
        buffer = bytearray(ctypes.string_at(data, size))
        opened.file.ioctl(self._running(), buffer, opened.writes)
        ctypes.memmove(data, bytes(buffer), size)
        return 0

    def _running(self) -> Machine:
        self._machine.advance(self._clock())
        return self._machine

    def _node(self, path: str) -> File | Folder | Link:
        node = self._tree.nodes.get(path.removeprefix("/"))
        if node is None:
            raise failure(errno.ENOENT, path)
        return node


def mount(machine: Machine, folder: Path, clock: Callable[[], float], on_ready: Callable[[], None]) -> None:
    """Mount a machine's sys, proc, dev and control, and serve until it is unmounted or the process is terminated.

    Args:
        machine: the machine.
        folder: an empty folder.
        clock: the machine's time, s.
        on_ready: called once the files are there.

    Raises:
        RuntimeError: it cannot be mounted; the reason is on standard error.
    """
    operations = _Operations(machine, clock, on_ready)
    try:
        mfusepy.FUSE(
            operations,
            str(folder),
            foreground=True,
            nothreads=True,
            fsname="joulie-machine",
            default_permissions=True,
            allow_other=os.geteuid() == 0,  # containers' users
            direct_io=True,  # contents change, and are shorter than their size
            attr_timeout=0,
            entry_timeout=0,
        )
    except RuntimeError:
        if not operations.mounted:  # else it was terminated
            raise
