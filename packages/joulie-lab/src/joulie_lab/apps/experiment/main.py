"""``joulie experiment``: runs a trace under several policies, natively or on a control plane, and compares them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulie.program.commands import CommandGroup
from joulie.program.errors import UserError
from joulie.program.numbers import FiniteRange
from joulie_lab.program.lists import items, whole

if TYPE_CHECKING:
    from joulie_lab.apps.experiment.artefacts import Artefacts, FinishedRun
    from joulie_lab.simulation.experiment.fidelity import Fidelity
    from joulie_lab.simulation.experiment.plan import RunKey
    from joulie_lab.simulation.experiment.scenario import Experiment

_PATH = click.Path(path_type=Path)
_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
_SCENARIO = click.argument("scenario", metavar="NAME|FILE.yaml")
_SETS = click.option("--set", "sets", metavar="KEY=VALUE", multiple=True, help="Override a value; repeatable.")
_OUTPUT = click.option(
    "-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True
)
NATIVE, CONTROL_PLANE = "native", "control-plane"


@click.group(cls=CommandGroup, path="experiment")
def experiment() -> None:
    """Run a trace under several policies, and compare their savings at equal work."""


@experiment.command("list")
@_OUTPUT
def list_experiments(*, output: str) -> None:
    """List the shipped experiments."""
    from joulie_lab.simulation.experiment.files import experiment_names, load_experiment

    rows = []
    for name in experiment_names():
        entry = load_experiment(name)
        rows.append(
            {
                "name": name,
                "nodes": sum(group.count for group in entry.cluster.groups),
                "hours": entry.hours + entry.drain_hours,
                "variants": [variant.name for variant in entry.variants],
                "description": entry.description,
            }
        )
    if output != "table":
        _echo(rows, output)
        return
    width = max(len(str(row["name"])) for row in rows)
    for row in rows:
        click.echo(f"{row['name']:<{width}}  {row['nodes']:>6} nodes  {row['hours']:>6g} h  {row['description']}")


@experiment.command()
@_SCENARIO
def show(*, scenario: str) -> None:
    """Print the YAML of an experiment, as a start for your own."""
    from joulie_lab.simulation.experiment.files import experiment_text
    from joulie_lab.simulation.positions import ScenarioError

    try:
        click.echo(experiment_text(scenario), nl=False)
    except ScenarioError as error:
        raise UserError(str(error)) from error


@experiment.command()
def schema() -> None:
    """Print the JSON Schema of experiments, for editors."""
    from joulie_lab.simulation.experiment.files import experiment_schema

    _echo(experiment_schema(), "json")


@experiment.command()
@_SCENARIO
@click.option(
    "--on", "place", type=click.Choice([NATIVE, CONTROL_PLANE]), default=NATIVE, show_default=True, help="Where to run."
)
@click.option("--time-scale", type=FiniteRange(min=1.0), help="Simulated seconds per second; on a control plane only.")
@click.option("--variants", metavar="NAME,...", help="Variants to run now.  [default: all]")
@click.option("--seeds", metavar="N,...", help="Seeds, instead of the experiment's.")
@_SETS
@click.option("--out", type=_PATH, help="Folder for the artefacts.  [default: NAME-native or NAME-control-plane]")
@click.option("--jobs", type=click.IntRange(min=1), help="Number of parallel native runs.  [default: one per core]")
@click.option(
    "--executor",
    metavar="local|dask[://HOST:PORT]",
    default="local",
    show_default=True,
    help="Where to run natively.",
)
@click.option("--fresh", is_flag=True, help="Remove the runs that are in the folder.")
@_OUTPUT
def run(
    *,
    scenario: str,
    place: str,
    time_scale: float | None,
    variants: str | None,
    seeds: str | None,
    sets: tuple[str, ...],
    out: Path | None,
    jobs: int | None,
    executor: str,
    fresh: bool,
    output: str,
) -> None:
    """Run every variant of SCENARIO with every seed under every physics.

    Finished runs are kept in the folder; the same command resumes an interrupted experiment. At the end the report is
    written there too. Exit status 1 if a run on the control plane does not count because the machine could not keep
    up; the same command repeats it.
    """
    from joulie_lab.apps.experiment.artefacts import ArtefactError, Artefacts

    if executor != "local" and place == CONTROL_PLANE:
        raise UserError("--executor: a control plane runs on this machine; it belongs to --on native")
    if time_scale is not None and place == NATIVE:
        raise UserError("--time-scale: native runs do not follow the clock; it belongs to --on control-plane")
    loaded = _load(scenario, sets, seeds)
    keys = _chosen(loaded, variants)
    if place == CONTROL_PLANE:
        _refuse_native_only(loaded, keys)
        time_scale = _pace(loaded, time_scale)
    artefacts = Artefacts(out or Path(f"{loaded.name}-{place}"))
    try:
        finish(loaded, keys, artefacts, time_scale=time_scale, jobs=jobs, executor=executor, fresh=fresh)
        _report(artefacts)
        _tell(artefacts, output)
        invalid = artefacts.invalid()
    except ArtefactError as error:
        raise UserError(str(error)) from error
    if invalid:
        click.get_current_context().exit(1)


@experiment.command()
@click.argument("folder", type=_FOLDER)
@_OUTPUT
def report(*, folder: Path, output: str) -> None:
    """Write the report of FOLDER again, and print its tables."""
    from joulie_lab.apps.experiment.artefacts import ArtefactError, Artefacts

    artefacts = Artefacts(folder)
    try:
        _report(artefacts)
        _tell(artefacts, output)
    except ArtefactError as error:
        raise UserError(str(error)) from error


@experiment.command()
@click.argument("native", type=_FOLDER)
@click.argument("other", type=_FOLDER)
@_OUTPUT
def compare(*, native: Path, other: Path, output: str) -> None:
    """Compare the runs of OTHER, made on a control plane, to those of NATIVE.

    Exit status 1 if energy or work differ by more than the targets, or if a run does not count.
    """
    from joulie_lab.apps.experiment.artefacts import ArtefactError, Artefacts
    from joulie_lab.apps.experiment.tables import print_fidelity
    from joulie_lab.simulation.experiment.fidelity import DifferentJobsError

    ours, theirs = Artefacts(native), Artefacts(other)
    found: dict[RunKey, Fidelity] = {}
    try:
        there = set(theirs.finished())
        for key in ours.finished():
            if key in there:
                found[key] = _agreement(ours.read(key), theirs.read(key))
        invalid = {key: why for key, why in theirs.invalid().items() if key in found}
    except (ArtefactError, DifferentJobsError) as error:
        raise UserError(str(error)) from error
    if not found:
        raise UserError(f"{native} and {other} have no run in common")
    if output == "table":
        print_fidelity(found)
    else:
        _echo([{"run": key.folder, **value.as_dict()} for key, value in found.items()], output)
    missed = [key for key, value in found.items() if not value.holds]
    for key in missed:
        click.echo(f"missed: {key}", err=True)
    for key, why in invalid.items():
        click.echo(f"{key} does not count: {why}", err=True)
    if missed or invalid:
        click.get_current_context().exit(1)


def _agreement(one: FinishedRun, other: FinishedRun) -> Fidelity:
    """Compare two runs.

    Raises:
        DifferentJobsError: the runs have different jobs.
    """
    from joulie_lab.simulation.experiment.fidelity import DifferentJobsError, fidelity

    if one.how.trace != other.how.trace:
        raise DifferentJobsError(f"{one.key}: the runs have different traces, by their checksums")
    return fidelity(one.outcome, other.outcome)


def _load(scenario: str, sets: Sequence[str], seeds: str | None) -> Experiment:
    """Load an experiment, and check it completely before anything runs."""
    from joulie_lab.apps.experiment.settings import VariantError, check_variants
    from joulie_lab.simulation.experiment.files import load_experiment
    from joulie_lab.simulation.model_files import Setting
    from joulie_lab.simulation.native.nodes import UnknownHardwareError, sim_nodes
    from joulie_lab.simulation.positions import ScenarioError

    settings = (
        [] if seeds is None else [Setting(("seeds",), [whole(seed, "--seeds") for seed in items([seeds])], "--seeds")]
    )
    try:
        loaded = load_experiment(scenario, sets, settings)
        sim_nodes(loaded.cluster.groups)
        check_variants(loaded)
    except (ScenarioError, UnknownHardwareError, VariantError) as error:
        raise UserError(str(error)) from error
    return loaded


def _chosen(loaded: Experiment, variants: str | None) -> list[RunKey]:
    """The runs to make now."""
    from joulie_lab.simulation.experiment.plan import run_keys

    names = [variant.name for variant in loaded.variants]
    wanted = names if variants is None else items([variants])
    for name in wanted:
        if name not in names:
            raise UserError(f"--variants: no variant {name!r}; there are {', '.join(names)}")
    return [key for key in run_keys(loaded) if key.variant in wanted]


def _refuse_native_only(loaded: Experiment, keys: Sequence[RunKey]) -> None:
    """Refuse variants that a control plane cannot run, before the first run starts."""
    from joulie_lab.apps.experiment.control_plane import why_not

    chosen = {key.variant for key in keys}
    reasons = {variant.name: why_not(loaded, variant) for variant in loaded.variants if variant.name in chosen}
    if problems := [f"variant {name}: {problem}" for name, problem in reasons.items() if problem is not None]:
        raise UserError("\n".join(problems))


def _pace(loaded: Experiment, time_scale: float | None) -> float:
    """Simulated seconds per wall second on the control plane."""
    from joulie_lab.apps.experiment.control_plane import DEFAULT_TIME_SCALE, why_too_fast

    chosen = time_scale or DEFAULT_TIME_SCALE
    nodes = sum(group.count for group in loaded.cluster.groups)
    if problem := why_too_fast(nodes, loaded.control, chosen):
        raise UserError(f"--time-scale: {problem}")
    return chosen


def finish(
    loaded: Experiment,
    keys: Sequence[RunKey],
    artefacts: Artefacts,
    *,
    time_scale: float | None = None,
    jobs: int | None = None,
    executor: str = "local",
    fresh: bool = False,
) -> None:
    """Execute the runs that are missing in the folder.

    Args:
        loaded: the experiment.
        keys: runs of the experiment.
        artefacts: folder of finished runs.
        time_scale: simulated seconds per wall second on a control plane; None to run natively.
        jobs: number of parallel native runs; None for one per core.
        executor: where native runs are executed: local, dask or dask://HOST:PORT.
        fresh: whether to remove the runs that are in the folder.

    Raises:
        UserError: a run failed.
        ArtefactError: the folder cannot be used.
    """
    from joulie_lab.apps.experiment.runs import on_control_plane, play_native
    from joulie_lab.program.parallel import Executor
    from joulie_lab.simulation.cooling_plant import CoolingPlantError

    artefacts.begin(loaded, NATIVE if time_scale is None else CONTROL_PLANE, time_scale, fresh=fresh)
    there = set(artefacts.finished()) - artefacts.invalid().keys()
    missing = [key for key in keys if key not in there]
    if len(missing) < len(keys):
        click.echo(f"{len(keys) - len(missing)} of {len(keys)} runs are kept in {artefacts.folder}", err=True)
    if time_scale is None:
        runs = play_native(loaded, missing, Executor.parse(executor, jobs))
    else:
        runs = on_control_plane(loaded, missing, time_scale, artefacts.folder)
    try:
        with closing(runs) as finished:
            for one in finished:
                artefacts.add(one)
    except (ValueError, CoolingPlantError) as error:  # the errors of traces and plants explain themselves
        raise UserError(str(error)) from error
    except KeyboardInterrupt:
        kept = len(set(artefacts.finished()) & set(keys))
        click.echo(f"{kept} of {len(keys)} runs are kept in {artefacts.folder}; the same command goes on", err=True)
        raise


def _report(artefacts: Artefacts) -> None:
    from joulie_lab.apps.experiment.report import write_report

    click.echo(f"wrote {write_report(artefacts)}", err=True)


def _tell(artefacts: Artefacts, output: str) -> None:
    from joulie_lab.apps.experiment.tables import print_comparison
    from joulie_lab.simulation.experiment.compare import compare

    experiment = artefacts.experiment()
    records, invalid = artefacts.records(), artefacts.invalid()
    comparison = compare(experiment, records)
    for key, why in invalid.items():
        click.echo(f"{key} does not count: {why}", err=True)
    if output == "table":
        print_comparison(experiment.name, comparison)
        return
    runs = [{"run": record.key.folder, **asdict(record.metrics)} for record in records]
    not_counted = {key.folder: why for key, why in invalid.items()}
    _echo({"experiment": experiment.name, **comparison.as_dict(), "invalid": not_counted, "runs": runs}, output)


def _echo(value: Any, output: str) -> None:
    from joulie.program.documents import print_document

    print_document(value, output)
