"""Workloads as input of the classifier: live pods, hints from annotations, and the owner of the profile."""

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
"""Kind that controls static (mirror) pods, which belong to their node, not to a workload."""
_STRICTEST_LEVEL = tuple(Level)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Workload:
    """A workload with at least one pod that has not ended.

    Attributes:
        key: namespace, and kind and name.
        pods: its pods that have not ended.
        hints: hints from annotations.
        reference: owner reference for its profile; None if the owner is unknown.
    """

    key: WorkloadKey
    pods: tuple[PodFacts, ...]
    hints: Hints
    reference: OwnerReference | None

    @property
    def running_since_s(self) -> float | None:
        """Start of its longest-running pod, s since the epoch; None if no pod runs."""
        return min((pod.running_since_s for pod in self.pods if pod.running_since_s is not None), default=None)

    @property
    def node_name(self) -> str | None:
        """The node of all its pods; None if they are on several nodes or on none."""
        nodes = {pod.node_name for pod in self.pods}
        return (nodes.pop() or None) if len(nodes) == 1 else None


def workload_of(key: WorkloadKey, pods: Iterable[PodFacts], owner: OwnerFacts | None) -> Workload | None:
    """Build a workload from its pods; None if all of them have ended, and for static pods.

    Args:
        key: namespace and workload.
        pods: all of its pods.
        owner: cached fields of the workload object; None if unknown.
    """
    live = tuple(pod for pod in pods if pod.phase is not PodPhase.FINISHED and not pod.terminating)
    if not live or key[1].kind == _MIRROR:
        return None
    own = Hints() if owner is None else owner.hints
    return Workload(key, live, combined_hints([pod.hints for pod in live], own), _reference(key, live, owner))


def combined_hints(of_pods: Sequence[Hints], of_owner: Hints) -> Hints:
    """Hints of a workload: from its pods' annotations, else from its own.

    If pods differ, as during a rollout, the strictest value wins.
    """
    return Hints(
        _strictest((WorkloadClass.PERFORMANCE, WorkloadClass.STANDARD), [one.workload_class for one in of_pods])
        or of_owner.workload_class,
        _either(_strictest((False, True), [one.reschedulable for one in of_pods]), of_owner.reschedulable),
        _strictest(_STRICTEST_LEVEL, [one.cpu_sensitivity for one in of_pods]) or of_owner.cpu_sensitivity,
        _strictest(_STRICTEST_LEVEL, [one.gpu_sensitivity for one in of_pods]) or of_owner.gpu_sensitivity,
    )


def _strictest(strictest_first: Sequence[_T], values: Sequence[_T | None]) -> _T | None:
    return next((value for value in strictest_first if value in values), None)


def _either(first: _T | None, second: _T | None) -> _T | None:
    return second if first is None else first


def _reference(key: WorkloadKey, pods: Sequence[PodFacts], owner: OwnerFacts | None) -> OwnerReference | None:
    """The profile's owner reference. `blockOwnerDeletion` stays unset: it needs rights on the owner's finalizers."""
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
