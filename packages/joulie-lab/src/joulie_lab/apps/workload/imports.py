"""``joulie workload import``: converts public traces, and your own tables, to job traces."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import yaml
from click.core import ParameterSource

from joulie.output_files import STANDARD_STREAM, output_file
from joulie.program.numbers import FiniteRange
from joulie_lab.adapters.trace_import.source_jobs import (
    DEFAULTS,
    Assumptions,
    ImportProblem,
    Item,
    LeftOut,
    Parsed,
    TraceSourceError,
    trace_jobs,
)
from joulie_lab.simulation.trace import CPU_CLASSES, GPU_CLASSES, GPU_RESOURCE_VENDORS, TraceJob

if TYPE_CHECKING:
    from rich.status import Status

_SHOWN_PROBLEMS = 20
_STATUS_EVERY = 1000
_HOUR_S = 3600.0
_FILE = click.Path(path_type=Path)
_SHARE = FiniteRange(0.0, 1.0)
_USED_SHARE = FiniteRange(0.0, 1.0, min_open=True)
_AMOUNT = FiniteRange(0.0)
_ASSUMED: Mapping[str, tuple[click.ParamType[Any], str]] = {
    "cpu_utilization": (_USED_SHARE, "CPU utilisation of jobs without GPUs."),
    "gpu_job_cpu_utilization": (_USED_SHARE, "CPU utilisation of jobs with GPUs."),
    "gpu_utilization": (_USED_SHARE, "GPU utilisation."),
    "memory_intensity": (_SHARE, "Share of the work that waits for memory."),
    "io_intensity": (_SHARE, "Share of the work that waits for I/O."),
    "cpu_class": (click.Choice(CPU_CLASSES), "What bounds CPU work."),
    "gpu_class": (click.Choice(GPU_CLASSES), "What bounds GPU work."),
    "cores_per_gpu": (_AMOUNT, "Cores per GPU of jobs with GPUs."),
    "memory_gib_per_core": (_AMOUNT, "Memory per core, GiB."),
    "widest_pod_cores": (
        click.IntRange(min=1),
        "Maximum cores of a pod; larger jobs without GPUs become gangs of equal pods.",
    ),
    "gpu_resource": (click.Choice(list(GPU_RESOURCE_VENDORS)), "Extended resource of GPUs."),
}
"""Options for values that a source does not have."""
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass
class _Summary:
    """Counts of an import."""

    pods: int = 0
    performance_pods: int = 0
    gpu_pods: int = 0
    gpu_sharing_pods: int = 0
    gpus: int = 0
    cores: float = 0.0
    last_submission_h: float = 0.0
    broken_lines: int = 0
    workloads: set[str] = field(default_factory=set)
    gangs: set[str] = field(default_factory=set)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, job: TraceJob) -> None:
        """Count a job."""
        shape = job.shape
        self.pods += 1
        self.performance_pods += job.is_performance
        self.gpu_pods += shape.gpus > 0
        self.gpu_sharing_pods += shape.gpu_share < 1.0
        self.gpus += shape.gpus
        self.cores += shape.cores
        self.last_submission_h = max(self.last_submission_h, job.submit_s / _HOUR_S)
        self.workloads.add(job.workload_id)
        if job.gang:
            self.gangs.add(job.workload_id)

    def document(self) -> dict[str, Any]:
        """Counts as plain JSON values."""
        return {
            "jobs": len(self.workloads),
            "gangs": len(self.gangs),
            "pods": self.pods,
            "performancePods": self.performance_pods,
            "gpuPods": self.gpu_pods,
            "gpuSharingPods": self.gpu_sharing_pods,
            "gpus": self.gpus,
            "cores": round(self.cores, 3),
            "lastSubmissionHours": round(self.last_submission_h, 3),
            "leftOut": dict(self.left_out),
            "brokenLines": self.broken_lines,
        }


def _importer(command: Command) -> Command:
    """Add the options that all importers share."""
    options = [
        click.option(
            "--out",
            type=_FILE,
            default="-",
            show_default=True,
            help="Trace to write; .gz compresses it, - is standard output.",
        ),
        *(
            click.option(
                f"--{name.replace('_', '-')}",
                name,
                type=kind,
                default=getattr(DEFAULTS, name),
                show_default=True,
                help=text,
            )
            for name, (kind, text) in _ASSUMED.items()
        ),
        click.option("--skip-bad-lines", is_flag=True, help="Skip invalid lines; they are counted."),
        click.option(
            "-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.group("import")
def import_() -> None:
    """Convert public traces, and your own tables, to job traces.

    Options give the values that a source does not have, and the first line of the trace records them. Invalid lines
    are reported, and nothing is written unless --skip-bad-lines is given.
    """


@import_.command()
@click.argument("pod_list", type=_FILE)
@click.option("--nodes", type=_FILE, help="The trace's node list.")
@click.option("--cluster-out", type=_FILE, help="Cluster file to write from the node list.")
@click.option(
    "--cpu", default="Intel Xeon Gold 6530", show_default=True, help="CPU model of all nodes; the node list has none."
)
@click.option(
    "--performance-qos",
    metavar="CLASS,...",
    default="LS,Guaranteed",
    show_default=True,
    help="Pods of these classes must not be slowed.",
)
@click.option(
    "--unscheduled-s",
    type=FiniteRange(0.0, min_open=True),
    default=616.0,
    show_default=True,
    help="Run time of pods that were never scheduled; the default is the median of the others.",
)
@click.option("--leave-out-unscheduled", is_flag=True, help="Leave those pods out.")
@_importer
def openb(
    pod_list: Path,
    nodes: Path | None,
    cluster_out: Path | None,
    cpu: str,
    performance_qos: str,
    unscheduled_s: float,
    *,
    leave_out_unscheduled: bool,
    **common: Any,
) -> None:
    """Alibaba's GPU trace of 2023 (openb), with its shared GPUs."""
    from joulie_lab.adapters.trace_import import openb as source

    if (nodes is None) != (cluster_out is None):
        raise click.UsageError("--nodes and --cluster-out belong together")
    unscheduled = None if leave_out_unscheduled else unscheduled_s
    options = source.OpenbOptions(_words(performance_qos), unscheduled)
    try:
        found = source.cluster(nodes, cpu) if nodes else source.OpenbCluster((), ())
    except ValueError as error:
        raise click.UsageError(str(error)) from error

    about = {"source": "openb", "performanceQos": list(options.performance_qos), "unscheduledSeconds": unscheduled}
    _import(chain(found.problems, source.jobs(pod_list, options)), about, (pod_list,), **common)
    if nodes and cluster_out:
        comment = f"{nodes.name}: the nodes of openb. That all have {cpu} is an assumption."
        _write_cluster(cluster_out, found.groups, comment)


@import_.command()
@click.argument("file", type=_FILE)
@click.option("--job-table", type=_FILE, help="pai_job_table, which says when jobs were submitted.")
@_importer
def pai(file: Path, job_table: Path | None, **common: Any) -> None:
    """Alibaba's PAI trace of 2020: pai_task_table, or the excerpt pai-100k.csv."""
    from joulie_lab.adapters.trace_import import pai as source

    files = (file,) if job_table is None else (file, job_table)
    _import(source.jobs(file, job_table), {"source": "pai"}, files, **common)


@import_.command()
@click.argument("job_log", type=_FILE)
@_importer
def philly(job_log: Path, **common: Any) -> None:
    """Microsoft's Philly trace: cluster_job_log, or the archive that has it."""
    from joulie_lab.adapters.trace_import import philly as source

    _import(source.jobs(job_log), {"source": "philly"}, (job_log,), **common)


@import_.command()
@click.argument("log", type=_FILE)
@_importer
def swf(log: Path, **common: Any) -> None:
    """A log in the Standard Workload Format of the Parallel Workloads Archive."""
    from joulie_lab.adapters.trace_import import swf as source

    try:
        about = {"source": "swf", "header": dict(source.header(log))}
    except TraceSourceError as error:
        raise click.UsageError(str(error)) from error
    _import(source.jobs(log), about, (log,), **common)


@import_.command("csv")
@click.argument("table", type=_FILE)
@click.option(
    "--columns",
    metavar="FIELD=COLUMN[:UNIT],...",
    required=True,
    help="Where each field stands, like arrival=submit:iso,duration=runtime:h,cores=cpus.",
)
@click.option(
    "--performance-classes",
    metavar="CLASS,...",
    default="performance",
    show_default=True,
    help="Values of the field class whose jobs must not be slowed; '' for none.",
)
@click.option("--from-first", is_flag=True, help="Count time from the first arrival, as dates always do.")
@_importer
def csv_(table: Path, columns: str, performance_classes: str, *, from_first: bool, **common: Any) -> None:
    """A table of your own, CSV or Parquet, a job a row.

    Fields: id, arrival, duration (or start and end), cores, memory, gpus (below 1: a share of one), pods, cpu_util,
    gpu_util, type, class, gpu_model. Units: s, ms, min, h, d, and iso for dates; cores, milli, percent; GiB, MiB, KiB,
    GB, MB, B; gpus, milli, percent; fraction, percent. The first of each is the default.
    """
    from joulie_lab.adapters.trace_import import table as source

    try:
        mapping = source.column_mapping(columns)
    except ValueError as error:
        raise click.UsageError(f"--columns: {error}") from error
    given = click.get_current_context().get_parameter_source("performance_classes") is ParameterSource.COMMANDLINE
    if given and performance_classes and "class" not in mapping:
        raise click.UsageError("--performance-classes needs class=COLUMN in --columns")
    options = source.TableOptions(mapping, _words(performance_classes), from_first)
    about = {"source": "csv", "columns": columns}
    _import(source.jobs(table, options), about, (table,), **common)


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


def _import(
    found: Iterable[Parsed],
    about: Mapping[str, Any],
    files: Sequence[Path],
    *,
    out: Path,
    skip_bad_lines: bool,
    output: str,
    **assumed: Any,
) -> None:
    """Read a source, write the trace, and print the counts."""
    from joulie_lab.adapters.job_trace import JobTraceError, write_trace
    from joulie_lab.apps.workload.reading import progress

    assumptions = Assumptions(**assumed)
    metadata = {**about, "files": [file.name for file in files], "assumed": assumptions.as_metadata()}
    summary = _Summary()
    try:
        with progress(f"Reading {files[0].name}") as status:
            pods = _pods(trace_jobs(found, assumptions), summary, status, skip_bad_lines=skip_bad_lines)
            write_trace(out, pods, metadata)
    except (TraceSourceError, JobTraceError) as error:
        raise click.UsageError(str(error)) from error
    _show(summary.document(), output, err=out == STANDARD_STREAM)


def _pods(items: Iterator[Item], summary: _Summary, status: Status, *, skip_bad_lines: bool) -> Iterator[TraceJob]:
    """Yield the jobs; count the other items, and report invalid lines."""
    for item in items:
        if isinstance(item, TraceJob):
            summary.add(item)
            if summary.pods % _STATUS_EVERY == 0:
                status.update(f"{summary.pods:,} pods, {summary.broken_lines:,} broken lines")
            yield item
        elif isinstance(item, LeftOut):
            summary.left_out[item.reason] += 1
        else:
            summary.broken_lines += 1
            if summary.broken_lines <= _SHOWN_PROBLEMS:
                _report(item)
    if summary.broken_lines > _SHOWN_PROBLEMS:
        click.echo(f"and {summary.broken_lines - _SHOWN_PROBLEMS} more broken lines", err=True)
    if summary.broken_lines and not skip_bad_lines:
        raise click.ClickException(
            f"{summary.broken_lines} broken lines, nothing is written: fix them, or skip them with --skip-bad-lines"
        )
    if not summary.pods:
        left_out = ", ".join(f"{count} {reason}" for reason, count in summary.left_out.items())
        raise click.ClickException(f"no jobs in the input{left_out and f' ({left_out})'}: nothing is written")


def _report(problem: ImportProblem) -> None:
    click.echo(f"{problem.place}: {problem.reason}", err=True)


def _write_cluster(path: Path, groups: Sequence[Mapping[str, Any]], comment: str) -> None:
    text = yaml.safe_dump({"groups": [dict(group) for group in groups]}, sort_keys=False)
    try:
        with output_file(path) as part:
            part.write_text(f"# {comment}\n{text}", encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"--cluster-out {path}: cannot be written: {error.strerror}") from error
    nodes, gpus = (
        sum(group["count"] for group in groups),
        sum(group["count"] * group.get("gpus", 0) for group in groups),
    )
    click.echo(f"{path}: {nodes:,} nodes in {len(groups)} groups, {gpus:,} GPUs", err=True)


def _show(document: Mapping[str, Any], output: str, *, err: bool) -> None:
    if output == "json":
        click.echo(json.dumps(document, indent=2), err=err)
    elif output == "yaml":
        click.echo(yaml.safe_dump(dict(document), sort_keys=False).rstrip(), err=err)
    else:
        rows = {name: value for name, value in document.items() if name != "leftOut"}
        rows |= {f"leftOut: {reason}": count for reason, count in document["leftOut"].items()}
        width = max(map(len, rows))
        for name, value in rows.items():
            click.echo(f"{name:<{width}}  {value:>14,}", err=err)
