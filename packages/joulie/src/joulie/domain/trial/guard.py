"""The guard of a trial: ends it early when treatment slows jobs, makes them fail or makes them wait beyond a bound.

It looks again with every pod that ends, so its bounds are a confidence sequence, which holds at all times together: an
interval for one look would be wrong in more and more of the trials the longer they are watched. Source: I.
Waudby-Smith, D. Arbour, R. Sinha, E. H. Kennedy and A. Ramdas, "Time-uniform central limit theory and asymptotic
confidence sequences", Annals of Statistics 52, 2024.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from joulie.domain.quantities import SECONDS_PER_MINUTE, InvalidQuantityError, finite_number
from joulie.domain.trial.protocol import Arm, Judged

MIN_PODS = 20
"""Pods of each arm below which nothing is judged: the sequence is an asymptotic one."""
MIN_WORKLOADS = 12
"""Likewise workloads, where each is under one arm only and counts once."""
_ALPHA = 0.05
_TIGHTEST_AT = 100
"""Number of pods at which the sequence is narrowest."""
_SCALE = -2.0 * math.log(_ALPHA) + math.log(-2.0 * math.log(_ALPHA)) + 1.0


class Harm(StrEnum):
    """What a trial may do to pods."""

    SLOWDOWN = "slowdown"
    FAILURES = "failures"
    WAIT = "wait"


@dataclass(frozen=True)
class Bounds:
    """What a trial may cost at most; None for no bound.

    Attributes:
        slowdown: runtime of pods on treated nodes over that of the same owner's pods on others, less one.
        failures: share of pods that fail on treated nodes, less that on others.
        wait_s: mean wait of pods for a node, s.

    Raises:
        InvalidQuantityError: a bound is NaN or negative.
    """

    slowdown: float | None = None
    failures: float | None = None
    wait_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("slowdown", "failures", "wait_s"):
            if (value := getattr(self, name)) is not None:
                finite_number(name, value, minimum=0.0)

    def of(self, harm: Harm) -> float | None:
        """The bound of one harm, in its own unit."""
        return {Harm.SLOWDOWN: self.slowdown, Harm.FAILURES: self.failures, Harm.WAIT: self.wait_s}[harm]


class EndedPod(NamedTuple):
    """A pod that ended within a trial, having run under one arm only.

    Attributes:
        owner: its workload.
        arm: the arm.
        runtime_s: time from its start to its end, s.
        failed: whether it failed.
        wait_s: time that it waited for a node, s; None if unknown.
    """

    owner: str
    arm: Arm
    runtime_s: float
    failed: bool
    wait_s: float | None = None


class Estimate(NamedTuple):
    """An estimate, and its bounds, which hold at all looks together in 95 % of trials.

    Attributes:
        value: of slowdown and failures a share, of waits seconds.
        low: lower bound.
        high: upper bound.
        pods: number of pods that it rests on.
    """

    value: float
    low: float
    high: float
    pods: int


def sequence(value: float, error: float, count: int, tightest_at: int = _TIGHTEST_AT) -> tuple[float, float]:
    """Bounds of a confidence sequence.

    Args:
        value: the estimate.
        error: its standard error.
        count: number of observations that it rests on.
        tightest_at: number of observations at which the sequence is narrowest.

    Raises:
        InvalidQuantityError: no observations, or an error that is NaN or negative.
    """
    if count < 1:
        raise InvalidQuantityError("count", f"must be at least 1, got {count}")
    scaled = count * _SCALE / tightest_at
    width = finite_number("error", error, minimum=0.0) * math.sqrt(
        (1.0 + 1.0 / scaled) * math.log((scaled + 1.0) / _ALPHA**2)
    )
    return value - width, value + width


def estimates(ended: Iterable[EndedPod]) -> Mapping[Harm, Estimate]:
    """What the pods of a trial so far say; without what too few of them tell."""
    pods = list(ended)
    found = {
        Harm.SLOWDOWN: slowdown([pod for pod in pods if not pod.failed and pod.runtime_s > 0.0]),
        Harm.FAILURES: _failures(pods),
        Harm.WAIT: _wait([pod.wait_s for pod in pods if pod.wait_s is not None]),
    }
    return {harm: one for harm, one in found.items() if one is not None}


def workload_estimates(ended: Iterable[EndedPod]) -> Mapping[Harm, Estimate]:
    """What the pods of a trial of deferral so far say: each workload counts once, by the mean over its pods.

    Waits are of the workloads that wait; those that start at once say how much more fail.
    """
    by_workload: defaultdict[tuple[Arm, str], list[EndedPod]] = defaultdict(list)
    for pod in ended:
        by_workload[pod.arm, pod.owner].append(pod)
    waits_s, failed = [], {arm: list[float]() for arm in Arm}
    for (arm, _), own in by_workload.items():
        failed[arm].append(math.fsum(pod.failed for pod in own) / len(own))
        known_s = [pod.wait_s for pod in own if pod.wait_s is not None]
        if arm is Arm.TREATMENT and known_s:
            waits_s.append(math.fsum(known_s) / len(known_s))
    found = {}
    if min(len(one) for one in failed.values()) >= MIN_WORKLOADS:
        means, errors = zip(*(_mean(failed[arm]) for arm in (Arm.TREATMENT, Arm.CONTROL)), strict=True)
        count, value = sum(len(one) for one in failed.values()), means[0] - means[1]
        found[Harm.FAILURES] = Estimate(value, *sequence(value, math.hypot(*errors), count), count)
    if len(waits_s) >= MIN_WORKLOADS:
        mean_s, error_s = _mean(waits_s)
        found[Harm.WAIT] = Estimate(mean_s, *sequence(mean_s, error_s, len(waits_s)), len(waits_s))
    return found


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """Mean of at least two values, and its standard error."""
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((one - mean) ** 2 for one in values) / (len(values) - 1) / len(values))


def broken(found: Mapping[Harm, Estimate], bounds: Bounds, judged: Judged = Judged.ENFORCEMENT) -> str:
    """Which bound is broken, in words; empty if none is. A bound is broken where the lower bound exceeds it."""
    for harm, one in found.items():
        limit = bounds.of(harm)
        if limit is not None and one.low > limit:
            value, low, bound = (_said(harm, number) for number in (one.value, one.low, limit))
            return f"{_WORDS[judged][harm]} {value}, at least {low}, bound {bound}"
    return ""


def used(found: Mapping[Harm, Estimate], bounds: Bounds) -> Mapping[Harm, float]:
    """How much of each bound is used beyond doubt: its harm's lower bound over it, at least 0; of a broken one above 1.

    Bounds of 0, of which there is no share, are left out.
    """
    return {
        harm: max(one.low, 0.0) / limit
        for harm, one in found.items()
        if (limit := bounds.of(harm)) is not None and limit
    }


_WORDS = {
    Judged.ENFORCEMENT: {
        Harm.SLOWDOWN: "pods on enforced nodes run longer by",
        Harm.FAILURES: "the share of pods that fail is higher on enforced nodes by",
        Harm.WAIT: "pods wait for a node for",
    },
    Judged.DEFERRAL: {
        Harm.FAILURES: "the share of pods that fail is higher in workloads that wait by",
        Harm.WAIT: "pods of workloads that wait do so for",
    },
}


def _said(harm: Harm, value: float) -> str:
    return f"{value / SECONDS_PER_MINUTE:.1f} min" if harm is Harm.WAIT else f"{value:.1%}"


def slowdown(pods: Sequence[EndedPod]) -> Estimate | None:
    """By which share pods run longer on treated nodes; None with too few of either arm.

    The effect of the arm on the logarithm of runtimes, with an effect of each owner; errors by White's estimator.
    """
    by_owner: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for pod in pods:
        by_owner[pod.owner].append((1.0 if pod.arm is Arm.TREATMENT else 0.0, math.log(pod.runtime_s)))
    rows = []
    treated = 0
    for own in by_owner.values():
        share, mean = (math.fsum(column) / len(own) for column in zip(*own, strict=True))
        if 0.0 < share < 1.0:
            rows += [(arm - share, log_s - mean) for arm, log_s in own]
            treated += sum(arm > 0.0 for arm, _ in own)
    if min(treated, len(rows) - treated) < MIN_PODS:
        return None
    spread = math.fsum(arm * arm for arm, _ in rows)
    effect = math.fsum(arm * log_s for arm, log_s in rows) / spread
    error = math.sqrt(math.fsum((arm * (log_s - effect * arm)) ** 2 for arm, log_s in rows)) / spread
    low, high = sequence(effect, error, len(rows))
    return Estimate(math.expm1(effect), math.expm1(low), math.expm1(high), len(rows))


def _failures(pods: Sequence[EndedPod]) -> Estimate | None:
    failed = {arm: [pod.failed for pod in pods if pod.arm is arm] for arm in Arm}
    if min(len(one) for one in failed.values()) < MIN_PODS:
        return None
    # One failure more: a rate of zero is not known exactly.
    rates = {arm: (sum(one) + 1.0) / (len(one) + 2.0) for arm, one in failed.items()}
    error = math.sqrt(math.fsum(rate * (1.0 - rate) / len(failed[arm]) for arm, rate in rates.items()))
    value = rates[Arm.TREATMENT] - rates[Arm.CONTROL]
    return Estimate(value, *sequence(value, error, len(pods)), len(pods))


def _wait(waits_s: Sequence[float]) -> Estimate | None:
    count = len(waits_s)
    if count < 2 * MIN_PODS:
        return None
    mean_s, error_s = _mean(waits_s)
    return Estimate(mean_s, *sequence(mean_s, error_s, count), count)
