"""What has to be written: the decision about each node against what is stored about it.

In a cycle nearly all nodes are as they were. So the desired state of a node is made again only when one of its grounds
changed, and compared again only when it, its Node or its NodeTwin is another object than last time: for a NodeTwin that
is when the watch reports it, so that a cycle after many writes does not compare them all. Numbers, which change in
every cycle, are compared for many nodes at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin, NodeTwinStatus
from joulie.adapters.kubernetes.control_reports import not_restored_reason, requests_cap
from joulie.adapters.kubernetes.times import time_or_none
from joulie.apps.operator.desired import DesiredNode, Grounds, desired_words, spec_matches, status_matches, words_match
from joulie.apps.operator.facts import NodeFacts
from joulie.apps.operator.numbers import Numbers, numbers_close, stored_numbers, wanted_numbers
from joulie.domain.twin import FleetTwin


class Need(NamedTuple):
    """Which parts of a node have to be written; `pending` is the label of a pending restore."""

    labels: bool = False
    spec: bool = False
    status: bool = False
    pending: bool = False


NOTHING = Need()


class Stored(NamedTuple):
    """What the API server has about a node, as far as this process has seen it."""

    facts: NodeFacts | None
    twin: NodeTwin | None


def need_of(wanted: DesiredNode, stored: Stored, *, now_s: float, overdue_s: float) -> Need:
    """What has to be written for one node.

    Args:
        wanted: its desired state.
        stored: what there is.
        now_s: time, s since the epoch.
        overdue_s: a status is written again that was last written so long ago, s; or so far in the future, by a clock
            that was set back since: readers treat both as stale.
    """
    need, twin = _need_of_words(wanted, stored), stored.twin
    close = twin is not None and status_matches(wanted.status, twin.status)
    return _with_age(need, stored.facts, close=close, late=abs(now_s - updated_s(twin)) >= overdue_s)


def updated_s(twin: NodeTwin | None) -> float:
    """When a twin's status was written, s since the epoch; minus infinity without a readable timestamp."""
    found_s = None if twin is None else time_or_none(twin.status.last_updated)
    return float("-inf") if found_s is None else found_s


def labels_match(wanted: DesiredNode, facts: NodeFacts) -> bool:
    """Whether a node's labels are as decided."""
    return (facts.profile_label, facts.draining_label) == (wanted.profile_label, wanted.draining_label)


def _need_of_words(wanted: DesiredNode, stored: Stored) -> Need:
    """What has to be written because of anything but numbers and age."""
    facts, twin = stored
    if facts is None:
        return NOTHING
    labels = not labels_match(wanted, facts)
    pending = names.RESTORE_PENDING_LABEL in facts.labels
    capped = requests_cap(wanted.spec)
    if twin is None:
        return Need(labels, True, True, capped and not pending)
    spec = not spec_matches(wanted, twin) or not _owned_by(twin, facts.uid)
    changed = not pending if capped else pending and not spec and _is_restored(twin)
    return Need(labels, spec, not words_match(wanted.status, twin.status), changed)


def _is_restored(twin: NodeTwin) -> bool:
    """Whether the node's agent has confirmed, for this very spec, that no cap is in force."""
    control = twin.status.control_status
    confirms = control is not None and control.observed_generation == twin.metadata.generation
    return confirms and not not_restored_reason(twin)


def _owned_by(twin: NodeTwin, node_uid: str) -> bool:
    return any(owner.uid == node_uid for owner in twin.metadata.owner_references)


@dataclass(slots=True)
class _Compared:
    """The last comparison of a node."""

    grounds: Grounds
    wanted: DesiredNode
    stored: Stored
    need: Need
    """Because of anything but numbers and age."""
    numbers: Numbers
    updated_s: float


_NO_NUMBERS: Numbers = stored_numbers(NodeTwinStatus())


class Comparison:
    """Compares the decisions about nodes with what is stored, and keeps what does not change."""

    def __init__(self) -> None:
        self._known: dict[str, _Compared] = {}

    def keep(self, nodes: Iterable[str]) -> None:
        """Forget all nodes but these."""
        for node in self._known.keys() - nodes:
            del self._known[node]

    def needs(
        self,
        grounds: Sequence[Grounds],
        stored: Sequence[Stored],
        twin: FleetTwin,
        first: int,
        *,
        now_s: float,
        overdue_s: float,
    ) -> list[tuple[DesiredNode, Need]]:
        """The desired state, without numbers, of some nodes, and what has to be written for each.

        Args:
            grounds: of their desired states.
            stored: what is stored about them.
            twin: numbers of all nodes of the decision.
            first: index of the first of these nodes in it; the others follow.
            now_s: as of `need_of`.
            overdue_s: as of `need_of`.
        """
        compared = [self._compared(*one) for one in zip(grounds, stored, strict=True)]
        numbers = np.array([one.numbers for one in compared]).reshape(-1, len(_NO_NUMBERS))
        close = numbers_close(wanted_numbers(twin, slice(first, first + len(compared))), numbers).tolist()
        return [
            (
                one.wanted,
                _with_age(one.need, one.stored.facts, close=near, late=abs(now_s - one.updated_s) >= overdue_s),
            )
            for one, near in zip(compared, close, strict=True)
        ]

    def wanted(self, grounds: Grounds, stored: Stored) -> DesiredNode:
        """The desired state of a node, without numbers; its comparison with what is stored is kept for `needs`."""
        return self._compared(grounds, stored).wanted

    def _compared(self, grounds: Grounds, stored: Stored) -> _Compared:
        name = grounds.node.node.name
        known = self._known.get(name)
        same = known is not None and known.grounds == grounds
        if known is not None and same and known.stored.facts is stored.facts and known.stored.twin is stored.twin:
            return known
        wanted = known.wanted if known is not None and same else desired_words(grounds)
        numbers = _NO_NUMBERS if stored.twin is None else stored_numbers(stored.twin.status)
        need = _need_of_words(wanted, stored)
        found = _Compared(grounds, wanted, stored, need, numbers, updated_s(stored.twin))
        self._known[name] = found
        return found


def _with_age(need: Need, facts: NodeFacts | None, *, close: bool, late: bool) -> Need:
    """What has to be written, counting whether the numbers are close enough and the status is due again."""
    if facts is None or need.status or (close and not (facts.managed and late)):
        return need
    return need._replace(status=True)
