"""`joulie record`: writes what a cluster did in the last days to a folder that `joulie replay` reads."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulie.adapters.kubernetes.api.core import Node, PodWithContainers
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import NotFoundError
from joulie.adapters.kubernetes.hardware import allocatable_devices, amount, capacity_cpus, node_aliases
from joulie.adapters.kubernetes.pods import pod_facts
from joulie.adapters.kubernetes.resources import NODE_HARDWARES, NODES, PODS_WITH_CONTAINERS
from joulie.adapters.kubernetes.times import time_or_none
from joulie.adapters.ledger import SqlLedger, open_ledger
from joulie.adapters.prometheus.agents import power_courses
from joulie.adapters.prometheus.answers import PrometheusError
from joulie.adapters.prometheus.cadvisor import Cadvisor
from joulie.adapters.prometheus.client import Prometheus, connect
from joulie.adapters.prometheus.dcgm import Dcgm
from joulie.adapters.prometheus.kube_state import past_pods
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.adapters.prometheus.progress import MAX_METRICS, progress_courses
from joulie.adapters.prometheus.readings import Steps
from joulie.apps.accounting.facts import keep_hardware, keep_pod
from joulie.apps.kubectl.options import cluster_options, run_with_client
from joulie.domain.accounting.records import ExportRow
from joulie.domain.durations import duration_s
from joulie.domain.grid import names
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.hardware.resolve import GPU_RESOURCES, ReportedHardware, resolve
from joulie.domain.power.cpu import CpuPower
from joulie.domain.quantities import JOULES_PER_KWH
from joulie.domain.recording import Exit, NodeRecord, Period, PodRecord, Pseudonyms
from joulie.domain.trial.workload_protocol import Drawn
from joulie.domain.usage import PodKey
from joulie.ports.ledger import LedgerError
from joulie.program.documents import print_document
from joulie.program.errors import UserError
from joulie.program.tables import print_table

if TYPE_CHECKING:  # they need the extra `parquet`
    from joulie.adapters.recording_files import RecordingFiles

_MIN_STEP_S = 60.0
_INCOMPLETE = 1
"""Exit code of a recording that lacks hours: the same command adds them."""
_HOURLY = ("pods", "use", "power", "progress")
"""Tables that Prometheus fills, hour by hour."""
_BYTES_PER_GIB = 1024.0**3
_ENDS = {"Succeeded": Exit.SUCCEEDED, "Failed": Exit.FAILED}
Row = dict[str, object]
_Courses = Mapping[PodKey, Mapping[float, float]]


@dataclass(frozen=True)
class Request:
    """Options of the command.

    Attributes:
        since: length of the time to record.
        out: folder of the recording.
        prometheus: URL of the Prometheus server.
        ledger: URL of the ledger; None without one.
        step: time between two samples.
        anonymise: whether names are replaced.
    """

    since: str
    out: Path
    prometheus: str
    ledger: str | None
    step: str
    anonymise: bool


@click.command("record")
@cluster_options
@click.option("--since", default="7d", show_default=True, help="Time to record, up to now; whole hours of it count.")
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder to write.")
@click.option(
    "--prometheus",
    envvar="PROMETHEUS_ADDRESS",
    default="http://prometheus-operated.monitoring:9090",
    show_default=True,
    help="URL of the Prometheus that scrapes agents, cAdvisor, DCGM and kube-state-metrics.",
)
@click.option(
    "--ledger",
    envvar="LEDGER_URL",
    help="The accounts of `joulie accounting`, for energy by pod, carbon intensity and price: a SQLite file or "
    "postgresql://user@host/database. Without it, these tables stay empty.",
)
@click.option("--step", default="5m", show_default=True, help="Time between two samples of use and power.")
@click.option("--anonymise", is_flag=True, help="Replace names by pseudonyms; their key is stored beside the folder.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", help="Output format.")
def record(kubeconfig: Path | None, context: str | None, output: str, **options: Any) -> int:
    """Record pods, their use, and the power of nodes, to replay them under other policies.

    The recording is a folder of Parquet files. What was not measured is absent, never zero. A recording that was
    interrupted is resumed by the same command. It holds no secrets; with --anonymise, no names either.

    Exit codes: 0 all hours are recorded; 1 hours are missing, and the same command adds them; 2 for user errors.
    """
    try:
        from joulie.adapters.recording_files import Head, RecordingError, RecordingFiles
    except ModuleNotFoundError as error:
        raise UserError(f"a recording needs {error.name}: pip install 'joulie[parquet]'") from error
    request = Request(**options)
    try:
        period = Period.last(duration_s(request.since), time.time())
        files = RecordingFiles.create(request.out, Head(period, _step_s(request.step), request.anonymise))
    except ValueError as error:
        raise UserError(str(error)) from error
    names = Pseudonyms(_key(files.folder)) if request.anonymise else None

    async def work(client: KubeClient) -> None:
        async with _sources(request) as (prometheus, ledger):
            await _Recorder(files, client, prometheus, ledger, names).run()

    try:
        run_with_client(work, kubeconfig=kubeconfig, context=context)
    except (RecordingError, LedgerError, PrometheusError) as error:
        raise UserError(str(error)) from error
    summary = summarise(files)
    _show(summary, output)
    return _INCOMPLETE if summary["missing_hours"] else 0


@asynccontextmanager
async def _sources(request: Request) -> AsyncIterator[tuple[Prometheus, SqlLedger | None]]:
    ledger = None if request.ledger is None else open_ledger(request.ledger)
    try:
        async with connect(request.prometheus, timeout_s=60.0) as prometheus:
            yield prometheus, ledger
    finally:
        if ledger is not None:
            ledger.close()


def _step_s(text: str) -> float:
    step_s = duration_s(text)
    if not _MIN_STEP_S <= step_s <= 3600.0 or 3600.0 % step_s:
        raise ValueError(f"invalid --step {text}: give a part of an hour of at least 1m, such as 5m or 10m")
    return step_s


class _Recorder:
    """Writes the parts of a recording that are absent, hour by hour, so that memory holds one hour only."""

    def __init__(
        self,
        files: RecordingFiles,
        client: KubeClient,
        prometheus: Prometheus,
        ledger: SqlLedger | None,
        names: Pseudonyms | None,
    ) -> None:
        self._files = files
        self._client = client
        self._prometheus = prometheus
        self._ledger = ledger
        self._names = names
        self._warned = False

    async def run(self) -> None:
        """Record; an hour that Prometheus does not answer for stays missing, and is reported."""
        nodes = (await self._client.list(NODES)).items
        try:
            hardware = dict(keep_hardware(one) for one in (await self._client.list(NODE_HARDWARES)).items)
        except NotFoundError:  # a cluster without Joulie's CRDs
            hardware = {}
        records = [node_record(node, hardware.get(node.metadata.name)) for node in nodes]
        until_s = self._files.head.period.until_s
        listed = [pod_record(pod) for pod in (await self._client.list(PODS_WITH_CONTAINERS)).items]
        present = [one for one in listed if one.arrived_s is None or one.arrived_s < until_s]
        if not self._files.has("pods"):
            self._write("nodes", [asdict(one) for one in records])
            self._write("pods", [asdict(one) for one in present])
        index = NodeIndex.from_aliases({node.metadata.name: node_aliases(node) for node in nodes})
        gpus = {one.node: one.gpus for one in records}
        for hour in self._files.head.period.hours:
            try:
                await self._hour(hour, index, gpus, present)
            except PrometheusError as error:
                click.echo(f"joulie: warning: {_shown(hour)} is missing: {error}", err=True)
            if self._ledger is not None and not self._files.has("energy", hour):
                rows = [row for row in self._ledger.export(since_s=hour.from_s, until_s=hour.until_s) if row.pod.uid]
                self._write("signals", list(_signals(rows)), hour)
                self._write("energy", [_energy(row) for row in rows], hour)

    async def _hour(self, hour: Period, index: NodeIndex, gpus: dict[str, int], present: Sequence[PodRecord]) -> None:
        step_s, files = self._files.head.step_s, self._files
        steps = Steps(hour.from_s + step_s, hour.until_s, step_s, step_s)
        known = list(present)
        if not (files.has("pods", hour) and files.has("progress", hour)):
            found = await past_pods(self._prometheus, hour.from_s, hour.until_s)
            known = [*found, *present]
            if not files.has("pods", hour):
                self._write("pods", [asdict(one) for one in found], hour)
        if not files.has("use", hour):
            cores = await Cadvisor(self._prometheus).courses(steps)
            gpu_pct = await Dcgm(self._prometheus, step_s).courses(steps)
            self._write("use", list(_use(cores, gpu_pct)), hour)
        if not files.has("power", hour):
            courses = await power_courses(self._prometheus, index, gpus, steps)
            rows: list[Row] = [
                {"time_s": time_s, "node": node, "power_w": power_w}
                for node, course in courses.items()
                for time_s, power_w in course.items()
            ]
            self._write("power", rows, hour)
        if not files.has("progress", hour):
            self._write("progress", await self._progress(known, steps), hour)

    async def _progress(self, pods: Sequence[PodRecord], steps: Steps) -> list[Row]:
        metric_of = {(one.namespace, one.name): one.progress_metric for one in pods if one.progress_metric}
        more = len(set(metric_of.values())) - MAX_METRICS
        if more > 0 and not self._warned:
            self._warned = True
            click.echo(
                f"joulie: warning: pods name {more} progress metrics more than the {MAX_METRICS} that are recorded",
                err=True,
            )
        courses = await progress_courses(self._prometheus, metric_of, steps)
        return [
            {"time_s": time_s, "namespace": pod[0], "pod": pod[1], "increase": increase}
            for pod, course in sorted(courses.items())
            for time_s, increase in sorted(course.items())
        ]

    def _write(self, table: str, rows: Sequence[Row], hour: Period | None = None) -> None:
        self._files.write(table, rows if self._names is None else [self._names.of(row) for row in rows], hour)


def node_record(node: Node, reported: ReportedHardware | None) -> NodeRecord:
    """Hardware of a node as the API server, its labels and its agent tell it."""
    devices = allocatable_devices(node)
    found = resolve(reported, node.metadata.labels, devices, BUILTIN_CATALOGUE, capacity_cpus=capacity_cpus(node))
    cpu = None if found.cpu.model is None else BUILTIN_CATALOGUE.cpu(found.cpu.model).model
    gpu = None if found.gpu is None or found.gpu.model is None else BUILTIN_CATALOGUE.gpu(found.gpu.model).model
    gpus = 0 if found.gpu is None else found.gpu.count
    idle_w = max_w = None
    if cpu is not None and (gpu is not None or not gpus):
        curve_w = CpuPower.of(cpu, found.cpu.sockets).curve_w
        of_gpus = (0.0, 0.0) if gpu is None else (gpu.idle_w, gpu.default_w)
        idle_w, max_w = (float(curve_w[at]) + gpus * one for at, one in zip((0, -1), of_gpus, strict=True))
    return NodeRecord(
        node.metadata.name,
        cpu_model=found.cpu.model,
        sockets=found.cpu.sockets,
        cores=devices.get("cpu"),
        memory_gib=amount(node.status.allocatable, "memory") / _BYTES_PER_GIB or None,
        gpu_model=None if found.gpu is None else found.gpu.model,
        gpus=gpus,
        gpu_resource=next((name for name in GPU_RESOURCES if devices.get(name)), None),
        idle_w=idle_w,
        max_w=max_w,
    )


def pod_record(pod: PodWithContainers) -> PodRecord:
    """A pod as the API server tells it."""
    facts, ran = pod_facts(pod), keep_pod(pod)
    scheduled = (one for one in pod.status.conditions if one.type == "PodScheduled" and one.status == "True")
    drawn = Drawn.read(pod.metadata.annotations.get(names.TRIAL, ""))
    return PodRecord(
        facts.uid,
        facts.namespace,
        facts.name,
        owner_kind=facts.owner.kind,
        owner_name=facts.owner.name,
        workload_class=None if facts.workload_class is None else facts.workload_class.value,
        cpu_cores=facts.requests.cpu_cores,
        memory_gib=facts.requests.memory_gib,
        gpus=facts.requests.gpus,
        gpu_vendor=facts.requests.gpu_vendor,
        gates=",".join(gate.name for gate in pod.spec.scheduling_gates),
        arrived_s=time_or_none(pod.metadata.creation_timestamp),
        scheduled_s=next((time_or_none(one.last_transition_time) for one in scheduled), None),
        started_s=None if ran is None else ran.started_s,
        ended_s=None if ran is None else ran.ended_s,
        node=facts.node_name or None,
        exit=_ENDS.get(pod.status.phase),
        progress_metric=facts.progress_metric or None,
        **({} if drawn is None else drawn.recorded),
    )


def summarise(files: RecordingFiles) -> dict[str, Any]:
    """What a recording holds and lacks, in plain JSON types."""
    nodes, head = files.nodes(), files.head
    pods = files.pods()
    samples = sum(len(part) for part in files.parts("power"))
    steps = len(head.period.hours) * round(3600.0 / head.step_s)
    missing = sorted({_shown(hour) for table in _HOURLY for hour in files.missing_hours(table)})
    return {
        "folder": str(files.folder),
        "from_s": head.period.from_s,
        "until_s": head.period.until_s,
        "anonymised": head.anonymised,
        "nodes": len(nodes),
        "nodes_without_hardware": sum(one.idle_w is None for one in nodes),
        "pods": len(pods),
        "pods_without_class": sum(one.workload_class is None for one in pods),
        "pods_without_requests": sum(one.cpu_cores is None for one in pods),
        "power_samples": samples,
        "power_coverage": samples / (steps * len(nodes)) if nodes else 0.0,
        "use_samples": sum(len(part) for part in files.parts("use")),
        "progress_samples": sum(len(part) for part in files.parts("progress")),
        "energy_rows": sum(len(part) for part in files.parts("energy")),
        "signal_rows": sum(len(part) for part in files.parts("signals")),
        "missing_hours": missing,
    }


def _show(summary: dict[str, Any], output: str) -> None:
    if output != "table":
        print_document(summary, output)
        return
    missing = summary["missing_hours"]
    coverage = f"{summary['power_coverage']:.1%} of the nodes' time has a measured power"
    click.echo(f"{summary['folder']}: {summary['pods']:,} pods on {summary['nodes']:,} nodes; {coverage}")
    rows = [(key.replace("_", " "), f"{value:,}") for key, value in summary.items() if type(value) is int]
    print_table("", ("", "COUNT"), rows)
    if missing:
        click.echo(f"{len(missing)} hours are missing, the first is {missing[0]}; the same command adds them")


def _use(cores: _Courses, gpu_pct: _Courses) -> Iterator[Row]:
    """Rows of pods with any measured use; the part that was not measured is None."""
    for pod in sorted(cores.keys() | gpu_pct.keys()):
        busy, percent = cores.get(pod, {}), gpu_pct.get(pod, {})
        for time_s in sorted(busy.keys() | percent.keys()):
            yield {
                "time_s": time_s,
                "namespace": pod[0],
                "pod": pod[1],
                "cpu_cores": busy.get(time_s),
                "gpu_pct": percent.get(time_s),
            }


def _energy(row: ExportRow) -> Row:
    pod, energy = row.pod, row.energy
    return {
        "uid": pod.uid,
        "namespace": pod.namespace,
        "pod": pod.name,
        "node": pod.node,
        "zone": pod.zone,
        "from_s": row.from_s,
        "until_s": row.until_s,
        **{name: getattr(energy, name) for name in ("cpu_j", "mem_j", "gpu_j", "energy_j", "measured_j")},
    }


def _signals(rows: Sequence[ExportRow]) -> Iterator[Row]:
    """Mean carbon intensity and price of each zone, by the energy that was booked on them; None where unknown."""
    for zone in sorted({row.pod.zone for row in rows}):
        own = [row for row in rows if row.pod.zone == zone]
        known = [
            (sum(row.energy.emissions_g for row in own), "energy_without_intensity_j"),
            (sum(row.energy.cost for row in own), "energy_without_price_j"),
        ]
        total_j = sum(row.energy.energy_j for row in own)
        values = []
        for amount_, without in known:
            with_j = total_j - sum(getattr(row.energy, without) for row in own)
            values.append(amount_ / with_j * JOULES_PER_KWH if with_j > 1e-9 * total_j else None)
        yield {
            "zone": zone,
            "from_s": min(row.from_s for row in own),
            "until_s": max(row.until_s for row in own),
            "intensity_g_per_kwh": values[0],
            "price_per_kwh": values[1],
        }


def _key(folder: Path) -> bytes:
    """The key of a recording's pseudonyms, made at its first run; beside the folder, never in it."""
    path = folder.with_name(folder.name + ".key")
    try:
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(secrets.token_hex(32), encoding="ascii")
        return bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: the key of the pseudonyms cannot be used: {error}") from error


def _shown(hour: Period) -> str:
    return time.strftime("%Y-%m-%dT%HZ", time.gmtime(hour.from_s))
