"""GPU fragmentation: how much free GPU of a node future pods cannot use, and scores that keep it low.

FGD (fragmentation gradient descent; Weng et al., ATC 2023) places a pod where it adds the least fragmentation. Joulie's
score descends a potential that has a second term, which looks further ahead: GPUs that will be left without CPUs. It
counts the power that the placement adds, and leaves what differs by less than a step to the order of the nodes: so pods
fill one node after the other, those with frugal GPUs first.

Pure functions of one node, written as loops so that compiled code can call them. They check nothing. `gpu_left` is what
is free on every GPU of the node, in thousandths (milli), shape ``(n_gpus,)``.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import NamedTuple

import numpy as np

from joulie.domain.scoring.sharing import NO_GPU, free_milli, is_part_of_gpu, shared_node_power_w, take
from joulie.domain.units import FloatArray, IntArray

GRADIENT_SCALE_MILLI = 1000.0
STEP_MILLI = 60.0
"""Differences of Joulie's potential that are too small to leave the node order for, milli-GPU."""
POWER_WEIGHT_MILLI_PER_W = 0.5
"""Milli-GPU of potential that Joulie gives up for a watt; 0 packs best."""
LEAN_SHARE = 0.01
"""GPUs on nodes with so little CPU that they are left out of account."""
ANY_MODEL = -1
"""All bits: the pod runs on every GPU model."""


class TypicalPods(NamedTuple):
    """The pods that a cluster expects, arrays of shape ``(n_kinds,)``.

    Attributes:
        cpu_milli: thousandths of a CPU.
        gpus: 0 for pods without.
        gpu_milli: on each of them.
        models: bits of the GPU models that it may run on, `ANY_MODEL` for all.
        share: of all pods; sums to 1.
    """

    cpu_milli: IntArray
    gpus: IntArray
    gpu_milli: IntArray
    models: IntArray
    share: FloatArray


class NodeKind(NamedTuple):
    """What does not change of a node.

    Attributes:
        cpu_milli: all of its CPU, thousandths of a thread.
        model: bit of its GPU model.
        gpu_idle_w: of one GPU without pods, W.
        gpu_limit_w: of one with pods, W.
        socket_idle_w: of a socket without pods, W.
        socket_limit_w: of one with pods, W.
    """

    cpu_milli: int
    model: int
    gpu_idle_w: float
    gpu_limit_w: float
    socket_idle_w: float
    socket_limit_w: float


class GpuRequest(NamedTuple):
    """What a pod asks for.

    Attributes:
        cpu_milli: thousandths of a CPU.
        gpus: 0 for none.
        gpu_milli: on each of them.
    """

    cpu_milli: int
    gpus: int
    gpu_milli: int


class Outlook(NamedTuple):
    """What Joulie's score expects of a cluster, and how much it cares for power.

    Attributes:
        typical: the pods to expect.
        cpu_milli_per_gpu: see `cpu_shortage_milli`.
        power_weight_milli_per_w: see `POWER_WEIGHT_MILLI_PER_W`.
    """

    typical: TypicalPods
    cpu_milli_per_gpu: float
    power_weight_milli_per_w: float


def typical_pods(
    cpu_milli: IntArray, gpus: IntArray, gpu_milli: IntArray, models: IntArray, coverage: float = 0.95
) -> TypicalPods:
    """The most frequent requests, as many as cover a share of all pods, with their shares of those covered.

    Args:
        cpu_milli: of every pod, shape ``(n_pods,)``, as the others; see `TypicalPods`.
        gpus: of every pod.
        gpu_milli: of every pod.
        models: of every pod.
        coverage: share of the pods that are covered at least.
    """
    kinds, counts = np.unique(np.stack([cpu_milli, gpu_milli, gpus, models], axis=1), axis=0, return_counts=True)
    # Larger requests first among equally frequent ones, as in FGD's simulator.
    order = np.lexsort((kinds[:, 3], kinds[:, 2], kinds[:, 1], kinds[:, 0], counts))[::-1]
    kinds, counts = kinds[order], counts[order]
    n_kinds = int(np.searchsorted(np.cumsum(counts), coverage * counts.sum())) + 1
    kinds, counts = kinds[:n_kinds], counts[:n_kinds]
    cpu, milli, number, bits = (np.ascontiguousarray(column) for column in kinds.T)
    return TypicalPods(cpu, number, milli, bits, counts / counts.sum())


def fragmentation_milli(
    cpu_left_milli: int, gpu_left: Sequence[int] | IntArray, model: int, typical: TypicalPods
) -> float:
    """FGD's fragmentation of a node: free GPU that a pod cannot use, in the mean over the typical pods, milli-GPU.

    ``F = sum over kinds m of share_m * f_m``. A kind that does not fit the node, may not run on its GPUs or wants none
    can use nothing: ``f_m`` is all that is free. One that fits cannot use the GPUs with less left than it asks for on
    each: ``f_m`` is what is free on those.

    Args:
        cpu_left_milli: free on the node.
        gpu_left: see the module.
        model: bit of the node's GPU model.
        typical: the pods to expect.
    """
    free = free_milli(gpu_left)
    total = 0.0
    for kind in range(len(typical.share)):
        asked = typical.gpu_milli[kind]
        unusable = free
        if asked > 0 and typical.models[kind] & model and cpu_left_milli >= typical.cpu_milli[kind]:
            fitting, too_small = 0, 0
            for left in gpu_left:
                if left >= asked:
                    fitting += 1
                else:
                    too_small += left
            if fitting >= typical.gpus[kind]:
                unusable = too_small
        total += typical.share[kind] * unusable
    return total


def cpu_shortage_milli(cpu_left_milli: int, gpu_left: Sequence[int] | IntArray, cpu_milli_per_gpu: float) -> float:
    """Free GPU of a node beyond what its free CPU lasts for, at so much CPU a GPU, milli-GPU.

    Fragmentation sees that a node runs out of CPU when the next pod no longer fits; this sees it from the first pod on
    that takes more than its share.
    """
    covered = cpu_left_milli / cpu_milli_per_gpu * GRADIENT_SCALE_MILLI
    return max(0.0, free_milli(gpu_left) - covered)


def lean_cpu_milli_per_gpu(cpu_milli: IntArray, gpus: IntArray) -> float:
    """CPU a GPU that the nodes of all but the leanest `LEAN_SHARE` of the cluster's GPUs have, milli-CPU.

    Asking for more would see shortage on nodes that are still empty, and fill these first whatever power they draw.

    Args:
        cpu_milli: of every node, shape ``(n_nodes,)``.
        gpus: of every node; those without any do not count.

    Raises:
        ValueError: no node has GPUs, or the nodes that have them have no CPU.
    """
    with_gpus = gpus > 0
    if not with_gpus.any():
        raise ValueError("no node has GPUs")
    per_gpu, gpus = cpu_milli[with_gpus] / gpus[with_gpus], gpus[with_gpus]
    order = np.argsort(per_gpu)
    leaner = np.cumsum(gpus[order])
    lean = float(per_gpu[order][np.searchsorted(leaner, LEAN_SHARE * leaner[-1])])
    if lean <= 0.0:
        raise ValueError("nodes with GPUs have no CPU")
    return lean


def joulie_steps(added_potential_milli: float, added_power_w: float, power_weight_milli_per_w: float) -> int:
    """Joulie's score: whole steps of potential and power that a placement saves, mostly negative, higher is better.

    Args:
        added_potential_milli: fragmentation and CPU shortage after the placement less those before, milli-GPU.
        added_power_w: power of the node after less before, W.
        power_weight_milli_per_w: see `POWER_WEIGHT_MILLI_PER_W`.
    """
    cost = added_potential_milli + power_weight_milli_per_w * added_power_w
    return int(np.floor(-cost / STEP_MILLI))


def potential_milli(cpu_left_milli: int, gpu_left: Sequence[int] | IntArray, model: int, outlook: Outlook) -> float:
    """Joulie's potential of a node: fragmentation and CPU shortage, milli-GPU."""
    fragmentation = fragmentation_milli(cpu_left_milli, gpu_left, model, outlook.typical)
    return fragmentation + cpu_shortage_milli(cpu_left_milli, gpu_left, outlook.cpu_milli_per_gpu)


def node_power_w(cpu_left_milli: int, gpu_left: Sequence[int] | IntArray, kind: NodeKind) -> float:
    """Power of a node, see `shared_node_power_w`, W."""
    return shared_node_power_w(
        cpu_left_milli,
        kind.cpu_milli,
        gpu_left,
        kind.gpu_idle_w,
        kind.gpu_limit_w,
        kind.socket_idle_w,
        kind.socket_limit_w,
    )


def seen_before(left: Sequence[int] | IntArray, gpu: int) -> bool:
    """Whether an earlier GPU has as much left."""
    seen = False
    for other in range(gpu):
        seen |= left[other] == left[gpu]
    return seen


def joulie_placement(
    cpu_left_milli: int,
    gpu_left: Sequence[int] | IntArray,
    after: MutableSequence[int] | IntArray,
    kind: NodeKind,
    request: GpuRequest,
    outlook: Outlook,
    before_milli: float,
    before_w: float,
) -> tuple[int, float, int]:
    """Joulie's score of a placement: the whole rule, for the benchmark's compiled loop and the extender.

    A part of a GPU is tried on every GPU whose rest differs. The request must fit.

    Args:
        cpu_left_milli: free on the node.
        gpu_left: see the module.
        after: work space of the same length.
        kind: the node.
        request: what the pod asks for.
        outlook: what the cluster expects.
        before_milli: `potential_milli` of the node as it is.
        before_w: `node_power_w` of the node as it is.

    Returns:
        `joulie_steps` of the best GPU, the power added there in W, and its number; `NO_GPU` for anything but a part.
    """
    part = is_part_of_gpu(request.gpus, request.gpu_milli)
    cpu_after = cpu_left_milli - request.cpu_milli
    found, best, best_w, best_gpu = False, 0, 0.0, NO_GPU
    for gpu in range(len(gpu_left) if part else 1):
        if part and (gpu_left[gpu] < request.gpu_milli or seen_before(gpu_left, gpu)):
            continue
        for other in range(len(gpu_left)):
            after[other] = gpu_left[other]
        take(after, request.gpus, request.gpu_milli, gpu)
        added_milli = potential_milli(cpu_after, after, kind.model, outlook) - before_milli
        added_w = node_power_w(cpu_after, after, kind) - before_w
        steps = joulie_steps(added_milli, added_w, outlook.power_weight_milli_per_w)
        if not found or steps > best:
            found, best, best_w, best_gpu = True, steps, added_w, gpu if part else NO_GPU
    return best, best_w, best_gpu
