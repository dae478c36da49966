"""``joulie bench fidelity``: compares runs on a control plane with native runs of the same jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from joulie.domain.units import FloatArray, joules_to_kwh
from joulie.output_files import STANDARD_STREAM
from joulie.program.documents import render_document
from joulie.program.errors import UserError
from joulie_lab.apps.bench.report import Page, Table
from joulie_lab.apps.bench.run import PATH, RANGES, RangeCheck
from joulie_lab.apps.experiment.artefacts import ArtefactError, Artefacts
from joulie_lab.benchmarks.results import Estimate, Figures, estimate, plain
from joulie_lab.program.outputs import Outputs
from joulie_lab.simulation.experiment.fidelity import StartDifferences
from joulie_lab.simulation.experiment.fidelity import fidelity as compare


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
    node_correlation: float | None
    node_correlation_in_family: float | None
    node_error_pct: float
    power_error_pct: float
    starts: StartDifferences
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


class Agreement(Figures, frozen=True):
    """How well all runs agree; differences are those of the control plane from the native runs.

    Attributes:
        kept: number of runs that keep both targets.
        runs: number of runs.
        work_pct: maximum difference of work, %.
        energy_pct: difference of energy by variant, over seeds, %.
        saving_points: difference of the saving against the first variant by variant, paired by seed, points.
    """

    kept: int
    runs: int
    work_pct: float
    energy_pct: Mapping[str, Estimate]
    saving_points: Mapping[str, Estimate]


class FidelityResult(Figures, frozen=True):
    """The comparison, by variant and seed."""

    experiment: str
    hours: float
    drain_hours: float
    time_scale: float
    agreement: Agreement
    runs: Mapping[str, Mapping[str, FidelityRun]]


@click.command("fidelity")
@click.argument("native", type=PATH)
@click.argument("plane", type=PATH)
@click.argument("ties", type=PATH, nargs=-1, required=True)
@click.option("--json", "json_file", type=PATH, required=True, help="Write the comparison as JSON.")
@RANGES
def fidelity(native: Path, plane: Path, ties: tuple[Path, ...], *, json_file: Path, ranges_file: Path | None) -> None:
    """Compare runs on a control plane with native ones.

    NATIVE and PLANE are artefact folders of the same experiment. TIES are folders of native runs with other seeds and
    the trace of PLANE as a file, one for each seed of PLANE in their order: such runs differ in what the scheduler
    and the responses of GPU models draw.
    """
    check = RangeCheck.of("fidelity", ranges_file)
    with Outputs() as outputs:
        json_part = outputs.file("--json", json_file)
        try:
            figures = plain(_compared(Artefacts(native), Artefacts(plane), [Artefacts(folder) for folder in ties]))
        except ArtefactError as error:
            raise UserError(str(error)) from error
        missed = check.missed(figures)
        outputs.write(json_part, render_document({**figures, "missed": missed}, "json") + "\n")
        outputs.commit()
    check.conclude(missed, err=json_file == STANDARD_STREAM)


def _compared(native: Artefacts, plane: Artefacts, ties: Sequence[Artefacts]) -> FidelityResult:
    experiment, manifest = plane.experiment(), plane.manifest()
    seeds = sorted({key.seed for key in plane.finished()})
    if len(ties) != len(seeds):
        raise UserError(f"TIES: {len(ties)} folders for {len(seeds)} seeds of {plane.folder}")
    spread: dict[tuple[str, int], list[float]] = {}
    for seed, folder in zip(seeds, ties, strict=True):
        for key in folder.finished():
            spread.setdefault((key.variant, seed), []).append(float(joules_to_kwh(folder.read(key).outcome.it_j)))
    runs: dict[str, dict[str, FidelityRun]] = {}
    for key in plane.finished():
        one, other = native.read(key).outcome, plane.read(key).outcome
        found = compare(one, other).as_dict() | {
            "native_kwh": float(joules_to_kwh(one.it_j)),
            "plane_kwh": float(joules_to_kwh(other.it_j)),
            "ties_kwh": sorted(spread.get((key.variant, key.seed), ())),
            "jobs": len(other.jobs),
            "performance_pods_on_eco": int(other.series.performance_pods_on_eco.max()),
            "notes": list(other.notes),
        }
        runs.setdefault(key.variant, {})[str(key.seed)] = msgspec.convert(found, FidelityRun)
    time_scale = manifest["identity"]["time_scale"]
    return FidelityResult(experiment.name, experiment.hours, experiment.drain_hours, time_scale, agreement(runs), runs)


def agreement(runs: Mapping[str, Mapping[str, FidelityRun]]) -> Agreement:
    """Summary of runs by variant and seed."""
    each = [run for of_seeds in runs.values() for run in of_seeds.values()]
    reference, *others = runs
    return Agreement(
        kept=sum(run.holds for run in each),
        runs=len(each),
        work_pct=max(run.work_pct for run in each),
        energy_pct={name: estimate([run.energy_pct for run in of.values()]) for name, of in runs.items()},
        saving_points={
            name: estimate(plane - native)
            for name in others
            for native, plane in (_savings(runs[name], runs[reference]),)
        },
    )


def _savings(runs: Mapping[str, FidelityRun], first: Mapping[str, FidelityRun]) -> tuple[FloatArray, FloatArray]:
    """Saving of a variant's runs against the first one's, natively and on the control plane, paired by seed, %."""
    pairs = [(run, first[seed]) for seed, run in runs.items() if seed in first]
    native, plane = (
        np.array([100.0 * (1.0 - getattr(run, kwh) / getattr(was, kwh)) for run, was in pairs])
        for kwh in ("native_kwh", "plane_kwh")
    )
    return native, plane


def _page(result: FidelityResult) -> dict[str, Any]:
    return {
        "seeds": _seeds(result),
        "on_eco": ", ".join(
            f"{max(run.performance_pods_on_eco for run in runs.values())} ({name})"
            for name, runs in result.runs.items()
        ),
        "agreement": _agreement(result),
        "paired": _paired(result),
        "energies": _energies(result),
        "nodes": _nodes(result),
        "families": _families(result),
        "sides": _sides(result),
    }


def _seeds(result: FidelityResult) -> str:
    seeds = list(dict.fromkeys(seed for runs in result.runs.values() for seed in runs))
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"


def _each(result: FidelityResult) -> Iterator[tuple[str, FidelityRun]]:
    for name, runs in result.runs.items():
        for seed, run in runs.items():
            yield f"{name}, seed {seed}", run


def _agreement(result: FidelityResult) -> Table:
    return Table(
        "",
        ("", "jobs", "energy", "CPU work", "GPU work", "mean error of power over time", "P95 of start times"),
        [
            (
                name,
                f"{run.jobs}",
                *(_signed(pct) for pct in (run.energy_pct, run.cpu_work_pct, run.gpu_work_pct)),
                f"{run.power_error_pct:.1f} %",
                f"{_shown(run.starts.p95_abs_s, '.0f')} s",
            )
            for name, run in _each(result)
        ],
    )


def _signed(pct: float | None) -> str:
    return "–" if pct is None else f"{pct:+.2f} %"


def _shown(value: float | None, how: str) -> str:
    return "–" if value is None else f"{value:{how}}"


def _paired(result: FidelityResult) -> Table:
    """Energy of each variant and its saving against the first, natively and on the control plane, paired by seed."""
    first = next(iter(result.runs.values()))
    rows = []
    for name, runs in result.runs.items():
        energy = estimate([run.energy_pct for run in runs.values()])
        native, plane = _savings(runs, first)
        saved = [f"{estimate(values).text(2, sign='+')}" for values in (native, plane, plane - native)]
        rows.append((name, f"{len(runs)}", energy.text(2, sign="+"), *(saved if runs is not first else ("–",) * 3)))
    reference = next(iter(result.runs))
    return Table(
        "",
        (
            "",
            "seeds",
            "energy on the control plane against native, %",
            f"saved against {reference}, native, %",
            "control plane, %",
            "difference, points",
        ),
        rows,
    )


def _energies(result: FidelityResult) -> Table:
    return Table(
        "",
        ("", "native, kWh", "control plane, kWh", "native runs with other draws, kWh"),
        [
            (
                name,
                f"{run.native_kwh:.2f}",
                f"{run.plane_kwh:.2f}",
                f"{run.ties_kwh[0]:.2f} to {run.ties_kwh[-1]:.2f}" if run.ties_kwh else "–",
            )
            for name, run in _each(result)
        ],
    )


def _nodes(result: FidelityResult) -> Table:
    return Table(
        "",
        ("", "correlation of nodes' energy", "within families", "jobs on the same node", "on the same family"),
        [
            (
                name,
                _shown(run.node_correlation, ".2f"),
                _shown(run.node_correlation_in_family, ".2f"),
                *(_shown(share, ".0%").replace("%", " %") for share in (run.starts.same_node, run.starts.same_family)),
            )
            for name, run in _each(result)
        ],
    )


def _families(result: FidelityResult) -> Table:
    """Energy by family on the control plane against native, %, paired by seed."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, runs in result.runs.items():
        for run in runs.values():
            for row in run.families:
                found.setdefault(row.what, {}).setdefault(name, []).append((row.native, row.other))
    return Table(
        "",
        ("", *(head for name in result.runs for head in (f"{name}, native, kWh", "control plane, %"))),
        [
            (
                family,
                *(
                    cell
                    for name in result.runs
                    for pairs in (np.array(variants[name]),)
                    for cell in (
                        f"{pairs[:, 0].mean():.2f}",
                        estimate(100.0 * (pairs[:, 1] / pairs[:, 0] - 1.0)).text(1, sign="+"),
                    )
                ),
            )
            for family, variants in found.items()
        ],
    )


def _sides(result: FidelityResult) -> Table:
    """Figures that may explain differences, means over the seeds."""
    sides: dict[str, list[str]] = {}
    for runs in result.runs.values():
        for rows in zip(*(run.explanation for run in runs.values()), strict=True):
            means = (np.mean([getattr(row, side) for row in rows]) for side in ("native", "other"))
            sides.setdefault(rows[0].what, []).extend(f"{value:,.2f}" for value in means)
    return Table(
        "",
        ("", *(f"{name}, {side}" for name in result.runs for side in ("native", "control plane"))),
        [(what, *values) for what, values in sides.items()],
    )


PAGE = Page(FidelityResult, "experiments/fidelity.md", _page)
