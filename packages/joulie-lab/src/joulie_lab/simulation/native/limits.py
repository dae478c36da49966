"""Search for the power limit of each workload's GPUs in a native run, by the operator's own functions.

The state machine is `joulie.domain.capping.live.LiveJob`, as in the operator. It knows the pooled response of other
jobs, and the windows that meters show it (`job_course.seen`); the plant's response of the job is not visible to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from joulie.domain.capping.choice import Goal, Hold
from joulie.domain.capping.live import JobGpus, LiveJob, Pace
from joulie.domain.capping.prior import POOLED
from joulie.domain.usage import PodKey
from joulie_lab.simulation.job_course import seen
from joulie_lab.simulation.live.fleet import LiveFleet
from joulie_lab.simulation.native.pods import SimPod

HELD_WINDOW_S = 1800.0
"""Time between two windows of a job whose limit is held, s; the operator measures on without a break."""


@dataclass(frozen=True)
class GpuLimits:
    """Settings of the search.

    Attributes:
        standard: goal for pods that are not of class performance.
        performance: goal for performance pods; None leaves them without limits.
        pace: when a window counts.
    """

    standard: Goal = field(default_factory=Goal)
    performance: Goal | None = None
    pace: Pace = field(default_factory=Pace)


@dataclass
class _Workload:
    """Pods of one workload on GPUs of one model, and their search."""

    key: str
    owner: tuple[str, str]
    goal: Goal
    pods: dict[SimPod, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    live: LiveJob | None = None

    @property
    def devices(self) -> list[tuple[int, int]]:
        """Node and index of each GPU."""
        return [(node, device) for node, devices in self.pods.values() for device in devices]


class LimitSearch:
    """The searches of all running workloads."""

    def __init__(self, settings: GpuLimits, fleet: LiveFleet) -> None:
        self._settings = settings
        self._fleet = fleet
        self._workloads: dict[tuple[str, str], _Workload] = {}
        self._due_s: dict[tuple[str, str], float] = {}
        self._learned_w: dict[tuple[str, str], float] = {}

    @property
    def next_s(self) -> float:
        """Time at which the next window is complete, s; inf if none runs."""
        return min(self._due_s.values(), default=math.inf)

    def start(self, pod: SimPod, node: int, devices: tuple[int, ...], now_s: float) -> None:
        """Begin or go on with the search for a pod's workload."""
        goal = self._settings.performance if pod.view.performance else self._settings.standard
        gpu = self._fleet.specs[node].gpu
        if goal is None or gpu is None or not devices or pod.job.shape.gpu_share < 1.0:
            return
        name = (pod.job.workload_id, gpu.key)
        workload = self._workloads.setdefault(name, _Workload(" ".join(name), (pod.job.known_as, gpu.key), goal))
        workload.pods[pod] = (node, devices)
        self._look(name, workload, now_s)

    def finish(self, pod: SimPod, now_s: float) -> set[int]:
        """Return a pod's GPUs to their own limit. Returns the nodes that this concerns."""
        found = next((name for name, one in self._workloads.items() if pod in one.pods), None)
        if found is None:
            return set()
        workload = self._workloads[found]
        node, devices = workload.pods.pop(pod)
        for device in devices:
            self._fleet.cap_gpus(node, None, device)
        if workload.pods:
            self._look(found, workload, now_s)
        else:
            del self._workloads[found]
            self._due_s.pop(found, None)
        return {node}

    def cycle(self, now_s: float) -> set[int]:
        """Measure the windows that are complete, and set the limits that follow. Returns the nodes with new limits."""
        changed = set()
        for name in [name for name, due_s in self._due_s.items() if due_s <= now_s + 1e-6]:
            workload = self._workloads[name]
            live = workload.live
            assert live is not None
            power_w, progress = self._measured(workload, now_s)
            # Meters show what GPUs count: there is no claim of a program's own.
            workload.live = live.measured(power_w, progress, POOLED, workload.goal, now_s, counted_per_s=progress)
            if workload.live.limit_w != live.limit_w:
                changed |= self._apply(workload)
            if isinstance(workload.live.step, Hold) and not workload.live.problem:
                self._learned_w[workload.owner] = workload.live.step.limit_w
            self._look(name, workload, now_s)
        return changed

    def _measured(self, workload: _Workload, now_s: float) -> tuple[float, float]:
        """Mean power of a GPU, W, and progress over the window, as meters show them."""
        fleet, devices = self._fleet, workload.devices
        shown = seen(workload.key, now_s - self._settings.pace.window_s, now_s)
        power_w = float(np.mean([fleet.gpu_device_w[at] for at in devices]))
        # Pods of a workload wait for each other.
        rate = float(min(fleet.gpu_throughput[at] for at in devices))
        return power_w * shown.power, rate * shown.progress

    def _apply(self, workload: _Workload) -> set[int]:
        live = workload.live
        assert live is not None
        for node, device in workload.devices:
            self._fleet.cap_gpus(node, live.limit_w if live.limited else None, device)
        return {node for node, _ in workload.devices}

    def _look(self, name: tuple[str, str], workload: _Workload, now_s: float) -> None:
        """Follow the workload's pods, and begin the next window."""
        gpus = self._gpus(workload)
        live = workload.live or LiveJob.found(gpus, self._learned_w.get(workload.owner))
        if live.job.gpus != gpus.gpus:
            live = live.observed(gpus, now_s)
        workload.live = live
        self._apply(workload)
        workload.live = live.observed(replace(gpus, in_force_w=live.limit_w), now_s)
        pace = self._settings.pace
        if isinstance(live.step, Hold):
            pace = replace(pace, window_s=HELD_WINDOW_S)
        due_s = workload.live.due_s(pace)
        self._due_s[name] = math.inf if due_s is None else due_s

    def _gpus(self, workload: _Workload) -> JobGpus:
        pods: Mapping[SimPod, PodKey] = {pod: (pod.job.namespace, pod.job.job_id) for pod in workload.pods}
        node = next(iter(workload.pods.values()))[0]
        gpu = self._fleet.specs[node].gpu
        assert gpu is not None
        held = tuple(
            (self._fleet.specs[node].name, str(device), pods[pod])
            for pod, (node, devices) in workload.pods.items()
            for device in devices
        )
        return JobGpus(frozenset(pods.values()), held, gpu.default_w, gpu.cap_range.min_w, None)
