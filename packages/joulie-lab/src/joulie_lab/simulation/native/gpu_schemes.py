"""Limits of GPUs in a native run that are not searched for: fixed, by a node's power, or the best in hindsight.

Baselines of experiments. All schemes, the search included (`joulie_lab.simulation.native.limits`), have one form.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from joulie_lab.simulation.live.fleet import LiveFleet
from joulie_lab.simulation.live.jobs import activity
from joulie_lab.simulation.native.pods import SimPod
from joulie_lab.simulation.polca import next_stage, power_share

PERFORMANCE_SLOWDOWN = 1.02
"""Bound of performance jobs that take part, that of GPU_LIMITS_SLOWDOWN_PERFORMANCE."""
NODE_WIDE_S = 60.0
"""Time between two looks at the power of the nodes, s."""


class GpuScheme(Protocol):
    """Sets limits of GPUs as pods come and go, and when it is due."""

    @property
    def next_s(self) -> float:
        """Time of the next `cycle`, s; inf for none."""
        ...

    def start(self, pod: SimPod, node: int, devices: tuple[int, ...], now_s: float) -> None:
        """A pod starts on GPUs of a node."""
        ...

    def finish(self, pod: SimPod, now_s: float) -> set[int]:
        """A pod is done. Returns the nodes whose limits changed."""
        ...

    def cycle(self, now_s: float) -> set[int]:
        """Do what is due by now. Returns the nodes whose limits changed."""
        ...


class BestLimits:
    """The limit with the minimum energy for the work of each job within a bound of its slowdown: an oracle.

    It reads the plant's own response of each job, which nobody can know before the job has run.
    """

    next_s = math.inf

    def __init__(self, fleet: LiveFleet, standard_slowdown: float, performance_slowdown: float | None) -> None:
        """See `joulie_lab.simulation.native.limits.GpuLimits` for the bounds."""
        self._fleet = fleet
        self._standard, self._performance = standard_slowdown, performance_slowdown
        self._held: dict[SimPod, tuple[int, tuple[int, ...]]] = {}

    def start(self, pod: SimPod, node: int, devices: tuple[int, ...], now_s: float) -> None:
        """Give a pod's GPUs their limit."""
        bound = self._performance if pod.view.performance else self._standard
        gpu = self._fleet.specs[node].gpu
        if bound is None or gpu is None or not devices or pod.job.shape.gpu_share < 1.0:
            return
        limits_w = np.arange(gpu.default_w, gpu.cap_range.min_w - 1e-9, -gpu.default_w / 100.0)
        use = activity(pod.job)
        power_w, rate = self._fleet.gpu_under(
            node, limits_w, util=use.gpu_util, memory_share=use.gpu_memory_share, deviation=use.gpu_deviation
        )
        energy = np.where(rate * bound >= 1.0 - 1e-9, power_w / rate, np.inf)
        self._held[pod] = node, devices
        _limit(self._fleet, node, devices, float(limits_w[int(np.argmin(energy))]))

    def finish(self, pod: SimPod, now_s: float) -> set[int]:
        """Return a pod's GPUs to their own limit."""
        if pod not in self._held:
            return set()
        node, devices = self._held.pop(pod)
        _limit(self._fleet, node, devices, None)
        return {node}

    def cycle(self, now_s: float) -> set[int]:
        """Nothing is ever due."""
        return set()


class NodeWideLimits:
    """One limit for all GPUs of a node, by how near its power is to its peak: POLCA's rule for each node.

    A node that runs a performance pod counts as critical. A node has no breaker of its own in these experiments: the
    rule is what an operator of such nodes may have already.
    """

    def __init__(self, fleet: LiveFleet) -> None:
        self._fleet = fleet
        self._peak_w = fleet.node_peak_w
        self._stage = [0] * len(fleet.specs)
        self._share = [1.0] * len(fleet.specs)
        self._critical: dict[SimPod, int] = {}
        self._due_s = 0.0

    @property
    def next_s(self) -> float:
        """See `GpuScheme`."""
        return self._due_s

    def start(self, pod: SimPod, node: int, devices: tuple[int, ...], now_s: float) -> None:
        """Note where performance pods run."""
        if pod.view.performance:
            self._critical[pod] = node

    def finish(self, pod: SimPod, now_s: float) -> set[int]:
        """Note where performance pods no longer run."""
        self._critical.pop(pod, None)
        return set()

    def cycle(self, now_s: float) -> set[int]:
        """Look at the power of all nodes."""
        if now_s < self._due_s - 1e-6:
            return set()
        self._due_s = now_s + NODE_WIDE_S
        changed, critical = set(), set(self._critical.values())
        for node, load in enumerate((self._fleet.wall_w / self._peak_w).tolist()):
            gpu = self._fleet.specs[node].gpu
            if gpu is None:
                continue
            self._stage[node] = next_stage(load, self._stage[node])
            share = power_share(self._stage[node], critical=node in critical)
            if share != self._share[node]:
                self._share[node] = share
                self._fleet.cap_gpus(node, gpu.cap_range.clamped(share * gpu.default_w))
                changed.add(node)
        return changed


def limit_all(fleet: LiveFleet, percent: float) -> None:
    """Limit every GPU to a share of its default limit, as `nvidia-smi -pl` does."""
    for index, spec in enumerate(fleet.specs):
        if spec.gpu is not None:
            fleet.cap_gpus(index, percent / 100.0 * spec.gpu.default_w)


def _limit(fleet: LiveFleet, node: int, devices: Iterable[int], limit_w: float | None) -> None:
    for device in devices:
        fleet.cap_gpus(node, limit_w, device)
