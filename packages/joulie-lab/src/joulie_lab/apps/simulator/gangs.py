"""Gangs on a cluster whose scheduler places pods one by one: a gang's pods are held back until all of them fit."""

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
"""How long the gate waits for the scheduler, s of the clock: some of its retries of a pod that found no room."""
_PLACED = frozenset({JobState.RUNNING, JobState.COMPLETED})


@dataclass(frozen=True)
class Capacity:
    """What pods find on a node.

    Attributes:
        name: of the node.
        labels: of the node.
        cores: that pods can request.
        memory_gib: that pods can request, GiB.
        pods: that it takes.
        gpus: that pods can request.
        gpu_resource: by which they are requested; empty without GPUs.
        full_power: whether pods of class performance may use it.
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
    def of(
        cls, name: str, labels: Mapping[str, str], allocatable: Mapping[str, float], *, full_power: bool
    ) -> Capacity:
        """What a node offers by its allocatable resources, in their base units."""
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
        """By which a node selector means this node."""
        return self.labels.get(HOSTNAME_LABEL, self.name)

    def admits(self, kind: PodKind) -> bool:
        """Whether pods may use the node, if there is room."""
        right_class = self.full_power or not kind.performance
        right_gpus = not kind.gpus or self.gpu_resource == kind.gpu_resource
        return right_class and right_gpus and kind.rules.admits(self.labels, self.name)


class Used(NamedTuple):
    """What a pod takes of its node."""

    node: str
    cores: float
    memory_gib: float
    gpus: float


class Release(NamedTuple):
    """A pod that the scheduler may have now.

    Attributes:
        record: its job.
        hostname: of the node that it is bound for; None where the scheduler chooses.
    """

    record: JobRecord
    hostname: str | None


@dataclass(frozen=True)
class Turn:
    """What is to be done now.

    Attributes:
        release: pods to let go, those first that are harder to place.
        stop: pods to take back, for their gang is not whole: they give up their places and wait at the gate again.
    """

    release: tuple[Release, ...] = ()
    stop: tuple[JobRecord, ...] = ()


@dataclass
class _Going:
    """The gang that was let go last.

    Attributes:
        name: of it.
        hostnames: by the id of a job, the node that it is bound for.
        since_s: when it was let go, or the last of its pods found a place.
        placed: how many of them have.
    """

    name: str
    hostnames: Mapping[str, str]
    since_s: float
    placed: int = -1


class GangGate:
    """Lets the gangs go that fit, one at a time, in order of submission.

    One that has not got all its places after a while is stopped, goes to the end of the line and is bound for the seats
    that the gate finds for it next time: the scheduler had its choice.

    Attributes:
        restless: whether it must be asked again though nothing has changed.
    """

    def __init__(self, gangs: Mapping[str, Sequence[JobRecord]]) -> None:
        """Hold back all pods of these gangs.

        Args:
            gangs: members by gang, in order of submission.
        """
        self.restless = False
        self._gangs = dict(gangs)
        self._going: _Going | None = None
        self._bound: set[str] = set()
        self._waited_since_s: dict[str, float] = {}

    def next(self, nodes: Sequence[Capacity], used: Iterable[Used], alone: Iterable[JobRecord], now_s: float) -> Turn:
        """What is to be done now.

        Args:
            nodes: of the cluster.
            used: what pods take of them.
            alone: jobs outside of gangs whose pods the scheduler has, and no node.
            now_s: of the clock.
        """
        self.restless = False
        followed = self._follow(now_s)
        if followed is not None:
            self.restless = True
            return followed
        cluster = _Cluster(nodes, used)
        for name, members in self._gangs.items():
            states = {record.state for record in members}
            held = [record for record in members if record.held]
            if JobState.WAITING in states:
                continue
            if JobState.REFUSED in states:
                _say(held, f"gang {name}: a member of it is refused")
            elif not held:
                continue
            elif (found := cluster.seats(held)) is not None:
                return self._let_go(name, found, cluster, alone, now_s)
            else:
                _say(held, f"gang {name}: no room for {len(held)} members at once")
            if unwhole := _taken_back(members):
                return Turn(stop=unwhole)
        return Turn()

    def _follow(self, now_s: float) -> Turn | None:
        """What the gang that was let go needs; None where no gang is on its way."""
        going = self._going
        if going is None:
            return None
        members = self._gangs[going.name]
        placed = sum(record.state in _PLACED for record in members)
        if placed == len(members):
            self._going = None
            return None
        if placed != going.placed:
            going.placed, going.since_s = placed, now_s
        if now_s - going.since_s < PATIENCE_S:
            # A pod that could not be let go just now is tried again.
            return Turn(release=tuple(_release(record, going.hostnames) for record in members if record.held))
        self._going = None
        self._bound.add(going.name)
        self._gangs[going.name] = self._gangs.pop(going.name)
        return Turn(stop=_taken_back(members))

    def _let_go(
        self,
        name: str,
        found: Sequence[tuple[JobRecord, str]],
        cluster: _Cluster,
        alone: Iterable[JobRecord],
        now_s: float,
    ) -> Turn:
        if self._must_wait(cluster, alone, now_s):
            self.restless = True
            return Turn()
        hostnames = {record.job.job_id: hostname for record, hostname in found} if name in self._bound else {}
        self._going = _Going(name, hostnames, now_s)
        self.restless = True
        return Turn(release=tuple(_release(record, hostnames) for record, _ in found))

    def _must_wait(self, cluster: _Cluster, alone: Iterable[JobRecord], now_s: float) -> bool:
        """Whether the scheduler has yet to place a lone pod that fits: that capacity is reserved for it.

        A pod is waited for once: why it stays outside all the same, the gate need not know.
        """
        waits = [record for record in alone if cluster.has_room(record)]
        known = self._waited_since_s
        self._waited_since_s = {record.pod_key: known.get(record.pod_key, now_s) for record in waits}
        return any(now_s - since_s < PATIENCE_S for since_s in self._waited_since_s.values())


@dataclass
class _Cluster:
    """The cluster of a moment; nothing is worked out before somebody asks."""

    nodes: Sequence[Capacity]
    used: Iterable[Used]

    def seats(self, records: Sequence[JobRecord]) -> list[tuple[JobRecord, str]] | None:
        """A host for each, in the order in which they should be taken; None where not all find one."""
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


def _taken_back(members: Sequence[JobRecord]) -> tuple[JobRecord, ...]:
    """The members that the gate does not hold and that are not done."""
    there = {JobState.SUBMITTED, JobState.RUNNING}
    return tuple(record for record in members if record.state in there and not record.held)


def _say(records: Sequence[JobRecord], problem: str) -> None:
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
    # Of a GPU whose partitions pods have requested nothing is left.
    gpu_milli = whole_gpus(np.floor(gpus).astype(np.int64))
    return FreeCapacity(*NodeAmounts.of(cores, memory_gib), gpu_milli=gpu_milli, pods=pods.astype(np.int64))
