"""Times of CronJobs, in the dialect of Kubernetes."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from joulie.adapters.cron_schedules import next_time_s


def next_time(schedule: str, after: str, zone: str | None = None) -> str:
    after_s = datetime.fromisoformat(after).replace(tzinfo=UTC).timestamp()
    return datetime.fromtimestamp(next_time_s(schedule, zone, after_s), UTC).strftime("%Y-%m-%d %H:%M")


@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        ("30 * * * *", "2026-11-23 08:30", "2026-11-23 09:30"),  # later than the time itself
        ("*/20 9-17 * * MON-FRI", "2026-11-27 17:40:01", "2026-11-30 09:00"),
        ("0 0 29 feb ?", "2026-01-01", "2028-02-29 00:00"),
        ("5/25 * * * *", "2026-11-23 08:31", "2026-11-23 08:55"),
        ("@hourly", "2026-11-23 08:00", "2026-11-23 09:00"),
        ("@weekly", "2026-11-23", "2026-11-29 00:00"),
        ("@every 90m", "2026-11-23 08:00", "2026-11-23 09:30"),
        # Either day counts, unless one of the fields has a star; a step is none (robfig/cron).
        ("0 0 15 * 1", "2026-11-24", "2026-11-30 00:00"),
        ("0 0 */2 * 1", "2026-11-23", "2026-11-25 00:00"),
        ("0 0 * * */3", "2026-11-24", "2026-11-25 00:00"),
        ("0 0 3,* * 1", "2026-11-24", "2026-11-30 00:00"),
    ],
)
def test_the_next_time_of_a_schedule(schedule: str, after: str, expected: str) -> None:
    assert next_time(schedule, after) == expected


@pytest.mark.parametrize(
    ("schedule", "zone", "after", "expected"),
    [
        ("0 3 * * *", "Asia/Kolkata", "2026-11-23 08:00", "2026-11-23 21:30"),
        ("TZ=Asia/Kolkata 0 3 * * *", None, "2026-11-23 08:00", "2026-11-23 21:30"),
        # Kubernetes skips an hour that does not exist, and runs twice in one that comes twice.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28 12:00", "2026-03-30 00:30"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25 00:30", "2026-10-25 01:30"),
    ],
)
def test_the_time_zone_counts(schedule: str, zone: str | None, after: str, expected: str) -> None:
    assert next_time(schedule, after, zone) == expected


@pytest.mark.parametrize(
    ("schedule", "zone"),
    [
        ("", None),
        ("* * * *", None),
        ("0 0 * * * *", None),
        ("61 * * * *", None),
        ("@fortnightly", None),
        ("@every often", None),
        ("0 0 30 2 *", None),
        ("0 0 * * *", "Europe/Atlantis"),
        ("0 0 * * *", "../etc/passwd"),
    ],
)
def test_what_cannot_be_read_is_an_error(schedule: str, zone: str | None) -> None:
    with pytest.raises(ValueError, match=r"schedule|duration"):
        next_time_s(schedule, zone, 0.0)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_over_changes_of_clocks_no_time_is_missed(zone: str) -> None:
    """Against a look at every minute of the days around each change."""
    here = ZoneInfo(zone)
    for change in ("2026-03-08", "2026-03-29", "2026-04-05", "2026-10-04", "2026-10-25", "2026-11-01"):
        start = datetime.fromisoformat(change).replace(tzinfo=UTC) - timedelta(days=1)
        minutes = [start + timedelta(minutes=minute) for minute in range(3 * 24 * 60)]
        expected = [
            one.timestamp() for one in minutes if (one.astimezone(here).hour, one.astimezone(here).minute) == (2, 15)
        ]
        found, at_s = [], start.timestamp() - 1.0
        while (at_s := next_time_s("15 2 * * *", zone, at_s)) <= minutes[-1].timestamp():
            found.append(at_s)
        assert found == expected
