"""``joulie bench traces``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from platformdirs import user_state_path

from joulie.program.errors import UserError
from joulie_lab.apps.bench.equal_work import seeds_of
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import PATH, benchmark
from joulie_lab.apps.experiment.artefacts import ArtefactError, Artefacts, identity
from joulie_lab.apps.experiment.main import NATIVE, finish
from joulie_lab.benchmarks.results import Estimate
from joulie_lab.benchmarks.traces import (
    BOUNDED,
    BOUNDS,
    FULL,
    SMALL,
    ExperimentFigures,
    TracesResult,
    VariantFigures,
    bounded,
    bounded_name,
    reported_runs,
    summarise,
)
from joulie_lab.simulation.experiment.compare import COLUMNS, PER_WORK
from joulie_lab.simulation.experiment.files import load_experiment
from joulie_lab.simulation.experiment.plan import RunKey, run_keys
from joulie_lab.simulation.experiment.scenario import Experiment
from joulie_lab.simulation.report.bars import Bars, BarSet
from joulie_lab.simulation.report.charts import Chart, Line
from joulie_lab.simulation.report.png import draw
from joulie_lab.simulation.sweep_state import identity_digest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAIN = "hetero-41"
_USUAL = "all-measured"
_SAVED_UNDER = (_USUAL, "managed-measured", "all-published")
_QUALITY = tuple(
    column
    for column in COLUMNS
    if column.key.startswith(("slowdown", "wait", "unfinished", "performance")) and column.label != "jobs"
)


def tables(result: TracesResult) -> Iterator[Table]:
    """Savings, their causes, and the slowdown of jobs."""
    yield _saved(result)
    yield _parts(result)
    yield _quality(result)
    if result.frontier is not None:
        yield _frontier(result.frontier)


def _saved(result: TracesResult) -> Table:
    rows = []
    for name, variant, found in _variants(result):
        if _USUAL not in found:
            continue
        usual = found[_USUAL]
        saved = (
            "–"
            if variant == result.experiments[name].baseline
            else _signed(found[physics].saved if physics in found else None)
            for physics in _SAVED_UNDER
        )
        what = f"{name} {variant}" if usual.equal_work else f"{name} {variant} (other work)"
        seeds = [f"{found[physics].seeds}" for physics in _SAVED_UNDER if physics in found]
        shown_seeds = seeds[0] if len(set(seeds)) == 1 else ", ".join(seeds)
        rows.append((what, shown_seeds, _text(usual.values[PER_WORK], 3), *saved))
    columns = ("", "seeds", "energy per work", "deep idle all", "only managed nodes", "published GPU curves")
    return Table("IT energy per unit of work, and savings, %", columns, rows)


def _parts(result: TracesResult) -> Table:
    return Table(
        "Savings by cause, percentage points",
        ("", "seeds", "saved", "by placement", "by caps", "if only managed nodes slept"),
        [
            (
                f"{name} {variant}",
                f"{parts.seeds}",
                *(_signed(part) for part in (parts.total, parts.placement, parts.caps, parts.idle)),
            )
            for name, variant, found in _variants(result)
            if _USUAL in found and (parts := found[_USUAL].parts) is not None
        ],
    )


def _quality(result: TracesResult) -> Table:
    heads = (
        "slowdown, performance",
        "P95",
        "standard",
        "P95",
        "wait, s",
        "P95",
        "unfinished",
        "performance pods on eco",
    )
    return Table(
        "What jobs pay",
        ("", *heads),
        [
            (
                f"{name} {variant}",
                *(_text(found[_USUAL].values[column.key], column.digits) for column in _QUALITY),
            )
            for name, variant, found in _variants(result)
            if _USUAL in found
        ],
    )


def _frontier(frontier: ExperimentFigures) -> Table:
    return Table(
        "D by its bound",
        ("bound of standard jobs", "saved", "P95 of standard jobs", "P95 of performance jobs"),
        [
            (
                f"{bound:g}",
                _signed(found.saved),
                _text(found.values["slowdown_p95_standard"], 3),
                _text(found.values["slowdown_p95_performance"], 3),
            )
            for bound, found in _bounds(frontier)
        ],
    )


def _variants(result: TracesResult) -> list[tuple[str, str, dict[str, VariantFigures]]]:
    """Experiments and variants with their figures by physics, in order."""
    found: dict[tuple[str, str], dict[str, VariantFigures]] = {}
    for name, experiment in result.experiments.items():
        for physics, of_variant in experiment.figures.items():
            for variant, figures in of_variant.items():
                found.setdefault((name, variant), {})[physics] = figures
    return [(name, variant, figures) for (name, variant), figures in found.items()]


def _bounds(frontier: ExperimentFigures) -> list[tuple[float, VariantFigures]]:
    return [(bound, frontier.figures[_USUAL][bounded_name(bound)]) for bound in BOUNDS]


def _text(value: Estimate | None, digits: int) -> str:
    return "–" if value is None else value.text(digits)


def _signed(value: Estimate | None) -> str:
    return "–" if value is None else value.text(2, sign="+")


def figure(result: TracesResult) -> Figure:
    """Savings by experiment and assumption."""
    labels = {_USUAL: "deep idle all", "managed-measured": "only managed\nnodes sleep"}
    groups = [
        (name, physics) for name, one in result.experiments.items() for physics in labels if physics in one.figures
    ]
    found = {(name, variant): of_physics for name, variant, of_physics in _variants(result)}
    baselines = {experiment.baseline for experiment in result.experiments.values()}
    bars = []
    for style, variant in enumerate(dict.fromkeys(variant for _, variant, _ in _variants(result))):
        if variant in baselines:
            continue
        figures = [found.get((name, variant), {}).get(physics) for name, physics in groups]
        saved = [None if one is None else one.saved for one in figures]
        means = tuple(None if one is None else one.mean for one in saved)
        halves = tuple(None if one is None else one.half_width for one in saved)
        bars.append(BarSet(variant, means, halves, style))
    heading = "IT energy per unit of completed work saved against A"
    names = tuple(f"{name}\n{labels[physics]}" for name, physics in groups)
    return draw(
        Bars("traces", heading, names, "saved, %", tuple(bars)), "means and 95 % confidence intervals over seeds"
    )


def _frontier_figure(result: TracesResult) -> Figure | None:
    """Savings over slowdown, one point per bound."""
    if result.frontier is None:
        return None
    found = [figures for _, figures in _bounds(result.frontier)]
    points = [(figures.values["slowdown_p95_standard"], figures.saved) for figures in found]
    slowdown, saved = np.array([(x.mean, y.mean) for x, y in points if x is not None and y is not None]).T
    chart = Chart(
        "frontier",
        "Savings by bound of slowdown",
        "P95 of the slowdown of standard jobs",
        "IT energy per work saved against A, %",
        (Line(BOUNDED, slowdown, saved, 0),),
    )
    return draw(chart, f"means of {found[0].seeds} seeds")


def _page(result: TracesResult) -> dict[str, Any]:
    frontier = None if result.frontier is None else _frontier(result.frontier)
    seeds = "" if result.frontier is None else _seeds(result.frontier.figures[_USUAL])
    return {
        "MAIN": _MAIN,
        "headline": _headline(result),
        "saved": _saved(result),
        "parts": _parts(result),
        "quality": _quality(result),
        "frontier": frontier,
        "frontier_seeds": seeds,
        "clusters": [
            (
                name,
                ", ".join(f"{group.count} × {group.name}" for group in load_experiment(name).cluster.groups),
                ", ".join(f"{_seeds(figures)} ({physics})" for physics, figures in found.figures.items()),
            )
            for name, found in result.experiments.items()
        ],
    }


def _headline(result: TracesResult) -> str:
    """Headline of the main experiment, generated from the result."""
    figures = result.experiments[_MAIN].figures
    told = [
        f"{variant}: {_in_words(found.saved)}"
        for variant, found in figures[_USUAL].items()
        if variant in ("B", "C", "D") and found.saved is not None
    ]
    managed = figures.get("managed-measured", {}).get("B")
    idle = ""
    if managed is not None and managed.saved is not None:
        idle = (
            " Under the published assumption that only managed nodes sleep, the same B:"
            f" {_in_words(managed.saved)}. The difference is the assumption."
        )
    return f"**On {_MAIN}, with deep idle states everywhere: {'; '.join(told)}.**{idle}"


def _in_words(saved: Estimate) -> str:
    """A saving as text: an interval that contains zero shows no difference, and one seed has no interval."""
    mean, half = saved.mean, saved.half_width
    if half is not None and abs(mean) <= half:
        return f"no difference shown ({mean:+.2f} ± {half:.2f} %)"
    told = f"{abs(mean):.2f} % (one seed)" if half is None else f"{abs(mean):.2f} ± {half:.2f} %"
    return f"saves {told}" if mean >= 0.0 else f"uses {told} more"


def _seeds(figures: Mapping[str, VariantFigures]) -> str:
    counts = sorted({found.seeds for found in figures.values()})
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


REPORT = Report(tables, figure)
PAGE = Page(
    TracesResult,
    "experiments/caps-and-policies.md",
    _page,
    {"img/traces.png": figure, "img/traces-frontier.png": _frontier_figure},
)


@benchmark("traces", REPORT)
@click.option("--seeds", metavar="N,...", help="Seeds to report.  [default: the eight held-out seeds]")
@click.option("--jobs", type=click.IntRange(min=1), help="Number of parallel runs.  [default: one per core]")
@click.option("--folder", type=PATH, help="Folder for finished runs.  [default: in the user's data folder]")
@click.option("--frontier", is_flag=True, help="Also run variant D of hetero-41 with other bounds of slowdown.")
def traces(*, small: bool, seeds: str | None, jobs: int | None, folder: Path | None, frontier: bool) -> TracesResult:
    """Measure the shipped cluster experiments; stored runs of an earlier call are reused."""
    plan = SMALL if small else FULL
    place = folder or user_state_path("joulie") / "traces"

    def summed_up(experiment: Experiment, runs: Sequence[RunKey]) -> ExperimentFigures:
        # Named by the identity of the runs, so that runs of other code are stored elsewhere.
        digest = identity_digest(identity(experiment, NATIVE, None))
        artefacts = Artefacts(place / f"{experiment.name}-{digest}")
        finish(experiment, runs, artefacts, jobs=jobs)
        return summarise(experiment, [record for record in artefacts.records() if record.key in runs])

    experiments = plan.experiments(None if seeds is None else seeds_of(seeds))
    try:
        found = {each.name: summed_up(each, reported_runs(each)) for each in experiments}
        if small or not frontier:
            return TracesResult(found)
        bounds = bounded(next(each for each in experiments if each.name == plan.frontier))
        return TracesResult(found, summed_up(bounds, run_keys(bounds)))
    except ArtefactError as error:
        raise UserError(str(error)) from error
