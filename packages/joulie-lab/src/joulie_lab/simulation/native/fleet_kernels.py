"""Compiled loops over nodes: their operating points, and the passing of time while no limit is moving.

An arrival or end changes one node, and NumPy costs a microsecond for each of some two hundred operations whatever their
size. These loops are the formulas of `joulie.domain.power` and of `LiveFleet`, which stay the reference: a property
test holds both together to 1e-12, what powers and logarithms of two libraries differ by.
"""

from __future__ import annotations

import math

import numpy as np

from joulie.domain.power.cpu import (
    DEEP_IDLE_BELOW_UTIL,
    DEEP_IDLE_FLOOR_W,
    DEEP_IDLE_SAVING,
    FREQUENCY_EXPONENT,
)
from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie_lab.simulation.compiled import compiled, compiled_inner

_MIN_PACKAGE_SHARE = 0.05
_CAP_TOLERANCE = 1.0 + 1e-9
_MEASURED_TO = 1.0
"""See `joulie_lab.simulation.gpu_response`."""


@compiled_inner
def _within(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


@compiled_inner
def _cpu_point(
    model: FloatArray, curve_w: FloatArray, util: float, cap_w: float, activity: float, deep_idle: bool
) -> tuple[float, float, float, bool]:
    """Wall and package power, clock, and whether the cap cannot be met: `CpuPower.operate` of one node."""
    exponent, floor, platform_w, package_idle_w = model[0], model[1], model[2], model[3]
    last = len(curve_w) - 1
    position = (util if exponent == 1.0 else util**exponent) * last
    left = min(int(position), last - 1)
    share = position - left
    wall_w = curve_w[left] * (1.0 - share) + curve_w[left + 1] * share
    full_w = max(_MIN_PACKAGE_SHARE * curve_w[last], wall_w - platform_w)
    idle_w = package_idle_w
    if deep_idle:
        depth = _within(1.0 - util / DEEP_IDLE_BELOW_UTIL, 0.0, 1.0)
        idle_w -= min(DEEP_IDLE_SAVING * depth * package_idle_w, max(package_idle_w - DEEP_IDLE_FLOOR_W, 0.0))
    dynamic_w = (full_w - package_idle_w) * activity
    frequency, package_w = 1.0, idle_w + dynamic_w
    if cap_w < idle_w + dynamic_w:
        left_over = max(cap_w - idle_w, 0.0) / dynamic_w if dynamic_w > 0.0 else 0.0
        frequency = max(left_over ** (1.0 / FREQUENCY_EXPONENT), floor)
        package_w = idle_w + dynamic_w * frequency**FREQUENCY_EXPONENT
    return wall_w - full_w + package_w, package_w, frequency, package_w > cap_w * _CAP_TOLERANCE


@compiled_inner
def _reduction(limit_w: float, natural_w: float, peaks: float) -> float:
    ratio = np.log(limit_w / natural_w) if natural_w > 0.0 else np.inf
    power = -peaks * ratio
    return (max(power, 0.0) + math.log1p(np.exp(-abs(power)))) / peaks


@compiled_inner
def _log_slowdown(cut: float, linear: float, cubic: float) -> float:
    measured = min(cut, _MEASURED_TO)
    return linear * measured + cubic * measured**3 + (cut - measured)


@compiled_inner
def _parameter(model: FloatArray, deviation: FloatArray, row: int) -> float:
    """One of the three parameters of a job's response; `model` holds their logarithms, and below them the factor."""
    total = 0.0
    for column in range(3):
        total += deviation[column] * model[1 + row, column]
    return math.exp(model[0, row] + total)


@compiled_inner
def _gpu_point(
    model: FloatArray,
    deviation: FloatArray,
    idle_w: float,
    max_w: float,
    util: float,
    memory: float,
    cap_w: float,
) -> tuple[float, float]:
    """Power and rate of work of one GPU that a pod holds: `operate_gpu` under the response of its job."""
    share = (1.0 - memory) * util**1.02 + memory * (0.35 * np.sqrt(util) + 0.30 * util)
    natural_w = idle_w + (max_w - idle_w) * share
    if cap_w >= max_w:
        return natural_w, 1.0
    limit_w = min(max(cap_w, idle_w), max_w)
    peaks, linear, cubic = (
        _parameter(model, deviation, 0),
        _parameter(model, deviation, 1),
        _parameter(model, deviation, 2),
    )
    cut, before = _reduction(limit_w, natural_w, peaks), _reduction(max_w, natural_w, peaks)
    power_w = min(natural_w * np.exp(before - cut), limit_w)
    rate = np.exp(_log_slowdown(before, linear, cubic) - _log_slowdown(cut, linear, cubic))
    return max(power_w, idle_w), rate


@compiled
def operate(
    nodes: IntArray,
    rows: IntArray,
    cap_w: FloatArray,
    clock_limit: FloatArray,
    gpu_cap_w: FloatArray,
    cpu_util: FloatArray,
    memory: FloatArray,
    io: FloatArray,
    gpu_busy: BoolArray,
    gpu_util: FloatArray,
    gpu_memory: FloatArray,
    deviation: FloatArray,
    temperature_k: FloatArray,
    throttle: FloatArray,
    deep_idle: BoolArray,
    cpu_kind: IntArray,
    cpu_models: FloatArray,
    curves_w: FloatArray,
    gpu_kind: IntArray,
    gpu_models: FloatArray,
    gpus_w: FloatArray,
    gpu_count: IntArray,
    package_w: FloatArray,
    platform_w: FloatArray,
    frequency: FloatArray,
    device_w: FloatArray,
    throughput: FloatArray,
    saturated: BoolArray,
) -> None:
    """Fill in the operating points of some nodes, see `OperatingPoint`.

    Args:
        nodes: the nodes.
        rows: row of each in the limits and in the results.
        cap_w: limit of all packages in effect, W, see `Limits`.
        clock_limit: limit of the clock in effect.
        gpu_cap_w: limit of each GPU in effect, W.
        cpu_util: load of all nodes, see `FleetLoad`.
        memory: likewise.
        io: likewise.
        gpu_busy: likewise.
        gpu_util: likewise.
        gpu_memory: likewise.
        deviation: likewise.
        temperature_k: of all nodes' packages.
        throttle: temperatures at which the thermal throttle begins and ends, K, and its minimum clock.
        deep_idle: nodes that may enter deep idle states.
        cpu_kind: kind of each node's CPUs.
        cpu_models: by kind, exponent of utilisation, minimum clock, platform power and idle package power, W.
        curves_w: by kind, the curve, W.
        gpu_kind: kind of each node's GPUs, negative without.
        gpu_models: by kind, mean logarithms of a job's three parameters, and the rows of their factor, shape
            ``(n_kinds, 4, 3)``.
        gpus_w: idle, full and unused power of a GPU of each node, W, shape ``(3, n_nodes)``.
        gpu_count: number of GPUs of each node.
        package_w: result, see `OperatingPoint`; changed.
        platform_w: likewise.
        frequency: likewise.
        device_w: likewise.
        throughput: likewise.
        saturated: likewise.
    """
    for at in range(len(nodes)):
        node, row = nodes[at], rows[at]
        model, curve_w = cpu_models[cpu_kind[node]], curves_w[cpu_kind[node]]
        util, deep = cpu_util[node], deep_idle[node]
        activity = _within(1.0 - 0.30 * memory[node] - 0.45 * io[node], 0.35, 1.0)
        limit_w, clock = cap_w[row], clock_limit[row]
        if temperature_k[node] > throttle[0]:
            heat = _within((temperature_k[node] - throttle[0]) / (throttle[1] - throttle[0]), 0.0, 1.0)
            clock = min(clock, 1.0 - (1.0 - throttle[2]) * heat)
        if clock < 1.0:
            # As in `LiveFleet`: the power cap that this clock would meet.
            _, free_w, _, _ = _cpu_point(model, curve_w, util, np.inf, activity, deep)
            _, idle_w, _, _ = _cpu_point(model, curve_w, 0.0, np.inf, 1.0, deep)
            limit_w = min(limit_w, idle_w + max(free_w - idle_w, 0.0) * clock**FREQUENCY_EXPONENT)
        wall_w, package_w[row], frequency[row], saturated[row] = _cpu_point(
            model, curve_w, util, limit_w, activity, deep
        )
        platform_w[row] = wall_w - package_w[row]
        for device in range(device_w.shape[1]):
            throughput[row, device] = 1.0
            if gpu_kind[node] >= 0 and gpu_busy[node, device]:
                device_w[row, device], throughput[row, device] = _gpu_point(
                    gpu_models[gpu_kind[node]],
                    deviation[node, device],
                    gpus_w[0, node],
                    gpus_w[1, node],
                    gpu_util[node, device],
                    gpu_memory[node, device],
                    gpu_cap_w[row, device],
                )
            else:
                device_w[row, device] = gpus_w[2, node] if device < gpu_count[node] else 0.0


@compiled
def add_up(nodes: IntArray, device_w: FloatArray, busy: BoolArray, gpu_w: FloatArray, busy_gpu_w: FloatArray) -> None:
    """Sum the power of some nodes' GPUs, and of those that pods hold, W."""
    for at in range(len(nodes)):
        node = nodes[at]
        total_w, held_w = 0.0, 0.0
        for device in range(device_w.shape[1]):
            total_w += device_w[node, device]
            if busy[node, device]:
                held_w += device_w[node, device]
        gpu_w[node], busy_gpu_w[node] = total_w, held_w


@compiled
def advance_steady(
    dt_s: float,
    ambient_k: float,
    warmth_left: float,
    cpu_left: float,
    gpu_left: float,
    package_w: FloatArray,
    platform_w: FloatArray,
    gpu_w: FloatArray,
    conductance_w_per_k: FloatArray,
    busy_gpu_w: FloatArray,
    energy_j: FloatArray,
    temperature_k: FloatArray,
    package_mean_w: FloatArray,
    gpu_mean_w: FloatArray,
) -> float:
    """Let time pass at constant power. Returns the power of GPUs that pods hold, W.

    Args:
        dt_s: time that passes, s.
        ambient_k: ambient temperature, K.
        warmth_left: share of a deviation of the temperature that remains.
        cpu_left: likewise of the average power of CPUs.
        gpu_left: likewise of that of GPUs.
        package_w: power of each node's packages, W.
        platform_w: power of the rest of the node without GPUs, W.
        gpu_w: power of all its GPUs, W.
        conductance_w_per_k: from packages to the air.
        busy_gpu_w: power of the GPUs that pods hold, W.
        energy_j: see `NodeState`; changed.
        temperature_k: see `NodeState`; changed.
        package_mean_w: see `NodeState`; changed.
        gpu_mean_w: see `NodeState`; changed.
    """
    held_w = 0.0
    for node in range(len(package_w)):
        energy_j[node] += (package_w[node] + platform_w[node] + gpu_w[node]) * dt_s
        target_k = ambient_k + package_w[node] / conductance_w_per_k[node]
        temperature_k[node] = target_k + (temperature_k[node] - target_k) * warmth_left
        package_mean_w[node] = package_w[node] + (package_mean_w[node] - package_w[node]) * cpu_left
        gpu_mean_w[node] = gpu_w[node] + (gpu_mean_w[node] - gpu_w[node]) * gpu_left
        held_w += busy_gpu_w[node]
    return held_w


@compiled
def find_unsteady(
    moving: BoolArray,
    temperature_k: FloatArray,
    package_w: FloatArray,
    conductance_w_per_k: FloatArray,
    ambient_k: float,
    start_k: float,
    can_heat: bool,
    found: IntArray,
) -> int:
    """Write the nodes of `LiveFleet.unsteady` into `found`, and return their number.

    `can_heat` says whether a node at its TDP can reach `start_k` at this ambient temperature.
    """
    count = 0
    for node in range(len(moving)):
        hot = temperature_k[node] > start_k or (
            can_heat and ambient_k + package_w[node] / conductance_w_per_k[node] > start_k
        )
        if hot or moving[node]:
            found[count] = node
            count += 1
    return count
