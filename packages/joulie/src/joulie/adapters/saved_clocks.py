"""File on the host with the GPUs whose SM clock Joulie may have locked.

It is durable when `save` returns: the agent locks a clock only after that can no longer be lost.

Format: ``{"bootId": ..., "gpus": [ID...]}``; ``*`` stands for all GPUs. Entries of another boot are void: the
driver forgets locks.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

import msgspec

from joulie.domain.locked_clocks import ANY_GPU
from joulie.host_files import OS_FILES, HostFiles, boot_id, sync_folder, write_through

log = logging.getLogger(__name__)


class _Content(msgspec.Struct, rename="camel"):
    boot_id: str
    gpus: list[str]


class SavedClocks:
    """GPUs whose SM clock may be locked, in a JSON file readable by its owner only.

    Args:
        path: path of the file; missing directories are created.
        host_proc: mount point of /proc, which has the boot id.
        files: files of the host, from which the boot id is read.
    """

    def __init__(self, path: Path, host_proc: Path = Path("/proc"), files: HostFiles = OS_FILES) -> None:
        self._path = path
        self._host_proc = host_proc
        self._files = files

    def load(self) -> frozenset[str]:
        """What was saved last in this boot; `ANY_GPU` where the file cannot be understood.

        Raises:
            OSError: the file or the boot id exists but cannot be read.
        """
        try:
            content = msgspec.json.decode(self._path.read_bytes(), type=_Content)
        except FileNotFoundError:
            return frozenset()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("saved clocks cannot be read", extra={"file": str(self._path), "error": str(error)})
            return frozenset({ANY_GPU})
        return frozenset(content.gpus) if content.boot_id == boot_id(self._files, self._host_proc) else frozenset()

    def save(self, gpus: Collection[str]) -> None:
        """Replace what is saved, atomically.

        Raises:
            OSError: the file could not be written; what was saved before still is.
        """
        content = _Content(boot_id(self._files, self._host_proc), sorted(gpus))
        folder = self._path.parent
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{self._path.name}.new"
        try:
            write_through(temporary, msgspec.json.encode(content))
            temporary.replace(self._path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(folder)
