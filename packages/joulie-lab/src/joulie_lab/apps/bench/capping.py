"""``joulie bench capping``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from matplotlib.ticker import MaxNLocator

from joulie.domain.capping.feed import FeedSettings
from joulie.domain.capping.trip import EARLIEST
from joulie_lab.apps.bench.data import published_sweeps
from joulie_lab.apps.bench.figures import horizontal_bars, legend_below, panels, title
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import PATH, benchmark, tell
from joulie_lab.benchmarks import breaker
from joulie_lab.benchmarks.breaker import FeedResult, SchemeFigures
from joulie_lab.benchmarks.capping import (
    FULL,
    PROFILE_S,
    SMALL,
    CappingResult,
    ChoiceFigures,
    measure,
    synthetic_sweeps,
)
from joulie_lab.simulation.report.bars import BarSet
from joulie_lab.simulation.report.charts import PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHOWN = str(FULL.shown)
_SOURCES = {
    "other_networks": "other networks, both GPUs",
    "same_gpu": "other networks, this GPU",
    "other_gpu": "other networks, the other GPU",
}
_SCHEMES = {"thunderbolt": "Thunderbolt", "polca": "POLCA", "joulie": "Joulie"}
_FIGURES = ("saved, %", "of the oracle's", "over the bound", "largest slowdown")


def tables(result: CappingResult) -> Iterator[Table]:
    """Chosen power limits, simpler methods for comparison, and the breaker."""
    yield _choice(result)
    yield _simpler(result)
    yield _feed(result.feed)
    yield _untold(result.feed)
    yield _beside_static(result.feed)


def _choice(result: CappingResult) -> Table:
    return Table(
        "Power limits of jobs",
        ("GPU", "learned from", "measured at most", "measured", *_FIGURES),
        [
            (gpu, _SOURCES[source], budget, f"{figures.measured:.1f}", *_cells(figures))
            for gpu, found in result.gpus.items()
            for source, by_budget in found.choice.items()
            for budget, figures in by_budget.items()
        ],
        labels=2,
    )


def _simpler(result: CappingResult) -> Table:
    return Table(
        "Simpler methods",
        ("GPU", "way", "measured", *_FIGURES),
        [
            (gpu, way, f"{figures.measured:.1f}", *_cells(figures))
            for gpu, found in result.gpus.items()
            for way, figures in found.simpler.items()
        ],
        labels=2,
    )


def _cells(figures: ChoiceFigures) -> tuple[str, ...]:
    return (
        f"{figures.saving_pct:.2f}",
        f"{100.0 * figures.share:.1f} %",
        f"{figures.violations} of {figures.jobs}",
        f"{figures.worst_slowdown:.3f}",
    )


def _feed(result: FeedResult) -> Table:
    return Table(
        "A breaker with 30 % more servers",
        (
            "load",
            "scheme",
            "trips a run",
            "critical slowed, % of time",
            "critical work lost, %",
            "standard work lost, %",
            f"more work than {result.fed} servers, %",
            "mean load",
            "hottest",
        ),
        [
            (
                case.replace("_", " "),
                _scheme(scheme),
                f"{figures.trips.mean:.2f}",
                figures.critical_slowed_pct.text(1),
                figures.critical_lost_pct.text(1),
                figures.standard_lost_pct.text(1),
                figures.more_work_pct.text(1),
                f"{figures.mean_load.mean:.2f}",
                f"{figures.peak_heat.worst:.2f}",
            )
            for case, schemes in result.cases.items()
            for scheme, figures in schemes.items()
        ],
        labels=2,
    )


def _untold(result: FeedResult) -> Table:
    schemes = [name for name in next(iter(result.untold.values())) if name != "no_limits"]
    return Table(
        "Breakers and readings that are not as told: trips a run; critical slowed, % of time; standard work lost, %",
        ("load, and what is not as told", *map(_scheme, schemes)),
        [
            (
                case.replace("_", " "),
                *(
                    f"{one.trips.mean:.2f}; {one.critical_slowed_pct.mean:.0f}; {one.standard_lost_pct.mean:.0f}"
                    for one in map(found.__getitem__, schemes)
                ),
            )
            for case, found in result.untold.items()
        ],
    )


def _beside_static(result: FeedResult) -> Table:
    return Table(
        "Total work, Joulie and static share",
        (
            "load",
            f"static share: more work than {result.fed} servers, %",
            "critical slowed, % of time",
            "Joulie: more work, %",
            "critical slowed, % of time",
            "Joulie's work over the static share's, %",
        ),
        [
            (
                case.replace("_", " "),
                *(
                    cell
                    for one in (result.cases[case]["static_share"], result.cases[case]["joulie"])
                    for cell in (one.more_work_pct.text(1), one.critical_slowed_pct.text(1))
                ),
                beyond.text(1, sign="+"),
            )
            for case, beyond in result.beyond_static_pct.items()
        ],
    )


def _scheme(name: str) -> str:
    return _SCHEMES.get(name, name.replace("_", " "))


def figure(result: CappingResult) -> Figure:
    """Savings by number of measurements, lost standard work under an oversubscribed breaker, and one storm."""
    drawn, (choice, feed, storm) = panels(3)
    _draw_choice(choice, result)
    schemes = [name for name in next(iter(result.feed.cases.values())) if name != "no_limits"]
    styles = {name: style for style, name in enumerate(dict.fromkeys([*schemes, *result.feed.example.load]))}
    _draw_feed(feed, result.feed, {name: styles[name] for name in schemes})
    for name, loads in result.feed.example.load.items():
        minutes = [index * result.feed.example.every_s / 60.0 for index in range(len(loads))]
        storm.plot(minutes, loads, color=PALETTE[styles[name]], linewidth=1.2, label=_scheme(name))
    storm.axhline(1.0, color="black", linewidth=1.0)
    storm.set(xlabel="minutes", ylim=(0.0, 1.4))
    storm.legend(frameon=False, fontsize="small", loc="lower left")
    title(storm, "Load of the breaker in a storm")
    return drawn


def _draw_choice(axes: Axes, result: CappingResult) -> None:
    for (gpu, found), color in zip(result.gpus.items(), PALETTE, strict=False):
        for source, style in (("other_networks", "o-"), ("other_gpu", "s:")):
            by_budget = found.choice[source]
            shares = [100.0 * figures.share for figures in by_budget.values()]
            label = f"{gpu}: {source.replace('_', ' ')}"
            axes.plot([int(budget) for budget in by_budget], shares, style, color=color, label=label)
    axes.axhline(90.0, color="black", linewidth=1.0)
    axes.set(xlabel="limits measured beside the largest", ylim=(0.0, 105.0))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    title(axes, "Saved of what the oracle saves, %")


def _draw_feed(axes: Axes, result: FeedResult, schemes: Mapping[str, int]) -> None:
    bars, notes = [], {}
    for name, style in schemes.items():
        found = [case[name] for case in result.cases.values()]
        lost = tuple(figures.standard_lost_pct.mean for figures in found)
        bars.append(BarSet(_scheme(name), lost, (None,) * len(lost), style))
        notes[_scheme(name)] = [_broken(figures) for figures in found]
    horizontal_bars(axes, [name.replace("_", " ") for name in result.cases], bars, notes=notes)
    axes.margins(x=0.5)
    legend_below(axes, 3)
    title(axes, "Standard work lost, %")


def _broken(figures: SchemeFigures) -> str:
    """Violations of a scheme: trips, and slowed critical servers."""
    found = []
    if figures.trips.mean:
        found.append(f"{figures.trips.mean:.1f} trips")
    if figures.critical_slowed_pct.mean:
        found.append(f"critical slowed {figures.critical_slowed_pct.mean:.0f} %")
    return ", ".join(found)


def _page(result: CappingResult) -> dict[str, Any]:
    gpus, ours = result.gpus, [case["joulie"] for case in result.feed.cases.values()]
    static = [case["static_share"].more_work_pct.mean for case in result.feed.cases.values()]
    lost, more = [one.standard_lost_pct.mean for one in ours], [one.more_work_pct.mean for one in ours]
    choice, simpler, feed, untold, beside_static = tables(result)
    wrong = [case["joulie"] for case in result.feed.untold.values()]
    return {
        "EARLIEST": EARLIEST,
        "FeedSettings": FeedSettings,
        "breaker": breaker,
        "seeds": len(FULL.seeds),
        "share": " and ".join(f"{_pct(one.choice['other_networks'][_SHOWN])} ({gpu})" for gpu, one in gpus.items()),
        "share_across": " and ".join(f"{_pct(one.choice['other_gpu'][_SHOWN])} ({gpu})" for gpu, one in gpus.items()),
        "lost": f"{min(lost):.0f} to {max(lost):.0f} %",
        "static_more": f"{min(static):.0f} to {max(static):.0f} %",
        "more": f"{min(more):.0f} to {max(more):.0f} %",
        "trip_s": float(EARLIEST.time_to_trip_s(0.9**2, 1.3)),
        "peak": result.feed.cases["inference"]["no_limits"].peak_load.worst,
        "choice": choice,
        "simpler": simpler,
        "feed": feed,
        "untold": untold,
        "untold_trips": sum(one.trips.worst for one in wrong),
        "untold_heat": max(
            case["joulie"].peak_heat.worst for name, case in result.feed.untold.items() if "100_%" in name
        ),
        "untold_slowed": max(one.critical_slowed_pct.worst for one in wrong),
        "untold_lost": max(one.standard_lost_pct.mean for one in wrong),
        "beside_static": beside_static,
        **_gpu_tables(result),
    }


def _gpu_tables(result: CappingResult) -> dict[str, Table]:
    gpus = result.gpus
    networks = sorted({name for found in gpus.values() for name in found.networks})
    bounds = sorted(next(iter(gpus.values())).bounds)
    by_gpu = ("", *(head for gpu in gpus for head in (f"{gpu}: saved", "of the oracle's")))
    within = [
        *((f"`{name}`", [found.networks[name] for found in gpus.values()]) for name in networks),
        *(
            (
                f"at most {100.0 * (float(key.replace('_', '.')) - 1.0):.0f} % slower",
                [found.bounds[key] for found in gpus.values()],
            )
            for key in bounds
        ),
    ]
    return {
        "data": Table(
            "",
            ("", "jobs", "runs", "networks", "limits, W", "best limit within 5 %: saved"),
            [
                (
                    gpu,
                    *(str(count) for count in (found.data.jobs, found.data.runs, found.data.networks)),
                    f"{found.data.smallest_limit_w:.0f} to {found.data.largest_limit_w:.0f}",
                    f"{found.choice['other_networks'][_SHOWN].oracle_pct:.1f} %",
                )
                for gpu, found in gpus.items()
            ],
        ),
        "within": Table(
            "",
            by_gpu,
            [
                (name, *(cell for one in figures for cell in (f"{one.saving_pct:.1f} %", _pct(one))))
                for name, figures in within
            ],
        ),
        "profiling": Table(
            "",
            ("GPU", "length", "three: saved", "largest slowdown", "every limit: saved", "largest slowdown"),
            [
                (
                    gpu,
                    length.replace("_", " "),
                    *(
                        cell
                        for name in ("few", "all")
                        for cell in (f"{ways[name].saving_pct:.1f} %", f"{ways[name].worst_slowdown:.3f}")
                    ),
                )
                for gpu, found in gpus.items()
                for length, ways in found.profiling.items()
            ],
        ),
        "errors": Table(
            "",
            ("GPU", "error", "of the oracle's", "jobs over 5 %", "with a margin: of the oracle's", "jobs over 5 %"),
            [
                (
                    gpu,
                    f"{100.0 * error:g} %",
                    *(
                        cell
                        for way in ("without_margin", "with_margin")
                        for figures in (found.errors[f"{1000.0 * error:g}_permille_{way}"],)
                        for cell in (f"{figures.share.text(0, 100.0)} %", f"{figures.violating_pct.mean:.1f} %")
                    ),
                )
                for gpu, found in gpus.items()
                for error in FULL.errors
            ],
        ),
    }


def _pct(figures: ChoiceFigures) -> str:
    return f"{100.0 * figures.share:.0f} %"


REPORT = Report(tables, figure)
PAGE = Page(CappingResult, "experiments/capping.md", _page, {"img/capping.png": figure})


@benchmark("capping", REPORT)
@click.option("--data", type=PATH, help="Folder with the published sweeps.  [default: the fetched copy]")
def capping(*, small: bool, data: Path | None) -> CappingResult:
    """Measure the choice of power limits, and power capping under an oversubscribed breaker."""
    sweeps = synthetic_sweeps(seed=1) if small else published_sweeps(data)
    plan, feed_plan = (SMALL, breaker.SMALL) if small else (FULL, breaker.FULL)
    return CappingResult(plan.bounds[0], PROFILE_S, measure(sweeps, plan, tell), breaker.measure(feed_plan, tell))
