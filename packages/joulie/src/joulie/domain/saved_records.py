"""Records of written limits that one process of the agent leaves to the next."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from joulie.domain.actuation import WantedCap
from joulie.domain.limit_records import LimitRecord


@dataclass(frozen=True)
class ReportedLimits:
    """Limits of Joulie's that may be in force on the devices of a backend, by the report of an earlier process.

    Attributes:
        backend: backend that holds them.
        cap: cap that it enforced; None if the report states none.
        limits_w: further limits, W.
        complete: whether there can be no others.
    """

    backend: str
    cap: WantedCap | None = None
    limits_w: tuple[float, ...] = ()
    complete: bool = False


@dataclass(frozen=True)
class LostRecords:
    """What is known once records of this boot are lost. It is saved, since it is lost itself with the next report.

    Attributes:
        reason: why records may be missing.
        everywhere: whether records of any backend may be missing, or only of those with a report.
        reported: what was reported last, by backend.
        checked: devices, by key, that were compared with it since.
    """

    reason: str
    everywhere: bool = False
    reported: Mapping[str, ReportedLimits] = field(default_factory=dict)
    checked: Collection[str] = frozenset()

    def concerns(self, backend: str) -> bool:
        """Whether records of a backend may be missing."""
        return self.everywhere or backend in self.reported


@dataclass(frozen=True)
class SavedRecords:
    """The records that an earlier process left, by key (``backend/device``).

    Attributes:
        records: valid ones, of this boot; without an original where the saved one is not usable.
        earlier: those of an earlier boot, which are void unless one of their limits is still in force.
        lost: what is known instead of records of this boot that are missing; None if none are.
        found: whether anything was saved at all.
        kexec: whether a kernel has started this one, so that no firmware has reset the limits of the earlier boot.
    """

    records: Mapping[str, LimitRecord] = field(default_factory=dict)
    earlier: Mapping[str, LimitRecord] = field(default_factory=dict)
    lost: LostRecords | None = None
    found: bool = False
    kexec: bool = False
