"""Reads and writes job traces as JSON lines: each line of type job is a `TraceJob`; errors name the line number.

Source: spec, simulator, workloads. Lines of type workload describe jobs; tools that rewrite a trace preserve them.
"""

from __future__ import annotations

import gzip
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple, cast

import msgspec
from msgspec import Meta, Struct, field

from joulie.domain.workload import Level
from joulie.output_files import STANDARD_STREAM, output_file
from joulie_lab.simulation.trace import CPU_CLASSES, GPU_CLASSES, JobProfile, TraceJob, TraceLine, TraceMetadata

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
# Python's $ also matches before a trailing line break, that of JSON Schema does not; this is the end in both.
_END = r"(?!\n)$"
_NAME = rf"^{_LABEL}(\.{_LABEL})*{_END}"
_NAMESPACE = rf"^{_LABEL}{_END}"
_MAX_NAMESPACE = 63
_MAX_NAME = 200
"""Maximum length of a job's name; leaves space for the suffix of its pods' names."""
_MAX_LINE_BYTES = 1 << 20
_SHOWN_PROBLEMS = 10
_LEVELS = (Level.LOW, Level.MEDIUM, Level.HIGH)

_Share = Annotated[float, Meta(ge=0.0, le=1.0)]


class JobTraceError(ValueError):
    """Invalid line, or a file that cannot be read or written; the message names file and line."""


class LoadedTrace(NamedTuple):
    """A complete trace: its jobs, and the errors of the lines that were skipped."""

    jobs: list[TraceJob]
    problems: list[JobTraceError]


class _Wire(Struct, rename="camel", omit_defaults=True):
    pass


class PodTemplate(_Wire):
    """Fields of the pod that differ between jobs."""

    requests: Annotated[
        dict[str, str | int | float],
        Meta(
            description="Resource requests as Kubernetes quantities: `cpu`, `memory`, `nvidia.com/gpu` or `amd.com/gpu`"
        ),
    ]
    annotations: Annotated[
        dict[str, str],
        Meta(
            description="`joulie.io/workload-class: performance` marks a job that must not be slowed down,"
            " `alibabacloud.com/gpu-milli` is the share of one GPU that it needs, in thousandths"
        ),
    ] = {}
    node_selector: Annotated[dict[str, str], Meta(description="As in a pod's spec")] = {}
    affinity: Annotated[dict[str, Any] | None, Meta(description="As in a pod's spec")] = None
    priority_class_name: Annotated[str, Meta(description="As in a pod's spec")] = ""


class Work(_Wire, omit_defaults=False):
    """Amount of work of the job; CPU and GPU work proceed in parallel."""

    cpu_units: Annotated[float, Meta(description="Core-seconds at the highest clock")] = 0.0
    gpu_units: Annotated[float, Meta(description="GPU-seconds without a cap; for a shared GPU, of its share")] = 0.0


class Sensitivity(_Wire):
    """Sensitivity of the job to caps: a level, or a number from 0 to 1, each third of which is one level."""

    cpu: Annotated[Level | _Share | None, Meta(description="To caps on CPUs")] = None
    gpu: Annotated[Level | _Share | None, Meta(description="To caps on GPUs")] = None


class WorkloadClass(_Wire):
    """Bottleneck of the work."""

    cpu: Annotated[str, Meta(description=f"`cpu.` and one of {', '.join(CPU_CLASSES)}; default mixed")] = ""
    gpu: Annotated[str, Meta(description=f"`gpu.` and one of {', '.join(GPU_CLASSES)}; default mixed")] = ""


class WorkloadProfile(_Wire):
    """Utilisation of the requested resources."""

    cpu_utilization: Annotated[_Share, Meta(description="Of its cores")] = 0.5
    gpu_utilization: Annotated[
        _Share | None, Meta(description="Utilisation of its GPUs; defaults to 1 for jobs with GPU work")
    ] = None
    memory_intensity: Annotated[_Share, Meta(description="Share of its work that waits for memory")] = 0.0
    io_intensity: Annotated[_Share, Meta(description="Share of its work that waits for input and output")] = 0.0
    cpu_feed_intensity_gpu: Annotated[_Share, Meta(description="Share of its GPU work that waits for its CPU work")] = (
        0.0
    )


class Job(_Wire, tag_field="type", tag="job"):
    """A job of the trace, which runs as one pod."""

    job_id: Annotated[
        str, Meta(pattern=_NAME, max_length=_MAX_NAME, description="Unique in the trace; part of the pod's name")
    ]
    submit_time_offset_sec: Annotated[
        float, Meta(ge=0.0, description="Submission time, s after the start of the trace")
    ]
    pod_template: PodTemplate
    work: Work
    workload_id: Annotated[str, Meta(description="Workload that it belongs to; the job itself if omitted")] = ""
    workload_type: Annotated[str, Meta(description="Family, for reports")] = ""
    pod_role: Annotated[str, Meta(description="Role of the pod in its workload: launcher, worker, ps, trial")] = ""
    gang: Annotated[bool, Meta(description="Whether the pods of the workload make progress only together")] = False
    namespace: Annotated[
        str, Meta(pattern=_NAMESPACE, max_length=_MAX_NAMESPACE, description="Namespace of the pod")
    ] = "default"
    owner: Annotated[
        str, Meta(description="The same for all runs of a workload that recurs; empty for one that does not")
    ] = ""
    sensitivity: Sensitivity = field(default_factory=Sensitivity)
    workload_class: WorkloadClass = field(default_factory=WorkloadClass)
    workload_profile: WorkloadProfile = field(default_factory=WorkloadProfile)


class _Line(_Wire):
    type: str = ""


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_job = msgspec.json.Decoder(Job).decode
_decode_values = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder(order="deterministic").encode
_is_name = re.compile(_NAME).search


def read_trace(path: Path) -> Iterator[TraceJob | JobTraceError]:
    """Iterate over the jobs of a trace, in the order of the file; yields an error for an invalid line.

    Args:
        path: the file, `STANDARD_STREAM` for standard input; gzip is decompressed transparently.

    Raises:
        JobTraceError: the file cannot be read, or only in part.
    """
    return (item for item in read_lines(path) if not isinstance(item, TraceMetadata))


def read_lines(path: Path) -> Iterator[TraceLine | JobTraceError]:
    """Like `read_trace`, including the lines that describe jobs."""
    return (item for _, item in read_numbered(path))


def read_numbered(path: Path) -> Iterator[tuple[int, TraceLine | JobTraceError]]:
    """Like `read_lines`, with line numbers. Only the names of jobs are kept in memory."""
    first_lines: dict[str, int] = {}
    for number, line in _numbered_lines(path):
        try:
            item = _parse(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            yield number, JobTraceError(f"{path}:{number}: {error}")
            continue
        if isinstance(item, TraceJob) and (first := first_lines.setdefault(item.job_id, number)) != number:
            yield number, JobTraceError(f"{path}:{number}: duplicate jobId {item.job_id}, first used in line {first}")
        else:
            yield number, item


def load_jobs(path: Path, *, skip_bad_lines: bool) -> LoadedTrace:
    """Load all jobs of a trace, in the order of the file.

    Raises:
        JobTraceError: the file cannot be read, or has invalid lines that are not to be skipped; the message has the
            first errors, one per line, and the number of further ones.
    """
    loaded = LoadedTrace([], [])
    for item in read_trace(path):
        if isinstance(item, TraceJob):
            loaded.jobs.append(item)
        else:
            loaded.problems.append(item)
    if loaded.problems and not skip_bad_lines:
        more = len(loaded.problems) - _SHOWN_PROBLEMS
        shown = [str(problem) for problem in loaded.problems[:_SHOWN_PROBLEMS]]
        raise JobTraceError("\n".join([*shown, f"and {more} more"] if more > 0 else shown))
    return loaded


def line_schema() -> dict[str, Any]:
    """JSON Schema of a job line of a trace."""
    schema = msgspec.json.schema(Job)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def write_trace(path: Path, lines: Iterable[TraceLine], metadata: Mapping[str, Any] | None = None) -> int:
    """Write a trace atomically; the output is reproducible.

    Args:
        path: the file, compressed if its name ends in ``.gz``; `STANDARD_STREAM` for standard output.
        lines: jobs, and lines that describe them.
        metadata: first line, which describes all jobs.

    Returns:
        The number of jobs.

    Raises:
        JobTraceError: the file cannot be written, or a job is invalid and could not be read again.
    """
    jobs = 0
    try:
        with _output(path) as out:
            if metadata is not None:
                out.write(_encoded(TraceMetadata(metadata)))
            for line in lines:
                if isinstance(line, TraceJob):
                    _check_written(path, line)
                    jobs += 1
                out.write(_encoded(line))
    except BrokenPipeError:  # the reader of standard output has closed the pipe, which is not an error
        raise
    except OSError as error:
        raise JobTraceError(f"{path}: cannot be written: {error.strerror or error}") from error
    return jobs


def _numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The non-empty lines with their numbers; a line that is too long is truncated."""
    number = 0
    try:
        with _unpacked(path) as stream:
            while line := stream.readline(_MAX_LINE_BYTES + 1):
                number += 1
                rest = line
                while len(rest) > _MAX_LINE_BYTES and not rest.endswith(b"\n"):
                    rest = stream.readline(_MAX_LINE_BYTES + 1)
                if line.strip():
                    yield number, line
    except (EOFError, zlib.error) as error:
        raise JobTraceError(
            f"{path}: cannot be read after line {number}: the compressed file is cut off or damaged"
        ) from error
    except OSError as error:
        raise JobTraceError(f"{path}: cannot be read: {error.strerror or error}") from error


@contextmanager
def _unpacked(path: Path) -> Iterator[BinaryIO]:
    with sys.stdin.buffer if path == STANDARD_STREAM else path.open("rb") as packed:
        # Peeking does not consume the bytes, so that a pipe may be compressed too.
        if cast("Any", packed).peek(2)[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=packed) as stream:
                yield cast("BinaryIO", stream)
        else:
            yield packed


def _parse(line: bytes) -> TraceLine:
    """Parse a line.

    Raises:
        ValueError: it is not JSON, or not a valid job.
    """
    if len(line) > _MAX_LINE_BYTES:
        raise ValueError(f"longer than {_MAX_LINE_BYTES} bytes")
    match _decode_line(line).type:
        case "job":
            job = _job(_decode_job(line))
            _check(job)
            return job
        case "workload":
            return TraceMetadata({name: value for name, value in _decode_values(line).items() if name != "type"})
        case other:
            raise ValueError(f"invalid type {other!r}; use job or workload")


def _check(job: TraceJob) -> None:
    """Evaluate the derived values of a job, which raise for invalid input."""
    _ = job.shape, job.ideal_s, job.node_rules


def _check_written(path: Path, job: TraceJob) -> None:
    if not _is_name(job.job_id) or len(job.job_id) > _MAX_NAME:
        raise JobTraceError(
            f"{path}: invalid jobId {job.job_id!r}: it must be a valid pod name of at most {_MAX_NAME} characters"
        )
    try:
        _check(job)
    except ValueError as error:
        raise JobTraceError(f"{path}: {job.job_id} is not written: {error}") from error


def _job(wire: Job) -> TraceJob:
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
        cpu_class=wire.workload_class.cpu.removeprefix("cpu.") or "mixed",
        gpu_class=wire.workload_class.gpu.removeprefix("gpu.") or "mixed",
        profile=JobProfile(
            cpu_utilization=profile.cpu_utilization,
            gpu_utilization=gpu_utilization,
            memory_intensity=profile.memory_intensity,
            io_intensity=profile.io_intensity,
            cpu_feed_intensity_gpu=profile.cpu_feed_intensity_gpu,
        ),
        cpu_sensitivity=_level(wire.sensitivity.cpu),
        gpu_sensitivity=_level(wire.sensitivity.gpu),
        owner=wire.owner,
    )


def _level(sensitivity: Level | float | None) -> str:
    if isinstance(sensitivity, Level | None):
        return sensitivity or ""
    return _LEVELS[min(int(sensitivity * len(_LEVELS)), len(_LEVELS) - 1)]


def _encoded(line: TraceLine) -> bytes:
    if isinstance(line, TraceMetadata):
        return msgspec.json.encode({"type": "workload"} | dict(line.values)) + b"\n"
    return _encode(_wire(line)) + b"\n"


def _wire(job: TraceJob) -> Job:
    profile = job.profile
    return Job(
        job_id=job.job_id,
        workload_id="" if job.workload_id == job.job_id else job.workload_id,
        workload_type=job.workload_type,
        pod_role=job.role,
        gang=job.gang,
        submit_time_offset_sec=job.submit_s,
        namespace=job.namespace,
        owner=job.owner,
        pod_template=PodTemplate(
            requests=dict(job.requests),
            annotations=dict(job.annotations),
            node_selector=dict(job.node_selector),
            affinity=None if job.affinity is None else dict(job.affinity),
            priority_class_name=job.priority_class,
        ),
        work=Work(job.cpu_units, job.gpu_units),
        sensitivity=Sensitivity(
            Level(job.cpu_sensitivity) if job.cpu_sensitivity else None,
            Level(job.gpu_sensitivity) if job.gpu_sensitivity else None,
        ),
        workload_class=WorkloadClass(_class("cpu", job.cpu_class), _class("gpu", job.gpu_class)),
        workload_profile=WorkloadProfile(
            cpu_utilization=profile.cpu_utilization,
            gpu_utilization=profile.gpu_utilization,
            memory_intensity=profile.memory_intensity,
            io_intensity=profile.io_intensity,
            cpu_feed_intensity_gpu=profile.cpu_feed_intensity_gpu,
        ),
    )


def _class(part: str, name: str) -> str:
    return "" if name == "mixed" else f"{part}.{name}"


@contextmanager
def _output(path: Path) -> Iterator[BinaryIO]:
    """Output stream, whose content is moved to `path` when it is complete."""
    with output_file(path) as part, part.open("wb") as out:
        if path.suffix == ".gz":
            # Without name and time in the gzip header, so that the output is reproducible.
            with gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0) as packed:
                yield cast("BinaryIO", packed)
        else:
            yield out
