"""What is known about the limits that Joulie wrote, and how originals are found again once records are lost.

A device is in one of three states: no record (untouched: the limit in force is its owner's), a record with an original
(capped, restorable), or a record without one (a limit of Joulie's may be in force, and what it replaced is not known).
Limits are in the unit of their backend: W for power limits, Hz for frequency limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

_SAME_ORIGINAL = 1e-6
"""Relative difference up to which a limit is its original again."""

SameLimit = Callable[[float, float], bool]
"""Whether two limits are equal up to the rounding of the devices."""


@dataclass(frozen=True)
class LimitRecord:
    """What Joulie knows about the limit of one device that it has written to.

    Attributes:
        original: limit from before the first write; None where it is not known.
        written: limits of Joulie's that may be in force; empty where they are not known.
    """

    original: float | None
    written: tuple[float, ...] = ()

    def has_written(self, limit: float, same: SameLimit) -> bool:
        """Whether a limit may be one that Joulie wrote."""
        return not self.written or any(same(limit, written) for written in self.written)

    def writing(self, limit: float, in_force: float, same: SameLimit) -> LimitRecord:
        """The record to save before `limit` replaces `in_force`: either may be found in force afterwards."""
        if any(same(limit, written) for written in self.written):
            return self
        return replace(self, written=(*(old for old in self.written if same(old, in_force)), limit))


def usable_limit(value: object) -> float | None:
    """A saved or reported limit as a number above zero; None for anything else, which counts as not known."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None


@dataclass(frozen=True)
class FoundLimit:
    """The limit of one device as read.

    Attributes:
        id: device.
        limit: limit in force; None where it cannot be read.
        default: limit of the device without any cap; None where nobody states one.
        candidates: limits that Joulie may have written to it, by the caps that are asked for now.
        clips: whether it may put another limit in force than the one written: it states no smallest one.
        floor_known: whether its smallest limit is known at all: a process that knew it may have raised a limit to it.
    """

    id: str
    limit: float | None
    default: float | None = None
    candidates: Collection[float] = field(default=())
    clips: bool = False
    floor_known: bool = True


def recovered_record(
    found: FoundLimit, earlier: LimitRecord | None, same: SameLimit, *, reported: bool, kexec: bool = False
) -> LimitRecord | None:
    """Record of a device whose own record is lost or void; None where the limit in force is its owner's.

    A limit that equals one of Joulie's is never taken for an original: that would make the cap permanent. Its original
    is the one of the earlier record, else the device's default, else not known. Without a limit of Joulie's the
    device has its own limits again, as after a reboot; unless it may have clipped one, which nobody can tell, but for
    kexec, which resets no limit.

    Args:
        found: the device; its limit must have been read.
        earlier: record of an earlier boot, or one whose original cannot be used; None without one.
        same: compares limits.
        reported: whether the device may have other limits of Joulie's than the candidates, by the last report.
        kexec: whether no firmware has reset the limits since the earlier record.
    """
    limit = found.limit
    if limit is None:
        return earlier
    written = earlier.written if earlier else ()
    original = earlier.original if earlier else None
    ours = any(same(limit, candidate) for candidate in (*written, *(() if written else found.candidates)))
    if ours and original is not None:
        return None if is_original(limit, original) else LimitRecord(original, (limit,))
    if found.default is not None and limit >= found.default * (1.0 - _SAME_ORIGINAL):
        return None
    if ours:
        return LimitRecord(found.default, (limit,))
    clipped = found.clips and original is not None and any(one < limit < original for one in written)
    return LimitRecord(original if kexec else None, (limit,)) if reported or clipped else None


def is_original(limit: float, original: float) -> bool:
    """Whether a limit is an original again, exactly: what differs at all is a cap that is close to it."""
    return math.isclose(limit, original, rel_tol=_SAME_ORIGINAL)


@dataclass(frozen=True)
class LimitPlan:
    """Limits to write to the devices of one backend.

    Attributes:
        targets: limit that should be in force, by device.
        writes: those targets that are not in force yet.
        records: records to save before the first of these writes.
        refused: why a device gets no limit, by device.
    """

    targets: Mapping[str, float]
    writes: Mapping[str, float]
    records: Mapping[str, LimitRecord]
    refused: Mapping[str, str]


UNREADABLE = "the limit in force cannot be read, so it could not be restored"
ORIGINAL_UNKNOWN = (
    "the limit in force may be a cap of Joulie's, and its original is not known: the saved record was lost or is not"
    " usable; not changed, set the limit by hand or restart the machine"
)


def plan_cap(
    found: Iterable[FoundLimit], wanted: Mapping[str, float], records: Mapping[str, LimitRecord], same: SameLimit
) -> LimitPlan:
    """Decide the limits of devices under a cap.

    Joulie only ever lowers: a limit never exceeds the original, and a limit of somebody else that is lower stays.
    What cannot be read is not written.

    Args:
        found: devices now.
        wanted: limit that the cap asks for, by device; devices without one are left out.
        records: what is known of the devices that Joulie has written to.
        same: compares limits.
    """
    targets: dict[str, float] = {}
    writes: dict[str, float] = {}
    saves: dict[str, LimitRecord] = {}
    refused: dict[str, str] = {}
    for device in found:
        limit, record = device.limit, records.get(device.id)
        if device.id not in wanted:
            continue
        if usable_limit(limit) is None or limit is None:
            refused[device.id] = UNREADABLE
            continue
        if record is None:
            record = LimitRecord(limit)
            lower_is_own = False
        elif record.original is None:
            refused[device.id] = ORIGINAL_UNKNOWN
            continue
        else:
            lower_is_own = record.has_written(limit, same)
        target = min(wanted[device.id], record.original if record.original is not None else limit)
        if same(limit, target) or (limit < target and not lower_is_own):
            targets[device.id] = limit
            continue
        targets[device.id] = writes[device.id] = target
        saved = record.writing(target, limit, same)
        if saved != records.get(device.id):
            saves[device.id] = saved
    return LimitPlan(targets, writes, saves, refused)


def plan_restore(found: Iterable[FoundLimit], records: Mapping[str, LimitRecord]) -> LimitPlan:
    """Decide the limits of devices without a cap: the originals of those with a record; the others stay as they are.

    They are written whatever is read now: they were read before the first write, and a limit that cannot be read, or is
    read late, may still be a cap.

    Args:
        found: devices now.
        records: what is known of the devices that Joulie has written to.
    """
    targets: dict[str, float] = {}
    writes: dict[str, float] = {}
    refused: dict[str, str] = {}
    for device in found:
        record = records.get(device.id)
        if record is None:
            continue
        if record.original is None:
            refused[device.id] = ORIGINAL_UNKNOWN
            continue
        targets[device.id] = writes[device.id] = record.original
    return LimitPlan(targets, writes, {}, refused)
