"""How long a trial of deferral must be to see a saving, from a recorded past in which no workload was drawn.

The last part of the past is evaluated as trials that treated nobody, under many draws; all that came before is what is
known before a trial. Where the interval of such a trial lies is chance. A saving that is the same share of every
workload moves it by the saving's logarithm, so each draw says from which saving on its trial would have seen one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulie.domain.quantities import SECONDS_PER_HOUR
from joulie.domain.recording import Period, PodRecord
from joulie.domain.trial.protocol import Arm
from joulie.domain.trial.workload_measure import Accounted, measure_workloads
from joulie.domain.trial.workload_protocol import WorkloadProtocol, drawn_name
from joulie.domain.trial.workloads import Quantity, WorkloadOutcome, evaluate_workloads
from joulie_lab.apps.trial.plan import POWER
from joulie_lab.apps.trial.workloads import MOST_UNMETERED, QUANTITY_WORDS

_PARTS = (0.125, 0.25, 0.5)
"""Lengths of the trials, as shares of the recording; what comes before is needed to know what to expect."""
_DAY_S = 24.0 * SECONDS_PER_HOUR
_TRIALS = 100
_SEED = 1
_TRIAL = "plan"


@dataclass(frozen=True)
class TriedLength:
    """Trials of one length.

    Attributes:
        days: length, d.
        workloads: number of workloads that came in that time and of which enough is known.
        seen: share of the trials whose interval lies above zero, if the saving asked for is there.
        smallest: smallest saving that `POWER` of the trials see, as a share; None if they see none.
    """

    days: float
    workloads: int
    seen: float
    smallest: float | None


@dataclass(frozen=True)
class WorkloadPlan:
    """What a trial of deferral can see.

    Attributes:
        quantity: what is compared.
        lengths: by length of the trial, the shortest first.
        days: shortest of these lengths that reaches a power of `POWER`, d; None if none does.
        largest: share of the largest workload in what is expected of all.
    """

    quantity: Quantity
    lengths: tuple[TriedLength, ...]
    days: float | None
    largest: float


def plan_workloads(
    period: Period, pods: Sequence[PodRecord], accounted: Accounted, saving: float, namespaces: Collection[str] = ()
) -> WorkloadPlan:
    """How many days a saving by waiting needs.

    Args:
        period: of the recording.
        pods: its pods.
        accounted: what they used.
        saving: saving per work that shall be seen, 0.05 is 5 %.
        namespaces: whose workloads would be drawn; empty for those of all namespaces.

    Raises:
        ValueError: a trial ran, or too little is known of what pods used.
    """
    if any(one.trial for one in pods):
        raise ValueError("a trial of deferral ran in this recording: plan from a time in which none did")
    outcomes = [_outcomes(period, part, pods, accounted, namespaces) for part in _PARTS]
    longest = outcomes[-1]
    quantity = next((one for one in QUANTITY_WORDS if any(one in own.amounts for own in longest)), None)
    if quantity is None:
        raise ValueError(
            "no workload that would be drawn completed pods in both halves of the recording: record longer"
        )
    rng = np.random.default_rng(_SEED)
    lengths = tuple(
        _tried(part * (period.until_s - period.from_s) / _DAY_S, own, quantity, saving, rng)
        for part, own in zip(_PARTS, outcomes, strict=True)
    )
    expected = [one.amounts[quantity].expected for one in longest if quantity in one.amounts]
    return WorkloadPlan(
        quantity,
        lengths,
        next((one.days for one in lengths if one.seen >= POWER), None),
        max(expected) / (sum(expected) or 1.0),
    )


def _outcomes(
    period: Period, part: float, pods: Sequence[PodRecord], accounted: Accounted, namespaces: Collection[str]
) -> Sequence[WorkloadOutcome]:
    """What became of the workloads in the last part of the recording."""
    start_s = period.until_s - part * (period.until_s - period.from_s)
    protocol = WorkloadProtocol(start_s, period.until_s, _SEED)

    def noted(pod: PodRecord) -> PodRecord:
        name = drawn_name(pod.namespace, pod.owner_kind or "Pod", pod.owner_name or pod.name)
        if name is None or pod.arrived_s is None or not protocol.covers(pod.arrived_s):
            return pod
        if namespaces and pod.namespace not in namespaces:
            return pod
        arm = protocol.arm_of(pod.namespace, name)
        return replace(pod, trial=_TRIAL, trial_arm=arm.value, trial_workload=name)

    measured = measure_workloads(_TRIAL, protocol, [noted(one) for one in pods], accounted)
    ended = sum(one.pods for one in measured.outcomes)
    if measured.unmetered > MOST_UNMETERED * ended:
        raise ValueError(
            f"of {measured.unmetered} of {ended} pods the ledger does not know all of the energy: keep it by hour"
            " (LEDGER_HOURS_RETENTION) for as long as the recording"
        )
    return measured.outcomes


def _tried(
    days: float, outcomes: Sequence[WorkloadOutcome], quantity: Quantity, saving: float, rng: np.random.Generator
) -> TriedLength:
    known = [
        replace(one, started=0, amounts={quantity: one.amounts[quantity]})
        for one in outcomes
        if quantity in one.amounts
    ]
    least = np.array([_least_seen(known, quantity, rng) for _ in range(_TRIALS)])
    smallest = max(float(np.quantile(least, POWER, method="higher")), 0.0)
    seen = float(np.mean(least < saving))
    return TriedLength(days, len(known), seen, smallest if np.isfinite(smallest) else None)


def _least_seen(outcomes: Sequence[WorkloadOutcome], quantity: Quantity, rng: np.random.Generator) -> float:
    """The saving from which on the interval of one draw lies above zero, as a share; inf where it gives none."""
    waits = rng.random(len(outcomes)) < 0.5
    drawn = [replace(one, arm=Arm.TREATMENT if own else Arm.CONTROL) for one, own in zip(outcomes, waits, strict=True)]
    found = evaluate_workloads(drawn, int(rng.integers(2**31))).savings.get(quantity)
    return np.inf if found is None or found.low is None else 1.0 - 1.0 / (1.0 - found.low)
