"""Tables over the kinds of pods that a run has seen: what they request, and which nodes admit them now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from joulie.domain.scheduling.node_rules import NodeRules
from joulie.domain.units import BoolArray, IntArray
from joulie_lab.simulation.gangs import PodKind
from joulie_lab.simulation.native.admission import Admission
from joulie_lab.simulation.native.capacity import NodeCapacity
from joulie_lab.simulation.native.placement_kernels import N_NEEDS, count_pods, fitting_kinds

_INITIAL_KINDS = 64
_INITIAL_COUNTED = 4


class KindTable:
    """Kinds of pods as rows of an array that grows as needed.

    Attributes:
        needs: requests and, last, the row of `usable`, see `best_nodes`; shape ``(n_kinds, N_NEEDS)``.
        usable: nodes that rules, class and GPU resource admit now, shape ``(n_groups, n_nodes)``: kinds that differ in
            their requests only share a row. Call `refresh` after classes changed.
        totals: maximum number of pods of each watched kind that fit, as of the last `recount`, see `places`.
    """

    def __init__(self, capacity: NodeCapacity, admission: Admission) -> None:
        n_nodes = len(capacity.pods)
        self._capacity = capacity
        self._admission = admission
        self._row_of: dict[PodKind, int] = {}
        self._groups: dict[tuple[NodeRules, bool, str], tuple[int, PodKind]] = {}
        self.needs: IntArray = np.zeros((_INITIAL_KINDS, N_NEEDS), dtype=np.int64)
        self.usable: BoolArray = np.zeros((0, n_nodes), dtype=np.bool_)
        self._place_of: dict[int, int] = {}
        self._users: dict[int, int] = {}
        self._free: list[int] = []
        self._counts: IntArray = np.zeros((0, n_nodes), dtype=np.int64)
        self.totals: IntArray = np.zeros(0, dtype=np.int64)
        self._hosts: IntArray = np.zeros(0, dtype=np.int64)
        self._all_nodes: IntArray = np.arange(n_nodes, dtype=np.int64)

    def row(self, kind: PodKind) -> int:
        """The row of a kind."""
        row = self._row_of.get(kind)
        return self._add(kind) if row is None else row

    def refresh(self) -> None:
        """Determine again which nodes admit the kinds, after classes of nodes changed."""
        for group, kind in self._groups.values():
            self._look(group, kind)

    def fitting(self, rows: IntArray, nodes: Sequence[int]) -> IntArray:
        """Those of the kinds of which one more pod fits one of the nodes."""
        capacity, found = self._capacity, np.zeros(len(rows), dtype=np.bool_)
        fitting_kinds(
            np.array(nodes, dtype=np.int64),
            rows,
            self.needs,
            self.usable,
            capacity.sizes,
            capacity.used,
            capacity.free_gpus,
            capacity.max_free_milli,
            found,
        )
        return rows[found]

    # ---- numbers of pods that fit

    def watch(self, row: int) -> None:
        """Keep count of the pods of a kind that fit, until `unwatch` was called as often."""
        if row not in self._place_of:
            if not self._free:
                self._grow_counts()
            place = self._place_of[row] = self._free.pop()
            self._counts[place], self.totals[place], self._hosts[place] = 0, 0, 0
            self._recount(self._all_nodes, [row], [place])
        self._users[row] = self._users.get(row, 0) + 1

    def unwatch(self, row: int) -> None:
        """Stop counting the pods of a kind for one caller of `watch`."""
        self._users[row] -= 1
        if not self._users[row]:
            del self._users[row]
            self._free.append(self._place_of.pop(row))

    def max_pods(self, row: int) -> int:
        """Maximum number of pods of a watched kind that fit, as of the last `recount`."""
        return int(self.totals[self._place_of[row]])

    def places(self, rows: Iterable[int]) -> IntArray:
        """Places of watched kinds in `totals`, the same for as long as they are watched."""
        return np.array([self._place_of[row] for row in rows], dtype=np.int64)

    def hosts(self, row: int) -> int:
        """Number of nodes that could hold a pod of a watched kind, as of the last `recount`."""
        return int(self._hosts[self._place_of[row]])

    def recount(self) -> None:
        """Count again on the nodes that have changed since."""
        changed = self._capacity.take_changed()
        if changed and self._place_of:
            self._recount(np.array(changed, dtype=np.int64), list(self._place_of), list(self._place_of.values()))

    def _recount(self, nodes: IntArray, rows: list[int], places: list[int]) -> None:
        capacity = self._capacity
        count_pods(
            nodes,
            np.array(rows, dtype=np.int64),
            np.array(places, dtype=np.int64),
            self.needs,
            self.usable,
            capacity.sizes,
            capacity.used,
            capacity.pods,
            capacity.free_milli,
            self._counts,
            self.totals,
            self._hosts,
        )

    def _grow_counts(self) -> None:
        old = len(self.totals)
        added = max(old, _INITIAL_COUNTED)
        self._counts = np.concatenate([self._counts, np.zeros((added, len(self._all_nodes)), dtype=np.int64)])
        self.totals, self._hosts = (
            np.concatenate([one, np.zeros(added, dtype=np.int64)]) for one in (self.totals, self._hosts)
        )
        self._free += range(old, old + added)

    # ---- rows

    def _add(self, kind: PodKind) -> int:
        row = len(self._row_of)
        if row == len(self.needs):
            self.needs = np.concatenate([self.needs, np.zeros_like(self.needs)])
        amounts = (*kind.requests, *kind.requests.nonzero_requests(), kind.gpus, kind.gpu_milli)
        self.needs[row] = (*amounts, self._group(kind))
        self._row_of[kind] = row
        return row

    def _group(self, kind: PodKind) -> int:
        key = (kind.rules, kind.performance, kind.gpu_resource)
        if key not in self._groups:
            group = len(self._groups)
            self.usable = np.concatenate([self.usable, np.zeros((1, self.usable.shape[1]), dtype=np.bool_)])
            self._groups[key] = group, kind
            self._look(group, kind)
        return self._groups[key][0]

    def _look(self, group: int, kind: PodKind) -> None:
        self.usable[group] = self._admission.allowed_nodes(kind) & self._capacity.has_gpu_resource(kind)
