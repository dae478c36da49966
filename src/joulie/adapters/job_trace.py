"""Job traces as JSON lines: a `TraceJob` for each line of type job, and the number of each line that is broken.

Source: spec, simulator, workloads. Lines of other types describe workloads and are passed over.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from joulie.domain.trace import JobProfile, TraceJob

_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_MAX_NAME = 200
"""Leaves room for what a pod's name adds to the job's."""


class JobTraceError(ValueError):
    """A line that is no job, or a file that cannot be read; the message names file and line."""


class _Wire(Struct, rename="camel"):
    pass


class _Template(_Wire):
    requests: dict[str, str | int | float]
    annotations: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    affinity: dict[str, Any] | None = None
    priority_class_name: str = ""


class _Work(_Wire):
    cpu_units: float = 0.0
    gpu_units: float = 0.0


class _Class(_Wire):
    cpu: str = "cpu.mixed"
    gpu: str = "gpu.mixed"


class _Profile(_Wire):
    cpu_utilization: float = 0.5
    gpu_utilization: float | None = None
    memory_intensity: float = 0.0
    io_intensity: float = 0.0
    cpu_feed_intensity_gpu: float = 0.0


class _Job(_Wire):
    job_id: Annotated[str, Meta(pattern=_NAME, max_length=_MAX_NAME)]
    submit_time_offset_sec: float
    pod_template: _Template
    work: _Work
    type: str = "job"
    workload_id: str = ""
    workload_type: str = ""
    pod_role: str = ""
    gang: bool = False
    namespace: str = "default"
    workload_class: _Class = field(default_factory=_Class)
    workload_profile: _Profile = field(default_factory=_Profile)


class _Line(_Wire):
    type: str = ""


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_job = msgspec.json.Decoder(_Job).decode


def read_trace(path: Path) -> Iterator[TraceJob | JobTraceError]:
    """The jobs of a trace, line by line, in the order of the file; for a broken line its error.

    Args:
        path: the file; ``.gz`` is unpacked on the way.

    Raises:
        JobTraceError: the file cannot be read.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    if _decode_line(line).type == "job":
                        yield _job(_decode_job(line))
                except (msgspec.MsgspecError, ValueError) as error:
                    yield JobTraceError(f"{path}:{number}: {error}")
    except OSError as error:
        raise JobTraceError(f"{path}: cannot be read: {error.strerror or error}") from error


def _job(wire: _Job) -> TraceJob:
    template, profile = wire.pod_template, wire.workload_profile
    gpu_utilization = profile.gpu_utilization
    if gpu_utilization is None:
        gpu_utilization = 1.0 if wire.work.gpu_units > 0.0 else 0.0
    return TraceJob(
        job_id=wire.job_id,
        workload_id=wire.workload_id or wire.job_id,
        submit_s=wire.submit_time_offset_sec,
        requests={name: str(amount) for name, amount in template.requests.items()},
        cpu_units=wire.work.cpu_units,
        gpu_units=wire.work.gpu_units,
        workload_type=wire.workload_type,
        role=wire.pod_role,
        gang=wire.gang,
        namespace=wire.namespace,
        annotations=template.annotations,
        node_selector=template.node_selector,
        affinity=template.affinity,
        priority_class=template.priority_class_name,
        cpu_class=wire.workload_class.cpu.removeprefix("cpu."),
        gpu_class=wire.workload_class.gpu.removeprefix("gpu."),
        profile=JobProfile(
            cpu_utilization=profile.cpu_utilization,
            gpu_utilization=gpu_utilization,
            memory_intensity=profile.memory_intensity,
            io_intensity=profile.io_intensity,
            cpu_feed_intensity_gpu=profile.cpu_feed_intensity_gpu,
        ),
    )
