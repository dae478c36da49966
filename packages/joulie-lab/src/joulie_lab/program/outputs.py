"""Output files that appear complete at the end, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from joulie.program.errors import UserError


class Outputs:
    """Output files and folders of a command, written atomically.

    Each is written under a temporary name next to its target, which also shows before the work begins that the target
    is writable. `commit` moves all of them into place; leaving the context without it removes them.
    """

    def __init__(self) -> None:
        self._pending: list[tuple[Path, Path]] = []
        self._made: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Remove what was not committed."""
        for temporary, _ in self._pending:
            if temporary.is_dir():
                shutil.rmtree(temporary)
            else:
                temporary.unlink(missing_ok=True)
        for folder in reversed(self._made):
            if not any(folder.iterdir()):
                folder.rmdir()

    def file(self, option: str, path: Path | None) -> Path | None:
        """Temporary path to which to write the file for `path`; None if `path` is None.

        Raises:
            UserError: the target is not writable, is a folder, or is used by another option.
        """
        if path is None:
            return None
        if path.is_dir():
            raise UserError(f"{option} {path}: is a folder; name a file")
        self._refuse_twice(option, path)
        try:
            self._make_folder(path.parent)
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        except OSError as error:
            raise UserError(f"{option} {path}: cannot be written: {error.strerror}") from error
        os.fchmod(handle, 0o666 & ~_umask())
        os.close(handle)
        return self._add(Path(name), path)

    def folder(self, option: str, path: Path | None) -> Path | None:
        """Temporary folder in which to write the files for folder `path`; None if `path` is None.

        Raises:
            UserError: the target is not writable, is a file, or is used by another option.
        """
        if path is None:
            return None
        if path.exists() and not path.is_dir():
            raise UserError(f"{option} {path}: is a file; name a folder")
        self._refuse_twice(option, path)
        try:
            self._make_folder(path)
            name = tempfile.mkdtemp(prefix=".joulie.", dir=path)
        except OSError as error:
            raise UserError(f"{option} {path}: cannot be written: {error.strerror}") from error
        return self._add(Path(name), path)

    def commit(self) -> None:
        """Move all outputs into place, each file atomically.

        Raises:
            UserError: a file cannot be written.
        """
        for temporary, path in self._pending:
            try:
                if temporary.is_dir():
                    for item in sorted(temporary.iterdir()):
                        item.replace(path / item.name)
                else:
                    temporary.replace(path)
            except OSError as error:
                raise UserError(f"{path}: cannot be written: {error.strerror}") from error

    def _add(self, temporary: Path, path: Path) -> Path:
        self._pending.append((temporary, path))
        return temporary

    def _refuse_twice(self, option: str, path: Path) -> None:
        if any(path.resolve() == other.resolve() for _, other in self._pending):
            raise UserError(f"{option} {path}: another option writes there already")

    def _make_folder(self, folder: Path) -> None:
        missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        for parent in reversed(missing):
            parent.mkdir()
            self._made.append(parent)


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
