"""How benchmarks are run: the options that all of them have; measure, show, write, check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from joulie.program.errors import UserError

PATH = click.Path(path_type=Path)
_RANGES = Path("benchmarks")
Command = TypeVar("Command", bound=Callable[..., Any])


OUTPUT = click.option(
    "-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True
)


@dataclass(frozen=True)
class Benchmark:
    """A benchmark that is ready to run.

    Attributes:
        measure: gives every figure, by name.
        show: prints them as tables.
        plot: draws them, as PNG.
    """

    measure: Callable[[], dict[str, Any]]
    show: Callable[[Mapping[str, Any]], None]
    plot: Callable[[Mapping[str, Any]], bytes]


def tell(stage: str) -> None:
    """Say on standard error what is measured now."""
    click.echo(stage, err=True)


def common(command: Command) -> Command:
    """The options that every benchmark has."""
    for option in reversed(
        (
            click.option("--small", is_flag=True, help="The sample that takes seconds, as in CI."),
            click.option("--json", "json_file", type=PATH, help="Write every figure as JSON."),
            click.option("--plots", "plots_folder", type=PATH, help="Write the plot as PNG into a folder."),
            click.option(
                "--ranges", "ranges_file", type=PATH, help="Ranges to check.  [default: benchmarks/NAME.yaml]"
            ),
            OUTPUT,
        )
    ):
        command = option(command)
    return command


def run_benchmark(
    name: str,
    benchmark: Benchmark,
    *,
    small: bool,
    output: str,
    json_file: Path | None,
    plots_folder: Path | None,
    ranges_file: Path | None,
) -> None:
    """Measure, show, write, check."""
    from joulie.program.documents import print_document, render_document
    from joulie_lab.benchmarks.ranges import RangesError, load_ranges, misses
    from joulie_lab.program.outputs import Outputs

    place = ranges_file or _RANGES / f"{name}.yaml"
    # Away from a checkout there are no committed ranges: the figures are still worth having.
    unchecked = ranges_file is None and not place.exists()
    try:
        ranges = () if unchecked else load_ranges(place, small=small)
    except RangesError as error:
        raise UserError(str(error)) from error
    with Outputs() as outputs:
        json_part = outputs.file("--json", json_file)
        plots_part = outputs.folder("--plots", plots_folder)
        measured = benchmark.measure()
        missed = misses(ranges, measured)
        document = {"benchmark": name, "small": small, **measured, "missed": missed}
        if json_part:
            json_part.write_text(render_document(document, "json") + "\n", encoding="utf-8")
        if plots_part:
            (plots_part / f"{name}.png").write_bytes(benchmark.plot(measured))
        outputs.commit()
    if output == "table":
        benchmark.show(measured)
    else:
        print_document(document, output)
    for line in missed:
        click.echo(f"missed: {line}", err=True)
    if unchecked:
        click.echo(f"{place} is not here: nothing is checked; name a file with --ranges", err=True)
    else:
        click.echo(f"{len(ranges) - len(missed)} of {len(ranges)} ranges of {place} hold", err=output != "table")
    if missed:
        click.get_current_context().exit(1)
