"""Sums over the pods of each node for power budgets, as arrays that a view reads at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from joulie.domain.units import FloatArray, IntArray

_NO_PODS = 0
"""Column that stands for all nodes without a pod that counts."""
_FIRST_CAPACITY = 256
_FULL_POWER_PODS = 0
"""Row of the number of pods that need full power; the others are expected watts, as `SumsBySlot` has them."""


@dataclass(frozen=True, eq=False)
class SumsBySlot:
    """Sums by slot; arrays have shape ``(n_slots,)``.

    Attributes:
        full_power_pods: number of pods that need full power.
        young_full_w: expected watts of those that have not run for long, W.
        young_standard_w: the same of other pods.
        since_s: since when the node has pods that need full power, s since the epoch; of no meaning where it has none.
    """

    full_power_pods: IntArray
    young_full_w: IntArray
    young_standard_w: IntArray
    since_s: FloatArray


class NodeSums:
    """Sums over the pods of nodes, in whole numbers. Used from one event loop only."""

    def __init__(self) -> None:
        """Create sums without pods."""
        self._columns: dict[str, int] = {}
        self._free = list(range(_FIRST_CAPACITY - 1, _NO_PODS, -1))
        self._sums = np.zeros((3, _FIRST_CAPACITY), np.int64)
        self._since_s = np.zeros(_FIRST_CAPACITY)
        self._places: tuple[object, IntArray] | None = None
        self._moved: set[str] = set()

    def __len__(self) -> int:
        """Number of nodes with pods that count."""
        return len(self._columns)

    def add(
        self,
        node: str,
        *,
        full_power_pods: int = 0,
        young_full_w: int = 0,
        young_standard_w: int = 0,
        since_s: float = 0.0,
    ) -> None:
        """Add to the sums of a node.

        Args:
            node: its name.
            full_power_pods: number of pods that need full power.
            young_full_w: expected watts of those that have not run for long.
            young_standard_w: the same of other pods.
            since_s: since when they need full power, s since the epoch; counts if no other pod did.
        """
        column = self._columns.get(node)
        if column is None:
            column = self._new_column(node)
        sums = self._sums[:, column]
        if full_power_pods > 0 and not sums[_FULL_POWER_PODS]:
            self._since_s[column] = since_s
        sums += (full_power_pods, young_full_w, young_standard_w)
        if not sums.any():
            self._free.append(self._columns.pop(node))
            self._moved.add(node)

    def by_slot(self, slots: Mapping[str, int], n_slots: int, of: object) -> SumsBySlot:
        """The sums of the nodes that have slots.

        Args:
            slots: slot by node name.
            n_slots: number of slots.
            of: what `slots` belongs to: as long as it is the same, so are they.
        """
        if self._places is None or self._places[0] is not of:
            places = np.full(n_slots, _NO_PODS)
            self._moved = set(self._columns)
        else:
            places = self._places[1]
        for node in self._moved:
            if (slot := slots.get(node)) is not None:
                places[slot] = self._columns.get(node, _NO_PODS)
        self._moved.clear()
        self._places = of, places
        full_power_pods, young_full_w, young_standard_w = self._sums[:, places]
        return SumsBySlot(full_power_pods, young_full_w, young_standard_w, self._since_s[places])

    def _new_column(self, node: str) -> int:
        if not self._free:
            size = self._sums.shape[1]
            self._sums = np.concatenate([self._sums, np.zeros_like(self._sums)], axis=1)
            self._since_s = np.concatenate([self._since_s, np.zeros_like(self._since_s)])
            self._free.extend(range(2 * size - 1, size - 1, -1))
        column = self._columns[node] = self._free.pop()
        self._moved.add(node)
        return column
