"""The metrics of a run in display order, shared by terminal output and report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from joulie_lab.simulation.results import RunRecord

Value = float | int | None


class Metric(NamedTuple):
    """A metric of a run: its label, its value from the record, and its label in mode queue if different."""

    label: str
    of: Callable[[RunRecord], Value]
    queue_label: str | None = None


def _energy_per_useful_work(record: RunRecord) -> float | None:
    return record.it_kwh / record.useful_work_kwh if record.useful_work_kwh > 0.0 else None


METRICS: tuple[Metric, ...] = (
    Metric("jobs", lambda run: run.jobs),
    Metric("arrived", lambda run: run.arrived),
    Metric("dropped", lambda run: run.dropped if run.unfinished is None else None),
    Metric("unfinished", lambda run: run.unfinished),
    Metric("mean IT power, kW", lambda run: run.mean_kw),
    Metric("peak IT power, kW", lambda run: run.peak_kw),
    Metric("std of power, kW", lambda run: run.std_kw, "std in hours 2–24, kW"),
    Metric("std after 2 h, kW", lambda run: run.std_after_2h_kw),
    Metric("P99 ramp, kW/step", lambda run: run.p99_ramp_kw, "P99 ramp, hours 2–24, kW/step"),
    Metric("IT energy, kWh", lambda run: run.it_kwh),
    Metric("cooling energy, kWh", lambda run: run.cooling_kwh),
    Metric("facility energy, kWh", lambda run: run.facility_kwh),
    Metric("mean PUE", lambda run: run.mean_pue),
    Metric("mean COP", lambda run: run.mean_cop),
    Metric("energy per job, kWh", lambda run: run.kwh_per_job),
    Metric("core-hours", lambda run: run.core_hours),
    Metric("GPU-hours", lambda run: run.gpu_hours),
    Metric("useful work, kWh", lambda run: run.useful_work_kwh),
    Metric("energy per useful work", _energy_per_useful_work),
    Metric("mean wait, min", lambda run: run.mean_wait_min),
    Metric("P99 wait, min", lambda run: run.p99_wait_min),
    Metric("wakes of nodes", lambda run: run.wakes),
    Metric("wall time, s", lambda run: run.seconds),
)
_NOT_COMPARED = {"jobs", "arrived", "wall time, s"}


class Row(NamedTuple):
    """A metric of several runs: its label, and one text per run."""

    label: str
    cells: tuple[str, ...]
    changes: tuple[str, ...]
    """Difference to the first run in percent; empty if it is not defined."""


def comparison(records: Iterable[RunRecord]) -> list[Row]:
    """Compare each record with the first one, for all metrics that apply to any of `records`."""
    runs = list(records)
    queueing = any(run.unfinished is not None for run in runs)
    rows = []
    for metric in METRICS:
        values = [metric.of(run) for run in runs]
        if all(value is None for value in values):
            continue
        changes = [""] * len(values)
        if metric.label not in _NOT_COMPARED:
            changes[1:] = [_change(value, values[0]) for value in values[1:]]
        label = metric.queue_label if queueing and metric.queue_label else metric.label
        rows.append(Row(label, tuple(map(format_value, values)), tuple(changes)))
    return rows


def verdict(records: Sequence[RunRecord]) -> str:
    """What came out, in a sentence: the run with the least energy per useful work beside the first one."""
    first, *others = records
    base = _energy_per_useful_work(first)
    found = [(value, run.scheduler) for run in others if (value := _energy_per_useful_work(run)) is not None]
    if base is None or not found:
        used, mean = format_value(first.it_kwh), format_value(first.mean_kw)
        return f"{first.scheduler} used {used} kWh of IT energy, {mean} kW on average."
    least, name = min(found)
    change = least / base - 1.0
    if change < 0.0:
        return f"{name} used {-change:.1%} less energy per useful work than {first.scheduler}."
    return f"No scheduler used less energy per useful work than {first.scheduler}; {name} used {change:.1%} more."


def format_value(value: Value) -> str:
    """Format a value for display: integers exactly, others with a suitable number of digits; a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, int) or value == 0.0:
        return f"{value:,.0f}"
    if abs(value) >= 10_000.0:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100.0 else f"{value:.4f}" if abs(value) < 10.0 else f"{value:.2f}"


def _change(value: Value, baseline: Value) -> str:
    if value is None or baseline is None or baseline == 0:
        return ""
    return f"{(value / baseline - 1.0) * 100.0:+.2f} %"
