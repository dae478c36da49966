"""The limits that devices had before Joulie wrote to them, saved on the host so that any later run can restore them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from joulie.domain.limit_records import FoundLimit, LimitRecord, SameLimit, SavedRecords, recovered_record

_log = logging.getLogger(__name__)


class LimitStore(Protocol):
    """Storage that survives the process."""

    def load(self) -> SavedRecords:
        """What was saved last.

        Raises:
            OSError: it cannot be read now.
        """
        ...

    def save(self, records: Mapping[str, LimitRecord], earlier: Mapping[str, LimitRecord]) -> None:
        """Replace what is saved, by key, atomically and durably.

        Args:
            records: records of this boot.
            earlier: records of an earlier boot whose devices could not be read yet.

        Raises:
            OSError: it cannot be written.
        """
        ...

    def booted_at_epoch_s(self) -> float | None:
        """Time of the last boot, s since the epoch; None if it cannot be read."""
        ...


class OriginalLimits:
    """Records by backend and device; power in W, frequency in Hz. Safe to use from several threads.

    A restored limit is forgotten: from then on the limit belongs to the machine's administrator again.

    Args:
        store: persistent storage of the records.
    """

    def __init__(self, store: LimitStore) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._records: dict[str, LimitRecord] = {}
        self._stored: dict[str, LimitRecord] = {}
        self._earlier: dict[str, LimitRecord] = {}
        self._lost: str | None = None
        self._found: bool | None = None
        self._exists = False
        # Devices that this process has had a record of: what it forgets is not lost.
        self._known: set[str] = set()
        # Backends reported to hold caps, and whether the limits of these caps are known.
        self._reported: dict[str, bool] = {}

    def unavailable(self) -> str | None:
        """Why the saved limits are not known, so that no limit may be changed; None if they are."""
        with self._lock:
            if self._found is None:
                try:
                    self._load()
                except OSError as error:
                    return f"limits not changed: the saved original limits cannot be read: {error}"
        return None

    def note_reported(self, backend: str, at_epoch_s: float, *, cap_known: bool) -> bool:
        """Note that an earlier process reported a backend to hold a cap; false if it was before the last boot.

        That is how the loss of the whole file is noticed.

        Args:
            backend: the backend.
            at_epoch_s: time of the report, s since the epoch.
            cap_known: whether the limits of that cap are among the candidates of the devices that are resolved.
        """
        booted_at_s = self._store.booted_at_epoch_s()
        if booted_at_s is not None and at_epoch_s < booted_at_s:
            return False
        self._reported[backend] = cap_known
        return True

    def for_backend(self, backend: str) -> dict[str, LimitRecord]:
        """Records of a backend's devices, by device; empty while they are not known."""
        prefix = f"{backend}/"
        with self._lock:
            if self.unavailable() is not None:
                return {}
            return {key.removeprefix(prefix): record for key, record in self._records.items() if key.startswith(prefix)}

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
                or self._lost is not None
                or any(record.original is None for record in self.for_backend(backend).values())
                or any(key.startswith(prefix) for key in self._earlier)
                or (not self._found and backend in self._reported)
            )

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
                self._resolve(backend, device, same)
            return self.for_backend(backend)

    def may_lack_record(self, backend: str, device: str) -> bool:
        """Whether one device may have a limit of Joulie's whose record is lost or void."""
        key = f"{backend}/{device}"
        with self._lock:
            lost = backend in self._reported and (self._lost is not None or not self._found)
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
            # A file without records says that there were none: without a file, a cap that was reported looks lost.
            if changed != self._stored or not self._exists:
                self._store.save(changed, self._earlier)
                self._exists = True
            self._known |= changed.keys() | forgotten
            self._records, self._stored = changed, dict(changed)

    def _load(self) -> None:
        saved = self._store.load()
        self._records, self._stored = dict(saved.records), dict(saved.records)
        # What was not known in an earlier boot tells nothing about this one.
        self._earlier = {key: record for key, record in saved.earlier.items() if record.original is not None}
        self._lost, self._found = saved.lost, saved.found
        self._exists = saved.found
        self._known = {key for key, record in self._records.items() if record.original is not None}

    def _resolve(self, backend: str, device: FoundLimit, same: SameLimit) -> None:
        key = f"{backend}/{device.id}"
        record = self._records.get(key)
        if record is not None and record.original is not None:
            return
        if device.limit is None:
            # Saved, so that a later process looks at it once it can be read.
            if record is None and key not in self._earlier and self.may_lack_record(backend, device.id):
                self._records[key] = LimitRecord(None)
        elif record is not None:
            self._resolve_unknown(key, record, device, same)
        elif key not in self._known and self._may_be_lost(key, backend):
            earlier = self._earlier.pop(key, None)
            reported = earlier is None and not self._reported.get(backend, True)
            if found := recovered_record(device, earlier, same, reported=reported):
                self._recover(key, found)
            else:
                self._known.add(key)  # untouched until this process writes to it

    def _resolve_unknown(self, key: str, record: LimitRecord, device: FoundLimit, same: SameLimit) -> None:
        set_by_others = device.limit is not None and not record.has_written(device.limit, same)
        # The limits of such a record may be its owner's as well: only what is asked for now tells.
        found = None if set_by_others else recovered_record(device, None, same, reported=True)
        if found is None:
            del self._records[key]
        elif found != record:
            self._recover(key, found)

    def _recover(self, key: str, record: LimitRecord) -> None:
        self._records[key] = record
        _log.warning(
            "a limit of an earlier run is in force, its record was lost",
            extra={"device": key, "limit": record.written, "original": record.original, "reason": self._lost or ""},
        )

    def _may_be_lost(self, key: str, backend: str) -> bool:
        """Whether a device without a record may have a limit of Joulie's."""
        return key in self._earlier or self._lost is not None or (not self._found and backend in self._reported)
