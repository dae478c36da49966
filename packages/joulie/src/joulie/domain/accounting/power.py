"""The power of pods whose watts nobody measures, from what they use, what they request and what their nodes draw.

Conserved: on each node the parts of its pods and what nobody has sum up to what the node draws. That is measured where
somebody measures nodes; else a node's power above idle follows its utilisation ``u`` as ``u ** 1.4``. It is attributed
by use (`joulie.domain.attribution`). Idle power is shared by requests: a pod has the share of the node that it
reserves, and what nobody reserves stays with the node. A GPU's power goes to who holds it.

Source: spec, grid, energy accounting; spec, traps: the node's idle power charged to each pod, all GPUs to each GPU pod.
The exponent is the Compute Gardener Scheduler's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulie.domain import attribution
from joulie.domain.accounting.identity import NodePower
from joulie.domain.attribution import Attribution, NodePowerParts, attribute_by_work
from joulie.domain.units import FloatArray, IntArray

CPU_EXPONENT = 1.4
_NOTHING = 1e-9
"""Cores, GB or GPUs: less than any of them can be asked for or measured."""


@dataclass(frozen=True, eq=False)
class PodLoads:
    """Pods of a cluster; arrays of shape ``(n_pods,)``.

    Attributes:
        node: index of the pod's node.
        cpu_cores: that it uses; NaN: not measured, taken to be what it requests.
        requested_cores: that it requests.
        memory_gb: that it uses, GB; NaN: not measured, taken to be what it requests.
        requested_gb: that it requests, GB.
        gpus: that it holds; a part of one counts for its share.
        gpu_util: how busy these are, 0..1; NaN: not measured, taken to be 1.
        gpu_share: of a GPU's highest power that its type of workload draws, above 0 to 1.
    """

    node: IntArray
    cpu_cores: FloatArray
    requested_cores: FloatArray
    memory_gb: FloatArray
    requested_gb: FloatArray
    gpus: FloatArray
    gpu_util: FloatArray
    gpu_share: FloatArray


@dataclass(frozen=True, eq=False)
class NodeLoads:
    """Nodes; arrays of shape ``(n_nodes,)``.

    Attributes:
        cpu_cores: that are busy, with pods and all else; NaN: not measured, taken to be its pods'.
        frequency_hz: of its CPUs; NaN: not measured.
        cpu_w: what all of its CPUs draw, W; NaN: not measured, taken to be what the profile says.
        gpu_w: what all of its GPUs draw, W; the same.
    """

    cpu_cores: FloatArray
    frequency_hz: FloatArray
    cpu_w: FloatArray | float = np.nan
    gpu_w: FloatArray | float = np.nan


@dataclass(frozen=True, eq=False)
class PodPowers:
    """Who draws what; W.

    Attributes:
        cpu_w: of each pod, its share of idle power included, shape ``(n_pods,)``.
        mem_w: the same of memory.
        gpu_w: the same of GPUs.
        cpu_idle_w: the part of `cpu_w` that is idle power.
        mem_idle_w: the part of `mem_w` that is.
        node_cpu_w: of each node that no pod has, shape ``(n_nodes,)``.
        node_mem_w: the same of memory.
        node_gpu_w: the same of GPUs.
        reserved: share of its node's cores, memory and GPUs that each pod reserves, shape ``(n_pods, 3)``; at most 1
            over the pods of a node.
    """

    cpu_w: FloatArray
    mem_w: FloatArray
    gpu_w: FloatArray
    cpu_idle_w: FloatArray
    mem_idle_w: FloatArray
    node_cpu_w: FloatArray
    node_mem_w: FloatArray
    node_gpu_w: FloatArray
    reserved: FloatArray


def pod_powers(nodes: Sequence[NodePower], busy: NodeLoads, pods: PodLoads) -> PodPowers:
    """Share what nodes draw among their pods.

    Args:
        nodes: what each one draws.
        busy: how busy each one is, in that order.
        pods: of these nodes.
    """
    cpu, cpu_share = _cpu(nodes, busy, pods)
    memory, memory_share = _memory(nodes, pods)
    gpu_w, node_gpu_w, gpu_share = _gpus(nodes, busy, pods)
    return PodPowers(
        cpu.pods_w,
        memory.pods_w,
        gpu_w,
        cpu.pods_idle_w,
        memory.pods_idle_w,
        cpu.idle_w + cpu.system_w,
        memory.idle_w + memory.system_w,
        node_gpu_w,
        np.column_stack((cpu_share, memory_share, gpu_share)),
    )


def _cpu(nodes: Sequence[NodePower], busy: NodeLoads, pods: PodLoads) -> tuple[Attribution, FloatArray]:
    """Power of CPUs by pods, and the share of the cores that each of them reserves."""
    used = np.where(np.isnan(pods.cpu_cores), pods.requested_cores, pods.cpu_cores)
    requested = _by_node(nodes, pods, pods.requested_cores)
    all_used = np.fmax(_by_node(nodes, pods, used), busy.cpu_cores)
    cores = np.array([node.cores for node in nodes], dtype=np.float64)
    cores = np.where(cores > 0.0, cores, np.maximum(requested, all_used))
    idle_w = np.array([node.cpu_idle_w for node in nodes], dtype=np.float64)
    range_w = np.array([node.cpu_max_w for node in nodes], dtype=np.float64) - idle_w
    busy_w = range_w * _slowdown(nodes, busy.frequency_hz) * np.minimum(_ratio(all_used, cores), 1.0) ** CPU_EXPONENT
    parts = NodePowerParts(np.where(np.isnan(busy.cpu_w), idle_w + busy_w, busy.cpu_w), idle_w, all_used)
    reserved = _ratio(pods.requested_cores, np.maximum(cores, requested)[pods.node])
    return attribute_by_work(parts, attribution.PodLoads(pods.node, used, reserved)), reserved


def _memory(nodes: Sequence[NodePower], pods: PodLoads) -> tuple[Attribution, FloatArray]:
    """Power of memory by pods, and the share of it that each of them reserves."""
    used = np.where(np.isnan(pods.memory_gb), pods.requested_gb, pods.memory_gb)
    all_used, requested = _by_node(nodes, pods, used), _by_node(nodes, pods, pods.requested_gb)
    there = np.array([node.memory_gb for node in nodes], dtype=np.float64)
    there = np.where(there > 0.0, there, np.maximum(requested, all_used))
    idle_w = np.array([node.memory.base_idle_w for node in nodes], dtype=np.float64)
    idle_w = idle_w + np.array([node.memory.idle_w_per_gb for node in nodes], dtype=np.float64) * there
    busy_w_per_gb = np.array([node.memory.max_w_per_gb - node.memory.idle_w_per_gb for node in nodes], dtype=np.float64)
    parts = NodePowerParts(idle_w + busy_w_per_gb * np.minimum(all_used, there), idle_w, all_used)
    reserved = _ratio(pods.requested_gb, np.maximum(there, requested)[pods.node])
    return attribute_by_work(parts, attribution.PodLoads(pods.node, used, reserved)), reserved


def _gpus(nodes: Sequence[NodePower], busy: NodeLoads, pods: PodLoads) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Power of the GPUs that pods hold, and of those that nobody does, and the share of them that each pod holds.

    Measured power is shared as the model's is.
    """
    count = np.array([node.gpus if node.gpu else 0 for node in nodes], dtype=np.float64)
    idle_w = np.array([node.gpu.idle_w if node.gpu else 0.0 for node in nodes], dtype=np.float64)
    max_w = np.array([node.gpu.max_w if node.gpu else 0.0 for node in nodes], dtype=np.float64)
    wanted = _by_node(nodes, pods, pods.gpus)
    # More than there are can be held where they are shared in time: then each has its part.
    held = pods.gpus * np.minimum(_ratio(count, wanted), 1.0)[pods.node]
    util = np.where(np.isnan(pods.gpu_util), 1.0, np.clip(pods.gpu_util, 0.0, 1.0))
    range_w = np.maximum(max_w[pods.node] * pods.gpu_share - idle_w[pods.node], 0.0)
    pods_w = held * (idle_w[pods.node] + range_w * util)
    unheld_w = np.maximum(count - _by_node(nodes, pods, held), 0.0) * idle_w
    model_w = _by_node(nodes, pods, pods_w) + unheld_w
    gpu_w = np.where(np.isnan(busy.gpu_w), model_w, busy.gpu_w)
    scale = _ratio(gpu_w, model_w)
    unexplained_w = np.where(model_w > _NOTHING, 0.0, gpu_w)
    return pods_w * scale[pods.node], unheld_w * scale + unexplained_w, _ratio(held, count[pods.node])


def _slowdown(nodes: Sequence[NodePower], frequency_hz: FloatArray) -> FloatArray:
    """What a CPU below its base frequency draws above idle, as a share; 1 where a frequency is not known."""
    base_hz = np.array([np.nan if node.base_hz is None else node.base_hz for node in nodes], dtype=np.float64)
    exponent = np.array([node.scaling.exponent for node in nodes], dtype=np.float64)
    ratio = np.minimum(frequency_hz / base_hz, 1.0)
    return np.where(ratio > 0.0, ratio, 1.0) ** exponent


def _by_node(nodes: Sequence[NodePower], pods: PodLoads, values: FloatArray) -> FloatArray:
    return np.bincount(pods.node, weights=values, minlength=len(nodes)).astype(np.float64)


def _ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    """Shares; 0 of nothing, and of so little that the quotient could be no number."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > _NOTHING)
