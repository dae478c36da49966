"""Nodes and jobs of the demo: three families of hardware, arrivals that rise to a peak and fall again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulie.adapters.kubernetes import names
from joulie_lab.simulation.experiment.scenario import NodeGroup

JOB_NAMESPACE = "default"
_RACK_NODES = 4
_PEAK_AT = 0.4
"""Time of the arrival peak, as a fraction of the trace."""


@dataclass(frozen=True)
class NodeFamily:
    """Nodes of one kind.

    Attributes:
        prefix: prefix of the node names.
        cpu_model: value of the CPU model label.
        sockets: CPU sockets per node.
        cores: cores per node.
        memory_gib: memory per node, GiB.
        gpu_model: value of the GPU model label; empty without GPUs.
        gpus: GPUs per node.
    """

    prefix: str
    cpu_model: str
    sockets: int
    cores: int
    memory_gib: int
    gpu_model: str = ""
    gpus: int = 0


FAMILIES = (
    NodeFamily("cpu", "AMD EPYC 9965", 2, 384, 1536),
    NodeFamily("h100", "AMD EPYC 9654", 2, 192, 1536, "NVIDIA H100 NVL", 8),
    NodeFamily("l40s", "Intel Xeon Gold 6530", 2, 64, 512, "NVIDIA L40S", 4),
)


def demo_nodes(count: int) -> list[dict[str, Any]]:
    """Manifests of `count` nodes: one of each family in turn, in racks of four."""
    numbered = [(FAMILIES[index % len(FAMILIES)], index // len(FAMILIES)) for index in range(count)]
    numbered.sort(key=lambda pair: (FAMILIES.index(pair[0]), pair[1]))
    return [_node(family, number, position) for position, (family, number) in enumerate(numbered)]


def demo_trace(seed: int, jobs: int, length_s: float) -> Iterator[Mapping[str, Any]]:
    """Lines of a JSONL trace: `jobs` jobs over `length_s` simulated seconds, in order of submission.

    A quarter are of class performance; half use GPUs. Durations are log-normal around eight minutes.
    """
    rng = np.random.default_rng(seed)
    arrivals_s = np.sort(np.clip(rng.normal(_PEAK_AT, 0.2, jobs), 0.0, 1.0)) * length_s
    for number, arrival_s in enumerate(arrivals_s):
        duration_s = float(np.clip(rng.lognormal(np.log(480.0), 0.5), 120.0, 1800.0))
        gpus = int(rng.choice([0, 1, 2, 4], p=[0.5, 0.25, 0.15, 0.1]))
        cores = int(rng.choice([8, 16, 32])) if gpus else int(rng.choice([16, 32, 64, 96]))
        cpu_util = float(rng.uniform(0.3, 0.5)) if gpus else float(rng.uniform(0.7, 0.95))
        gpu_util = float(rng.uniform(0.6, 0.95)) if gpus else 0.0
        requests: dict[str, Any] = {"cpu": str(cores), "memory": f"{2 * cores}Gi"}
        if gpus:
            requests["nvidia.com/gpu"] = str(gpus)
        annotations = {names.WORKLOAD_CLASS_ANNOTATION: "performance"} if rng.random() < 0.25 else {}
        yield {
            "type": "job",
            "jobId": f"{'train' if gpus else 'batch'}-{number:03d}",
            "submitTimeOffsetSec": round(float(arrival_s), 1),
            "namespace": JOB_NAMESPACE,
            "podTemplate": {"requests": requests, "annotations": annotations},
            "work": {"cpuUnits": duration_s * cores * cpu_util, "gpuUnits": duration_s * gpus * gpu_util},
            "workloadClass": {
                "cpu": "cpu.mixed" if gpus else "cpu.compute_bound",
                "gpu": "gpu.compute_bound",
            },
            "workloadProfile": {
                "cpuUtilization": cpu_util,
                "gpuUtilization": gpu_util,
                "memoryIntensity": float(rng.uniform(0.0, 0.4)),
                "cpuFeedIntensityGpu": 0.1 if gpus else 0.0,
            },
        }


def demo_groups(count: int) -> tuple[NodeGroup, ...]:
    """The same nodes as `demo_nodes`, as groups of an experiment."""
    return tuple(
        NodeGroup(
            name=family.prefix,
            count=len(range(index, count, len(FAMILIES))),
            cpu=family.cpu_model,
            sockets=family.sockets,
            cores=family.cores,
            memory_gib=family.memory_gib,
            gpu=family.gpu_model or None,
            gpus=family.gpus,
        )
        for index, family in enumerate(FAMILIES)
    )


def _node(family: NodeFamily, number: int, position: int) -> dict[str, Any]:
    name = f"{family.prefix}-{number}"
    labels = {
        "kubernetes.io/hostname": name,
        "type": "kwok",
        names.MANAGED_LABEL: "true",
        names.RACK_LABEL: f"rack-{position // _RACK_NODES}",
        names.COOLING_ZONE_LABEL: "hall-a",
        names.HW_CPU_MODEL_LABEL: family.cpu_model,
        names.HW_CPU_SOCKETS_LABEL: str(family.sockets),
    }
    allocatable = {"cpu": str(family.cores), "memory": f"{family.memory_gib}Gi", "pods": "110"}
    if family.gpus:
        labels |= {names.HW_GPU_MODEL_LABEL: family.gpu_model, names.HW_GPU_COUNT_LABEL: str(family.gpus)}
        allocatable["nvidia.com/gpu"] = str(family.gpus)
    # Label values cannot contain spaces; the hardware catalogue reads dashes instead.
    labels = {key: value.replace(" ", "-") for key, value in labels.items()}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}},
        "status": {
            "allocatable": allocatable,
            "capacity": allocatable,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }
