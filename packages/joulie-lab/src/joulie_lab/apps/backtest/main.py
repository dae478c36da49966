"""``joulie grid backtest``: what deferral would have saved in a zone, from a file of its history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulie.domain.durations import duration_s

if TYPE_CHECKING:
    from joulie_lab.apps.backtest.run import Result

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class _Duration(click.ParamType[float]):
    """A duration such as 4h or 30m, in s."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return duration_s(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.option(
    "--intensity", metavar="FILE", type=_FILE, required=True, help="Carbon intensity of the zone: CSV or Parquet."
)
@click.option("--price", metavar="FILE", type=_FILE, help="Prices of electricity; judged too, alone and together.")
@click.option("--delay", type=_Duration(), default="0", help="How late each value is known.  [default: 0]")
@click.option("--jobs", "jobs_file", metavar="FILE", type=_FILE, help="Job trace: arrival_time and length in h, cpus.")
@click.option("--runtime", type=_Duration(), default="4h", show_default=True, help="Runtime of jobs without a trace.")
@click.option("--slack", type=_Duration(), default="24h", show_default=True, help="How long a job may wait.")
@click.option(
    "--arrivals",
    type=click.IntRange(min=1),
    help="Number of jobs.  [default: one at each step; all of a trace]",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Seed of arrivals, intervals.")
@click.option("--zone", default="", help="Zone, if a file has several.")
@click.option("--column", default="", help="Column of the intensity.  [default: life cycle before direct]")
@click.option("--time-zone", default="", help="IANA time zone of times without an offset.  [default: UTC]")
@click.option(
    "--plots",
    "plots_folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Write backtest.png into a folder.",
)
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def backtest(
    *,
    intensity: Path,
    price: Path | None,
    delay: float,
    jobs_file: Path | None,
    runtime: float,
    slack: float,
    arrivals: int | None,
    seed: int,
    zone: str,
    column: str,
    time_zone: str,
    plots_folder: Path | None,
    output: str,
) -> None:
    """Measure what deferral would have saved in a zone, from a file of its carbon intensity.

    Jobs arrive over the whole history and are decided by the grid controller's own forecasts and decisions. The oracle
    knows the future. An interval is that of the share of the oracle's saving.
    """
    from joulie.adapters.grid.files import FileOptions
    from joulie.domain.grid.signals import Measure
    from joulie_lab.apps.backtest.run import Question, read, run
    from joulie_lab.program.outputs import Outputs

    if runtime <= 0.0:
        raise click.UsageError("--runtime must be more than 0")
    options = FileOptions(value=column, time_zone=time_zone)
    sources = {Measure.CARBON: read(intensity, Measure.CARBON, options, zone)}
    if price is not None:
        sources[Measure.PRICE] = read(price, Measure.PRICE, FileOptions(time_zone=time_zone), zone)
    question = Question(runtime_s=runtime, slack_s=slack, delay_s=delay, arrivals=arrivals, seed=seed)
    with Outputs() as outputs:
        plots = outputs.folder("--plots", plots_folder)
        result = run(sources, jobs_file, question)
        if output == "table":
            _print(result)
        else:
            from joulie.program.documents import print_document

            print_document(result.document(), output)
        if plots:
            from joulie_lab.apps.backtest.chart import draw
            from joulie_lab.simulation.report.png import png

            outputs.write(plots / "backtest.png", png(draw(result)))
        outputs.commit()
    if plots_folder:
        click.echo(f"wrote {plots_folder / 'backtest.png'}", err=True)


def _print(result: Result) -> None:
    """Print a table for each measure, and what was judged."""
    from rich.table import Table

    from joulie.program.tables import console, print_whole

    document = result.document()
    screen = console()
    screen.print(
        f"{document['file']} ({document['column']}), {document['from']} to {document['until']},"
        f" {document['step_min']:g} min steps: mean {document['mean_g_per_kwh']:.0f} gCO2eq/kWh",
        highlight=False,
        soft_wrap=True,
    )
    screen.print(
        f"{document['arrivals']}, slack {document['slack_h']:g} h, values known {document['delay_h']:g} h late",
        highlight=False,
        soft_wrap=True,
    )
    for title, unit, found in _measures(document):
        table = Table("rule", title=title, title_justify="left", show_edge=False)
        for column in ("saved, %", f"saved, {unit}", "of the oracle, %", "95 % interval", "above yesterday", "late"):
            table.add_column(column, justify="right")
        of_itself = "100.0" if found["oracle_per_kwh"] > 0.0 else "-"
        table.add_row("oracle", _number(found["oracle_pct"]), f"{found['oracle_per_kwh']:.4g}", of_itself, "", "", "0")
        for name, rule in found["rules"].items():
            table.add_row(
                name,
                _number(rule["saved_pct"]),
                f"{rule['saved_per_kwh']:.4g}",
                _number(rule["share"], 100.0),
                _interval(rule["interval"]),
                _interval(rule["above_yesterday"]),
                str(rule["late"]),
            )
        screen.print()
        print_whole(table)
    screen.print(f"\nIntervals are those of {document['interval_of']}.", highlight=False)
    for note in result.notes:
        click.echo(note, err=True)


def _measures(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    yield "Carbon", "g/kWh", document
    if "price" in document:
        yield f"Price ({document['price']['column']})", "per kWh", document["price"]


def _number(value: float | None, scale: float = 1.0) -> str:
    return "-" if value is None else f"{scale * value:.1f}"


def _interval(ends: list[float] | None) -> str:
    return "" if ends is None else f"{100.0 * ends[0]:.1f} to {100.0 * ends[1]:.1f}"
