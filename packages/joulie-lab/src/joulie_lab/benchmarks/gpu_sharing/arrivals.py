"""Sequences of arriving pods: the trace shuffled and inflated, and variants of the trace."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from joulie.domain.scoring.fragmentation import ANY_MODEL
from joulie.domain.scoring.sharing import FULL_GPU_MILLI
from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie_lab.adapters.published.openb import MODELS, Nodes, Pods

ARRIVED = 1.3
"""GPU that arrives, of all that the cluster has."""


class Arrivals(NamedTuple):
    """Inputs of a run that depend on the seed.

    Attributes:
        pods: index of each arriving pod, shape ``(n_arrivals,)``.
        draws: uniform random numbers for randomised policies, shape ``(n_arrivals, 2)``.
        node_order: order of the nodes, which breaks ties, shape ``(n_nodes,)``.
    """

    pods: IntArray
    draws: FloatArray
    node_order: IntArray


def arrivals(pods: Pods, nodes: Nodes, seed: int, ratio: float = ARRIVED) -> Arrivals:
    """The pods of the trace in random order, then such drawn from it until GPUs of `ratio` times the cluster's arrived.

    As FGD's simulator does it: the draw that would pass the limit ends it. A trace that asks for more than that loses
    pods at random. No pod ever ends.
    """
    rng = np.random.default_rng(seed)
    limit_milli = ratio * nodes.gpu_milli
    demand = pods.demand_milli
    order = rng.permutation(len(demand))
    chosen = order[: int(np.searchsorted(np.cumsum(demand[order]), limit_milli, side="right"))]
    total, extra = int(demand[chosen].sum()), []
    while len(chosen) == len(order):
        pod = int(rng.integers(len(demand)))
        if total + demand[pod] > limit_milli:
            break
        total += int(demand[pod])
        extra.append(pod)
    picked = np.concatenate([chosen, np.array(extra, dtype=np.int64)])
    return Arrivals(picked, rng.random((len(picked), 2)), rng.permutation(len(nodes.gpus)))


def with_shared_part(pods: Pods, part: float, seed: int) -> Pods:
    """A trace in which pods that share a GPU ask for `part` of all GPU, drawn with replacement from the trace.

    As many pods with GPUs as before; those without stay as they are.
    """
    rng = np.random.default_rng(seed)
    demand = pods.demand_milli
    kinds = [np.flatnonzero(chosen) for chosen in (_shares(pods), ~_shares(pods) & (pods.gpus > 0), pods.gpus == 0)]
    shared, whole, without = kinds
    mean_shared, mean_whole = demand[shared].mean(), demand[whole].mean()
    # n_shared x mean_shared : n_whole x mean_whole = part : 1 - part
    weight = part / mean_shared
    n_shared = round((len(shared) + len(whole)) * weight / (weight + (1.0 - part) / mean_whole))
    n_whole = len(shared) + len(whole) - n_shared
    return pods.of(np.concatenate([rng.choice(shared, n_shared), rng.choice(whole, n_whole), without]))


def with_named_models(pods: Pods, nodes: Nodes, part: float, seed: int) -> Pods:
    """The trace with `part` of the pods that use GPUs bound to one model each, drawn as frequent as its GPUs are.

    A model is drawn among those that have a node of the pod's size.
    """
    rng = np.random.default_rng(seed)
    models = pods.models.copy()
    gpus = np.bincount(nodes.model, weights=nodes.gpus, minlength=len(MODELS))
    for pod in np.flatnonzero(pods.gpus > 0):
        if rng.random() < part:
            large = (
                (nodes.gpus >= pods.gpus[pod])
                & (nodes.cpu_milli >= pods.cpu_milli[pod])
                & (nodes.memory_mib >= pods.memory_mib[pod])
            )
            weights = np.where(np.isin(np.arange(len(MODELS)), nodes.model[large]), gpus, 0.0)
            if weights.any():
                models[pod] = 1 << int(rng.choice(len(MODELS), p=weights / weights.sum()))
    return pods._replace(models=models)


def sample(seed: int) -> tuple[Nodes, Pods]:
    """A small cluster, and pods in the manner of the trace; all its sizes are made up."""
    rng = np.random.default_rng(seed)
    # Threads, GiB, GPUs, model: frugal nodes with much CPU, many with a little less, a few strong and lean ones.
    kinds = (
        (26, 104, 512, 2, "T4"),
        (32, 96, 384, 8, "G2"),
        (6, 64, 256, 2, "P100"),
        (4, 32, 128, 4, "V100M16"),
        (3, 128, 768, 8, "G3"),
    )
    nodes = [
        (cpus * 1000, memory_gib * 1024, gpus, MODELS.index(model))
        for count, cpus, memory_gib, gpus, model in kinds
        for _ in range(count)
    ]
    n_pods = 500
    kind = rng.choice(4, n_pods, p=[0.13, 0.38, 0.48, 0.01])
    gpus = np.array([0, 1, 1, 8])[kind]
    parts = rng.choice([160, 230, 320, 460, 470, 650, 810], n_pods, p=[0.05, 0.06, 0.14, 0.05, 0.26, 0.09, 0.35])
    gpu_milli = np.where(kind == 1, parts, np.where(kind == 0, 0, FULL_GPU_MILLI))
    cpus = np.where(
        kind == 0,
        rng.choice([8, 12, 16, 32], n_pods),
        np.where(
            kind == 3, 64, rng.choice([3, 4, 8, 11, 12, 18, 24], n_pods, p=[0.3, 0.12, 0.14, 0.3, 0.08, 0.05, 0.01])
        ),
    )
    columns = zip(*nodes, strict=True)
    return Nodes(*(np.array(column, dtype=np.int64) for column in columns)), Pods(
        cpus * 1000, cpus * 4096, gpus, gpu_milli, np.full(n_pods, ANY_MODEL)
    )


def _shares(pods: Pods) -> BoolArray:
    return np.asarray((pods.gpus == 1) & (pods.gpu_milli < FULL_GPU_MILLI))
