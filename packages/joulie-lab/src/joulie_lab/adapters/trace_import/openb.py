"""Imports Alibaba's GPU trace of 2023 (openb): pods of a cluster with shared GPUs, and its nodes.

Format: cluster-trace-gpu-v2023 of github.com/alibaba/clusterdata. Times are s after the start of the trace.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulie.domain.hardware.builtin import BUILTIN_CATALOGUE
from joulie_lab.adapters.trace_import.rows import Row, parsed, read_rows
from joulie_lab.adapters.trace_import.source_jobs import (
    ImportProblem,
    LeftOut,
    Parsed,
    SourceJob,
    SourcePods,
    gpu_model_name,
)

_POD_COLUMNS = (
    *("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos"),
    *("creation_time", "deletion_time", "scheduled_time"),
)
_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_MILLI = 1000.0
_MIB_PER_GIB = 1024.0
_THREADS_PER_CORE = 2
NEVER_SCHEDULED = "never scheduled"


@dataclass(frozen=True)
class OpenbOptions:
    """Import options of the trace.

    Attributes:
        performance_qos: QoS classes whose pods are of class performance.
        unscheduled_s: runtime of pods that were never scheduled, s; None excludes them. The default is the median
            runtime of the scheduled pods.
    """

    performance_qos: tuple[str, ...] = ("LS", "Guaranteed")
    unscheduled_s: float | None = 616.0


DEFAULT_OPTIONS = OpenbOptions()


@dataclass(frozen=True)
class OpenbCluster:
    """The node list as groups of identical nodes.

    Attributes:
        groups: groups in the format of a cluster file.
        problems: problems of invalid lines.
    """

    groups: tuple[dict[str, Any], ...]
    problems: tuple[ImportProblem, ...]


def jobs(pods: Path, options: OpenbOptions = DEFAULT_OPTIONS) -> Iterator[Parsed]:
    """Read the pods of a pod list, in order of their creation.

    A pod runs from its scheduling to its deletion, regardless of its last phase: failed pods have used their nodes,
    too.

    Raises:
        TraceSourceError: the file cannot be read or is not a pod list.
    """
    return parsed(read_rows(pods, _POD_COLUMNS), lambda row: _job(row, options))


def cluster(nodes: Path, cpu: str) -> OpenbCluster:
    """Read the nodes of a node list.

    Args:
        nodes: the file.
        cpu: CPU model of all nodes; the list does not name any.

    Raises:
        TraceSourceError: the file cannot be read or is not a node list.
        ValueError: the CPU is not in the catalogue.
    """
    model = BUILTIN_CATALOGUE.cpu(cpu).model
    if model is None:
        raise ValueError(f"the catalogue has no CPU {cpu!r}")
    threads_per_socket = _THREADS_PER_CORE * model.cores_per_socket
    counts: Counter[tuple[float, float, int, str]] = Counter()
    problems: list[ImportProblem] = []
    for row in read_rows(nodes, _NODE_COLUMNS):
        if isinstance(row, ImportProblem):
            problems.append(row)
            continue
        try:
            counts[_node_kind(row)] += 1
        except ValueError as error:
            problems.append(ImportProblem(row.place, str(error)))
    groups = (_group(kind, count, cpu, threads_per_socket) for kind, count in counts.items())
    return OpenbCluster(tuple(groups), tuple(problems))


def _job(row: Row, options: OpenbOptions) -> SourceJob | LeftOut:
    created_s, scheduled_s = row.number("creation_time"), row.known_number("scheduled_time")
    if scheduled_s is not None:
        duration_s = row.number("deletion_time") - scheduled_s
    elif options.unscheduled_s is not None:
        duration_s = options.unscheduled_s
    else:
        return LeftOut(row.place, NEVER_SCHEDULED)
    memory_gib = row.number("memory_mib") / _MIB_PER_GIB
    pod = SourcePods(cores=row.number("cpu_milli") / _MILLI, gpus=_gpus(row), memory_gib=memory_gib)
    qos, spec = row.text("qos"), row.text("gpu_spec")
    return SourceJob(
        place=row.place,
        name=row.text("name"),
        submit_s=created_s,
        duration_s=duration_s,
        pods=(pod,),
        kind=qos,
        performance=qos in options.performance_qos,
        gpu_models=tuple(spec.split("|")) if spec else (),
    )


def _gpus(row: Row) -> float:
    """Number of GPUs, or the share of one GPU."""
    gpus, milli = row.number("num_gpu"), row.number("gpu_milli")
    if gpus != 1.0:
        if gpus < 0.0 or gpus != int(gpus) or (gpus > 0.0 and milli != _MILLI):
            raise ValueError(f"num_gpu is {gpus:g} with gpu_milli {milli:g}: only one GPU can be shared")
        return gpus
    if not 0.0 < milli <= _MILLI:
        raise ValueError(f"gpu_milli is {milli:g}, it must be 1..1000")
    return milli / _MILLI


def _node_kind(row: Row) -> tuple[float, float, int, str]:
    """Cores, memory in GiB, GPUs and their model."""
    cores, memory_gib = row.number("cpu_milli") / _MILLI, row.number("memory_mib") / _MIB_PER_GIB
    gpus, model = row.number("gpu"), row.text("model")
    if cores <= 0.0 or memory_gib <= 0.0 or gpus < 0.0 or gpus != int(gpus):
        raise ValueError(f"a node of {cores:g} cores, {memory_gib:g} GiB and {gpus:g} GPUs")
    if gpus and BUILTIN_CATALOGUE.gpu(model).model is None:
        raise ValueError(f"the catalogue has no GPU {model!r}")
    return cores, memory_gib, int(gpus), model if gpus else ""


def _group(kind: tuple[float, float, int, str], count: int, cpu: str, threads_per_socket: int) -> dict[str, Any]:
    cores, memory_gib, gpus, model = kind
    hardware = f"{model.lower()}x{gpus}" if gpus else "cpu"
    group: dict[str, Any] = {
        "name": f"{hardware}-{cores:g}c-{memory_gib:g}g".replace(".", "-"),
        "count": count,
        "cpu": cpu,
        "sockets": math.ceil(cores / threads_per_socket),
        "cores": cores,
        "memory_gib": memory_gib,
    }
    if gpus:
        group |= {"gpu": gpu_model_name(model), "gpus": gpus}
    return group
