"""Prints the statistics of a trace as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from joulie.domain.quantities import SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from joulie.program.tables import console, print_whole

if TYPE_CHECKING:
    from joulie_lab.simulation.workloads.description import Load, TraceDescription

_BARS = " ▁▂▃▄▅▆▇█"
_LARGE_SHARE = 0.1
_DAY_S = 24 * SECONDS_PER_HOUR


def print_description(found: TraceDescription, capacity: tuple[float, float] | None) -> None:
    """Print the statistics of a trace.

    Args:
        found: statistics of the trace.
        capacity: cores and GPUs of the cluster to compare the load to; None without one.
    """
    screen = console()
    screen.print(_overview(found, capacity))
    if found.jobs:
        screen.print()
        print_whole(_families(found))


def _overview(found: TraceDescription, capacity: tuple[float, float] | None) -> Table:
    table = Table(show_header=False, show_edge=False, box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    cores, gpus = capacity or (None, None)
    rows = [
        (
            "jobs",
            f"{found.jobs:,} in {found.workloads:,} workloads; {_share(found.performance_jobs, found)} performance",
        )
    ]
    if found.gangs:
        rows.append(("gangs", f"{found.gangs:,}, the largest of {found.largest_gang:,} jobs"))
    if found.first_submit_s is not None and found.last_submit_s is not None and found.duration_s is not None:
        span_s = found.last_submit_s - found.first_submit_s
        rows += [
            ("submitted", f"{duration(found.first_submit_s)} to {duration(found.last_submit_s)} after the start"),
            (
                "arrivals",
                f"{sparkline(found.arrivals)}  {_rate(found.jobs, span_s)}; most in an hour {found.peak_hour_jobs:,}",
            ),
            (
                "duration",
                f"median {duration(found.duration_s.p50)}, P90 {duration(found.duration_s.p90)},"
                f" P99 {duration(found.duration_s.p99)}, longest {duration(found.duration_s.max)}",
            ),
            ("GPUs of a job", _sizes(found)),
            ("work", f"{found.core_hours:,.0f} core-hours, {found.gpu_hours:,.0f} GPU-hours"),
            ("load, cores", _load(found.cores, cores)),
        ]
        if found.gpus.peak:
            rows.append(("load, GPUs", _load(found.gpus, gpus)))
    for row in rows:
        table.add_row(*row)
    return table


def _families(found: TraceDescription) -> Table:
    table = Table(show_edge=False)
    table.add_column("family")
    headings = ("jobs", "workloads", "gangs", "perf.", "cores", "GPUs", "median", "P90", "P99", "core-h", "GPU-h")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found.families:
        times = (row.duration_s.p50, row.duration_s.p90, row.duration_s.p99)
        table.add_row(
            row.family or "(none)",
            f"{row.jobs:,}",
            f"{row.workloads:,}",
            f"{row.gangs:,}" if row.gangs else "",
            f"{100.0 * row.performance_jobs / row.jobs:.0f} %",
            f"{row.mean_cores:.1f}",
            f"{row.mean_gpus:.2f}" if row.mean_gpus else "",
            *(duration(time_s) for time_s in times),
            f"{row.core_hours:,.0f}",
            f"{row.gpu_hours:,.0f}" if row.gpu_hours else "",
        )
    return table


def duration(time_s: float) -> str:
    """Format a time in the largest fitting unit."""
    for unit_s, unit in ((_DAY_S, "d"), (SECONDS_PER_HOUR, "h"), (SECONDS_PER_MINUTE, "min")):
        if time_s >= unit_s:
            return f"{time_s / unit_s:.1f} {unit}"
    return f"{time_s:.0f} s"


def sparkline(counts: Sequence[int]) -> str:
    """Draw counts as a one-line bar chart, scaled to the maximum."""
    highest = max(counts, default=0)
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // highest)] if highest else _BARS[0] for count in counts)


def _share(jobs: int, found: TraceDescription) -> str:
    return f"{100.0 * jobs / found.jobs:.0f} %" if found.jobs else "none"


def _rate(jobs: int, span_s: float) -> str:
    return f"{jobs * SECONDS_PER_HOUR / span_s:,.1f} an hour" if span_s > 0.0 else "all at once"


def _sizes(found: TraceDescription) -> str:
    sizes = ", ".join(f"{gpus}: {100.0 * jobs / found.jobs:.1f} %" for gpus, jobs in found.gpus_of_jobs.items())
    asked = ", ".join(f"{resource} {jobs:,}" for resource, jobs in found.gpu_resources.items())
    shared = f"; {found.shared_gpu_jobs:,} share one" if found.shared_gpu_jobs else ""
    return f"{sizes}{f' ({asked})' if asked else ''}{shared}"


def _load(load: Load, capacity: float | None) -> str:
    parts = [] if load.mean is None else [f"mean {load.mean:,.0f}{_of(load.mean, capacity)}"]
    return ", ".join([*parts, f"peak {load.peak:,.0f}{_of(load.peak, capacity)}"])


def _of(amount: float, capacity: float | None) -> str:
    return f" ({_percent(amount / capacity)} of {capacity:,.0f})" if capacity else ""


def _percent(share: float) -> str:
    """Format a share in percent, small shares with one decimal."""
    return f"{100.0 * share:.{0 if share >= _LARGE_SHARE else 1}f} %"
