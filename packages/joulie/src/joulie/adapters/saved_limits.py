"""File on the host with the limits that devices had before Joulie wrote to them.

The file is valid for one boot: devices start with their default limits, so the limits of an earlier boot are void. It
is durable when `save` returns: the agent writes a cap only after the limit that it replaces can no longer be lost.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from joulie.host_files import OS_FILES, HostFiles

log = logging.getLogger(__name__)


class _File(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Content of the file."""

    boot_id: str
    limits: dict[str, Annotated[float, msgspec.Meta(ge=0)]]


class SavedLimits:
    """Limits by key, in a JSON file readable by its owner only.

    Args:
        path: path of the file; missing directories are created.
        host_proc: mount point of /proc, which has the boot id.
        files: files of the host, from which the boot id is read; the limits are in a real file.
    """

    def __init__(self, path: Path, host_proc: Path = Path("/proc"), files: HostFiles = OS_FILES) -> None:
        self._path = path
        self._files = files
        self._boot_id_file = host_proc / "sys/kernel/random/boot_id"

    def load(self) -> dict[str, float]:
        """Limits saved since the last boot; empty without any.

        A corrupt file is renamed to ``NAME.corrupt`` and logged: its limits are unknown.

        Raises:
            OSError: the file exists but cannot be read.
        """
        try:
            content = msgspec.json.decode(self._path.read_bytes(), type=_File)
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError as error:
            aside = self._path.with_name(f"{self._path.name}.corrupt")
            self._path.replace(aside)
            log.warning("saved limits are corrupt: file renamed", extra={"file": str(aside), "error": str(error)})
            return {}
        return content.limits if content.boot_id == self._boot_id() else {}

    def save(self, limits: Mapping[str, float]) -> None:
        """Replace the saved limits atomically: after a crash the file holds either the old or the new limits.

        Raises:
            OSError: the file could not be written; the old limits are still saved.
        """
        content = msgspec.json.encode(_File(self._boot_id(), dict(limits)))
        folder = self._path.parent
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{self._path.name}.new"
        try:
            _write_through(temporary, content)
            temporary.replace(self._path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(folder)

    def _boot_id(self) -> str:
        return self._files.read(self._boot_id_file).strip()


def _write_through(file: Path, content: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the rename durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
