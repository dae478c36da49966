"""The verbs of the extender protocol, as functions from request bytes and a fleet view to response bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress, filterfalse
from typing import NamedTuple

import numpy as np

from joulie.apps.extender import wire
from joulie.apps.extender.feed import DEFAULT_LABELS, NodeLabels
from joulie.apps.extender.fleet import REFUSALS, UNKNOWN_SLOT, FleetView, slots_of
from joulie.apps.extender.judge import JudgedPod, Profiles, judge
from joulie.apps.extender.rankings import Rankings
from joulie.apps.extender.refusals import Checked, Refusal, count_placing, refused_by_power
from joulie.domain.scoring.extender import NodeClass, may_run
from joulie.domain.units import IntArray


@dataclass(frozen=True)
class NextCall:
    """The /prioritize call expected after a /filter call.

    Attributes:
        body: the request body as kube-scheduler would write it.
        pod: the pod.
        names: names of the feasible nodes.
    """

    body: bytes
    pod: JudgedPod
    names: list[str]


class Filtered(NamedTuple):
    """The result of a /filter call.

    Attributes:
        answer: an ExtenderFilterResult.
        refused: number of refused nodes by class.
        following: the expected next call; None if the request carried whole nodes.
        by_power: number of nodes refused by power, by reason; see `refusals`.
    """

    answer: bytes
    refused: Counter[NodeClass]
    following: NextCall | None
    by_power: Counter[str]


def prioritize(body: bytes, fleet: FleetView, profiles: Profiles, rankings: Rankings) -> bytes:
    """Answer /prioritize with a HostPriorityList, in the order of the candidates.

    Raises:
        BadRequestError: the body is malformed.
    """
    pod, given = wire.read_args(body)
    candidates = [meta.name for meta in wire.read_nodes(given)] if isinstance(given, wire.NodeList) else given
    return rankings.answer(judge(pod, profiles), candidates, fleet)


def filter_nodes(body: bytes, fleet: FleetView, profiles: Profiles, labels: NodeLabels = DEFAULT_LABELS) -> Filtered:
    """Answer /filter; `labels` reads those of whole nodes that are unknown.

    Raises:
        BadRequestError: the body is malformed.
    """
    pod, given = wire.read_args(body)
    judged = judge(pod, profiles)
    if isinstance(given, wire.NodeList):
        candidates = [meta.name for meta in wire.read_nodes(given)]
        return _filter_whole(given, judged, fleet, labels, refused_by_power(candidates, judged, fleet))
    return _filter_names(body, given, judged, fleet, refused_by_power(given, judged, fleet))


def preempt(body: bytes, fleet: FleetView, profiles: Profiles) -> tuple[bytes, Counter[NodeClass]]:
    """Answer /preempt with an ExtenderPreemptionResult, and count the refusals by class.

    The scheduler filters full nodes itself, as nodes where preemption would help, before it calls any extender.
    Candidates that the class rule or power forbid are therefore dropped here, or pods on them would be evicted for
    nothing. Those that power forbids are not counted.

    Raises:
        BadRequestError: the body is malformed.
    """
    pod, args = wire.read_preemption(body)
    judged = judge(pod, profiles)
    victims = args.meta_victims
    if victims is None:
        victims = {name: wire.meta_victims(whole or wire.Victims()) for name, whole in (args.victims or {}).items()}
    beyond = refused_by_power(list(victims), judged, fleet).refused
    victims = {name: one for name, one in victims.items() if name not in beyond}
    classes = fleet.twins.node_class[slots_of(fleet.roster, list(victims))]
    allowed = may_run(judged.view, classes)
    return wire.preemption_result(dict(compress(victims.items(), allowed))), _counted(classes[~allowed])


def _filter_names(body: bytes, candidates: list[str], pod: JudgedPod, fleet: FleetView, checked: Checked) -> Filtered:
    by_power = checked.refused
    count_placing(candidates, checked, pod, fleet)
    if not by_power and (pod.view.daemon or not pod.view.performance):
        passed = wire.json_text(candidates)
        return Filtered(wire.filter_result(names=passed), Counter(), NextCall(body, pod, candidates), Counter())
    refused = [wire.refusal(name, one.message) for name, one in by_power.items()]
    candidates = [name for name in candidates if name not in by_power] if by_power else candidates
    left, counted = candidates, Counter[NodeClass]()
    closed = {} if pod.view.daemon or not pod.view.performance else fleet.refusals
    for node_class, refusals in closed.items():
        found = list(filter(None, map(refusals.get, candidates)))
        if found:
            left = list(filterfalse(refusals.__contains__, left))
            refused += found
            counted[node_class] = len(found)
    passed = wire.json_text(left)
    answer = wire.filter_result(names=passed, unresolvable=refused)
    return Filtered(answer, counted, NextCall(wire.with_names(body, passed), pod, left), _by_reason(by_power))


def _filter_whole(
    nodes: wire.NodeList, pod: JudgedPod, fleet: FleetView, labels: NodeLabels, checked: Checked
) -> Filtered:
    by_power = checked.refused
    metas = wire.read_nodes(nodes)
    count_placing([meta.name for meta in metas], checked, pod, fleet)
    slots = slots_of(fleet.roster, [meta.name for meta in metas])
    classes = fleet.twins.node_class[slots]
    for index in np.flatnonzero(slots == UNKNOWN_SLOT):
        classes[index] = labels.node_class(metas[index].labels)
    allowed = may_run(pod.view, classes)
    within = np.array([meta.name not in by_power for meta in metas], dtype=np.bool_)
    passed = wire.node_list(nodes.metadata, compress(nodes.items, allowed & within))
    refused = [
        wire.refusal(metas[place].name, REFUSALS[NodeClass(int(classes[place]))])
        for place in np.flatnonzero(~allowed & within)
    ]
    refused += [wire.refusal(name, one.message) for name, one in by_power.items()]
    answer = wire.filter_result(nodes=passed, unresolvable=refused)
    return Filtered(answer, _counted(classes[~allowed]), None, _by_reason(by_power))


def _by_reason(by_power: Mapping[str, Refusal]) -> Counter[str]:
    return Counter(one.reason for one in by_power.values())


def _counted(classes: IntArray) -> Counter[NodeClass]:
    return Counter({node_class: count for node_class in REFUSALS if (count := int((classes == node_class).sum()))})
