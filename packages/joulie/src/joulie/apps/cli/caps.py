"""``joulie caps``: recommends GPU power limits from measured power sweeps of jobs, and replays the search for them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np

from joulie.adapters.power_sweeps import PowerSweepError, read_power_sweeps
from joulie.domain.capping.choice import Goal, LimitChoice, choose_limit, next_limit_w
from joulie.domain.capping.fleet import FleetLimit, limit_for_all
from joulie.domain.capping.measurements import Sweep, SweptJob, sweep_of
from joulie.domain.capping.replay import Summary, left_out, replay, summarise, true_jobs
from joulie.domain.capping.response import Response, learn
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.hardware.models import CapRange
from joulie.domain.units import InvalidQuantityError, non_negative
from joulie.program.commands import CommandGroup
from joulie.program.errors import UserError
from joulie.program.numbers import FiniteRange

_PATH = click.Path(path_type=Path)
_SLOWDOWN = click.option(
    "--slowdown",
    type=FiniteRange(min=1.0),
    default=1.05,
    show_default=True,
    help="Maximum run time, relative to that at the maximum limit.",
)
_OUTPUT = click.option(
    "-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True
)
_MIN_SHARE = 0.2
"""Smallest share of its maximum that the power limit of a GPU outside the catalogue may be."""
_OVERSHOOT = 1.2
"""Largest credible ratio of a GPU's average power to its limit; drivers overshoot by a few percent."""


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
    "--max-limit",
    "max_limit_w",
    type=FiniteRange(min=0.0, min_open=True),
    help="Maximum power limit of the GPU, W.  [default: that in Joulie's catalogue]",
)
@_SLOWDOWN
@click.option(
    "--error",
    type=FiniteRange(min=0.0, max=50.0),
    default=0.0,
    show_default=True,
    help="Standard deviation of a measured time, percent; a margin is kept for it.",
)
@click.option(
    "--share",
    type=FiniteRange(min=0.0, max=1.0, min_open=True),
    default=0.9,
    show_default=True,
    help="Share of the jobs that one limit for all must keep within the slowdown.",
)
@_OUTPUT
def recommend(
    *,
    sweep_file: Path,
    gpu: str,
    max_limit_w: float | None,
    slowdown: float,
    error: float,
    share: float,
    output: str,
) -> None:
    """Recommend a power limit for each job, and one for all of them as GPU_MODEL_CAPS_JSON.

    The file has a row for each job and limit: power_limit (W), time_per_epoch (s for any unit of work) and
    average_power (W) of a GPU; all other columns name the job. Each job needs a measurement at the maximum limit;
    further limits are optional, since their effect is estimated from the other jobs in the file.
    """
    limits = _limits_of(gpu, max_limit_w)
    jobs = read_sweeps(sweep_file, all_rows=True)
    swept = [(job.name, sweep) for job in jobs if (sweep := sweep_of(job.measurements)) is not None]
    _check_sweeps(sweep_file, swept, limits)
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


class ManyFiles(click.Command):
    """A command whose options of files take several at once: ``--sweeps a.csv b.csv``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each further file."""
        names = {name for option in self.params if option.multiple for name in option.opts}
        spread: list[str] = []
        option = ""
        for arg in args:
            if arg.startswith("-"):
                option = arg if arg in names else ""
            elif option and spread[-1] != option:
                spread.append(option)
            spread.append(arg)
        return super().parse_args(ctx, spread)


@caps.command("replay", cls=ManyFiles)
@click.option(
    "--sweeps",
    "sweep_files",
    type=_PATH,
    multiple=True,
    required=True,
    metavar="FILE...",
    help="CSV of measurements; its jobs are tested.",
)
@click.option(
    "--teach",
    "teach_files",
    type=_PATH,
    multiple=True,
    metavar="FILE...",
    help="CSV of measurements of other jobs; without it, the other networks of the tested files.",
)
@click.option(
    "--noise",
    type=FiniteRange(min=0.0, max=0.5),
    default=0.0,
    show_default=True,
    help="Standard deviation of the power and progress of a window, as a share.",
)
@_SLOWDOWN
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Seed of the noise.")
@_OUTPUT
def replay_sweeps(
    *, sweep_files: Sequence[Path], teach_files: Sequence[Path], noise: float, slowdown: float, seed: int, output: str
) -> None:
    """Test the live search for power limits on measured sweeps, where the best limit is known.

    Each job starts at its maximum limit; the search that the operator runs measures windows of it, tries up to three
    lower limits and holds one. What it knows of other jobs comes from other networks only (column network). Savings
    are shares of the energy for the same work; windows counts those of all jobs together. The oracle knows the whole
    sweep, and once more without limits above 1.4 of the job's natural power, which save by chance.
    """
    tested = [job for path in sweep_files for job in true_jobs(read_sweeps(path))]
    teachers = [job for path in teach_files for job in true_jobs(read_sweeps(path))] or tested
    try:
        non_negative("noise", noise)
        goal = Goal(slowdown)
        responses = left_out(tested, teachers)
    except InvalidQuantityError as unusable:
        raise UserError(f"{unusable}: give files with other networks to --teach") from unusable
    summary = summarise(replay(tested, responses, goal, noise, np.random.default_rng(seed)), slowdown)
    if output == "table":
        _print_summary(summary)
        return
    from joulie.program.documents import print_document

    print_document(asdict(summary), output)


def _print_summary(summary: Summary) -> None:
    from joulie.program.tables import print_table

    print_table(
        "Search for power limits, replayed",
        ("", ""),
        (
            ("jobs", str(summary.jobs)),
            ("saved, %", f"{100.0 * summary.saved:.2f}"),
            ("saved by the best limits, %", f"{100.0 * summary.oracle_saved:.2f}"),
            ("share of that, %", f"{100.0 * summary.share:.1f}"),
            ("saved by the best limits up to 1.4 of natural power, %", f"{100.0 * summary.oracle_saved_to_1_4:.2f}"),
            ("share of that, %", f"{100.0 * summary.share_to_1_4:.1f}"),
            ("windows for each job", f"{summary.windows / summary.jobs:.1f}"),
            ("jobs over the bound", str(summary.over_bound)),
            ("jobs over it by more than 1 %", str(summary.over_bound_by_1pct)),
            ("largest slowdown", f"{summary.max_slowdown:.3f}"),
        ),
    )


def model_caps(gpu: str, fleet: FleetLimit) -> dict[str, str]:
    """Operator settings that apply one limit to the eco GPUs of a model."""
    limits = {gpu: {"minCapWatts": fleet.limit_w, "maxCapWatts": fleet.largest_w}}
    percent = 100.0 * fleet.limit_w / fleet.largest_w
    return {"GPU_MODEL_CAPS_JSON": json.dumps(limits), "GPU_ECO_CAP_PCT_OF_MAX": f"{percent:.4g}"}


def _limits_of(gpu: str, max_limit_w: float | None) -> CapRange:
    """Power limits that a GPU model can have; from the maximum, or else the catalogue."""
    if not gpu.strip():
        raise UserError("invalid --gpu: must not be empty")
    model = BUILTIN_CATALOGUE.gpu(gpu).model
    if max_limit_w is not None:
        return CapRange(_MIN_SHARE * max_limit_w, max_limit_w, max_limit_w)
    if model is None:
        raise UserError(f"--gpu: unknown GPU {gpu!r}: name its maximum power limit with --max-limit W")
    return model.cap_range


def _check_sweeps(path: Path, swept: Sequence[tuple[str, Sweep]], limits: CapRange) -> None:
    """Refuse measurements in other units than watts, and jobs without a baseline: limits are settings of hardware."""
    largest_w = max(float(sweep.limits_w[0]) for _, sweep in swept)
    for name, sweep in swept:
        for limit_w, power_w in zip(sweep.limits_w, sweep.power_w, strict=True):
            if not limits.min_w <= limit_w <= limits.max_w:
                raise UserError(
                    f"{path}: job {name}: {limit_w:g} W is not a power limit of this GPU, which takes "
                    f"{limits.min_w:g} to {limits.max_w:g} W; power_limit is in W (another GPU: --max-limit)"
                )
            if power_w > _OVERSHOOT * limit_w:
                raise UserError(
                    f"{path}: job {name}: an average power of {power_w:g} W under a limit of {limit_w:g} W: "
                    "average_power is that of one GPU, in W"
                )
        if sweep.limits_w[0] != largest_w:
            raise UserError(f"{path}: job {name} has no measurement at {largest_w:g} W, which it is compared with")


def read_sweeps(path: Path, *, all_rows: bool = False) -> tuple[SweptJob, ...]:
    """Jobs of a file; ignored rows are printed to stderr, and refused if all rows are needed."""
    try:
        sweeps = read_power_sweeps(path)
    except PowerSweepError as error:
        raise UserError(str(error)) from error
    for problem in sweeps.problems:
        click.echo(f"ignored: {path}: {problem}", err=True)
    if all_rows and sweeps.problems:
        raise UserError(f"{path}: {len(sweeps.problems)} invalid rows: correct or remove them")
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
