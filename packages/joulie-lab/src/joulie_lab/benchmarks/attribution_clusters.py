"""Synthetic clusters with known power of pods, sampled like real clusters.

Energy counters wrap, reset and miss reads; CPU times are not sampled at the same time as power; pods start and end, and
some are not measured or unknown; GPUs are used whole, as MIG instances or time-sliced. Power follows Joulie's curves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from joulie.domain.attribution import GpuDevices, GpuHolds, NodePowerParts, PodLoads
from joulie.domain.counters import mean_rate
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.power.cpu import CpuPower
from joulie.domain.power.gpu import natural_power_w
from joulie.domain.signal import Reading
from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie_lab.simulation.job_response import Boundness, activity_factor

STEP_S = 15.0
"""Time between samples, s: the usual scrape interval."""
WRAPS_AT_J = 262_143.328850
"""Range of the energy counter of Intel's packages (``max_energy_range_uj``)."""
PODS_A_NODE = 12
ENDS, STARTS = 0.02, 0.30
"""Chance that a pod ends, and that its place is taken again, a sample."""
RESETS, LOST_READS, UNMEASURED, UNKNOWN_PODS = 0.002, 0.01, 0.02, 0.005
"""Chance a sample: of a node or device, that its counter resets or its read fails; of a pod, that its use was not
measured, and that the operator does not know it (yet)."""
IDLE_MODEL_ERROR = 0.2
"""Largest relative error of the idle power that the hardware model says."""
SOCKETS = 2
CPU_KEYS = ("AMD EPYC 9654", "AMD EPYC 9655", "AMD EPYC 9534", "Intel Xeon Gold 6530")
GPU_KEYS = ("NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL", "NVIDIA L40S")
GPUS_A_NODE = 8
MIG_SLICES = 7
MIG_LAYOUTS = ((3, 2, 1, 1), (4, 3), (2, 2, 3), (1,) * MIG_SLICES)
REPLICAS = 4
"""Pods that a time-sliced GPU is offered to."""


class Sharing(StrEnum):
    """Sharing modes of GPUs."""

    WHOLE = "whole"
    MIG = "mig"
    TIME_SLICED = "time-sliced"


class CpuSample(NamedTuple):
    """Measured values of a cluster, and ground truth that cannot be measured.

    Attributes:
        nodes: measured power of nodes, with the busy cores as work.
        pods: measured busy cores of pods.
        requested_cores: requested cores of each pod.
        busy_in_step: busy cores of the nodes in exactly the interval of their power.
        used_in_step: busy cores of the pods in this interval.
        idle_w: true idle power of the nodes, W.
        true_w: true power of each pod, W.
        saved_w: reduction of the node's power without the pod, W.
        events: number of events by name.
    """

    nodes: NodePowerParts
    pods: PodLoads
    requested_cores: FloatArray
    busy_in_step: FloatArray
    used_in_step: FloatArray
    idle_w: FloatArray
    true_w: FloatArray
    saved_w: FloatArray
    events: Mapping[str, int]


class CpuCluster:
    """CPU nodes with pods that start and end, and the meters of both."""

    def __init__(self, n_nodes: int, rng: np.random.Generator) -> None:
        self._rng = rng
        models = [model for key in CPU_KEYS if (model := BUILTIN_CATALOGUE.cpu(key).model)]
        curves = [CpuPower.of(model, SOCKETS) for model in models]
        kind = rng.integers(len(models), size=n_nodes)
        self._cores = np.array([float(SOCKETS * model.cores_per_socket) for model in models])[kind]
        self._node = np.repeat(np.arange(n_nodes), PODS_A_NODE)
        self._cpu = CpuPower.fleet(curves, kind)
        self._cpu_of_slot = CpuPower.fleet(curves, kind[self._node])
        self._idle_model_w = self._cpu.package_idle_w * _about_one(n_nodes, rng)
        # How long before the power the CPU times were taken: up to a whole sample.
        self._lag = rng.random(n_nodes)
        # Half of the sources do not say where their counters wrap.
        self._meters = [
            _Meter(rng.uniform(0.0, WRAPS_AT_J), WRAPS_AT_J if rng.random() < 0.5 else None, 2.0 * tdp_w)
            for tdp_w in self._cpu.tdp_w.tolist()
        ]
        n_slots = len(self._node)
        self._slots = _Slots(n_slots)
        self._requested, self._mean, self._activity, self._used = np.zeros((4, n_slots))
        self._busy = np.zeros(n_nodes)
        self._time_s = 0.0

    def sample(self) -> CpuSample:
        """Let `STEP_S` pass and measure."""
        used_before, busy_before = self._used, self._busy
        started, events = self._churn()
        self._used = self._requested * self._slots.activity(self._mean, self._rng)
        system_cores = self._cores * self._rng.uniform(0.005, 0.03, len(self._cores))
        self._busy = self._sum(self._used) + system_cores
        # Stalled cores draw less; the system's draw in full.
        work = self._sum(self._used * self._activity) + system_cores
        package_w = _package_w(self._cpu, self._busy / self._cores, work / self._busy)
        power_w, meter_events = self._read(package_w)

        there = self._slots.alive
        node = self._node[there]
        unknown = self._rng.random(len(node)) < UNKNOWN_PODS
        unmeasured = self._rng.random(len(node)) < UNMEASURED
        lag = self._lag[self._node]
        weight = (1.0 - lag) * self._used + lag * np.where(started, 0.0, used_before)
        work_share = self._used * self._activity / work[self._node]
        return CpuSample(
            NodePowerParts(power_w, self._idle_model_w, (1.0 - self._lag) * self._busy + self._lag * busy_before),
            PodLoads(np.where(unknown, -1, node), np.where(unmeasured, np.nan, weight[there])),
            self._requested[there],
            self._busy,
            self._used[there],
            self._cpu.package_idle_w,
            ((package_w - self._cpu.package_idle_w)[self._node] * work_share)[there],
            self._saved_w(package_w, work)[there],
            {**events, "unmeasured": int(unmeasured.sum()), "unknown": int(unknown.sum()), **meter_events},
        )

    def _churn(self) -> tuple[BoolArray, dict[str, int]]:
        """Pods end and start; which started."""
        started, events = self._slots.churn(self._rng)
        rng, n_slots = self._rng, len(started)
        # At most a twelfth of the node each: they always fit.
        requested = self._cores[self._node] * rng.choice([1, 2, 4, 8, 16], n_slots) / (16 * PODS_A_NODE)
        memory, io = rng.dirichlet([1.0, 1.0, 1.0], n_slots).T[:2]
        activity = activity_factor(memory, io, rng.choice(list(Boundness), n_slots))
        self._requested = np.where(started, requested, self._requested)
        self._mean = np.where(started, rng.beta(1.5, 1.5, n_slots), self._mean)
        self._activity = np.where(started, activity, self._activity)
        return started, events

    def _sum(self, of_slots: FloatArray) -> FloatArray:
        """Of each node."""
        return np.asarray(of_slots.reshape(-1, PODS_A_NODE).sum(axis=1))

    def _saved_w(self, package_w: FloatArray, work: FloatArray) -> FloatArray:
        node = self._node
        busy = self._busy[node] - self._used
        activity = (work[node] - self._used * self._activity) / busy
        return np.asarray(package_w[node] - _package_w(self._cpu_of_slot, busy / self._cores[node], activity))

    def _read(self, package_w: FloatArray) -> tuple[FloatArray, dict[str, int]]:
        """What the meters say of each node, W, and what happened to them."""
        self._time_s += STEP_S
        resets = self._rng.random(len(package_w)) < RESETS
        lost = self._rng.random(len(package_w)) < LOST_READS
        wraps = 0
        power_w = np.full(len(package_w), np.nan)
        for index, meter in enumerate(self._meters):
            wraps += meter.count(float(package_w[index]) * STEP_S, reset=bool(resets[index]))
            if not lost[index]:
                power_w[index] = meter.read(self._time_s)
        return power_w, {"wraps": wraps, "resets": int(resets.sum()), "lost_reads": int(lost.sum())}


class GpuSample(NamedTuple):
    """Measured values of GPUs, and ground truth that cannot be measured.

    Attributes:
        devices: measured.
        holds: known, with measured activity.
        node_of_device: index of the node of each device.
        true_w: what each pod draws, W.
        events: what happened, by name.
    """

    devices: GpuDevices
    holds: GpuHolds
    node_of_device: IntArray
    true_w: FloatArray
    events: Mapping[str, int]


class _Part(NamedTuple):
    """What is offered of a device, and the place of the pod that may take it."""

    device: int
    share: float
    place: int


class GpuCluster:
    """GPU nodes with one sharing mode, and pods that start and end."""

    def __init__(self, n_nodes: int, sharing: Sharing, rng: np.random.Generator) -> None:
        self._rng = rng
        self._sharing = sharing
        models = [model for key in GPU_KEYS if (model := BUILTIN_CATALOGUE.gpu(key).model)]
        kind = np.repeat(rng.integers(len(models), size=n_nodes), GPUS_A_NODE)
        self._idle_w = np.array([model.idle_w for model in models])[kind]
        self._max_w = np.array([model.default_w for model in models])[kind]
        self._idle_model_w = self._idle_w * _about_one(len(kind), rng)
        self._node = np.repeat(np.arange(n_nodes), GPUS_A_NODE)
        parts = _parts(n_nodes, sharing, rng)
        self._device = np.array([part.device for part in parts])
        self._share = np.array([part.share for part in parts])
        self._place = np.array([part.place for part in parts])
        n_places = parts[-1].place + 1
        self._slots = _Slots(n_places)
        self._mean, self._memory = np.zeros((2, n_places))

    def sample(self) -> GpuSample:
        """Let time pass and measure."""
        rng, n_devices = self._rng, len(self._node)
        events = self._churn()
        activity_of_place = self._slots.activity(self._mean, rng)
        held = self._slots.alive[self._place]
        device, share, place = self._device[held], self._share[held], self._place[held]
        activity, memory = activity_of_place[place], self._memory[place]
        power_w, drawn_w = self._power(device, share, activity, memory)

        listed = np.flatnonzero(self._slots.alive)
        unknown = rng.random(len(listed)) < UNKNOWN_PODS
        known = listed[~unknown]
        pod_at = np.full(len(self._mean), -1)
        pod_at[known] = np.arange(len(known))
        lost = rng.random(n_devices) < LOST_READS
        # MIG instances have an activity each; pods of a time-sliced device are not told apart.
        unmeasured = (rng.random(n_devices) < UNMEASURED) | (self._sharing is Sharing.TIME_SLICED)
        return GpuSample(
            GpuDevices(np.where(lost, np.nan, power_w), self._idle_model_w),
            GpuHolds(pod_at[place], device, share, np.where(unmeasured[device], np.nan, activity)),
            self._node,
            np.asarray(np.bincount(place, drawn_w, len(self._mean))[known], np.float64),
            {
                **events,
                "lost_reads": int(lost.sum()),
                "unknown": int(unknown.sum()),
                "unheld_devices": n_devices - len(np.unique(device)),
            },
        )

    def _power(
        self, device: IntArray, share: FloatArray, activity: FloatArray, memory: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Power of each device, and what each hold draws of it, W."""
        n_devices = len(self._node)
        work = share * activity
        util = np.bincount(device, work, n_devices)
        memory_share = np.bincount(device, work * memory, n_devices) / np.maximum(util, 1e-12)
        power_w = natural_power_w(self._idle_w, self._max_w, np.minimum(util, 1.0), np.minimum(memory_share, 1.0))
        # Bound by memory, a job draws 0.65 of what one bound by compute does at full use.
        drawing = work * (1.0 - 0.35 * memory)
        of_device = np.maximum(np.bincount(device, drawing, n_devices), 1e-12)
        dynamic_w = (power_w - self._idle_w)[device]
        return power_w, self._idle_w[device] * share + dynamic_w * drawing / of_device[device]

    def _churn(self) -> dict[str, int]:
        """Pods end and start."""
        started, events = self._slots.churn(self._rng)
        self._mean = np.where(started, self._rng.beta(2.0, 1.0, len(started)), self._mean)
        self._memory = np.where(started, self._rng.random(len(started)), self._memory)
        return events


class _Slots:
    """Places for pods: whether they are taken, and how the activity of their pods moves around its mean."""

    def __init__(self, n_slots: int) -> None:
        self.alive = np.zeros(n_slots, dtype=np.bool_)
        self._noise = np.zeros(n_slots)

    def churn(self, rng: np.random.Generator) -> tuple[BoolArray, dict[str, int]]:
        """Pods end and start; which started, and how many."""
        ended = self.alive & (rng.random(len(self.alive)) < ENDS)
        started = ~self.alive & (rng.random(len(self.alive)) < STARTS)
        self.alive = (self.alive & ~ended) | started
        self._noise = np.where(started, 0.0, self._noise)
        return started, {"started": int(started.sum()), "ended": int(ended.sum())}

    def activity(self, mean: FloatArray, rng: np.random.Generator) -> FloatArray:
        """How busy each pod is in the next step, 0..1; 0 where there is none."""
        self._noise = 0.8 * self._noise + rng.normal(0.0, 0.1, len(self._noise))
        return np.where(self.alive, np.clip(mean + self._noise, 0.0, 1.0), 0.0)


class _Meter:
    """An energy counter and whoever reads it."""

    def __init__(self, energy_j: float, says_wraps_at_j: float | None, max_power_w: float) -> None:
        self._energy_j = energy_j
        self._says_wraps_at_j = says_wraps_at_j
        self._max_power_w = max_power_w
        self._last = Reading(0.0, energy_j)

    def count(self, energy_j: float, *, reset: bool) -> bool:
        """Count energy, J; whether the counter wrapped. A reset comes halfway."""
        counted_j = 0.5 * energy_j if reset else self._energy_j + energy_j
        self._energy_j = counted_j % WRAPS_AT_J
        return counted_j >= WRAPS_AT_J

    def read(self, time_s: float) -> float:
        """Mean power since the last read, W; NaN if that cannot be."""
        now = Reading(time_s, self._energy_j)
        power = mean_rate([self._last, now], wraps_at=self._says_wraps_at_j, max_rate=self._max_power_w)
        self._last = now
        return math.nan if power is None else power.value


def _parts(n_nodes: int, sharing: Sharing, rng: np.random.Generator) -> list[_Part]:
    """What a cluster offers of its GPUs. A pod takes one MIG instance or time slice, or up to eight whole GPUs."""
    parts: list[_Part] = []
    for node in range(n_nodes):
        first = parts[-1].place + 1 if parts else 0
        devices = range(node * GPUS_A_NODE, (node + 1) * GPUS_A_NODE)
        if sharing is Sharing.WHOLE:
            gpus_a_pod = int(rng.choice([1, 2, 4, 8]))
            parts += [_Part(device, 1.0, first + index // gpus_a_pod) for index, device in enumerate(devices)]
        else:
            shares = [(device, share) for device in devices for share in _shares(sharing, rng)]
            parts += [_Part(device, share, first + index) for index, (device, share) in enumerate(shares)]
    return parts


def _shares(sharing: Sharing, rng: np.random.Generator) -> list[float]:
    """What one device is divided into."""
    if sharing is Sharing.TIME_SLICED:
        return [1.0 / REPLICAS] * REPLICAS
    return [slices / MIG_SLICES for slices in MIG_LAYOUTS[int(rng.integers(len(MIG_LAYOUTS)))]]


def _package_w(cpu: CpuPower, util: FloatArray, activity: FloatArray) -> FloatArray:
    return cpu.operate(util, activity=activity).package_w


def _about_one(count: int, rng: np.random.Generator) -> FloatArray:
    return rng.uniform(1.0 - IDLE_MODEL_ERROR, 1.0 + IDLE_MODEL_ERROR, count)
