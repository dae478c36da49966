"""Which nodes a pod fits on and how well, as kube-scheduler's default plugins say; without I/O.

Of those plugins: NodeUnschedulable, NodeName, TaintToleration (its filter), NodeAffinity, NodeResourcesFit with
LeastAllocated, NodeResourcesBalancedAllocation. What they mean is in `joulie.domain.scheduling`; here it meets the
objects of the fake API. Source: k8s.io/kubernetes/pkg/scheduler/framework/plugins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from joulie.adapters.kubernetes.api.core import Taint, Toleration
from joulie.domain.resource_quantity import parse_quantity
from joulie.domain.scheduling.node_rules import NodeRules, Term
from joulie.domain.scheduling.requests import Amounts, InitContainer, effective_requests, pod_amounts
from joulie.domain.scheduling.scores import NOTHING, NodeAmounts, PodAmounts, default_scores
from joulie.domain.units import IntArray
from joulie_lab.fakes.kubernetes.kinds import Json

_UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
AFFINITY_WEIGHT = 2
"""Of preferred node affinity against LeastAllocated's 1, as in kube-scheduler's default profile."""


@dataclass(frozen=True)
class PodRequest:
    """What placement needs of a pod.

    Attributes:
        requests: what it requests of each resource, itself as one of ``pods`` included.
        scored: CPU and memory of it.
        rules: which nodes it may run on.
        preferred: pairs of weight and node selector term.
    """

    requests: Amounts
    scored: PodAmounts
    rules: NodeRules
    preferred: tuple[tuple[int, Term], ...]

    @classmethod
    def of(cls, pod: Json) -> PodRequest:
        """Read a pod.

        Raises:
            ValueError: it has a quantity or an affinity that the API server would refuse.
        """
        spec = pod["spec"]
        affinity = spec.get("affinity") or {}
        rules = NodeRules.parse(spec.get("nodeSelector") or {}, affinity)
        tolerations = msgspec.convert(spec.get("tolerations") or (), tuple[Toleration, ...])
        preferred = (affinity.get("nodeAffinity") or {}).get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        requests = pod_amounts(
            [_requested(one) for one in spec.get("containers", ())],
            [
                InitContainer(_requested(one), one.get("restartPolicy") == "Always")
                for one in spec.get("initContainers", ())
            ],
            _requested(spec),
            _amounts(spec.get("overhead") or {}),
        )
        return cls(
            requests | {"pods": 1.0},
            _scored(requests),
            rules._replace(tolerations=tolerations),
            tuple((one["weight"], Term.parse(one["preference"])) for one in preferred),
        )


@dataclass
class NodeState:
    """What placement needs of a node; `free`, `requested` and `counted` follow the pods on it.

    Attributes:
        name: of the node.
        labels: of the node.
        taints: of the node.
        unschedulable: whether it is cordoned.
        allocatable: CPU and memory that pods can request.
        free: what pods have not requested of each resource.
        requested: CPU and memory that pods request.
        counted: the same, with defaults for requests that are missing.
    """

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool
    allocatable: PodAmounts
    free: Amounts
    requested: PodAmounts = NOTHING
    counted: PodAmounts = NOTHING

    @classmethod
    def of(cls, node: Json) -> NodeState:
        """Read a node, without pods."""
        spec = node.get("spec") or {}
        allocatable = _amounts((node.get("status") or {}).get("allocatable") or {})
        return cls(
            node["metadata"]["name"],
            node["metadata"].get("labels") or {},
            msgspec.convert(spec.get("taints") or (), tuple[Taint, ...]),
            bool(spec.get("unschedulable")),
            _scored(allocatable),
            allocatable,
        )

    def add(self, pod: PodRequest, sign: int = 1) -> None:
        """A pod came, or with sign -1 went."""
        for name, amount in pod.requests.items():
            self.free[name] = self.free.get(name, 0.0) - sign * amount
        self.requested = self.requested.plus(pod.scored, sign)
        self.counted = self.counted.plus(pod.scored.nonzero_requests(), sign)


def obstacle(pod: PodRequest, node: NodeState) -> str | None:
    """Why the pod cannot run on the node, in kube-scheduler's words; None if it can."""
    if node.unschedulable and not pod.rules.tolerates((_UNSCHEDULABLE,)):
        return "node(s) were unschedulable"
    if not pod.rules.tolerates(node.taints):
        return "node(s) had untolerated taint(s)"
    if not pod.rules.admits(node.labels, node.name):
        return "node(s) didn't match Pod's node affinity/selector"
    for name, amount in pod.requests.items():
        # With slack for the rounding of sums of tenths.
        if amount > node.free.get(name, 0.0) + 1e-9 * amount:
            return "Too many pods" if name == "pods" else f"Insufficient {name}"
    return None


def scores(pod: PodRequest, nodes: Sequence[NodeState]) -> IntArray:
    """The plugins' scores of nodes, shape ``(n_nodes,)``."""
    found = default_scores(
        pod.scored,
        _columns(node.requested for node in nodes),
        _columns(node.counted for node in nodes),
        _columns(node.allocatable for node in nodes),
    )
    if not pod.preferred:
        return found
    preference = np.array(
        [sum(weight for weight, term in pod.preferred if term.matches(node.labels, node.name)) for node in nodes]
    )
    return np.asarray(found + AFFINITY_WEIGHT * (preference * 100 // (preference.max() or 1)))


def nodes_to_find(count: int) -> int:
    """How many feasible nodes kube-scheduler looks for among `count` before it stops (percentageOfNodesToScore 0)."""
    if count < 100:
        return count
    return max(100, count * max(5, 50 - count // 125) // 100)


def _requested(owner: Json) -> Amounts:
    """What a container, or a pod as a whole, requests."""
    resources = owner.get("resources") or {}
    return _amounts(effective_requests(resources.get("requests") or {}, resources.get("limits") or {}))


def _amounts(quantities: Mapping[str, str]) -> Amounts:
    return {name: parse_quantity(text) for name, text in quantities.items()}


def _scored(amounts: Amounts) -> PodAmounts:
    return PodAmounts(round(amounts.get("cpu", 0.0) * 1000.0), round(amounts.get("memory", 0.0)))


def _columns(rows: Iterable[PodAmounts]) -> NodeAmounts:
    return NodeAmounts(*np.array(list(rows), dtype=np.int64).T)
