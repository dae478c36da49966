"""Filters and scores nodes for a pod like kube-scheduler's default plugins; without I/O.

Implemented plugins: NodeUnschedulable, NodeName, TaintToleration (filter only), NodeAffinity, NodeResourcesFit with
LeastAllocated, and NodeResourcesBalancedAllocation. Their logic is in `joulie.domain.scheduling`; this module applies
it to objects of the fake API. Source: k8s.io/kubernetes/pkg/scheduler/framework/plugins.
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
"""Weight of preferred node affinity, relative to 1 for LeastAllocated, as in kube-scheduler's default profile."""


@dataclass(frozen=True)
class PodRequest:
    """The part of a pod that placement uses.

    Attributes:
        requests: requested amount of each resource, including 1 of ``pods``.
        scored: requested CPU and memory used for scoring.
        rules: rules for the nodes that it may run on.
        preferred: preferred node affinity, pairs of weight and node selector term.
    """

    requests: Amounts
    scored: PodAmounts
    rules: NodeRules
    preferred: tuple[tuple[int, Term], ...]

    @classmethod
    def from_object(cls, pod: Json) -> PodRequest:
        """Convert a pod of the fake API.

        Raises:
            ValueError: a quantity or affinity is invalid (the real API server would reject it).
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
    """The part of a node that placement uses; `free`, `requested` and `counted` are updated with the pods on it.

    Attributes:
        name: node name.
        labels: node labels.
        taints: node taints.
        unschedulable: whether the node is cordoned.
        allocatable: allocatable CPU and memory.
        free: free amount of each resource.
        requested: CPU and memory requested by pods.
        counted: as `requested`, with defaults for missing requests.
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
    def from_object(cls, node: Json) -> NodeState:
        """Convert a node of the fake API, without pods."""
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
        """Add a pod to the node, or remove it with sign -1."""
        for name, amount in pod.requests.items():
            self.free[name] = self.free.get(name, 0.0) - sign * amount
        self.requested = self.requested.plus(pod.scored, sign)
        self.counted = self.counted.plus(pod.scored.nonzero_requests(), sign)


def obstacle(pod: PodRequest, node: NodeState) -> str | None:
    """Why the node is infeasible for the pod, in kube-scheduler's wording; None if it is feasible."""
    if node.unschedulable and not pod.rules.tolerates((_UNSCHEDULABLE,)):
        return "node(s) were unschedulable"
    if not pod.rules.tolerates(node.taints):
        return "node(s) had untolerated taint(s)"
    if not pod.rules.admits(node.labels, node.name):
        return "node(s) didn't match Pod's node affinity/selector"
    for name, amount in pod.requests.items():
        # With a tolerance for floating-point rounding of the sums.
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
    """Number of feasible nodes among `count` at which kube-scheduler stops searching (percentageOfNodesToScore 0)."""
    if count < 100:
        return count
    return max(100, count * max(5, 50 - count // 125) // 100)


def _requested(owner: Json) -> Amounts:
    """Effective requests of a container or of a whole pod."""
    resources = owner.get("resources") or {}
    return _amounts(effective_requests(resources.get("requests") or {}, resources.get("limits") or {}))


def _amounts(quantities: Mapping[str, str]) -> Amounts:
    return {name: parse_quantity(text) for name, text in quantities.items()}


def _scored(amounts: Amounts) -> PodAmounts:
    return PodAmounts(round(amounts.get("cpu", 0.0) * 1000.0), round(amounts.get("memory", 0.0)))


def _columns(rows: Iterable[PodAmounts]) -> NodeAmounts:
    return NodeAmounts(*np.array(list(rows), dtype=np.int64).T)
