"""Decisions about one workload's profile: whether it is due, its classification, and whether to write the status."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import TypeVar

import msgspec

from joulie.adapters.kubernetes.api.v1alpha1 import (
    Condition,
    ConditionStatus,
    CpuUse,
    Criticality,
    GpuUse,
    Migratability,
    WorkloadProfileStatus,
)
from joulie.adapters.kubernetes.times import rfc3339, time_or_none
from joulie.apps.operator.classifier.responses import Responses
from joulie.apps.operator.classifier.usage import Basis, ClusterUsage, measured_series, use_of
from joulie.apps.operator.classifier.workloads import Workload
from joulie.domain.policy import WorkloadClass
from joulie.domain.profiles.cap_response import with_response
from joulie.domain.profiles.learned import refined
from joulie.domain.profiles.profile import Classification, CpuProfile, GpuProfile, Hints, Use
from joulie.domain.profiles.rules import CONFIDENCE_HINTS, METRICS_MISSING, classify, decayed
from joulie.domain.workload import CpuBound, GpuBound, GpuLevel, Level

MEASURED_CONDITION = "Measured"
UTILISATION_BAND = 5.0
"""Dead-band of a stored utilisation, percentage points."""
_REFRESH_INTERVALS = 4.0
"""Reclassify intervals after which an unchanged measured profile is written to refresh its timestamp."""
_NUMBER = re.compile(r"\d+(\.\d+)?")
_MESSAGES = {
    Basis.MEASURED: "",
    Basis.SIMULATED: "from the sim.joulie.io annotations of its pods",
    Basis.HINTS: "nothing has been measured yet",
    Basis.NO_METRICS: "Prometheus has no usage metrics of its pods, or lacks a part that was measured before",
    Basis.UNAVAILABLE: "Prometheus does not answer",
}
_NO_RESPONSES = Responses()
_EnumT = TypeVar("_EnumT", bound=StrEnum)
_PartT = TypeVar("_PartT", CpuUse, GpuUse)


class Due(Enum):
    """The kind of classification that a workload needs now."""

    NOTHING = auto()
    HINTS = auto()
    """From annotations, since there is nothing to measure yet."""
    USE = auto()
    """From measured use."""


@dataclass(frozen=True)
class Schedule:
    """Timing of classifications.

    Attributes:
        window_s: window over which use is averaged, s.
        reclassify_s: interval between two classifications of a workload, s.
        since_s: start of the classifier in this process, s since the epoch.
    """

    window_s: float
    reclassify_s: float
    since_s: float


@dataclass(frozen=True)
class WorkloadMemory:
    """In-memory state of a workload that its profile does not store.

    Attributes:
        hints: hints used by the last classification.
        answered_s: last successful usage query, with or without data of the workload, s since the epoch; None before.
        measured_s: when the workload was last measured, s since the epoch; None before.
    """

    hints: Hints
    answered_s: float | None = None
    measured_s: float | None = None


@dataclass(frozen=True)
class Conclusion:
    """A classification with its evidence.

    Attributes:
        classification: the classification to store.
        basis: its evidence; None if recently measured values are kept.
    """

    classification: Classification
    basis: Basis | None

    @property
    def measured(self) -> bool:
        """Whether it is based on a measurement in this cycle."""
        return self.basis in {Basis.MEASURED, Basis.SIMULATED}


def due(
    workload: Workload,
    stored: WorkloadProfileStatus | None,
    remembered: WorkloadMemory | None,
    schedule: Schedule,
    now_s: float,
) -> Due:
    """The kind of classification that a workload needs now.

    Args:
        workload: the workload.
        stored: status of its profile; None without one.
        remembered: in-memory state of the workload; None if this process has not classified it yet.
        schedule: timing of classifications.
        now_s: current time, s since the epoch.
    """
    running_s = workload.running_since_s
    ripe = running_s is not None and now_s - running_s >= schedule.window_s
    if stored is None or stored.confidence is None:
        return Due.USE if ripe else Due.HINTS
    news = remembered is not None and remembered.hints != workload.hints
    if not _has_values(stored):
        if not ripe:
            return Due.HINTS if news or remembered is None else Due.NOTHING
        if news or remembered is None or remembered.answered_s is None:
            return Due.USE
        since_s = remembered.answered_s
    elif news or (running_s is not None and _is_losing(stored)):
        return Due.USE
    elif remembered is None or remembered.answered_s is None:
        since_s = schedule.since_s
    else:
        since_s = remembered.answered_s
    moment = running_s is not None and _moment_passed(workload, since_s, now_s, schedule.reclassify_s)
    return Due.USE if moment else Due.NOTHING


def is_waiting(workload: Workload, stored: WorkloadProfileStatus | None, remembered: WorkloadMemory | None) -> bool:
    """Whether a profile already states that Prometheus is unavailable, so that nothing changes until it answers."""
    if stored is None or remembered is None or remembered.hints != workload.hints or _has_values(stored):
        return False
    condition = _measured_condition(stored)
    return condition is not None and condition.reason == Basis.UNAVAILABLE


def _moment_passed(workload: Workload, since_s: float, until_s: float, period_s: float) -> bool:
    """Whether the workload's time within each period, from a hash of its name, falls in ``(since_s, until_s]``."""
    namespace, owner = workload.key
    name = f"{namespace}/{owner.kind}/{owner.name}"
    phase_s = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest()) / 2**32 * period_s
    return (until_s - phase_s) // period_s > (since_s - phase_s) // period_s


def conclude(
    workload: Workload,
    stored: WorkloadProfileStatus | None,
    remembered: WorkloadMemory | None,
    usage: ClusterUsage,
    schedule: Schedule,
    now_s: float,
    responses: Responses = _NO_RESPONSES,
) -> Conclusion:
    """Classify a workload from measured use, else from earlier measurements with decayed confidence, else from hints.

    Raises:
        InvalidQuantityError: a measured value is invalid.
    """
    previous = None if stored is None else classification_of(stored)
    use = use_of(workload, usage, schedule.window_s, now_s)
    if use is not None and not _lost(previous, use):
        measured = classify(workload.hints, use)
        if usage.series is not None:
            course = measured_series(workload, usage.series, schedule.window_s, now_s)
            measured = refined(measured, workload.hints, use, course)
        measured = with_response(measured, workload.hints, cpu=responses.cpu, gpu=responses.gpu)
        return Conclusion(measured, usage.found)
    if previous is None or not _has_values(stored):
        return Conclusion(classify(workload.hints, None), usage.absent)
    # Confidence does not decay for the time before the workload or this process ran.
    known_s = [schedule.since_s, workload.running_since_s or now_s, _updated_s(stored)]
    if remembered is not None and remembered.measured_s is not None:
        known_s.append(remembered.measured_s)
    kept = decayed(previous, workload.hints, max(0.0, now_s - max(known_s)), schedule.reclassify_s)
    if METRICS_MISSING not in kept.reason:
        return Conclusion(kept, None)
    return Conclusion(kept, Basis.NO_METRICS if usage.absent is Basis.HINTS else usage.absent)


def _lost(previous: Classification | None, use: Use) -> bool:
    """Whether a part that was measured before is missing now: then old values are kept while confidence decays."""
    if previous is None or previous.confidence <= CONFIDENCE_HINTS:
        return False
    cpu = previous.cpu.avg_utilization_pct is not None and use.cpu_util_pct is None
    gpu = previous.gpu.avg_utilization_pct is not None and use.holds_gpus and use.gpu_util_pct is None
    return cpu or gpu


def updated_memory(
    workload: Workload, before: WorkloadMemory | None, conclusion: Conclusion, now_s: float, *, asked: bool
) -> WorkloadMemory:
    """The in-memory state of a workload after a classification.

    Args:
        workload: the workload.
        before: state before; None without one.
        conclusion: the classification.
        now_s: current time, s since the epoch.
        asked: whether usage was queried for it.
    """
    answered_s = None if before is None else before.answered_s
    measured_s = None if before is None else before.measured_s
    if conclusion.measured:
        answered_s = measured_s = now_s
    elif asked and conclusion.basis in {Basis.HINTS, Basis.NO_METRICS}:
        answered_s = now_s
    return WorkloadMemory(workload.hints, answered_s, measured_s)


# ---- stored form


def classification_of(status: WorkloadProfileStatus) -> Classification | None:
    """The classification in a stored status; None if it has none. Unknown enum values are treated as absent."""
    if status.confidence is None:
        return None
    cpu, gpu = status.cpu or CpuUse(), status.gpu or GpuUse()
    criticality, migratability = status.criticality or Criticality(), status.migratability or Migratability()
    return Classification(
        workload_class=_known(WorkloadClass, criticality.workload_class) or WorkloadClass.STANDARD,
        reschedulable=migratability.reschedulable,
        cpu=CpuProfile(
            _known(Level, cpu.intensity),
            _known(CpuBound, cpu.bound),
            cpu.avg_utilization_pct,
            _known(Level, cpu.cap_sensitivity),
        ),
        gpu=GpuProfile(
            _known(GpuLevel, gpu.intensity),
            _known(GpuBound, gpu.bound),
            gpu.avg_utilization_pct,
            _known(GpuLevel, gpu.cap_sensitivity),
        ),
        reason=status.classification_reason or "",
        confidence=status.confidence,
    )


def status_to_write(
    conclusion: Conclusion, stored: WorkloadProfileStatus | None, reclassify_s: float, now_s: float
) -> WorkloadProfileStatus | None:
    """The status to write; None if the stored one is equal (within the dead-band) and recent enough.

    Args:
        conclusion: the classification.
        stored: status of the profile; None without one.
        reclassify_s: interval between two classifications of a workload, s.
        now_s: current time, s since the epoch.
    """
    wanted = _status(conclusion, stored, now_s)
    if stored is None or _differs(wanted, stored):
        return wanted
    old = now_s - _updated_s(stored) >= _REFRESH_INTERVALS * reclassify_s
    return wanted if conclusion.measured and old else None


def _status(conclusion: Conclusion, stored: WorkloadProfileStatus | None, now_s: float) -> WorkloadProfileStatus:
    found = conclusion.classification
    cpu, gpu = found.cpu, found.gpu
    return WorkloadProfileStatus(
        criticality=Criticality(found.workload_class),
        migratability=None if found.reschedulable is None else Migratability(found.reschedulable),
        cpu=_unless_empty(CpuUse(cpu.intensity, cpu.bound, _rounded(cpu.avg_utilization_pct), cpu.cap_sensitivity)),
        gpu=_unless_empty(GpuUse(gpu.intensity, gpu.bound, _rounded(gpu.avg_utilization_pct), gpu.cap_sensitivity)),
        classification_reason=found.reason,
        confidence=found.confidence,
        last_updated=rfc3339(now_s),
        conditions=_conditions(conclusion, stored, now_s),
    )


def _conditions(conclusion: Conclusion, stored: WorkloadProfileStatus | None, now_s: float) -> tuple[Condition, ...]:
    old = None if stored is None else _measured_condition(stored)
    basis = conclusion.basis
    if basis is None:
        return () if old is None else (old,)
    status = ConditionStatus.TRUE if conclusion.measured else ConditionStatus.FALSE
    since = old.last_transition_time if old is not None and old.status == status else rfc3339(now_s)
    return (Condition(MEASURED_CONDITION, status, basis, since, _MESSAGES[basis]),)


def _measured_condition(status: WorkloadProfileStatus) -> Condition | None:
    return next((one for one in status.conditions if one.type == MEASURED_CONDITION), None)


def _differs(wanted: WorkloadProfileStatus, stored: WorkloadProfileStatus) -> bool:
    return _non_numeric(wanted) != _non_numeric(stored) or not all(
        _close(new, old) for new, old in zip(_utilisations_pct(wanted), _utilisations_pct(stored), strict=True)
    )


def _non_numeric(status: WorkloadProfileStatus) -> tuple[object, ...]:
    """The contents of a status without measured numbers."""
    condition = _measured_condition(status)
    losing = METRICS_MISSING in (status.classification_reason or "")
    cpu, gpu = status.cpu or CpuUse(), status.gpu or GpuUse()
    return (
        status.criticality,
        status.migratability or Migratability(),
        msgspec.structs.replace(cpu, avg_utilization_pct=None),
        msgspec.structs.replace(gpu, avg_utilization_pct=None),
        _NUMBER.sub("#", status.classification_reason or ""),
        status.confidence,
        # While confidence decays, an intermittent Prometheus must not cause a write per workload.
        None if condition is None else (condition.status, "" if losing else condition.reason),
    )


def _has_values(status: WorkloadProfileStatus | None) -> bool:
    """Whether a profile has measured values."""
    return status is not None and any(value is not None for value in _utilisations_pct(status))


def _utilisations_pct(status: WorkloadProfileStatus) -> tuple[float | None, float | None]:
    cpu, gpu = status.cpu or CpuUse(), status.gpu or GpuUse()
    return cpu.avg_utilization_pct, gpu.avg_utilization_pct


def _is_losing(status: WorkloadProfileStatus) -> bool:
    condition = _measured_condition(status)
    return condition is not None and condition.status != ConditionStatus.TRUE


def _updated_s(status: WorkloadProfileStatus | None) -> float:
    """When a status was written, s since the epoch; 0 if it has no readable timestamp."""
    return 0.0 if status is None else time_or_none(status.last_updated) or 0.0


def _close(new: float | None, old: float | None) -> bool:
    if new is None or old is None:
        return new is old
    return abs(new - old) < UTILISATION_BAND


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _unless_empty(part: _PartT) -> _PartT | None:
    return None if part == type(part)() else part


def _known(values: type[_EnumT], text: str | None) -> _EnumT | None:
    return next((value for value in values if value == text), None)
