"""``joulie bench fidelity``: compares runs on a control plane with native runs of the same jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from joulie.domain.units import joules_to_kwh
from joulie.program.documents import render_document
from joulie.program.errors import UserError
from joulie_lab.apps.bench.report import Page, Table
from joulie_lab.apps.bench.run import PATH
from joulie_lab.apps.experiment.artefacts import ArtefactError, Artefacts
from joulie_lab.benchmarks.results import Figures, plain
from joulie_lab.program.outputs import Outputs
from joulie_lab.simulation.experiment.fidelity import fidelity as compare


class Starts(Figures, frozen=True):
    """Differences of start times and nodes of the same jobs; shares of the jobs."""

    jobs: int
    only_native: int
    only_other: int
    median_s: float
    p95_abs_s: float
    within_a_minute: float
    same_node: float
    same_family: float


class Pair(Figures, frozen=True):
    """A figure of both runs."""

    what: str
    native: float
    other: float
    difference_pct: float | None


class FidelityRun(Figures, frozen=True):
    """Comparison of a variant on the control plane and natively; `ties_kwh`: native runs that differ only in ties."""

    energy_pct: float
    cpu_work_pct: float | None
    gpu_work_pct: float | None
    node_correlation: float
    node_correlation_in_family: float
    node_error_pct: float
    power_error_pct: float
    starts: Starts
    families: Sequence[Pair]
    explanation: Sequence[Pair]
    work_pct: float
    holds: bool
    native_kwh: float
    plane_kwh: float
    ties_kwh: Sequence[float]
    jobs: int
    performance_pods_on_eco: int
    notes: Sequence[str]


class FidelityResult(Figures, frozen=True):
    """The comparison, by variant."""

    experiment: str
    hours: float
    drain_hours: float
    seed: int
    time_scale: float
    runs: Mapping[str, FidelityRun]


@click.command("fidelity")
@click.argument("native", type=PATH)
@click.argument("plane", type=PATH)
@click.argument("ties", type=PATH)
@click.option("--json", "json_file", type=PATH, required=True, help="Write the comparison as JSON.")
def fidelity(native: Path, plane: Path, ties: Path, *, json_file: Path) -> None:
    """Compare runs on a control plane with native ones.

    NATIVE and PLANE are artefact folders of the same experiment. TIES is one of native runs that differ only in the
    breaking of ties: runs with other seeds and the trace of PLANE as a file.
    """
    with Outputs() as outputs:
        json_part = outputs.file("--json", json_file)
        try:
            document = plain(_compared(Artefacts(native), Artefacts(plane), Artefacts(ties)))
        except ArtefactError as error:
            raise UserError(str(error)) from error
        outputs.write(json_part, render_document(document, "json") + "\n")
        outputs.commit()


def _compared(native: Artefacts, plane: Artefacts, ties: Artefacts) -> FidelityResult:
    spread: dict[str, list[float]] = {}
    for key in ties.finished():
        spread.setdefault(key.variant, []).append(float(joules_to_kwh(ties.read(key).outcome.it_j)))
    experiment, manifest = plane.experiment(), plane.manifest()
    runs = {}
    for key in plane.finished():
        one, other = native.read(key).outcome, plane.read(key).outcome
        found = compare(one, other).as_dict() | {
            "native_kwh": float(joules_to_kwh(one.it_j)),
            "plane_kwh": float(joules_to_kwh(other.it_j)),
            "ties_kwh": sorted(spread[key.variant]),
            "jobs": len(other.jobs),
            "performance_pods_on_eco": int(other.series.performance_pods_on_eco.max()),
            "notes": list(other.notes),
        }
        runs[key.variant] = msgspec.convert(found, FidelityRun)
    time_scale = manifest["identity"]["time_scale"]
    return FidelityResult(
        experiment.name, experiment.hours, experiment.drain_hours, experiment.seeds[0], time_scale, runs
    )


def _page(result: FidelityResult) -> dict[str, Any]:
    runs = result.runs
    sides: dict[str, list[str]] = {}
    for run in runs.values():
        for row in run.explanation:
            sides.setdefault(row.what, []).extend((f"{row.native:,.2f}", f"{row.other:,.2f}"))
    return {
        "on_eco": ", ".join(f"{run.performance_pods_on_eco} ({name})" for name, run in runs.items()),
        "agreement": Table(
            "",
            ("", "jobs", "energy", "CPU work", "GPU work", "mean error of power over time", "P95 of start times"),
            [
                (
                    name,
                    f"{run.jobs}",
                    *(f"{pct:+.2f} %" for pct in (run.energy_pct, run.cpu_work_pct, run.gpu_work_pct)),
                    f"{run.power_error_pct:.1f} %",
                    f"{run.starts.p95_abs_s:.0f} s",
                )
                for name, run in runs.items()
            ],
        ),
        "energies": Table(
            "",
            ("", "native, kWh", "control plane, kWh", "eight native runs with other ties, kWh"),
            [
                (
                    name,
                    f"{run.native_kwh:.2f}",
                    f"{run.plane_kwh:.2f}",
                    f"{run.ties_kwh[0]:.2f} to {run.ties_kwh[-1]:.2f}",
                )
                for name, run in runs.items()
            ],
        ),
        "nodes": Table(
            "",
            ("", "correlation of nodes' energy", "jobs on the same node", "on the same family"),
            [
                (
                    name,
                    f"{run.node_correlation:.2f}",
                    *(f"{share * 100:.0f} %" for share in (run.starts.same_node, run.starts.same_family)),
                )
                for name, run in runs.items()
            ],
        ),
        "sides": Table(
            "",
            ("", *(f"{name}, {side}" for name in runs for side in ("native", "control plane"))),
            [(what, *values) for what, values in sides.items()],
        ),
    }


PAGE = Page(FidelityResult, "experiments/fidelity.md", _page)
