"""What /prioritize answers, at hand for the kinds of pods that come again."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from joulie.apps.extender import wire
from joulie.apps.extender.fleet import N_SCORES, UNKNOWN_SLOT, FleetView, Roster, slots_of
from joulie.apps.extender.judge import JudgedPod, scores
from joulie.domain.units import IntArray

_KINDS = 16
"""Kinds of pods that are remembered, those asked for last: pods may all differ."""


class Rankings:
    """Entries of a HostPriorityList by kind of pod, kept in step with the views of the fleet.

    Pods come in flocks that are alike, and between two views few scores change. So for a kind that comes again the
    entry of every node is at hand by its name, and a new view replaces those whose score changed. For a kind that was
    never seen only the candidates' entries are made: those of all nodes would cost more than its call.

    Not for concurrent use: the event loop is its lock.
    """

    def __init__(self) -> None:
        """Nothing is remembered yet."""
        self._known: dict[Hashable, _Ranking] = {}

    def answer(self, pod: JudgedPod, candidates: list[str], fleet: FleetView) -> bytes:
        """A HostPriorityList, in the order of the candidates."""
        ranking = self._ranking(pod, fleet)
        try:
            return wire.json_array(map(ranking.entries.__getitem__, candidates))
        except KeyError:
            return wire.json_array(_entries(ranking.by_slot, candidates, fleet.roster))

    def _ranking(self, pod: JudgedPod, fleet: FleetView) -> _Ranking:
        ranking = self._known.pop(pod.kind, None)
        if ranking is None or ranking.fleet.roster is not fleet.roster:
            ranking = _Ranking(fleet, scores(pod, fleet))
        else:
            if ranking.fleet is not fleet:
                ranking.renew(fleet, scores(pod, fleet))
            if not ranking.entries:
                ranking.fill()
        self._known[pod.kind] = ranking
        if len(self._known) > _KINDS:
            del self._known[next(iter(self._known))]
        return ranking


class _Ranking:
    """All nodes for one kind of pod, as one view has them.

    Attributes:
        fleet: the view.
        by_slot: scores 0..10 by slot.
        entries: of the HostPriorityList by the node's name; all of the roster's, or none yet.
    """

    def __init__(self, fleet: FleetView, by_slot: IntArray) -> None:
        self.fleet = fleet
        self.by_slot = by_slot
        self.entries: dict[str, bytes] = {}
        self._names: list[str] = []
        self._slots: IntArray = np.empty(0, np.int64)

    def fill(self) -> None:
        """Have the entry of every node at hand."""
        slots = self.fleet.roster.slots
        self._names, self._slots = list(slots), np.fromiter(slots.values(), np.int64, len(slots))
        self._enter(self._names, self._slots)

    def renew(self, fleet: FleetView, by_slot: IntArray) -> None:
        """Go over to another view of the same nodes."""
        changed = np.flatnonzero(by_slot[self._slots] != self.by_slot[self._slots])
        self.fleet, self.by_slot = fleet, by_slot
        self._enter([self._names[place] for place in changed.tolist()], self._slots[changed])

    def _enter(self, names: list[str], slots: IntArray) -> None:
        self.entries.update(zip(names, _picked(self.fleet.roster, self.by_slot, slots), strict=True))


def _entries(by_slot: IntArray, candidates: list[str], roster: Roster) -> list[bytes]:
    """The candidates' entries, those of unknown nodes too."""
    slots = slots_of(roster, candidates)
    entries = _picked(roster, by_slot, slots)
    for index in np.flatnonzero(slots == UNKNOWN_SLOT):
        entries[index] = wire.host_score(wire.json_text(candidates[index]), int(by_slot[UNKNOWN_SLOT]))
    return entries


def _picked(roster: Roster, by_slot: IntArray, slots: IntArray) -> list[bytes]:
    entries = roster.entries
    return [entries[place] for place in (slots * N_SCORES + by_slot[slots]).tolist()]
