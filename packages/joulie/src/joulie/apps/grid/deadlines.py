"""Until when a Job has to be done: its own deadline, and the next run of its CronJob."""

from __future__ import annotations

import logging

from joulie.adapters.cron_schedules import next_time_s
from joulie.apps.grid.facts import CronJobFacts, JobFacts
from joulie.domain.grid.deferral import FinishBy

_log = logging.getLogger(__name__)


def finish_by_of(job: JobFacts, cron_job: CronJobFacts | None) -> FinishBy | None:
    """When a Job has to be done; None if it may take as long as it likes."""
    deadline = None if job.finish_by_s is None else FinishBy(job.finish_by_s, "the deadline of its Job")
    return min((one for one in (deadline, next_run_of(job, cron_job)) if one is not None), default=None)


def next_run_of(job: JobFacts, cron_job: CronJobFacts | None) -> FinishBy | None:
    """When the next run of a Job's CronJob begins; None without one.

    The next run replaces this one, or is skipped because of it, or runs beside it, as the concurrency policy says: none
    of that is what its owner scheduled. A schedule that cannot be read leaves no time to wait.
    """
    if cron_job is None or job.owner is None:
        return None
    what = f"the next run of CronJob {job.owner.name}"
    try:
        return FinishBy(next_time_s(cron_job.schedule, cron_job.time_zone, job.created_s), what)
    except ValueError as error:
        _log.warning("cannot read a schedule", extra={"cron_job": job.owner.name, "problem": str(error)})
        return FinishBy(job.created_s, f"{what}, whose time is unknown: {error}")
