"""The power of pods at one moment, from what was read: measured where somebody measures, else by the node's profile.

The power of a pod's own work is Kepler's where it measures the pod; else it follows from its use of CPU and memory, by
the profile of the node's hardware; else from its requests. A share of the node's idle power comes on top, which is
measured where Kepler knows it. GPUs are charged to the pods that hold them: by DCGM's watts, else by Kepler's, else by
how busy they are. Source: spec, grid, energy accounting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulie.adapters.prometheus.node_exporter import NodeCpus
from joulie.adapters.prometheus.readings import GpuDevice, PodPower
from joulie.apps.accounting.facts import BYTES_PER_GB, AccountedPod
from joulie.apps.accounting.usage import KEPLER, Readings
from joulie.domain.accounting.identity import NodePower, Source
from joulie.domain.accounting.power import NodeLoads, PodLoads, pod_powers
from joulie.domain.accounting.records import PowerQuality
from joulie.domain.attribution import GpuDevices, GpuHolds, attribute_gpu, gpu_power_of_pods_w
from joulie.domain.units import FloatArray, IntArray
from joulie.domain.usage import PodKey

REQUESTS = "requests"
_MIG_SLICES = 7
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
    found = pod_powers(nodes, _node_loads(places, readings.cpus), loads)
    gpus, no_gpu = loads.gpus, loads.gpus == 0.0
    by_kepler = [readings.power.get(_key(pod), _NOBODY) for pod in pods]
    cpu_w = _column(by_kepler, "cpu_w") + found.cpu_idle_w
    mem_w = _column(by_kepler, "dram_w") + found.mem_idle_w
    gpu_idle_w = np.array([0.0 if one.gpu is None else one.gpu.idle_w for one in nodes])[node] * gpus
    gpu_w = _gpu_watts(places, nodes, pods, readings.gpus)
    gpu_w = np.where(np.isnan(gpu_w), _column(by_kepler, "gpu_w") + gpu_idle_w, gpu_w)
    idle_measured = np.array([place.name in readings.idle_w for place in places], dtype=np.bool_)[node]
    source = [KEPLER if by else one[0] for one, by in zip(used, (~np.isnan(cpu_w)).tolist(), strict=True)]
    measured = ~np.isnan(cpu_w) & idle_measured & (no_gpu | ~np.isnan(gpu_w))
    assumed = np.array([one == REQUESTS for one in source], dtype=np.bool_)
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
        loads.cpu_cores,
        loads.memory_gb,
    )


def idle_quality(place: Place, readings: Readings, *, has_gpus: bool) -> tuple[PowerQuality, str]:
    """How the power of a node that nobody has is known, and who says so.

    That of GPUs, and of what is busy beside pods, is by their profile also where Kepler measures the idle CPUs.
    """
    if place.name in readings.idle_w:
        modelled = has_gpus or place.name in readings.cpus.busy_cores
        return (PowerQuality.MODELLED if modelled else PowerQuality.MEASURED), KEPLER
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


def _node_loads(places: Sequence[Place], cpus: NodeCpus) -> NodeLoads:
    """How busy and how fast the CPUs of nodes are; NaN where nobody says."""
    return NodeLoads(
        np.array([cpus.busy_cores.get(place.name, np.nan) for place in places], dtype=np.float64),
        np.array([cpus.frequency_hz.get(place.name, np.nan) for place in places], dtype=np.float64),
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
    row = {place.name: index for index, place in enumerate(places)}
    pod_of = {_key(pod): index for index, pod in enumerate(pods) if pod.gpus > 0.0}
    index: dict[str, int] = {}
    power_w: list[float] = []
    idle_w: list[float] = []
    holds: list[tuple[int, int, float, float]] = []
    for device in devices:
        if device.power_w is None or device.node not in row:
            continue
        if device.uuid not in index:
            index[device.uuid] = len(power_w)
            gpu = nodes[row[device.node]].gpu
            power_w.append(device.power_w.value)
            idle_w.append(np.nan if gpu is None else gpu.idle_w)
        share = 1.0 if device.mig_instance is None else _mig_share(device.mig_profile)
        # How busy the whole is says nothing of those who take turns on it.
        activity = np.nan if device.util_pct is None or device.shared else device.util_pct / 100.0
        part = index[device.uuid], share / max(1, len(device.holders)), activity
        holds += [(pod_of.get(holder, -1), *part) for holder in device.holders]
    columns = np.array(holds, dtype=np.float64).reshape(-1, 4).T
    held = GpuHolds(columns[0].astype(np.int64), columns[1].astype(np.int64), columns[2], columns[3])
    shared = attribute_gpu(GpuDevices(np.array(power_w), np.array(idle_w)), held)
    told = np.zeros(len(pods), dtype=np.bool_)
    told[held.pod[held.pod >= 0]] = True
    return np.where(told, gpu_power_of_pods_w(held, shared, len(pods)), np.nan)


def _mig_share(profile: str | None) -> float:
    """Share of a GPU that a MIG instance has, by its compute slices: ``3g.40gb`` has 3 of 7; NaN if it does not say."""
    slices = (profile or "").partition("g.")[0]
    return min(1.0, int(slices) / _MIG_SLICES) if slices.isdecimal() else np.nan
