"""``joulie sweep``: runs schedulers x seeds in parallel and tabulates their differences to a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulie.program.errors import UserError
from joulie.program.numbers import FiniteFloat
from joulie_lab.program.lists import items, whole

if TYPE_CHECKING:
    from joulie_lab.program.parallel import Executor
    from joulie_lab.simulation.results import RunRecord
    from joulie_lab.simulation.scenario import Scenario
    from joulie_lab.simulation.sweep import Column, Variant
    from joulie_lab.simulation.sweep_state import SweepState

_PUBLISHED = "published-2500"
_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("scenario", metavar="[SCENARIO]", default=_PUBLISHED)
@click.option("--scheduler", "schedulers", metavar="NAME,...", multiple=True, help="Schedulers to compare.")
@click.option("--seed", "seeds", metavar="N,...", multiple=True, help="Seeds; each scheduler runs once per seed.")
@click.option("--hours", type=FiniteFloat(), help="Length of the arrival period, h.")
@click.option("--set", "sets", metavar="KEY=VALUE", multiple=True, help="Override a value of the scenario; repeatable.")
@click.option("--baseline", metavar="NAME", help="Baseline scheduler of the comparison.  [default: the first]")
@click.option("--jobs", type=click.IntRange(min=1), help="Number of parallel runs.  [default: one per core]")
@click.option(
    "--executor", metavar="local|dask[://HOST:PORT]", default="local", show_default=True, help="Where to run."
)
@click.option(
    "--state", metavar="FILE|DIR", type=_PATH, help="File for finished runs.  [default: in the user's data folder]"
)
@click.option("--fresh", is_flag=True, help="Discard the runs of an earlier sweep, interrupted or finished.")
@click.option("--json", "json_file", type=_PATH, help="Write runs and comparison as JSON.")
@click.option(
    "--report", "report_file", type=_PATH, help="Write the comparison with a chart of every metric as one HTML file."
)
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def sweep(
    *,
    scenario: str,
    schedulers: tuple[str, ...],
    seeds: tuple[str, ...],
    hours: float | None,
    sets: tuple[str, ...],
    baseline: str | None,
    jobs: int | None,
    executor: str,
    state: Path | None,
    fresh: bool,
    json_file: Path | None,
    report_file: Path | None,
    output: str,
) -> None:
    """Simulate SCENARIO with every scheduler and every seed, and compare the schedulers seed by seed.

    Without SCENARIO: the published sweep, ten variants and eight seeds. An interrupted sweep is resumed when the same
    command is run again.
    """
    from joulie_lab.program.outputs import Outputs
    from joulie_lab.program.parallel import Executor

    loaded = _load(scenario, items(schedulers), items(seeds), hours, sets, baseline)
    with Outputs() as outputs:
        json_part = outputs.file("--json", json_file)
        report_part = outputs.file("--report", report_file)
        records = _finished(loaded, state, Executor.parse(executor, jobs), fresh=fresh)
        document = _document(loaded, records)
        with outputs.beside():
            if output == "table":
                _print(loaded, records)
            else:
                click.echo(_render(document, output))
        if json_part:
            outputs.write(json_part, _render(document, "json") + "\n")
        if report_part:
            from joulie_lab.simulation.sweep_report import render_sweep

            outputs.write(report_part, render_sweep(loaded, records))
        outputs.commit()
    for path in (json_file, report_file):
        if path:
            click.echo(f"wrote {path}", err=True)


def _load(
    name: str,
    schedulers: Sequence[str],
    seeds: Sequence[str],
    hours: float | None,
    sets: Sequence[str],
    baseline: str | None,
) -> Scenario:
    """Load the scenario with the schedulers and seeds of the sweep, the baseline first."""
    from joulie_lab.simulation.positions import ScenarioError
    from joulie_lab.simulation.scenario_files import Setting, load_scenario
    from joulie_lab.simulation.sweep import PUBLISHED_BASELINE, PUBLISHED_LABELS, SWEEP_SEEDS

    settings = [] if hours is None else [Setting(("hours",), hours, "--hours")]
    if schedulers:
        settings.append(Setting(("schedulers",), list(schedulers), "--scheduler"))
    elif name == _PUBLISHED:
        settings.append(Setting(("schedulers",), [PUBLISHED_BASELINE, *PUBLISHED_LABELS], "the published sweep"))
    if seeds:
        settings.append(Setting(("seeds",), [whole(seed, "--seed") for seed in seeds], "--seed"))
    try:
        loaded = load_scenario(name, sets, settings)
        if not seeds and len(loaded.seeds) == 1:
            settings.append(Setting(("seeds",), list(SWEEP_SEEDS), "the published sweep"))
        first = baseline or loaded.schedulers[0]
        others = [other for other in loaded.schedulers if other != first]
        settings.append(Setting(("schedulers",), [first, *others], "--baseline"))
        sets = [assignment for assignment in sets if not assignment.startswith("schedulers")]
        return load_scenario(name, sets, settings)
    except ScenarioError as error:
        raise UserError(str(error)) from error


def _finished(scenario: Scenario, where: Path | None, executor: Executor, *, fresh: bool) -> list[RunRecord]:
    """All runs of the sweep, both stored and new ones, scheduler by scheduler."""
    from joulie_lab.program.parallel import played
    from joulie_lab.simulation.sweep import Task, plan
    from joulie_lab.simulation.sweep_state import SweepStateError

    state = _open_state(scenario, where, fresh=fresh)
    tasks = plan(scenario.schedulers, scenario.seeds)
    missing = plan(scenario.schedulers, scenario.seeds, state.records)
    if len(missing) < len(tasks):
        click.echo(f"{len(tasks) - len(missing)} of {len(tasks)} runs are stored in {state.path}", err=True)
    try:
        with closing(played(scenario, missing, executor)) as records:
            for record in records:
                state.add(record)
    except SweepStateError as error:
        raise UserError(str(error)) from error
    except (KeyboardInterrupt, UserError):
        kept = sum(task in state.records for task in tasks)
        click.echo(
            f"{kept} of {len(tasks)} runs are stored in {state.path}; run the same command again to resume", err=True
        )
        raise
    return [state.records[Task(name, seed)] for name in scenario.schedulers for seed in scenario.seeds]


def _open_state(scenario: Scenario, where: Path | None, *, fresh: bool) -> SweepState:
    from platformdirs import user_state_path

    from joulie import __version__
    from joulie_lab.simulation.sweep_state import SweepState, SweepStateError, code_digest, identity, identity_digest

    try:
        this = identity(scenario, version=__version__, code=code_digest())
        if where is None:
            where = user_state_path("joulie") / "sweeps"
            where.mkdir(parents=True, exist_ok=True)
        if where.is_dir():
            where = where / f"{scenario.name}-{identity_digest(this)}.jsonl"
        return SweepState(where, this, fresh=fresh)
    except SweepStateError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"{where}: cannot be used as the state of a sweep: {error.strerror}") from error


def _document(scenario: Scenario, records: Sequence[RunRecord]) -> dict[str, Any]:
    from joulie_lab.simulation.sweep import CONFIDENCE, compare

    return {
        "scenario": scenario.name,
        "baseline": scenario.schedulers[0],
        "seeds": list(scenario.seeds),
        "confidence": CONFIDENCE,
        "variants": [variant.as_dict() for variant in compare(records, scenario.schedulers[0])],
        "runs": [record.as_dict() for record in records],
    }


def _print(scenario: Scenario, records: Sequence[RunRecord]) -> None:
    from joulie_lab.simulation.sweep import HONEST_COLUMNS, PUBLISHED_COLUMNS, compare

    variants = compare(records, scenario.schedulers[0])
    n_seeds = len(scenario.seeds)
    click.echo(
        f"{scenario.name}, {scenario.hours:g} h: difference to {scenario.schedulers[0]}, mean of {n_seeds}"
        f" {'seeds ± 95 % confidence interval' if n_seeds > 1 else 'seed'}"
    )
    _print_variants("As published", PUBLISHED_COLUMNS, variants, wins=True)
    _print_variants("Metrics beyond the published columns", HONEST_COLUMNS, variants)


def _print_variants(title: str, columns: Sequence[Column], variants: Sequence[Variant], *, wins: bool = False) -> None:
    from joulie.program.tables import print_table
    from joulie_lab.simulation.sweep import format_estimate

    shown = [column for column in columns if any(variant.columns[column.key] for variant in variants)]
    labels = ["Variant", *(column.label for column in shown), *(["seeds won on energy"] if wins else [])]
    rows = [
        [
            variant.label,
            *(" ".join(format_estimate(column, variant.columns[column.key])).rstrip() for column in shown),
            *([f"{variant.energy_wins}/{variant.seeds}"] if wins else []),
        ]
        for variant in variants
    ]
    click.echo()
    print_table(title, labels, rows)


def _render(value: Any, form: str) -> str:
    from joulie.program.documents import render_document

    return render_document(value, form)
