import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from joulie.adapters.job_trace import JobTraceError, read_trace
from joulie.domain.trace import JobProfile, TraceJob


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
        (line(workloadProfile={"cpuUtilization": 1.5}), "cpu_utilization"),
        ({"type": "job"}, "jobId"),
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
