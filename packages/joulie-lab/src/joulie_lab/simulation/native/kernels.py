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
def load_of(
    nodes: IntArray,
    node: IntArray,
    demands: FloatArray,
    devices: IntArray,
    cores: FloatArray,
    marked: BoolArray,
    of_nodes: FloatArray,
    of_devices: FloatArray,
    cpu_util: FloatArray,
    memory: FloatArray,
    io: FloatArray,
    gpu_busy: BoolArray,
    gpu_util: FloatArray,
    gpu_memory: FloatArray,
    deviation: FloatArray,
) -> None:
    """Fill in the load of some nodes, see `FleetLoad`; arrays over nodes are those of the whole fleet.

    Args:
        nodes: the nodes.
        node: node of the job in each slot, negative without one.
        demands: columns of `Demands`, shape ``(n_columns, n_slots)``.
        devices: GPUs of each slot, negative where it has fewer, shape ``(n_slots, n_devices)``.
        cores: cores of the nodes.
        marked: false throughout; used, and false again afterwards.
        of_nodes: room for the sums: used cores, memory and I/O intensity weighted by them, shape ``(3, n_nodes)``.
        of_devices: likewise: sharers, utilisation, memory share and three deviations of GPUs, shape
            ``(6, n_nodes, n_devices)``.
        cpu_util: result; changed.
        memory: likewise.
        io: likewise.
        gpu_busy: likewise.
        gpu_util: likewise.
        gpu_memory: likewise.
        deviation: likewise.
    """
    for here in nodes:
        marked[here] = True
        of_nodes[:, here] = 0.0
        of_devices[:, here] = 0.0
    for slot in range(len(node)):
        here = node[slot]
        if here < 0 or not marked[here]:
            continue
        used = demands[0, slot] * demands[2, slot]
        of_nodes[0, here] += used
        of_nodes[1, here] += used * demands[4, slot]
        of_nodes[2, here] += used * demands[5, slot]
        for column in range(devices.shape[1]):
            device = devices[slot, column]
            if device >= 0:
                of_devices[0, here, device] += 1.0
                of_devices[1, here, device] += demands[3, slot]
                of_devices[2, here, device] += demands[7, slot]
                of_devices[3, here, device] += demands[9, slot]
                of_devices[4, here, device] += demands[10, slot]
                of_devices[5, here, device] += demands[11, slot]
    for here in nodes:
        marked[here] = False
        used = of_nodes[0, here]
        cpu_util[here] = _share(used / cores[here])
        memory[here] = _share(of_nodes[1, here] / used) if used > 0.0 else 0.0
        io[here] = _share(of_nodes[2, here] / used) if used > 0.0 else 0.0
        for device in range(of_devices.shape[2]):
            sharers = of_devices[0, here, device]
            gpu_busy[here, device] = sharers > 0.0
            gpu_util[here, device] = _share(of_devices[1, here, device])
            gpu_memory[here, device] = _share(of_devices[2, here, device] / sharers) if sharers > 0.0 else 0.0
            for one in range(3):
                deviation[here, device, one] = of_devices[3 + one, here, device] / max(sharers, 1.0)


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


@compiled_inner
def _rates(slot: int, demands: FloatArray, works: bool, clock: float, throughput: float) -> tuple[float, float]:
    """CPU and GPU work that a job does in a second."""
    cpu_rate = _cpu_throughput(clock, demands[4, slot], demands[5, slot], demands[8, slot])
    gpu_rate = throughput * (1.0 - demands[6, slot] * (1.0 - cpu_rate))
    cpu_work = demands[0, slot] * demands[2, slot] * cpu_rate * works
    gpu_work = demands[1, slot] * demands[3, slot] * gpu_rate * works
    return cpu_work, gpu_work


@compiled_inner
def _time_s(amount: float, rate: float) -> float:
    return amount / rate if rate > 0.0 else (np.inf if amount > _WORK_EPSILON else 0.0)


@compiled_inner
def _end_s(cpu_left: float, cpu_rate: float, gpu_left: float, gpu_rate: float, works: bool, now_s: float) -> float:
    """When a job is done at these rates, s; inf if it makes no progress."""
    return now_s + (max(_time_s(cpu_left, cpu_rate), _time_s(gpu_left, gpu_rate)) if works else np.inf)


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
        throughput = gpu_throughput[node[slot], devices[slot, 0]]
        rates[0, at], rates[1, at] = _rates(slot, demands, works[slot], frequency[node[slot]], throughput)


@compiled
def ends_of(
    slots: IntArray, rates: FloatArray, left: FloatArray, works: BoolArray, now_s: float, ends_s: FloatArray
) -> None:
    """Set the completion times of jobs at these rates, s; inf for jobs that make no progress."""
    for at in range(len(slots)):
        slot = slots[at]
        ends_s[slot] = _end_s(left[0, slot], rates[0, at], left[1, slot], rates[1, at], works[slot], now_s)


@compiled
def rerate(
    nodes: IntArray,
    node: IntArray,
    demands: FloatArray,
    devices: IntArray,
    works: BoolArray,
    frequency: FloatArray,
    gpu_throughput: FloatArray,
    gpu_speed: FloatArray,
    now_s: float,
    marked: BoolArray,
    noted: FloatArray,
    stale: BoolArray,
    left: FloatArray,
    rate: FloatArray,
    since_s: FloatArray,
    ends_s: FloatArray,
) -> float:
    """Recompute the jobs that are stale or on a node whose clock or GPU rates changed. Returns the next end, s.

    Args:
        nodes: the nodes whose operating points may have changed.
        node: node of the job in each slot, negative without one.
        demands: columns of `Demands`, shape ``(n_columns, n_slots)``.
        devices: GPUs of each slot, negative where it has fewer, shape ``(n_slots, n_devices)``.
        works: whether the job in each slot makes progress.
        frequency: clock of all nodes.
        gpu_throughput: rate of all nodes' GPUs.
        gpu_speed: factor of each node on it.
        now_s: time since the start of the run, s.
        marked: false throughout; used, and false again afterwards.
        noted: clock and rate of each GPU as of the last call, shape ``(n_nodes, 1 + n_devices)``; changed.
        stale: slots that are computed whatever their node does; false afterwards.
        left: work left when last updated, shape ``(2, n_slots)``; changed, like all that follow.
        rate: work done in a second since then, shape ``(2, n_slots)``.
        since_s: when it was updated, s.
        ends_s: completion times, s.
    """
    for here in nodes:
        moved = noted[here, 0] != frequency[here]
        noted[here, 0] = frequency[here]
        for device in range(gpu_throughput.shape[1]):
            throughput = gpu_throughput[here, device] * gpu_speed[here]
            moved = moved or noted[here, 1 + device] != throughput
            noted[here, 1 + device] = throughput
        marked[here] = moved
    next_s = np.inf
    for slot in range(len(node)):
        here = node[slot]
        if here >= 0 and (stale[slot] or marked[here]):
            stale[slot] = False
            for kind in range(2):
                left[kind, slot] = max(left[kind, slot] - rate[kind, slot] * (now_s - since_s[slot]), 0.0)
            since_s[slot] = now_s
            throughput = gpu_throughput[here, devices[slot, 0]] * gpu_speed[here]
            cpu_rate, gpu_rate = _rates(slot, demands, works[slot], frequency[here], throughput)
            rate[0, slot], rate[1, slot] = cpu_rate, gpu_rate
            ends_s[slot] = _end_s(left[0, slot], cpu_rate, left[1, slot], gpu_rate, works[slot], now_s)
        next_s = min(next_s, ends_s[slot])
    for here in nodes:
        marked[here] = False
    return next_s
