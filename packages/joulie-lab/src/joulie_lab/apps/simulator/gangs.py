"""Gangs on a cluster whose scheduler places pods one by one: a gang's pods are held back until all of them fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from joulie.domain.node_affinity import NodeRules
from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie_lab.apps.simulator.trace_player import JobRecord, JobState
from joulie_lab.simulation.live.gangs import Alike, Room, places, seats, whole_gpus
from joulie_lab.simulation.native.nodes import HOSTNAME_LABEL
from joulie_lab.simulation.trace import GPU_RESOURCE_VENDORS, JobShape

PATIENCE_S = 5.0
"""How long the gate waits for the scheduler, s of the clock: some of its retries of a pod that found no room."""
_PLACED = frozenset({JobState.RUNNING, JobState.COMPLETED})
_BYTES_PER_GIB = 1024**3


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

    def admits(self, shape: JobShape, rules: NodeRules, workload_class: str) -> bool:
        """Whether pods may use the node, if there is room."""
        right_class = self.full_power or workload_class != "performance"
        right_gpus = not shape.gpus or self.gpu_resource == shape.gpu_resource
        return right_class and right_gpus and rules.admits(self.labels, self.name)


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
        if self._owes_room(cluster, alone, now_s):
            self.restless = True
            return Turn()
        hostnames = {record.job.job_id: hostname for record, hostname in found} if name in self._bound else {}
        self._going = _Going(name, hostnames, now_s)
        self.restless = True
        return Turn(release=tuple(_release(record, hostnames) for record, _ in found))

    def _owes_room(self, cluster: _Cluster, alone: Iterable[JobRecord], now_s: float) -> bool:
        """Whether the scheduler has yet to place a pod for which there is room: that room is no gang's.

        A pod is waited for once: why it stays outside all the same, the gate need not know.
        """
        waits = [record for record in alone if cluster.has_room(record)]
        known = self._waited_since_s
        self._waited_since_s = {record.pod_key: known.get(record.pod_key, now_s) for record in waits}
        return any(now_s - since_s < PATIENCE_S for since_s in self._waited_since_s.values())


class _Kind(NamedTuple):
    """What pods have in common that fit the same nodes."""

    shape: JobShape
    rules: NodeRules
    workload_class: str

    @classmethod
    def of(cls, record: JobRecord) -> _Kind:
        return cls(record.job.shape, record.job.node_rules, record.workload_class)


@dataclass
class _Cluster:
    """The cluster of a moment."""

    nodes: Sequence[Capacity]
    used: Iterable[Used]
    _free: Room | None = None
    _allowed: dict[_Kind, BoolArray] = field(default_factory=dict)

    def seats(self, records: Sequence[JobRecord]) -> list[tuple[JobRecord, str]] | None:
        """A host for each, in the order in which they should be taken; None where not all find one."""
        members: dict[_Kind, list[JobRecord]] = {}
        for record in records:
            members.setdefault(_Kind.of(record), []).append(record)
        found = seats(self.free, [self._alike(kind, len(alike)) for kind, alike in members.items()])
        if found is None:
            return None
        members_of = [iter(alike) for alike in members.values()]
        return [(next(members_of[seat.group]), self.nodes[seat.node].hostname) for seat in found]

    def has_room(self, record: JobRecord) -> bool:
        """Whether a pod fits."""
        return bool(places(self.free, self._alike(_Kind.of(record), 1)).any())

    @property
    def free(self) -> Room:
        """What no pod has requested."""
        if self._free is None:
            self._free = _room(self.nodes, self.used)
        return self._free

    def _alike(self, kind: _Kind, number: int) -> Alike:
        if kind not in self._allowed:
            self._allowed[kind] = np.array([node.admits(*kind) for node in self.nodes], dtype=np.bool_)
        return Alike.of(kind.shape, self._allowed[kind], number)


def _release(record: JobRecord, hostnames: Mapping[str, str]) -> Release:
    return Release(record, hostnames.get(record.job.job_id))


def _taken_back(members: Sequence[JobRecord]) -> tuple[JobRecord, ...]:
    """The members that the gate does not hold and that are not done."""
    there = {JobState.SUBMITTED, JobState.RUNNING}
    return tuple(record for record in members if record.state in there and not record.held)


def _say(records: Sequence[JobRecord], problem: str) -> None:
    for record in records:
        record.problem = problem


def _room(nodes: Sequence[Capacity], used: Iterable[Used]) -> Room:
    index = {node.name: position for position, node in enumerate(nodes)}
    amounts = [(node.cores, node.memory_gib, node.gpus, node.pods) for node in nodes]
    free = np.array(amounts, dtype=np.float64).reshape(-1, 4)
    for pod in used:
        if pod.node in index:
            free[index[pod.node]] -= (pod.cores, pod.memory_gib, pod.gpus, 1.0)
    cores, memory_gib, gpus, pods = free.T
    # Whole numbers as Kubernetes counts them: floats would leave a node a millionth short. Of a GPU whose partitions
    # pods have requested nothing is left.
    return Room(
        milli_cpu=_whole(np.rint(cores * 1000.0)),
        memory_bytes=_whole(np.rint(memory_gib * _BYTES_PER_GIB)),
        gpu_milli=whole_gpus(_whole(np.floor(gpus))),
        pods=_whole(pods),
    )


def _whole(amounts: FloatArray) -> IntArray:
    return amounts.astype(np.int64)
