"""Workloads as the classifier sees them: live pods, what people said of them, and what they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from joulie.adapters.kubernetes.api.meta import OwnerReference
from joulie.adapters.kubernetes.pods import PodFacts
from joulie.adapters.kubernetes.profiles import WorkloadKey
from joulie.apps.operator.classifier.owners import OwnerFacts
from joulie.domain.policy import PodPhase, WorkloadClass
from joulie.domain.profiles.profile import Hints
from joulie.domain.workload import Level

_MIRROR = "Node"
"""Kind that controls static pods: they go with their node, not with a workload."""
_STRICTEST_LEVEL = tuple(Level)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Workload:
    """A workload with at least one pod that has not ended.

    Attributes:
        key: its namespace and its kind and name.
        pods: those that have not ended.
        hints: what people said of it.
        reference: to the object that its profile goes with; None where that is not known.
    """

    key: WorkloadKey
    pods: tuple[PodFacts, ...]
    hints: Hints
    reference: OwnerReference | None

    @property
    def running_since_s(self) -> float | None:
        """Since when the first of its pods runs, s since the epoch; None while none does."""
        return min((pod.running_since_s for pod in self.pods if pod.running_since_s is not None), default=None)

    @property
    def node_name(self) -> str | None:
        """The node that all of its pods are on, None where there is no such node."""
        nodes = {pod.node_name for pod in self.pods}
        return (nodes.pop() or None) if len(nodes) == 1 else None


def workload_of(key: WorkloadKey, pods: Iterable[PodFacts], owner: OwnerFacts | None) -> Workload | None:
    """The workload of some pods; None where all of them have ended, and for static pods.

    Args:
        key: namespace and workload.
        pods: all of its pods.
        owner: what is known of the object itself, None where nothing is.
    """
    live = tuple(pod for pod in pods if pod.phase is not PodPhase.FINISHED and not pod.terminating)
    if not live or key[1].kind == _MIRROR:
        return None
    said = Hints() if owner is None else owner.hints
    return Workload(key, live, combined_hints([pod.hints for pod in live], said), _reference(key, live, owner))


def combined_hints(of_pods: Sequence[Hints], of_owner: Hints) -> Hints:
    """What people said of a workload: in its pods' annotations, and where these say nothing, in its own.

    While pods differ, as in a rollout, the strictest counts.
    """
    return Hints(
        _strictest((WorkloadClass.PERFORMANCE, WorkloadClass.STANDARD), [one.workload_class for one in of_pods])
        or of_owner.workload_class,
        _either(_strictest((False, True), [one.reschedulable for one in of_pods]), of_owner.reschedulable),
        _strictest(_STRICTEST_LEVEL, [one.cpu_sensitivity for one in of_pods]) or of_owner.cpu_sensitivity,
        _strictest(_STRICTEST_LEVEL, [one.gpu_sensitivity for one in of_pods]) or of_owner.gpu_sensitivity,
    )


def _strictest(strictest_first: Sequence[_T], said: Sequence[_T | None]) -> _T | None:
    return next((value for value in strictest_first if value in said), None)


def _either(first: _T | None, second: _T | None) -> _T | None:
    return second if first is None else first


def _reference(key: WorkloadKey, pods: Sequence[PodFacts], owner: OwnerFacts | None) -> OwnerReference | None:
    """What the profile goes with. `blockOwnerDeletion` stays unset: it would need rights on the owner's finalizers."""
    kind, name = key[1].kind, key[1].name
    if owner is not None:
        return OwnerReference(api_version=owner.api_version, kind=kind, name=name, uid=owner.uid)
    if kind == "Pod":
        return OwnerReference(api_version="v1", kind=kind, name=name, uid=pods[0].uid)
    for pod in pods:
        found = pod.controller
        if found is not None and (found.kind, found.name) == (kind, name):
            return OwnerReference(api_version=found.api_version, kind=kind, name=name, uid=found.uid)
    return None
