"""A trial of deferral: each workload that asks to wait does so, or starts at once, by chance and for the whole trial.

Blocks of time would not do: what is held in one of them runs in the next. So workloads are drawn, each for itself and
with even chances, by a hash of the trial's seed and the workload's name: whoever knows the seed can draw again, and
pods of one workload, which come together and share an owner, are one draw and not many.

A workload's outcome is what its pods used, emitted or cost, over what was to be expected of the work that it completed:
the energy of its earlier pods times the signal when each pod came. Both are fixed before the draw acts, so that a
wrong expectation costs precision and biases nothing. Treated and untreated workloads are compared by the ratio of the
sums. Under the hypothesis that waiting multiplies the outcome by a given ratio, the untreated outcome of every workload
is known, and any other draw of as many workloads would have been as likely: the ratios that this test does not refuse
are the interval. The statistic is studentised, so that the test also holds, in large trials, where waiting pays more
for some workloads than for others (J. Wu and P. Ding, "Randomization Tests for Weak Null Hypotheses in Randomized
Experiments", Journal of the American Statistical Association 116, 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from joulie.domain.trial.protocol import Arm
from joulie.domain.units import BoolArray, FloatArray, InvalidQuantityError

MIN_WORKLOADS = 12
"""Independent assignments below which no interval is given."""
MIN_OF_AN_ARM = 4
"""Workloads of each arm below which none is given: what happened to three is not known from three."""
_OUTSIDE = 0.025
_DRAWS = 999
_EXACT = 1e-4
"""Width to which bounds are found, as a share of the effects that are tried."""
_WIDEST_LOG = 3.0
"""Largest effect that is tried, as a logarithm: twenty times as much."""


class Quantity(StrEnum):
    """What is compared."""

    ENERGY = "energy"
    CARBON = "carbon"
    COST = "cost"


class Amount(NamedTuple):
    """What pods used, emitted or cost, and what was expected of their work, in the same unit: kWh, g or currency."""

    measured: float
    expected: float


@dataclass(frozen=True)
class WorkloadOutcome:
    """What became of one workload in a trial.

    Attributes:
        namespace: of the workload.
        workload: its name as it was drawn.
        arm: how it was drawn.
        pods: number of its pods that were created in the trial and ended.
        failed: number of those that failed.
        started: number of its pods that were created in the trial and ran.
        wait_s: sum of the times from their creation to their start, s.
        amounts: by quantity; without those that are not known.
    """

    namespace: str
    workload: str
    arm: Arm
    pods: int
    failed: int
    started: int
    wait_s: float
    amounts: Mapping[Quantity, Amount]


class Found(NamedTuple):
    """An estimate.

    Attributes:
        value: of quantities the saving as a share of the untreated, 0.05 is 5 %; of waits the difference, s.
        low: lower bound of the 95 % interval; None where there is none.
        high: upper bound.
        treated: workloads behind it that waited.
        untreated: workloads behind it that did not.
    """

    value: float
    low: float | None
    high: float | None
    treated: int
    untreated: int


@dataclass(frozen=True)
class WorkloadResult:
    """Result of a trial of deferral.

    Attributes:
        savings: by quantity, where both arms have any.
        wait: by how much longer pods waited on average, s; None if no pod ran under one of the arms.
        waited_s: mean wait of the arms, s.
    """

    savings: Mapping[Quantity, Found]
    wait: Found | None
    waited_s: Mapping[Arm, float]


def evaluate_workloads(outcomes: Sequence[WorkloadOutcome], seed: int) -> WorkloadResult:
    """Evaluate a trial of deferral.

    Args:
        outcomes: what became of each workload, by intention to treat: as it was drawn, whether it waited or not.
        seed: chooses the other draws that it is compared with.

    Raises:
        InvalidQuantityError: an amount is not finite, or expected below zero.
    """
    rng = np.random.default_rng(seed)
    savings = {}
    for quantity in Quantity:
        known = [(one.arm, *one.amounts[quantity]) for one in outcomes if quantity in one.amounts]
        found = _compared(known, rng, by_ratio=True)
        if found is not None:
            low, high = found.bounds or (None, None)
            savings[quantity] = Found(
                1.0 - found.treated / found.untreated,
                None if high is None else -math.expm1(high),
                None if low is None else -math.expm1(low),
                *found.counts,
            )
    waits = [(one.arm, one.wait_s, float(one.started)) for one in outcomes if one.started]
    compared = _compared(waits, rng, by_ratio=False)
    if compared is None:
        return WorkloadResult(savings, None, {})
    means = {Arm.TREATMENT: compared.treated, Arm.CONTROL: compared.untreated}
    low, high = compared.bounds or (None, None)
    wait = Found(compared.treated - compared.untreated, low, high, *compared.counts)
    return WorkloadResult(savings, wait, means)


class _Compared(NamedTuple):
    """Ratio of sums of each arm, bounds of the effect (of ratios its logarithm), and workloads of each arm."""

    treated: float
    untreated: float
    bounds: tuple[float, float] | None
    counts: tuple[int, int]


def _compared(
    rows: Sequence[tuple[Arm, float, float]], rng: np.random.Generator, *, by_ratio: bool
) -> _Compared | None:
    """Compare the arms' sums of measured over expected amounts; None where one arm has nothing to compare.

    Args:
        rows: arm, measured and expected amount of each workload.
        rng: chooses other draws.
        by_ratio: whether the effect multiplies the measured amount; else it adds to it for each expected unit.
    """
    for _, amount, of_work in rows:  # at prices below zero an amount may be below zero
        if not (math.isfinite(amount) and math.isfinite(of_work) and of_work >= 0.0):
            raise InvalidQuantityError("amount", f"must be finite, and not expected below zero: {amount}, {of_work}")
    treated = np.array([arm is Arm.TREATMENT for arm, *_ in rows], dtype=np.bool_)
    measured, expected = np.array([one[1:] for one in rows], dtype=np.float64).reshape(-1, 2).T
    under = [float(expected[own].sum()) for own in (treated, ~treated)]
    if min(under) <= 0.0:
        return None
    one, rest = (
        float(measured[own].sum()) / all_of_it for own, all_of_it in zip((treated, ~treated), under, strict=True)
    )
    if by_ratio and min(one, rest) <= 0.0:
        return None
    middle = math.log(one / rest) if by_ratio else one - rest
    reach = _WIDEST_LOG if by_ratio else 4.0 * (one + rest)
    counts = int(treated.sum()), int((~treated).sum())

    def without(effect: float) -> FloatArray:
        undone = measured * math.exp(-effect) if by_ratio else measured - effect * expected
        return np.where(treated, undone, measured)

    enough = len(rows) >= MIN_WORKLOADS and min(counts) >= MIN_OF_AN_ARM
    return _Compared(
        one, rest, _interval(_Test(treated, expected, rng), without, middle, reach) if enough else None, counts
    )


def _interval(
    test: _Test, without: Callable[[float], FloatArray], middle: float, reach: float
) -> tuple[float, float] | None:
    """The effects that the test does not refuse; None where it refuses none on one side.

    Args:
        test: the test.
        without: outcomes of all workloads had none been treated, by the effect.
        middle: the estimate, which is not refused.
        reach: how far from it effects are tried.
    """
    bounds = []
    for sign in (1.0, -1.0):  # too small effects leave treated workloads too high, too large ones too low
        inside, outside = middle, middle - sign * reach
        if not test.refuses(without(outside), sign):
            return None
        while abs(inside - outside) > _EXACT * max(abs(middle), reach):
            between = (inside + outside) / 2.0
            inside, outside = (inside, between) if test.refuses(without(between), sign) else (between, outside)
        bounds.append(outside)
    return bounds[0], bounds[1]


class _Test:
    """The studentised difference of the arms' ratios under other draws of as many workloads.

    Args:
        treated: the real draw, shape ``(n_workloads,)``.
        expected: expected amounts, of the same shape.
        rng: makes the other draws.
    """

    def __init__(self, treated: BoolArray, expected: FloatArray, rng: np.random.Generator) -> None:
        others = rng.permuted(np.tile(treated, (_DRAWS, 1)), axis=1)
        self._draws = np.concatenate([treated[np.newaxis], others]).astype(np.float64)
        self._expected = expected
        squares = np.column_stack([expected, expected**2])
        self._inside, self._all = self._draws @ squares, squares.sum(axis=0)
        self._of_one = float(treated.sum())

    def refuses(self, outcomes: FloatArray, sign: float) -> bool:
        """Whether treated workloads stand too high (or, with a sign of -1, too low) for chance to have drawn them."""
        found = sign * self._statistics(outcomes)
        return float((found >= found[0] - 1e-9 * abs(found[0])).mean()) <= _OUTSIDE

    def _statistics(self, outcomes: FloatArray) -> FloatArray:
        """The statistic under each draw, the real one first, shape ``(1 + n_draws,)``."""
        columns = np.column_stack([outcomes, outcomes**2, outcomes * self._expected])
        inside, total = self._draws @ columns, columns.sum(axis=0)
        one, variance_one = _ratio(inside, self._inside, self._of_one)
        rest, variance = _ratio(total - inside, self._all - self._inside, len(outcomes) - self._of_one)
        return np.asarray((one - rest) / np.sqrt(np.maximum(variance_one + variance, 1e-300)))


def _ratio(sums: FloatArray, expected: FloatArray, count: float) -> tuple[FloatArray, FloatArray]:
    """Ratio of sums under each draw, and its variance by the residuals of the workloads.

    Args:
        sums: of outcomes, their squares, and outcomes times expected amounts, shape ``(n_draws, 3)``.
        expected: sums of expected amounts and their squares, shape ``(n_draws, 2)``.
        count: number of workloads.
    """
    under = np.maximum(expected[:, 0], 1e-300)
    ratio = sums[:, 0] / under
    residuals = np.maximum(sums[:, 1] - 2.0 * ratio * sums[:, 2] + ratio**2 * expected[:, 1], 0.0)
    return ratio, residuals * count / (count - 1.0) / under**2
