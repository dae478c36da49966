"""Plots of a trace: arrivals, sizes, durations and offered load."""

from __future__ import annotations

import itertools
from io import BytesIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from joulie.domain.quantities import SECONDS_PER_HOUR
from joulie.domain.units import FloatArray
from joulie_lab.simulation.report.charts import PALETTE
from joulie_lab.simulation.workloads.description import TraceColumns, offered_load

_BINS = 200
_LOAD_POINTS = 1500
_HOURS_SHOWN_IN_HOURS = 96.0
_HOURS_OF_DAY = 24.0
_LARGEST_LISTED_GPUS = 16
_MAX_FAMILIES = 7
_TICKS_S = {
    "1 s": 1.0,
    "10 s": 10.0,
    "1 min": 60.0,
    "10 min": 600.0,
    "1 h": 3600.0,
    "6 h": 21600.0,
    "1 d": 86400.0,
    "1 w": 604800.0,
    "1 mo": 2592000.0,
}


def trace_plots(columns: TraceColumns, title: str) -> dict[str, bytes]:
    """Plot a trace as PNG images by name; empty for a trace without jobs.

    Args:
        columns: columns of the jobs.
        title: name of the trace, shown next to each plot's title.
    """
    if not len(columns.submit_s):
        return {}
    return {
        "arrivals": _arrivals(columns, title),
        "durations": _durations(columns, title),
        "sizes": _sizes(columns, title),
        "load": _load(columns, title),
    }


def _arrivals(columns: TraceColumns, title: str) -> bytes:
    figure, axes = _figure("Arrivals", title)
    unit_s, label = _time_unit(columns)
    last_s = float(columns.submit_s.max())
    # Bars are whole hours wide, so that their height is a familiar rate.
    width_s = SECONDS_PER_HOUR * max(1.0, np.ceil(last_s / SECONDS_PER_HOUR / _BINS))
    counts, edges_s = np.histogram(columns.submit_s, bins=np.arange(0.0, last_s + 2.0 * width_s, width_s))
    per_hour = counts / (np.diff(edges_s) / SECONDS_PER_HOUR)
    axes.stairs(per_hour, edges_s / unit_s, fill=True, color=PALETTE[0], alpha=0.7)
    axes.set(xlabel=label, ylabel="jobs an hour")
    axes.set_xlim(0.0, (last_s + width_s) / unit_s)
    axes.set_ylim(bottom=0.0)
    return _png(figure)


def _durations(columns: TraceColumns, title: str) -> bytes:
    """Cumulative distribution of job durations, for the families with the most jobs."""
    figure, axes = _figure("Durations, alone and uncapped", title)
    numbers = np.bincount(columns.family, minlength=len(columns.families))
    shown = np.argsort(-numbers, kind="stable")[:_MAX_FAMILIES].tolist()
    for color, family in zip(PALETTE, shown, strict=False):
        sorted_s = np.sort(columns.duration_s[(columns.family == family) & (columns.duration_s > 0.0)])
        share = np.arange(1, len(sorted_s) + 1) / max(1, len(sorted_s))
        name = (columns.families[family] or "unnamed").replace("_", " ")
        axes.step(sorted_s, share, where="post", color=color, linewidth=1.5, label=f"{name} ({numbers[family]:,})")
    axes.set(xscale="log", xlabel="duration", ylabel="share of jobs")
    axes.set_ylim(0.0, 1.0)
    low, high = axes.get_xlim()
    ticks = {name: value for name, value in _TICKS_S.items() if low <= value <= high}
    axes.set_xticks(list(ticks.values()), list(ticks))
    axes.minorticks_off()
    if shown:
        figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    return _png(figure)


def _sizes(columns: TraceColumns, title: str) -> bytes:
    """Share of all jobs and of all GPU-hours, by number of GPUs of a job."""
    figure, axes = _figure("Jobs and their work by GPUs", title)
    groups = _by_gpus(columns.gpus)
    work = columns.gpus * columns.duration_s
    total = float(work.sum())
    place = np.arange(len(groups))
    of_jobs = [100.0 * float(own.mean()) for own in groups.values()]
    of_work = [100.0 * float(work[own].sum()) / total if total else 0.0 for own in groups.values()]
    for offset, values, color, label in (
        (-0.2, of_jobs, PALETTE[0], "of jobs"),
        (0.2, of_work, PALETTE[1], "of GPU-hours"),
    ):
        bars = axes.bar(place + offset, values, 0.38, color=color, label=label)
        axes.bar_label(bars, [f"{value:.1f}" if value else "" for value in values], padding=2, fontsize="small")
    axes.set_xticks(place, list(groups))
    axes.set(xlabel="GPUs of a job", ylabel="%")
    axes.margins(y=0.12)
    axes.grid(visible=False, axis="x")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return _png(figure)


def _by_gpus(gpus: FloatArray) -> dict[str, FloatArray]:
    """Masks of the jobs with each number of GPUs; numbers that no job has are left out."""
    groups = {"0": gpus == 0.0, "shared": (gpus > 0.0) & (gpus < 1.0)}
    groups |= {f"{number}": gpus == number for number in range(1, _LARGEST_LISTED_GPUS + 1)}
    groups |= {f"> {_LARGEST_LISTED_GPUS}": gpus > _LARGEST_LISTED_GPUS}
    return {name: own for name, own in groups.items() if own.any()}


def _load(columns: TraceColumns, title: str) -> bytes:
    """Offered load over time, cores and GPUs."""
    figure = _bare_figure()
    parts = [("cores", columns.cores, PALETTE[0]), ("GPUs", columns.gpus, PALETTE[1])]
    parts = [part for part in parts if part[1].any()]
    unit_s, label = _time_unit(columns)
    for row, (name, amounts, color) in enumerate(parts, start=1):
        axes = figure.add_subplot(len(parts), 1, row)
        _decorate(
            axes, f"Offered load: {name} if each job began at once" if row == 1 else "", title if row == 1 else ""
        )
        times_s, amount = offered_load(columns, amounts)
        edges_s = np.linspace(0.0, float(times_s.max()), _LOAD_POINTS + 1)
        axes.stairs(_interval_max(times_s, amount, edges_s), edges_s / unit_s, fill=True, color=color, alpha=0.7)
        axes.axvline(float(columns.submit_s.max()) / unit_s, color="#555555", linestyle=":", label="last submission")
        axes.set(ylabel=name)
        axes.set_xlim(0.0, float(times_s.max()) / unit_s)
        axes.set_ylim(bottom=0.0)
        if row == 1:
            axes.legend(frameon=False, fontsize="small")
    axes.set_xlabel(label)
    return _png(figure)


def _interval_max(times_s: FloatArray, amounts: FloatArray, edges_s: FloatArray) -> FloatArray:
    """Maximum load between each edge and the next, so that no spike is lost between the points of a line."""
    first = np.searchsorted(times_s, edges_s, side="right")
    before = np.concatenate(([0.0], amounts))[first[:-1]]
    inside = [float(amounts[low:high].max(initial=0.0)) for low, high in itertools.pairwise(first.tolist())]
    return np.asarray(np.maximum(before, inside))


def _time_unit(columns: TraceColumns) -> tuple[float, str]:
    """Seconds per unit of the time axis, and the axis label."""
    hours = float(columns.submit_s.max()) / SECONDS_PER_HOUR
    if hours <= _HOURS_SHOWN_IN_HOURS:
        return SECONDS_PER_HOUR, "hours after the start of the trace"
    return _HOURS_OF_DAY * SECONDS_PER_HOUR, "days after the start of the trace"


def _figure(heading: str, title: str) -> tuple[Figure, Axes]:
    figure = _bare_figure()
    axes = figure.add_subplot()
    _decorate(axes, heading, title)
    return figure, axes


def _bare_figure() -> Figure:
    figure = Figure(figsize=(9.0, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _decorate(axes: Axes, heading: str, title: str) -> None:
    axes.set_title(heading, loc="left", fontweight="bold")
    axes.set_title(title, loc="right", fontsize="small", color="#555555")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:,g}"))


def _png(figure: Figure) -> bytes:
    out = BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()
