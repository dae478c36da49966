"""Runs a placement policy on the arriving pods of a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulie.domain.scoring.fragmentation import TypicalPods, lean_cpu_milli_per_gpu, typical_pods
from joulie.domain.units import FloatArray, IntArray
from joulie_lab.adapters.published.openb import GPU_POWER, Nodes, Pods
from joulie_lab.benchmarks.gpu_sharing.arrivals import Arrivals, arrivals
from joulie_lab.benchmarks.gpu_sharing.kernel import NOWHERE, Course, Scoring, empty_course, empty_table, place_all
from joulie_lab.benchmarks.gpu_sharing.policies import Policy

GRID_PCT = np.arange(0.0, 131.0)
"""GPU arrived, percent of the cluster's, at which runs are compared."""


@dataclass(frozen=True, eq=False)
class Setup:
    """A cluster and a trace, prepared once for many runs.

    Attributes:
        nodes: the cluster.
        pods: the trace.
        requests: the distinct requests in it.
        request_of: number of each pod's request, shape ``(n_pods,)``.
        typical: the frequent requests.
    """

    nodes: Nodes
    pods: Pods
    requests: Pods
    request_of: IntArray
    typical: TypicalPods

    @classmethod
    def of(cls, nodes: Nodes, pods: Pods) -> Setup:
        """From what was read."""
        table, request_of = np.unique(np.stack(pods, axis=1), axis=0, return_inverse=True)
        requests = Pods(*(np.ascontiguousarray(column) for column in table.T))
        typical = typical_pods(pods.cpu_milli, pods.gpus, pods.gpu_milli, pods.models)
        return cls(nodes, pods, requests, request_of.ravel(), typical)


@dataclass(frozen=True, eq=False)
class Run:
    """Result of a run; arrays are over `GRID_PCT`.

    Attributes:
        allocation_pct: GPU given, percent of the cluster's: at each grid point the mean while the GPU arrived rounds to
            it, as in FGD's published curves.
        power_w: of all nodes, W, likewise.
        all_placed_until_pct: GPU arrived before the first pod that fitted nowhere, or in all, percent.
    """

    allocation_pct: FloatArray
    power_w: FloatArray
    all_placed_until_pct: float


def play(setup: Setup, policy: Policy, seed: int) -> Run:
    """One policy, one seed; the same of both gives the same."""
    nodes, arriving = setup.nodes, arrivals(setup.pods, setup.nodes, seed)
    course = place(setup, policy, arriving)
    capacity = nodes.gpu_milli
    arrived_pct = course.arrived_milli * 100.0 / capacity
    rounded_pct = np.round(arrived_pct)
    first_turned_away = np.argmax(np.append(course.node, NOWHERE) == NOWHERE)
    return Run(
        _by_grid(rounded_pct, course.used_milli * 100.0 / capacity),
        _by_grid(rounded_pct, course.power_w),
        float(np.append(0.0, arrived_pct)[first_turned_away]),
    )


def place(setup: Setup, policy: Policy, arriving: Arrivals) -> Course:
    """Every placement of a run; nodes are numbered in the order that decides between equals."""
    nodes = setup.nodes.of(arriving.node_order)
    limit_w = np.array([power.limit_w for power in GPU_POWER.values()])
    idle_w = np.array([power.idle_w for power in GPU_POWER.values()])
    if policy.order == "watts":
        nodes = nodes.of(np.argsort((limit_w - idle_w)[nodes.model], kind="stable"))
    scoring = Scoring(
        policy.score,
        policy.order == "random",
        policy.power_weight,
        lean_cpu_milli_per_gpu(nodes.cpu_milli, nodes.gpus),
        setup.typical,
        idle_w,
        limit_w,
    )
    requests = setup.request_of[arriving.pods]
    course = empty_course(len(requests))
    place_all(empty_table(nodes, setup.requests, scoring), requests, arriving.draws, course)
    return course


def _by_grid(arrived_pct: FloatArray, values: FloatArray) -> FloatArray:
    """Means of the values whose arrival rounds to each grid point, in between by straight lines."""
    cell = arrived_pct.astype(np.int64)
    counts = np.bincount(cell, minlength=len(GRID_PCT))
    sums = np.bincount(cell, weights=values, minlength=len(GRID_PCT))
    known = counts > 0
    points = np.arange(len(counts))
    return np.asarray(np.interp(GRID_PCT, points[known], sums[known] / counts[known]))
