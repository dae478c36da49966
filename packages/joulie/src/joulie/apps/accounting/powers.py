"""The power of pods at one time: measured where a source measures it, else modelled from the node's hardware profile.

The dynamic power of a pod is Kepler's measurement if there is one. Otherwise it is the pod's share of its node's power,
in proportion to CPU use, or else to requests; the node's power is its agent's RAPL reading, or else follows from its
hardware profile. A share of the node's idle power is added, which is measured if Kepler knows it. The power of GPUs is
charged to the pods that hold them: as DCGM measured it, else as Kepler did, else in proportion to utilisation, in which
case the reading of the agent's NVML is shared if there is one.

Where a server measures itself, all parts of its node are scaled so that they add up to that: fans, disks and losses of
power supplies go to those who draw the rest.
Source: spec, grid, energy accounting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulie.adapters.prometheus.readings import PodPower
from joulie.apps.accounting.facts import BYTES_PER_GB, AccountedPod
from joulie.apps.accounting.usage import AGENTS, KEPLER, PLATFORM, Readings
from joulie.domain.accounting.embodied import Asset
from joulie.domain.accounting.identity import NodePower, Source
from joulie.domain.accounting.inventory import DEFAULT_PUE, SourcedPue
from joulie.domain.accounting.power import NodeLoads, PodLoads, pod_powers
from joulie.domain.accounting.records import PowerQuality
from joulie.domain.gpu_holders import GpuDevice, HeldGpus
from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie.domain.usage import PodKey

REQUESTS = "requests"
_NOT_MEASURED = PodPower()
_QUALITIES = {
    (True, False): PowerQuality.MEASURED,
    (False, False): PowerQuality.MODELLED,
    (False, True): PowerQuality.ASSUMED,
}
"""Quality by whether power is measured and whether it is assumed."""


@dataclass(frozen=True)
class NodeSite:
    """A node with its power model and grid zone.

    Attributes:
        name: node name.
        uid: node UID; empty if the node is gone.
        power: power model of the node.
        zone: grid zone.
        asset: its hardware with its embodied emissions; None if they are unknown.
        pue: PUE of its data centre, with its source.
    """

    name: str
    uid: str
    power: NodePower
    zone: str
    asset: Asset | None = None
    pue: SourcedPue = DEFAULT_PUE


@dataclass(frozen=True, eq=False)
class Powers:
    """IT power of pods and of the unreserved rest of nodes; arrays of shape ``(n_pods,)``, of nodes ``(n_nodes,)``.

    Attributes:
        node: index of each pod's node.
        cpu_w: CPU power of pods, W.
        mem_w: memory power of pods, W.
        gpu_w: GPU power of pods, W.
        quality: quality of each pod's CPU and GPU power; memory power is small and mostly modelled.
        source: source of each pod's power.
        idle_cpu_w: CPU power of nodes charged to no pod, W.
        idle_mem_w: memory power of nodes charged to no pod, W.
        idle_gpu_w: GPU power of nodes charged to no pod, W.
        by_agent: whether the CPU power of nodes was measured by their agents.
        cpu_cores: busy cores of pods; NaN if not measured.
        memory_gb: memory use of pods, GB; NaN if not measured.
        reserved: shares of their nodes' cores, memory and GPUs that pods reserve, shape ``(n_pods, 3)``.
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
    reserved: FloatArray


def powers(
    sites: Sequence[NodeSite], pods: Sequence[AccountedPod], gpu_types: Sequence[str | None], readings: Readings
) -> Powers:
    """Attribute the power of nodes to their pods.

    Args:
        sites: nodes.
        pods: pods, each on one of these nodes.
        gpu_types: GPU workload type of each pod; None if unknown.
        readings: readings of all sources.
    """
    row = {site.name: index for index, site in enumerate(sites)}
    node = np.array([row[pod.node] for pod in pods], dtype=np.int64)
    nodes = [_measured_idle(site.power, readings.idle_w.get(site.name)) for site in sites]
    used = [_used(pod, readings) for pod in pods]
    loads = _loads(nodes, node, pods, gpu_types, used, readings.gpus)
    by_kepler = [readings.power.get(_key(pod), _NOT_MEASURED) for pod in pods]
    busy = _node_loads(sites, node, by_kepler, readings)
    by_agent = ~np.isnan(busy.cpu_w)
    found = pod_powers(nodes, busy, loads)
    gpus, no_gpu = loads.gpus, loads.gpus == 0.0
    cpu_w = _column(by_kepler, "cpu_w") + found.cpu_idle_w
    mem_w = _column(by_kepler, "dram_w") + found.mem_idle_w
    gpu_idle_w = np.array([0.0 if one.gpu is None else one.gpu.idle_w for one in nodes])[node] * gpus
    gpu_w = _gpu_watts(sites, nodes, pods, readings.gpus)
    gpu_w = np.where(np.isnan(gpu_w), _column(by_kepler, "gpu_w") + gpu_idle_w, gpu_w)
    idle_measured = np.array([site.name in readings.idle_w for site in sites], dtype=np.bool_)[node]
    work_measured = ~np.isnan(cpu_w)
    by_server = np.array([site.name in readings.whole_w for site in sites], dtype=np.bool_)
    source = [
        KEPLER if by_pod else PLATFORM if by_meter else AGENTS if by_node else one[0]
        for one, by_pod, by_meter, by_node in zip(
            used, work_measured.tolist(), by_server[node].tolist(), by_agent[node].tolist(), strict=True
        )
    ]
    measured = work_measured & idle_measured & (no_gpu | ~np.isnan(gpu_w))
    assumed = ~work_measured & np.array([one[0] == REQUESTS for one in used], dtype=np.bool_)
    assumed |= ~no_gpu & np.isnan(gpu_w) & np.isnan(loads.gpu_util)
    pods_w = (
        np.where(np.isnan(cpu_w), found.cpu_w, cpu_w),
        np.where(np.isnan(mem_w), found.mem_w, mem_w),
        np.where(no_gpu, 0.0, np.where(np.isnan(gpu_w), found.gpu_w, gpu_w)),
    )
    idle_w = (found.node_cpu_w, found.node_mem_w, found.node_gpu_w)
    parts_w = idle_w[0] + idle_w[1] + idle_w[2] + np.bincount(node, pods_w[0] + pods_w[1] + pods_w[2], len(sites))
    scale = _server_scale(sites, parts_w, readings)
    return Powers(
        node,
        pods_w[0] * scale[node],
        pods_w[1] * scale[node],
        pods_w[2] * scale[node],
        [_QUALITIES[both] for both in zip(measured.tolist(), assumed.tolist(), strict=True)],
        source,
        idle_w[0] * scale,
        idle_w[1] * scale,
        idle_w[2] * scale,
        by_agent,
        loads.cpu_cores,
        loads.memory_gb,
        found.reserved,
    )


def idle_quality(site: NodeSite, readings: Readings, *, by_agent: bool, has_gpus: bool) -> tuple[PowerQuality, str]:
    """Quality and source of the power of a node that is charged to no pod.

    If the server measures itself, its division among pods is modelled. If Kepler measures the idle CPUs, the parts for
    GPUs and for work outside pods are still modelled.
    """
    if site.name in readings.whole_w:
        return PowerQuality.MODELLED, PLATFORM
    if site.name in readings.idle_w:
        modelled = has_gpus or site.name in readings.cpus.busy_cores
        return (PowerQuality.MODELLED if modelled else PowerQuality.MEASURED), KEPLER
    if by_agent:
        return PowerQuality.MODELLED, AGENTS
    source = site.power.cpu_source
    return (PowerQuality.ASSUMED if source is Source.DEFAULT else PowerQuality.MODELLED), source.value


def gpu_pct(devices: Sequence[GpuDevice]) -> dict[str, float]:
    """Mean utilisation of the GPUs of nodes, 0..100."""
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
    """CPU, memory and GPU loads of pods: use, requests and held devices."""
    rows = np.array(
        [
            (cores, pod.cpu_cores, memory_gb, pod.memory_gb, pod.gpus / on.gpu_instances, _gpu_share(on, kind))
            for pod, (_source, cores, memory_gb), on, kind in zip(
                pods, used, [nodes[index] for index in node.tolist()], gpu_types, strict=True
            )
        ],
        dtype=np.float64,
    )
    cores, requested, memory_gb, requested_gb, gpus, share = rows.reshape(-1, 6).T
    return PodLoads(node, cores, requested, memory_gb, requested_gb, gpus, _gpu_util(pods, devices), share)


def _node_loads(
    sites: Sequence[NodeSite], node: IntArray, by_kepler: Sequence[PodPower], readings: Readings
) -> NodeLoads:
    """CPU use and frequency of nodes, and power measured by their agents; NaN if unknown.

    An agent's reading is ignored where Kepler measures pods or idle power, or DCGM measures GPUs: a node's power must
    not be counted twice.
    """

    def of_nodes(values: Mapping[str, float]) -> FloatArray:
        return np.array([values.get(site.name, np.nan) for site in sites], dtype=np.float64)

    def with_pods(part: str) -> BoolArray:
        """Which nodes have pods for which Kepler measures this part of the power."""
        known = ~np.isnan(_column(by_kepler, part))
        return np.bincount(node[known], minlength=len(sites)) > 0

    by_dcgm = {device.node for device in readings.gpus if device.power_w is not None}
    gpu_w = {
        site.name: power_w
        for site in sites
        if site.name in readings.gpu_w and site.name not in by_dcgm
        for power_w, count in [readings.gpu_w[site.name]]
        if count == site.power.gpus
    }
    idle_known = np.array([site.name in readings.idle_w for site in sites], dtype=np.bool_)
    return NodeLoads(
        of_nodes(readings.cpus.busy_cores),
        of_nodes(readings.cpus.frequency_hz),
        np.where(idle_known | with_pods("cpu_w"), np.nan, of_nodes(readings.cpu_w)),
        np.where(with_pods("gpu_w"), np.nan, of_nodes(gpu_w)),
    )


def _server_scale(sites: Sequence[NodeSite], parts_w: FloatArray, readings: Readings) -> FloatArray:
    """What the parts of each node are multiplied by to add up to its server's own meter; 1 without one."""
    pairs = zip(sites, parts_w.tolist(), strict=True)
    return np.array(
        [readings.whole_w.get(site.name, part_w) / part_w if part_w > 0.0 else 1.0 for site, part_w in pairs],
        dtype=np.float64,
    )


def _key(pod: AccountedPod) -> PodKey:
    return pod.namespace, pod.name


def _used(pod: AccountedPod, readings: Readings) -> tuple[str, float, float]:
    """Source of a pod's resource use, busy cores and memory (GB); NaN if not measured."""
    key = _key(pod)
    for source, usage in readings.usage.items():
        if key in usage.cpu_cores:
            memory_bytes = usage.memory_bytes.get(key, np.nan)
            return source, usage.cpu_cores[key], memory_bytes / BYTES_PER_GB
    return REQUESTS, np.nan, np.nan


def _measured_idle(node: NodePower, idle_w: float | None) -> NodePower:
    """A node's power model with its measured idle power."""
    return node if idle_w is None else replace(node, cpu_idle_w=idle_w, cpu_max_w=max(node.cpu_max_w, idle_w))


def _column(found: Sequence[PodPower], part: str) -> FloatArray:
    """One part of the power of pods measured by Kepler, W; NaN if not measured."""
    return np.array([np.nan if (value := getattr(one, part)) is None else value for one in found], dtype=np.float64)


def _gpu_share(node: NodePower, kind: str | None) -> float:
    """Share of a GPU's maximum power that a workload type draws at full utilisation."""
    return 1.0 if node.gpu is None or kind is None else node.gpu.workloads.get(kind, 1.0)


def _gpu_util(pods: Sequence[AccountedPod], devices: Sequence[GpuDevice]) -> FloatArray:
    """Mean utilisation of the GPUs of pods, 0..1: over the GPUs that a pod holds, or of its node if that is unknown.

    NaN if neither is known.
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
    sites: Sequence[NodeSite], nodes: Sequence[NodePower], pods: Sequence[AccountedPod], devices: Sequence[GpuDevice]
) -> FloatArray:
    """Power of the GPUs that pods hold, by DCGM, W; NaN for a pod with a GPU whose power is unknown."""
    on_node: dict[str, list[GpuDevice]] = defaultdict(list)
    for device in devices:
        on_node[device.node].append(device)
    pod_of = {_key(pod): index for index, pod in enumerate(pods) if pod.gpus > 0.0}
    held = HeldGpus()
    for row, (site, node) in enumerate(zip(sites, nodes, strict=True)):
        held.add_listed(row, on_node[site.name], pod_of, np.nan if node.gpu is None else node.gpu.idle_w)
    return held.attributed(len(pods), len(sites))[0]
