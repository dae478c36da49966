"""Imports logs in the Standard Workload Format, version 2, of the Parallel Workloads Archive.

Source: www.cs.huji.ac.il/labs/parallel/workload/swf.html. A line has 18 numbers, -1 for unknown; header comments begin
with a semicolon.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from enum import IntEnum
from pathlib import Path

from joulie_lab.adapters.trace_import.rows import open_text
from joulie_lab.adapters.trace_import.source_jobs import (
    UNDER_HALF_A_SECOND_S,
    ImportProblem,
    LeftOut,
    Parsed,
    SourceJob,
    SourcePods,
)

_FIELDS = 18
_HEADER = re.compile(r";\s*([A-Za-z]+):\s*(.*\S)")
_KIB_PER_GIB = 1024.0**2
_CANCELLED = 5
_PARTIAL = frozenset({2, 3, 4})
NEVER_RAN = "cancelled before it ran"
UNKNOWN_RUN_TIME = "run time unknown"
PARTIAL = "part of a job that has a line of its own"


class _Field(IntEnum):
    """Fields that are read, with their position in the line."""

    NUMBER = 0
    SUBMIT = 1
    RUN_TIME = 3
    PROCESSORS = 4
    CPU_TIME = 5
    USED_MEMORY = 6
    REQUESTED_PROCESSORS = 7
    REQUESTED_MEMORY = 9
    STATUS = 10
    QUEUE = 14


def jobs(path: Path) -> Iterator[Parsed]:
    """Read the jobs of a log, in order of submission.

    A processor is a core. Memory is the request per processor, or else the usage. Utilisation is CPU time over runtime
    if both are known. Jobs that failed or were cancelled while running are included with their actual runtime.

    Args:
        path: the log, compressed with gzip or not.

    Raises:
        TraceSourceError: the file cannot be read.
    """
    with open_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.lstrip().startswith(";"):
                continue
            place = f"{path}:{number}"
            try:
                yield _job(place, _numbers(line))
            except ValueError as error:
                yield ImportProblem(place, str(error))


def header(path: Path) -> Mapping[str, str]:
    """Read the header comments (Computer, UnixStartTime, MaxProcs, ...), the first value of each.

    Raises:
        TraceSourceError: the file cannot be read.
    """
    found: dict[str, str] = {}
    with open_text(path) as lines:
        for line in lines:
            if line.strip() and not line.startswith(";"):
                break
            if match := _HEADER.match(line):
                found.setdefault(match[1], match[2])
    return found


def _numbers(line: str) -> list[float | None]:
    """The fields of a line; None for unknown values."""
    cells = line.split()
    if len(cells) != _FIELDS:
        raise ValueError(f"has {len(cells)} fields, but the format has {_FIELDS}")
    numbers: list[float | None] = []
    for position, cell in enumerate(cells, start=1):
        try:
            number = float(cell)
        except ValueError:
            raise ValueError(f"field {position} is {cell!r}, which is not a number") from None
        if not math.isfinite(number):
            raise ValueError(f"field {position} is {cell!r}, it must be finite")
        numbers.append(None if number == -1.0 else number)
    return numbers


def _job(place: str, fields: list[float | None]) -> SourceJob | LeftOut:
    number, submit_s = fields[_Field.NUMBER], fields[_Field.SUBMIT]
    run_s, status = fields[_Field.RUN_TIME], fields[_Field.STATUS]
    if status in _PARTIAL:
        return LeftOut(place, PARTIAL)
    if status == _CANCELLED and not run_s:
        return LeftOut(place, NEVER_RAN)
    if run_s is None:
        return LeftOut(place, UNKNOWN_RUN_TIME)
    if number is None or submit_s is None:
        raise ValueError("has no job number or no submission time")
    duration_s = run_s or UNDER_HALF_A_SECOND_S
    queue = fields[_Field.QUEUE]
    return SourceJob(
        place=place,
        name=f"job-{number:.0f}",
        submit_s=submit_s,
        duration_s=duration_s,
        pods=(_pods(fields, duration_s),),
        kind="" if queue is None else f"queue-{queue:.0f}",
    )


def _pods(fields: list[float | None], duration_s: float) -> SourcePods:
    processors = fields[_Field.PROCESSORS] or fields[_Field.REQUESTED_PROCESSORS]
    if processors is None:
        raise ValueError("has no number of processors")
    memory_kib = fields[_Field.REQUESTED_MEMORY] or fields[_Field.USED_MEMORY]
    cpu_time_s = fields[_Field.CPU_TIME]
    return SourcePods(
        cores=processors,
        memory_gib=None if memory_kib is None else memory_kib * processors / _KIB_PER_GIB,
        role="worker",
        # CPU time is 0 if it was not recorded; a job with zero utilisation would never end.
        cpu_utilization=min(cpu_time_s / duration_s, 1.0) if cpu_time_s else None,
    )
