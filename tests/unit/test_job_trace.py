import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from joulie_lab.adapters.job_trace import (
    STANDARD_STREAM,
    JobTraceError,
    line_schema,
    load_jobs,
    read_lines,
    read_trace,
    write_trace,
)
from joulie_lab.simulation.trace import JobProfile, TraceJob, TraceLine, TraceMetadata


def line(**changes: Any) -> dict[str, Any]:
    return {
        "type": "job",
        "jobId": "job-1",
        "submitTimeOffsetSec": 10,
        "podTemplate": {"requests": {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": 1}},
        "work": {"cpuUnits": 480.0, "gpuUnits": 60},
        "workloadClass": {"cpu": "cpu.memory_bound", "gpu": "gpu.compute_bound"},
        "workloadProfile": {"cpuUtilization": 0.5, "gpuUtilization": 0.9, "memoryIntensity": 0.3},
    } | changes


def template(**changes: Any) -> dict[str, Any]:
    return {"requests": {"cpu": "8", "nvidia.com/gpu": "1"}} | changes


def write(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(item if isinstance(item, str) else json.dumps(item) for item in lines) + "\n")
    return path


def test_a_job_is_read_and_metadata_passed_over(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", {"type": "workload", "workloadId": "w"}, "", line())
    assert list(read_trace(trace)) == [
        TraceJob(
            job_id="job-1",
            workload_id="job-1",
            submit_s=10.0,
            requests={"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "1"},
            cpu_units=480.0,
            gpu_units=60.0,
            cpu_class="memory_bound",
            gpu_class="compute_bound",
            profile=JobProfile(cpu_utilization=0.5, gpu_utilization=0.9, memory_intensity=0.3),
        )
    ]


def test_gzip_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(line()).encode()))
    assert len(list(read_trace(path))) == 1


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ('{"type": "job"', "t.jsonl:2"),
        (line(submitTimeOffsetSec=-1), "submitTimeOffsetSec"),
        (line(work={"cpuUnits": -5}), "work.cpuUnits"),
        (line(jobId="Not A Name"), "jobId"),
        (line(workloadProfile={"cpuUtilization": 0.0}), "never end"),
        (line(workloadProfile={"cpuUtilization": 1.5}), "cpuUtilization"),
        ({"type": "job"}, "jobId"),
        (line(submitTimeOffsetSec=float("nan")), "invalid"),
        (line(work={"cpuUnits": 1e308 * 10}), "invalid"),
        (line(podTemplate={"requests": {"cpu": "8 cores"}}), "invalid quantity '8 cores'"),
        (line(podTemplate={"requests": {"cpu": "-1"}}), "cpu: must be within"),
        (line(podTemplate={"requests": {"cpu": "1", "nvidia.com/gpu": "1.5"}}), "whole GPUs only"),
        (line(podTemplate={"requests": {"cpu": 1, "nvidia.com/gpu": 1, "amd.com/gpu": 1}}), "one kind of GPU"),
        (line(podTemplate={"requests": {"cpu": "1"}}), "work.gpuUnits of a job that does not request"),
        (line(podTemplate=template(annotations={"alibabacloud.com/gpu-milli": "0"})), "gpu-milli"),
        (line(podTemplate=template(affinity={"nodeAffinity": []})), "nodeAffinity: must be a mapping"),
        (line(workloadClass={"cpu": "cpu.fast"}), "workloadClass.cpu: 'fast' is not one of compute_bound"),
        (line(sensitivity={"cpu": "enormous"}), "sensitivity.cpu"),
        (line(sensitivity={"gpu": 1.5}), "sensitivity.gpu"),
        (line(), "duplicate jobId job-1, first used in line 1"),
        (line(jobId="job-1\n"), "jobId"),
        (line(jobId="a..b"), "jobId"),
        (line(namespace="My Team"), "namespace"),
        (line(type="Job"), "invalid type 'Job'; use job or workload"),
        ({}, "invalid type ''; use job or workload"),
        (
            line(
                podTemplate=template(
                    requests={"cpu": 1, "nvidia.com/gpu": 2}, annotations={"alibabacloud.com/gpu-milli": "500"}
                )
            ),
            "only one GPU can be shared",
        ),
        ('{"type": "job", "jobId": "' + "x" * 1100000 + '"}', "longer than"),
        ("[" * 100_000, "t.jsonl:2"),
        ('"text"', "t.jsonl:2"),
        (b"\xff\xfe".decode("latin1"), "t.jsonl:2"),
    ],
)
def test_a_broken_line_is_named_and_the_others_are_read(tmp_path: Path, broken: Any, says: str) -> None:
    first, error, last = read_trace(write(tmp_path / "t.jsonl", line(), broken, line(jobId="job-2")))
    assert isinstance(first, TraceJob)
    assert isinstance(last, TraceJob)
    assert isinstance(error, JobTraceError)
    assert "t.jsonl:2: " in str(error)
    assert says in str(error)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(JobTraceError, match="cannot be read: No such file"):
        list(read_trace(tmp_path / "none.jsonl"))


def job(**changes: Any) -> TraceJob:
    requests = {"cpu": "500m", "memory": "1Gi"}
    return replace(TraceJob(job_id="a", workload_id="a", submit_s=0.5, requests=requests, cpu_units=1.0), **changes)


def test_sensitivities_are_levels_or_numbers(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        line(jobId="a", sensitivity={"cpu": "high", "gpu": "low"}),
        line(jobId="b", sensitivity={"cpu": 0.65, "gpu": 1.0}),
        line(jobId="c", sensitivity={"cpu": 0.0}),
    )
    found = [(one.cpu_sensitivity, one.gpu_sensitivity) for one in load_jobs(path, skip_bad_lines=False).jobs]
    assert found == [("high", "low"), ("medium", "high"), ("low", "")]


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_what_is_written_is_read_again_and_always_in_the_same_bytes(tmp_path: Path, name: str) -> None:
    last = job(
        job_id="b",
        requests={"nvidia.com/gpu": "1", "cpu": "4"},
        gpu_units=7.25,
        gpu_class="memory_bound",
        profile=JobProfile(0.25, 0.75, 0.5, 0.125, 1.0),
        annotations={"b": "2", "a": "1"},
        node_selector={"zone": "x"},
        affinity={"podAffinity": {}},
        priority_class="urgent",
        namespace="team",
    )
    lines: list[TraceLine] = [
        TraceMetadata({"workloadId": "w", "assumed": {"memory": [1, None]}}),
        job(workload_id="w", gang=True, role="worker", cpu_class="io_bound", cpu_sensitivity="low"),
        last,
    ]
    path = tmp_path / name
    assert write_trace(path, lines, {"source": "test"}) == 2
    assert list(read_lines(path)) == [TraceMetadata({"source": "test"}), *lines]
    first = path.read_bytes()
    reordered = replace(last, annotations={"a": "1", "b": "2"})  # equal, so its bytes are too
    write_trace(path, [*lines[:2], reordered], {"source": "test"})
    assert path.read_bytes() == first
    if path.suffix == ".gz":
        assert first[3:8] == bytes(5), "neither a name nor the time of writing is in the header"


def test_a_trace_that_breaks_off_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write_trace(path, [job()])

    def broken() -> Iterator[TraceJob]:
        yield job(job_id="other")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_trace(path, broken())
    assert [one.job_id for one in load_jobs(path, skip_bad_lines=False).jobs] == ["a"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.jsonl"]


def test_a_trace_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(JobTraceError, match="cannot be written: No such file"):
        write_trace(tmp_path / "none" / "t.jsonl", [job()])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"requests": {"cpu": "1e300"}}, "cpu: must be within"),
        ({"cpu_units": 1e300}, "duration of its work"),
        ({"job_id": "x" * 201}, "jobId"),
        ({"job_id": "Big"}, "jobId"),
    ],
)
def test_what_no_reader_would_take_is_not_written(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(JobTraceError, match=says):
        write_trace(tmp_path / "t.jsonl", [job(**changes)])
    assert list(tmp_path.iterdir()) == []


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    device = tmp_path / "null"
    device.symlink_to("/dev/null")
    assert write_trace(device, [job()]) == 1
    assert device.is_char_device()


def test_a_compressed_file_that_is_cut_off_gives_its_lines_and_then_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    write_trace(path, [job(job_id=f"j{number}") for number in range(600)])
    path.write_bytes(path.read_bytes()[:-200])
    read = read_trace(path)
    assert isinstance(next(read), TraceJob)
    with pytest.raises(JobTraceError, match=r"cannot be read after line \d+: the compressed file is cut off"):
        list(read)


def test_standard_input_is_read_compressed_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = json.dumps(line()).encode()
    for content in (plain, gzip.compress(plain)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
        assert len(list(read_trace(STANDARD_STREAM))) == 1


def test_bad_lines_are_skipped_on_request_only_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", *["no json"] * 12, line())
    loaded = load_jobs(path, skip_bad_lines=True)
    assert (len(loaded.jobs), len(loaded.problems)) == (1, 12)
    with pytest.raises(JobTraceError, match=r"(?s)t\.jsonl:1: .*t\.jsonl:10: .*and 2 more"):
        load_jobs(path, skip_bad_lines=False)


def test_how_long_a_job_takes_alone() -> None:
    requests = {"cpu": "4", "nvidia.com/gpu": "1"}
    profile = JobProfile(cpu_utilization=0.5, gpu_utilization=0.8)
    alone = job(requests=requests, profile=profile, cpu_units=120.0, gpu_units=80.0)
    assert alone.ideal_s == pytest.approx(100.0)
    shared = replace(alone, annotations={"alibabacloud.com/gpu-milli": "250"}, gpu_units=20.0)
    assert shared.ideal_s == pytest.approx(100.0)
    assert replace(alone, gpu_units=0.0).ideal_s == pytest.approx(60.0)


def test_the_schema_takes_what_is_written(tmp_path: Path) -> None:
    schema = line_schema()
    path = tmp_path / "t.jsonl"
    write_trace(path, [job(cpu_sensitivity="high")])
    assert set(json.loads(path.read_text())) <= set(schema["$defs"]["Job"]["properties"])
    assert schema["$defs"]["Job"]["required"] == ["type", "jobId", "submitTimeOffsetSec", "podTemplate", "work"]
