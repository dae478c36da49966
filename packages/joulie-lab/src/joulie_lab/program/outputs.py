"""Output files of a command, written at the end, complete or not at all."""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import Self

from joulie.output_files import STANDARD_STREAM, begin, commit
from joulie.program.errors import UserError


class Outputs:
    """Output files and folders of a command, written atomically.

    Each gets a temporary name, which also shows before the work begins that its target is writable. A command prints
    its result first, then writes the files, so that a full disk loses no result. `commit` moves all of them into place;
    leaving the context without it removes them.
    """

    def __init__(self) -> None:
        self._pending: list[tuple[Path, Path, str]] = []
        self._made: list[Path] = []

    def beside(self) -> AbstractContextManager[object]:
        """Context in which to print tables: to standard error if a file takes standard output."""
        taken = any(path == STANDARD_STREAM for _, path, _ in self._pending)
        return redirect_stdout(sys.stderr) if taken else nullcontext()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Remove what was not committed."""
        for temporary, *_ in self._pending:
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
            temporary = begin(path)
        except OSError as error:
            raise _unwritable(option, path, error) from error
        return self._add(temporary, path, option)

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
            raise _unwritable(option, path, error) from error
        return self._add(Path(name), path, option)

    def write(self, temporary: Path | None, content: str | bytes) -> None:
        """Write a file's content; nothing if its option was not given.

        Args:
            temporary: a path from `file`, or one inside a folder from `folder`.
            content: text, or bytes as they are.

        Raises:
            UserError: it cannot be written.
        """
        if temporary is None:
            return
        try:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        except OSError as error:
            option, path = next((o, p) for part, p, o in self._pending if part in (temporary, temporary.parent))
            raise _unwritable(option, path, error) from error

    def commit(self) -> None:
        """Move all outputs into place, each file atomically.

        Raises:
            UserError: a file cannot be written.
        """
        for temporary, path, option in self._pending:
            try:
                if temporary.is_dir():
                    for item in sorted(temporary.iterdir()):
                        item.replace(path / item.name)
                else:
                    commit(temporary, path)
            except BrokenPipeError:  # the reader of standard output has closed the pipe, which is not an error
                raise
            except OSError as error:
                raise _unwritable(option, path, error) from error

    def _add(self, temporary: Path, path: Path, option: str) -> Path:
        self._pending.append((temporary, path, option))
        return temporary

    def _refuse_twice(self, option: str, path: Path) -> None:
        if any(path.resolve() == other.resolve() for _, other, _ in self._pending):
            raise UserError(f"{option} {path}: another option writes there already")

    def _make_folder(self, folder: Path) -> None:
        missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        for parent in reversed(missing):
            parent.mkdir()
            self._made.append(parent)


def _unwritable(option: str, path: Path, error: OSError) -> UserError:
    return UserError(f"{option} {path}: cannot be written: {error.strerror or error}")
