"""``joulie bench feeds``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulie.program.numbers import FiniteRange
from joulie_lab.apps.bench import feeds_run
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import PATH, benchmark, tell
from joulie_lab.benchmarks import feeds as model
from joulie_lab.benchmarks.breaker import CASES
from joulie_lab.benchmarks.feeds import FeedFigures, FeedsResult, PlaneRecord, PlaneRun
from joulie_lab.simulation.report.charts import PALETTE
from joulie_lab.simulation.report.png import canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SEED = 103
_PLANE, _KILLED = "PowerBudget, control plane", "the same, programs killed"
_NAMES = {"thunderbolt": "Thunderbolt", "polca": "POLCA", "joulie": "Joulie, natively"}


def tables(result: FeedsResult) -> Iterator[Table]:
    """Every scheme under every load, and how fast agents act."""
    yield Table(
        "Feeds",
        (
            "load",
            "scheme",
            "trips",
            "critical slowed, % of time",
            "critical work lost, %",
            "standard work lost, %",
            f"more work than {result.fed} servers, %",
            "largest load",
            "hottest",
            "longest above the limit, s",
        ),
        [
            (case.replace("-", " "), scheme, *_cells(figures))
            for case in result.native
            for scheme, figures in _schemes(result, case)
        ],
        labels=2,
    )
    yield Table(
        "Reaction of the agents",
        ("run", "changes of limits", "median, s", "P99, s", "largest, s", "operator decides within (P99), s", "killed"),
        [
            (
                name,
                f"{run.reaction.changes:,}",
                *(f"{value:.1f}" for value in (run.reaction.median_s, run.reaction.p99_s, run.reaction.worst_s)),
                f"{run.decide_p99_s:g}",
                ", ".join(f"{count} {program}s" for program, count in sorted(run.killed.items())) or "none",
            )
            for name, run in _runs(result).items()
        ],
    )


def _runs(result: FeedsResult) -> Mapping[str, PlaneRun]:
    runs = {_PLANE: result.plane, _KILLED: result.plane_killed}
    return {name: run for name, run in runs.items() if run is not None}


def _schemes(result: FeedsResult, case: str) -> Iterator[tuple[str, FeedFigures]]:
    for scheme, figures in result.native[case].items():
        yield _NAMES.get(scheme, scheme.replace("-", " ")), figures
    for name, run in _runs(result).items():
        if case in run.cases:
            yield name, run.cases[case]


def _cells(figures: FeedFigures) -> tuple[str, ...]:
    return (
        f"{figures.trips:.0f}",
        f"{figures.critical_slowed_pct:.1f}",
        f"{figures.critical_lost_pct:.1f}",
        f"{figures.standard_lost_pct:.1f}",
        f"{figures.more_work_pct:.1f}",
        f"{figures.peak_load:.2f}",
        f"{figures.peak_heat:.2f}",
        f"{figures.over_limit_s:.0f}",
    )


def figure(result: FeedsResult) -> Figure:
    """Load of the breaker in the storm."""
    drawn = canvas(10.0, 4.0)
    axes = drawn.subplots()
    storms = {_NAMES.get(name, name): result.native_storm[name] for name in ("no-limits", "joulie")}
    storms |= {name: run.storm for name, run in _runs(result).items()}
    for color, (name, loads) in zip(PALETTE, storms.items(), strict=False):
        minutes = [index * model.EXAMPLE_EVERY_S / 60.0 for index in range(len(loads))]
        axes.plot(minutes, loads, color=color, linewidth=1.2, label=name.replace("-", " "))
    axes.axhline(1.0, color="black", linewidth=1.0)
    axes.set(xlabel="minutes", ylabel="load of the breaker, share of its rating", ylim=(0.0, 1.4))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small", loc="lower left", ncols=2)
    return drawn


def _page(result: FeedsResult) -> dict[str, Any]:
    found, reaction = tables(result)
    ours = [one for run in _runs(result).values() for one in run.cases.values()]
    return {
        "table": found,
        "reaction": reaction,
        "run": feeds_run,
        "model": model,
        "trips": sum(one.trips for one in ours),
        "slowed": max(one.critical_slowed_pct for one in ours),
        "hottest": max(one.peak_heat for one in ours),
        "more": [one.more_work_pct for one in ours],
    }


REPORT = Report(tables, figure)
PAGE = Page(FeedsResult, "experiments/feeds.md", _page, {"img/feeds.png": figure})


@benchmark("feeds", REPORT)
@click.option("--minutes", default=15.0, show_default=True, type=FiniteRange(0.5), help="Length of the first run.")
@click.option(
    "--killed-minutes", default=12.0, show_default=True, type=FiniteRange(0.5), help="Of that with programs killed."
)
@click.option("--seed", default=_SEED, show_default=True, help="Seed of the loads.")
@click.option("--records", type=PATH, help="Folder for the runs' records; a run whose record is there is not repeated.")
@click.option("--logs", type=PATH, help="Folder for the logs of the programs, which are kept.")
def feeds(
    *, small: bool, minutes: float, killed_minutes: float, seed: int, records: Path | None, logs: Path | None
) -> FeedsResult:
    """Measure PowerBudgets behind breakers on a real control plane; a small run has no control plane."""
    for folder in filter(None, (records, logs)):
        folder.mkdir(parents=True, exist_ok=True)  # rather than fail when the first run is over
    cases = tuple(CASES)[:1] if small else tuple(CASES)
    on = model.modelled_feed()
    if small:
        minutes = 2.0
    native, storm = model.native(cases, seed, minutes, on, tell)
    plane = killed = None
    if not small:
        plan = feeds_run.Plan(cases, seed, minutes, on, kills=False)
        plane = _run(plan, "plain", records, logs)
        killed = _run(
            feeds_run.Plan(cases, seed, killed_minutes, model.modelled_feed(feeds_run.KILLED_RESPONSE_S), kills=True),
            "killed",
            records,
            logs,
        )
    return FeedsResult(
        servers=model.SERVERS,
        fed=on.fed,
        critical=model.CRITICAL,
        rating_kw=on.settings.rating_w / 1000.0,
        full_w=float(on.servers.full_w[0]),
        floor_w=float(on.servers.floor_w[0]),
        response_s=model.RESPONSE_S,
        seed=seed,
        minutes=minutes,
        killed_minutes=killed_minutes,
        killed_response_s=feeds_run.KILLED_RESPONSE_S,
        native=native,
        native_storm=storm,
        plane=plane,
        plane_killed=killed,
    )


def _run(
    plan: feeds_run.Plan, name: str, records: Path | None, logs: Path | None, say: Callable[[str], None] = tell
) -> PlaneRun:
    place = None if records is None else records / f"{name}.npz"
    if place is not None and place.exists():
        record = PlaneRecord.read(place)
    else:
        record = feeds_run.run_feeds(plan, say, None if logs is None else logs / name)
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            record.write(place)
    return model.plane_run(record, plan.seed, plan.minutes, plan.on)
