"""``joulie bench live-limits``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.program.numbers import FiniteRange
from joulie_lab.apps.bench.data import published_sweeps, sweep_files
from joulie_lab.apps.bench.live_limits_run import SETTLING_S, WINDOW_S, Plan, live_run
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import PATH, benchmark, tell
from joulie_lab.benchmarks.limit_response import FILES
from joulie_lab.benchmarks.live_limits import (
    CARDS,
    Group,
    LiveLimitsResult,
    Span,
    choose,
    course,
    evaluate,
)
from joulie_lab.simulation.live.measured_jobs import PHASES, Noise
from joulie_lab.simulation.report.charts import PALETTE
from joulie_lab.simulation.report.png import canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SEED = 1


def tables(result: LiveLimitsResult) -> Iterator[Table]:
    """Savings and slowdowns by class and by card."""
    together = {"all": result.together}
    yield _table("By class", "class", result.classes | together)
    yield _table("By card", "card", result.cards | together)


def _table(title: str, label: str, groups: Mapping[str, Group]) -> Table:
    def cells(span: Span) -> tuple[str, ...]:
        share = f"{100.0 * span.share:.0f}" if span.saved else "-"
        over = f"{span.over_bound} / {span.over_bound_by_1pct}"
        slowdowns = (f"{value:.3f}" for value in (span.median, span.p95, span.worst))
        return (f"{100.0 * span.saved:.1f}", share, *slowdowns, over)

    def spans(name: str, group: Group) -> Iterator[tuple[str, ...]]:
        for part, span in (("whole run", group.whole), ("its end", group.end)):
            yield (name, part, str(group.jobs), f"{100.0 * group.oracle_saved:.1f}", *cells(span))

    columns = ("jobs", "oracle, %", "saved, %", "share of the oracle, %", "slowdown, median", "P95", "largest")
    return Table(
        title,
        (label, "time", *columns, "over the bound / by 1 %"),
        [row for name, group in groups.items() for row in spans(name, group)],
        labels=2,
    )


def figure(result: LiveLimitsResult) -> Figure:
    """Course of one job: its limit, its power and its rate of work."""
    one, drawn = result.course, canvas(11.0, 5.0)
    power, rate = drawn.subplots(2, 1, sharex=True)
    power.step(one.time_h, one.limit_w, where="pre", color=PALETTE[1], label="limit, W")
    power.plot(one.time_h, one.power_w, color=PALETTE[0], linewidth=0.8, label="power, W")
    power.axhline(one.natural_w, color="grey", linestyle=":", label="natural power, W")
    rate.plot(one.time_h, one.rate, color=PALETTE[2], linewidth=0.8, label="rate of work over that without a limit")
    rate.axhline(1.0 / one.max_slowdown, color="grey", linestyle=":", label="bound")
    rate.set(xlabel="hours", ylim=(0.0, 1.2))
    for axes in (power, rate):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize="small", ncols=3)
    return drawn


def _page(result: LiveLimitsResult) -> dict[str, Any]:
    by_class, by_card = tables(result)
    return {"by_class": by_class, "by_card": by_card, "phases": PHASES, "noise": Noise(result.noise)}


REPORT = Report(tables, figure)
PAGE = Page(LiveLimitsResult, "experiments/live-limits.md", _page, {"img/live-limits.png": figure})


@benchmark("live-limits", REPORT)
@click.option("--data", type=PATH, help="Folder with the published sweeps.  [default: the fetched copy]")
@click.option("--nodes", default=8, show_default=True, type=click.IntRange(1, 8), help="Number of nodes.")
@click.option("--gpus", default=8, show_default=True, type=click.IntRange(1, 8), help="GPUs of each node.")
@click.option("--hours", default=9.0, show_default=True, type=FiniteRange(0.5), help="Simulated time.")
@click.option("--seed", default=_SEED, show_default=True, help="Seed of the draws of jobs and of their noise.")
@click.option("--time-scale", default=30.0, show_default=True, type=FiniteRange(1.0), help="Simulated over wall time.")
@click.option("--logs", type=PATH, help="Folder for the logs of the programs, which are kept.")
def live_limits(
    *,
    small: bool,
    data: Path | None,
    nodes: int,
    gpus: int,
    hours: float,
    seed: int,
    time_scale: float,
    logs: Path | None,
) -> LiveLimitsResult:
    """Measure the live search on a real control plane."""
    if small:
        nodes, gpus, hours = 1, 2, 1.0
    jobs = choose(published_sweeps(data, FILES), nodes, gpus, seed)
    plan = Plan(jobs, sweep_files(data, FILES), time_scale, Noise().deviation, seed)
    with live_run(plan, logs) as run:
        run.start()
        samples = run.samples(3600.0 * hours, tell)
    end_hours = hours / 3.0
    classes, cards, together = evaluate(jobs, samples, _min_w(), 3600.0 * end_hours)
    return LiveLimitsResult(
        nodes=nodes,
        gpus=gpus,
        seed=seed,
        noise=plan.noise,
        time_scale=time_scale,
        hours=hours,
        end_hours=end_hours,
        window_s=WINDOW_S,
        settling_s=SETTLING_S,
        classes=classes,
        cards=cards,
        together=together,
        course=course(jobs, samples),
    )


def _min_w() -> dict[str, float]:
    """Smallest limit of each card, W."""
    models = {card: BUILTIN_CATALOGUE.gpu(name).model for card, name in CARDS.items()}
    return {card: model.cap_range.min_w for card, model in models.items() if model is not None}
