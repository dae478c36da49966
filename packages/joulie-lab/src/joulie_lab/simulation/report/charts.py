"""Data of a report's charts; HTML and PNG draw the same data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tsdownsample import LTTBDownsampler

from joulie.domain.units import SECONDS_PER_HOUR, WATTS_PER_KW, ZERO_CELSIUS_K, FloatArray, IntArray
from joulie_lab.simulation.results import Run

_POINTS = 1000
"""Maximum number of points of a line: above a screen's resolution."""
_BINS = 60
_HOURS_SHOWN_IN_HOURS = 96.0
_DAY_S = 24 * SECONDS_PER_HOUR
_LONG_S = 14 * _DAY_S
_SETTLING_S = 2 * SECONDS_PER_HOUR
_WATTS_PER_MEGAWATT = 1e6

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")
"""Colour-blind safe colours (Okabe and Ito 2008), without those that are hard to see on white."""
DASHES = ("solid", "dash", "dot")
"""Line styles, used when there are more lines than colours."""


@dataclass(frozen=True)
class Line:
    """One line or histogram of a chart; `x` and `y` have the same shape ``(n,)``."""

    name: str
    x: FloatArray
    y: FloatArray
    style: int
    """Index of colour and dash, the same for a scheduler in all charts."""

    @property
    def color(self) -> str:
        """Hexadecimal colour."""
        return PALETTE[self.style % len(PALETTE)]

    @property
    def dash(self) -> str:
        """One of `DASHES`."""
        return DASHES[self.style // len(PALETTE) % len(DASHES)]


@dataclass(frozen=True)
class Chart:
    """A line chart.

    Attributes:
        key: file name of the plot, without extension.
        title: title of the chart.
        x_label: label of the x axis with its unit.
        y_label: label of the y axis with its unit.
        lines: the lines in the order of the runs.
        steps: whether the lines are outlines of histograms.
        log_y: whether the y axis is logarithmic.
    """

    key: str
    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    steps: bool = False
    log_y: bool = False


def charts(runs: Sequence[Run]) -> list[Chart]:
    """All charts that the runs have data for; the runs have the same scenario and seed and differ in the scheduler."""
    return [*_it_charts(runs), *_cooling_charts(runs), *_distributions(runs)]


def downsample(x: FloatArray, y: FloatArray, n_points: int = _POINTS) -> tuple[FloatArray, FloatArray]:
    """Reduce a line to at most `n_points` points while keeping its visual shape.

    Largest triangle three buckets (Steinarsson 2013).
    """
    if len(x) <= n_points:
        return x, y
    sampler: Any = LTTBDownsampler  # untyped
    kept = sampler().downsample(np.ascontiguousarray(x), np.ascontiguousarray(y), n_out=n_points)
    return x[kept], y[kept]


def _it_charts(runs: Sequence[Run]) -> Iterator[Chart]:
    unit, watts = _power_unit(runs)
    yield _over_time(runs, "power", "IT power", unit, lambda run: run.series.it_w / watts)
    yield _over_time(runs, "running", "Jobs running", "jobs", lambda run: run.series.running.astype(np.float64))
    queueing = any(run.record.unfinished is not None for run in runs)
    if queueing:
        yield _over_time(runs, "waiting", "Jobs waiting", "jobs", lambda run: run.series.waiting.astype(np.float64))
        yield _over_time(runs, "awake", "Nodes awake", "nodes", lambda run: run.series.awake_nodes.astype(np.float64))
    yield _rate("arrivals", "Jobs arrived", runs[:1], lambda run: run.series.arrived, name="all schedulers")
    if not queueing:
        yield _rate("drops", "Jobs dropped", runs, lambda run: run.series.dropped)


def _cooling_charts(runs: Sequence[Run]) -> Iterator[Chart]:
    cooled = [run for run in runs if run.cooling is not None]
    if not cooled:
        return
    unit, watts = _power_unit(runs)
    yield _over_time(cooled, "facility", "Facility power (IT and cooling)", unit, lambda run: _facility_w(run) / watts)
    yield _over_time(cooled, "cooling", "Cooling power", unit, lambda run: _cooling(run, "cooling_w") / watts)
    yield _over_time(cooled, "pue", "PUE", "PUE", lambda run: _facility_w(run) / run.series.it_w)
    yield _cop(cooled)
    yield _over_time(cooled, "room", "Room temperature", "°C", lambda run: _celsius(_cooling(run, "room_k")))
    yield _over_time(
        cooled[:1],
        "outdoor",
        "Outdoor temperature",
        "°C",
        lambda run: _celsius(_cooling(run, "outdoor_k")),
        name="all schedulers",
    )


def _distributions(runs: Sequence[Run]) -> Iterator[Chart]:
    unit, watts = _power_unit(runs)
    names = [run.record.scheduler for run in runs]
    settled = [run.series.it_w[run.series.time_s >= _SETTLING_S] / watts for run in runs]
    if len(settled[0]) > 1:
        yield _histogram(runs, settled, "power-distribution", "Distribution of IT power after 2 h", f"IT power, {unit}")
        ramps = [np.abs(np.diff(power)) * (watts / WATTS_PER_KW) for power in settled]
        yield exceedance(
            names, ramps, "ramp-distribution", "Ramps after 2 h", "change from step to step, kW", quantity="steps"
        )
    waits = [run.wait_min for run in runs if run.wait_min is not None]
    if len(waits) == len(runs) and all(len(wait) for wait in waits):
        yield exceedance(names, waits, "wait-distribution", "Waits", "wait, min", quantity="jobs")


def _over_time(
    runs: Sequence[Run],
    key: str,
    title: str,
    unit: str,
    values: Callable[[Run], FloatArray],
    *,
    name: str | None = None,
) -> Chart:
    """Values of each step; daily means for long runs, where the daily cycle would hide everything else."""
    time_unit, seconds = _time_unit(runs)
    long = _is_long(runs)
    lines = []
    for style, run in enumerate(runs):
        x, y = run.series.time_s, values(run)
        if long:
            x, y = _by_bin(x, y, _DAY_S)
            y = y / np.bincount((run.series.time_s // _DAY_S).astype(np.int64))
        lines.append(Line(name or run.record.scheduler, *downsample(x / seconds, y), style))
    return Chart(key, f"{title}, daily mean" if long else title, f"time, {time_unit}", unit, tuple(lines))


def _cop(runs: Sequence[Run]) -> Chart:
    """Heat over electrical energy by hour, or by day for long runs: at low power a step may have a COP of hundreds."""
    time_unit, seconds = _time_unit(runs)
    bin_s, each = (_DAY_S, "day") if _is_long(runs) else (SECONDS_PER_HOUR, "hour")
    lines = []
    for style, run in enumerate(runs):
        cooling_w = _cooling(run, "cooling_w")
        x, energy = _by_bin(run.series.time_s, cooling_w, bin_s)
        _, heat = _by_bin(run.series.time_s, cooling_w * _cooling(run, "cop"), bin_s)
        cooled = energy > 0.0
        lines.append(Line(run.record.scheduler, *downsample(x[cooled] / seconds, heat[cooled] / energy[cooled]), style))
    return Chart("cop", f"Coefficient of performance, by {each}", f"time, {time_unit}", "COP", tuple(lines))


def _rate(
    key: str, title: str, runs: Sequence[Run], counts: Callable[[Run], IntArray], name: str | None = None
) -> Chart:
    """Counts summed by hour, or by day for long runs."""
    time_unit, seconds = _time_unit(runs)
    long = _is_long(runs)
    lines = []
    for style, run in enumerate(runs):
        x, y = _by_bin(run.series.time_s, counts(run), _DAY_S if long else SECONDS_PER_HOUR)
        lines.append(Line(name or run.record.scheduler, *downsample(x / seconds, y), style))
    return Chart(key, title, f"time, {time_unit}", f"jobs per {'day' if long else 'hour'}", tuple(lines))


def _histogram(runs: Sequence[Run], values: Sequence[FloatArray], key: str, title: str, x_label: str) -> Chart:
    low, high = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
    edges = np.linspace(low, high if high > low else low + 1.0, _BINS + 1)
    lines = []
    for style, (run, sample) in enumerate(zip(runs, values, strict=True)):
        share_pct = np.histogram(sample, edges)[0] * (100.0 / len(sample))
        lines.append(Line(run.record.scheduler, edges, np.append(share_pct, share_pct[-1]), style))
    return Chart(key, title, x_label, "% of steps", tuple(lines), steps=True)


def exceedance(
    names: Sequence[str],
    values: Sequence[FloatArray],
    key: str,
    title: str,
    x_label: str,
    *,
    quantity: str,
    minimum: float = 0.0,
) -> Chart:
    """Exceedance chart: the share of samples above each value. It shows rare large values, which a histogram hides.

    Args:
        names: names of the lines.
        values: samples of each line, not empty.
        key: file name of the plot, without extension.
        title: title of the chart.
        x_label: label of the x axis with its unit.
        quantity: what the samples are, for the label of the y axis.
        minimum: start of the x axis.
    """
    high = max(float(v.max()) for v in values)
    x = np.linspace(minimum, max(high, minimum), 4 * _BINS, endpoint=False)
    lines = []
    for style, (name, sample) in enumerate(zip(names, values, strict=True)):
        above_pct = (1.0 - np.searchsorted(np.sort(sample), x, side="right") / len(sample)) * 100.0
        seen = above_pct > 0.0  # a logarithmic axis cannot show zero
        lines.append(Line(name, x[seen], above_pct[seen], style))
    return Chart(key, title, x_label, f"% of {quantity} above", tuple(lines), steps=True, log_y=True)


def _by_bin(time_s: FloatArray, values: FloatArray | IntArray, bin_s: float) -> tuple[FloatArray, FloatArray]:
    """Start time and sum of the values of each time bin."""
    sums = np.bincount((time_s // bin_s).astype(np.int64), weights=values).astype(np.float64)
    return np.arange(len(sums), dtype=np.float64) * bin_s, sums


def _is_long(runs: Sequence[Run]) -> bool:
    return bool(runs[0].series.time_s[-1] > _LONG_S)


def _time_unit(runs: Sequence[Run]) -> tuple[str, float]:
    hours = float(runs[0].series.time_s[-1]) / SECONDS_PER_HOUR
    return ("h", SECONDS_PER_HOUR) if hours <= _HOURS_SHOWN_IN_HOURS else ("days", _DAY_S)


def _power_unit(runs: Sequence[Run]) -> tuple[str, float]:
    peak_w = max(float(run.series.it_w.max()) for run in runs)
    return ("MW", _WATTS_PER_MEGAWATT) if peak_w >= _WATTS_PER_MEGAWATT else ("kW", WATTS_PER_KW)


def _facility_w(run: Run) -> FloatArray:
    return run.series.it_w + _cooling(run, "cooling_w")


def _cooling(run: Run, column: str) -> FloatArray:
    values: FloatArray = getattr(run.cooling, column)
    return values


def _celsius(temperature_k: FloatArray) -> FloatArray:
    return temperature_k - ZERO_CELSIUS_K
