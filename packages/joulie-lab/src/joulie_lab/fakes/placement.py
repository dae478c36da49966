"""Which nodes a pod fits on and how well, as kube-scheduler's default plugins say; without I/O.

Of those plugins: NodeUnschedulable, NodeName, TaintToleration (its filter), NodeAffinity, NodeResourcesFit with
LeastAllocated. Source: k8s.io/kubernetes/pkg/scheduler/framework/plugins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from joulie_lab.fakes.kubernetes.kinds import Json
from joulie_lab.fakes.kubernetes.selectors import requirement

Resources = dict[str, float]

_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([numkMGTPE]|[KMGTPE]i)?")
_FACTORS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3} | {
    letter + suffix: base**power
    for suffix, base in (("", 1000.0), ("i", 1024.0))
    for power, letter in enumerate("KMGTPE", start=1)
}
_LEAST_FOR_SCORING: Resources = {"cpu": 0.1, "memory": 200.0 * 1024**2}
"""What a container that requests nothing counts for in the score."""
_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
AFFINITY_WEIGHT = 2
"""Of preferred node affinity against LeastAllocated's 1, as in kube-scheduler's default profile."""


@lru_cache(maxsize=4096)
def quantity(text: str | float) -> float:
    """A Kubernetes quantity as a number.

    Raises:
        ValueError: it is none.
    """
    if isinstance(text, int | float):
        return float(text)
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no Kubernetes quantity")
    return float(found[1]) * (_FACTORS[found[2]] if found[2] else 1.0)


@dataclass(frozen=True)
class PodRequest:
    """What placement needs of a pod.

    Attributes:
        requests: what it requests of each resource, itself as one of ``pods`` included.
        weighed: CPU and memory as the score counts them.
        selector: its nodeSelector.
        required: required node selector terms, of which one must match; None where it states none.
        preferred: pairs of weight and term.
        tolerations: its tolerations.
    """

    requests: Resources
    weighed: Resources
    selector: Mapping[str, str]
    required: tuple[Json, ...] | None
    preferred: tuple[tuple[int, Json], ...]
    tolerations: tuple[Json, ...]

    @classmethod
    def of(cls, pod: Json) -> PodRequest:
        """Read a pod."""
        spec = pod["spec"]
        affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
        required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
        preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        requests = _pod_resources(spec)
        return cls(
            requests | {"pods": 1.0},
            {name: max(requests.get(name, 0.0), least) for name, least in _LEAST_FOR_SCORING.items()},
            spec.get("nodeSelector") or {},
            tuple(required["nodeSelectorTerms"]) if required else None,
            tuple((term["weight"], term["preference"]) for term in preferred),
            tuple(spec.get("tolerations") or ()),
        )


@dataclass
class NodeState:
    """What placement needs of a node; `free` and `weighed` follow the pods on it."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Json, ...]
    unschedulable: bool
    allocatable: Resources
    free: Resources
    weighed: Resources = field(default_factory=lambda: dict.fromkeys(_LEAST_FOR_SCORING, 0.0))

    @classmethod
    def of(cls, node: Json) -> NodeState:
        """Read a node, without pods."""
        spec = node.get("spec") or {}
        allocatable = _numbers((node.get("status") or {}).get("allocatable") or {})
        return cls(
            node["metadata"]["name"],
            node["metadata"].get("labels") or {},
            tuple(taint for taint in spec.get("taints") or () if taint.get("effect") in _EFFECTS),
            bool(spec.get("unschedulable")),
            allocatable,
            dict(allocatable),
        )

    def add(self, pod: PodRequest, sign: int = 1) -> None:
        """A pod came, or with sign -1 went."""
        for name, amount in pod.requests.items():
            self.free[name] = self.free.get(name, 0.0) - sign * amount
        for name, amount in pod.weighed.items():
            self.weighed[name] += sign * amount


def obstacle(pod: PodRequest, node: NodeState) -> str | None:
    """Why the pod cannot run on the node, in kube-scheduler's words; None if it can."""
    if node.unschedulable and not _tolerates(pod, {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}):
        return "node(s) were unschedulable"
    if node.taints and not all(_tolerates(pod, taint) for taint in node.taints):
        return "node(s) had untolerated taint(s)"
    if pod.selector and any(node.labels.get(key) != value for key, value in pod.selector.items()):
        return "node(s) didn't match Pod's node affinity/selector"
    if pod.required is not None and not any(term_matches(term, node) for term in pod.required):
        return "node(s) didn't match Pod's node affinity/selector"
    for name, amount in pod.requests.items():
        # With slack for the rounding of sums of tenths.
        if amount > node.free.get(name, 0.0) + 1e-9 * amount:
            return "Too many pods" if name == "pods" else f"Insufficient {name}"
    return None


def least_allocated(pod: PodRequest, node: NodeState) -> int:
    """How free the node would be with the pod, 0..100: the mean over CPU and memory."""
    total = counted = 0
    for name, amount in pod.weighed.items():
        if allocatable := node.allocatable.get(name):
            counted += 1
            total += max(0, int((allocatable - node.weighed[name] - amount) * 100.0 / allocatable))
    return total // counted if counted else 0


def preference(pod: PodRequest, node: NodeState) -> int:
    """Sum of the weights of the preferred terms that the node matches."""
    return sum(weight for weight, term in pod.preferred if term_matches(term, node))


def term_matches(term: Mapping[str, Any], node: NodeState) -> bool:
    """Whether a node selector term, whose requirements must all hold, selects the node; an empty one selects none."""
    by_label = term.get("matchExpressions") or ()
    by_field = term.get("matchFields") or ()
    if not by_label and not by_field:
        return False
    fields = {"metadata.name": node.name}
    return all(requirement(part)(node.labels) for part in by_label) and all(
        requirement(part)(fields) for part in by_field
    )


def nodes_to_find(count: int) -> int:
    """How many feasible nodes kube-scheduler looks for among `count` before it stops (percentageOfNodesToScore 0)."""
    if count < 100:
        return count
    return max(100, count * max(5, 50 - count // 125) // 100)


def _tolerates(pod: PodRequest, taint: Mapping[str, Any]) -> bool:
    return any(_matches(toleration, taint) for toleration in pod.tolerations)


def _matches(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    exists = toleration.get("operator", "Equal") == "Exists"
    return exists or (bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", ""))


def _numbers(quantities: Mapping[str, str]) -> Resources:
    return {name: quantity(text) for name, text in quantities.items()}


def _pod_resources(spec: Json) -> Resources:
    """Requests as the scheduler counts them: sidecars run beside the containers, other init containers alone."""
    running = _sum(_container(container) for container in spec.get("containers", ()))
    sidecars: Resources = {}
    most_at_start: Resources = {}
    for container in spec.get("initContainers", ()):
        own = _container(container)
        if container.get("restartPolicy") == "Always":
            sidecars = _sum((sidecars, own))
            running = _sum((running, own))
            own = {}
        most_at_start = _largest(most_at_start, _sum((sidecars, own)))
    return _sum((_largest(running, most_at_start), _numbers(spec.get("overhead") or {})))


def _container(container: Json) -> Resources:
    resources = container.get("resources") or {}
    return _numbers({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _sum(parts: Iterable[Resources]) -> Resources:
    total: Resources = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def _largest(one: Resources, other: Resources) -> Resources:
    return {name: max(one.get(name, 0.0), other.get(name, 0.0)) for name in one.keys() | other.keys()}
