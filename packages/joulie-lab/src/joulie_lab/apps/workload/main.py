"""``joulie workload``: generates, validates, describes, slices and scales job traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from joulie.program.commands import CommandGroup
from joulie.program.numbers import FiniteFloat, FiniteRange
from joulie_lab.apps.workload.imports import import_

if TYPE_CHECKING:
    from joulie_lab.simulation.model_files import Setting
    from joulie_lab.simulation.native.nodes import SimNode
    from joulie_lab.simulation.workloads.description import TraceCounter

_FILE = click.Path(path_type=Path)
_STATUS_EVERY = 1000
_SECONDS = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
Command = TypeVar("Command", bound=Callable[..., Any])

_TRACE = click.argument("trace", metavar="TRACE", type=_FILE)
_OUT = click.option("--out", type=_FILE, default="-", show_default=True, help="Trace to write; .gz compresses it.")
_SKIP = click.option("--skip-bad-lines", is_flag=True, help="Skip invalid lines; they are reported and counted.")
_CLUSTER = click.option("--cluster", metavar="FILE|EXPERIMENT", help="YAML with groups of nodes, or an experiment.")
_OUTPUT = click.option(
    "-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True
)


class _Duration(click.ParamType[float]):
    """A time with its unit: 90, 90s, 15min, 2h, 3d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        number = str(value).rstrip("abcdefghijklmnopqrstuvwxyz")
        try:
            return float(number) * _SECONDS[str(value)[len(number) :].strip()]
        except (ValueError, KeyError):
            self.fail(f"invalid duration {value!r}: write it like 90s, 15min, 2h or 3d", param, ctx)


@click.group(cls=CommandGroup, path="workload", context_settings={"help_option_names": ["-h", "--help"]})
def workload() -> None:
    """Generate, validate, describe, slice and scale job traces.

    A trace is a file of JSON lines, compressed by gzip or not; - is standard input or output.
    """


workload.add_command(import_)


@workload.command()
@click.option(
    "--hours", type=FiniteRange(0.0, min_open=True), default=24.0, show_default=True, help="Hours of arrivals."
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Seed of the random numbers.")
@click.option("--rate", type=FiniteFloat(), help="Workloads per hour where the pattern's factor is 1.  [default: 60]")
@click.option("--pattern", type=click.Choice(["hourly", "diurnal"]), help="Pattern of arrivals over the day.")
@click.option("--gpu-share", type=FiniteFloat(), help="Share of the workloads that have GPUs.  [default: 0.75]")
@click.option(
    "--performance-share", type=FiniteFloat(), help="Share of the workloads of class performance.  [default: 0.25]"
)
@click.option("--duration-scale", type=FiniteFloat(), help="Multiplies durations and their clamps.  [default: 1]")
@click.option("--settings", "file", type=_FILE, help="YAML file of settings; see workload schema --of generator.")
@click.option("--set", "sets", metavar="KEY=VALUE", multiple=True, help="Override a setting; repeatable.")
@_OUT
def generate(hours: float, seed: int, file: Path | None, sets: tuple[str, ...], out: Path, **options: Any) -> None:
    """Generate a random trace; the same settings and seed give the same bytes."""
    from msgspec import to_builtins

    from joulie_lab.adapters.job_trace import write_trace
    from joulie_lab.apps.workload.reading import progress, usage_errors
    from joulie_lab.simulation.positions import ScenarioError
    from joulie_lab.simulation.trace import TraceJob
    from joulie_lab.simulation.workloads.files import generator_settings
    from joulie_lab.simulation.workloads.generator import generate as drawn

    try:
        settings = generator_settings(file, sets, list(_settings(options)))
    except ScenarioError as error:
        raise click.UsageError(str(error)) from error

    def shown() -> Iterator[TraceJob]:
        for number, job in enumerate(drawn(settings, seed, hours), start=1):
            if number % _STATUS_EVERY == 0:
                status.update(f"{number:,} jobs, hour {job.submit_s / _SECONDS['h']:.0f} of {hours:g}")
            yield job

    metadata = {"source": "generator", "seed": seed, "hours": hours, "settings": to_builtins(settings, str_keys=True)}
    with progress("Generating") as status, usage_errors():
        jobs = write_trace(out, shown(), metadata)
    click.echo(f"{jobs:,} jobs", err=True)


def _settings(options: dict[str, Any]) -> Iterator[Setting]:
    """Convert options to values of the settings."""
    from joulie_lab.simulation.model_files import Setting

    inside = {"rate": ("arrivals", "workloads_per_hour"), "pattern": ("arrivals", "pattern")}
    for name, value in options.items():
        if value is not None:
            yield Setting(inside.get(name, (name,)), value, f"--{name.replace('_', '-')}")


@workload.command()
@_TRACE
@_CLUSTER
@_OUTPUT
def validate(trace: Path, cluster: str | None, output: str) -> None:
    """Check every line of TRACE; with --cluster, also whether its nodes could ever hold each job and gang.

    Each problem is reported with its line. Exit status 1 if there are problems.
    """
    from joulie_lab.adapters.job_trace import JobTraceError, read_numbered
    from joulie_lab.apps.workload.reading import progress, usage_errors
    from joulie_lab.simulation.native.fitting import unfit
    from joulie_lab.simulation.trace import TraceJob

    nodes = _nodes(cluster)
    problems: list[tuple[int, str]] = []
    line_of: dict[str, int] = {}

    def jobs() -> Iterator[TraceJob]:
        for number, item in read_numbered(trace):
            if isinstance(item, JobTraceError):
                problems.append((number, str(item)))
            elif isinstance(item, TraceJob):
                line_of[item.job_id] = number
                yield item

    with progress(f"Reading {trace.name}"), usage_errors():
        if nodes is None:
            for _ in jobs():
                pass
        else:
            for job, why in unfit(jobs(), nodes):
                line = line_of[job.job_id]
                problems.append((line, f"{trace}:{line}: {job.job_id}: {why}"))
    messages = [problem for _, problem in sorted(problems)]
    if output == "table":
        for message in messages:
            click.echo(message)
        click.echo(f"{trace}: {len(line_of):,} jobs, {len(messages):,} problems")
    else:
        _render({"trace": str(trace), "jobs": len(line_of), "problems": messages}, output)
    if messages:
        raise click.exceptions.Exit(1)


@workload.command()
@_TRACE
@_CLUSTER
@click.option("--plots", type=_FILE, help="Folder to write plots to, as PNG.")
@_SKIP
@_OUTPUT
def describe(trace: Path, cluster: str | None, plots: Path | None, *, skip_bad_lines: bool, output: str) -> None:
    """Print statistics of TRACE: arrivals, sizes, durations, mix, work, offered load.

    Durations are those of jobs that run alone and uncapped. Exit status 1 if there are invalid lines, unless skipped.
    """
    from joulie_lab.apps.workload.reading import reading
    from joulie_lab.apps.workload.tables import print_description
    from joulie_lab.simulation.trace import TraceJob
    from joulie_lab.simulation.workloads.description import TraceCounter

    nodes = _nodes(cluster)
    capacity = None
    if nodes is not None:
        capacity = (sum(node.spec.cores for node in nodes), float(sum(node.spec.gpus for node in nodes)))
    with reading(trace) as read:
        counter = TraceCounter.from_jobs(line for line in read.lines() if isinstance(line, TraceJob))
    found = counter.description()
    if output == "table":
        print_description(found, capacity)
    else:
        _render(asdict(found) | {"broken_lines": read.broken_lines}, output)
    if plots is not None:
        _write_plots(plots, counter, trace.name)
    if read.broken_lines:
        message = f"{trace}: {read.broken_lines:,} broken lines are left out"
        if not skip_bad_lines:
            raise click.ClickException(message)
        click.echo(message, err=True)


def _write_plots(folder: Path, counter: TraceCounter, title: str) -> None:
    from joulie_lab.simulation.workloads.plots import trace_plots

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, image in trace_plots(counter.columns(), title).items():
            (folder / f"{name}.png").write_bytes(image)
            click.echo(f"wrote {folder / name}.png", err=True)
    except OSError as error:
        raise click.UsageError(f"--plots {folder}: cannot be written: {error.strerror}") from error


@workload.command("slice")
@_TRACE
@click.option(
    "--from", "from_s", type=_Duration(), default=0.0, help="Start of the part; it becomes time 0.  [default: 0]"
)
@click.option("--until", "until_s", type=_Duration(), default=float("inf"), help="End of the part, exclusive.")
@click.option("--family", "families", multiple=True, help="Keep this workload type; repeatable.")
@click.option("--first", type=click.IntRange(min=1), help="Maximum number of jobs to keep; their gangs are kept whole.")
@_SKIP
@_OUT
def slice_(
    trace: Path,
    from_s: float,
    until_s: float,
    families: tuple[str, ...],
    first: int | None,
    *,
    skip_bad_lines: bool,
    out: Path,
) -> None:
    """Write a part of TRACE. Gangs are kept whole or not at all. Write times like 90s, 15min, 2h, 3d."""
    from joulie_lab.simulation.workloads.transforms import Slice, sliced

    part = _checked(lambda: Slice(from_s, until_s, families, first))
    _rewrite(trace, out, lambda lines: sliced(lines, part), skip_bad_lines=skip_bad_lines)


@workload.command()
@_TRACE
@click.option("--rate", type=FiniteFloat(), default=1.0, show_default=True, help="Factor of the arrival rate.")
@click.option("--duration", type=FiniteFloat(), default=1.0, show_default=True, help="Factor of job durations.")
@click.option("--size", type=FiniteFloat(), default=1.0, show_default=True, help="Factor of requests and work.")
@click.option("--spread", type=_Duration(), default="30min", show_default=True, help="Maximum delay of copies.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the choice of copies.")
@_SKIP
@_OUT
def scale(
    trace: Path, rate: float, duration: float, size: float, spread: float, seed: int, *, skip_bad_lines: bool, out: Path
) -> None:
    """Scale TRACE: its arrival rate (by copying or leaving out workloads), and the duration and size of its jobs."""
    from joulie_lab.simulation.workloads.transforms import Scale, scaled

    by = _checked(lambda: Scale(rate, duration, size, spread, seed))
    _rewrite(trace, out, lambda lines: scaled(lines, by), skip_bad_lines=skip_bad_lines)


@workload.command()
@click.option("--of", "what", type=click.Choice(["trace", "generator"]), default="trace", show_default=True)
def schema(what: str) -> None:
    """Print the JSON Schema of a trace's jobs, or of the generator's settings."""
    if what == "trace":
        from joulie_lab.adapters.job_trace import line_schema

        _render(line_schema(), "json")
    else:
        from joulie_lab.simulation.workloads.files import generator_schema

        _render(generator_schema(), "json")


def _rewrite(trace: Path, out: Path, change: Callable[..., Iterator[Any]], *, skip_bad_lines: bool) -> None:
    """Write a transformed trace."""
    from joulie_lab.adapters.job_trace import write_trace
    from joulie_lab.apps.workload.reading import reading

    with reading(trace) as read:
        jobs = write_trace(out, change(read.checked_lines(skip_bad_lines=skip_bad_lines)))
    left_out = f", {read.broken_lines:,} broken lines left out" if read.broken_lines else ""
    click.echo(f"{jobs:,} of {read.jobs:,} jobs{left_out}", err=True)


ValueT = TypeVar("ValueT")


def _checked(make: Callable[[], ValueT]) -> ValueT:
    """Build a value from options; an invalid option becomes a usage error."""
    try:
        return make()
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _nodes(cluster: str | None) -> tuple[SimNode, ...] | None:
    if cluster is None:
        return None
    from joulie_lab.simulation.native.files import cluster_nodes
    from joulie_lab.simulation.positions import ScenarioError

    try:
        return cluster_nodes(cluster)
    except ScenarioError as error:
        raise click.UsageError(str(error)) from error


def _render(value: Any, form: str) -> None:
    """Print a plain value as ``json`` or ``yaml``."""
    if form == "yaml":
        import yaml

        click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True).rstrip())
    else:
        import json

        click.echo(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False))
