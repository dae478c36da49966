"""What a trial found: the saving of energy per unit of work, with an interval that follows from the draw alone.

Each pair of blocks gives one contrast. In a block the halves' energy per unit of work is compared (same hours), and the
two blocks of the pair are compared with each other (same nodes); what remains is the effect, twice. Under the
hypothesis that the treatment multiplies energy per work by a given ratio, everything but that ratio would have been the
same under the other order, so that each contrast, less the effect, might as well have had the other sign. The ratios
that this test does not refuse are the interval (randomisation inference by test inversion). No distribution of loads
or of meters is assumed, and a drift that is the same for both halves does not matter.

Pods that one half would have got may go to the other: where treatment prolongs pods, a scheduler that spreads them
gives treated nodes less work. Their base power is then divided by less work, and that of the others by more, though
with all nodes treated nobody would take the work over. So the saving is also given at equal work: from each contrast
the part is taken that follows from the difference in work, by how untreated nodes' energy grows with their work.

For tests by changes of sign the bounds are order statistics of the means of subsets of the contrasts (J. A. Hartigan,
"Using Subsample Values as Typical Values", Journal of the American Statistical Association 64, 1969). Studentising
the statistic changes nothing here: the sum of squares is the same for all signs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulie.domain.trial.protocol import WHOLE, Arm, Block, Protocol, Treated
from joulie.domain.units import FloatArray, InvalidQuantityError

CONFIDENCE = 0.95
_ALL_SUBSETS_UP_TO = 14
"""Contrasts up to which all subsets are listed; above it they are sampled."""
_SAMPLED_SUBSETS = 9_999
_SAME_WORK = 1e-3
"""Standard deviation of untreated nodes' work, as a share of the mean, up to which nothing follows from it."""

_Measured = Mapping[str, tuple[float, float]]
"""Energy, J, and weighted work of the nodes in a block."""


@dataclass(frozen=True)
class NodeBlock:
    """What was measured on a node in a block, between the end of its washout and its own.

    Attributes:
        node: name of the node.
        block: index of the block.
        energy_j: energy of the node, J; None where a meter was silent for any of the time.
        work: units of work done on the node, by owner: of the pods' own progress metric, or completed pods, each
            counted in proportion to the time that it ran within the block.
    """

    node: str
    block: int
    energy_j: float | None
    work: Mapping[str, float]


@dataclass(frozen=True)
class Contrast:
    """A pair of blocks as it counts.

    Attributes:
        pair: index of the pair.
        whole: whether all nodes or none were treated, not one half.
        log_ratio: logarithm of treated over untreated energy per unit of work; None if the pair is left out.
        log_work: logarithm of treated over untreated work; None if the pair is left out.
        nodes: number of nodes measured in both blocks.
        why_not: why the pair is left out; empty otherwise.
    """

    pair: int
    whole: bool
    log_ratio: float | None
    log_work: float | None
    nodes: int
    why_not: str = ""


@dataclass(frozen=True)
class Saving:
    """A saving of energy per unit of work, as a share of the untreated: 0.05 is 5 %.

    Attributes:
        saved: estimate; negative if the treatment costs energy.
        low: lower bound of the interval; None with fewer than six contrasts.
        high: upper bound of the interval; None with fewer than six contrasts.
        pairs: number of contrasts behind it.
    """

    saved: float
    low: float | None
    high: float | None
    pairs: int


@dataclass(frozen=True)
class TrialResult:
    """Result of a trial.

    Attributes:
        saving: what treating half of the nodes saved there; None if no pair counts.
        equal_work: the same had both halves done the same work; None without an elasticity.
        whole: the saving from pairs that treated all nodes or none, which have no other half to compare with.
        elasticity: by how many per cent the energy of untreated nodes grows with 1 % more work, 0..1; None where their
            work does not vary.
        contrasts: all pairs, in order.
    """

    saving: Saving | None
    equal_work: Saving | None
    whole: Saving | None
    elasticity: float | None
    contrasts: tuple[Contrast, ...]


def evaluate(protocol: Protocol, measured: Iterable[NodeBlock], joules_per_unit: Mapping[str, float]) -> TrialResult:
    """Evaluate a trial, or as much of it as was measured.

    A node counts in a pair only where its energy was measured in both blocks, so that a meter that drops out or a node
    that fails takes the same nodes from both arms.

    Args:
        protocol: the protocol.
        measured: what was measured; blocks that are not over are not given.
        joules_per_unit: weight of a unit of each owner's work against that of others: energy attributed to the owner
            over the whole trial by its work, J. The same for both arms. Owners without one do not count.

    Raises:
        InvalidQuantityError: an energy, work or weight is negative or not finite.
    """
    by_block: dict[int, dict[str, tuple[float, float]]] = {}
    for one in measured:
        if one.energy_j is not None:
            work_j = useful_j(one.work, joules_per_unit)
            by_block.setdefault(one.block, {})[one.node] = (_checked("energy_j", one.energy_j), work_j)
    blocks = list(protocol.blocks())
    contrasts = tuple(
        _contrast(protocol, first, second, by_block.get(first.index), by_block.get(second.index))
        for first, second in zip(blocks[::2], blocks[1::2], strict=True)
    )
    rng = np.random.default_rng(protocol.seed)
    halves = [one for one in contrasts if not one.whole]
    saving = _saving(halves, rng)
    whole = _saving([one for one in contrasts if one.whole], rng)
    elasticity = _elasticity(protocol, by_block)
    equal_work = None if elasticity is None else _saving(halves, rng, work_weight=1.0 - elasticity)
    return TrialResult(saving, equal_work, whole, elasticity, contrasts)


def _elasticity(protocol: Protocol, by_block: Mapping[int, _Measured]) -> float | None:
    """Elasticity of untreated nodes' energy to their work, each against its own mean: hardware does not matter."""
    untreated: dict[str, list[tuple[float, float]]] = {}
    for block in protocol.blocks():
        arms_of = protocol.arms_at(block.start_s)
        for node, measured in by_block.get(block.index, {}).items():
            if arms_of.get(node) is Arm.CONTROL:
                untreated.setdefault(node, []).append(measured)
    if not untreated:
        return None
    own = [np.array(one) for one in untreated.values()]
    energy_j, useful_j = np.concatenate([one - one.mean(axis=0) for one in own]).T
    spread = float(useful_j @ useful_j)
    mean_j, mean_useful_j = (float(mean) for mean in np.concatenate(own).mean(axis=0))
    if spread <= _SAME_WORK**2 * len(useful_j) * mean_useful_j**2 or mean_j <= 0.0:
        return None
    per_work = float(useful_j @ energy_j) / spread
    return min(max(per_work * mean_useful_j / mean_j, 0.0), 1.0)


def useful_j(work: Mapping[str, float], joules_per_unit: Mapping[str, float]) -> float:
    """Work of all owners by its weight, J.

    Raises:
        InvalidQuantityError: an amount or weight is negative or not finite.
    """
    return sum(
        _checked("work", units) * _checked("joules_per_unit", joules_per_unit[owner])
        for owner, units in work.items()
        if owner in joules_per_unit
    )


def _checked(quantity: str, value: float) -> float:
    if not (math.isfinite(value) and value >= 0.0):
        raise InvalidQuantityError(quantity, f"must be finite and not negative, got {value}")
    return value


def _contrast(
    protocol: Protocol, first: Block, second: Block, in_first: _Measured | None, in_second: _Measured | None
) -> Contrast:
    whole = first.treated in WHOLE
    if in_first is None or in_second is None:
        return Contrast(first.pair, whole, None, None, 0, "not measured in both blocks")
    both = in_first.keys() & in_second.keys()
    halves = (
        [set(protocol.first_half) | set(protocol.second_half)]
        if whole
        else [set(protocol.first_half), set(protocol.second_half)]
    )
    groups = [sorted(half & both) for half in halves]
    nodes = sum(len(group) for group in groups)
    sums = np.array([[_sums(block, group) for block in (in_first, in_second)] for group in groups])
    if not (sums > 0.0).all():
        return Contrast(first.pair, whole, None, None, nodes, "a half without measured energy or work")
    # Of each half (or of all nodes): logarithms of energy and work, the first block less the second.
    changes = np.log(sums[:, 0]) - np.log(sums[:, 1])
    # The second half does the opposite.
    log_energy, log_work = (changes[0] if whole else (changes[0] - changes[1]) / 2.0).tolist()
    sign = 1.0 if first.treated in (Treated.FIRST_HALF, Treated.ALL) else -1.0
    return Contrast(first.pair, whole, sign * (log_energy - log_work), sign * log_work, nodes)


def _sums(block: _Measured, nodes: Sequence[str]) -> tuple[float, float]:
    return math.fsum(block[node][0] for node in nodes), math.fsum(block[node][1] for node in nodes)


def _saving(contrasts: Sequence[Contrast], rng: np.random.Generator, work_weight: float = 0.0) -> Saving | None:
    """The saving by energy per work, with so much of the difference in work added to each contrast."""
    logs = np.array(
        [
            one.log_ratio + work_weight * one.log_work
            for one in contrasts
            if one.log_ratio is not None and one.log_work is not None
        ]
    )
    if logs.size == 0:
        return None
    bounds = interval(logs, rng)
    saved = -math.expm1(float(logs.mean()))
    if bounds is None:
        return Saving(saved, None, None, len(logs))
    low, high = bounds
    return Saving(saved, -math.expm1(high), -math.expm1(low), len(logs))


def interval(contrasts: FloatArray, rng: np.random.Generator) -> tuple[float, float] | None:
    """The effects that a test by changes of sign does not refuse at 5 %, as lowest and highest.

    Args:
        contrasts: (n_pairs,) logarithms of ratios.
        rng: chooses subsets of the contrasts where there are too many to list all.

    Returns:
        Both bounds; None with fewer than six contrasts, for which no interval has 95 %.
    """
    n = len(contrasts)
    if n <= _ALL_SUBSETS_UP_TO:
        subsets = (np.arange(1, 2**n)[:, np.newaxis] >> np.arange(n)) & 1
    else:
        subsets = rng.integers(2, size=(_SAMPLED_SUBSETS, n))
        subsets = subsets[subsets.any(axis=1)]
    outside = math.floor((1.0 - CONFIDENCE) / 2.0 * (len(subsets) + 1))
    if outside == 0:
        return None
    means = np.sort(subsets @ contrasts / subsets.sum(axis=1))
    return float(means[outside - 1]), float(means[-outside])
