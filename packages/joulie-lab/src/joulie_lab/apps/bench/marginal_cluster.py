"""``joulie bench marginal-cluster``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import click
import numpy as np

from joulie.program.numbers import FiniteRange
from joulie_lab.apps.bench.figures import horizontal_bars, panels, title
from joulie_lab.apps.bench.report import Page, Report, Table
from joulie_lab.apps.bench.run import PATH, benchmark, tell
from joulie_lab.benchmarks import marginal_cluster as model
from joulie_lab.benchmarks.marginal_cluster import PRODUCT, Course, MarginalClusterResult, Pace, Plan, Run, Way
from joulie_lab.benchmarks.marginal_native import play
from joulie_lab.simulation.report.bars import BarSet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PLACES = {"native": "natively", "paced": "natively, paced", "plane": "control plane"}
_COLUMNS = ("energy, kWh", "above the bound, %", "awake, node h", "wait: median, min", "P95", "mean", "wakes", "moves")


def tables(result: MarginalClusterResult) -> Iterator[Table]:
    """Energies, waits and savings."""
    yield Table(
        f"The same {result.jobs:,} jobs; lower bound {result.bound_kwh:,.1f} kWh; no node sleeps"
        f" {result.always_on_kwh:,.1f} kWh",
        ("", "", *_COLUMNS, "unfinished"),
        [
            (
                name,
                where,
                f"{run.kwh:,.1f}",
                f"{run.above_bound_pct:.2f}",
                f"{run.awake_node_hours:,.1f}",
                f"{run.median_wait_min:.2f}",
                f"{run.p95_wait_min:.2f}",
                f"{run.mean_wait_min:.2f}",
                f"{run.wakes:,}",
                str(run.moves),
                str(run.unfinished),
            )
            for name in result.native
            for key, where in _PLACES.items()
            if (run := getattr(result, key).get(name)) is not None
        ],
        labels=2,
    )
    yield Table(
        "Energy saved by SCORING=marginal, %",
        ("against", *_PLACES.values(), f"natively, {len(result.seeds)} seeds"),
        [
            (other, _text(one.native_pct), _text(one.paced_pct), _text(one.plane_pct), one.seeds_pct.text(2))
            for other, one in result.saving.items()
        ],
    )
    if result.paces:
        yield Table(
            f"Pace of the control plane at {result.time_scale:g} times the clock, simulated seconds",
            (
                "",
                "a look at nodes that may sleep",
                "a binding",
                "on a node, not running",
                "before a pod is tried again",
            ),
            [
                (name, f"{one.look_s:.0f}", f"{one.bind_s:.0f}", f"{one.hold_s:.0f}", f"{one.retry_s:.0f}")
                for name, one in result.paces.items()
            ],
        )


def _text(pct: float | None) -> str:
    return "" if pct is None else f"{pct:.2f}"


def figure(result: MarginalClusterResult) -> Figure:
    """Energy above the lower bound, natively and on the control plane where the machine kept up."""
    shown = {key: getattr(result, key) for key in _PLACES}
    shown["plane"] = {name: run for name, run in result.plane.items() if name not in result.too_slow}
    drawn, (axes,) = panels(1)
    names = list(result.native)
    bars = [
        BarSet(label, tuple(_above_pct(runs.get(name)) for name in names), (None,) * len(names), index)
        for index, (key, label) in enumerate(_PLACES.items())
        if (runs := shown[key])
    ]
    horizontal_bars(axes, names, bars)
    axes.legend(frameon=False, fontsize="small")
    title(axes, "Energy above the lower bound, %")
    return drawn


def _above_pct(run: Run | None) -> float | None:
    return None if run is None else run.above_bound_pct


def _page(result: MarginalClusterResult) -> dict[str, Any]:
    first, second, *rest = tables(result)
    return {"runs": first, "savings": second, "paces": rest[0] if rest else "", "model": model, "ways": Way}


REPORT = Report(tables, figure)
PAGE = Page(MarginalClusterResult, "experiments/marginal-cluster.md", _page, {"img/marginal-cluster.png": figure})


@benchmark("marginal-cluster", REPORT)
@click.option("--time-scale", type=FiniteRange(1.0), default=240.0, show_default=True, help="Simulated over wall time.")
@click.option("--courses", type=PATH, help="Folder for what came of each day; a day that is there is not played again.")
@click.option(
    "--placement",
    type=click.Choice([way.value for way in Way]),
    multiple=True,
    help="Placement to play on the control plane.  [default: all]",
)
@click.option("--logs", type=PATH, help="Folder for the logs of the programs, which are kept.")
def marginal_cluster(
    *, small: bool, time_scale: float, courses: Path | None, placement: tuple[str, ...], logs: Path | None
) -> MarginalClusterResult:
    """Let marginal placement and sleeping nodes run a day natively and on a control plane."""
    for folder in filter(None, (courses, logs)):
        folder.mkdir(parents=True, exist_ok=True)  # rather than fail when the first day is over
    of = _plan(model.SEED, small=small)
    chosen = [] if small else [Way(name) for name in placement] or list(Way)
    played = {way: _day(of, way, time_scale, courses, logs) for way in chosen}
    native = _native(of, courses)
    # What a machine that did not keep up makes of a run is no pace that could be played.
    paced = {way: play(of, way, pace) for way, (_, pace) in played.items() if pace.hold_s <= model.MAX_HOLD_S}
    seeds = {}
    for seed in model.REPORT_SEEDS[: 2 if small else None]:
        one = _plan(seed, small=small)
        seeds[seed] = one, _native(one, courses)
    return model.summarise(of, native, played, paced, seeds, time_scale)


def _plan(seed: int, *, small: bool) -> Plan:
    return model.plan(seed, (12, 4), 8.0) if small else model.plan(seed)


def _native(of: Plan, courses: Path | None) -> dict[Way, Course]:
    tell(f"{len(of.jobs):,} jobs natively, seed {of.seed}")
    return {way: _kept(courses, f"native-{way.name}-{of.seed}", partial(_played, of, way))[0] for way in Way}


def _played(of: Plan, way: Way) -> tuple[Course, Pace]:
    return play(of, way), PRODUCT


def _day(of: Plan, way: Way, time_scale: float, courses: Path | None, logs: Path | None) -> tuple[Course, Pace]:
    """A day on the control plane."""
    from joulie_lab.apps.bench.marginal_cluster_run import run_day

    def played() -> tuple[Course, Pace]:
        with TemporaryDirectory() as folder:
            return run_day(of, way, time_scale, Path(folder), tell, logs and logs / way.name.lower())

    return _kept(courses, f"{way.name.lower()}-{of.seed}-{time_scale:g}", played)


def _kept(courses: Path | None, name: str, play_it: Callable[[], tuple[Course, Pace]]) -> tuple[Course, Pace]:
    """What came of a day, as it is kept or by playing it."""
    kept = None if courses is None else courses / f"{name}.npz"
    if kept is not None and kept.exists():
        try:
            return _read(kept)
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
            raise click.ClickException(
                f"{kept}: not a day that was kept ({error}); delete it to play the day"
            ) from error
    played, pace_of = play_it()
    if kept is not None:
        known = {name: value for name, value in vars(played).items() if value is not None}
        np.savez(kept, **known, **asdict(pace_of))
    return played, pace_of


def _read(kept: Path) -> tuple[Course, Pace]:
    with kept.open("rb") as stream, np.load(stream) as found:
        course, pace = (
            {one.name: found[one.name] for one in fields(kind) if one.name in found} for kind in (Course, Pace)
        )
    counts = {name: int(course[name]) for name in ("wakes", "moves")}
    return Course(**course | counts), Pace(**{name: float(value) for name, value in pace.items()})
