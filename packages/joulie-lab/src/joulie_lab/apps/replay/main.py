"""``joulie replay``: judges the model by a recorded past, and forecasts policies on the same arrivals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from joulie.program.documents import print_document
from joulie.program.errors import UserError
from joulie.program.numbers import FiniteRange
from joulie.program.tables import print_table

if TYPE_CHECKING:
    from joulie_lab.apps.replay.run import Replay
    from joulie_lab.simulation.replay.fit import Errors

_POLICIES = "static_partition,queue_aware_v1,energy_per_work"
_REFUSED = 1


@click.command("replay")
@click.argument("recording", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--policies", default=_POLICIES, show_default=True, help="Policies to forecast, separated by commas.")
@click.option("--seeds", type=click.IntRange(1, 100), default=3, show_default=True, help="Runs of each policy.")
@click.option(
    "--max-bias",
    type=FiniteRange(0.0, 100.0),
    default=3.0,
    show_default=True,
    help="Bias of the model in the second half of the past beyond which nothing is forecast, %.",
)
@click.option(
    "--max-error",
    type=FiniteRange(0.0, 100.0),
    default=10.0,
    show_default=True,
    help="Mean absolute error of the cluster's hourly power beyond which nothing is forecast, %.",
)
@click.option(
    "--drain-hours",
    type=FiniteRange(0.0, 1000.0),
    default=24.0,
    show_default=True,
    help="Time after the recording in which its jobs can finish, so that all policies do the same work, h.",
)
@click.option("--executor", default="local", show_default=True, help="local, dask, or dask://HOST:PORT.")
@click.option("-j", "--jobs", type=click.IntRange(1), help="Runs at a time. [default: one per core]")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Page to write.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", help="Output format.")
def replay(
    recording: Path,
    policies: str,
    seeds: int,
    max_bias: float,
    max_error: float,
    drain_hours: float,
    executor: str,
    jobs: int | None,
    html: Path | None,
    output: str,
) -> int:
    """Forecast policies on a RECORDING that `joulie record` made.

    First the past as it was: the model's power beside the measured power, fitted on the first half of the hours and
    judged on the second. Then each policy on the same arrivals, at equal work, with an interval for what it saves.

    Exit codes: 0 forecast; 1 the model misses the past by more than --max-bias or --max-error, and nothing is forecast;
    2 for user errors.
    """
    from joulie.adapters.recording_files import RecordingError
    from joulie_lab.apps.experiment.settings import VariantError
    from joulie_lab.apps.replay.run import Question, check_policies
    from joulie_lab.apps.replay.run import replay as run_replay
    from joulie_lab.program.outputs import Outputs
    from joulie_lab.program.parallel import Executor

    names = tuple(dict.fromkeys(name.strip() for name in policies.split(",") if name.strip()))
    try:
        check_policies(names)
        question = Question(names, seeds, max_bias / 100.0, max_error / 100.0, drain_hours * 3600.0)
        with Outputs() as outputs:
            page = outputs.file("--html", html)
            result = run_replay(recording, question, Executor.parse(executor, jobs))
            if page:
                from joulie_lab.apps.replay.page import render

                page.write_text(render(result, recording.name), encoding="utf-8")
            outputs.commit()
    except (RecordingError, VariantError, ValueError) as error:
        raise UserError(str(error)) from error
    if output == "table":
        _print(result)
    else:
        print_document(result.document(), output)
    return _REFUSED if result.refused else 0


def _print(result: Replay) -> None:
    from joulie_lab.apps.replay.cells import error_sentence, forecast_cells, headline

    judged = result.judged
    click.echo(headline(result))
    click.echo(error_sentence(judged.held_out))
    click.echo()
    rows = [
        ("fitted model, second half", *_error_cells(judged.held_out)),
        ("fitted model, first half (fitted there)", *_error_cells(judged.fitting)),
        ("catalogue, second half", *_error_cells(judged.catalogue)),
    ]
    columns = ("MODEL", "BIAS", "CLUSTER, HOURLY", "NODES, HOURLY", "P95 OF NODE BIAS", "MEASURED")
    print_table("Predicted against measured power, errors in % of it", columns, rows)
    if result.forecasts:
        heads = (
            "POLICY",
            "KWH",
            "SAVED",
            "95 % INTERVAL",
            "SLOWDOWN P95 PERF",
            "STANDARD",
            "WAIT P95, S",
            "UNFINISHED",
        )
        print_table("Policies on the same arrivals", heads, [forecast_cells(one) for one in result.forecasts])
    for note in result.notes:
        click.echo(f"- {note}")


def _error_cells(one: Errors) -> tuple[str, ...]:
    return (
        f"{one.bias:+.2%}",
        f"{one.cluster_error:.2%}",
        f"{one.node_error:.2%}",
        f"{one.node_bias_p95:.2%}",
        f"{one.coverage:.1%}",
    )
