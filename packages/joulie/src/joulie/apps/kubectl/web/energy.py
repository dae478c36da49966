"""What the energy page shows, from the accounting program's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.program_api.energy import EnergyAnswer, EnergyItem
from joulie.apps.kubectl.energy import total
from joulie.apps.kubectl.web.answers import PowerHour
from joulie.apps.kubectl.web.programs import Programs, problem_of
from joulie.domain.quantities import joules_to_kwh
from joulie.program.queries import choice, page_of

_SECONDS_PER_DAY = 86400.0
_PERIODS = ("7", "31", "92")
_GROUPS = ("namespace", "job", "node", "pod")
_SERIES = 7
_OTHERS = "all others"
_ROWS = 100


@dataclass(frozen=True)
class EnergyDay:
    """Energy of one day.

    Attributes:
        at: start of the day, s since the epoch.
        text: its date.
        kwh: energy by series, kWh.
    """

    at: float
    text: str
    kwh: Sequence[float]


@dataclass(frozen=True)
class EnergyView:
    """What the energy page shows.

    Attributes:
        days: length of the period up to now, days.
        by: what the energy is grouped by.
        problems: data that is missing, and why.
        answer: sums over the period; None if the accounting program does not tell.
        total: sum of all groups.
        rows: groups of this page of the table, with their names, largest first.
        found: number of groups on all pages.
        names: names of the chart's series.
        daily: the chart.
        next_page: value of ``continue`` for the next page of the table.
    """

    days: str
    by: str
    problems: Sequence[str] = ()
    answer: EnergyAnswer | None = None
    total: EnergyItem | None = None
    rows: Sequence[tuple[str, EnergyItem]] = ()
    found: int = 0
    names: Sequence[str] = ()
    daily: Sequence[EnergyDay] = ()
    next_page: str | None = None


async def energy_view(programs: Programs, query: Mapping[str, str]) -> EnergyView:
    """The energy page's content.

    Raises:
        QueryError: an invalid parameter.
    """
    days, by = choice(query, "days", _PERIODS, "31"), choice(query, "by", _GROUPS, "namespace")
    asked = {"since": f"{int(days) * _SECONDS_PER_DAY:g}"}
    if query.get("namespace"):
        asked["namespace"] = query["namespace"]
    try:
        answer = await programs.energy(asked | {"by": by})
        by_day = await programs.energy(asked | {"by": by, "step": "day"})
    except KubernetesError as error:
        return EnergyView(days, by, [f"energy is not shown: {problem_of(error)}"])
    rows, after = page_of(answer.items, query, _ROWS)
    names, daily = stacked_days(answer.items, by_day.items)
    return EnergyView(
        days, by, (), answer, total(answer.items), [(title(item), item) for item in rows], len(answer.items), names,
        daily, after,
    )  # fmt: skip


def stacked_days(groups: Sequence[EnergyItem], items: Sequence[EnergyItem]) -> tuple[list[str], list[EnergyDay]]:
    """Energy by day: series of the largest groups, and one of all others.

    Args:
        groups: sums by group, largest first.
        items: sums by group and day.
    """
    names = [title(item) for item in groups[:_SERIES]]
    names += [_OTHERS] if len(groups) > _SERIES else []
    columns = {name: index for index, name in enumerate(names)}
    by_day: dict[float, list[float]] = {}
    for item in items:
        day_s = (item.start or 0.0) // _SECONDS_PER_DAY * _SECONDS_PER_DAY
        series = by_day.setdefault(day_s, [0.0] * len(names))
        series[columns.get(title(item), len(names) - 1)] += joules_to_kwh(item.energy_j)
    return names, [
        EnergyDay(day_s, datetime.fromtimestamp(day_s, UTC).date().isoformat(), kwh)
        for day_s, kwh in sorted(by_day.items())
    ]


def power_hours(items: Sequence[EnergyItem]) -> list[PowerHour]:
    """Mean power by hour, from sums by hour."""
    return [
        PowerHour(
            at=item.start,
            measured_w=item.measured_j / (item.end - item.start),
            estimated_w=(item.energy_j - item.measured_j - item.assumed_j) / (item.end - item.start),
            assumed_w=item.assumed_j / (item.end - item.start),
        )
        for item in items
        if item.start is not None and item.end is not None and item.end > item.start
    ]


def title(item: EnergyItem) -> str:
    """Name of a group, with its namespace and kind."""
    return "/".join(part for part in (item.namespace, item.kind, item.name) if part)
