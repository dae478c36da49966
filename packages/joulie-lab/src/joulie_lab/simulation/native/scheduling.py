"""Schedulers by name: each chooses one of the feasible nodes for a pod."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from joulie.domain.marginal import FullLoad, cpu_max_or_fallback_w, gpu_max_or_fallback_w
from joulie.domain.scheduling.scores import default_scores, with_extender
from joulie.domain.scoring.extender import TwinView, wire_score
from joulie.domain.scoring.marginal_energy import ScoringAim, node_scores
from joulie.domain.units import IntArray
from joulie_lab.simulation.native.capacity import NodeCapacity
from joulie_lab.simulation.native.nodes import SimNode
from joulie_lab.simulation.native.pods import SimPod
from joulie_lab.simulation.placement import Demand, Fleet, Scorer
from joulie_lab.simulation.schedulers import native_scheduler

Twins = Callable[[], TwinView]
"""Returns the current twins."""


class Scheduler(Protocol):
    """Chooses among the feasible nodes of a pod."""

    def choose(self, pod: SimPod, candidates: IntArray) -> int:
        """Return the index of the chosen node; `candidates` are indices of the feasible nodes, at least one."""
        ...


def make_scheduler(
    name: str, nodes: Sequence[SimNode], capacity: NodeCapacity, twins: Twins, rng: np.random.Generator
) -> Scheduler:
    """Build the scheduler called `name`.

    Args:
        name: one of `joulie_lab.simulation.schedulers.NATIVE_SCHEDULERS`.
        nodes: nodes of the cluster.
        capacity: capacity of the nodes.
        twins: returns the current twins.
        rng: breaks ties between nodes with equal scores.

    Raises:
        UnknownSchedulerError: no scheduler has that name.
    """
    named = native_scheduler(name)
    if named.is_kube:
        if named.extender is None:
            return _KubeScheduler(capacity, rng)
        return _KubeSchedulerWithExtender(capacity, rng, _Extender(nodes, twins, named.extender))
    if named.scorer is None:
        return _RandomScheduler(rng)
    return _PublishedScheduler(named.scorer, nodes, capacity, twins)


class _KubeScheduler:
    """kube-scheduler with its default plugins; all nodes that fit are scored (percentageOfNodesToScore 100)."""

    def __init__(self, capacity: NodeCapacity, rng: np.random.Generator) -> None:
        self._capacity = capacity
        self._rng = rng

    def choose(self, pod: SimPod, candidates: IntArray) -> int:
        """Choose the node with the highest score; ties are broken at random."""
        if len(candidates) == 1:
            return int(candidates[0])
        scores = self._scores(pod, candidates)
        best = candidates[scores == scores.max()]
        return int(best[self._rng.integers(len(best))])

    def _scores(self, pod: SimPod, candidates: IntArray) -> IntArray:
        capacity = self._capacity
        requested, nonzero_requested, allocatable = (
            amounts.at(candidates) for amounts in (capacity.requested, capacity.nonzero_requested, capacity.allocatable)
        )
        return default_scores(pod.kind.requests, requested, nonzero_requested, allocatable)


class _Extender:
    """Scores of Joulie's extender, cached for equal pods until the twins change."""

    def __init__(self, nodes: Sequence[SimNode], twins: Twins, scoring: ScoringAim) -> None:
        self._twins = twins
        self._scoring = scoring
        self._view: TwinView | None = None
        self._cache: dict[object, IntArray] = {}
        hardware = [node.hardware for node in nodes]
        self._full_load = FullLoad(
            cpu_max_w=np.array(
                [
                    cpu_max_or_fallback_w(one.cpu_max_w, node.spec.cores)
                    for one, node in zip(hardware, nodes, strict=True)
                ]
            ),
            cores=np.array([node.spec.cores for node in nodes]),
            gpu_max_w=np.array([_gpu_max_w(node) for node in nodes]),
        )

    def wire_scores(self, pod: SimPod) -> IntArray:
        """Score of each node as sent to kube-scheduler, 0..10, shape ``(n_nodes,)``."""
        view = self._twins()
        if view is not self._view:
            self._view, self._cache = view, {}
        key = (pod.view, pod.requests)
        if key not in self._cache:
            scores = node_scores(self._scoring, pod.view, pod.requests, view, self._full_load)
            self._cache[key] = wire_score(scores)
        return self._cache[key]


class _KubeSchedulerWithExtender(_KubeScheduler):
    def __init__(self, capacity: NodeCapacity, rng: np.random.Generator, extender: _Extender) -> None:
        super().__init__(capacity, rng)
        self._extender = extender

    def _scores(self, pod: SimPod, candidates: IntArray) -> IntArray:
        return with_extender(super()._scores(pod, candidates), self._extender.wire_scores(pod)[candidates])


class _RandomScheduler:
    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, pod: SimPod, candidates: IntArray) -> int:
        """Choose a feasible node at random."""
        del pod
        return int(candidates[self._rng.integers(len(candidates))])


class _PublishedScheduler:
    """A scheduler of `joulie simulate`: compares nodes by its criteria in lexicographic order; first of equals."""

    def __init__(self, scorer: Scorer, nodes: Sequence[SimNode], capacity: NodeCapacity, twins: Twins) -> None:
        self._scorer = scorer
        self._capacity = capacity
        self._twins = twins
        self._cores = np.array([node.spec.cores for node in nodes])
        self._cpu_max_w = np.array([cpu_max_or_fallback_w(node.hardware.cpu_max_w, node.spec.cores) for node in nodes])
        self._gpu_max_w = np.array([node.spec.gpu.default_w if node.spec.gpu else 0.0 for node in nodes])

    def choose(self, pod: SimPod, candidates: IntArray) -> int:
        """Choose the best node; the first of equals."""
        demand = Demand(pod.shape.cores, float(pod.shape.gpus), pod.view.performance)
        for criterion in self._scorer(self._fleet(), demand):
            values = criterion[candidates]
            candidates = candidates[values == values.max()]
        return int(candidates[0])

    def _fleet(self) -> Fleet:
        capacity, view = self._capacity, self._twins()
        gpus = capacity.gpus.astype(np.float64)
        return Fleet(
            cores=self._cores,
            gpus=gpus,
            free_cores=np.maximum(self._cores - capacity.requested.milli_cpu / 1000.0, 0.0),
            free_gpus=capacity.free_gpus.astype(np.float64),
            cpu_max_w=self._cpu_max_w,
            gpu_max_w=self._gpu_max_w,
            measured_w=view.measured_w,
            capped_w=view.capped_w,
            tdp_w=self._cpu_max_w + self._gpu_max_w * gpus,
            trend_w_per_min=view.trend_w_per_min,
            cluster_trend_w_per_min=view.cluster_trend_w_per_min,
        )


def _gpu_max_w(node: SimNode) -> float:
    gpu = node.hardware.gpu
    limits = None if gpu is None else gpu.cap_range
    return gpu_max_or_fallback_w(None if limits is None else limits.base_w, None if gpu is None else gpu.vendor)
