"""A file on the host with the limits that devices had before Joulie wrote to them.

It belongs to one boot: hardware comes up with its own limits, so what an earlier boot left is void. Durable when
`save` returns: the agent writes a cap only after what it replaces can no longer be lost.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

log = logging.getLogger(__name__)


class _File(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The file's content."""

    boot_id: str
    limits: dict[str, Annotated[float, msgspec.Meta(ge=0)]]


class SavedLimits:
    """Limits by key, in a JSON file that only its owner may read.

    Args:
        path: the file; directories are made as needed.
        host_proc: where the kernel tells the id of its boot.
    """

    def __init__(self, path: Path, host_proc: Path = Path("/proc")) -> None:
        self._path = path
        self._boot_id_file = host_proc / "sys/kernel/random/boot_id"

    def load(self) -> dict[str, float]:
        """What was saved since the machine was started; empty where nothing was.

        A file that cannot be understood is put aside as ``NAME.corrupt`` and logged: its limits are unknown.

        Raises:
            OSError: the file is there and cannot be read.
        """
        try:
            content = msgspec.json.decode(self._path.read_bytes(), type=_File)
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError as error:
            aside = self._path.with_name(f"{self._path.name}.corrupt")
            self._path.replace(aside)
            log.warning(
                "saved limits cannot be understood: file put aside", extra={"file": str(aside), "error": str(error)}
            )
            return {}
        return content.limits if content.boot_id == self._boot_id() else {}

    def save(self, limits: Mapping[str, float]) -> None:
        """Replace what was saved: after a crash at any moment the file holds either all of the old or all of the new.

        Raises:
            OSError: it could not be written; what was saved before is still there.
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
        return self._boot_id_file.read_text().strip()


def _write_through(file: Path, content: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the new name itself durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
