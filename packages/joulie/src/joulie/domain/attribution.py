"""Attribution of a node's power, measured or modelled, to its pods, its system, and its idle part.

Conserved: whatever comes in, the parts sum up to the power of the node, and none is negative. Power is never made up
either: what no pod explains stays the system's, and a pod that was not measured gets NaN, not 0 W. Arrays span the
whole cluster, so that a sample of 100,000 pods is a handful of passes.

Who pays for idle power is the caller's decision (`PodLoads.idle_share`). Decisions on caps charge it to nobody: a pod
cannot change it. Accounts charge each pod for the part of the node that it reserves: somebody has to pay for it.

Source: the issue "Telemetry that can be trusted"; spec, traps (the node's idle power charged to each pod, all GPUs of
the node to each GPU pod). Attribution by share of CPU time is the rule of Kepler and Scaphandre.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulie.domain.units import BoolArray, FloatArray, IntArray

MAX_WEIGHT = 1e12
"""A larger weight is no measurement, whether of cores or of watts."""


@dataclass(frozen=True, eq=False)
class NodePowerParts:
    """What is known of one part of each node, its CPU packages or its memory; arrays of shape ``(n_nodes,)``.

    Attributes:
        power_w: power of all of them, W. NaN, infinite or negative: not known.
        idle_w: what the hardware model says that they draw idle, W, at least 0. NaN: not known.
        work: work of the whole node, pods and system, in the unit of its pods' weights: busy cores, GB, or dynamic
            watts. NaN: not known, taken to be the sum of the weights, which leaves nothing for the system.
    """

    power_w: FloatArray
    idle_w: FloatArray
    work: FloatArray


@dataclass(frozen=True, eq=False)
class PodLoads:
    """What was measured of each pod; arrays of shape ``(n_pods,)``.

    Attributes:
        node: index of its node; outside the arrays of the nodes (-1): not in the cluster.
        weight: its work: busy cores, dynamic watts by Kepler, or requested cores; one unit for all pods of a node. NaN,
            infinite, negative or above `MAX_WEIGHT`: not measured.
        idle_share: share of its node's idle power that it is charged, 0..1; at most 1 over the pods of a node.
    """

    node: IntArray
    weight: FloatArray
    idle_share: FloatArray | float = 0.0


@dataclass(frozen=True, eq=False)
class Attribution:
    """Who draws the power. On each node with known power the three parts sum up to it, and none is negative.

    Attributes:
        pods_w: of each pod, W, shape ``(n_pods,)``. NaN: cannot be told, and stays in `system_w`.
        pods_idle_w: the part of `pods_w` that is idle power.
        system_w: what no pod explains, W, shape ``(n_nodes,)``. NaN: power not known.
        idle_w: the idle part that is charged to nobody, W, shape ``(n_nodes,)``. NaN: power not known.
    """

    pods_w: FloatArray
    pods_idle_w: FloatArray
    system_w: FloatArray
    idle_w: FloatArray


def attribute_by_work(nodes: NodePowerParts, pods: PodLoads) -> Attribution:
    """Share the power of each node among its pods: dynamic power by weight, idle power by `PodLoads.idle_share`.

    Idle power is what the model says, at most the node's. The rest is dynamic, and each pod gets the share that its
    weight has of the node's work, or of the weights' sum where that is larger. Where the idle power is not known,
    dynamic power cannot be told from it: all stays the system's.
    """
    n_nodes = len(nodes.power_w)
    power_w = np.where(_known(nodes.power_w), nodes.power_w, np.nan)
    idle_known = _known(nodes.idle_w)
    idle_w = np.minimum(np.where(idle_known, nodes.idle_w, 0.0), power_w)
    dynamic_w = power_w - idle_w

    charged = _inside(pods.node, n_nodes) & _known(pods.weight, MAX_WEIGHT)
    charged[charged] = idle_known[pods.node[charged]]
    node, weight = pods.node[charged], pods.weight[charged]
    work = np.fmax(_sum_by(node, weight, n_nodes), np.where(_known(nodes.work), nodes.work, np.nan))

    # The share first: the product of two large numbers could overflow.
    pods_dynamic_w = dynamic_w[node] * _ratio(weight, work[node])
    share_of_idle = np.broadcast_to(np.asarray(pods.idle_share, dtype=np.float64), len(pods.node))[charged]
    pods_w, pods_idle_w = np.full((2, len(pods.node)), np.nan)
    pods_idle_w[charged] = idle_w[node] * share_of_idle
    pods_w[charged] = pods_idle_w[charged] + pods_dynamic_w
    system_w = np.maximum(dynamic_w - _sum_by(node, pods_dynamic_w, n_nodes), 0.0)
    unpaid_w = np.maximum(idle_w - _sum_by(node, pods_idle_w[charged], n_nodes), 0.0)
    return Attribution(pods_w, pods_idle_w, system_w, unpaid_w)


@dataclass(frozen=True, eq=False)
class GpuDevices:
    """What was measured of each physical GPU; arrays of shape ``(n_devices,)``.

    Attributes:
        power_w: of the whole device, W. NaN, infinite or negative: not known.
        idle_w: what the hardware model says that it draws idle, W, at least 0. NaN: not known, then all of its power is
            shared by what is held, none by activity.
    """

    power_w: FloatArray
    idle_w: FloatArray


@dataclass(frozen=True, eq=False)
class GpuHolds:
    """Which pod holds how much of which GPU; arrays of shape ``(n_holds,)``, one entry for each pod and device.

    Attributes:
        pod: index of the pod; negative: a pod that is not known, which is charged all the same.
        device: index of the device; outside the arrays of the devices (-1): not known.
        share: of the device, above 0 to 1: 1 of a whole one; of MIG, its slices over those of the device; of a
            time-sliced one, one over its replicas, or over its pods where the replicas are not known. A device whose
            shares sum up to more than 1 is shared in proportion. Anything else: the pod holds it, but nothing can be
            charged.
        activity: how busy what it holds is, 0..1. NaN: not measured. A figure of the whole device must not be repeated
            here for each pod that holds a part of it.
    """

    pod: IntArray
    device: IntArray
    share: FloatArray
    activity: FloatArray


@dataclass(frozen=True, eq=False)
class GpuAttribution:
    """Who draws the power of GPUs. On each device with known power both parts sum up to it, and none is negative.

    Attributes:
        holds_w: of each entry of `GpuHolds`, W, shape ``(n_holds,)``. NaN: cannot be told.
        idle_w: the node's, for no entry explains it, W, shape ``(n_devices,)``. NaN: power not known.
    """

    holds_w: FloatArray
    idle_w: FloatArray


def attribute_gpu(devices: GpuDevices, holds: GpuHolds) -> GpuAttribution:
    """Share the power of each device among the pods that hold it.

    Who holds a device keeps it from others, so idle power is charged by what is held, and what nobody holds of it is
    the node's. Dynamic power is charged by what is held times its activity; by what is held alone where not all
    activities are measured, or all are 0. A device that nobody holds is idle, whatever it draws.
    """
    n_devices = len(devices.power_w)
    power_w = np.where(_known(devices.power_w), devices.power_w, np.nan)
    idle_w = np.minimum(np.where(_known(devices.idle_w), devices.idle_w, np.inf), power_w)
    dynamic_w = power_w - idle_w

    charged = _inside(holds.device, n_devices) & _known(holds.share, 1.0) & (holds.share > 0.0)
    device, share = holds.device[charged], holds.share[charged]
    held = _sum_by(device, share, n_devices)

    activity = holds.activity[charged]
    measured = _known(activity, 1.0)
    work = share * np.where(measured, activity, 0.0)
    by_activity = (_sum_by(device, ~measured, n_devices) == 0.0) & (_sum_by(device, work, n_devices) > 0.0)
    work = np.where(by_activity[device], work, share)
    work_of_device = _sum_by(device, work, n_devices)

    holds_w = np.full(len(holds.device), np.nan)
    holds_w[charged] = idle_w[device] * _ratio(share, np.maximum(held, 1.0)[device]) + dynamic_w[device] * _ratio(
        work, work_of_device[device]
    )
    unheld_w = np.where(held > 0.0, idle_w * np.maximum(1.0 - held, 0.0), power_w)
    return GpuAttribution(holds_w, unheld_w)


def gpu_power_of_pods_w(holds: GpuHolds, attribution: GpuAttribution, n_pods: int) -> FloatArray:
    """GPU power of each pod, all its devices together, W, shape ``(n_pods,)``.

    0 for a pod that holds none; NaN where one of its devices cannot be told, for a part is not the sum.
    """
    inside = _inside(holds.pod, n_pods)
    return _sum_by(holds.pod[inside], attribution.holds_w[inside], n_pods)


def _known(value: FloatArray, maximum: float = np.finfo(np.float64).max) -> BoolArray:
    """Which entries are measurements: within 0..maximum, so neither NaN nor infinite."""
    return np.asarray((value >= 0.0) & (value <= maximum))


def _inside(index: IntArray, length: int) -> BoolArray:
    return np.asarray((index >= 0) & (index < length))


def _sum_by(index: IntArray, value: FloatArray | BoolArray, length: int) -> FloatArray:
    """Sum of the values of each index, shape ``(length,)``."""
    return np.asarray(np.bincount(index, value, length), dtype=np.float64)


def _ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    """``part / whole``, 0 where the whole is 0."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0.0)
