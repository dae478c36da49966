"""File on the host with the limits that devices had before Joulie wrote to them, and with those that it wrote.

It is durable when `save` returns: the agent writes a cap only after the limit that it replaces can no longer be lost.

Format: ``{"bootId": ..., "limits": {KEY: LIMIT}}``, as in the first release, which can read this file and be read. The
further keys, which that release keeps and does not use, are ``written.N:KEY``, the limits that Joulie wrote,
``unknown:KEY``, a limit in force whose original is not known, and ``earlier:KEY``, an original of an earlier boot whose
device could not be read yet. Once records are lost: ``lost:`` if of any backend, ``lost:BACKEND`` for those reported to
hold limits (1 if the others are known: the cap ``lost.W:BACKEND`` or ``lost.%:BACKEND``, the limits
``lost.N:BACKEND``), and ``checked:KEY`` for devices that were looked at since.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from joulie.domain.actuation import WantedCap
from joulie.domain.limit_records import LimitRecord, usable_limit
from joulie.domain.quantities import InvalidQuantityError
from joulie.domain.saved_records import LostRecords, ReportedLimits, SavedRecords
from joulie.host_files import OS_FILES, HostFiles, boot_id, read_text, sync_folder, write_through

log = logging.getLogger(__name__)

_WRITTEN = "written."
_UNKNOWN = "unknown:"
_EARLIER = "earlier:"
_LOST = "lost:"
_LOST_DETAILS = "lost."
_CHECKED = "checked:"
_KEXEC_LOADER = 0xD
_FIELDS = frozenset({"bootId", "limits"})


class SavedLimits:
    """Records by key, in a JSON file readable by its owner only.

    Args:
        path: path of the file; missing directories are created.
        host_proc: mount point of /proc, which has the boot id.
        files: files of the host, from which the boot id is read; the limits are in a real file.
    """

    def __init__(self, path: Path, host_proc: Path = Path("/proc"), files: HostFiles = OS_FILES) -> None:
        self._path = path
        self._files = files
        self._host_proc = host_proc
        self._keep_aside = False

    def load(self) -> SavedRecords:
        """What was saved last.

        A file that is not JSON is renamed to ``NAME.corrupt``. Of one in another format the readable part is used, and
        it is kept as ``NAME.other-format`` when it is replaced. Both are logged.

        Raises:
            OSError: the file or the boot id exists but cannot be read.
        """
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            aside = self._aside("corrupt")
            return _unreadable(aside) if aside.exists() else SavedRecords()
        try:
            content = msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            aside = self._aside("corrupt")
            self._path.replace(aside)
            log.warning("saved limits are corrupt: file renamed", extra={"file": str(aside), "error": str(error)})
            return _unreadable(aside)
        return self._interpreted(content)

    def save(self, saved: SavedRecords) -> None:
        """Replace the saved records atomically: after a crash the file holds either the old or the new ones.

        Raises:
            OSError: the file could not be written; the old records are still saved.
        """
        void = {f"{_EARLIER}{key}": record for key, record in saved.earlier.items()}
        limits = _flat({**saved.records, **void}) | _flat_loss(saved.lost)
        content = msgspec.json.encode({"bootId": self._boot_id(), "limits": limits})
        folder = self._path.parent
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{self._path.name}.new"
        try:
            write_through(temporary, content)
            if self._keep_aside:
                self._link_aside()
            temporary.replace(self._path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        self._keep_aside = False
        sync_folder(folder)

    def booted_at_epoch_s(self) -> float | None:
        """See `LimitStore.booted_at_epoch_s`."""
        if self._booted_by_kexec():
            return None
        try:
            lines = self._files.read(self._host_proc / "stat").splitlines()
        except (OSError, ValueError):
            return None
        times = (line.split()[1:2] for line in lines if line.startswith("btime "))
        return next((float(time[0]) for time in times if time and time[0].isdecimal()), None)

    def _interpreted(self, content: Mapping[str, Any]) -> SavedRecords:
        limits = content.get("limits")
        entries = limits if isinstance(limits, dict) else {}
        lost = _loss(entries)
        if set(content) != _FIELDS or not isinstance(limits, dict):
            self._keep_aside = True
            lost = LostRecords(f"{self._path} has another format, perhaps of a newer release", everywhere=True)
            log.warning("saved limits have another format", extra={"file": str(self._path), "fields": sorted(content)})
        found = _records(entries)
        earlier = {key.removeprefix(_EARLIER): one for key, one in found.items() if key.startswith(_EARLIER)}
        records = {key: one for key, one in found.items() if not key.startswith(_EARLIER)}
        if content.get("bootId") == self._boot_id():
            kexec = bool(earlier) and self._booted_by_kexec()
            return SavedRecords(records, earlier, lost=lost, found=True, kexec=kexec)
        if self._booted_by_kexec():
            unknown = {key: one for key, one in records.items() if one.original is None}
            return SavedRecords(unknown, {**earlier, **records}, lost=lost, found=True, kexec=True)
        return SavedRecords(earlier={**earlier, **records}, lost=None if "bootId" in content else lost, found=True)

    def _booted_by_kexec(self) -> bool:
        """Whether a kernel has started this one, so that no firmware has reset the power limits; told on x86 only.

        Source: Linux, arch/x86/kernel/kexec-bzimage64.c and Documentation/admin-guide/sysctl/kernel.rst.
        """
        loader = read_text(self._files, self._host_proc / "sys/kernel/bootloader_type") or ""
        return loader.isdecimal() and int(loader) >> 4 == _KEXEC_LOADER

    def _boot_id(self) -> str:
        return boot_id(self._files, self._host_proc)

    def _aside(self, ending: str) -> Path:
        return self._path.with_name(f"{self._path.name}.{ending}")

    def _link_aside(self) -> None:
        """Give the file a second name, so that replacing it does not delete it."""
        for number in count():
            aside = self._aside(f"other-format{f'.{number}' if number else ''}")
            try:
                aside.hardlink_to(self._path)
            except FileExistsError:
                continue
            return


def _unreadable(aside: Path) -> SavedRecords:
    return SavedRecords(lost=LostRecords(f"{aside} is not readable", everywhere=True), found=True)


def _flat(records: Mapping[str, LimitRecord]) -> dict[str, float]:
    """The content of ``limits``."""
    flat: dict[str, float] = {}
    for key, record in records.items():
        if record.original is not None:
            flat[key] = record.original
        else:
            flat[f"{_UNKNOWN}{key}"] = record.written[-1] if record.written else 0.0
        flat |= {f"{_WRITTEN}{number}:{key}": limit for number, limit in enumerate(record.written)}
    return flat


def _records(limits: Mapping[str, Any]) -> dict[str, LimitRecord]:
    """Records of the content of ``limits``; an entry that is not usable gives a record without an original."""
    written: dict[str, tuple[float, ...]] = {}
    limits = {name: value for name, value in limits.items() if not name.startswith((_LOST, _LOST_DETAILS, _CHECKED))}
    unknown = dict.fromkeys(key.removeprefix(_UNKNOWN) for key in limits if key.startswith(_UNKNOWN))
    for name, value in limits.items():
        number, colon, key = name.removeprefix(_WRITTEN).partition(":")
        limit = usable_limit(value)
        if name.startswith(_WRITTEN) and colon and number.isdecimal() and limit is not None:
            written[key] = (*written.get(key, ()), limit)
    records = {key: LimitRecord(None, written.get(key, ())) for key in unknown}
    for name, value in limits.items():
        if not name.startswith((_WRITTEN, _UNKNOWN)):
            records[name] = LimitRecord(usable_limit(value), written.get(name, ()))
    return records


def _flat_loss(lost: LostRecords | None) -> dict[str, float]:
    """The part of ``limits`` that is about lost records."""
    if lost is None:
        return {}
    flat = {_LOST: 0.0} if lost.everywhere else {}
    for backend, reported in lost.reported.items():
        flat[f"{_LOST}{backend}"] = float(reported.complete)
        cap = reported.cap or WantedCap()
        details = {"W": cap.cap_w, "%": cap.percent, **{str(number): w for number, w in enumerate(reported.limits_w)}}
        flat |= {f"{_LOST_DETAILS}{name}:{backend}": value for name, value in details.items() if value is not None}
    return flat | dict.fromkeys((f"{_CHECKED}{key}" for key in sorted(lost.checked)), 0.0)


def _loss(limits: Mapping[str, Any]) -> LostRecords | None:
    """What the content of ``limits`` says about lost records; None if there are none."""
    backends = {name.removeprefix(_LOST) for name in limits if name.startswith(_LOST)}
    if not backends:
        return None
    return LostRecords(
        "records of this boot were lost",
        everywhere="" in backends,
        reported={backend: _reported(backend, limits) for backend in sorted(backends - {""})},
        checked=frozenset(key.removeprefix(_CHECKED) for key in limits if key.startswith(_CHECKED)),
    )


def _reported(backend: str, limits: Mapping[str, Any]) -> ReportedLimits:
    details: dict[str, float] = {}
    for name, value in limits.items():
        detail, _, of = name.removeprefix(_LOST_DETAILS).partition(":")
        limit = usable_limit(value)
        if name.startswith(_LOST_DETAILS) and of == backend and limit is not None:
            details[detail] = limit
    try:
        cap = WantedCap(details.pop("W", None), details.pop("%", None))
    except InvalidQuantityError:
        return ReportedLimits(backend)
    stated = cap if cap != WantedCap() else None
    return ReportedLimits(backend, stated, tuple(details.values()), complete=limits[f"{_LOST}{backend}"] == 1.0)
