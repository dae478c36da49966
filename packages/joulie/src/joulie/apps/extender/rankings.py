"""Cached /prioritize answers by kind of pod."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress

import numpy as np

from joulie.apps.extender import wire
from joulie.apps.extender.fleet import N_SCORES, UNKNOWN_SLOT, FleetView, Roster, slots_of
from joulie.apps.extender.judge import JudgedPod, Order, scored
from joulie.domain.scoring.extender import WIRE_MAXIMUM
from joulie.domain.scoring.marginal_placement import cheapest
from joulie.domain.units import IntArray

_CACHED_KINDS = 16
"""Number of kinds of pods in the least-recently-used cache: pods may all differ."""
_FEW_CANDIDATES = 0.5
"""Share of the nodes up to which serialising the candidates alone is cheaper than all nodes."""

_CHEAPEST = 4
"""Number of the cheapest nodes of all that are looked up among the candidates."""


class Rankings:
    """Entries of a HostPriorityList by kind of pod, kept up to date with the views of the fleet.

    Pods arrive in bursts of equal ones, few scores change between two views, and kinds of pods differ in the scores of
    some nodes only. So the entry of every node is cached by name, and a new view or another kind replaces only entries
    whose score differs. For an unknown kind with few candidates only their entries are made, since those of all nodes
    would cost more than the call.

    Used from one event loop only.
    """

    def __init__(self) -> None:
        """Create an empty cache."""
        self._known: dict[Hashable, _Ranking] = {}

    def answer(self, pod: JudgedPod, candidates: list[str], fleet: FleetView) -> bytes:
        """A HostPriorityList, in the order of the candidates."""
        ranking = self._ranking(pod, len(candidates), fleet)
        try:
            entries = list(map(ranking.entries.__getitem__, candidates))
        except KeyError:
            entries = _entries(ranking.by_slot, candidates, fleet.roster)
        if ranking.order is not None:
            self._raise_best(entries, candidates, ranking.fleet.roster, ranking.order)
        return wire.json_array(entries)

    @staticmethod
    def _raise_best(entries: list[bytes], candidates: list[str], roster: Roster, order: Order) -> None:
        """Give the cheapest candidate the score that no other node has."""
        costs, ranks = order.costs, order.ranks
        if len(candidates) > _FEW_CANDIDATES * len(roster.slots):
            # The cheapest of all nodes is most likely among so many, and found faster than the slots of all of them.
            for slot in cheapest(costs, ranks, _CHEAPEST):
                with suppress(ValueError):  # not a candidate
                    entries[candidates.index(roster.names[slot])] = roster.entries[slot * N_SCORES + WIRE_MAXIMUM]
                    return
        slots = slots_of(roster, candidates)
        for best in cheapest(costs[slots], ranks[slots], 1):
            entries[best] = roster.entries[int(slots[best]) * N_SCORES + WIRE_MAXIMUM]

    def _ranking(self, pod: JudgedPod, n_candidates: int, fleet: FleetView) -> _Ranking:
        kind = pod.kind(fleet.scoring)
        ranking = self._known.pop(kind, None)
        seen = ranking is not None and ranking.fleet.roster is fleet.roster
        if ranking is None or not seen:
            ranking = _Ranking(fleet, *scored(pod, fleet))
        elif ranking.fleet is not fleet:
            ranking.renew(fleet, *scored(pod, fleet))
        if not ranking.entries and (seen or n_candidates > _FEW_CANDIDATES * len(fleet.roster.slots)):
            ranking.fill(self._latest(fleet.roster))
        self._known[kind] = ranking
        if len(self._known) > _CACHED_KINDS:
            del self._known[next(iter(self._known))]
        return ranking

    def _latest(self, roster: Roster) -> _Ranking | None:
        """The most recently used complete ranking of a roster."""
        rankings = (one for one in reversed(self._known.values()) if one.entries and one.fleet.roster is roster)
        return next(rankings, None)


class _Ranking:
    """Scores of all nodes for one kind of pod in one view.

    Attributes:
        fleet: the view.
        by_slot: scores 0..10 by slot.
        order: of all nodes, if scores alone do not express it.
        entries: HostPriority entries by node name; those of the whole roster, or none yet.
    """

    def __init__(self, fleet: FleetView, by_slot: IntArray, order: Order | None) -> None:
        self.fleet = fleet
        self.by_slot = by_slot
        self.order = order
        self.entries: dict[str, bytes] = {}
        self._names: list[str] = []
        self._slots: IntArray = np.empty(0, np.int64)

    def fill(self, other: _Ranking | None) -> None:
        """Make the entries of all nodes, starting from another ranking of the same roster if there is one."""
        if other is None:
            slots = self.fleet.roster.slots
            self._names, self._slots = list(slots), np.fromiter(slots.values(), np.int64, len(slots))
            self._enter(self._names, self._slots)
        else:
            self._names, self._slots, self.entries = other._names, other._slots, other.entries.copy()
            self._replace(other.by_slot)

    def renew(self, fleet: FleetView, by_slot: IntArray, order: Order | None) -> None:
        """Switch to another view of the same roster."""
        former = self.by_slot
        self.fleet, self.by_slot, self.order = fleet, by_slot, order
        self._replace(former)

    def _replace(self, former: IntArray) -> None:
        """Replace the entries of nodes whose score changed."""
        changed = np.flatnonzero(self.by_slot[self._slots] != former[self._slots])
        self._enter([self._names[place] for place in changed.tolist()], self._slots[changed])

    def _enter(self, names: list[str], slots: IntArray) -> None:
        self.entries.update(zip(names, _picked(self.fleet.roster, self.by_slot, slots), strict=True))


def _entries(by_slot: IntArray, candidates: list[str], roster: Roster) -> list[bytes]:
    """Entries of the candidates, unknown nodes included."""
    slots = slots_of(roster, candidates)
    entries = _picked(roster, by_slot, slots)
    for index in np.flatnonzero(slots == UNKNOWN_SLOT):
        entries[index] = wire.host_score(wire.json_text(candidates[index]), int(by_slot[UNKNOWN_SLOT]))
    return entries


def _picked(roster: Roster, by_slot: IntArray, slots: IntArray) -> list[bytes]:
    entries = roster.entries
    return [entries[place] for place in (slots * N_SCORES + by_slot[slots]).tolist()]
