"""The power of pods at one moment, from what was read: measured where somebody measures, else by the node's profile.

The power of a pod's own work is Kepler's where it measures the pod; else it is the pod's share, by its use of the CPU,
else by its requests, of what the node draws: by its agent's RAPL, else by the profile of its hardware. A share of the
node's idle power comes on top, which is measured where Kepler knows it. GPUs are charged to the pods that hold them: by
DCGM's watts, else by Kepler's, else by how busy they are, and then what the agent's NVML measured is what is shared.
Source: spec, grid, energy accounting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulie.adapters.prometheus.readings import PodPower
from joulie.apps.accounting.facts import BYTES_PER_GB, AccountedPod
from joulie.apps.accounting.usage import AGENTS, KEPLER, Readings
from joulie.domain.accounting.identity import NodePower, Source
from joulie.domain.accounting.power import NodeLoads, PodLoads, pod_powers
from joulie.domain.accounting.records import PowerQuality
from joulie.domain.gpu_holders import GpuDevice, HeldGpus
from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie.domain.usage import PodKey

REQUESTS = "requests"
_NOBODY = PodPower()
_QUALITIES = {
    (True, False): PowerQuality.MEASURED,
    (False, False): PowerQuality.MODELLED,
    (False, True): PowerQuality.ASSUMED,
}
"""By whether power is measured, and whether it is assumed."""


@dataclass(frozen=True)
class Place:
    """A node.

    Attributes:
        name: of the node.
        uid: of the node; empty of one that is gone.
        power: what it draws.
        zone: of the grid.
    """

    name: str
    uid: str
    power: NodePower
    zone: str


@dataclass(frozen=True, eq=False)
class Powers:
    """Who draws what, IT, W; arrays of shape ``(n_pods,)``, of nodes ``(n_nodes,)``.

    Attributes:
        node: index of each pod's node.
        cpu_w: of pods.
        mem_w: of pods.
        gpu_w: of pods.
        quality: how the power of CPU and GPUs of each pod is known; that of memory is small, and mostly modelled.
        source: who says so.
        idle_cpu_w: of nodes, that no pod has.
        idle_mem_w: of nodes, that no pod has.
        idle_gpu_w: of nodes, that no pod has.
        by_agent: whether the CPU power of nodes is what their agents measured.
        cpu_cores: busy cores of pods; NaN: not measured.
        memory_gb: of pods; NaN: not measured.
    """

    node: IntArray
    cpu_w: FloatArray
    mem_w: FloatArray
    gpu_w: FloatArray
    quality: Sequence[PowerQuality]
    source: Sequence[str]
    idle_cpu_w: FloatArray
    idle_mem_w: FloatArray
    idle_gpu_w: FloatArray
    by_agent: BoolArray
    cpu_cores: FloatArray
    memory_gb: FloatArray


def powers(
    places: Sequence[Place], pods: Sequence[AccountedPod], gpu_types: Sequence[str | None], readings: Readings
) -> Powers:
    """Share what nodes draw among their pods.

    Args:
        places: nodes.
        pods: each on one of these.
        gpu_types: type of each pod's work on GPUs; None where nobody says.
        readings: what was said.
    """
    row = {place.name: index for index, place in enumerate(places)}
    node = np.array([row[pod.node] for pod in pods], dtype=np.int64)
    nodes = [_measured_idle(place.power, readings.idle_w.get(place.name)) for place in places]
    used = [_used(pod, readings) for pod in pods]
    loads = _loads(nodes, node, pods, gpu_types, used, readings.gpus)
    by_kepler = [readings.power.get(_key(pod), _NOBODY) for pod in pods]
    busy = _node_loads(places, node, by_kepler, readings)
    by_agent = ~np.isnan(busy.cpu_w)
    found = pod_powers(nodes, busy, loads)
    gpus, no_gpu = loads.gpus, loads.gpus == 0.0
    cpu_w = _column(by_kepler, "cpu_w") + found.cpu_idle_w
    mem_w = _column(by_kepler, "dram_w") + found.mem_idle_w
    gpu_idle_w = np.array([0.0 if one.gpu is None else one.gpu.idle_w for one in nodes])[node] * gpus
    gpu_w = _gpu_watts(places, nodes, pods, readings.gpus)
    gpu_w = np.where(np.isnan(gpu_w), _column(by_kepler, "gpu_w") + gpu_idle_w, gpu_w)
    idle_measured = np.array([place.name in readings.idle_w for place in places], dtype=np.bool_)[node]
    work_measured = ~np.isnan(cpu_w)
    source = [
        KEPLER if by_pod else AGENTS if by_node else one[0]
        for one, by_pod, by_node in zip(used, work_measured.tolist(), by_agent[node].tolist(), strict=True)
    ]
    measured = work_measured & idle_measured & (no_gpu | ~np.isnan(gpu_w))
    assumed = ~work_measured & np.array([one[0] == REQUESTS for one in used], dtype=np.bool_)
    assumed |= ~no_gpu & np.isnan(gpu_w) & np.isnan(loads.gpu_util)
    return Powers(
        node,
        np.where(np.isnan(cpu_w), found.cpu_w, cpu_w),
        np.where(np.isnan(mem_w), found.mem_w, mem_w),
        np.where(no_gpu, 0.0, np.where(np.isnan(gpu_w), found.gpu_w, gpu_w)),
        [_QUALITIES[both] for both in zip(measured.tolist(), assumed.tolist(), strict=True)],
        source,
        found.node_cpu_w,
        found.node_mem_w,
        found.node_gpu_w,
        by_agent,
        loads.cpu_cores,
        loads.memory_gb,
    )


def idle_quality(place: Place, readings: Readings, *, by_agent: bool, has_gpus: bool) -> tuple[PowerQuality, str]:
    """How the power of a node that nobody has is known, and who says so.

    That of GPUs, and of what is busy beside pods, is by their profile also where Kepler measures the idle CPUs.
    """
    if place.name in readings.idle_w:
        modelled = has_gpus or place.name in readings.cpus.busy_cores
        return (PowerQuality.MODELLED if modelled else PowerQuality.MEASURED), KEPLER
    if by_agent:
        return PowerQuality.MODELLED, AGENTS
    source = place.power.cpu_source
    return (PowerQuality.ASSUMED if source is Source.DEFAULT else PowerQuality.MODELLED), source.value


def gpu_pct(devices: Sequence[GpuDevice]) -> dict[str, float]:
    """How busy the GPUs of nodes are: means over devices, 0..100."""
    found: dict[str, list[float]] = {}
    for device in devices:
        if device.util_pct is not None:
            found.setdefault(device.node, []).append(device.util_pct)
    return {node: sum(values) / len(values) for node, values in found.items()}


def _loads(
    nodes: Sequence[NodePower],
    node: IntArray,
    pods: Sequence[AccountedPod],
    gpu_types: Sequence[str | None],
    used: Sequence[tuple[str, float, float]],
    devices: Sequence[GpuDevice],
) -> PodLoads:
    """What pods use, request and hold."""
    rows = np.array(
        [
            (cores, pod.cpu_cores, memory_gb, pod.memory_gb, pod.gpus, _gpu_share(nodes[index], kind))
            for pod, (_source, cores, memory_gb), index, kind in zip(pods, used, node.tolist(), gpu_types, strict=True)
        ],
        dtype=np.float64,
    )
    cores, requested, memory_gb, requested_gb, gpus, share = rows.reshape(-1, 6).T
    return PodLoads(node, cores, requested, memory_gb, requested_gb, gpus, _gpu_util(pods, devices), share)


def _node_loads(
    places: Sequence[Place], node: IntArray, by_kepler: Sequence[PodPower], readings: Readings
) -> NodeLoads:
    """How busy and how fast the CPUs of nodes are, and what their agents measured; NaN where nobody says.

    Where Kepler measures pods or idle power, or DCGM GPUs, they have the word: a node's power is not counted twice.
    """

    def of_nodes(values: Mapping[str, float]) -> FloatArray:
        return np.array([values.get(place.name, np.nan) for place in places], dtype=np.float64)

    def with_pods(part: str) -> BoolArray:
        """Nodes with pods of which Kepler measures a part of the power."""
        known = ~np.isnan(_column(by_kepler, part))
        return np.bincount(node[known], minlength=len(places)) > 0

    by_dcgm = {device.node for device in readings.gpus if device.power_w is not None}
    gpu_w = {
        place.name: power_w
        for place in places
        if place.name in readings.gpu_w and place.name not in by_dcgm
        for power_w, count in [readings.gpu_w[place.name]]
        if count == place.power.gpus
    }
    idle_known = np.array([place.name in readings.idle_w for place in places], dtype=np.bool_)
    return NodeLoads(
        of_nodes(readings.cpus.busy_cores),
        of_nodes(readings.cpus.frequency_hz),
        np.where(idle_known | with_pods("cpu_w"), np.nan, of_nodes(readings.cpu_w)),
        np.where(with_pods("gpu_w"), np.nan, of_nodes(gpu_w)),
    )


def _key(pod: AccountedPod) -> PodKey:
    return pod.namespace, pod.name


def _used(pod: AccountedPod, readings: Readings) -> tuple[str, float, float]:
    """Who knows what a pod uses, busy cores and memory (GB); NaN where nobody does."""
    key = _key(pod)
    for source, usage in readings.usage.items():
        if key in usage.cpu_cores:
            memory_bytes = usage.memory_bytes.get(key, np.nan)
            return source, usage.cpu_cores[key], memory_bytes / BYTES_PER_GB
    return REQUESTS, np.nan, np.nan


def _measured_idle(node: NodePower, idle_w: float | None) -> NodePower:
    """A node with the idle power that was measured of it."""
    return node if idle_w is None else replace(node, cpu_idle_w=idle_w, cpu_max_w=max(node.cpu_max_w, idle_w))


def _column(found: Sequence[PodPower], part: str) -> FloatArray:
    """A part of the power that Kepler measured, W; NaN where it did not."""
    return np.array([np.nan if (value := getattr(one, part)) is None else value for one in found], dtype=np.float64)


def _gpu_share(node: NodePower, kind: str | None) -> float:
    """Share of a GPU's highest power that a type of work draws."""
    return 1.0 if node.gpu is None or kind is None else node.gpu.workloads.get(kind, 1.0)


def _gpu_util(pods: Sequence[AccountedPod], devices: Sequence[GpuDevice]) -> FloatArray:
    """How busy the GPUs of pods are, 0..1: means over those that each holds, where nobody says which over its node's.

    NaN where nobody says anything.
    """
    on_node = gpu_pct(devices)
    held: dict[PodKey, list[float]] = {}
    for device in devices:
        for holder in device.holders:
            if device.util_pct is not None:
                held.setdefault(holder, []).append(device.util_pct / 100.0)
    return np.array(
        [
            sum(values) / len(values) if (values := held.get(_key(pod))) else on_node.get(pod.node, np.nan) / 100.0
            for pod in pods
        ],
        dtype=np.float64,
    )


def _gpu_watts(
    places: Sequence[Place], nodes: Sequence[NodePower], pods: Sequence[AccountedPod], devices: Sequence[GpuDevice]
) -> FloatArray:
    """Power of the GPUs that pods hold, by DCGM, W; NaN of a pod of which one cannot be told."""
    on_node: dict[str, list[GpuDevice]] = defaultdict(list)
    for device in devices:
        on_node[device.node].append(device)
    pod_of = {_key(pod): index for index, pod in enumerate(pods) if pod.gpus > 0.0}
    held = HeldGpus()
    for row, (place, node) in enumerate(zip(places, nodes, strict=True)):
        held.add_listed(row, on_node[place.name], pod_of, np.nan if node.gpu is None else node.gpu.idle_w)
    return held.attributed(len(pods), len(places))[0]
