"""Traces: what is written is read again, and no cut tears a gang apart."""

import json
import math
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from joulie_lab.adapters.job_trace import JobTraceError, load_jobs, read_lines, write_trace
from joulie_lab.simulation.live.jobs import activity
from joulie_lab.simulation.trace import CPU_CLASSES, GPU_CLASSES, JobProfile, TraceJob, TraceMetadata
from joulie_lab.simulation.workloads.description import TraceCounter
from joulie_lab.simulation.workloads.generator import generate
from joulie_lab.simulation.workloads.settings import GeneratorSettings
from joulie_lab.simulation.workloads.transforms import Scale, Slice, scaled, sliced

JOBS = list(generate(GeneratorSettings(), seed=4, hours=3.0))
NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
TEXTS = st.text(max_size=8)
SHARES = st.floats(0.0, 1.0)
AMOUNTS = st.floats(0.0, 1e6)
LEVELS = st.sampled_from(["", "high", "medium", "low"])


@st.composite
def trace_jobs(draw: st.DrawFn) -> TraceJob:
    """Jobs that can be: with work only for what they request and use."""
    gpus = draw(st.integers(0, 8))
    cores = draw(st.integers(1, 512))
    requests: dict[str, str] = {"cpu": f"{cores}m", "memory": draw(st.sampled_from(["0", "1Gi", "1.5G", "1e9"]))}
    if gpus:
        requests[draw(st.sampled_from(["nvidia.com/gpu", "amd.com/gpu"]))] = str(gpus)
    gpu_use = draw(st.floats(0.01, 1.0)) if gpus else 0.0
    profile = JobProfile(draw(st.floats(0.01, 1.0)), gpu_use, draw(SHARES), draw(SHARES), draw(SHARES))
    optional: dict[str, Any] = {"priority_class": draw(TEXTS), "role": draw(TEXTS), "workload_type": draw(TEXTS)}
    return TraceJob(
        job_id=draw(NAMES),
        workload_id=draw(NAMES),
        submit_s=draw(AMOUNTS),
        requests=requests,
        cpu_units=draw(AMOUNTS),
        gpu_units=draw(AMOUNTS) if gpus else 0.0,
        gang=draw(st.booleans()),
        annotations=draw(st.dictionaries(NAMES, TEXTS, max_size=3)),
        node_selector=draw(st.dictionaries(NAMES, TEXTS, max_size=2)),
        cpu_class=draw(st.sampled_from(CPU_CLASSES)),
        gpu_class=draw(st.sampled_from(GPU_CLASSES)),
        profile=profile,
        cpu_sensitivity=draw(LEVELS),
        gpu_sensitivity=draw(LEVELS),
        **optional,
    )


@settings(max_examples=30)
@given(jobs=st.lists(trace_jobs(), max_size=3, unique_by=lambda job: job.job_id))
def test_what_is_written_is_read_again(jobs: list[TraceJob]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        write_trace(path, jobs)
        assert load_jobs(path, skip_bad_lines=False).jobs == jobs


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=6,
)
PLACES = [
    (),
    *(
        (key,)
        for key in ("jobId", "submitTimeOffsetSec", "podTemplate", "work", "gang", "sensitivity", "workloadClass")
    ),
    *(("podTemplate", key) for key in ("requests", "annotations", "nodeSelector", "affinity")),
    ("podTemplate", "requests", "cpu"),
    ("podTemplate", "requests", "nvidia.com/gpu"),
    ("podTemplate", "annotations", "alibabacloud.com/gpu-milli"),
    ("podTemplate", "affinity", "nodeAffinity"),
    ("work", "gpuUnits"),
    ("workloadProfile", "cpuUtilization"),
    ("sensitivity", "gpu"),
]


def with_value(line: Any, place: tuple[str, ...], value: Any) -> Any:
    if not place:
        return value
    return line | {place[0]: with_value(line.get(place[0], {}), place[1:], value)}


@settings(max_examples=100)
@given(place=st.sampled_from(PLACES), value=JSON)
def test_whatever_a_line_says_it_is_a_job_that_can_be_or_an_error(place: tuple[str, ...], value: Any) -> None:
    line = {
        "type": "job",
        "jobId": "a",
        "submitTimeOffsetSec": 1.0,
        "podTemplate": {"requests": {"cpu": "4", "nvidia.com/gpu": "1"}},
        "work": {"cpuUnits": 10.0, "gpuUnits": 5.0},
        "workloadProfile": {"cpuUtilization": 0.5, "gpuUtilization": 0.5},
    }
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        path.write_text(json.dumps(with_value(line, place, value)) + "\n", encoding="utf-8")
        for item in read_lines(path):
            assert isinstance(item, TraceJob | TraceMetadata | JobTraceError)
            if isinstance(item, TraceJob):
                description = TraceCounter.from_jobs([item]).description()
                assert math.isfinite(description.core_hours + description.gpu_hours)
                activity(item)
                write_trace(path, [item])


@settings(max_examples=60)
@given(
    from_s=st.floats(0.0, 9000.0),
    length_s=st.floats(1.0, 9000.0),
    first=st.none() | st.integers(1, 100),
    rate=st.floats(0.0, 3.0),
)
def test_gangs_are_kept_whole_or_not_at_all(from_s: float, length_s: float, first: int | None, rate: float) -> None:
    part = sliced(JOBS, Slice(from_s, from_s + length_s, (), first))
    kept = [line for line in scaled(part, Scale(rate=rate)) if isinstance(line, TraceJob)]
    whole = Counter(job.workload_id for job in JOBS if job.gang)
    for gang, members in Counter(job.workload_id for job in kept if job.gang).items():
        assert members == whole[gang.partition("-c")[0]]
    assert all(0.0 <= job.submit_s < length_s + 1800.0 for job in kept)
