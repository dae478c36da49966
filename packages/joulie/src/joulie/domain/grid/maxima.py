"""The maximum of an autoscaler, and the record of what Joulie has done to it."""

from __future__ import annotations

from typing import NamedTuple

UNSET_MAXIMUM = 100
"""Maximum where none is set: KEDA's default."""


class Record(NamedTuple):
    """What Joulie has done to a maximum; it is kept on the autoscaler.

    Attributes:
        original: maximum before; None where none was set.
        ceiling: maximum that Joulie has set. If there is another one, somebody else has set it.
        since_s: when it was lowered first, s since the epoch.
        changed_s: when Joulie has changed it last, s since the epoch.
    """

    original: int | None
    ceiling: int | None
    since_s: float
    changed_s: float


class Change(NamedTuple):
    """What to write.

    Attributes:
        maximum: maximum to set; None to set none.
        record: record to write with it; None to remove it.
    """

    maximum: int | None
    record: Record | None


def effective(maximum: int | None) -> int:
    """The maximum that holds where this one is set."""
    return UNSET_MAXIMUM if maximum is None else maximum


def overridden(maximum: int | None, record: Record | None) -> bool:
    """Whether somebody else has set the maximum since Joulie did. It wins, and is the original one from now on."""
    return record is not None and maximum != record.ceiling
