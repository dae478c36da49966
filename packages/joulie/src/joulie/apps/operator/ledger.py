"""Running sums over all pods of the cluster, updated on each pod or profile change instead of recounted every cycle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import NamedTuple

from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.pods import PodFacts, ProfileFacts
from joulie.adapters.kubernetes.profiles import WorkloadKey
from joulie.domain.policy import MIN_CONFIDENCE, PodPhase

_NO_PROFILE = ProfileFacts()
_MILLI = 1000


class Load(NamedTuple):
    """Requests of a node's running pods; whole numbers, so that adding and subtracting leaves no rounding error."""

    cpu_millicores: int = 0
    milli_gpus: int = 0


NO_LOAD = Load()


class _Share(NamedTuple):
    """Contribution of one pod to the sums."""

    demand: int
    node: str
    blocked: str
    """Node whose drain it blocks; empty for none."""
    lifts_caps: bool
    """Whether it also lifts the caps of that node."""
    load: Load
    priority: int | None = None
    """Value of its PriorityClass, where it counts for its node."""


class PodLedger:
    """Sums over pods: demand for performance nodes, blocking pods and requests by node.

    Args:
        min_confidence: confidence below which a workload's profile counts as a hint only, 0..1.

    Attributes:
        demand: weighted number of performance pods, pending and running, by node; the empty name for those that are
            not bound to one yet.
        blocking: number of pods that block a drain, by node; nodes without any are absent. A pod counts from when a
            node is nominated for it.
        full_power: number of those that must not run under caps, likewise.
        loads: requests of running pods by node; nodes without any are absent.
        priorities: number of bound pods by PriorityClass value, by node; those of DaemonSets do not count.
        invalid_pods: pods with invalid annotations that have not been reported by an event yet.
    """

    def __init__(self, min_confidence: float = MIN_CONFIDENCE) -> None:
        self._min_confidence = min_confidence
        self.demand: dict[str, int] = {}
        self.blocking: dict[str, int] = {}
        self.full_power: dict[str, int] = {}
        self.loads: dict[str, Load] = {}
        self.priorities: dict[str, dict[int, int]] = {}
        self.invalid_pods: dict[Key, PodFacts] = {}
        self._profiles: dict[WorkloadKey, ProfileFacts] = {}
        self._pods: dict[WorkloadKey, dict[Key, PodFacts]] = defaultdict(dict)

    @property
    def workloads(self) -> Mapping[WorkloadKey, Mapping[Key, PodFacts]]:
        """A live view of all pods by workload; workloads without pods are absent."""
        return MappingProxyType(self._pods)

    def performance_demand(self, nodes: Container[str]) -> int:
        """Weighted number of the performance pods that are bound to one of these nodes, or to none yet."""
        return sum(count for node, count in self.demand.items() if not node or node in nodes)

    def pod_changed(self, key: Key, old: PodFacts | None, new: PodFacts | None) -> bool:
        """Update the sums after a pod changed. Returns whether the demand or a node's blocking pods changed."""
        before = self._share_of(old) if old is not None else None
        after = self._share_of(new) if new is not None else None
        self._index_pod(key, old, new)
        self._add_share(before, -1)
        self._add_share(after, +1)
        return _decision_inputs(before) != _decision_inputs(after)

    def profile_changed(self, owner: WorkloadKey, profile: ProfileFacts | None) -> bool:
        """Update the sums after a workload's profile changed. Returns whether any contribution of its pods changed."""
        pods = list(self._pods.get(owner, {}).values())
        before = [self._share_of(pod) for pod in pods]
        if profile is None:
            self._profiles.pop(owner, None)
        else:
            self._profiles[owner] = profile
        after = [self._share_of(pod) for pod in pods]
        for share in before:
            self._add_share(share, -1)
        for share in after:
            self._add_share(share, +1)
        return before != after

    def _share_of(self, pod: PodFacts) -> _Share:
        profile = self._profiles.get((pod.namespace, pod.owner), _NO_PROFILE) if self._profiles else _NO_PROFILE
        bound = bool(pod.node_name) and pod.phase is not PodPhase.FINISHED
        load = NO_LOAD
        if bound and pod.phase is PodPhase.RUNNING:
            load = Load(round(pod.requests.cpu_cores * _MILLI), round(pod.requests.gpus * _MILLI))
        demand = pod.demand(profile, self._min_confidence)
        place = pod.node_name if bound else _nominated(pod)
        guarded = pod.guarded(profile)
        blocked = place if place and guarded.blocks else ""
        priority = pod.priority if bound and not (pod.daemon or pod.static) else None
        return _Share(demand.weight, pod.node_name, blocked, bool(blocked) and guarded.lifts_caps, load, priority)

    def _index_pod(self, key: Key, old: PodFacts | None, new: PodFacts | None) -> None:
        if old is not None and (new is None or new.owner != old.owner):
            siblings = self._pods[old.namespace, old.owner]
            del siblings[key]
            if not siblings:
                del self._pods[old.namespace, old.owner]
        if new is not None:
            self._pods[new.namespace, new.owner][key] = new
        if new is None:
            self.invalid_pods.pop(key, None)
        elif new.mistakes and (old is None or old.mistakes != new.mistakes):
            self.invalid_pods[key] = new

    def _add_share(self, share: _Share | None, sign: int) -> None:
        if share is None:
            return
        _add(self.demand, share.node, sign * share.demand)
        if share.blocked:
            _add(self.blocking, share.blocked, sign)
        if share.lifts_caps:
            _add(self.full_power, share.blocked, sign)
        if share.priority is not None:
            of_node = self.priorities.setdefault(share.node, {})
            count = of_node.pop(share.priority, 0) + sign
            if count:
                of_node[share.priority] = count
            if not of_node:
                del self.priorities[share.node]
        if share.load != NO_LOAD:
            old = self.loads.pop(share.node, NO_LOAD)
            new = Load(
                old.cpu_millicores + sign * share.load.cpu_millicores, old.milli_gpus + sign * share.load.milli_gpus
            )
            if new != NO_LOAD:
                self.loads[share.node] = new


def _nominated(pod: PodFacts) -> str:
    """The node on which preemption makes room for a pod; empty for a pod that is not going to be bound."""
    waits = pod.phase is PodPhase.PENDING and not pod.node_name and not pod.terminating
    return pod.nominated_node if waits else ""


def _decision_inputs(share: _Share | None) -> tuple[int, str, str, bool]:
    """The part of a contribution that decisions depend on."""
    if share is None:
        return 0, "", "", False
    return share.demand, share.node if share.demand else "", share.blocked, share.lifts_caps


def _add(counts: dict[str, int], key: str, amount: int) -> None:
    count = counts.pop(key, 0) + amount
    if count:
        counts[key] = count
