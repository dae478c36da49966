"""Compiled loops over the slots of running jobs: the load of single nodes, and the rates of their jobs.

A NumPy operation costs a microsecond whatever it does, and an arrival or end changes one node with a few jobs. These
loops make the same operations in the same order as `Demands.load`, `Demands.rates` and `time_to_do`, which stay the
reference: a property test holds both to the last digit.
"""

from __future__ import annotations

import numpy as np

from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie_lab.simulation.compiled import compiled, compiled_inner

_MIXED, _COMPUTE, _MEMORY, _IO = 0.0, 1.0, 2.0, 3.0
_KNEE = 0.7
_WORK_EPSILON = 1e-9


@compiled
def sum_demands(
    slots: IntArray,
    place: IntArray,
    demands: FloatArray,
    devices: IntArray,
    of_nodes: FloatArray,
    of_devices: FloatArray,
) -> None:
    """Add the demands of jobs to the sums of their nodes and GPUs.

    Args:
        slots: the jobs.
        place: row of each job's node in the sums.
        demands: columns of `Demands`, shape ``(n_columns, n_slots)``.
        devices: GPUs of each slot, negative where it has fewer, shape ``(n_slots, n_devices)``.
        of_nodes: used cores, memory and I/O intensity weighted by them, shape ``(3, n_nodes)``; changed.
        of_devices: sharers, utilisation, memory share and three deviations of GPUs, shape
            ``(6, n_nodes, n_devices)``; changed.
    """
    for at in range(len(slots)):
        slot, node = slots[at], place[at]
        cores = demands[0, slot] * demands[2, slot]
        of_nodes[0, node] += cores
        of_nodes[1, node] += cores * demands[4, slot]
        of_nodes[2, node] += cores * demands[5, slot]
        for column in range(devices.shape[1]):
            device = devices[slot, column]
            if device >= 0:
                of_devices[0, node, device] += 1.0
                of_devices[1, node, device] += demands[3, slot]
                of_devices[2, node, device] += demands[7, slot]
                of_devices[3, node, device] += demands[9, slot]
                of_devices[4, node, device] += demands[10, slot]
                of_devices[5, node, device] += demands[11, slot]


@compiled
def finish_load(
    of_nodes: FloatArray, of_devices: FloatArray, cores: FloatArray, busy: BoolArray, deviation: FloatArray
) -> None:
    """Turn sums of `sum_demands` into loads: of nodes utilisation, memory and I/O intensity; of GPUs likewise.

    Args:
        of_nodes: the sums; changed to the loads.
        of_devices: the sums; rows 1 and 2 are changed to utilisation and memory share.
        cores: cores of the nodes.
        busy: whether a pod holds the GPU, shape ``(n_nodes, n_devices)``; changed.
        deviation: the three of `JobDeviation`, mean over its pods, shape ``(n_nodes, n_devices, 3)``; changed.
    """
    for node in range(len(cores)):
        used_cores = of_nodes[0, node]
        of_nodes[0, node] = _share(used_cores / cores[node])
        for row in (1, 2):
            of_nodes[row, node] = _share(of_nodes[row, node] / used_cores) if used_cores > 0.0 else 0.0
        for device in range(of_devices.shape[2]):
            sharers = of_devices[0, node, device]
            busy[node, device] = sharers > 0.0
            of_devices[1, node, device] = _share(of_devices[1, node, device])
            of_devices[2, node, device] = _share(of_devices[2, node, device] / sharers) if sharers > 0.0 else 0.0
            for one in range(3):
                deviation[node, device, one] = of_devices[3 + one, node, device] / max(sharers, 1.0)


@compiled_inner
def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)


@compiled_inner
def _cpu_throughput(clock: float, memory: float, io: float, bound: float) -> float:
    """See `joulie_lab.simulation.job_response.cpu_throughput`."""
    total = max(memory + io, 1.0)
    memory_share, io_share = memory / total, io / total
    compute_share = 1.0 - memory_share - io_share
    memory_rate = 1.0 - 0.12 * (1.0 - max(clock, _KNEE)) - 0.45 * max(_KNEE - clock, 0.0)
    io_rate = 1.0 - 0.05 * (1.0 - clock)
    if bound != _MIXED:
        compute_share = 0.5 * compute_share + 0.5 * (bound == _COMPUTE)
        memory_share = 0.5 * memory_share + 0.5 * (bound == _MEMORY)
        io_share = 0.5 * io_share + 0.5 * (bound == _IO)
    return compute_share * clock + memory_share * memory_rate + io_share * io_rate


@compiled
def rates_of(
    slots: IntArray,
    node: IntArray,
    demands: FloatArray,
    devices: IntArray,
    works: BoolArray,
    frequency: FloatArray,
    gpu_throughput: FloatArray,
    rates: FloatArray,
) -> None:
    """Fill in the CPU and GPU work that jobs do in a second, shape ``(2, n_jobs)``; see `RunningJobs`."""
    for at in range(len(slots)):
        slot = slots[at]
        cpu_rate = _cpu_throughput(frequency[node[slot]], demands[4, slot], demands[5, slot], demands[8, slot])
        gpu_rate = gpu_throughput[node[slot], devices[slot, 0]] * (1.0 - demands[6, slot] * (1.0 - cpu_rate))
        rates[0, at] = demands[0, slot] * demands[2, slot] * cpu_rate * works[slot]
        rates[1, at] = demands[1, slot] * demands[3, slot] * gpu_rate * works[slot]


@compiled
def ends_of(
    slots: IntArray, rates: FloatArray, left: FloatArray, works: BoolArray, now_s: float, ends_s: FloatArray
) -> None:
    """Set the completion times of jobs at these rates, s; inf for jobs that make no progress."""
    for at in range(len(slots)):
        slot = slots[at]
        needs_s = 0.0
        for kind in range(2):
            amount, rate = left[kind, slot], rates[kind, at]
            own_s = amount / rate if rate > 0.0 else (np.inf if amount > _WORK_EPSILON else 0.0)
            needs_s = max(needs_s, own_s)
        ends_s[slot] = now_s + (needs_s if works[slot] else np.inf)


@compiled
def note_points(
    nodes: IntArray, frequency: FloatArray, gpu_throughput: FloatArray, noted: FloatArray, moved: BoolArray
) -> BoolArray:
    """Note the clock and the GPU rates of some nodes, and mark in `moved` those where they differ from the last note.

    Args:
        nodes: the nodes.
        frequency: clock of all nodes.
        gpu_throughput: rate of all nodes' GPUs.
        noted: clock and rate of each GPU, shape ``(n_nodes, 1 + n_devices)``; changed.
        moved: by place in `nodes`; changed, and returned.
    """
    for at in range(len(nodes)):
        node = nodes[at]
        moved[at] = noted[node, 0] != frequency[node]
        noted[node, 0] = frequency[node]
        for device in range(gpu_throughput.shape[1]):
            moved[at] = moved[at] or noted[node, 1 + device] != gpu_throughput[node, device]
            noted[node, 1 + device] = gpu_throughput[node, device]
    return moved
