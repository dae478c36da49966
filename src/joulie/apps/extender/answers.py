"""The verbs of the extender protocol: a request's bytes and a view of the fleet in, the answer's bytes out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

import numpy as np

from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.pods import PodFacts, ProfileFacts, pod_facts
from joulie.apps.extender import wire
from joulie.apps.extender.feed import label_class
from joulie.apps.extender.fleet import N_SCORES, UNKNOWN_SLOT, FleetView, Roster, Told, slots_of
from joulie.domain.marginal import PodRequests
from joulie.domain.scoring.extender import NodeClass, PodView, may_run, wire_score
from joulie.domain.scoring.marginal_energy import node_scores
from joulie.domain.units import BoolArray, IntArray

REFUSALS = {
    NodeClass.ECO: "node(s) run under eco power caps, closed to performance pods",
    NodeClass.DRAINING: "node(s) are draining towards eco power caps, closed to performance pods",
}
"""Reasons by class. They are the same for every node: the scheduler counts equal ones together in its event."""
# By plain number, which is how the arrays have classes: looking up thousands of enumeration members is slow.
_REASONS = {int(node_class): b":" + wire.json_text(reason) for node_class, reason in REFUSALS.items()}

_ALIKE = 16
"""Kinds of pods that a view remembers: it may last for a second, and pods may all differ."""

_FEW = 1_000
"""Candidates of a call whose entries are remembered, at most: kube-scheduler asks for 5 % of a large cluster, and
taking note of thousands would hold up the first call of each view by milliseconds."""

Profiles = Callable[[PodFacts], ProfileFacts]
"""The WorkloadProfile that counts for a pod."""


@dataclass(frozen=True)
class JudgedPod:
    """A pod as decisions see it.

    Attributes:
        facts: what its own object says.
        view: with its profile.
        requests: as kube-scheduler counts them.
    """

    facts: PodFacts
    view: PodView
    requests: PodRequests


@dataclass(frozen=True)
class Ranking:
    """What kube-scheduler will ask /prioritize for: the nodes that /filter let through.

    Attributes:
        body: the call as kube-scheduler would write it.
        pod: the pod.
        names: the nodes.
    """

    body: bytes
    pod: JudgedPod
    names: list[str]

    def answer(self, fleet: FleetView) -> bytes:
        """A HostPriorityList, in the order of the nodes."""
        return _ranked(self.pod, self.names, fleet)


class Filtered(NamedTuple):
    """What /filter makes of a call.

    Attributes:
        answer: an ExtenderFilterResult.
        refused: refusals by class.
        following: the call to expect next; None where whole nodes were given.
    """

    answer: bytes
    refused: Counter[NodeClass]
    following: Ranking | None


def judge(pod: Pod, profiles: Profiles) -> JudgedPod:
    """What the extender makes of a pod."""
    facts = pod_facts(pod)
    asked = facts.requests
    requests = PodRequests(asked.cpu_cores, asked.memory_gib, asked.gpus)
    return JudgedPod(facts, facts.view(profiles(facts)), requests)


def scores(pod: JudgedPod, fleet: FleetView) -> IntArray:
    """Scores 0..10 of all nodes for a pod, by slot."""
    return wire_score(node_scores(fleet.scoring, pod.view, pod.requests, fleet.twins, fleet.load))


def prioritize(body: bytes, fleet: FleetView, profiles: Profiles) -> bytes:
    """Answer /prioritize with a HostPriorityList, in the order of the candidates.

    Raises:
        BadRequestError: the body is no such call.
    """
    pod, given = wire.read_args(body)
    candidates = [meta.name for meta in wire.read_nodes(given)] if isinstance(given, wire.NodeList) else given
    return _ranked(judge(pod, profiles), candidates, fleet)


def _ranked(pod: JudgedPod, candidates: list[str], fleet: FleetView) -> bytes:
    told = _told(pod, fleet)
    try:
        entries = [told.entries[name] for name in candidates]
    except KeyError:
        entries = _entries(told.scores, candidates, fleet.roster)
        if len(candidates) <= _FEW:
            told.entries.update(zip(candidates, entries, strict=True))
    return wire.json_array(entries)


def _told(pod: JudgedPod, fleet: FleetView) -> Told:
    """What the view says of pods like this one."""
    alike = pod.view, pod.requests
    told = fleet.told.get(alike)
    if told is None:
        if len(fleet.told) >= _ALIKE:
            fleet.told.clear()
        told = fleet.told[alike] = Told(scores(pod, fleet))
    return told


def _entries(by_slot: IntArray, candidates: list[str], roster: Roster) -> list[bytes]:
    """The candidates' entries of a HostPriorityList."""
    slots = slots_of(roster, candidates)
    entries = _picked(roster.entries, slots * N_SCORES + by_slot[slots])
    for index in np.flatnonzero(slots == UNKNOWN_SLOT):
        entries[index] = wire.host_score(wire.json_text(candidates[index]), int(by_slot[UNKNOWN_SLOT]))
    return entries


def filter_nodes(body: bytes, fleet: FleetView, profiles: Profiles) -> Filtered:
    """Answer /filter.

    Raises:
        BadRequestError: the body is no such call.
    """
    pod, given = wire.read_args(body)
    judged = judge(pod, profiles)
    if isinstance(given, wire.NodeList):
        return _filter_whole(given, judged.view, fleet)
    return _filter_names(body, given, judged, fleet)


def preempt(body: bytes, fleet: FleetView, profiles: Profiles) -> tuple[bytes, Counter[NodeClass]]:
    """Answer /preempt with an ExtenderPreemptionResult, and count the refusals by class.

    The scheduler itself refuses a full node as one where preemption would help, before any extender is asked. So
    candidates that the class rule forbids are dropped here, or pods on them would be evicted for nothing.

    Raises:
        BadRequestError: the body is no such call.
    """
    pod, args = wire.read_preemption(body)
    view = judge(pod, profiles).view
    victims = args.meta_victims
    if victims is None:
        victims = {name: wire.meta_victims(whole or wire.Victims()) for name, whole in (args.victims or {}).items()}
    classes = fleet.twins.node_class[slots_of(fleet.roster, list(victims))]
    allowed = may_run(view, classes)
    return wire.preemption_result(dict(compress(victims.items(), allowed))), _counted(classes[~allowed])


def _picked(items: list[bytes], places: IntArray) -> list[bytes]:
    """The items at those places."""
    return [items[place] for place in places.tolist()]


def _filter_names(body: bytes, candidates: list[str], pod: JudgedPod, fleet: FleetView) -> Filtered:
    if pod.view.daemon or not pod.view.performance:
        passed = wire.json_text(candidates)
        return Filtered(wire.filter_result(names=passed), Counter(), Ranking(body, pod, candidates))
    slots = slots_of(fleet.roster, candidates)
    classes = fleet.twins.node_class[slots]
    quoted = _picked(fleet.roster.names, slots)
    for index in np.flatnonzero(slots == UNKNOWN_SLOT):
        quoted[index] = wire.json_text(candidates[index])
    allowed = may_run(pod.view, classes)
    passed = wire.json_array(compress(quoted, allowed))
    answer = wire.filter_result(names=passed, unresolvable=_refused(quoted, classes, allowed))
    following = Ranking(wire.with_names(body, passed), pod, list(compress(candidates, allowed)))
    return Filtered(answer, _counted(classes[~allowed]), following)


def _filter_whole(nodes: wire.NodeList, view: PodView, fleet: FleetView) -> Filtered:
    metas = wire.read_nodes(nodes)
    slots = slots_of(fleet.roster, [meta.name for meta in metas])
    classes = fleet.twins.node_class[slots]
    for index in np.flatnonzero(slots == UNKNOWN_SLOT):
        classes[index] = label_class(metas[index].labels)
    allowed = may_run(view, classes)
    passed = wire.node_list(nodes.metadata, compress(nodes.items, allowed))
    quoted = [wire.json_text(meta.name) for meta in metas]
    answer = wire.filter_result(nodes=passed, unresolvable=_refused(quoted, classes, allowed))
    return Filtered(answer, _counted(classes[~allowed]), None)


def _refused(quoted: list[bytes], classes: IntArray, allowed: BoolArray) -> list[bytes]:
    """The refused nodes as ``"name":"reason"``."""
    places = np.flatnonzero(~allowed)
    reasons = classes[places].tolist()
    return [quoted[place] + _REASONS[reason] for place, reason in zip(places.tolist(), reasons, strict=True)]


def _counted(classes: IntArray) -> Counter[NodeClass]:
    return Counter({node_class: count for node_class in REFUSALS if (count := int((classes == node_class).sum()))})
