"""``joulie trial``: how long a trial must be, and what it measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from click.core import ParameterSource

from joulie.adapters.kubernetes.api.v1alpha1 import PowerTrial
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.power_trials import protocol_of, workload_protocol_of
from joulie.adapters.kubernetes.resources import POWER_TRIALS
from joulie.apps.kubectl.options import cluster_options, output_option, run_with_client
from joulie.domain.durations import duration_s
from joulie.domain.quantities import SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from joulie.domain.trial.protocol import Judged
from joulie.program.documents import print_document
from joulie.program.errors import UserError
from joulie.program.numbers import FiniteRange
from joulie.program.tables import print_table

if TYPE_CHECKING:
    from joulie.adapters.recording_files import RecordingFiles
    from joulie.domain.trial.measure import Metered
    from joulie_lab.apps.trial.plan import TrialPlan
    from joulie_lab.apps.trial.result import TrialReport
    from joulie_lab.apps.trial.workload_plan import WorkloadPlan
    from joulie_lab.apps.trial.workloads import WorkloadReport

_recording = click.argument("recording", type=click.Path(exists=True, file_okay=False, path_type=Path))


@click.group("trial")
def trial() -> None:
    """Plan trials (PowerTrials), and report what they measured."""


@trial.command("plan")
@_recording
@click.option(
    "--judges",
    type=click.Choice([one.value for one in Judged]),
    default=Judged.ENFORCEMENT.value,
    show_default=True,
    help="What the trial judges.",
)
@click.option("--saving", type=FiniteRange(0.1, 50.0), default=5.0, show_default=True, help="To be seen, %.")
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    help="Of deferral: whose workloads would be drawn; can be repeated; those of all namespaces by default.",
)
@click.option("--block", default="6h", show_default=True, help="Length of a block.")
@click.option(
    "--washout",
    default="1h",
    show_default=True,
    help="Beginning of each block that is not measured; auto: until 10 % of the work that ran at a switch still runs,"
    " at most half of the block.",
)
@output_option
@click.pass_context
def plan_command(
    context: click.Context,
    recording: Path,
    judges: str,
    saving: float,
    namespaces: tuple[str, ...],
    block: str,
    washout: str,
    output: str,
) -> None:
    """How many pairs of blocks, or days, a saving needs, from a RECORDING made while nothing was enforced.

    The recording is evaluated as trials that treated nobody; what these find by chance is the noise that a saving must
    stand out of. A trial of deferral has no blocks: its last days are evaluated.
    """
    deferral = judges == Judged.DEFERRAL
    for name in ("block", "washout") if deferral else ("namespaces",):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            option = "--namespace" if name == "namespaces" else f"--{name}"
            raise UserError(f"{option} says nothing of a trial that judges {judges}: leave it out")
    if deferral:
        _plan_workloads(_open(recording), saving, namespaces, output)
    else:
        _plan_blocks(_open(recording), saving, block, washout, output)


def _plan_blocks(files: RecordingFiles, saving: float, block: str, washout: str, output: str) -> None:
    from joulie_lab.apps.trial.plan import Design, plan

    try:
        design = Design(duration_s(block), None if washout == "auto" else duration_s(washout))
        found = plan(_metered(files), files.pods(), design, saving / 100.0)
    except ValueError as error:
        raise UserError(str(error)) from error
    if output == "table":
        _print_plan(found, design.block_s, saving)
    else:
        print_document(msgspec.to_builtins(found), output)


def _plan_workloads(files: RecordingFiles, saving: float, namespaces: tuple[str, ...], output: str) -> None:
    from joulie_lab.apps.trial.workload_plan import plan_workloads

    try:
        found = plan_workloads(files.head.period, files.pods(), files.accounted(), saving / 100.0, namespaces)
    except ValueError as error:
        raise UserError(str(error)) from error
    if output == "table":
        _print_workload_plan(found, saving)
    else:
        print_document(msgspec.to_builtins(found), output)


@trial.command("report")
@_recording
@cluster_options
@click.option("--trial", "name", help="Name of the PowerTrial in the cluster.")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The PowerTrial as `kubectl get powertrial NAME -o json` printed it, instead of --trial.",
)
@click.option(
    "--max-both-arms",
    type=FiniteRange(0.0, 100.0),
    default=20.0,
    show_default=True,
    help="Share of the work by pods that ran under both arms beyond which no saving is given, %.",
)
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Page to write.")
@output_option
def report_command(
    recording: Path,
    kubeconfig: Path | None,
    context: str | None,
    name: str | None,
    file: Path | None,
    max_both_arms: float,
    html: Path | None,
    output: str,
) -> int:
    """What a trial saved, from a RECORDING of its time.

    JSON and YAML hold the draw, and the energy and work of every node and block, or of every workload, to compute the
    saving again.

    Exit codes: 0 a saving; 1 none can be given, and why is printed; 2 for user errors.
    """
    from joulie_lab.apps.trial.result import TrialReport
    from joulie_lab.program.outputs import Outputs

    if (name is None) == (file is None):
        raise UserError("name the trial with --trial NAME, or its file with --file FILE")
    one = _read(file) if file is not None else _fetched(name or "", kubeconfig, context)
    try:
        found = _reported(one, _open(recording), max_both_arms / 100.0)
    except ValueError as error:
        raise UserError(str(error)) from error
    with Outputs() as outputs:
        page = outputs.file("--html", html)
        if output != "table":
            print_document(found.document(), output)
        elif isinstance(found, TrialReport):
            _print_report(found)
        else:
            _print_workloads(found)
        if page:
            from joulie_lab.apps.trial.page import render, render_workloads

            text = render(found) if isinstance(found, TrialReport) else render_workloads(found)
            page.write_text(text, encoding="utf-8")
        outputs.commit()
    return 1 if found.refused else 0


def _reported(one: PowerTrial, files: RecordingFiles, max_both_arms: float) -> TrialReport | WorkloadReport:
    from joulie_lab.apps.trial.result import report
    from joulie_lab.apps.trial.workloads import workload_report

    name, protocol, workloads = one.metadata.name, protocol_of(one), workload_protocol_of(one)
    if workloads is not None:
        return workload_report(name, workloads, files.pods(), files.accounted(), named=not files.head.anonymised)
    if protocol is None:
        raise UserError(f"trial {name} is not drawn yet: its status has no protocol")
    return report(name, protocol, files.pods(), _metered(files), max_both_arms)


def _open(folder: Path) -> RecordingFiles:
    try:
        from joulie.adapters.recording_files import RecordingError, RecordingFiles
    except ModuleNotFoundError as error:
        raise UserError(f"a recording needs {error.name}: pip install 'joulie[parquet]'") from error
    try:
        return RecordingFiles.open(folder)
    except RecordingError as error:
        raise UserError(str(error)) from error


def _metered(files: RecordingFiles) -> Metered:
    from joulie.domain.trial.measure import Metered

    nodes = files.nodes()
    _, power_w = files.measured_w([one.node for one in nodes])
    return Metered(nodes, files.head.period.from_s, files.head.step_s, power_w, files.progress())


def _read(file: Path) -> PowerTrial:
    try:
        return msgspec.json.decode(file.read_bytes(), type=PowerTrial)
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{file}: not a PowerTrial in JSON: {error}") from error


def _fetched(name: str, kubeconfig: Path | None, context: str | None) -> PowerTrial:
    found: list[PowerTrial] = []

    async def work(client: KubeClient) -> None:
        found.append(await client.get(POWER_TRIALS, name))

    run_with_client(work, kubeconfig=kubeconfig, context=context)
    return found[0]


def _print_plan(found: TrialPlan, block_s: float, saving: float) -> None:
    from joulie.domain.trial.draw import all_pairs
    from joulie_lab.apps.trial.plan import POWER

    def days(pairs: int) -> str:
        return f"{2 * all_pairs(pairs) * block_s / SECONDS_PER_HOUR / 24:.1f}"

    if found.pairs is None:
        click.echo(f"A saving of {saving:g} % is too small to be seen in {found.power[-1][0]} pairs of blocks.")
    else:
        click.echo(
            f"{found.pairs} pairs of blocks, {days(found.pairs)} days, show {saving:g} % in {POWER:.0%} of trials."
        )
    minutes = found.washout_s / SECONDS_PER_MINUTE
    left = f"{found.still_running:.1%} of the work that ran at a switch"
    click.echo(f"A washout of {minutes:.0f} min (washoutMinutes) leaves {left}.")
    click.echo(f"{found.both_arms:.1%} of the work would be of pods that run under both arms.")
    click.echo()
    rows = [(str(pairs), days(pairs), f"{power:.0%}") for pairs, power in found.power]
    title = f"A pair varies by {found.deviation:.2%} by chance ({found.contrasts} pairs of the past)"
    print_table(title, ("PAIRS", "DAYS", "SEEN"), rows)


def _print_workload_plan(found: WorkloadPlan, saving: float) -> None:
    from joulie_lab.apps.trial.plan import POWER
    from joulie_lab.apps.trial.workloads import QUANTITY_WORDS

    what, longest = f"{saving:g} % of the {QUANTITY_WORDS[found.quantity]} per work", found.lengths[-1]
    if found.days is None:
        click.echo(f"A saving of {what} is too small to be seen in {longest.days:.1f} days of these workloads.")
        click.echo("A longer recording tells of longer trials: of at most half of its time.")
    else:
        click.echo(f"{found.days:.1f} days show a saving of {what} in {POWER:.0%} of trials.")
    click.echo(f"The largest workload is {found.largest:.0%} of all: the larger, the less is seen.")
    click.echo()
    rows = [
        (
            f"{one.days:.1f}",
            str(one.workloads),
            f"{one.seen:.0%}",
            "–" if one.smallest is None else f"{one.smallest:.1%}",
        )
        for one in found.lengths
    ]
    print_table("Trials of the end of the recording", ("DAYS", "WORKLOADS", "SEEN", f"SEEN IN {POWER:.0%}"), rows)


def _print_report(found: TrialReport) -> None:
    from joulie_lab.apps.trial.result import UNIT_COLUMNS, saving_words

    click.echo(found.headline)
    if found.saving is not None and found.result.whole is not None:
        click.echo(f"All nodes or none, at different hours: {saving_words(found.result.whole)}")
    click.echo()
    rows = [
        (
            str(one.pair + 1),
            "all or none" if one.whole else "halves",
            "–" if one.log_ratio is None else f"{-100.0 * one.log_ratio:+.2f}",
            str(one.nodes),
            one.why_not,
        )
        for one in found.result.contrasts
    ]
    print_table("Pairs of blocks", ("PAIR", "ENFORCED", "SAVED, LOG %", "NODES", "LEFT OUT BECAUSE"), rows)
    print_table("What work is counted by", UNIT_COLUMNS, found.unit_rows)
    for note in found.notes:
        click.echo(f"- {note}")


def _print_workloads(found: WorkloadReport) -> None:
    from joulie_lab.apps.trial.workloads import ARM_COLUMNS, COLUMNS

    click.echo(found.headline)
    for one in found.others:
        click.echo(one)
    click.echo()
    print_table("Arms", ARM_COLUMNS, found.arm_rows)
    print_table("Workloads", COLUMNS, found.rows)
    for note in found.notes:
        click.echo(f"- {note}")
