"""Imports Microsoft's Philly trace: training jobs on GPU servers, with all their attempts.

Format: ``cluster_job_log`` of github.com/msr-fiddle/philly-traces, one JSON array.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from joulie_lab.adapters.trace_import.rows import open_text
from joulie_lab.adapters.trace_import.source_jobs import (
    UNDER_HALF_A_SECOND_S,
    ImportProblem,
    LeftOut,
    Parsed,
    SourceJob,
    SourcePods,
    TraceSourceError,
    by_submission,
)

_LOG = "cluster_job_log"
_TIME = "%Y-%m-%d %H:%M:%S"
NO_ATTEMPT = "no attempt to run it is recorded"
NOT_OVER = "an attempt has no start or no end"


class _Server(msgspec.Struct):
    gpus: list[str]


class _Attempt(msgspec.Struct):
    start_time: str | None = None
    end_time: str | None = None
    detail: list[_Server] = []


class _Job(msgspec.Struct):
    jobid: str
    submitted_time: str | None = None
    attempts: list[_Attempt] = []
    vc: str = ""


_decode_job = msgspec.json.Decoder(_Job).decode
_decode_log = msgspec.json.Decoder(list[msgspec.Raw]).decode


def jobs(path: Path) -> Iterator[Parsed]:
    """Read the jobs of a job log, in order of submission; times are relative to the first.

    A job becomes a gang with one pod per server of its last attempt. Its runtime is the sum over all its attempts,
    because failed attempts held their GPUs, too.

    Args:
        path: ``cluster_job_log``, or the archive ``trace-data.tar.gz`` that contains it.

    Raises:
        TraceSourceError: the file cannot be read or is not a job log.
    """
    return by_submission(_jobs(path), from_first=True)


def _jobs(path: Path) -> Iterator[Parsed]:
    with open_text(path, member=_LOG) as text:
        try:
            entries = _decode_log(text.read())
        except (msgspec.MsgspecError, RecursionError) as error:
            raise TraceSourceError(f"{path}: invalid {_LOG}: {error}") from error
    for number, entry in enumerate(entries, start=1):
        place = f"{path}: job {number}"
        try:
            yield _job(place, _decode_job(entry))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            yield ImportProblem(place, str(error))


def _job(place: str, job: _Job) -> SourceJob | LeftOut:
    if not job.attempts:
        return LeftOut(place, NO_ATTEMPT)
    duration_s = 0.0
    for attempt in job.attempts:
        start_s, end_s = _instant_s(attempt.start_time), _instant_s(attempt.end_time)
        if start_s is None or end_s is None:
            return LeftOut(place, NOT_OVER)
        if end_s < start_s:
            raise ValueError(f"{job.jobid}: an attempt ends at {attempt.end_time}, before its start")
        duration_s += end_s - start_s
    submit_s = _instant_s(job.submitted_time)
    if submit_s is None:
        raise ValueError(f"{job.jobid}: submitted_time is missing")
    servers = tuple(SourcePods(gpus=float(len(server.gpus)), role="worker") for server in job.attempts[-1].detail)
    if not servers:
        return LeftOut(place, NO_ATTEMPT)
    return SourceJob(
        place,
        job.jobid,
        submit_s,
        duration_s or UNDER_HALF_A_SECOND_S,
        servers,
        kind=f"vc-{job.vc}" if job.vc else "",
    )


def _instant_s(text: str | None) -> float | None:
    """Wall clock time as s; all times are in the same time zone."""
    if text is None or text in ("", "None"):
        return None
    return datetime.strptime(text, _TIME).replace(tzinfo=UTC).timestamp()
