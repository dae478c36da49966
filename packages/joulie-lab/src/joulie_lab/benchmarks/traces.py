"""What caps and policies save: the shipped cluster experiments on seeds that nothing was tuned on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulie_lab.simulation.experiment.compare import COLUMNS, PER_WORK, Record, compare, format_estimate
from joulie_lab.simulation.experiment.files import load_experiment
from joulie_lab.simulation.experiment.plan import PhysicsChoice, RunKey, choices, run_keys
from joulie_lab.simulation.experiment.scenario import Experiment, Physics
from joulie_lab.simulation.model_files import Setting
from joulie_lab.simulation.report.bars import Bars, BarSet
from joulie_lab.simulation.report.charts import Chart, Line
from joulie_lab.simulation.report.png import render_png
from joulie_lab.simulation.sweep import Estimate

Rows = list[tuple[str, ...]]


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        names: shipped experiments.
        sets: overrides of each.
        frontier: the one of them whose D is also run with other bounds of slowdown.
    """

    names: tuple[str, ...]
    sets: tuple[str, ...] = ()
    frontier: str = "hetero-41"

    def experiments(self, seeds: tuple[int, ...] | None = None) -> list[Experiment]:
        """The experiments, with other seeds where they are given."""
        settings = [] if seeds is None else [Setting(("seeds",), list(seeds), "--seeds")]
        return [load_experiment(name, self.sets, settings) for name in self.names]


FULL = Plan(("hetero-41", "h100-41", "cpu-only-40"))
SMALL = Plan(("quick",), ("hours=0.25", "drain_hours=0.5", "physics.idle_states=[all, managed]"))


BOUNDS = (1.02, 1.05, 1.1, 1.15, 1.25)
"""Bounds of the slowdown of standard jobs that D is run with."""
_BOUND = "ENERGY_SLOWDOWN_BOUND_STANDARD"
_BOUNDED = "D"
_FRONTIER_SEEDS = 2


def bounded(experiment: Experiment) -> Experiment:
    """The first variant, and D with each bound, under the first assumption, with the first seeds."""
    ours = next(variant for variant in experiment.variants if variant.name == _BOUNDED)
    variants = [
        ours.model_copy(update={"name": bounded_name(bound), "operator": {**ours.operator, _BOUND: f"{bound:g}"}})
        for bound in BOUNDS
    ]
    return experiment.model_copy(
        update={
            "name": f"{experiment.name}-bounds",
            "variants": (experiment.variants[0], *variants),
            "physics": Physics(),
            "seeds": experiment.seeds[:_FRONTIER_SEEDS],
        }
    )


def bounded_name(bound: float) -> str:
    """The name of D with a bound, by how much longer it lets jobs run, %; ranges cannot name what has a dot in it."""
    return f"{_BOUNDED}-{round((bound - 1.0) * 100.0)}"


def reported_runs(experiment: Experiment) -> list[RunKey]:
    """The runs that the tables show: each other assumption by itself, and twins without caps under the first alone."""
    first = choices(experiment.physics)[0]
    twins = {variant.name for variant in experiment.variants if variant.without_caps is not None}

    def shown(key: RunKey) -> bool:
        others = sum(ours != usual for ours, usual in zip(key.physics, first, strict=True))
        return others == 0 or (others == 1 and key.variant not in twins)

    return [key for key in run_keys(experiment) if shown(key)]


def summarise(experiment: Experiment, records: Iterable[Record]) -> dict[str, Any]:
    """The figures of one experiment, by physics and variant, so that ranges can name them.

    Args:
        experiment: that was run.
        records: its finished runs.
    """
    comparison = compare(experiment, records)
    parts = {(part.variant, part.physics): part.as_dict() for part in comparison.parts}
    figures: dict[str, dict[str, Any]] = {}
    for result in comparison.results:
        found = result.as_dict()
        found["parts"] = parts.get((result.variant, result.physics))
        figures.setdefault(physics_name(result.physics), {})[result.variant] = found
    return {"baseline": comparison.baseline, "figures": figures}


def physics_name(physics: PhysicsChoice) -> str:
    """How figures are found: ``all-measured``."""
    return f"{physics.idle_states}-{physics.gpu_throughput}"


SAVED_COLUMNS = ("", "seeds", "energy per work", "deep idle all", "only managed nodes", "published GPU curves")
_SAVED_UNDER = ("all-measured", "managed-measured", "all-published")


def saved_rows(measured: Mapping[str, Any]) -> Rows:
    """Energy per work, and how much less of it than the first variant's, under each assumption."""
    rows = []
    for name, variant, found in _variants(measured):
        first = found.get(_SAVED_UNDER[0])
        if first is None:
            continue
        saved = [
            "–" if variant == measured["experiments"][name]["baseline"] else _cell(_saved(found.get(physics)), 2, "+")
            for physics in _SAVED_UNDER
        ]
        what = f"{name} {variant}" if first["equal_work"] else f"{name} {variant} (other work)"
        seeds = [f"{found[physics]['seeds']}" for physics in _SAVED_UNDER if physics in found]
        rows.append(
            (what, seeds[0] if len(set(seeds)) == 1 else ", ".join(seeds), _cell(first["values"][PER_WORK], 3), *saved)
        )
    return rows


PART_COLUMNS = ("", "seeds", "saved", "by placement", "by caps", "if only managed nodes slept")


def part_rows(measured: Mapping[str, Any]) -> Rows:
    """Where savings come from, under the first assumption."""
    rows = []
    for name, variant, found in _variants(measured):
        parts = (found.get(_SAVED_UNDER[0]) or {}).get("parts")
        if parts is not None:
            cells = (_cell(parts[key], 2, "+") for key in ("total", "placement", "caps", "idle"))
            rows.append((f"{name} {variant}", f"{parts['seeds']}", *cells))
    return rows


_QUALITY = tuple(
    column
    for column in COLUMNS
    if column.key.startswith(("slowdown", "wait", "unfinished", "performance")) and column.label != "jobs"
)
QUALITY_COLUMNS = (
    "",
    *("slowdown, performance", "P95", "standard", "P95", "wait, s", "P95", "unfinished", "performance pods on eco"),
)


def quality_rows(measured: Mapping[str, Any]) -> Rows:
    """What jobs pay for it, under the first assumption."""
    return [
        (f"{name} {variant}", *(_cell(first["values"][column.key], column.digits) for column in _QUALITY))
        for name, variant, found in _variants(measured)
        if (first := found.get(_SAVED_UNDER[0])) is not None
    ]


FRONTIER_COLUMNS = ("bound of standard jobs", "saved", "P95 of standard jobs", "P95 of performance jobs")


def frontier_rows(measured: Mapping[str, Any]) -> Rows:
    """What each bound of slowdown saves, and what jobs pay for it."""
    return [
        (
            f"{bound:g}",
            _cell(_saved(found), 2, "+"),
            _cell(found["values"]["slowdown_p95_standard"], 3),
            _cell(found["values"]["slowdown_p95_performance"], 3),
        )
        for bound, found in _bounds(measured)
    ]


def frontier_plot(measured: Mapping[str, Any]) -> bytes:
    """Savings over slowdown, a point a bound, as a PNG image."""
    found = [of_bound for _, of_bound in _bounds(measured)]
    line = Line(
        _BOUNDED,
        np.array([each["values"]["slowdown_p95_standard"]["mean"] for each in found]),
        np.array([each["saved_pct"][PER_WORK]["mean"] for each in found]),
        0,
    )
    chart = Chart(
        "frontier",
        "What a bound of slowdown saves",
        "P95 of the slowdown of standard jobs",
        "IT energy per work saved against A, %",
        (line,),
    )
    return render_png(chart, f"means of {found[0]['seeds']} seeds")


def _bounds(measured: Mapping[str, Any]) -> list[tuple[float, dict[str, Any]]]:
    variants = measured["frontier"]["figures"][_SAVED_UNDER[0]]
    return [(bound, variants[bounded_name(bound)]) for bound in BOUNDS]


def plot(measured: Mapping[str, Any]) -> bytes:
    """Savings by experiment and assumption, as a PNG image."""
    names = [*measured["experiments"]]
    variants = list(dict.fromkeys(variant for _, variant, _ in _variants(measured)))
    labels = {"all-measured": "deep idle all", "managed-measured": "only managed\nnodes sleep"}
    groups = [
        (name, physics) for name in names for physics in labels if physics in measured["experiments"][name]["figures"]
    ]
    found = {(name, variant): of_physics for name, variant, of_physics in _variants(measured)}
    baselines = {measured["experiments"][name]["baseline"] for name in names}
    bars = []
    for style, variant in enumerate(variants):
        if variant in baselines:
            continue
        saved = [_saved(found.get((name, variant), {}).get(physics)) for name, physics in groups]
        means = tuple(None if value is None else value["mean"] for value in saved)
        halves = tuple(None if value is None else value["half_width"] for value in saved)
        bars.append(BarSet(variant, means, halves, style))
    title = "IT energy per unit of completed work saved against A"
    chart = Bars(
        "traces", title, tuple(f"{name}\n{labels[physics]}" for name, physics in groups), "saved, %", tuple(bars)
    )
    return render_png(chart, "means and 95 % confidence intervals over seeds")


def _variants(measured: Mapping[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Experiment, variant, and its figures by physics, in order."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name, experiment in measured["experiments"].items():
        for physics, of_variant in experiment["figures"].items():
            for variant, figures in of_variant.items():
                found.setdefault((name, variant), {})[physics] = figures
    return [(name, variant, figures) for (name, variant), figures in found.items()]


def _saved(figures: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return None if figures is None else figures["saved_pct"][PER_WORK]


def _cell(value: Mapping[str, Any] | None, digits: int, sign: str = "") -> str:
    return format_estimate(None if value is None else Estimate(value["mean"], value["half_width"]), digits, sign)
