"""``joulie caps``: recommends GPU power limits from measured power sweeps of jobs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from joulie.adapters.power_sweeps import PowerSweepError, read_power_sweeps
from joulie.domain.capping.choice import Goal, LimitChoice, choose_limit, next_limit_w
from joulie.domain.capping.fleet import FleetLimit, limit_for_all
from joulie.domain.capping.measurements import Sweep, SweptJob, sweep_of
from joulie.domain.capping.response import Response, learn
from joulie.domain.units import InvalidQuantityError
from joulie.program.commands import CommandGroup
from joulie.program.errors import UserError

_PATH = click.Path(path_type=Path)


@dataclass(frozen=True)
class Row:
    """Recommendation for a job.

    Attributes:
        job: job name in the file.
        limit_w: recommended limit of a GPU, W.
        slowdown: expected run time relative to that at the maximum limit; None if unknown.
        saving_pct: expected energy saving, percent; None if unknown.
        next_limit_w: limit to measure next, W; None if another measurement is not worthwhile.
        reason: reason of the recommendation.
    """

    job: str
    limit_w: float
    slowdown: float | None
    saving_pct: float | None
    next_limit_w: float | None
    reason: str


@click.group(cls=CommandGroup, path="caps", context_settings={"help_option_names": ["-h", "--help"]})
def caps() -> None:
    """Find power limits that save energy without slowing jobs down."""


@caps.command()
@click.option("--sweep", "sweep_file", type=_PATH, required=True, help="CSV of measurements.")
@click.option("--gpu", required=True, help="GPU model, named as by the operator.")
@click.option(
    "--slowdown",
    type=click.FloatRange(min=1.0),
    default=1.05,
    show_default=True,
    help="Maximum run time, relative to that at the maximum limit.",
)
@click.option(
    "--error",
    type=click.FloatRange(min=0.0, max=50.0),
    default=0.0,
    show_default=True,
    help="Standard deviation of a measured time, percent; a margin is kept for it.",
)
@click.option(
    "--share",
    type=click.FloatRange(min=0.0, max=1.0, min_open=True),
    default=0.9,
    show_default=True,
    help="Share of the jobs that one limit for all must keep within the slowdown.",
)
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def recommend(*, sweep_file: Path, gpu: str, slowdown: float, error: float, share: float, output: str) -> None:
    """Recommend a power limit for each job, and one for all of them as GPU_MODEL_CAPS_JSON.

    The file has a row for each job and limit: power_limit (W), time_per_epoch (s for any unit of work) and
    average_power (W) of a GPU; all other columns name the job. Each job needs a measurement at the maximum limit;
    further limits are optional, since their effect is estimated from the other jobs in the file.
    """
    if not gpu.strip():
        raise UserError("invalid --gpu: must not be empty")
    swept = [(job.name, sweep) for job in read_sweeps(sweep_file) if (sweep := sweep_of(job.measurements)) is not None]
    try:
        goal = Goal(slowdown, measurement_error=error / 100.0)
        fleet = limit_for_all([sweep for _, sweep in swept], goal, share)
    except InvalidQuantityError as unusable:
        raise UserError(str(unusable)) from unusable
    rows = _rows(swept, goal)
    setting = model_caps(gpu, fleet)
    if output == "table":
        _print(rows, fleet, setting)
        return
    from joulie.program.documents import print_document

    document = {"jobs": [asdict(row) for row in rows], "all": asdict(fleet), "settings": setting}
    print_document(document, output)


def model_caps(gpu: str, fleet: FleetLimit) -> dict[str, str]:
    """Operator settings that apply one limit to the eco GPUs of a model."""
    limits = {gpu: {"minCapWatts": fleet.limit_w, "maxCapWatts": fleet.largest_w}}
    percent = 100.0 * fleet.limit_w / fleet.largest_w
    return {"GPU_MODEL_CAPS_JSON": json.dumps(limits), "GPU_ECO_CAP_PCT_OF_MAX": f"{percent:.4g}"}


def read_sweeps(path: Path) -> tuple[SweptJob, ...]:
    """Jobs of a file; ignored rows are printed to stderr."""
    try:
        sweeps = read_power_sweeps(path)
    except PowerSweepError as error:
        raise UserError(str(error)) from error
    for problem in sweeps.problems:
        click.echo(f"ignored: {path}: {problem}", err=True)
    return sweeps.jobs


def _rows(swept: Sequence[tuple[str, Sweep]], goal: Goal) -> list[Row]:
    limits_w = sorted({float(limit) for _, sweep in swept for limit in sweep.limits_w})
    rows = []
    for name, sweep in swept:
        response = _response_of_others(sweep, swept)
        choice = choose_limit(sweep, limits_w, response, goal)
        after = None if response is None else next_limit_w(sweep, limits_w, response, goal)
        rows.append(_row(name, choice, after))
    return rows


def _response_of_others(sweep: Sweep, swept: Sequence[tuple[str, Sweep]]) -> Response | None:
    """Response learned from the other jobs; None if none of them was measured at two or more limits."""
    others = [other for _, other in swept if other is not sweep and len(other.limits_w) > 1]
    return learn(others) if others else None


def _row(name: str, choice: LimitChoice, after: float | None) -> Row:
    saving_pct = None if choice.energy_ratio is None else 100.0 * (1.0 - choice.energy_ratio)
    return Row(name, choice.limit_w, choice.slowdown, saving_pct, after, choice.reason.value)


def _print(rows: Sequence[Row], fleet: FleetLimit, setting: Mapping[str, str]) -> None:
    from joulie.program.tables import print_table

    print_table(
        "Power limits",
        ("job", "limit, W", "slowdown", "saved, %", "measure next, W", "why"),
        (
            (
                row.job,
                f"{row.limit_w:g}",
                "" if row.slowdown is None else f"{row.slowdown:.3f}",
                "" if row.saving_pct is None else f"{row.saving_pct:.1f}",
                "" if row.next_limit_w is None else f"{row.next_limit_w:g}",
                row.reason,
            )
            for row in rows
        ),
    )
    click.echo(
        f"One limit for all: {fleet.limit_w:g} W saves {100.0 * fleet.saving:.1f} %, "
        f"{fleet.kept} of {fleet.jobs} jobs stay within the slowdown (the slowest: {fleet.worst_slowdown:.3f})."
    )
    for name, value in setting.items():
        click.echo(f"{name}={shlex.quote(value)}")
