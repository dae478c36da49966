"""Slices and scales traces as streams: the result for a line depends only on the line and the seed."""

from __future__ import annotations

import hashlib
import heapq
import math
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from joulie.domain.quantities import InvalidQuantityError, finite_number, positive_number
from joulie_lab.simulation.trace import GPU_MILLI_KEY, TraceJob, TraceLine, TraceMetadata

_MIB_PER_GIB = 1024.0
_MILLI = 1000.0
_HASH_BYTES = 8
_SUBMIT_KEY = "submitTimeOffsetSec"
_WORKLOAD_KEY = "workloadId"
_COPY = re.compile(r"-c[0-9]+\Z")
_MAX_RATE = 1e4


@dataclass(frozen=True)
class Slice:
    """The part of a trace to keep.

    Attributes:
        from_s: start of the part, s after the start of the trace; it becomes the new start.
        until_s: end of the part, s; exclusive.
        families: workload types to keep; empty for all.
        first: maximum number of jobs; None for all.
    """

    from_s: float = 0.0
    until_s: float = math.inf
    families: Collection[str] = ()
    first: int | None = None

    def __post_init__(self) -> None:
        finite_number("from_s", self.from_s, minimum=0.0)
        if not self.until_s > self.from_s:
            raise InvalidQuantityError("until_s", f"must be after from_s, {self.from_s:g}, got {self.until_s:g}")


def sliced(lines: Iterable[TraceLine], part: Slice) -> Iterator[TraceLine]:
    """Keep the lines of a part of a trace, moved so that the part starts at 0.

    A gang is kept or dropped as a whole, by its first member: half a gang would be a different job. Lines that describe
    a workload are kept if a job of the workload is.
    """
    kept = 0
    gangs: dict[str, bool] = {}
    stay: set[str] = set()
    described: dict[str, TraceMetadata] = {}
    for line in lines:
        if isinstance(line, TraceMetadata):
            workload_id = _workload_id(line)
            if workload_id is None:
                yield line
            elif workload_id in stay:
                yield _moved(line, -part.from_s, workload_id)
            else:
                described[workload_id] = line
            continue
        chosen = gangs.get(line.workload_id) if line.gang else None
        if chosen is None:
            chosen = _within(line, part) and (part.first is None or kept < part.first)
            if line.gang:
                gangs[line.workload_id] = chosen
        if chosen:
            kept += 1
            stay.add(line.workload_id)
            if (description := described.pop(line.workload_id, None)) is not None:
                yield _moved(description, -part.from_s, line.workload_id)
            yield replace(line, submit_s=max(0.0, line.submit_s - part.from_s))


def _within(job: TraceJob, part: Slice) -> bool:
    return part.from_s <= job.submit_s < part.until_s and (not part.families or job.workload_type in part.families)


@dataclass(frozen=True)
class Scale:
    """Factors by which a trace is scaled.

    Attributes:
        rate: factor of the arrival rate: below 1 workloads are left out, above 1 they are copied.
        duration: factor of the duration of jobs.
        size: factor of the requests of jobs; GPUs stay whole numbers of at least one, and work scales with requests.
        spread_s: maximum delay of a copy's submission after its original, s.
        seed: seed of the choice of the workloads to leave out or copy.
    """

    rate: float = 1.0
    duration: float = 1.0
    size: float = 1.0
    spread_s: float = 1800.0
    seed: int = 0

    def __post_init__(self) -> None:
        finite_number("rate", self.rate, minimum=0.0, maximum=_MAX_RATE)
        positive_number("duration", self.duration)
        positive_number("size", self.size)
        finite_number("spread_s", self.spread_s, minimum=0.0)


@dataclass(order=True)
class _Later:
    """A line submitted at `time_s`; `number` keeps lines of equal time in the order of the file."""

    time_s: float
    number: int
    line: TraceLine = field(compare=False)


def scaled(lines: Iterable[TraceLine], scale: Scale) -> Iterator[TraceLine]:
    """Scale the lines of a trace; the result is ordered by submission if the input is.

    All jobs of a workload are left out, or copied, together. Only copies that are still due are kept in memory.
    """
    waiting: list[_Later] = []
    for number, line in enumerate(lines):
        if isinstance(line, TraceJob):
            while waiting and waiting[0].time_s <= line.submit_s:
                yield heapq.heappop(waiting).line
        resized = _resized(line, scale)
        workload_id = _workload_id(resized)
        if workload_id is None:
            yield resized
            continue
        for copy in _copies(workload_id, scale):
            moved = _copied(resized, copy) if scale.rate > 1.0 else resized
            if copy.number:
                heapq.heappush(waiting, _Later(_time_s(moved), number, moved))
            else:
                yield moved
    while waiting:
        yield heapq.heappop(waiting).line


class _Copy(NamedTuple):
    """Copy of a workload and the delay of its submission, s; number 0 is the workload itself."""

    number: int
    later_s: float

    def name(self, name: str) -> str:
        """Name of the copy. A name that already looks like a copy gets a suffix too, so that no two names collide."""
        return f"{name}-c{self.number}" if self.number or _COPY.search(name) else name


def _copies(workload_id: str, scale: Scale) -> list[_Copy]:
    whole = int(scale.rate)
    number = whole + (_uniform(scale.seed, workload_id, "number") < scale.rate - whole)
    return [
        _Copy(copy, scale.spread_s * _uniform(scale.seed, workload_id, f"{copy}") if copy else 0.0)
        for copy in range(number)
    ]


def _copied(line: TraceLine, copy: _Copy) -> TraceLine:
    if isinstance(line, TraceMetadata):
        return _moved(line, copy.later_s, copy.name(str(line.values[_WORKLOAD_KEY])))
    return replace(
        line,
        job_id=copy.name(line.job_id),
        workload_id=copy.name(line.workload_id),
        submit_s=line.submit_s + round(copy.later_s, 3),
    )


def _workload_id(line: TraceLine) -> str | None:
    if isinstance(line, TraceJob):
        return line.workload_id
    named = line.values.get(_WORKLOAD_KEY)
    return None if named is None else str(named)


def _time_s(line: TraceLine) -> float:
    if isinstance(line, TraceJob):
        return line.submit_s
    time_s = line.values.get(_SUBMIT_KEY)
    return float(time_s) if isinstance(time_s, int | float) else 0.0


def _moved(line: TraceMetadata, by_s: float, workload_id: str) -> TraceMetadata:
    """Line that describes a workload, with another name, and its submission time shifted if it has one."""
    values = dict(line.values) | {_WORKLOAD_KEY: workload_id}
    if isinstance(values.get(_SUBMIT_KEY), int | float):
        values[_SUBMIT_KEY] = max(0.0, values[_SUBMIT_KEY] + by_s)
    return TraceMetadata(values)


def _resized(job: TraceLine, scale: Scale) -> TraceLine:
    if isinstance(job, TraceMetadata) or scale.duration == scale.size == 1.0:
        return job
    shape, requests, annotations = job.shape, dict(job.requests), dict(job.annotations)
    cpu_ratio = gpu_ratio = 1.0
    if scale.size != 1.0:
        cpu_ratio = scale.size
        if shape.cores:
            milli = max(1, round(shape.cores * scale.size * _MILLI))
            cpu_ratio = milli / _MILLI / shape.cores
            requests["cpu"] = str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"
        if shape.memory_gib:
            requests["memory"] = f"{max(1, round(shape.memory_gib * scale.size * _MIB_PER_GIB))}Mi"
        if shape.gpu_share < 1.0:
            share_milli = min(1000, max(1, round(shape.gpu_share * scale.size * _MILLI)))
            gpu_ratio = share_milli / _MILLI / shape.gpu_share
            annotations[GPU_MILLI_KEY] = str(share_milli)
        elif shape.gpus:
            gpus = max(1, round(shape.gpus * scale.size))
            gpu_ratio = gpus / shape.gpus
            requests[shape.gpu_resource] = str(gpus)
    return replace(
        job,
        requests=requests,
        annotations=annotations,
        cpu_units=job.cpu_units * cpu_ratio * scale.duration,
        gpu_units=job.gpu_units * gpu_ratio * scale.duration,
    )


def _uniform(seed: int, *names: str) -> float:
    """Hash of a seed and names to a number in 0..1: it needs no state, so traces can be streamed."""
    digest = hashlib.blake2b("\0".join((str(seed), *names)).encode(), digest_size=_HASH_BYTES).digest()
    return int.from_bytes(digest, "big") / 2.0 ** (8 * _HASH_BYTES)
