"""Times of CronJobs, by CronSim in the dialect of Kubernetes.

Kubernetes reads schedules with github.com/robfig/cron/v3. It differs from Debian's cron, which CronSim follows, in
descriptors, in question marks, in what counts as a star in the two fields of days, and in days on which clocks change:
an hour that does not exist is skipped, one that comes twice runs twice.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from joulie.domain.durations import duration_s

_DESCRIPTORS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EVERY = "@every "
_ZONE = re.compile(r"(?:CRON_)?TZ=(\S+)\s+(.*)")


def next_time_s(schedule: str, time_zone: str | None, after_s: float) -> float:
    """First time of a schedule after a time, s since the epoch.

    Args:
        schedule: ``spec.schedule`` of a CronJob.
        time_zone: ``spec.timeZone``; None for UTC, which kube-controller-manager runs in.
        after_s: s since the epoch.

    Raises:
        ValueError: the schedule or the time zone cannot be read, or the schedule never comes.
    """
    zoned = _ZONE.fullmatch(schedule.strip())
    name, fields = zoned.groups() if zoned else (time_zone, schedule.strip())
    if fields.startswith(_EVERY):
        return after_s + duration_s(fields.removeprefix(_EVERY))
    fields = _DESCRIPTORS.get(fields, fields)
    try:
        zone = UTC if name is None else ZoneInfo(name)
        # With a field of seconds, CronSim does not move times off the changes of clocks, as Debian's cron does.
        times = CronSim(_in_debians_dialect(fields), datetime.fromtimestamp(after_s, zone))
        return next(times).timestamp()
    except (CronSimError, StopIteration, KeyError, OSError, ValueError) as error:
        raise ValueError(f"schedule {schedule!r}, time zone {name or 'UTC'}: {str(error) or 'never'}") from error


def _in_debians_dialect(fields: str) -> str:
    parts = fields.replace("?", "*").split()
    if len(parts) != 5:
        raise ValueError(f"{len(parts)} fields instead of 5")
    minute, hour, day, month, weekday = parts
    return " ".join(("0", minute, hour, _days(day, "1-31"), month, _days(weekday, "0-6")))


def _days(field: str, all_days: str) -> str:
    """A field of days in which only a plain star counts as one, and then comes first.

    Either day counts if neither field has a star, else both do. For Kubernetes ``*/2`` is no star, for CronSim it is.
    """
    terms = [all_days + term[1:] if term.startswith("*/") else term for term in field.split(",")]
    return ",".join(sorted(terms, key=lambda term: term != "*"))
