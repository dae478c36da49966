"""The limits that devices had before Joulie wrote to them, saved on the host so that any later run can restore them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from joulie.domain.limit_records import FoundLimit, LimitRecord, SameLimit, recovered_record
from joulie.domain.saved_records import LostRecords, ReportedLimits, SavedRecords

_log = logging.getLogger(__name__)


class LimitStore(Protocol):
    """Storage that survives the process."""

    def load(self) -> SavedRecords:
        """What was saved last.

        Raises:
            OSError: it cannot be read now.
        """
        ...

    def save(self, saved: SavedRecords) -> None:
        """Replace what is saved, atomically and durably.

        Raises:
            OSError: it cannot be written.
        """
        ...

    def booted_at_epoch_s(self) -> float | None:
        """Time of the last boot, s since the epoch; None if it cannot be read, or if kexec has reset no device."""
        ...


class OriginalLimits:
    """Records by backend and device; power in W, frequency in Hz. Safe to use from several threads.

    A restored limit is forgotten: from then on the limit belongs to the machine's administrator again.

    Once records are lost, the last report is all that is known of the limits in force. The next report replaces it, so
    what it says is saved first, and each device is compared with it, in this process or a later one.

    Args:
        store: persistent storage of the records.
    """

    def __init__(self, store: LimitStore) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._saved: SavedRecords | None = None  # what the store holds; None until it is read
        self._records: dict[str, LimitRecord] = {}
        self._earlier: dict[str, LimitRecord] = {}
        self._kexec = False
        self._save_failed = False
        self._lost: LostRecords | None = None
        # Devices that have had a record, or were compared with the last report: what is forgotten is not lost.
        self._known: set[str] = set()
        self._reported: dict[str, ReportedLimits] = {}

    def unavailable(self) -> str | None:
        """Why the saved limits are not known, so that no limit may be changed; None if they are."""
        with self._lock:
            if self._saved is None:
                try:
                    self._load()
                except OSError as error:
                    return f"limits not changed: the saved original limits cannot be read: {error}"
        return None

    def note_reported(self, reported: ReportedLimits, at_epoch_s: float) -> None:
        """Note what an earlier process reported, and when; a report from before the last boot says nothing.

        That is how the loss of the whole file is noticed.

        Args:
            reported: limits that may be in force.
            at_epoch_s: time of the report, s since the epoch.
        """
        booted_at_s = self._store.booted_at_epoch_s()
        if booted_at_s is not None and at_epoch_s < booted_at_s:
            return
        with self._lock:
            self._reported.setdefault(reported.backend, reported)
            if self.unavailable() is None:
                self._note_loss()

    def reported(self, backend: str) -> ReportedLimits | None:
        """What an earlier process reported about a backend; None if it reported no limits of it."""
        return self._reported.get(backend)

    @property
    def never_saved(self) -> bool:
        """Whether saving fails, and nothing was saved before or lost: no limit in force is one of Joulie's."""
        with self._lock:
            return self._save_failed and self._saved is not None and not self._saved.found and self._lost is None

    def for_backend(self, backend: str) -> dict[str, LimitRecord]:
        """Records of a backend's devices, by device; empty while they are not known."""
        with self._lock:
            return _of(backend, self._records) if self.unavailable() is None else {}

    def not_restored(self, backend: str) -> dict[str, LimitRecord]:
        """Records of a backend's devices, also those of an earlier boot whose devices could not be read since."""
        with self._lock:
            return _of(backend, self._earlier) | self.for_backend(backend)

    def kept_by_kexec(self, backend: str) -> dict[str, LimitRecord]:
        """Records of an earlier boot whose limits no firmware has reset, and whose devices could not be read since.

        After a reboot a device may be missing because it was removed; its limit is reset then.
        """
        with self._lock:
            return _of(backend, self._earlier) if self._kexec else {}

    def may_concern(self, backend: str) -> bool:
        """Whether a backend has records, or may have had some that are lost."""
        with self._lock:
            return bool(self.for_backend(backend)) or self.may_lack_records(backend)

    def may_lack_records(self, backend: str) -> bool:
        """Whether devices of a backend may have limits of Joulie's whose records are lost, void or not readable now."""
        prefix = f"{backend}/"
        with self._lock:
            return (
                self.unavailable() is not None
                or (self._lost is not None and self._lost.concerns(backend))
                or any(record.original is None for record in self.for_backend(backend).values())
                or any(key.startswith(prefix) for key in self._earlier)
            )

    def in_doubt(self, backend: str) -> bool:
        """Whether a report must name a backend: a later process that has nothing else takes its limits for others'."""
        with self._lock:
            lost = self._lost is not None and backend in self._reported
            return lost or any(record.original is None for record in self.for_backend(backend).values())

    def resolve(self, backend: str, devices: Iterable[FoundLimit], same: SameLimit) -> dict[str, LimitRecord]:
        """Records of a backend's devices, after those that are lost, void or unusable were checked against the devices.

        Args:
            backend: backend of the devices.
            devices: devices as they are now.
            same: compares limits.
        """
        with self._lock:
            if self.unavailable() is not None:
                return {}
            for device in devices:
                if device.limit is not None:
                    self._resolve(backend, device, same)
            return self.for_backend(backend)

    def may_lack_record(self, backend: str, device: str) -> bool:
        """Whether one device may have a limit of Joulie's whose record is lost or void."""
        key = f"{backend}/{device}"
        with self._lock:
            lost = self._lost is not None and backend in self._reported
            return key in self._earlier or (lost and key not in self._known)

    def update(self, backend: str, records: Mapping[str, LimitRecord], forget: Collection[str] = ()) -> None:
        """Save records, and delete those of restored devices, in one write; none if nothing has changed.

        Raises:
            OSError: nothing was saved; limits without a saved record must not be changed.
        """
        with self._lock:
            forgotten = {f"{backend}/{device}" for device in forget}
            changed = self._records | {f"{backend}/{device}": record for device, record in records.items()}
            changed = {key: record for key, record in changed.items() if key not in forgotten}
            self._save(changed, self._known | changed.keys() | forgotten)

    def _load(self) -> None:
        saved = self._store.load()
        self._saved = saved
        self._records = dict(saved.records)
        # What was not known in an earlier boot tells nothing about this one.
        self._earlier = {key: record for key, record in saved.earlier.items() if record.original is not None}
        self._kexec = saved.kexec
        self._known = {key for key, record in self._records.items() if record.original is not None}
        self._lost = saved.lost
        if saved.lost is not None:
            self._known |= set(saved.lost.checked)
            self._reported |= saved.lost.reported  # from before the loss, unlike what was reported since
        self._note_loss()

    def _note_loss(self) -> None:
        """Save what was reported if records are lost, before a report of this process replaces it."""
        if self._lost is None and self._reported and self._saved is not None and not self._saved.found:
            self._lost = LostRecords("the file of the saved limits is gone")
        if self._lost is None or not self._reported:
            return
        self._lost = replace(self._lost, reported=dict(self._reported))
        try:
            self._save(self._records, self._known)
        except OSError as error:
            _log.warning("the loss of saved limits is not saved", extra={"error": str(error)})

    def _save(self, records: dict[str, LimitRecord], known: set[str]) -> None:
        lost = self._lost and replace(self._lost, checked=frozenset(known - records.keys()))
        saved = SavedRecords(dict(records), dict(self._earlier), lost, found=True, kexec=self._kexec)
        # A file without records says that there were none: without a file, a cap that was reported looks lost.
        if saved != self._saved:
            self._save_failed = True
            self._store.save(saved)
            self._save_failed = False
        self._records, self._known, self._lost, self._saved = records, known, lost, saved

    def _resolve(self, backend: str, device: FoundLimit, same: SameLimit) -> None:
        key = f"{backend}/{device.id}"
        record = self._records.get(key)
        if record is not None:
            if record.original is None:
                self._resolve_unknown(key, record, device, same)
        elif key not in self._known and self._may_be_lost(key, backend):
            earlier, reported = self._earlier.pop(key, None), self._reported.get(backend)
            complete = reported is None or (reported.complete and device.floor_known)
            doubtful = earlier is None and not complete
            if found := recovered_record(device, earlier, same, reported=doubtful, kexec=self._kexec):
                self._recover(key, found)
            else:
                self._known.add(key)  # untouched until this process writes to it

    def _resolve_unknown(self, key: str, record: LimitRecord, device: FoundLimit, same: SameLimit) -> None:
        set_by_others = device.limit is not None and not record.has_written(device.limit, same)
        # The limits of such a record may be its owner's as well: only what is asked for now tells.
        found = None if set_by_others else recovered_record(device, None, same, reported=True)
        if found is None:
            del self._records[key]
            self._known.add(key)
        elif found != record:
            self._recover(key, found)

    def _recover(self, key: str, record: LimitRecord) -> None:
        self._records[key] = record
        _log.warning(
            "a limit of an earlier run is in force, its record was lost",
            extra={
                "device": key,
                "limit": record.written,
                "original": record.original,
                "reason": self._lost.reason if self._lost else "",
            },
        )

    def _may_be_lost(self, key: str, backend: str) -> bool:
        """Whether a device without a record may have a limit of Joulie's."""
        return key in self._earlier or (self._lost is not None and self._lost.concerns(backend))


def _of(backend: str, records: Mapping[str, LimitRecord]) -> dict[str, LimitRecord]:
    """Records of one backend, by device."""
    prefix = f"{backend}/"
    return {key.removeprefix(prefix): record for key, record in records.items() if key.startswith(prefix)}
