"""``joulie bench openb``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any

import click

from joulie.domain.scoring.fragmentation import LEAN_SHARE, POWER_WEIGHT_MILLI_PER_W, STEP_MILLI
from joulie.domain.scoring.sharing import SOCKET_IDLE_W, SOCKET_LIMIT_W, SOCKET_THREADS
from joulie_lab.adapters.published.openb import GPU_POWER, REFERENCE_FILE
from joulie_lab.apps.bench.data import published_trace
from joulie_lab.apps.bench.figures import panels, title
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import PATH, benchmark, tell
from joulie_lab.benchmarks.gpu_sharing.arrivals import sample
from joulie_lab.benchmarks.gpu_sharing.policies import JOULIE_FRUGAL, JOULIE_PACKED
from joulie_lab.benchmarks.openb import FULL, SMALL, Compared, OpenbResult, measure
from joulie_lab.simulation.report.charts import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tables(result: OpenbResult) -> Iterator[Table]:
    """Policies compared with published figures and with FGD, and results by weight of power."""
    yield _published(result)
    for name, policies in {**result.cases, **result.variants}.items():
        yield _compared(name, policies)
    yield _frontier(result)


def _published(result: OpenbResult) -> Table:
    return Table(
        "GPU allocated at 130 % arrived, %",
        ("", "published", "here", "difference", "largest difference of the curve", "ties at random"),
        [
            (
                name,
                _or_dash(row.published_pct),
                row.allocation_pct.text(2),
                _or_dash(row.off_points, "+.2f"),
                _or_dash(row.curve_off_points),
                _or_dash(row.at_random_pct),
            )
            for name, row in result.published.items()
        ],
    )


def _compared(name: str, policies: Mapping[str, Compared]) -> Table:
    return Table(
        f"Compared with FGD: {name}",
        (
            "",
            "GPU allocated, %",
            "less than FGD",
            "power, % of FGD's",
            "at 20 / 50 / 80 %",
            "maximum",
            "GPU allocated at 80 %",
            "all placed until, %",
        ),
        [
            (
                policy,
                row.allocation_pct.text(2),
                f"{row.lost_points.mean:+.2f}",
                row.power_pct.text(2),
                " / ".join(f"{value:.1f}" for value in row.power_pct_at.values()),
                f"{row.worst_power_pct:.1f}",
                f"{row.given_at_most_load_pct:.1f}",
                f"{row.all_placed_until_pct:.0f}",
            )
            for policy, row in policies.items()
        ],
    )


def _frontier(result: OpenbResult) -> Table:
    return Table(
        "By the weight of power",
        ("", "weight", "GPU allocated, %", "power, % of FGD's", "maximum"),
        [
            (
                name,
                f"{point.weight:g}",
                f"{point.allocation_pct:.2f}",
                f"{point.power_pct:.1f}",
                f"{point.worst_power_pct:.1f}",
            )
            for name, points in result.frontier.items()
            for point in points
        ],
    )


def _or_dash(value: float | None, digits: str = ".2f") -> str:
    return "-" if value is None else format(value, digits)


def figure(result: OpenbResult) -> Figure:
    """GPU allocation over arrived requests, power relative to FGD, and results by weight of power."""
    drawn, (allocated, power, frontier) = panels(3)
    colors = {name: f"C{index}" for index, name in enumerate(result.curves)}
    base_kw = result.curves["FGD"].power_kw
    for name, curve in result.curves.items():
        style = "-" if name.startswith("joulie") else "--"
        allocated.plot(curve.arrived_pct, curve.allocation_pct, style, color=colors[name], linewidth=1.4, label=name)
        relative = [100.0 * kw / fgd for kw, fgd in zip(curve.power_kw, base_kw, strict=True)]
        power.plot(curve.arrived_pct[10:101], relative[10:101], style, color=colors[name], linewidth=1.4)
    allocated.set(xlabel="GPU arrived, % of the cluster's", xlim=(80.0, 130.0), ylim=(78.0, 97.0))
    allocated.legend(frameon=False, fontsize="small", loc="lower right")
    title(allocated, "GPU allocated, %")
    power.set(xlabel="GPU arrived, % of the cluster's")
    title(power, "Power, % of FGD's")
    for (name, points), marker, color in zip(result.frontier.items(), "so", PALETTE, strict=False):
        xs, ys = [point.power_pct for point in points], [point.allocation_pct for point in points]
        frontier.plot(xs, ys, marker, color=color, label=f"{name}, weights of power")
    for name in ("FGD", "BestFit", "joulie-packed"):
        found = result.cases["reported"][name]
        at = (found.power_pct.mean, found.allocation_pct.mean)
        frontier.plot(*at, "^", color=colors[name])
        frontier.annotate(name, at, xytext=(-5, -10), textcoords="offset points", ha="right", fontsize="small")
    frontier.margins(0.12)
    frontier.set(xlabel="power at 20 to 80 % arrived, % of FGD's")
    frontier.legend(frameon=False, fontsize="small", loc="lower right")
    title(frontier, "GPU allocated, %, by power")
    return drawn


def _page(result: OpenbResult) -> dict[str, Any]:
    reported = result.cases["reported"]
    every = [(name, found) for case in result.cases.values() for name, found in case.items()]
    differences = [row.off_points for row in result.published.values() if row.off_points is not None]
    curves = [row.curve_off_points for row in result.published.values() if row.curve_off_points is not None]
    return {
        "FRUGAL": JOULIE_FRUGAL,
        "GPU_POWER": GPU_POWER,
        "LEAN_SHARE": LEAN_SHARE,
        "POWER_WEIGHT_MILLI_PER_W": POWER_WEIGHT_MILLI_PER_W,
        "REFERENCE_FILE": REFERENCE_FILE,
        "SOCKET_IDLE_W": SOCKET_IDLE_W,
        "SOCKET_LIMIT_W": SOCKET_LIMIT_W,
        "SOCKET_THREADS": SOCKET_THREADS,
        "STEP_MILLI": STEP_MILLI,
        "fgd": reported["FGD"],
        "packed": reported[JOULIE_PACKED],
        "frugal": reported[JOULIE_FRUGAL],
        "difference": max(map(abs, differences)),
        "curve_difference": max(curves),
        "at_random_pct": result.published["FGD"].at_random_pct,
        "pwr": max(result.frontier["PWR+FGD"], key=lambda point: point.allocation_pct),
        "until_pct": min(found.all_placed_until_pct for name, found in every if name != "Random"),
        "tuned": _span(result.seeds["tuned"]),
        "held_out": _span(result.seeds["reported"]),
        "other": _span(result.seeds["other"]),
        "targets": _targets(result),
        "published": _published(result),
        "cases": {
            f"{name}: seeds {_span(result.seeds[name])}": _compared(name, case) for name, case in result.cases.items()
        },
        "variants": {name: _compared(name, case) for name, case in result.variants.items()},
        "frontier": _frontier(result),
        "models": Table(
            "",
            ("", *GPU_POWER),
            [
                ("GPUs", *(str(result.data.gpus_by_model[model]) for model in GPU_POWER)),
                ("limit, W", *(f"{power.limit_w:g}" for power in GPU_POWER.values())),
                ("idle, W", *(f"{power.idle_w:g}" for power in GPU_POWER.values())),
            ],
        ),
    }


def _targets(result: OpenbResult) -> Table:
    packed, frugal = (
        [result.cases[case][policy] for case in ("reported", "other")] for policy in (JOULIE_PACKED, JOULIE_FRUGAL)
    )
    power = (f"{found.power_pct.mean:.1f} %, maximum {found.worst_power_pct:.1f} %" for found in frugal)
    return Table(
        "",
        (
            "target",
            "",
            *(f"measured on seeds {_span(result.seeds[case])}" for case in ("reported", "other")),
        ),
        [
            (
                "GPU allocated at least 95.4 %",
                JOULIE_PACKED,
                *(f"{found.allocation_pct.mean:.2f} %" for found in packed),
            ),
            ("power at 20 to 80 % at most 95 % of FGD's", JOULIE_FRUGAL, *power),
            (
                "at most 0.5 points of allocation lost",
                JOULIE_FRUGAL,
                *(f"{found.lost_points.mean:+.2f}" for found in frugal),
            ),
        ],
        labels=2,
    )


def _span(seeds: Sequence[int]) -> str:
    return f"{seeds[0]} to {seeds[-1]}"


REPORT = Report(tables, figure)
PAGE = Page(OpenbResult, "experiments/openb.md", _page, {"img/openb.png": figure})


@benchmark("openb", REPORT)
@click.option("--data", type=PATH, help="Folder with the published trace.  [default: the fetched copy]")
def openb(*, small: bool, data: Path | None) -> OpenbResult:
    """Measure placement on nodes with shared GPUs."""
    trace = (*sample(seed=1), None) if small else published_trace(data)
    return measure(*trace, SMALL if small else FULL, process_time, tell)
