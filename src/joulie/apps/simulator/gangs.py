"""Gangs on a cluster whose scheduler places pods one by one: a gang's pods are held back until all of them fit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from joulie.apps.simulator.trace_player import JobRecord, JobState
from joulie.domain.trace import GPU_RESOURCE_VENDORS
from joulie.simulation.live.gangs import Member, Room, fits_together

_THERE = frozenset({JobState.SUBMITTED, JobState.RUNNING, JobState.COMPLETED})


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

    def admits(self, record: JobRecord) -> bool:
        """Whether a job's pod may use the node, if there is room."""
        job = record.job
        right_class = self.full_power or record.workload_class != "performance"
        right_gpus = not job.shape.gpus or self.gpu_resource == job.shape.gpu_resource
        return right_class and right_gpus and job.node_rules.admits(self.labels, self.name)


class Used(NamedTuple):
    """What a pod takes of its node."""

    node: str
    cores: float
    memory_gib: float
    gpus: float


class GangGate:
    """Lets one gang go at a time, in order of submission: two halves of gangs cannot wait for each other."""

    def __init__(self, gangs: Mapping[str, Sequence[JobRecord]]) -> None:
        """Hold back all pods of these gangs.

        Args:
            gangs: members by gang, in order of submission.
        """
        self._gangs = gangs
        self._last: Sequence[JobRecord] = ()

    def next(self, nodes: Collection[Capacity], used: Iterable[Used]) -> list[JobRecord]:
        """The held pods of the gang that can go now; empty where none can.

        Args:
            nodes: of the cluster.
            used: what pods take of them.
        """
        if any(record.state is JobState.SUBMITTED for record in self._last):
            # A pod that could not be let go just now is tried again.
            return [record for record in self._last if record.held]
        waiting = [members for members in self._gangs.values() if _is_complete(members)]
        if not waiting:
            return []
        free = _room(nodes, used)
        for members in waiting:
            held = [record for record in members if record.held]
            if fits_together(free, [_member(record, nodes) for record in held]):
                self._last = members
                return held
        return []


def _is_complete(members: Sequence[JobRecord]) -> bool:
    """Whether all members of a gang are there, and some of them are held back."""
    return any(record.held for record in members) and all(record.state in _THERE for record in members)


def _member(record: JobRecord, nodes: Collection[Capacity]) -> Member:
    allowed = np.fromiter((node.admits(record) for node in nodes), dtype=np.bool_, count=len(nodes))
    return Member(record.job.shape, allowed)


def _room(nodes: Collection[Capacity], used: Iterable[Used]) -> Room:
    index = {node.name: position for position, node in enumerate(nodes)}
    amounts = [(node.cores, node.memory_gib, node.gpus, node.pods) for node in nodes]
    free = np.array(amounts, dtype=np.float64).reshape(-1, 4)
    for pod in used:
        if pod.node in index:
            free[index[pod.node]] -= (pod.cores, pod.memory_gib, pod.gpus, 1.0)
    return Room(*free.T)
