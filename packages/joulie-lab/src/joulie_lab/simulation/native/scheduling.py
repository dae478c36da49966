"""Schedulers by name: from the nodes that can hold a pod to one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from joulie.domain.marginal import FullLoad, cpu_max_or_fallback_w, gpu_max_or_fallback_w
from joulie.domain.scheduling.scores import default_scores, with_extender
from joulie.domain.scoring.extender import TwinView, wire_score
from joulie.domain.scoring.marginal_energy import ScoringAim, node_scores
from joulie.domain.units import IntArray
from joulie_lab.simulation.native.capacity import Nodes
from joulie_lab.simulation.native.nodes import SimNode
from joulie_lab.simulation.native.pods import SimPod
from joulie_lab.simulation.placement import Demand, Fleet, Scorer
from joulie_lab.simulation.schedulers import native_scheduler

Twins = Callable[[], TwinView]
"""What the twins say now."""


class Scheduler(Protocol):
    """Chooses among nodes that can hold a pod."""

    def choose(self, pod: SimPod, candidates: IntArray) -> int:
        """The index of the node; `candidates` are indices, at least one."""
        ...


def make_scheduler(
    name: str, nodes: Sequence[SimNode], state: Nodes, twins: Twins, rng: np.random.Generator
) -> Scheduler:
    """The scheduler called `name`.

    Args:
        name: one of `joulie_lab.simulation.schedulers.NATIVE_SCHEDULERS`.
        nodes: the nodes.
        state: what is requested of them.
        twins: what the twins say.
        rng: draws among nodes that are equally good.

    Raises:
        UnknownSchedulerError: no such scheduler.
    """
    named = native_scheduler(name)
    if named.is_kube:
        if named.extender is None:
            return _Kube(state, rng)
        return _WithExtender(state, rng, _Extender(nodes, twins, named.extender))
    if named.scorer is None:
        return _AtRandom(rng)
    return _Published(named.scorer, nodes, state, twins)


class _Kube:
    """kube-scheduler with its default plugins; all nodes that fit are scored (percentageOfNodesToScore 100)."""

    def __init__(self, state: Nodes, rng: np.random.Generator) -> None:
        self._state = state
        self._rng = rng

    def choose(self, pod: SimPod, candidates: IntArray) -> int:
        """The best node; one of the best where there are several."""
        if len(candidates) == 1:
            return int(candidates[0])
        scores = self._scores(pod, candidates)
        best = candidates[scores == scores.max()]
        return int(best[self._rng.integers(len(best))])

    def _scores(self, pod: SimPod, candidates: IntArray) -> IntArray:
        state = self._state
        requested, counted, allocatable = (
            one.at(candidates) for one in (state.requested, state.counted, state.allocatable)
        )
        return default_scores(pod.kind.requests, requested, counted, allocatable)


class _Extender:
    """The score of Joulie's extender, worked out once for pods that are alike while the twins stay."""

    def __init__(self, nodes: Sequence[SimNode], twins: Twins, scoring: ScoringAim) -> None:
        self._twins = twins
        self._scoring = scoring
        self._view: TwinView | None = None
        self._known: dict[object, IntArray] = {}
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

    def wire(self, pod: SimPod) -> IntArray:
        """0..10 of each node."""
        view = self._twins()
        if view is not self._view:
            self._view, self._known = view, {}
        alike = (pod.view, pod.requests)
        if alike not in self._known:
            scores = node_scores(self._scoring, pod.view, pod.requests, view, self._full_load)
            self._known[alike] = wire_score(scores)
        return self._known[alike]


class _WithExtender(_Kube):
    def __init__(self, state: Nodes, rng: np.random.Generator, extender: _Extender) -> None:
        super().__init__(state, rng)
        self._extender = extender

    def _scores(self, pod: SimPod, candidates: IntArray) -> IntArray:
        return with_extender(super()._scores(pod, candidates), self._extender.wire(pod)[candidates])


class _AtRandom:
    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, pod: SimPod, candidates: IntArray) -> int:
        """Any of them."""
        del pod
        return int(candidates[self._rng.integers(len(candidates))])


class _Published:
    """A scheduler of `joulie simulate`: the best by its criteria in lexical order, the first of equals."""

    def __init__(self, scorer: Scorer, nodes: Sequence[SimNode], state: Nodes, twins: Twins) -> None:
        self._scorer = scorer
        self._state = state
        self._twins = twins
        self._cores = np.array([node.spec.cores for node in nodes])
        self._cpu_max_w = np.array([cpu_max_or_fallback_w(node.hardware.cpu_max_w, node.spec.cores) for node in nodes])
        self._gpu_max_w = np.array([node.spec.gpu.default_w if node.spec.gpu else 0.0 for node in nodes])

    def choose(self, pod: SimPod, candidates: IntArray) -> int:
        """The best node."""
        demand = Demand(pod.shape.cores, float(pod.shape.gpus), pod.view.performance)
        for criterion in self._scorer(self._fleet(), demand):
            values = criterion[candidates]
            candidates = candidates[values == values.max()]
        return int(candidates[0])

    def _fleet(self) -> Fleet:
        state, view = self._state, self._twins()
        gpus = state.gpus.astype(np.float64)
        return Fleet(
            cores=self._cores,
            gpus=gpus,
            free_cores=np.maximum(self._cores - state.requested.milli_cpu / 1000.0, 0.0),
            free_gpus=state.free_gpus.astype(np.float64),
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
