"""Desired NodeTwins and node labels: a decision in the API's terms, and its comparison with what is stored.

Numbers have dead-bands, see `joulie.apps.operator.numbers`. Everything else is compared exactly, which also reverts
edits by hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import msgspec
import numpy as np

from joulie.adapters.kubernetes.api.v1alpha1 import (
    Condition,
    ConditionStatus,
    CpuCap,
    EffectiveCapState,
    GpuCap,
    GpuCapScope,
    GpuLimit,
    GpuPowerCap,
    GpuSlicingRecommendation,
    NodeTwin,
    NodeTwinSpec,
    NodeTwinStatus,
    PlannedSleep,
    PlannedState,
    PolicyReference,
    PowerMeasurement,
    PowerSource,
    SchedulableClass,
    Scheduling,
)
from joulie.adapters.kubernetes.api.v1alpha1.power import MAX_BUDGETS
from joulie.adapters.kubernetes.times import rfc3339
from joulie.apps.operator.facts import DRAINING_CONDITION, FORCED_REASON, LIFTED_REASON
from joulie.apps.operator.numbers import numbers_close, stored_numbers, wanted_numbers, with_numbers
from joulie.apps.operator.power.columns import MODEL, sources_of
from joulie.apps.operator.rescheduler.advice import NO_ADVICE, Advice
from joulie.apps.operator.sources.catalogue import SOURCES
from joulie.domain.capping.node_limits import PowerCeiling
from joulie.domain.control import Decision, NodeDecision
from joulie.domain.control_caps import NodeCaps, under
from joulie.domain.control_power import PowerQuality, quality_of
from joulie.domain.drain import ActivePerformance, DrainingPerformance
from joulie.domain.policy import Cap, Profile

HARDWARE_CONDITION = "HardwareKnown"
POWER_CONDITION = "PowerMeasured"
CAPS_CONDITION = "CapsInForce"
MANAGED_CONDITION = "Managed"
ENFORCED_CONDITION = "Enforced"
"""Only on nodes in observe mode, where it is False."""

GAIN_BAND = 5.0
"""Dead-band of a gain in GPU utilisation, points."""
_SETTLING = "no pod on it needs full power"


@dataclass(frozen=True)
class DesiredNode:
    """DesiredNode labels and NodeTwin of one node.

    Attributes:
        node: node name.
        accepts_performance: whether the node accepts performance pods: then its power is raised before it is announced,
            else it is closed before its power is lowered.
        profile_label: value of the power-profile label; None for no label.
        draining_label: value of the draining label; None for no label.
        spec: spec of the NodeTwin.
        status: status of the NodeTwin, without timestamps and without the field that the agent owns.
    """

    node: str
    accepts_performance: bool
    profile_label: str | None
    draining_label: str | None
    spec: NodeTwinSpec
    status: NodeTwinStatus


class Grounds(NamedTuple):
    """All that the desired state of a node follows from, but for its numbers."""

    node: NodeDecision
    scored: bool
    """Whether it has scores and power."""
    source: str | None
    """Source of its power; None where no sample is fresh."""
    silent: str | None
    """A better source that has gone stale."""
    advice: Advice = NO_ADVICE
    gpu_limits: tuple[GpuLimit, ...] = ()
    ceiling: PowerCeiling | None = None
    budgets: tuple[str, ...] = ()
    sleep: PlannedSleep | None = None

    @classmethod
    def of(
        cls,
        decision: Decision,
        index: int,
        advice: Advice = NO_ADVICE,
        gpu_limits: tuple[GpuLimit, ...] = (),
        ceiling: PowerCeiling | None = None,
        budgets: tuple[str, ...] = (),
        sleep: PlannedSleep | None = None,
    ) -> Self:
        """The grounds for the node at an index of the decision.

        Args:
            decision: the last one.
            index: of the node in it.
            advice: recommendations for the node.
            gpu_limits: limits of its single GPUs.
            ceiling: upper bound of its caps by power budgets, which may be newer than the decision.
            budgets: power budgets in force that cover it.
            sleep: how it would sleep, where that is only observed.
        """
        power = decision.power
        return cls(
            decision.nodes[index],
            bool(decision.twin.scored[index]),
            power.source_of(index),
            power.silent_source_of(index),
            advice,
            gpu_limits,
            ceiling,
            budgets,
            sleep,
        )


def desired_node(
    decision: Decision,
    index: int,
    advice: Advice = NO_ADVICE,
    gpu_limits: tuple[GpuLimit, ...] = (),
    ceiling: PowerCeiling | None = None,
    budgets: tuple[str, ...] = (),
    sleep: PlannedSleep | None = None,
) -> DesiredNode:
    """The desired state of the node at an index of the decision; for the arguments see `Grounds.of`."""
    grounds = Grounds.of(decision, index, advice, gpu_limits, ceiling, budgets, sleep)
    words = desired_words(grounds)
    if not grounds.scored:
        return words
    (numbers,) = wanted_numbers(decision.twin, slice(index, index + 1))
    return replace(words, status=with_numbers(words.status, numbers))


def desired_words(grounds: Grounds) -> DesiredNode:
    """The desired state of a node, without its numbers."""
    node = grounds.node
    return DesiredNode(
        node.node.name,
        node.guarded.schedulable.value == SchedulableClass.PERFORMANCE,
        None if node.label is None else node.label.value,
        "true" if node.draining else None,
        _spec(node, grounds.gpu_limits if takes_limits(node) else (), grounds.ceiling),
        NodeTwinStatus(
            schedulable_class=SchedulableClass(node.guarded.schedulable.value),
            effective_cap_state=EffectiveCapState(
                cpu_pct=round(node.caps.cpu_percent, 2), gpu_pct=round(node.caps.gpu_percent, 2)
            ),
            power_measurement=PowerMeasurement(source=_stored_source(grounds.source)) if grounds.scored else None,
            planned=_planned(grounds),
            power_budgets=grounds.budgets[:MAX_BUDGETS],
            conditions=tuple(_conditions(grounds)),
            reschedule_recommendations=grounds.advice.reschedule,
            gpu_slicing_recommendation=grounds.advice.slicing,
        ),
    )


def takes_limits(node: NodeDecision) -> bool:
    """Whether limits of single GPUs may be set on a node: at full power, nothing else being asked of it.

    A drain, a cap of the profile or of an override and observe mode go first. The ceiling of a power budget does not:
    agents set the lower of both.
    """
    free = node.own_gpu_percent >= 100.0 and node.node.enforced and node.planned is None
    return free and node.node.eligible and isinstance(node.state, ActivePerformance)


def released(node: str) -> DesiredNode:
    """The desired state of a node that is no longer selected: full power, and no scores."""
    status = NodeTwinStatus(
        schedulable_class=SchedulableClass.UNKNOWN,
        conditions=(
            Condition(MANAGED_CONDITION, ConditionStatus.FALSE, "NotSelected", "", "NODE_SELECTOR does not select it"),
        ),
    )
    spec = NodeTwinSpec(node_name=node, profile=Profile.PERFORMANCE, scheduling=Scheduling(draining=False))
    return DesiredNode(node, True, None, None, spec, status)


def _spec(node: NodeDecision, gpu_limits: tuple[GpuLimit, ...], ceiling: PowerCeiling | None) -> NodeTwinSpec:
    caps = under(node.caps, ceiling, node.node.hardware) if node.node.eligible and node.node.enforced else node.caps
    # The policy of a node in observe mode determines what would be, not what is: see `_planned`.
    policy = node.policy if node.planned is None else ""
    return NodeTwinSpec(
        node_name=node.node.name,
        profile=node.guarded.profile,
        cpu=_cpu_cap(caps),
        gpu=_gpu_cap(caps),
        policy=PolicyReference(policy) if policy else None,
        scheduling=Scheduling(draining=node.draining),
        gpu_limits=gpu_limits,
    )


def _planned(grounds: Grounds) -> PlannedState | None:
    """What would be done on a node in observe mode, or whose sleep is only observed."""
    node, sleep = grounds.node, grounds.sleep
    would = node.planned
    if would is None:
        return None if sleep is None else PlannedState(sleep=sleep)
    return PlannedState(
        profile=would.profile,
        cpu=_cpu_cap(would.caps),
        gpu=_gpu_cap(would.caps),
        policy=PolicyReference(node.policy),
        draining=would.draining,
        sleep=sleep,
    )


def _cpu_cap(caps: NodeCaps) -> CpuCap | None:
    if caps.cpu is None:
        return None
    watts, percent = _watts_or_percent(caps.cpu)
    return CpuCap(package_power_cap_watts=watts, package_power_cap_pct_of_max=percent)


def _gpu_cap(caps: NodeCaps) -> GpuCap | None:
    if caps.gpu is None:
        return None
    watts, percent = _watts_or_percent(caps.gpu)
    return GpuCap(GpuPowerCap(scope=GpuCapScope.PER_GPU, cap_watts_per_gpu=watts, cap_pct_of_max=percent))


def _watts_or_percent(cap: Cap) -> tuple[float | None, float | None]:
    """Watts and percent of a cap, one of them None: with both, a reader could not tell which one applies."""
    return (None, cap.percent) if cap.watts is None else (cap.watts, None)


def _conditions(grounds: Grounds) -> Iterator[Condition]:
    node = grounds.node
    yield _draining(node)
    yield _caps_in_force(node)
    yield _hardware(node)
    yield _power(grounds)
    if node.planned is not None:
        yield _condition(ENFORCED_CONDITION, False, "ObserveMode", "observe mode: the plan is not applied")


def _draining(node: NodeDecision) -> Condition:
    state = node.state
    if node.guarded.forced:
        return _condition(DRAINING_CONDITION, False, FORCED_REASON, f"{_holding(node.blocking)}: the drain timed out")
    if not isinstance(state, DrainingPerformance):
        return _condition(DRAINING_CONDITION, False, "NotDraining")
    # A restarted operator restores the start of the drain from this timestamp.
    since = rfc3339(state.since_s)
    if state.lifted:
        message = f"{_holding(node.blocking)}: caps are lifted" if node.blocking else _SETTLING
        return Condition(DRAINING_CONDITION, ConditionStatus.TRUE, LIFTED_REASON, since, message)
    if node.guarded.timed_out:
        return Condition(DRAINING_CONDITION, ConditionStatus.TRUE, "TimedOut", since, _holding(node.blocking))
    if node.blocking:
        return Condition(DRAINING_CONDITION, ConditionStatus.TRUE, "BlockingPods", since, _holding(node.blocking))
    return Condition(DRAINING_CONDITION, ConditionStatus.TRUE, "Settling", since, _SETTLING)


def _caps_in_force(node: NodeDecision) -> Condition:
    if node.not_in_force:
        return _condition(CAPS_CONDITION, False, "NotConfirmed", ", ".join(node.not_in_force))
    limited = min(node.caps.cpu_percent, node.caps.gpu_percent) < 100.0
    return _condition(CAPS_CONDITION, limited, "Confirmed" if limited else "NotLimited")


def _holding(pods: int) -> str:
    return f"{pods} pod{'s' if pods > 1 else ''} on it need{'' if pods > 1 else 's'} full power"


def _hardware(node: NodeDecision) -> Condition:
    hardware = node.node.hardware
    if not node.node.limits_known:
        problem = f"neither the power nor the number of cores of its CPUs is known ({hardware.cpu.raw or 'no model'})"
        return _condition(HARDWARE_CONDITION, False, "NotRecognised", problem)
    if hardware.estimated:
        return _condition(HARDWARE_CONDITION, True, "Estimated", "; ".join(hardware.estimated))
    return _condition(HARDWARE_CONDITION, True, {"nodehardware": "NodeHardware"}.get(hardware.source, "Labels"))


def _power(grounds: Grounds) -> Condition:
    source, silent = _in_words(grounds.source), _in_words(grounds.silent)
    match quality_of(grounds.source, grounds.silent):
        case PowerQuality.FRESH:
            return _condition(POWER_CONDITION, True, "Fresh", f"by {source}")
        case PowerQuality.DEGRADED:
            return _condition(POWER_CONDITION, True, "Degraded", f"{silent} is stale, {source} stands in for it")
        case PowerQuality.STALE:
            return _condition(POWER_CONDITION, False, "Stale", f"{silent} is stale, and nothing stands in for it")
        case PowerQuality.MISSING:
            return _condition(POWER_CONDITION, False, "Missing", "no source has ever measured it")


def _stored_source(name: str | None) -> str | None:
    """The source in the terms of powerMeasurement.source. A sum with an estimated part counts as an estimate."""
    if name is None:
        return None
    cpu, gpu = sources_of(name)
    return PowerSource.UTILIZATION.value if gpu == MODEL else SOURCES[cpu].stored


def _in_words(name: str | None) -> str:
    """The source in the words of a condition: the exporter, with the exporter of the GPUs if that differs."""
    if name is None:
        return ""
    cpu, gpu = sources_of(name)
    return cpu if gpu == cpu else f"{cpu} (GPUs: {gpu})"


def _condition(kind: str, holds: bool, reason: str, message: str = "") -> Condition:
    status = ConditionStatus.TRUE if holds else ConditionStatus.FALSE
    return Condition(kind, status, reason, "", message)


def with_timestamps(status: NodeTwinStatus, stored: NodeTwinStatus | None, now_s: float) -> NodeTwinStatus:
    """A status with its timestamps: `last_updated` is now, and each condition keeps the time of its last transition."""
    now = rfc3339(now_s)
    before = {condition.type: condition for condition in stored.conditions} if stored is not None else {}

    def since(condition: Condition) -> str:
        old = before.get(condition.type)
        same = old is not None and old.status == condition.status
        # One in the future is of a clock that was set back since.
        kept = min(old.last_transition_time, now) if old is not None and same else now
        return condition.last_transition_time or kept

    conditions = tuple(
        msgspec.structs.replace(condition, last_transition_time=since(condition)) for condition in status.conditions
    )
    return msgspec.structs.replace(status, conditions=conditions, last_updated=now)


def status_matches(wanted: NodeTwinStatus, stored: NodeTwinStatus) -> bool:
    """Whether a stored status agrees with the wanted one, within the dead-bands."""
    numbers = (np.array([stored_numbers(status)]) for status in (wanted, stored))
    return words_match(wanted, stored) and bool(numbers_close(*numbers)[0])


def words_match(wanted: NodeTwinStatus, stored: NodeTwinStatus) -> bool:
    """Whether a stored status agrees with the wanted one in all but its numbers."""
    power, stored_power = wanted.power_measurement, stored.power_measurement
    return (
        wanted.schedulable_class == stored.schedulable_class
        and wanted.planned == stored.planned
        and wanted.power_budgets == stored.power_budgets
        and (power and power.source) == (stored_power and stored_power.source)
        and _condition_contents(wanted) == _condition_contents(stored)
        and wanted.reschedule_recommendations == stored.reschedule_recommendations
        and _slicing_close(wanted.gpu_slicing_recommendation, stored.gpu_slicing_recommendation)
        and _caps_close(wanted.effective_cap_state, stored.effective_cap_state)
    )


def _condition_contents(status: NodeTwinStatus) -> frozenset[tuple[str, str, str, str]]:
    """The conditions without their transition times."""
    return frozenset((one.type, one.status, one.reason, one.message) for one in status.conditions)


def _caps_close(wanted: EffectiveCapState | None, stored: EffectiveCapState | None) -> bool:
    wanted, stored = wanted or EffectiveCapState(), stored or EffectiveCapState()
    return _close(wanted.cpu_pct, stored.cpu_pct, 1e-6) and _close(wanted.gpu_pct, stored.gpu_pct, 1e-6)


def _slicing_close(wanted: GpuSlicingRecommendation | None, stored: GpuSlicingRecommendation | None) -> bool:
    """Whether two recommendations agree; the gain in utilisation is measured, so it has a dead-band."""
    if wanted is None or stored is None:
        return wanted is stored
    alike = msgspec.structs.replace(wanted, estimated_utilization_gain=stored.estimated_utilization_gain) == stored
    return alike and _close(wanted.estimated_utilization_gain, stored.estimated_utilization_gain, GAIN_BAND)


def _close(wanted: float | None, stored: float | None, band: float) -> bool:
    """Whether two numbers are within a dead-band; a number and None never are."""
    if wanted is None or stored is None:
        return wanted is stored
    return math.isclose(wanted, stored, rel_tol=0.0, abs_tol=band)


def node_labels(wanted: DesiredNode, profile_key: str, draining_key: str) -> dict[str, str | None]:
    """A node's wanted labels; None for those to remove."""
    return {profile_key: wanted.profile_label, draining_key: wanted.draining_label}


def spec_matches(wanted: DesiredNode, twin: NodeTwin) -> bool:
    """Whether a NodeTwin's spec equals the wanted one."""
    return wanted.spec == twin.spec
