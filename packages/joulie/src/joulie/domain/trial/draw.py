"""Draws the protocol of a trial: matched halves of the nodes, and the order of its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from joulie.domain.trial.protocol import MIN_PAIRS, Protocol, Treated
from joulie.domain.units import InvalidQuantityError, positive

DEFAULT_BLOCK_S = 6 * 3600.0
WHOLE_EVERY = 6
"""One pair in so many treats all nodes or none."""


@dataclass(frozen=True)
class TrialNode:
    """A node as it is matched.

    Attributes:
        name: name of the node.
        family: hardware that halves must share alike, such as the models of its CPU and GPUs.
        load: its usual load in any unit that is the same for all, such as its average power in W.
    """

    name: str
    family: str
    load: float


def draw(
    nodes: Sequence[TrialNode],
    *,
    start_s: float,
    pairs: int,
    seed: int,
    block_s: float = DEFAULT_BLOCK_S,
    washout_s: float,
) -> Protocol:
    """Draw a trial's halves and the order of its blocks.

    Nodes of a family are sorted by load; neighbours are partners, and chance says which of them joins which half. Of
    a family with an odd number the most loaded node is left out.

    Args:
        nodes: nodes that take part; the draw does not depend on their order.
        start_s: start of the first block, s since the epoch.
        pairs: pairs of blocks in which the halves differ, at least `MIN_PAIRS`; pairs that treat all nodes or none
            are drawn beside them, one for every `WHOLE_EVERY` - 1 of these.
        seed: seed of the draw.
        block_s: length of a block, s.
        washout_s: beginning of each block that is not measured, s; below ``block_s``.

    Raises:
        InvalidQuantityError: too few pairs, a washout as long as a block, or no two nodes of one family.
    """
    positive("block_s", block_s)
    if pairs < MIN_PAIRS:
        raise InvalidQuantityError("pairs", f"must be at least {MIN_PAIRS}, got {pairs}")
    if not 0.0 <= washout_s < block_s:
        raise InvalidQuantityError("washout_s", f"must be at least 0 and shorter than a block, got {washout_s}")

    rng = np.random.default_rng(seed)
    first, second, left_out = _halves(nodes, rng)
    if not first:
        raise InvalidQuantityError("nodes", "needs two nodes with the same hardware")
    different = np.ones(all_pairs(pairs), dtype=bool)
    different[rng.choice(len(different), size=len(different) - pairs, replace=False)] = False
    heads = rng.integers(2, size=len(different)).astype(bool)
    order = tuple(
        (Treated.FIRST_HALF if head else Treated.SECOND_HALF) if halves else (Treated.ALL if head else Treated.NONE)
        for halves, head in zip(different, heads, strict=True)
    )
    return Protocol(
        start_s, block_s, washout_s, tuple(sorted(first)), tuple(sorted(second)), tuple(sorted(left_out)), order, seed
    )


def all_pairs(pairs: int) -> int:
    """Number of all pairs of blocks of a trial with so many pairs in which the halves differ."""
    return pairs + pairs // (WHOLE_EVERY - 1)


def _halves(nodes: Sequence[TrialNode], rng: np.random.Generator) -> tuple[list[str], list[str], list[str]]:
    first: list[str] = []
    second: list[str] = []
    left_out: list[str] = []
    ordered = sorted(nodes, key=lambda node: (node.family, node.load, node.name))
    for _, members in groupby(ordered, key=lambda node: node.family):
        names = [node.name for node in members]
        if len(names) % 2:
            left_out.append(names.pop())
        for one, other in zip(names[::2], names[1::2], strict=True):
            swap = bool(rng.integers(2))
            first.append(other if swap else one)
            second.append(one if swap else other)
    return first, second, left_out
