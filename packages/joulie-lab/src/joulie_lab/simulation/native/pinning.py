"""Jobs that name the GPU model that they need, as jobs of real clusters do whose owners measured where they run."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from joulie.domain.hardware.resolve import GPU_MODEL_KEY
from joulie_lab.simulation.native.nodes import SimNode
from joulie_lab.simulation.trace import TraceJob


def pinned(jobs: Iterable[TraceJob], nodes: Sequence[SimNode], seed: int) -> list[TraceJob]:
    """The jobs, each workload with GPUs, in all of its runs, bound by a node selector to one GPU model of the cluster.

    The model is drawn by the number of its GPUs, among those whose nodes can hold each pod of the workload; a workload
    that no node can hold is left as it is.

    Args:
        jobs: in any order.
        nodes: of the cluster.
        seed: of the run.
    """
    every = list(jobs)
    workloads: defaultdict[str, list[TraceJob]] = defaultdict(list)
    for job in every:
        if job.shape.gpus:
            workloads[job.known_as].append(job)
    models = {name: _model(name, pods, nodes, seed) for name, pods in workloads.items()}

    def bound(job: TraceJob) -> TraceJob:
        model = models.get(job.known_as) if job.shape.gpus else None
        return job if model is None else replace(job, node_selector={**job.node_selector, GPU_MODEL_KEY: model})

    return [bound(job) for job in every]


def _model(workload: str, pods: Sequence[TraceJob], nodes: Sequence[SimNode], seed: int) -> str | None:
    weights: defaultdict[str, float] = defaultdict(float)
    for node in nodes:
        if node.spec.gpu is not None and all(_holds(node, pod) for pod in pods):
            weights[node.labels[GPU_MODEL_KEY]] += node.spec.gpus
    if not weights:
        return None
    names = sorted(weights)
    shares = np.array([weights[name] for name in names])
    rng = np.random.default_rng([zlib.crc32(workload.encode()), seed])
    return names[int(rng.choice(len(names), p=shares / shares.sum()))]


def _holds(node: SimNode, pod: TraceJob) -> bool:
    fits = pod.shape.gpus <= node.spec.gpus and pod.shape.cores <= node.spec.cores
    return node.gpu_resource in pod.requests and fits
