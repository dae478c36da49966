"""The two placement indexes of the compiled engine, which find the best node without scoring all of them.

`Tree`: a tournament tree over the nodes of a pool for scores that change with power. A node's score falls with the
job's own power in the same way on every node of a pool, so two keys per node bound the score of any job, and a search
descends only where the bound can still win (branch and bound). The exact score is computed only at the leaves.

`Bitsets`: sets of node indices with insert, remove and smallest member in a few words, for scores that depend on
allocation only: all nodes of a pool with the same free cores and GPUs form one class and have the same score.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from joulie.domain.units import FloatArray, IntArray
from joulie_lab.simulation.compiled import compiled

FREE_CORES, FREE_GPUS, KEY, FLOOR = 0, 1, 2, 3
"""Columns of a tree: maximum free cores and GPUs below, maximum key, maximum floor (see `search`)."""

_WORD_BITS = 64

_BIT_OF_POWER = np.zeros(67, np.int64)
"""Exponents of the powers of two, by remainder: modulo 67, all powers below 2**66 are distinct."""
for _bit in range(_WORD_BITS):
    _BIT_OF_POWER[(1 << _bit) % 67] = _bit


class Trees(NamedTuple):
    """Complete binary trees, one per view (pool and kind of job), stored consecutively.

    Attributes:
        slots: shape ``(n_slots, 4)``, columns as above; ``-inf`` for empty subtrees.
        base: first slot of each view; its root is ``base + 1``.
        leaves: number of leaves of each view, a power of two.
    """

    slots: FloatArray
    base: IntArray
    leaves: IntArray


def empty_trees(counts: IntArray) -> Trees:
    """Empty trees for views of `counts` nodes each."""
    leaves = np.array([1 << max(0, int(count - 1).bit_length()) for count in counts], dtype=np.int64)
    ends = np.cumsum(2 * leaves)
    return Trees(np.full((int(ends[-1]), 4), -np.inf), np.concatenate(([0], ends[:-1])), leaves)


@compiled
def set_leaf(
    trees: Trees, view: int, position: int, free_cores: float, free_gpus: float, key: float, floor: float
) -> bool:
    """Write one leaf without updating its ancestors; returns whether anything changed."""
    slot = trees.base[view] + trees.leaves[view] + position
    row = trees.slots[slot]
    if row[FREE_CORES] == free_cores and row[FREE_GPUS] == free_gpus and row[KEY] == key and row[FLOOR] == floor:
        return False
    row[FREE_CORES] = free_cores
    row[FREE_GPUS] = free_gpus
    row[KEY] = key
    row[FLOOR] = floor
    return True


@compiled
def _merge(slots: FloatArray, slot: int, left: int) -> bool:
    """Set `slot` to the maximum of its two children; returns whether it changed."""
    changed = False
    # Written whether changed or not: without a branch, the four columns are one vector operation.
    for column in range(4):
        value = max(slots[left, column], slots[left + 1, column])
        changed |= slots[slot, column] != value
        slots[slot, column] = value
    return changed


@compiled
def lift(trees: Trees, view: int, position: int) -> None:
    """Propagate a changed leaf towards the root, as far as anything changes."""
    base = trees.base[view]
    slot = (trees.leaves[view] + position) >> 1
    while slot >= 1 and _merge(trees.slots, base + slot, base + 2 * slot):
        slot >>= 1


@compiled
def rebuild(trees: Trees, view: int) -> None:
    """Recompute all inner slots of a view from its leaves."""
    base = trees.base[view]
    for slot in range(trees.leaves[view] - 1, 0, -1):
        _merge(trees.slots, base + slot, base + 2 * slot)


class Bitsets(NamedTuple):
    """Sets of node positions, one per row, as two-level bitmaps of 64-bit words.

    Attributes:
        words: shape ``(n_sets, n_words)``: bit b of word w is set if position ``64 w + b`` is a member.
        summary: shape ``(n_sets, ceil(n_words / 64))``: bitmap of the non-zero words.
    """

    words: np.ndarray[tuple[int, int], np.dtype[np.uint64]]
    summary: np.ndarray[tuple[int, int], np.dtype[np.uint64]]


def empty_bitsets(n_sets: int, n_positions: int) -> Bitsets:
    """`n_sets` empty sets over positions below `n_positions`."""
    n_words = -(-max(1, n_positions) // _WORD_BITS)
    return Bitsets(
        np.zeros((n_sets, n_words), dtype=np.uint64), np.zeros((n_sets, -(-n_words // _WORD_BITS)), dtype=np.uint64)
    )


@compiled
def insert(sets: Bitsets, which: int, position: int) -> None:
    """Insert `position` into a set."""
    word = position >> 6
    sets.words[which, word] |= np.uint64(1) << np.uint64(position & 63)
    sets.summary[which, word >> 6] |= np.uint64(1) << np.uint64(word & 63)


@compiled
def remove(sets: Bitsets, which: int, position: int) -> None:
    """Remove `position` from a set."""
    word = position >> 6
    sets.words[which, word] &= ~(np.uint64(1) << np.uint64(position & 63))
    if sets.words[which, word] == np.uint64(0):
        sets.summary[which, word >> 6] &= ~(np.uint64(1) << np.uint64(word & 63))


@compiled
def _lowest_bit(word: np.uint64) -> int:
    """Index of the lowest set bit of a non-zero word."""
    return int(_BIT_OF_POWER[(word & ~(word - np.uint64(1))) % np.uint64(67)])


@compiled
def next_member(sets: Bitsets, which: int, start: int) -> int:
    """The smallest member that is at least `start`; -1 if none."""
    n_words = sets.words.shape[1]
    word = start >> 6
    if word >= n_words:
        return -1
    bits = sets.words[which, word] >> np.uint64(start & 63)
    if bits != np.uint64(0):
        return start + _lowest_bit(bits)
    word += 1
    block = word >> 6
    while block < sets.summary.shape[1]:
        nonzero = sets.summary[which, block]
        if block == word >> 6:
            nonzero = (nonzero >> np.uint64(word & 63)) << np.uint64(word & 63)
        if nonzero != np.uint64(0):
            found = (block << 6) + _lowest_bit(nonzero)
            return (found << 6) + _lowest_bit(sets.words[which, found])
        block += 1
    return -1
