"""Access of the adapters to the host's files: sysfs, procfs and device files, real or modelled.

Adapters of hardware read and write through a `HostFiles`: the operating system, or a model of a machine that answers as
a kernel does.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from joulie.ports.devices import ControlFailedError, control_error

_READ_BYTES = 64 * 1024
_BOOT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class HostFiles(Protocol):
    """Files of a host. Methods raise OSError as the system calls of the same purpose do."""

    def read(self, file: Path) -> str:
        """Content of a file.

        Raises:
            ValueError: the content is not UTF-8.
        """
        ...

    def write(self, file: Path, text: str) -> None:
        """Write an existing file in a single call, as sysfs requires."""
        ...

    def names(self, folder: Path) -> Sequence[str]:
        """Names in a folder, in any order."""
        ...

    def resolve(self, path: Path) -> Path:
        """The path without links; one that leads nowhere is no error."""
        ...

    def exists(self, path: Path) -> bool:
        """Whether a path leads to a file or folder."""
        ...

    def writable(self, file: Path) -> bool:
        """Whether permissions allow to write a file."""
        ...

    def ioctl(self, device: Path, request: int, buffer: bytearray, *, write: bool) -> None:
        """Open a device file, for writing or for reading only, and send one request; the answer is in the buffer."""
        ...


class OsFiles:
    """Files of the operating system; a `HostFiles`."""

    def read(self, file: Path) -> str:
        """See `HostFiles.read`; without buffers, since an agent reads thousands of files a minute on a large node."""
        descriptor = os.open(file, os.O_RDONLY)
        try:
            return b"".join(iter(lambda: os.read(descriptor, _READ_BYTES), b"")).decode()
        finally:
            os.close(descriptor)

    def write(self, file: Path, text: str) -> None:
        """See `HostFiles.write`; unlike `Path.write_text` this never creates a file."""
        descriptor = os.open(file, os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def names(self, folder: Path) -> Sequence[str]:
        """See `HostFiles.names`."""
        return [entry.name for entry in folder.iterdir()]

    def resolve(self, path: Path) -> Path:
        """See `HostFiles.resolve`."""
        return path.resolve()

    def exists(self, path: Path) -> bool:
        """See `HostFiles.exists`."""
        return path.exists()

    def writable(self, file: Path) -> bool:
        """See `HostFiles.writable`."""
        return os.access(file, os.W_OK)

    def ioctl(self, device: Path, request: int, buffer: bytearray, *, write: bool) -> None:
        """See `HostFiles.ioctl`."""
        descriptor = os.open(device, os.O_WRONLY if write else os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, request, buffer)
        finally:
            os.close(descriptor)


OS_FILES = OsFiles()


_LARGEST = 2**63 - 1
"""Above this an attribute holds an error printed as unsigned, or garbage; as a limit it would look like an original."""


def matching(files: HostFiles, folder: Path, pattern: str) -> list[Path]:
    """Entries of a folder whose names match a pattern of `fnmatch`, by name; empty if it cannot be listed."""
    try:
        names = files.names(folder)
    except OSError:
        return []
    return [folder / name for name in sorted(names) if fnmatchcase(name, pattern)]


def read_text(files: HostFiles, file: Path) -> str | None:
    """Content of an attribute without surrounding whitespace; None if it cannot be read as a whole."""
    try:
        return _line(files, file)
    except (OSError, ValueError):
        return None


def boot_id(files: HostFiles, host_proc: Path) -> str:
    """Id of this boot; with a garbled one, all that was saved in this boot would be void.

    Args:
        files: files of the host.
        host_proc: mount point of /proc.

    Raises:
        OSError: it cannot be read.
    """
    file = host_proc / "sys/kernel/random/boot_id"
    found = read_text(files, file)
    if found is None or not _BOOT_ID.fullmatch(found):
        raise OSError(errno.EIO, "no boot id can be read", str(file))
    return found


def write_through(file: Path, content: bytes) -> None:
    """Write a file, readable by its owner only, to the disk.

    Raises:
        OSError: it could not be written.
    """
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder durable.

    Raises:
        OSError: it could not be synced.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_number(files: HostFiles, file: Path) -> int:
    """Content of an attribute as a non-negative integer below 2**63.

    Raises:
        OSError: the file cannot be read.
        ValueError: the content is not a non-negative integer, or its end is missing.
    """
    text = _line(files, file)
    number = int(text) if text.isascii() and text.isdecimal() else None
    if number is None or number > _LARGEST:
        raise ValueError(f"{file} holds {text[:40]!r}, not a number")
    return number


def _line(files: HostFiles, file: Path) -> str:
    """Content of an attribute; without the line feed at its end, the read was short and a number is another one."""
    text = files.read(file)
    if not text.endswith("\n"):
        raise ValueError(f"{file} holds {text[:40]!r} without its end: a short read")
    return text.strip()


def write_number(files: HostFiles, file: Path, number: int, action: str) -> int:
    """Write a number and return the value that is in force afterwards, which the driver may have changed.

    Args:
        files: files of the host.
        file: attribute to write.
        number: value to write.
        action: description of the write for error messages: ``write 150 W to /sys/...``.

    Raises:
        ControlRefusedError: the kernel does not permit or support the write.
        ControlFailedError: the write failed, or the value read back is not a number.
    """
    try:
        files.write(file, f"{number}\n")
        return read_number(files, file)
    except OSError as error:
        raise control_error(action, error) from error
    except ValueError as error:
        raise ControlFailedError(f"{action}: {error}") from error
