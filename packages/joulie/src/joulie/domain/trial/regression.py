"""What a regression makes of a trial, beside the test by changes of sign.

The logarithm of energy per work of the nodes of one hardware family in one half is an effect of the block (hours), an
effect of the family in its half, and the treatment, by weighted least squares. Errors are robust to whatever is common
to a pair of blocks. It rests on more than the draw, so it is shown for comparison only: far from the other saving it
says that families respond differently, or that few blocks decide. Source of the errors: A. C. Cameron and D. L. Miller,
"A Practitioner's Guide to Cluster-Robust Inference", Journal of Human Resources 50, 2015.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from joulie.domain.trial.estimate import NodeBlock, useful_j
from joulie.domain.trial.protocol import Arm, Protocol

_MIN_PAIRS = 6
"""Pairs below which errors that are robust to pairs say nothing."""
_SAME = 1e-9


@dataclass(frozen=True)
class Regression:
    """A saving of energy per work by regression.

    Attributes:
        saved: as a share of the untreated: 0.05 is 5 %.
        error: its standard error, as a share.
        pairs: pairs of blocks that it rests on.
    """

    saved: float
    error: float
    pairs: int


def regress(
    protocol: Protocol,
    measured: Iterable[NodeBlock],
    joules_per_unit: Mapping[str, float],
    family_of: Mapping[str, str],
) -> Regression | None:
    """Regress a trial. A node counts in a pair only where its energy was measured in both blocks.

    Args:
        protocol: the protocol.
        measured: what was measured.
        joules_per_unit: weight of a unit of each owner's work, as `evaluate` takes it.
        family_of: hardware of each node; nodes without one are a family of their own.

    Returns:
        The saving; None where fewer than six pairs tell treatment from blocks and families.

    Raises:
        InvalidQuantityError: an energy, work or weight is negative or not finite.
    """
    cells = _cells(protocol, measured, joules_per_unit, family_of)
    rows = [row for row, sums in cells.items() if min(sums) > 0.0]
    if not rows:
        return None
    groups, blocks = ({row[place]: None for row in rows} for place in (0, 1))
    log_ratio = np.array([math.log(cells[row][0] / cells[row][1]) for row in rows])
    treated = np.array([float(_arm(protocol, *row) is Arm.TREATMENT) for row in rows])
    own_j = {group: math.fsum(cells[row][0] for row in rows if row[0] == group) for group in groups}
    effects = np.array([[row[0] == group for group in groups] + [row[1] == block for block in blocks] for row in rows])
    root = np.sqrt([own_j[group] for group, _ in rows])[:, np.newaxis]
    weighted = effects * root
    both = np.column_stack([treated, log_ratio]) * root
    alone, change = (both - weighted @ np.linalg.lstsq(weighted, both)[0]).T
    spread = float(alone @ alone)
    if spread <= _SAME * float((root**2).sum()):
        return None
    effect = float(alone @ change) / spread
    pair_of = np.array([block // 2 for _, block in rows])
    scores = [float((alone * (change - effect * alone))[pair_of == pair].sum()) for pair in np.unique(pair_of)]
    if len(scores) < _MIN_PAIRS:
        return None
    error = math.sqrt(math.fsum(one * one for one in scores) * len(scores) / (len(scores) - 1)) / spread
    return Regression(-math.expm1(effect), math.exp(effect) * error, len(scores))


_Group = tuple[bool, str]
"""Whether of the first half, and the family."""


def _cells(
    protocol: Protocol,
    measured: Iterable[NodeBlock],
    joules_per_unit: Mapping[str, float],
    family_of: Mapping[str, str],
) -> Mapping[tuple[_Group, int], tuple[float, float]]:
    """Energy and weighted work, J, of each family of a half by block."""
    first, second = frozenset(protocol.first_half), frozenset(protocol.second_half)
    known = {(one.node, one.block): one for one in measured if one.energy_j is not None}
    parts: defaultdict[tuple[_Group, int], list[tuple[float, float]]] = defaultdict(list)
    for (node, block), one in known.items():
        if node in first | second and (node, block ^ 1) in known:
            energy_j = one.energy_j or 0.0
            group = node in first, family_of.get(node, "")
            parts[group, block].append((energy_j, useful_j(one.work, joules_per_unit)))
    return {key: (math.fsum(e for e, _ in own), math.fsum(w for _, w in own)) for key, own in parts.items()}


def _arm(protocol: Protocol, group: _Group, block: int) -> Arm:
    half = protocol.first_half if group[0] else protocol.second_half
    return protocol.arms_at(protocol.start_s + (block + 0.5) * protocol.block_s)[half[0]]
