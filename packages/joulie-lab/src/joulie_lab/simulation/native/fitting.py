"""Finds jobs and gangs that would not fit even an empty cluster, and says why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np

from joulie.domain.scheduling.node_rules import NodeRules
from joulie.domain.scheduling.scores import NodeAmounts
from joulie.domain.units import BoolArray, IntArray
from joulie_lab.simulation.gangs import FreeCapacity, GangFit, PodKind, by_kind, whole_gpus
from joulie_lab.simulation.native.nodes import MAX_PODS, SimNode
from joulie_lab.simulation.trace import JobShape, TraceJob

CHANGING_LABELS = frozenset({"joulie.io/power-profile", "joulie.io/draining", "joulie.io/reserved"})
"""Labels that Joulie changes at run time: a node may get any value of them, so rules on them are ignored."""
_ROUNDING = 1e-9


class EmptyCluster:
    """A cluster on which nothing runs.

    Args:
        nodes: nodes of the cluster.
        share_gpus: whether pods that need a share of a GPU share it; if not, each gets a whole GPU.
    """

    def __init__(self, nodes: Sequence[SimNode], *, share_gpus: bool = False) -> None:
        self._nodes = nodes
        self._share_gpus = share_gpus
        self._cores = np.array([node.spec.cores for node in nodes], dtype=np.float64)
        self._memory_gib = np.array([node.memory_gib for node in nodes], dtype=np.float64)
        self._gpus = np.array([node.spec.gpus for node in nodes], dtype=np.float64)
        self._resource = np.array([node.gpu_resource for node in nodes], dtype=np.str_)
        hardware = list(zip(self._cores, self._memory_gib, self._gpus, self._resource, strict=True))
        distinct = {one: place for place, one in enumerate(dict.fromkeys(hardware))}
        self._sort: IntArray = np.array([distinct[one] for one in hardware], dtype=np.int64)
        self._example: IntArray = np.unique(self._sort, return_index=True)[1]
        self._numbers: dict[NodeRules, IntArray] = {}
        self._admitted: dict[NodeRules, BoolArray] = {}
        self._hosts: dict[tuple[JobShape, NodeRules], int] = {}
        self._problems: dict[tuple[JobShape, NodeRules], str | None] = {}

    def never_fits(self, job: TraceJob) -> str | None:
        """Why no node could ever hold a job; None if one could.

        Raises:
            ValueError: its requests or affinity are invalid; jobs read from a file have been checked.
        """
        key = (job.shape, job.node_rules)
        if key not in self._problems:
            self._problems[key] = self._problem(*key)
        return self._problems[key]

    def gang_never_fits(self, members: Sequence[TraceJob]) -> str | None:
        """Why the cluster could never hold all members of a gang at once; None if it could.

        The gang gate uses the same search: a gang for which it finds no assignment here would wait there for ever.
        """
        for member in members:
            if problem := self.never_fits(member):
                return f"gang {member.workload_id}: {member.role or 'member'}: {problem}"
        # Each member could have a node of its own: then the search below finds nodes, and need not look.
        if all(self._hosts[member.shape, member.node_rules] >= len(members) for member in members):
            return None
        kinds = by_kind(
            members, lambda member: PodKind.from_shape(member.shape, member.node_rules, share_gpus=self._share_gpus)
        )
        if self._gang_fit.assign(kinds) is not None:
            return None
        return (
            f"gang {members[0].workload_id}: its {len(members)} members request"
            f" {_total([member.shape for member in members])}; they do not fit even the empty cluster at once"
        )

    def _problem(self, shape: JobShape, rules: NodeRules) -> str | None:
        # Thousands of nodes are a few sorts of hardware.
        numbers, sorts = self._of_sort(rules), self._example
        has_resource = self._resource[sorts] == shape.gpu_resource
        gpus = np.where(has_resource, self._gpus[sorts], 0.0)
        cores, memory_gib = self._cores[sorts], self._memory_gib[sorts]
        fitting = (cores >= shape.cores - _ROUNDING) & (memory_gib >= shape.memory_gib - _ROUNDING)
        hosts = self._hosts[shape, rules] = int(numbers[fitting & (gpus >= shape.gpus)].sum())
        if hosts:
            return None
        nodes = numbers > 0
        if not nodes.any():
            return "no node has the labels that its node selector or affinity requires"
        if shape.gpus and not (nodes & has_resource).any():
            return f"no node {'that it may use ' * (not rules.unrestricted)}has {shape.gpu_resource}"
        requests = (("cores", shape.cores, cores), ("GiB", shape.memory_gib, memory_gib))
        for unit, amount, capacity in (*requests, ("GPUs", float(shape.gpus), gpus)):
            if not (nodes & (capacity >= amount - _ROUNDING)).any():
                return f"requests {amount:g} {unit}; the largest node that it may use has {capacity[nodes].max():g}"
        return f"requests {_total([shape])}; no node that it may use has all of it"

    def _of_sort(self, rules: NodeRules) -> IntArray:
        """Number of admitted nodes of each sort of hardware."""
        if rules not in self._numbers:
            self._numbers[rules] = np.bincount(self._sort[self._admits(rules)], minlength=len(self._example))
        return self._numbers[rules]

    def _allowed(self, kind: PodKind) -> BoolArray:
        """Nodes that a member of a gang may use, by their labels and the extended resource of their GPUs."""
        admitted = self._admits(kind.rules)
        return admitted & (self._resource == kind.gpu_resource) if kind.gpus else admitted

    @cached_property
    def _gang_fit(self) -> GangFit:
        free = FreeCapacity(
            *NodeAmounts.of(self._cores, self._memory_gib),
            gpu_milli=whole_gpus(self._gpus.astype(np.int64)),
            pods=np.full(len(self._nodes), MAX_PODS),
        )
        return GangFit(free, self._allowed)

    def _admits(self, rules: NodeRules) -> BoolArray:
        if rules not in self._admitted:
            fits = [rules.admits(node.labels, node.name, ignoring=CHANGING_LABELS.__contains__) for node in self._nodes]
            self._admitted[rules] = np.array(fits, dtype=np.bool_)
        return self._admitted[rules]


def unfit(jobs: Iterable[TraceJob], nodes: Sequence[SimNode]) -> Iterator[tuple[TraceJob, str]]:
    """Jobs that a cluster could never run, and why; all members of a gang if the gang does not fit."""
    cluster = EmptyCluster(nodes)
    gangs: defaultdict[str, list[TraceJob]] = defaultdict(list)
    for job in jobs:
        if job.gang:
            gangs[job.workload_id].append(job)
        elif problem := cluster.never_fits(job):
            yield job, problem
    for members in gangs.values():
        if problem := cluster.gang_never_fits(members):
            yield from ((member, problem) for member in members)


def _total(shapes: Sequence[JobShape]) -> str:
    """Sum of the requests, in words."""
    cores, gib = sum(shape.cores for shape in shapes), sum(shape.memory_gib for shape in shapes)
    gpus = sum(shape.gpus for shape in shapes)
    return f"{cores:g} cores, {gib:g} GiB" + (f" and {gpus} GPUs" if gpus else "")
