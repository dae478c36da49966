"""Jobs on simulated nodes: the load of their pods, and their progress under the caps in force.

A job's CPU work is counted in core-seconds at the highest clock, its GPU work in uncapped GPU-seconds; a job completes
when both are done. The members of a gang advance only while all of them run. Source: spec, simulator, physics and
workloads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from joulie.domain.quantities import finite_number
from joulie.domain.units import FloatArray, IntArray, non_negative
from joulie_lab.simulation.gpu_response import TYPICAL, JobDeviation, drawn
from joulie_lab.simulation.job_response import Boundness, cpu_throughput
from joulie_lab.simulation.live.fleet import LiveFleet
from joulie_lab.simulation.live.measured_jobs import MeasuredJob
from joulie_lab.simulation.live.nodes import FleetLoad
from joulie_lab.simulation.trace import TraceJob

_WORK_EPSILON = 1e-9
_BOUND = {
    "compute_bound": Boundness.COMPUTE,
    "memory_bound": Boundness.MEMORY,
    "io_bound": Boundness.IO,
    "mixed": Boundness.MIXED,
}
_GPU_MEMORY_SHARE = {"compute_bound": 0.0, "memory_bound": 1.0, "bandwidth_bound": 1.0, "mixed": 0.5}


@dataclass(frozen=True)
class Activity:
    """How a pod uses the resources that it requested.

    Attributes:
        cpu_util: utilisation of its cores, 0..1.
        gpu_util: utilisation of its GPUs, 0..1.
        memory_intensity: memory intensity of its CPU work, 0..1.
        io_intensity: I/O intensity of its CPU work, 0..1.
        cpu_feed: how much its GPU work depends on its CPU work, 0..1.
        cpu_bound: what bounds its CPU work.
        gpu_memory_share: share of its GPU work that is memory-bound, 0..1.
        gpu_deviation: how its GPU work responds to a power limit.
    """

    cpu_util: float = 0.5
    gpu_util: float = 0.0
    memory_intensity: float = 0.0
    io_intensity: float = 0.0
    cpu_feed: float = 0.0
    cpu_bound: Boundness = Boundness.MIXED
    gpu_memory_share: float = 0.0
    gpu_deviation: JobDeviation = TYPICAL

    def __post_init__(self) -> None:
        for name in ("cpu_util", "gpu_util", "memory_intensity", "io_intensity", "cpu_feed", "gpu_memory_share"):
            finite_number(name, getattr(self, name), minimum=0.0, maximum=1.0)


def activity(job: TraceJob) -> Activity:
    """Activity of a job of a trace."""
    profile = job.profile
    return Activity(
        cpu_util=profile.cpu_utilization,
        gpu_util=profile.gpu_utilization * job.shape.gpu_share,
        memory_intensity=profile.memory_intensity,
        io_intensity=profile.io_intensity,
        cpu_feed=profile.cpu_feed_intensity_gpu,
        cpu_bound=_BOUND[job.cpu_class],
        gpu_memory_share=_GPU_MEMORY_SHARE[job.gpu_class],
        # Traces with other seeds have other profiles, so the key tells workloads of the same name apart.
        gpu_deviation=drawn(f"{job.known_as} {profile}") if job.shape.gpus else TYPICAL,
    )


@dataclass(frozen=True)
class Work:
    """Remaining work of a job: core-seconds at the highest clock, and uncapped GPU-seconds."""

    cpu_units: float
    gpu_units: float

    def __post_init__(self) -> None:
        non_negative("cpu_units", self.cpu_units)
        non_negative("gpu_units", self.gpu_units)


_NO_WORK = Work(0.0, 0.0)


@dataclass(frozen=True)
class RunningPod:
    """A pod on a node.

    Attributes:
        key: pod key, unique.
        node: name of its node.
        cores: requested cores.
        gpus: requested GPUs.
        activity: how it uses them.
        work: remaining work of its job; None for a pod that runs without end.
        gang: name of the gang that it belongs to; None outside of any.
        gang_size: number of members of the gang.
        gpu_job: its GPU's response of its own; None where it responds as the GPU model does.
    """

    key: str
    node: str
    cores: float
    gpus: float
    activity: Activity
    work: Work | None = None
    gang: str | None = None
    gang_size: int = 1
    gpu_job: MeasuredJob | None = None

    def __post_init__(self) -> None:
        non_negative("cores", self.cores)
        non_negative("gpus", self.gpus)


class Demands(NamedTuple):
    """Resource demands of pods, arrays of shape ``(n_pods,)``; see `RunningPod` and `Activity`."""

    cores: FloatArray
    gpus: FloatArray
    cpu_util: FloatArray
    gpu_util: FloatArray
    memory: FloatArray
    io: FloatArray
    feed: FloatArray
    gpu_memory: FloatArray
    bound: FloatArray
    """Values of `Boundness`."""
    gpu_peaks: FloatArray
    gpu_linear: FloatArray
    gpu_cubic: FloatArray
    """The three of `JobDeviation`."""

    def rates(self, frequency: FloatArray, gpu_throughput: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Rates of work of the pods: core-seconds and GPU-seconds done in a second.

        Args:
            frequency: clock of the node of each pod, as a share of the highest.
            gpu_throughput: rate of the GPUs of each pod, as a share of their uncapped rate.
        """
        cpu_rate = cpu_throughput(frequency, self.memory, self.io, self.bound)
        gpu_rate = gpu_throughput * (1.0 - self.feed * (1.0 - cpu_rate))
        return self.cores * self.cpu_util * cpu_rate, self.gpus * self.gpu_util * gpu_rate

    def load(self, node: IntArray, cores: FloatArray, devices: IntArray, n_devices: int) -> FleetLoad:
        """Load of the nodes under these pods, limited to the capacity of each node.

        Args:
            node: node of each pod, an index into `cores`.
            cores: cores of the nodes.
            devices: indices of each pod's GPUs on its node, shape ``(n_pods, any)``; negative where it has fewer.
            n_devices: maximum number of GPUs of a node.
        """
        shape = (len(cores), n_devices)
        pod, place = np.nonzero(devices >= 0)
        device = node[pod] * n_devices + devices[pod, place]

        def total(weights: FloatArray) -> FloatArray:
            return np.asarray(np.bincount(node, weights=weights, minlength=len(cores)), dtype=np.float64)

        def of_devices(weights: FloatArray) -> FloatArray:
            sums = np.bincount(device, weights=weights[pod], minlength=shape[0] * n_devices)
            return np.asarray(sums, dtype=np.float64).reshape(shape)

        deviations = (self.gpu_peaks, self.gpu_linear, self.gpu_cubic)
        cpu_demand = self.cores * self.cpu_util
        used_cores, sharers = total(cpu_demand), of_devices(np.ones(len(node)))
        return FleetLoad(
            cpu_util=np.clip(used_cores / cores, 0.0, 1.0),
            memory_intensity=_mean(total(cpu_demand * self.memory), used_cores),
            io_intensity=_mean(total(cpu_demand * self.io), used_cores),
            gpu_busy=sharers > 0.0,
            gpu_util=np.clip(of_devices(self.gpu_util), 0.0, 1.0),
            gpu_memory_share=_mean(of_devices(self.gpu_memory), sharers),
            gpu_deviation=np.stack([of_devices(column) for column in deviations], axis=-1)
            / np.maximum(sharers, 1.0)[..., np.newaxis],
        )


def demands_of(cores: float, gpus: float, use: Activity) -> tuple[float, ...]:
    """Row of `Demands` for a pod with these cores, GPUs and activity."""
    return (
        cores,
        gpus,
        use.cpu_util,
        use.gpu_util,
        use.memory_intensity,
        use.io_intensity,
        use.cpu_feed,
        use.gpu_memory_share,
        float(use.cpu_bound),
        *use.gpu_deviation,
    )


_COLUMNS = (*Demands._fields, "cpu_left", "gpu_left")
_INITIAL_CAPACITY = 64
_NO_DEVICE = -1


class Workload:
    """Pods that run on a fleet: one slot each in arrays that grow, so that starting or ending a pod is cheap."""

    def __init__(self) -> None:
        self._pods: dict[str, RunningPod] = {}
        self._slot: dict[str, int] = {}
        self._key: list[str | None] = []
        self._free: list[int] = []
        self._gangs: dict[str, set[str]] = {}
        self._done: dict[str, int] = {}
        self._place: dict[str, int] = {}
        self._fleet: LiveFleet | None = None
        self._values = {name: np.zeros(0) for name in _COLUMNS}
        self._node = np.zeros(0, dtype=np.int64)
        self._devices = np.zeros((0, 1), dtype=np.int64)
        self._works = np.zeros(0, dtype=np.bool_)
        self._grow(_INITIAL_CAPACITY)

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, key: str) -> bool:
        return key in self._pods

    @property
    def pods(self) -> Mapping[str, RunningPod]:
        """Running pods by key, with their initial work."""
        return self._pods

    def work_left(self, key: str) -> Work:
        """Remaining work of a running pod's job."""
        return Work(*self._left(self._slot[key]))

    def _left(self, slot: int) -> tuple[float, float]:
        return float(self._values["cpu_left"][slot]), float(self._values["gpu_left"][slot])

    def put(self, pod: RunningPod) -> None:
        """Start a pod; one that already runs is replaced."""
        self.remove(pod.key)
        if not self._free:
            self._grow(2 * len(self._key))
        slot = self._free.pop()
        self._pods[pod.key] = pod
        self._slot[pod.key] = slot
        self._key[slot] = pod.key
        self._node[slot] = self._place.get(pod.node, -1)
        self._devices[slot] = _NO_DEVICE
        work = pod.work or _NO_WORK
        row = (*demands_of(pod.cores, pod.gpus, pod.activity), work.cpu_units, work.gpu_units)
        for name, value in zip(_COLUMNS, row, strict=True):
            self._values[name][slot] = value
        self._works[slot] = pod.work is not None
        if pod.gang is not None:
            self._gangs.setdefault(pod.gang, set()).add(pod.key)
            self._update_gang(pod.gang)

    def remove(self, key: str) -> RunningPod | None:
        """End a pod. Returns it, or None if it did not run."""
        pod = self._pods.pop(key, None)
        if pod is None:
            return None
        slot = self._slot.pop(key)
        self._key[slot] = None
        self._free.append(slot)
        self._node[slot] = -1
        self._works[slot] = False
        if pod.gang is not None:
            # A member whose work is done blocks the others no more than a running one.
            if pod.work is not None and max(self._left(slot)) <= _WORK_EPSILON:
                self._done[pod.gang] = self._done.get(pod.gang, 0) + 1
            self._gangs[pod.gang].discard(key)
            self._update_gang(pod.gang)
        return pod

    def load(self, fleet: LiveFleet) -> FleetLoad:
        """Load of the nodes under the running pods, limited to the capacity of each node."""
        self._move_to(fleet)
        here = np.flatnonzero(self._node >= 0)
        node, demands = self._node[here], self._demands(here)
        self._give_gpus(here, fleet)
        return demands.load(node, fleet.cores, self._devices[here], fleet.n_devices)

    def _give_gpus(self, here: IntArray, fleet: LiveFleet) -> None:
        """Give new pods the first free GPUs of their nodes, which they keep; pods in excess of them get none."""
        if (missing := fleet.n_devices - self._devices.shape[1]) > 0:
            self._devices = np.pad(self._devices, ((0, 0), (0, missing)), constant_values=_NO_DEVICE)
        wanted = self._values["gpus"]
        for slot in here[(wanted[here] >= 1.0) & (self._devices[here, 0] < 0)].tolist():
            neighbours = here[self._node[here] == self._node[slot]]
            free = np.setdiff1d(np.arange(fleet.gpus[self._node[slot]]), self._devices[neighbours])[: int(wanted[slot])]
            self._devices[slot, : len(free)] = free

    def measured(self) -> Iterator[tuple[RunningPod, int, int, MeasuredJob]]:
        """Pods on nodes with a measured job, the node and device of its GPU as of the last `load`, and the job."""
        for key, pod in self._pods.items():
            slot = self._slot[key]
            node, device = int(self._node[slot]), int(self._devices[slot, 0])
            if pod.gpu_job is not None and min(node, device) >= 0:
                yield pod, node, device, pod.gpu_job

    def advance(self, fleet: LiveFleet, dt_s: float) -> list[str]:
        """Advance all jobs by `dt_s` at the mean operating points of the fleet's last step.

        Returns:
            Keys of the pods whose jobs are done, in the order in which they started; they stay until removed.
        """
        self._move_to(fleet)
        slots = np.flatnonzero(self._works & (self._node >= 0))
        if not len(slots):
            return []
        cpu_rate, gpu_rate = self._rates(slots, fleet.mean_frequency, fleet.mean_gpu_throughput)
        cpu_left = np.maximum(self._values["cpu_left"][slots] - cpu_rate * dt_s, 0.0)
        gpu_left = np.maximum(self._values["gpu_left"][slots] - gpu_rate * dt_s, 0.0)
        self._values["cpu_left"][slots] = cpu_left
        self._values["gpu_left"][slots] = gpu_left
        done = {self._key[slot] for slot in slots[(cpu_left <= _WORK_EPSILON) & (gpu_left <= _WORK_EPSILON)]}
        return [key for key in self._pods if key in done] if done else []

    def next_done_s(self, fleet: LiveFleet) -> float:
        """Time until the next job is done at the current operating points, s; inf if none will be."""
        self._move_to(fleet)
        slots = np.flatnonzero(self._works & (self._node >= 0))
        rates = self._rates(slots, fleet.frequency, fleet.gpu_throughput)
        lefts = (self._values["cpu_left"][slots], self._values["gpu_left"][slots])
        return float(time_to_do(lefts, rates).min(initial=np.inf))

    def work_rates(self, fleet: LiveFleet) -> dict[str, float]:
        """Rate of work of the running pods by key: GPU-seconds a second for pods with GPUs, else core-seconds a second.

        The rate of a member of an incomplete gang is 0.
        """
        self._move_to(fleet)
        slots = np.flatnonzero(self._node >= 0)
        cpu_rate, gpu_rate = self._rates(slots, fleet.frequency, fleet.gpu_throughput)
        rate = np.where(self._values["gpus"][slots] > 0.0, gpu_rate, cpu_rate)
        waiting = {key for gang, members in self._gangs.items() for key in members if not self._complete(gang, key)}
        keys = [self._key[slot] for slot in slots.tolist()]
        return {key: 0.0 if key in waiting else one for key, one in zip(keys, rate.tolist(), strict=True) if key}

    def _rates(
        self, slots: IntArray, frequency: FloatArray, gpu_throughput: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Core-seconds and GPU-seconds that pods do in a second at these operating points of the fleet."""
        node = self._node[slots]
        return self._demands(slots).rates(frequency[node], gpu_throughput[node, self._devices[slots, 0]])

    def _demands(self, slots: IntArray) -> Demands:
        return Demands._make(self._values[name][slots] for name in Demands._fields)

    def _move_to(self, fleet: LiveFleet) -> None:
        """Look up the nodes of all pods again if the fleet has been replaced."""
        if fleet is self._fleet:
            return
        self._fleet = fleet
        self._place = {spec.name: index for index, spec in enumerate(fleet.specs)}
        for key, slot in self._slot.items():
            node = self._node[slot] = self._place.get(self._pods[key].node, -1)
            if node < 0 or self._devices[slot].max() >= fleet.gpus[node]:
                self._devices[slot] = _NO_DEVICE

    def _update_gang(self, gang: str) -> None:
        members = self._gangs[gang]
        for key in members:
            pod = self._pods[key]
            self._works[self._slot[key]] = pod.work is not None and self._complete(gang, key)
        if not members:
            del self._gangs[gang]

    def _complete(self, gang: str, member: str) -> bool:
        """Whether all members of the gang run or are done."""
        return len(self._gangs[gang]) + self._done.get(gang, 0) >= self._pods[member].gang_size

    def _grow(self, capacity: int) -> None:
        old = len(self._key)
        added = capacity - old
        self._key += [None] * added
        self._free = list(range(capacity - 1, old - 1, -1)) + self._free
        self._values = {name: np.append(column, np.zeros(added)) for name, column in self._values.items()}
        self._node = np.append(self._node, np.full(added, -1))
        self._devices = np.pad(self._devices, ((0, added), (0, 0)), constant_values=_NO_DEVICE)
        self._works = np.append(self._works, np.zeros(added, dtype=np.bool_))


def time_to_do(left: tuple[FloatArray, FloatArray], rates: tuple[FloatArray, FloatArray]) -> FloatArray:
    """Time that remaining CPU and GPU work takes in parallel, s; inf where it does not advance."""
    needs_s = [
        np.divide(amount, rate, out=np.where(amount > _WORK_EPSILON, np.inf, 0.0), where=rate > 0.0)
        for amount, rate in zip(left, rates, strict=True)
    ]
    return np.maximum(*needs_s)


def _mean(weighted: FloatArray, weights: FloatArray) -> FloatArray:
    """Weighted means, limited to 0..1; 0 where the weights are 0."""
    return np.clip(np.divide(weighted, weights, out=np.zeros_like(weighted), where=weights > 0.0), 0.0, 1.0)
