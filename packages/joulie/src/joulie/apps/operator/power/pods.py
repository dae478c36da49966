"""Power and energy of pods, namespaces and nodes, from one poll to the next.

Every poll attributes the measured power of each node to its pods (`joulie.domain.attribution`). Energy is the integral
of power over time. A gap longer than the staleness threshold of samples is not bridged: unmeasured energy is not made
up.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.pods import PodFacts
from joulie.apps.operator.sources.catalogue import KEPLER, REQUESTS
from joulie.apps.operator.sources.usage import PodWeights
from joulie.domain.attribution import NodePowerParts, PodLoads, attribute_by_work
from joulie.domain.control import ControlledNode
from joulie.domain.gpu_holders import GpuDevice, HeldGpus
from joulie.domain.policy import PodPhase
from joulie.domain.signal import Reading
from joulie.domain.units import FloatArray, IntArray

_COVERED = 0.5
"""Minimum share of a node's pods with a weight for a source to be used there: units are never mixed on a node."""
_PODS_PER_YIELD = 5000
"""Pods processed before yielding to the event loop."""


@dataclass(frozen=True, eq=False)
class NodesPower:
    """Power of all nodes at one time; arrays of shape ``(n_nodes,)``, NaN if unknown.

    Attributes:
        nodes: nodes, in the order of the arrays.
        source: source of each node's power; None without one.
        time_s: time of the sample, s since the epoch.
        cpu_w: power of the CPU packages, W.
        gpu_w: power of the GPUs, W; 0 without GPUs.
        total_w: power of the node, W.
        low_w: lower bound of an estimate, W; `total_w` if measured.
        high_w: upper bound of an estimate, W; `total_w` if measured.
        cpu_idle_w: idle power of the CPU packages by the hardware model, W.
        gpu_idle_w: idle power of the GPUs by the hardware model, W.
        cpus: logical CPUs; 0 if unknown.
    """

    nodes: tuple[ControlledNode, ...]
    source: tuple[str | None, ...]
    time_s: FloatArray
    cpu_w: FloatArray
    gpu_w: FloatArray
    total_w: FloatArray
    low_w: FloatArray
    high_w: FloatArray
    cpu_idle_w: FloatArray
    gpu_idle_w: FloatArray
    cpus: FloatArray


@dataclass(frozen=True, eq=False)
class RunningPods:
    """The pods that run on managed nodes; arrays of shape ``(n_pods,)``.

    Attributes:
        pods: pods, in the order of the arrays.
        node: index of each pod's node.
        cores: requested cores.
        gpus: requested GPUs.
        namespaces: namespaces of all pods.
        namespace: index of each pod's namespace.
    """

    pods: Sequence[PodFacts]
    node: IntArray
    cores: FloatArray
    gpus: FloatArray
    namespaces: Sequence[str]
    namespace: IntArray


@dataclass(frozen=True, eq=False)
class Work:
    """Measured work of pods and nodes, by which power is attributed.

    Attributes:
        weights: weights of pods, most trusted source first.
        busy_cores: busy cores of nodes, by source of the weights.
        dynamic_w: dynamic power of nodes by Kepler, W.
        devices: GPUs and the pods that hold them.
    """

    weights: Sequence[PodWeights] = ()
    busy_cores: Mapping[str, Mapping[str, Reading]] = field(default_factory=dict)
    dynamic_w: Mapping[str, float] = field(default_factory=dict)
    devices: Sequence[GpuDevice] = ()


@dataclass(frozen=True, eq=False)
class Shares:
    """The node power of a poll, attributed to pods; NaN if unknown.

    Attributes:
        power: power of nodes.
        running: running pods.
        pod_cpu_w: CPU power of pods, W, shape ``(n_pods,)``.
        pod_gpu_w: GPU power of pods, W, shape ``(n_pods,)``; 0 for a pod without GPUs.
        weight_source: source of the weights used on each node; empty for a node without pods.
        idle_w: idle power of nodes, charged to no pod, W, shape ``(n_nodes,)``.
        system_w: power of nodes not attributed to any pod, W, shape ``(n_nodes,)``.
    """

    power: NodesPower
    running: RunningPods
    pod_cpu_w: FloatArray
    pod_gpu_w: FloatArray
    weight_source: tuple[str, ...]
    idle_w: FloatArray
    system_w: FloatArray

    @property
    def pod_w(self) -> FloatArray:
        """Power of pods, W, shape ``(n_pods,)``."""
        return self.pod_cpu_w + self.pod_gpu_w


async def running_pods(pods: Mapping[Key, PodFacts], nodes: Sequence[ControlledNode]) -> RunningPods:
    """The pods that run on these nodes."""
    index = {node.name: position for position, node in enumerate(nodes)}
    everything = list(pods.values())
    namespaces: dict[str, int] = {}
    found: list[PodFacts] = []
    rows: list[tuple[int, float, float, int]] = []
    for start in range(0, len(everything), _PODS_PER_YIELD):
        for pod in everything[start : start + _PODS_PER_YIELD]:
            node = index.get(pod.node_name)
            if node is not None and pod.phase is PodPhase.RUNNING:
                found.append(pod)
                namespace = namespaces.setdefault(pod.namespace, len(namespaces))
                rows.append((node, pod.requests.cpu_cores, pod.requests.gpus, namespace))
        await asyncio.sleep(0)
    node_of, cores, gpus, namespace_of = np.array(rows, dtype=np.float64).reshape(-1, 4).T
    await asyncio.sleep(0)
    return RunningPods(found, node_of.astype(np.int64), cores, gpus, tuple(namespaces), namespace_of.astype(np.int64))


async def shared(power: NodesPower, running: RunningPods, work: Work) -> Shares:
    """Attribute the power of nodes to their pods."""
    weight, chosen = await _weights(len(power.nodes), running, work.weights)
    cpu = attribute_by_work(
        NodePowerParts(power.cpu_w, power.cpu_idle_w, _node_work(power, chosen, work)),
        PodLoads(running.node, weight),
    )
    await asyncio.sleep(0)
    pod_gpu_w, gpu_idle_w, gpu_system_w = _gpus(power, running, work.devices)
    # If only the total of a node is known, idle and system power cannot be separated.
    whole = ~np.isnan(power.total_w) & np.isnan(power.cpu_w)
    return Shares(
        power,
        running,
        cpu.pods_w,
        pod_gpu_w,
        chosen,
        np.where(whole, np.nan, cpu.idle_w + gpu_idle_w),
        np.where(whole, np.nan, cpu.system_w + gpu_system_w),
    )


async def _weights(
    n_nodes: int, running: RunningPods, sources: Sequence[PodWeights]
) -> tuple[FloatArray, tuple[str, ...]]:
    """The weight of each pod, and for each node the one source of all its pods' weights."""
    pods_on = np.bincount(running.node, minlength=n_nodes)
    weight = running.cores
    chosen = np.where(pods_on > 0, REQUESTS, "").astype(object)
    undecided = pods_on > 0
    for source in sources:
        by_pod = source.by_pod
        own = np.empty(len(running.pods))
        for start in range(0, len(running.pods), _PODS_PER_YIELD):
            part = running.pods[start : start + _PODS_PER_YIELD]
            own[start : start + len(part)] = [by_pod.get((pod.namespace, pod.name), np.nan) for pod in part]
            await asyncio.sleep(0)
        covered = np.bincount(running.node, ~np.isnan(own), n_nodes)
        taken = undecided & (covered >= _COVERED * pods_on)
        weight = np.where(taken[running.node], own, weight)
        chosen[taken] = source.source
        undecided &= ~taken
    return weight, tuple(chosen.tolist())


def _node_work(power: NodesPower, chosen: Sequence[str], work: Work) -> FloatArray:
    """Work of each node in the unit of its pods' weights; NaN where it is not known."""
    found = np.full(len(power.nodes), np.nan)
    dynamic_w = power.cpu_w - power.cpu_idle_w
    for position, (node, source) in enumerate(zip(power.nodes, chosen, strict=True)):
        if source == KEPLER:
            found[position] = work.dynamic_w.get(node.name, dynamic_w[position])
        elif source == REQUESTS:
            # Unrequested CPUs are charged to no pod; if their number is unknown, all power is charged to requests.
            found[position] = power.cpus[position] or np.nan
        elif source:
            reading = work.busy_cores.get(source, {}).get(node.name)
            found[position] = np.nan if reading is None else reading.value
    return found


def _gpus(
    power: NodesPower, running: RunningPods, devices: Sequence[GpuDevice]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """GPU power of pods, and idle and unattributed GPU power of nodes, W."""
    n_nodes, n_pods = len(power.nodes), len(running.pods)
    held_w, idle_w = _held(power, running, devices).attributed(n_pods, n_nodes)
    # The GPU power of a pod is unknown (NaN) if it is unknown which GPUs it holds.
    pod_w = np.where(running.gpus > 0.0, held_w, 0.0)
    charged_w = np.bincount(running.node, np.nan_to_num(pod_w), n_nodes)
    return pod_w, idle_w, np.maximum(power.gpu_w - idle_w - charged_w, 0.0)


def _held(power: NodesPower, running: RunningPods, devices: Sequence[GpuDevice]) -> HeldGpus:
    by_node: dict[str, list[GpuDevice]] = defaultdict(list)
    for device in devices:
        by_node[device.node].append(device)
    asking: dict[int, list[int]] = defaultdict(list)
    for position in np.flatnonzero(running.gpus > 0.0).tolist():
        asking[int(running.node[position])].append(position)
    held = HeldGpus()
    for index in np.flatnonzero(power.gpu_w > 0.0).tolist():
        node = power.nodes[index]
        found = by_node.get(node.name, ())
        if node.hardware.gpu is None:
            continue
        count = node.hardware.gpu.count
        gpu_w, idle_w = float(power.gpu_w[index]), float(power.gpu_idle_w[index])
        listed = len({one.uuid for one in found if one.power_w is not None}) == count
        # An exporter without access to the kubelet lists GPUs without pods.
        if listed and (any(one.holders for one in found) or not asking[index]):
            # Only this node's pods: a pod name that the exporter still lists may run on another node by now.
            pods = {(running.pods[pod].namespace, running.pods[pod].name): pod for pod in asking[index]}
            held.add_listed(index, found, pods, idle_w / count, gpu_w)
        elif len(asking[index]) <= 1:
            # All GPUs of the node as one device: at most one pod holds any of them.
            device_index = held.add(index, gpu_w, idle_w)
            for pod in asking[index]:
                requestable = count * node.hardware.gpu.instances
                held.hold(pod, device_index, min(1.0, running.pods[pod].requests.gpus / requestable))
    return held


@dataclass(frozen=True, eq=False)
class Meters:
    """Energy meters of pods, nodes and namespaces, with the power at the last poll.

    Attributes:
        since_s: start of metering, s since the epoch.
        time_s: time of the last poll, s since the epoch; None before the first.
        pods: row of each pod by UID.
        pod_w: power of pods at the last poll, W, by row; NaN if unknown.
        pod_j: energy of pods, J, by row.
        nodes: row of each node by name.
        node_w: power of nodes at the last poll, W, by row; NaN if unknown.
        node_j: energy of nodes, J, by row.
        namespace_j: energy by namespace, including deleted pods, J.
    """

    since_s: float
    time_s: float | None = None
    pods: Mapping[str, int] = field(default_factory=dict)
    pod_w: FloatArray = field(default_factory=lambda: np.zeros(0))
    pod_j: FloatArray = field(default_factory=lambda: np.zeros(0))
    nodes: Mapping[str, int] = field(default_factory=dict)
    node_w: FloatArray = field(default_factory=lambda: np.zeros(0))
    node_j: FloatArray = field(default_factory=lambda: np.zeros(0))
    namespace_j: Mapping[str, float] = field(default_factory=dict)

    def known_pods_w(self) -> dict[str, float]:
        """Power of pods at the last poll by UID, W; pods with unknown power are absent."""
        known = zip(self.pods, self.pod_w.tolist(), strict=True)
        return {uid: power_w for uid, power_w in known if math.isfinite(power_w)}

    async def extended(self, shares: Shares, now_s: float, longest_gap_s: float) -> Meters:
        """The meters after a poll.

        Args:
            shares: power of this poll.
            now_s: time of this poll, s since the epoch.
            longest_gap_s: maximum time since the last poll, s; after a longer gap no energy is added.
        """
        passed_s = 0.0 if self.time_s is None else now_s - self.time_s
        passed_s = passed_s if 0.0 <= passed_s <= longest_gap_s else 0.0
        pods = {pod.uid: row for row, pod in enumerate(shares.running.pods)}
        nodes = {node.name: row for row, node in enumerate(shares.power.nodes)}
        pod_w, node_w = shares.pod_w, shares.power.total_w
        await asyncio.sleep(0)
        added_j, pod_j = _integrated(self.pods, self.pod_w, self.pod_j, pods, pod_w, passed_s)
        _, node_j = _integrated(self.nodes, self.node_w, self.node_j, nodes, node_w, passed_s)
        await asyncio.sleep(0)
        namespace_j = dict(self.namespace_j)
        names = shares.running.namespaces
        added_by_namespace_j = np.bincount(shares.running.namespace, added_j, len(names))
        for name, energy_j in zip(names, added_by_namespace_j.tolist(), strict=True):
            namespace_j[name] = namespace_j.get(name, 0.0) + energy_j
        return Meters(self.since_s, now_s, pods, pod_w, pod_j, nodes, node_w, node_j, namespace_j)


def _integrated(
    old: Mapping[str, int], old_w: FloatArray, old_j: FloatArray, new: Mapping[str, int], new_w: FloatArray, dt_s: float
) -> tuple[FloatArray, FloatArray]:
    """Energy added since the last poll by the trapezoidal rule, and the new total, J; rows as in `new`."""
    rows = np.array([old.get(name, -1) for name in new], dtype=np.int64)
    was_there = rows >= 0
    before_w = np.where(was_there, np.append(old_w, np.nan)[rows], np.nan)
    before_j = np.where(was_there, np.append(old_j, 0.0)[rows], 0.0)
    added_j = np.nan_to_num(0.5 * (before_w + new_w) * dt_s)
    return added_j, before_j + added_j
