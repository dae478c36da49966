"""Schedulers by name: each chooses one of the feasible nodes for a pod."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from joulie.domain.marginal import (
    GPU_COEFFICIENT_PERFORMANCE,
    GPU_COEFFICIENT_STANDARD,
    FullLoad,
    cpu_max_or_fallback_w,
    gpu_max_or_fallback_w,
)
from joulie.domain.scheduling.scores import default_scores, with_extender
from joulie.domain.scoring.extender import NodeClass, TwinView, wire_score
from joulie.domain.scoring.marginal_energy import ScoringAim, node_scores
from joulie.domain.units import FloatArray, IntArray
from joulie_lab.simulation.native.capacity import NodeCapacity
from joulie_lab.simulation.native.kinds import KindTable
from joulie_lab.simulation.native.nodes import SimNode
from joulie_lab.simulation.native.placement_kernels import best_nodes
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


ExtenderTerms = tuple[FloatArray, FloatArray, FloatArray]
"""Arguments of compiled loops for an extender's score: of the pod, of the nodes at full load, and of their twins."""
_NO_TERMS: ExtenderTerms = (np.zeros(8), np.zeros((3, 0)), np.zeros((9, 0)))


def compiled_scheduler(plain: Scheduler, capacity: NodeCapacity, kinds: KindTable) -> CompiledKubeScheduler | None:
    """A scheduler by compiled loops; None where there are none for it."""
    if isinstance(plain, _KubeScheduler) and plain.compilable:
        return CompiledKubeScheduler(plain, capacity, kinds)
    return None


class _KubeScheduler:
    """kube-scheduler with its default plugins; all nodes that fit are scored (percentageOfNodesToScore 100)."""

    def __init__(self, capacity: NodeCapacity, rng: np.random.Generator) -> None:
        self._capacity = capacity
        self.rng = rng
        self.compilable = True

    def extender_terms(self, pod: SimPod) -> ExtenderTerms:
        """What an extender's score follows from, as compiled loops take it."""
        del pod
        return _NO_TERMS

    def choose(self, pod: SimPod, candidates: IntArray) -> int:
        """Choose the node with the highest score; ties are broken at random."""
        if len(candidates) == 1:
            return int(candidates[0])
        scores = self._scores(pod, candidates)
        best = candidates[scores == scores.max()]
        return int(best[self.rng.integers(len(best))])

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
        self.scoring = scoring
        self._view: TwinView | None = None
        self._cache: dict[object, IntArray] = {}
        self._terms_of: TwinView | None = None
        self._terms = _NO_TERMS[2]
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
        self._loads = np.stack([self._full_load.cpu_max_w, self._full_load.cores, self._full_load.gpu_max_w])

    def wire_scores(self, pod: SimPod) -> IntArray:
        """Score of each node as sent to kube-scheduler, 0..10, shape ``(n_nodes,)``."""
        view = self._twins()
        if view is not self._view:
            self._view, self._cache = view, {}
        key = (pod.view, pod.requests)
        if key not in self._cache:
            scores = node_scores(self.scoring, pod.view, pod.requests, view, self._full_load)
            self._cache[key] = wire_score(scores)
        return self._cache[key]

    def terms(self, pod: SimPod) -> ExtenderTerms:
        """See `ExtenderTerms`."""
        view = self._twins()
        if view is not self._terms_of:
            draining = view.node_class == NodeClass.DRAINING
            self._terms_of, self._terms = view, np.stack([*view.counted, view.fresh, draining]).astype(np.float64)
        requests, own = pod.requests, pod.view
        coefficient = GPU_COEFFICIENT_PERFORMANCE if own.performance else GPU_COEFFICIENT_STANDARD
        asked = (requests.cores, requests.memory_gib, requests.gpus, coefficient)
        points = (own.cpu_sensitivity, own.gpu_sensitivity, own.reschedulable is False)
        return np.array([*asked, not own.performance, *points], dtype=np.float64), self._loads, self._terms


class _KubeSchedulerWithExtender(_KubeScheduler):
    def __init__(self, capacity: NodeCapacity, rng: np.random.Generator, extender: _Extender) -> None:
        super().__init__(capacity, rng)
        self._extender = extender
        self.compilable = extender.scoring is ScoringAim.HEADROOM

    def extender_terms(self, pod: SimPod) -> ExtenderTerms:
        """See `_KubeScheduler.extender_terms`."""
        return self._extender.terms(pod)

    def _scores(self, pod: SimPod, candidates: IntArray) -> IntArray:
        return with_extender(super()._scores(pod, candidates), self._extender.wire_scores(pod)[candidates])


class CompiledKubeScheduler:
    """kube-scheduler as `_KubeScheduler` has it, by one compiled pass over the nodes.

    Args:
        plain: the scheduler.
        capacity: capacity of the nodes.
        kinds: the kinds of pods.
    """

    def __init__(self, plain: _KubeScheduler, capacity: NodeCapacity, kinds: KindTable) -> None:
        self._plain = plain
        self._capacity = capacity
        self._kinds = kinds
        self._best: IntArray = np.zeros(len(capacity.pods), dtype=np.int64)

    def choose(self, pod: SimPod) -> int | None:
        """Choose the feasible node with the highest score, ties at random; None if no node is feasible."""
        capacity, row = self._capacity, self._kinds.row(pod.kind)
        feasible, count = best_nodes(
            self._kinds.needs[row],
            self._kinds.usable,
            capacity.sizes,
            capacity.used,
            capacity.nonzero_used,
            capacity.pods,
            capacity.free_gpus,
            capacity.max_free_milli,
            *self._plain.extender_terms(pod),
            self._best,
        )
        if feasible <= 1:
            return int(self._best[0]) if feasible else None
        return int(self._best[self._plain.rng.integers(count)])


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
