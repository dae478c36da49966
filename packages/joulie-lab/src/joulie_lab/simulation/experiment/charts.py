"""Charts of an experiment, for its report, its PNG files and the documentation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from joulie.domain.policy import WorkloadClass
from joulie.domain.units import SECONDS_PER_HOUR, WATTS_PER_KW, FloatArray, joules_to_kwh
from joulie_lab.simulation.experiment.compare import PER_WORK, Comparison, VariantResult
from joulie_lab.simulation.experiment.metrics import slowdowns, waits_s
from joulie_lab.simulation.experiment.outcome import JobOutcome, Outcome, OutcomeSeries
from joulie_lab.simulation.report.bars import Bars, BarSet
from joulie_lab.simulation.report.charts import Chart, Line, exceedance
from joulie_lab.simulation.sweep import Estimate

_MINUTE_S = 60.0
_STRETCHES = 120
"""Number of points of a line over time: means over intervals tell variants apart, single samples are too noisy."""


def comparison_charts(comparison: Comparison) -> Iterator[Bars]:
    """Charts of all seeds, with the assumptions about physics next to each other."""
    yield _by_physics(
        comparison, "energy-per-work", "IT energy per unit of completed work", "kWh per reference kWh", _value
    )
    if comparison.parts:
        saved = f"saved against {comparison.baseline}, %"
        yield _by_physics(comparison, "saved-per-work", "IT energy per unit of work saved", saved, _saved, skip=1)
        if any(part.placement or part.idle for part in comparison.parts):
            yield _parts(comparison)
    yield _slowdowns(comparison)


def run_charts(runs: Mapping[str, Outcome]) -> Iterator[Chart | Bars]:
    """Charts of the runs of one seed under one physics.

    Args:
        runs: outcome by variant, in the order of the variants.
    """
    smooth = f"mean of {_stretch_s(next(iter(runs.values())).duration_s) / _MINUTE_S:g} min"
    yield _over_time(runs, "power", f"IT power, {smooth}", "kW", lambda series: series.it_w / WATTS_PER_KW)
    for key, title in (
        ("running", "Pods running"),
        ("waiting", "Pods waiting for a node"),
        ("eco_nodes", "Nodes under eco caps"),
        ("draining_nodes", "Nodes that drain"),
        ("capped_nodes", "Nodes that draw what their cap allows"),
    ):
        if any(getattr(run.series, key).any() for run in runs.values()):
            unit = "pods" if key in ("running", "waiting") else "nodes"
            yield _over_time(runs, key.replace("_", "-"), f"{title}, {smooth}", unit, _column(key))
    yield from _distributions(runs)
    yield _families(runs)


def _column(key: str) -> Callable[[OutcomeSeries], FloatArray]:
    return lambda series: np.asarray(getattr(series, key), dtype=np.float64)


def _over_time(
    runs: Mapping[str, Outcome], key: str, title: str, unit: str, values: Callable[[OutcomeSeries], FloatArray]
) -> Chart:
    lines = []
    for style, (name, run) in enumerate(runs.items()):
        time_s, smooth = _means(run.series.time_s, values(run.series), _stretch_s(run.duration_s))
        lines.append(Line(name, time_s / SECONDS_PER_HOUR, smooth, style))
    return Chart(key, title, "time, h", unit, tuple(lines))


def _stretch_s(duration_s: float) -> float:
    """Length of an averaging interval, s: a whole number of minutes."""
    return max(1, round(duration_s / _STRETCHES / _MINUTE_S)) * _MINUTE_S


def _means(time_s: FloatArray, values: FloatArray, stretch_s: float) -> tuple[FloatArray, FloatArray]:
    bins = (time_s // stretch_s).astype(np.int64)
    counts = np.bincount(bins)
    seen = np.flatnonzero(counts)
    middle_s = (seen.astype(np.float64) + 0.5) * stretch_s
    means: FloatArray = np.bincount(bins, weights=values)[seen] / counts[seen]
    return middle_s, means


def _distributions(runs: Mapping[str, Outcome]) -> Iterator[Chart]:
    for name in WorkloadClass:
        of_class = {variant: [job for job in run.jobs if _class(job) is name] for variant, run in runs.items()}
        if all(slowdowns(jobs) for jobs in of_class.values()):
            yield exceedance(
                list(runs),
                [np.array(slowdowns(jobs)) for jobs in of_class.values()],
                f"slowdown-{name}",
                f"Slowdown of {name} jobs",
                "time from first run to end against that alone and uncapped",
                quantity="jobs",
                minimum=1.0,
            )
        if all(waits_s(jobs) for jobs in of_class.values()):
            minutes = [np.array(waits_s(jobs)) / _MINUTE_S for jobs in of_class.values()]
            if max(float(waits.max()) for waits in minutes) > 0.0:
                yield exceedance(
                    list(runs), minutes, f"wait-{name}", f"Wait of {name} jobs", "wait, min", quantity="jobs"
                )


def _class(job: JobOutcome) -> WorkloadClass:
    performance = job.workload_class == WorkloadClass.PERFORMANCE
    return WorkloadClass.PERFORMANCE if performance else WorkloadClass.STANDARD


def _families(runs: Mapping[str, Outcome]) -> Bars:
    names = sorted({node.family for run in runs.values() for node in run.nodes})
    bars = []
    for style, (variant, run) in enumerate(runs.items()):
        kwh = tuple(joules_to_kwh(sum(node.energy_j for node in run.nodes if node.family == name)) for name in names)
        bars.append(BarSet(variant, kwh, (None,) * len(names), style))
    groups = tuple(name.replace("-", " ") for name in names)
    return Bars("families", "IT energy by family of nodes", groups, "kWh", tuple(bars))


def _value(result: VariantResult) -> Estimate | None:
    return result.values[PER_WORK]


def _saved(result: VariantResult) -> Estimate | None:
    return result.saved_pct[PER_WORK]


def _by_physics(
    comparison: Comparison,
    key: str,
    title: str,
    y_label: str,
    figure: Callable[[VariantResult], Estimate | None],
    *,
    skip: int = 0,
) -> Bars:
    """Bar chart with a group for each physics and a bar for each variant; `skip` leaves out the first variants."""
    found = {(result.variant, result.physics): figure(result) for result in comparison.results}
    names = list(dict.fromkeys(result.variant for result in comparison.results))
    groups = tuple(f"idle {physics.idle_states}\nGPU {physics.gpu_throughput}" for physics in comparison.physics)
    bars = [
        _bar_set(name, [found.get((name, physics)) for physics in comparison.physics], style)
        for style, name in enumerate(names)
        if style >= skip
    ]
    return Bars(key, title, groups, y_label, tuple(bars))


def _parts(comparison: Comparison) -> Bars:
    """Parts of the saving under the first physics: placement, caps, and what the idle assumption would add."""
    parts = [part for part in comparison.parts if part.physics == comparison.physics[0]]
    labels = {"placement": "placement", "caps": "caps", "idle": "if only managed nodes slept"}
    known = {name: label for name, label in labels.items() if any(getattr(part, name) for part in parts)}
    return Bars(
        "saving-parts",
        f"Where savings come from, {comparison.physics[0]}",
        tuple(part.variant for part in parts),
        "points of IT energy per work",
        tuple(
            _bar_set(label, [getattr(part, name) for part in parts], style)
            for style, (name, label) in enumerate(known.items())
        ),
    )


def _slowdowns(comparison: Comparison) -> Bars:
    results = comparison.under(comparison.physics[0])
    figures = (
        ("slowdown_mean_performance", "performance, mean"),
        ("slowdown_p95_performance", "performance, P95"),
        ("slowdown_mean_standard", "standard, mean"),
        ("slowdown_p95_standard", "standard, P95"),
    )
    bars = []
    for style, result in enumerate(results):
        lost = [_percent_above_one(result.values[key]) for key, _ in figures]
        bars.append(_bar_set(result.variant, lost, style))
    return Bars(
        "slowdowns",
        f"How much longer jobs run, {comparison.physics[0]}",
        tuple(label for _, label in figures),
        "longer than alone and uncapped, %",
        tuple(bars),
    )


def _percent_above_one(value: Estimate | None) -> Estimate | None:
    if value is None:
        return None
    return Estimate((value.mean - 1.0) * 100.0, None if value.half_width is None else value.half_width * 100.0)


def _bar_set(name: str, values: Sequence[Estimate | None], style: int) -> BarSet:
    means = tuple(None if value is None else value.mean for value in values)
    return BarSet(name, means, tuple(None if value is None else value.half_width for value in values), style)
