"""``joulie bench openb-cluster``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulie_lab.apps.bench.data import published_trace
from joulie_lab.apps.bench.figures import panels, title
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import PATH, benchmark, tell
from joulie_lab.benchmarks import openb_cluster as model
from joulie_lab.benchmarks.gpu_sharing.arrivals import sample
from joulie_lab.benchmarks.openb_cluster import FULL, SMALL, OpenbClusterResult, measure
from joulie_lab.control_plane import LocalControlPlane

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tables(result: OpenbClusterResult) -> Iterator[Table]:
    """What each way gives and draws."""
    yield Table(
        "The same pods, placed by",
        ("", "GPU given, %", "power, kW", "power, % of FGD's", "all placed until, %", "turned away", "not judged"),
        [
            (
                name,
                f"{way.allocation_pct:.2f}",
                f"{way.power_kw:.2f}",
                f"{way.power_pct:.1f}",
                f"{way.all_placed_until_pct:.0f}",
                str(way.turned_away),
                str(way.unjudged_nodes),
            )
            for name, way in result.ways.items()
        ],
    )


def figure(result: OpenbClusterResult) -> Figure:
    """GPU given and power over what has arrived."""
    drawn, (given, power) = panels(2)
    for name, way in result.ways.items():
        style = "--" if name.startswith("benchmark") else "-"
        given.plot(result.arrived_pct, way.curve_pct, style, linewidth=1.4, label=name)
        power.plot(result.arrived_pct, way.curve_kw, style, linewidth=1.4)
    for axes in (given, power):
        axes.set(xlabel="GPU arrived, % of the cluster's")
    given.legend(frameon=False, fontsize="small")
    title(given, "GPU given, %")
    title(power, "Power, kW")
    return drawn


def _page(result: OpenbClusterResult) -> dict[str, Any]:
    ways = {"default": model.DEFAULT, "frugal": model.FRUGAL, "native": model.NATIVE, "fgd": model.FGD}
    (table,) = tables(result)
    return {"ways": table, "model": model, **{key: result.ways[name] for key, name in ways.items()}}


REPORT = Report(tables, figure)
PAGE = Page(OpenbClusterResult, "experiments/openb-cluster.md", _page, {"img/openb-cluster.png": figure})


@benchmark("openb-cluster", REPORT)
@click.option("--data", type=PATH, help="Folder with the published trace.  [default: the fetched copy]")
def openb_cluster(*, small: bool, data: Path | None) -> OpenbClusterResult:
    """Let openb's pods arrive at the real kube-scheduler with the extender's frugal score."""
    nodes, pods = sample(seed=1) if small else published_trace(data)[:2]
    with LocalControlPlane() as plane:
        return measure(nodes, pods, SMALL if small else FULL, plane, tell)
