"""Turns a benchmark into a command: common options; measure, print tables, write files, check ranges."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import click

from joulie.program.errors import UserError
from joulie_lab.apps.bench.registry import SUMMARIES
from joulie_lab.apps.bench.report import Report
from joulie_lab.benchmarks.ranges import Range, RangesError, load_ranges, misses
from joulie_lab.benchmarks.results import Result, plain

PATH = click.Path(path_type=Path)
_RANGES = Path("benchmarks")
Command = TypeVar("Command", bound=Callable[..., Any])

RANGES = click.option("--ranges", "ranges_file", type=PATH, help="Ranges to check.  [default: benchmarks/NAME.yaml]")
EXECUTOR = click.option(
    "--executor", metavar="local|dask[://HOST:PORT]", default="local", show_default=True, help="Where to run."
)
JOBS = click.option("--jobs", type=click.IntRange(min=1), help="Number of processes.  [default: one per core]")
OUTPUT = click.option(
    "-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True
)


def tell(stage: str) -> None:
    """Print progress to standard error."""
    click.echo(stage, err=True)


def benchmark(name: str, report: Report[Result]) -> Callable[[Callable[..., Result]], click.Command]:
    """Decorator that makes a command of a measuring function, which gets ``small`` and its own options."""

    def decorate(measure: Callable[..., Result]) -> click.Command:
        @functools.wraps(measure)
        def command(
            *,
            small: bool,
            json_file: Path | None,
            plots_folder: Path | None,
            ranges_file: Path | None,
            output: str,
            **own: Any,
        ) -> None:
            _run(
                name,
                functools.partial(measure, small=small, **own),
                report,
                small=small,
                output=output,
                json_file=json_file,
                plots_folder=plots_folder,
                ranges_file=ranges_file,
            )

        return click.command(name, help=f"Measure {SUMMARIES[name]}.")(_common(command))

    return decorate


def _common(command: Command) -> Command:
    """Options that all benchmarks have."""
    for option in reversed(
        (
            click.option("--small", is_flag=True, help="Run a small sample that takes seconds, as in CI."),
            click.option("--json", "json_file", type=PATH, help="Write all figures as JSON."),
            click.option("--plots", "plots_folder", type=PATH, help="Write the plot as PNG to a folder."),
            RANGES,
            OUTPUT,
        )
    ):
        command = option(command)
    return command


def _run(
    name: str,
    measure: Callable[[], Result],
    report: Report[Result],
    *,
    small: bool,
    output: str,
    json_file: Path | None,
    plots_folder: Path | None,
    ranges_file: Path | None,
) -> None:
    from joulie.output_files import STANDARD_STREAM
    from joulie.program.documents import print_document, render_document
    from joulie.program.tables import print_table
    from joulie_lab.program.outputs import Outputs
    from joulie_lab.simulation.report.png import png

    check = RangeCheck.of(name, ranges_file, small=small)
    with Outputs() as outputs:
        json_part = outputs.file("--json", json_file)
        plots_part = outputs.folder("--plots", plots_folder)
        result = measure()
        figures = plain(result)
        missed = check.missed(figures)
        document = {"benchmark": name, "small": small, **figures, "missed": missed}
        with outputs.beside():
            if output == "table":
                for table in report.tables(result):
                    print_table(table.title, table.columns, table.rows)
            else:
                print_document(document, output)
        outputs.write(json_part, render_document(document, "json") + "\n")
        if plots_part:
            outputs.write(plots_part / f"{name}.png", png(report.figure(result)))
        outputs.commit()
    check.conclude(missed, err=output != "table" or json_file == STANDARD_STREAM)


@dataclass(frozen=True)
class RangeCheck:
    """The committed ranges of a benchmark: what misses them is told, and the exit status is 1.

    Attributes:
        place: file of the ranges.
        ranges: None outside a checkout, where there are none; the figures are still useful.
    """

    place: Path
    ranges: Sequence[Range] | None

    @classmethod
    def of(cls, name: str, ranges_file: Path | None, *, small: bool = False) -> Self:
        """Load the ranges before anything is measured.

        Raises:
            UserError: the file is invalid, or was named and cannot be read.
        """
        place = ranges_file or _RANGES / f"{name}.yaml"
        if ranges_file is None and not place.exists():
            return cls(place, None)
        try:
            return cls(place, load_ranges(place, small=small))
        except RangesError as error:
            raise UserError(str(error)) from error

    def missed(self, figures: Mapping[str, Any]) -> list[str]:
        """One message per range that the figures are out of."""
        return misses(self.ranges or (), figures)

    def conclude(self, missed: Sequence[str], *, err: bool) -> None:
        """Tell how many ranges hold, to standard error if `err`, and exit with 1 if one does not."""
        for line in missed:
            click.echo(f"missed: {line}", err=True)
        if self.ranges is None:
            click.echo(f"{self.place} not found: ranges are not checked; name a file with --ranges", err=True)
        else:
            held = len(self.ranges) - len(missed)
            click.echo(f"{held} of {len(self.ranges)} ranges of {self.place} hold", err=err)
        if missed:
            click.get_current_context().exit(1)
