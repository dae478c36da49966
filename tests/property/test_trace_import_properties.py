"""Whatever the lines of a trace hold, each is a job, left out, or a problem that is named."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from joulie_lab.adapters.trace_import import openb, swf
from joulie_lab.adapters.trace_import.source_jobs import ImportProblem, LeftOut, trace_jobs
from joulie_lab.simulation.trace import TraceJob

NUMBERS = st.sampled_from(["0", "1", "-1", "8", "1000", "460", "1e9", "-5", "nan", "inf", "", "x", "1e400", "0.5"])
HEADER = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
)


def items_of(read, text):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace"
        file.write_text(text, encoding="utf-8")
        return list(trace_jobs(read(file)))


def check(items):
    jobs = [item for item in items if isinstance(item, TraceJob)]
    for job in jobs:
        assert job.submit_s >= 0.0
        assert job.ideal_s > 0.0
    for item in items:
        assert isinstance(item, TraceJob | ImportProblem | LeftOut)
    return {job.workload_id for job in jobs}, len(items) - len(jobs)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(NUMBERS, min_size=9, max_size=12), max_size=5))
def test_openb_lines(rows):
    lines = "".join(f"pod-{number},{','.join(cells)}\n" for number, cells in enumerate(rows))
    workloads, others = check(items_of(openb.jobs, HEADER + lines))
    assert len(workloads) + others == len(rows)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(NUMBERS.filter(bool), min_size=16, max_size=18), max_size=5))
def test_swf_lines(rows):
    lines = "".join(f"{number} {' '.join(cells)}\n" for number, cells in enumerate(rows))
    workloads, others = check(items_of(swf.jobs, lines))
    assert len(workloads) + others == len(rows)
