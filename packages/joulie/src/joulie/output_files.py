"""Files that a command writes: complete or not at all, and written through where the path is no regular file.

A regular file appears under its name only when it is complete; through a symbolic link, the file that it leads to. A
pipe or a device is written to, and `-` is standard output, both only once the content is complete.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STANDARD_STREAM = Path("-")
"""Path that stands for standard output, or for standard input where a command reads."""
_STDOUT = (STANDARD_STREAM, Path("/dev/stdout"))
_SPECIAL_FOLDERS = (Path("/dev"), Path("/proc"))


def begin(path: Path) -> Path:
    """Make the temporary file that `commit` turns into `path`; shows early whether `path` can be written.

    Raises:
        OSError: it cannot be written.
    """
    if path in _STDOUT or _written_through(path):
        if path not in _STDOUT and not os.access(path, os.W_OK):
            raise PermissionError(13, "Permission denied", str(path))
        handle, name = tempfile.mkstemp(prefix="joulie-")
    else:
        target = path.resolve()
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.fchmod(handle, target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
    os.close(handle)
    return Path(name)


def commit(temporary: Path, path: Path) -> None:
    """Move the content of `temporary` to `path`.

    Raises:
        OSError: it cannot be written.
    """
    if path in _STDOUT:
        sys.stdout.flush()
        with temporary.open("rb") as content:
            shutil.copyfileobj(content, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    elif _written_through(path):
        # Appended, since /dev/fd/3 may be a file that the shell holds open.
        with temporary.open("rb") as content, path.open("ab") as out:
            shutil.copyfileobj(content, out)
    else:
        temporary.replace(path.resolve())


@contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """Temporary file whose content is moved to `path` if the block succeeds.

    Raises:
        OSError: `path` cannot be written.
    """
    temporary = begin(path)
    try:
        yield temporary
        commit(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _written_through(path: Path) -> bool:
    """Whether it is a pipe, a device or another file that a new file must not replace."""
    special = any(folder in path.absolute().parents for folder in _SPECIAL_FOLDERS)
    return path.exists() and (special or not path.is_file())


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
