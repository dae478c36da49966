"""Reads and validates the nodes and pods of the Alibaba GPU 2023 trace (openb).

Alibaba publishes nodes and pods in github.com/alibaba/clusterdata, ``cluster-trace-gpu-v2023/csv``, for research. The
results of FGD's authors are ``experiments/analysis/expected_results/analysis_allo_discrete.csv`` of
github.com/hkust-adsl/kubernetes-scheduler-simulator (Apache-2.0). The files are not part of Joulie.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from joulie.domain.scoring.fragmentation import ANY_MODEL
from joulie.domain.scoring.sharing import FULL_GPU_MILLI
from joulie.domain.units import FloatArray, IntArray
from joulie_lab.adapters.published.errors import PublishedDataError

HOME = "github.com/alibaba/clusterdata, cluster-trace-gpu-v2023/csv"
DATASET = "openb"
"""Dataset name for `joulie bench fetch`."""
NODES_FILE = "openb_node_list_gpu_node.csv"
PODS_FILE = "openb_pod_list_default.csv"
REFERENCE_FILE = "fgd_reference_allocation.csv"
"""Copy of ``analysis_allo_discrete.csv``, or of its rows for the default trace."""
REFERENCE_WORKLOAD = "openb_pod_list_default"


class GpuPower(NamedTuple):
    """Power of one GPU, W."""

    idle_w: float
    limit_w: float


GPU_POWER: Mapping[str, GpuPower] = MappingProxyType(
    {
        "P100": GpuPower(25.0, 250.0),
        "T4": GpuPower(10.0, 70.0),
        "V100M16": GpuPower(30.0, 300.0),
        "V100M32": GpuPower(30.0, 300.0),
        "G2": GpuPower(30.0, 150.0),
        "A10": GpuPower(30.0, 150.0),
        "G3": GpuPower(50.0, 400.0),
    }
)
"""GPU power by model name of the trace; the anonymised G2 and G3 are assumed A10 and A100, as in the PWR paper."""
MODELS = tuple(GPU_POWER)


class Nodes(NamedTuple):
    """The nodes; arrays of shape ``(n_nodes,)``.

    Attributes:
        cpu_milli: CPU capacity, thousandths of a CPU (thread).
        memory_mib: memory capacity, MiB.
        gpus: number of GPUs, at least one.
        model: GPU model, index into `MODELS`.
    """

    cpu_milli: IntArray
    memory_mib: IntArray
    gpus: IntArray
    model: IntArray

    def of(self, order: IntArray) -> Nodes:
        """The nodes with these indices, in this order."""
        return Nodes(*(column[order] for column in self))

    @property
    def gpu_milli(self) -> int:
        """Total GPU capacity, thousandths of a GPU."""
        return int(self.gpus.sum()) * FULL_GPU_MILLI


class Pods(NamedTuple):
    """The pods; arrays of shape ``(n_pods,)``.

    Attributes:
        cpu_milli: requested CPU, thousandths of a CPU.
        memory_mib: requested memory, MiB.
        gpus: number of requested GPUs.
        gpu_milli: request on each GPU, thousandths, 1 to 1000; 0 without GPUs.
        models: bitmask of allowed GPU models by index in `MODELS`; `ANY_MODEL` for all.
    """

    cpu_milli: IntArray
    memory_mib: IntArray
    gpus: IntArray
    gpu_milli: IntArray
    models: IntArray

    def of(self, order: IntArray) -> Pods:
        """The pods with these indices, in this order."""
        return Pods(*(column[order] for column in self))

    @property
    def demand_milli(self) -> IntArray:
        """Total GPU request, thousandths of a GPU."""
        return self.gpus * self.gpu_milli


def read_nodes(lines: Iterable[str]) -> Nodes:
    """Read a node list.

    Raises:
        PublishedDataError: a line is invalid, or the list is empty.
    """
    rows = []
    for number, row in _rows(lines):
        model = row.get("model") or ""
        if model not in GPU_POWER:
            raise PublishedDataError(f"line {number}: unknown power of GPU model {model!r}")
        gpus = _count(number, row, "gpu")
        if gpus == 0:
            raise PublishedDataError(f"line {number}: a node without GPUs")
        cpu_milli, memory_mib = _count(number, row, "cpu_milli"), _count(number, row, "memory_mib")
        rows.append((cpu_milli, memory_mib, gpus, MODELS.index(model)))
    if not rows:
        raise PublishedDataError("has no nodes")
    return Nodes(*_columns(rows))


def read_pods(lines: Iterable[str]) -> Pods:
    """Read a pod list, in its order.

    Raises:
        PublishedDataError: a line is invalid, or no pod requests a GPU.
    """
    rows = []
    for number, row in _rows(lines):
        gpus, gpu_milli = _count(number, row, "num_gpu"), _count(number, row, "gpu_milli")
        if not _possible(gpus, gpu_milli):
            raise PublishedDataError(f"line {number}: invalid request of {gpus} GPUs at {gpu_milli} thousandths each")
        cpu_milli, memory_mib = _count(number, row, "cpu_milli"), _count(number, row, "memory_mib")
        rows.append((cpu_milli, memory_mib, gpus, gpu_milli, _model_bits(number, row.get("gpu_spec") or "")))
    if not any(row[2] for row in rows):
        raise PublishedDataError("has no pods with GPUs")
    return Pods(*_columns(rows))


def read_reference(lines: Iterable[str]) -> Mapping[str, FloatArray]:
    """Read the results of FGD's authors: GPU allocation by policy at 0 to 130 % arrived, percent, mean over seeds.

    Raises:
        PublishedDataError: a line is not such a curve.
    """
    runs: dict[str, list[list[float]]] = {}
    for number, row in _rows(lines):
        if row.get("workload") != REFERENCE_WORKLOAD:
            continue
        try:
            curve = [float(row.get(str(arrived)) or "") for arrived in range(131)]
        except ValueError:
            raise PublishedDataError(f"line {number}: not a curve from 0 to 130 % arrived") from None
        runs.setdefault((row.get("sc_policy") or "").partition("-")[2], []).append(curve)
    return {policy: np.mean(curves, axis=0) for policy, curves in runs.items()}


def _rows(lines: Iterable[str]) -> Iterator[tuple[int, Mapping[str, str | None]]]:
    reader = csv.DictReader(lines)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise PublishedDataError(f"line {reader.line_num}: {error}") from error


def _count(number: int, row: Mapping[str, str | None], column: str) -> int:
    text = row.get(column)
    try:
        value = int(text or "")
    except ValueError:
        raise PublishedDataError(f"line {number}: {column} {text!r} is not a whole number") from None
    if value < 0:
        raise PublishedDataError(f"line {number}: {column} {value} is negative")
    return value


def _possible(gpus: int, gpu_milli: int) -> bool:
    if gpus == 0:
        return gpu_milli == 0
    return gpu_milli == FULL_GPU_MILLI or (gpus == 1 and 0 < gpu_milli < FULL_GPU_MILLI)


def _model_bits(number: int, spec: str) -> int:
    """Bitmask of the models in ``A|B``; a model without power data is rejected."""
    bits = 0
    for name in filter(None, spec.split("|")):
        if name not in GPU_POWER:
            raise PublishedDataError(f"line {number}: gpu_spec names the unknown GPU model {name!r}")
        bits |= 1 << MODELS.index(name)
    return bits or ANY_MODEL


def _columns(rows: Sequence[tuple[int, ...]]) -> Iterator[IntArray]:
    return (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
