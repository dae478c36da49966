"""Imports Alibaba's PAI trace of 2020, machine learning jobs of tasks with instances, and the excerpt by GAIA.

Formats: cluster-trace-gpu-v2020 of github.com/alibaba/clusterdata, tables without header; and
``src/cluster_traces/pai-100k.csv`` of github.com/umassos/GAIA, arrival and length in hours and CPUs. A runtime of 0 s
means less than half a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from joulie_lab.adapters.trace_import.rows import Row, header_of, parsed, read_rows
from joulie_lab.adapters.trace_import.source_jobs import (
    UNDER_HALF_A_SECOND_S,
    ImportProblem,
    LeftOut,
    Parsed,
    SourceJob,
    SourcePods,
    by_submission,
)

_EXCERPT_COLUMNS = ("arrival_time", "length", "cpus")
_TASK_COLUMNS = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
_JOB_COLUMNS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
_HOUR_S = 3600.0
_PERCENT = 100.0
NEVER_STARTED = "never started"
NOT_OVER = "not over when the trace was taken"


class _Task(NamedTuple):
    place: str
    start_s: float
    end_s: float
    pods: SourcePods


def jobs(path: Path, job_table: Path | None = None) -> Iterator[Parsed]:
    """Read the jobs of the excerpt or of a task table, in order of submission.

    A job of a task table is a gang of the instances of all its tasks, from the start of the first task to the end of
    the last: parameter servers wait for their workers. Times are relative to the first submission. GPU requests above
    one are rounded up.

    Args:
        path: the excerpt or ``pai_task_table``, compressed or not.
        job_table: ``pai_job_table`` with the submission times; without it, jobs are submitted when their first task
            starts.

    Raises:
        TraceSourceError: a file cannot be read.
    """
    if header_of(path) == _EXCERPT_COLUMNS:
        excerpt = parsed(read_rows(path, _EXCERPT_COLUMNS), _excerpt_job)
        yield from by_submission(excerpt, from_first=False)
    else:
        yield from by_submission(_table_jobs(path, job_table), from_first=True)


def _excerpt_job(row: Row) -> SourceJob:
    return SourceJob(
        place=row.place,
        name="pai-" + row.place.rpartition(":")[2],
        submit_s=row.number("arrival_time") * _HOUR_S,
        duration_s=row.number("length") * _HOUR_S,
        pods=(SourcePods(cores=row.number("cpus")),),
        kind="pai",
    )


def _table_jobs(task_table: Path, job_table: Path | None) -> Iterator[Parsed]:
    submitted_s: dict[str, float] = {}
    if job_table is not None:
        for row in read_rows(job_table, _JOB_COLUMNS, _JOB_COLUMNS):
            if isinstance(row, ImportProblem):
                yield row
                continue
            try:
                submitted_s[row.text("job_name")] = row.number("start_time")
            except ValueError as error:
                yield ImportProblem(row.place, str(error))
    tasks: dict[str, list[_Task]] = {}
    unfinished: dict[str, LeftOut] = {}
    for row in read_rows(task_table, _TASK_COLUMNS, _TASK_COLUMNS):
        if isinstance(row, ImportProblem):
            yield row
            continue
        try:
            task = _task(row)
        except ValueError as error:
            yield ImportProblem(row.place, str(error))
            continue
        if isinstance(task, LeftOut):
            unfinished.setdefault(row.text("job_name"), task)
        else:
            tasks.setdefault(row.text("job_name"), []).append(task)
    yield from unfinished.values()
    for name, of_job in tasks.items():
        if name not in unfinished:
            yield _job(name, of_job, submitted_s.get(name))


def _task(row: Row) -> _Task | LeftOut:
    start_s, end_s = row.known_number("start_time"), row.known_number("end_time")
    if start_s is None:
        return LeftOut(row.place, NEVER_STARTED)
    if end_s is None:
        return LeftOut(row.place, NOT_OVER)
    if end_s < start_s:
        raise ValueError(f"end_time {end_s:g} is before start_time {start_s:g}")
    cores, gpus = row.known_number("plan_cpu"), row.known_number("plan_gpu")
    instances = row.number("inst_num")
    if instances != int(instances):
        raise ValueError(f"inst_num is {instances:g}, it must be whole")
    pods = SourcePods(
        count=int(instances),
        cores=None if cores is None else cores / _PERCENT,
        gpus=(gpus or 0.0) / _PERCENT,
        memory_gib=row.known_number("plan_mem"),
        role=row.text("task_name"),
    )
    return _Task(row.place, start_s, end_s, pods)


def _job(name: str, tasks: list[_Task], submitted_s: float | None) -> SourceJob:
    start_s = min(task.start_s for task in tasks)
    duration_s = max(task.end_s for task in tasks) - start_s
    return SourceJob(
        place=tasks[0].place,
        name=name,
        submit_s=start_s if submitted_s is None else submitted_s,
        duration_s=duration_s or UNDER_HALF_A_SECOND_S,
        pods=tuple(task.pods for task in tasks),
        kind="pai",
    )
