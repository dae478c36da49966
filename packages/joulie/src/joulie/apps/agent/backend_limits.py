"""Writes and restores the limits of one backend's devices, all at once.

What is replaced is saved in one durable write before the first device is written, and forgotten in one after the last
is restored. A device that fails does not affect the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from joulie.apps.agent.originals import OriginalLimits
from joulie.apps.agent.outcome import SIMULATED, Enforcement
from joulie.domain.limit_contest import RESETS, Contest
from joulie.domain.limit_records import (
    FoundLimit,
    LimitPlan,
    LimitRecord,
    SameLimit,
    is_original,
    plan_cap,
    plan_restore,
)
from joulie.domain.quantities import InvalidQuantityError
from joulie.ports.devices import ControlFailedError, ControlRefusedError, NoBackendError

_log = logging.getLogger(__name__)

_UNREADABLE = "the limit in force cannot be read, and may be one of an earlier run whose record was lost"


SetLimits = Callable[[Mapping[str, float]], Mapping[str, float | ControlRefusedError | ControlFailedError]]


def one_by_one(set_limit: Callable[[str, float], float]) -> SetLimits:
    """Limits set in turn; `set_limit` returns what is in force and raises as `PowerLimiter.set_limit`."""

    def set_limits(limits: Mapping[str, float]) -> Mapping[str, float | ControlRefusedError | ControlFailedError]:
        results: dict[str, float | ControlRefusedError | ControlFailedError] = {}
        for device, limit in limits.items():
            try:
                results[device] = set_limit(device, limit)
            except (ControlRefusedError, ControlFailedError) as error:
                results[device] = error
            except (InvalidQuantityError, OSError) as error:
                results[device] = ControlFailedError(str(error))
        return results

    return set_limits


class BackendLimits:
    """The limits of one backend's devices.

    Args:
        name: name of the backend.
        set_limits: writes the limits of devices and returns what is in force, or what failed, by device.
        originals: store of the original limits.
        same: compares limits.
        simulate_only: plan limits, but write none.
        yields: leave a device whose limit another program sets again and again to that program.
    """

    def __init__(
        self,
        name: str,
        set_limits: SetLimits,
        originals: OriginalLimits,
        same: SameLimit,
        *,
        simulate_only: bool = False,
        yields: bool = False,
    ) -> None:
        self.name = name
        self._set_limits = set_limits
        self._originals = originals
        self._same = same
        self._simulate_only = simulate_only
        # By device: the limit written and the limit read back. Drivers round to their own steps.
        self._rounded: dict[str, tuple[float, float]] = {}
        # By device: the limit read back after a write that failed, such as one that the firmware clipped.
        self._strayed: dict[str, float] = {}
        self._yields = yields and not simulate_only
        self._contests: dict[str, Contest] = {}

    @property
    def resets(self) -> Mapping[str, int]:
        """Times that another program replaced Joulie's limit by a higher one, by device."""
        return {device: contest.total for device, contest in self._contests.items() if contest.total}

    @property
    def may_hold_limits(self) -> bool:
        """Whether limits of Joulie's may be in force, of this process or an earlier one."""
        return self._originals.may_concern(self.name)

    @property
    def in_doubt(self) -> bool:
        """Whether it may hold limits of Joulie's of which too little is known to name or to restore them."""
        return self._originals.in_doubt(self.name)

    def left(self, settled: Collection[str] = ()) -> Sequence[float]:
        """Limits of Joulie's that may be in force on devices other than those settled."""
        records = self._originals.not_restored(self.name)
        # One whose original is not known, or that equals it, may be its owner's.
        return [
            limit
            for device, record in records.items()
            if device not in settled and record.original is not None
            for limit in record.written
            if not self._same(limit, record.original)
        ]

    def enforce(self, found: Sequence[FoundLimit], wanted: Mapping[str, float]) -> Enforcement:
        """Lower the limits of devices.

        Args:
            found: devices now.
            wanted: limit by device; others are left alone.
        """
        done = Enforcement()
        if problem := self._originals.unavailable():
            done.failed = dict.fromkeys(wanted, problem)
            return done
        read = {device.id: device.limit for device in found}
        found = [self._unrounded(device, wanted.get(device.id)) for device in found]
        yielded = self._look(read, wanted)
        wanted = {device: limit for device, limit in wanted.items() if device not in yielded}
        plan = plan_cap(found, wanted, self._originals.resolve(self.name, found, self._same), self._same)
        done.refused |= {**plan.refused, **yielded}
        done.in_force_w = {name: read[name] or limit for name, limit in plan.targets.items() if name not in plan.writes}
        if self._simulate_only:
            done.in_force_w = dict(plan.targets)
            return done
        try:
            self._originals.update(self.name, plan.records)
        except OSError as error:
            reason = f"limits not changed: the original limits could not be saved: {error}"
            done.failed |= dict.fromkeys(plan.writes, reason)
            done.left_w = self.left(done.in_force_w)
            return done
        self._write(plan, done)
        self._save_rounded(plan, done)
        self._note(wanted, done.in_force_w)
        done.left_w = self.left({*done.in_force_w, *(name for name in done.refused if self._is_original(name, read))})
        return done

    def restore(
        self, list_devices: Callable[[], Sequence[FoundLimit]], only: Collection[str] | None = None
    ) -> Mapping[str, str]:
        """Restore the original limits of devices that have a record; returns the problems by device.

        Args:
            list_devices: lists the devices; called only where there may be something to restore.
            only: devices to restore; None for all.
        """
        if problem := self._originals.unavailable():
            return {self.name: problem}
        if not self.may_hold_limits:
            return {}
        try:
            found = list_devices()
        except NoBackendError as error:
            kept = self._originals.kept_by_kexec(self.name)
            return dict.fromkeys({**kept, **self._originals.for_backend(self.name)}, str(error))
        except (ControlFailedError, ControlRefusedError, OSError) as error:
            # They are there and cannot be read: that the last boot has reset them is not known before they can.
            return dict.fromkeys(self._originals.not_restored(self.name), str(error))
        records = self._originals.resolve(self.name, found, self._same)
        kept = self._originals.kept_by_kexec(self.name)
        missing = self._originals.not_restored(self.name).keys() - {device.id for device in found}
        if only is not None:
            found = [device for device in found if device.id in only]
            records = {device: record for device, record in records.items() if device in only}
            kept = {device: record for device, record in kept.items() if device in only}
        if records and self._simulate_only:
            return dict.fromkeys(records, SIMULATED)
        plan = plan_restore(found, records)
        unread = [device.id for device in found if device.limit is None]
        # A device whose id cannot be read either may be one of those that are missing.
        doubtful = [device for device in unread if missing or self._originals.may_lack_record(self.name, device)]
        done = Enforcement(refused={**plan.refused, **dict.fromkeys(doubtful, _UNREADABLE)})
        self._write(plan, done)
        _compare(plan.writes, {device.id: device.limit for device in found}, done)
        return self._forget({**kept, **records}, done)

    def _look(self, read: Mapping[str, float | None], wanted: Mapping[str, float]) -> dict[str, str]:
        """Look for other writers; devices that are left to them, and why."""
        if not self._yields:
            return {}
        yielded: dict[str, str] = {}
        for device in wanted.keys() & read.keys():
            before = self._contests.get(device, Contest())
            contest = self._contests[device] = before.looked(read[device], self._same)
            if contest.total > before.total:
                extra = {"backend": self.name, "device": device, "limit": contest.found, "times": contest.total}
                _log.warning("another program replaced the limit", extra=extra)
            if contest.yields:
                yielded[device] = (
                    f"another program sets {contest.found:g} W whenever Joulie sets less ({RESETS} times in a row): "
                    "left to it for a while"
                )
        # Its limit is the owner's now: nothing of Joulie's is to be restored there.
        given_up = [device for device in yielded if device in self._originals.for_backend(self.name)]
        if given_up:
            try:
                self._originals.update(self.name, {}, forget=given_up)
            except OSError as error:
                _log.warning("saved limits not deleted", extra={"backend": self.name, "error": str(error)})
        return yielded

    def _note(self, wanted: Mapping[str, float], in_force: Mapping[str, float]) -> None:
        """Note what Joulie has put in force, to be found again at the next look."""
        for device, contest in self._contests.items():
            limit = in_force.get(device)
            ours = device in wanted and limit is not None and self._same(limit, wanted[device])
            self._contests[device] = replace(contest, put=limit if ours else None)

    def _write(self, plan: LimitPlan, done: Enforcement) -> None:
        for device, result in (self._set_limits(plan.writes) if plan.writes else {}).items():
            if isinstance(result, ControlRefusedError):
                done.refused[device] = str(result)
            elif isinstance(result, ControlFailedError):
                done.failed[device] = str(result)
                if result.in_force is not None:
                    self._strayed[device] = result.in_force
            else:
                done.in_force_w[device] = result
                self._rounded[device] = (plan.writes[device], result)
        written = sorted(plan.writes.keys() & done.in_force_w.keys())
        if written:
            _log.info("limits set", extra={"backend": self.name, "devices": written, "problems": len(done.problems)})

    def _save_rounded(self, plan: LimitPlan, done: Enforcement) -> None:
        """Save limits that the driver rounded or clipped, so that a later process knows them for Joulie's."""
        records = self._originals.for_backend(self.name)
        in_force, self._strayed = {**self._strayed, **done.in_force_w}, {}
        rounded = {
            device: records[device].writing(in_force[device], limit, self._same)
            for device, limit in plan.writes.items()
            if device in in_force and device in records
        }
        try:
            self._originals.update(self.name, rounded)
        except OSError as error:
            _log.warning("rounded limits not saved", extra={"backend": self.name, "error": str(error)})

    def _forget(self, records: Mapping[str, LimitRecord], done: Enforcement) -> Mapping[str, str]:
        problems = dict(done.problems)
        for device in records.keys() - problems.keys() - done.in_force_w.keys():
            problems[device] = f"not listed by {self.name}; the original limit remains saved"
        restored = [device for device in records if device not in problems]
        try:
            self._originals.update(self.name, {}, forget=restored)
        except OSError as error:
            reason = f"restored, but the saved limit could not be deleted: {error}"
            return problems | dict.fromkeys(restored, reason)
        for device in restored:
            self._rounded.pop(device, None)
            if device in self._contests:
                self._contests[device] = replace(self._contests[device], put=None)
        if restored:
            _log.info("original limits restored", extra={"backend": self.name, "devices": sorted(restored)})
        return problems

    def _is_original(self, device: str, read: Mapping[str, float | None]) -> bool:
        """Whether a limit as read is the original of its device."""
        record, limit = self._originals.for_backend(self.name).get(device), read.get(device)
        return bool(record and record.original and limit and self._same(limit, record.original))

    def _unrounded(self, device: FoundLimit, wanted: float | None) -> FoundLimit:
        """The device with the limit that was written in place of that to which its driver rounded it.

        Only where the same limit is wanted still: another one close to it may be rounded otherwise.
        """
        written, rounded = self._rounded.get(device.id, (None, None))
        if written is None or written != wanted or rounded is None or device.limit is None:
            return device
        if not self._same(device.limit, rounded):
            return device
        return replace(device, limit=written)


def _compare(originals: Mapping[str, float], before: Mapping[str, float | None], done: Enforcement) -> None:
    """Correct what the writes of originals gave, by the limits read before them.

    A write that changed nothing restored nothing, even if the driver's rounding could explain the difference. A device
    that takes no limit is restored if it has its original: that is so where it took no cap either.
    """
    for device, original in originals.items():
        limit = before[device]
        if limit is None:
            continue
        if is_original(limit, original):
            if done.refused.pop(device, None) or done.failed.pop(device, None):
                done.in_force_w[device] = limit
        elif done.in_force_w.get(device) == limit:
            del done.in_force_w[device]
            done.failed[device] = "the original limit was accepted, but the one before is still in force"
