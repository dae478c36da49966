"""Gang scheduling on top of a scheduler that places pods one by one: a gang's pods stay gated until all of them fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from joulie.domain.scheduling.scores import NodeAmounts
from joulie.domain.units import BoolArray
from joulie_lab.apps.simulator.trace_player import JobRecord, JobState
from joulie_lab.simulation.gangs import FreeCapacity, GangFit, PodKind, by_kind, whole_gpus
from joulie_lab.simulation.native.nodes import HOSTNAME_LABEL
from joulie_lab.simulation.trace import GPU_RESOURCE_VENDORS

PATIENCE_S = 5.0
"""How long the gate waits for the scheduler, s of wall time: a few of its retries of an unschedulable pod."""
_PLACED = frozenset({JobState.RUNNING, JobState.COMPLETED})


@dataclass(frozen=True)
class Capacity:
    """Allocatable resources of a node.

    Attributes:
        name: node name.
        labels: node labels.
        cores: allocatable CPU, cores.
        memory_gib: allocatable memory, GiB.
        pods: maximum number of pods.
        gpus: number of allocatable GPUs.
        gpu_resource: resource name of the GPUs; empty without GPUs.
        full_power: whether pods of class performance may use the node.
    """

    name: str
    labels: Mapping[str, str]
    cores: float
    memory_gib: float
    pods: float
    gpus: float
    gpu_resource: str
    full_power: bool

    @classmethod
    def from_allocatable(
        cls, name: str, labels: Mapping[str, str], allocatable: Mapping[str, float], *, full_power: bool
    ) -> Capacity:
        """Create from a node's allocatable resources in base units."""
        gpu_resource = next((resource for resource in GPU_RESOURCE_VENDORS if allocatable.get(resource, 0.0) > 0.0), "")
        return cls(
            name,
            labels,
            allocatable.get("cpu", 0.0),
            allocatable.get("memory", 0.0) / 1024.0**3,
            allocatable.get("pods", 0.0),
            allocatable.get(gpu_resource, 0.0),
            gpu_resource,
            full_power,
        )

    @property
    def hostname(self) -> str:
        """Value of the hostname label, by which a node selector selects this node."""
        return self.labels.get(HOSTNAME_LABEL, self.name)

    def admits(self, kind: PodKind) -> bool:
        """Whether pods of a kind may use the node, apart from free capacity."""
        right_class = self.full_power or not kind.performance
        right_gpus = not kind.gpus or self.gpu_resource == kind.gpu_resource
        return right_class and right_gpus and kind.rules.admits(self.labels, self.name)


class Used(NamedTuple):
    """Resources that a pod requests of its node."""

    node: str
    cores: float
    memory_gib: float
    gpus: float


class Release(NamedTuple):
    """A pod to release to the scheduler.

    Attributes:
        record: job of the pod.
        hostname: hostname of the node that the pod is pinned to; None if the scheduler chooses.
    """

    record: JobRecord
    hostname: str | None


@dataclass(frozen=True)
class GateDecision:
    """The gate's next actions.

    Attributes:
        release: pods to release, in order of decreasing difficulty of placement.
        stop: pods to stop because their gang is incomplete: they free their nodes and are gated again.
    """

    release: tuple[Release, ...] = ()
    stop: tuple[JobRecord, ...] = ()


@dataclass
class _ReleasedGang:
    """The gang that was released last.

    Attributes:
        name: name of the gang.
        hostnames: hostname of the node that a job's pod is pinned to, by job id.
        since_s: time of the release, or of the last placement of one of its pods, s.
        placed: number of its pods that have been placed.
    """

    name: str
    hostnames: Mapping[str, str]
    since_s: float
    placed: int = -1


class GangGate:
    """Releases gangs that fit as a whole, one at a time, in order of submission.

    A gang that is not completely placed within `PATIENCE_S` is stopped and requeued last. At its next release, its
    pods are pinned to the nodes that the gate found for them, because the scheduler's own choice did not work out.

    Attributes:
        needs_polling: whether `next` must be called again even if nothing changes.
    """

    def __init__(self, gangs: Mapping[str, Sequence[JobRecord]]) -> None:
        """Gate all pods of the given gangs.

        Args:
            gangs: members by gang, in order of submission.
        """
        self.needs_polling = False
        self._gangs = dict(gangs)
        self._released: _ReleasedGang | None = None
        self._bound: set[str] = set()
        self._waited_since_s: dict[str, float] = {}

    def next(
        self, nodes: Sequence[Capacity], used: Iterable[Used], alone: Iterable[JobRecord], now_s: float
    ) -> GateDecision:
        """Decide the next actions.

        Args:
            nodes: nodes of the cluster.
            used: resources requested by the pods on them.
            alone: jobs outside gangs whose pods wait for the scheduler.
            now_s: wall time, s.
        """
        self.needs_polling = False
        followed = self._follow(now_s)
        if followed is not None:
            self.needs_polling = True
            return followed
        cluster = _Cluster(nodes, used)
        for name, members in self._gangs.items():
            states = {record.state for record in members}
            held = [record for record in members if record.held]
            if JobState.WAITING in states:
                continue
            if JobState.REFUSED in states:
                _set_problem(held, f"gang {name}: the API server refused one of its pods")
            elif not held:
                continue
            elif (found := cluster.seats(held)) is not None:
                return self._release_gang(name, found, cluster, alone, now_s)
            else:
                _set_problem(held, f"gang {name}: not enough free capacity for {len(held)} pods at once")
            if incomplete := _to_stop(members):
                return GateDecision(stop=incomplete)
        return GateDecision()

    def _follow(self, now_s: float) -> GateDecision | None:
        """Actions for the gang that was released last; None if no gang is being placed."""
        released = self._released
        if released is None:
            return None
        members = self._gangs[released.name]
        placed = sum(record.state in _PLACED for record in members)
        if placed == len(members):
            self._released = None
            return None
        if placed != released.placed:
            released.placed, released.since_s = placed, now_s
        if now_s - released.since_s < PATIENCE_S:
            # Retry pods that could not be released.
            return GateDecision(
                release=tuple(_release(record, released.hostnames) for record in members if record.held)
            )
        self._released = None
        self._bound.add(released.name)
        self._gangs[released.name] = self._gangs.pop(released.name)
        return GateDecision(stop=_to_stop(members))

    def _release_gang(
        self,
        name: str,
        found: Sequence[tuple[JobRecord, str]],
        cluster: _Cluster,
        alone: Iterable[JobRecord],
        now_s: float,
    ) -> GateDecision:
        if self._must_wait_for_scheduler(cluster, alone, now_s):
            self.needs_polling = True
            return GateDecision()
        hostnames = {record.job.job_id: hostname for record, hostname in found} if name in self._bound else {}
        self._released = _ReleasedGang(name, hostnames, now_s)
        self.needs_polling = True
        return GateDecision(release=tuple(_release(record, hostnames) for record, _ in found))

    def _must_wait_for_scheduler(self, cluster: _Cluster, alone: Iterable[JobRecord], now_s: float) -> bool:
        """Whether to wait for the scheduler to place a pod outside gangs that fits, since that capacity is reserved.

        The gate waits at most `PATIENCE_S` for each pod, whatever keeps it unscheduled.
        """
        waits = [record for record in alone if cluster.has_room(record)]
        known = self._waited_since_s
        self._waited_since_s = {record.pod_key: known.get(record.pod_key, now_s) for record in waits}
        return any(now_s - since_s < PATIENCE_S for since_s in self._waited_since_s.values())


@dataclass
class _Cluster:
    """A snapshot of the cluster, evaluated lazily."""

    nodes: Sequence[Capacity]
    used: Iterable[Used]

    def seats(self, records: Sequence[JobRecord]) -> list[tuple[JobRecord, str]] | None:
        """A hostname for each job's pod, in placement order; None if not all of them fit."""
        found = self._gang_fit.assign(by_kind(records, _kind_of))
        return None if found is None else [(record, self.nodes[node].hostname) for record, node in found]

    def has_room(self, record: JobRecord) -> bool:
        """Whether a pod fits."""
        return self._gang_fit.max_pods(_kind_of(record)) > 0

    @cached_property
    def _gang_fit(self) -> GangFit:
        return GangFit(_free_capacity(self.nodes, self.used), self._allowed)

    def _allowed(self, kind: PodKind) -> BoolArray:
        return np.array([node.admits(kind) for node in self.nodes], dtype=np.bool_)


def _kind_of(record: JobRecord) -> PodKind:
    job = record.job
    return PodKind.from_shape(job.shape, job.node_rules, performance=record.workload_class == "performance")


def _release(record: JobRecord, hostnames: Mapping[str, str]) -> Release:
    return Release(record, hostnames.get(record.job.job_id))


def _to_stop(members: Sequence[JobRecord]) -> tuple[JobRecord, ...]:
    """The members that are released and not completed."""
    there = {JobState.SUBMITTED, JobState.RUNNING}
    return tuple(record for record in members if record.state in there and not record.held)


def _set_problem(records: Sequence[JobRecord], problem: str) -> None:
    for record in records:
        record.problem = problem


def _free_capacity(nodes: Sequence[Capacity], used: Iterable[Used]) -> FreeCapacity:
    index = {node.name: position for position, node in enumerate(nodes)}
    amounts = [(node.cores, node.memory_gib, node.gpus, node.pods) for node in nodes]
    free = np.array(amounts, dtype=np.float64).reshape(-1, 4)
    for pod in used:
        if pod.node in index:
            free[index[pod.node]] -= (pod.cores, pod.memory_gib, pod.gpus, 1.0)
    cores, memory_gib, gpus, pods = free.T
    # A GPU of which pods have requested partitions counts as fully used.
    gpu_milli = whole_gpus(np.floor(gpus).astype(np.int64))
    return FreeCapacity(*NodeAmounts.of(cores, memory_gib), gpu_milli=gpu_milli, pods=pods.astype(np.int64))
