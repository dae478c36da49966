"""Power telemetry owned by the current leader: polls all sources in the background and provides readings to decisions.

Decisions never wait for a source. Each source is polled at a fixed interval and keeps its last samples; a control cycle
takes the samples present and checks their age.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.power.columns import Candidate, Column, SourceColumns, candidates
from joulie.apps.operator.power.estimates import Estimator
from joulie.apps.operator.power.facility import FacilityFeed
from joulie.apps.operator.power.feed import PowerFeed
from joulie.apps.operator.power.metrics import PowerMetrics
from joulie.apps.operator.power.pods import Meters, NodesPower, Work, running_pods, shared
from joulie.apps.operator.power.profiled import Allowed, allowed, node_ambient_k
from joulie.apps.operator.power.report import PowerReport
from joulie.apps.operator.power.wiring import Clients, wire
from joulie.apps.operator.settings import OperatorSettings
from joulie.apps.operator.sources.catalogue import REQUESTS, SOURCES, STATIC, estimates
from joulie.apps.operator.sources.node_power import NodePowerSource, gpus_of
from joulie.apps.operator.sources.usage import UsageFeed
from joulie.apps.operator.telemetry import TelemetryProfiles
from joulie.domain.control import ControlledNode, Decision, Facility
from joulie.domain.control_power import SourceReadings, choose_power
from joulie.domain.hardware import Catalogue
from joulie.domain.units import BoolArray, FloatArray
from joulie.program.sources import SourceStates

FIRST_READING_S = 5.0
"""How long the first control cycle waits for measurements, s; later cycles never wait."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Measured:
    """Latest readings of nodes by source.

    Attributes:
        nodes: nodes, in the order of the arrays.
        cpu: which sources may be used for their CPUs.
        gpu: which sources may be used for their GPUs.
        columns: readings by source name, restricted to these nodes.
    """

    nodes: tuple[ControlledNode, ...]
    cpu: Allowed
    gpu: Allowed
    columns: Mapping[str, SourceColumns]


class ClusterPower:
    """Power of nodes and pods, and facility measurements.

    Args:
        settings: operator settings.
        catalogue: hardware catalogue.
        clients: Kubernetes, HTTP and Prometheus clients.
        view: cached view of the cluster.
        profiles: TelemetryProfiles.
        metrics: metrics of measured power.
        now_s: current time, s since the epoch.
    """

    def __init__(
        self,
        settings: OperatorSettings,
        catalogue: Catalogue,
        clients: Clients,
        view: ClusterView,
        profiles: TelemetryProfiles,
        metrics: PowerMetrics,
        *,
        now_s: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._catalogue = catalogue
        self._view = view
        self._profiles = profiles
        self._reports = metrics.reports
        self._now_s = now_s
        self._index = NodeIndex((), {})
        self._meters = Meters(now_s())
        self._idle: tuple[tuple[ControlledNode, ...], tuple[FloatArray, FloatArray]] | None = None
        self._caps: Mapping[str, tuple[float, float]] = {}
        self._states = SourceStates(lambda source: metrics.source_errors.labels(source).inc())
        self._sources = wire(
            settings,
            clients,
            index=lambda: self._index,
            routes=lambda: profiles.routes,
            rejected=metrics.rejected,
            now_s=now_s,
        )
        gpus: tuple[NodePowerSource, ...] = () if self._sources.dcgm is None else (self._sources.dcgm,)
        timeout_s = settings.power_poll_interval_s
        self._feed = PowerFeed((*self._sources.power, *gpus, *self._sources.profiled), self._states, timeout_s)
        self._usage = UsageFeed(self._sources.usage, self._states, timeout_s, now_s)
        self._facility = None
        if settings.facility_metrics:
            prometheus = clients.server(settings.facility_prometheus_address, settings)
            self._facility = FacilityFeed(prometheus, settings, now_s, self._states)
        metrics.show(self._states, self.facility)

    # ---- in the background

    async def run(self) -> None:
        """Poll all sources until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(_poll_forever(self._settings.power_poll_interval_s, self.poll))
            if self._facility is not None:
                group.create_task(_poll_forever(self._settings.facility_poll_interval_s, self._read_facility))

    async def watch(self) -> None:
        """Watch the agents' pods until cancelled."""
        if self._sources.agents is not None:
            await self._sources.agents.run()

    async def first_reading(self) -> None:
        """Wait a limited time for the first poll, so that the first cycle does not treat all nodes as unmeasured."""
        try:
            async with asyncio.timeout(FIRST_READING_S):
                if self._sources.agents is not None:
                    await self._sources.agents.wait_synced()
                await self._profiles.wait_synced()
                await self.poll()
        except TimeoutError:
            _log.info("the first poll timed out: the first cycle runs without measurements")

    async def poll(self) -> None:
        """Read all sources once, and attribute the power of nodes to their pods."""
        nodes = self._view.nodes
        self._index = NodeIndex.from_aliases({name: facts.aliases for name, facts in self._view.node_facts})
        await self._profiles.match()
        await self._feed.read(nodes)
        await self._share(nodes)

    async def _read_facility(self) -> None:
        if self._facility is not None:
            await self._facility.read(self._view.nodes)

    # ---- input of decisions

    def readings(self, nodes: tuple[ControlledNode, ...]) -> list[SourceReadings]:
        """Power readings of these nodes, most trusted first; estimates come after all measurements."""
        return [candidate.readings for candidate in self._candidates(self._measured(nodes))]

    def pod_power_w(self) -> Mapping[str, float]:
        """Measured power of pods by UID, W; empty without a recent poll."""
        measured_s = self._meters.time_s
        if measured_s is None or self._now_s() - measured_s > self._settings.power_stale_s:
            return {}
        return self._meters.known_pods_w()

    @property
    def index(self) -> NodeIndex:
        """Nodes by the labels of exporters."""
        return self._index

    def facility(self) -> Facility:
        """Fresh facility measurements, with the ambient temperature of nodes whose TelemetryProfile sources it."""
        facility = Facility() if self._facility is None else self._facility.facility()
        oldest_s = self._now_s() - self._settings.power_stale_s
        ambient_k = {
            node: temperature_k
            for source in self._sources.profiled
            for node, temperature_k in node_ambient_k(source.ambient, oldest_s).items()
        }
        return replace(facility, node_ambient_k=ambient_k)

    def decided(self, decision: Decision) -> None:
        """Use the caps of this decision for estimates from now on."""
        self._caps = {node.node.name: (node.caps.cpu_percent, node.caps.gpu_percent) for node in decision.nodes}

    @property
    def failed_by_profile(self) -> Mapping[str, str]:
        """Error message by node, for nodes whose TelemetryProfile's sources could not be read."""
        http, prometheus = self._sources.profiled
        return {**prometheus.failed, **http.failed}

    # ---- composition

    def _measured(self, nodes: tuple[ControlledNode, ...]) -> _Measured:
        """Latest readings of these nodes, restricted to the sources that their TelemetryProfiles allow."""
        cpu, gpu = allowed(nodes, self._profiles.routes)
        columns = {source.name: self._columns(source.name, nodes, cpu, gpu) for source in self._feed.sources}
        return _Measured(nodes, cpu, gpu, columns)

    def _candidates(self, measured: _Measured) -> list[Candidate]:
        """All combinations of sources for the power of nodes, most trusted first."""
        settings, now_s = self._settings, self._now_s()
        nodes, columns = measured.nodes, measured.columns
        has_gpus = np.array([gpus_of(node) > 0 for node in nodes], dtype=np.bool_)
        profiled = [columns[source.name] for source in self._sources.profiled]
        estimator = self._estimator(nodes)
        loads = self._view.ledger.loads
        estimated = {
            name: (
                estimator.cpu_by_requests(loads, now_s)
                if name == REQUESTS
                else estimator.cpu_by_use(self._usage.busy_cores(name))
            ).where(measured.cpu.by_model)
            for name in settings.sources
            if estimates(name)
        }
        found = candidates(
            [*profiled, *(columns[source.name] for source in self._sources.power)],
            [*profiled, *(columns[name] for name, row in SOURCES.items() if row.gpus and name in columns)],
            estimated,
            estimator.gpu_by_requests(loads, now_s).where(measured.gpu.by_model),
            has_gpus,
        )
        if settings.static_power_w > 0.0:
            found.append(self._static(has_gpus, measured.cpu.by_any & measured.gpu.by_any, now_s))
        return found

    def _columns(self, name: str, nodes: tuple[ControlledNode, ...], cpu: Allowed, gpu: Allowed) -> SourceColumns:
        """A source's readings, masked by TelemetryProfiles. After a failed read, only very recent readings count."""
        columns = self._feed.columns(name, nodes)
        profiled = next((source for source in self._sources.profiled if source.name == name), None)
        if profiled is not None:
            columns = columns.masked(cpu.by_profile, gpu.by_profile)
        elif SOURCES[name].host:
            columns = columns.masked(cpu.by_host, gpu.by_host)
        else:
            columns = columns.masked(cpu.by_any, gpu.by_any)
        failed = {} if profiled is None else profiled.failed
        if self._states.down(name):
            down = np.ones(len(nodes), dtype=np.bool_)
        elif failed:
            down = np.array([node.name in failed for node in nodes], dtype=np.bool_)
        else:
            return columns
        # After a failed read, the next source takes over within one control cycle.
        oldest_s = self._now_s() - min(self._settings.power_stale_s, self._settings.reconcile_interval_s)
        return columns.mapped(lambda column: column.without_stale(oldest_s, down))

    def _estimator(self, nodes: Sequence[ControlledNode]) -> Estimator:
        caps = np.array([self._caps.get(node.name, (100.0, 100.0)) for node in nodes]).reshape(-1, 2)
        return Estimator(self._catalogue, nodes, self._cpus(nodes), caps[:, 0], caps[:, 1])

    def _cpus(self, nodes: Sequence[ControlledNode]) -> FloatArray:
        """Logical CPUs of nodes, the unit of Kubernetes; agents report physical cores."""
        offered = (facts.offered if (facts := self._view.node(node.name)) else {} for node in nodes)
        return np.array(
            [one.get("cpu", node.hardware.cpu.cores) for node, one in zip(nodes, offered, strict=True)],
            dtype=np.float64,
        )

    def _static(self, has_gpus: BoolArray, wanted: BoolArray, now_s: float) -> Candidate:
        power_w = np.where(wanted, self._settings.static_power_w, np.nan)
        return Candidate.of_whole(STATIC, Column(np.full(len(wanted), now_s), power_w, power_w, power_w), has_gpus)

    # ---- pods

    async def _share(self, nodes: tuple[ControlledNode, ...]) -> None:
        """Attribute to pods the same node power that decisions use, and update energy and report."""
        settings = self._settings
        running = await running_pods(self._view.pods, nodes)
        pods = {(pod.namespace, pod.name) for pod in running.pods}
        await asyncio.sleep(0)
        measured = self._measured(nodes)
        await self._usage.read(self._unmeasured(measured), pods)
        await asyncio.sleep(0)
        found = self._candidates(measured)
        await asyncio.sleep(0)
        power = self._power_of(nodes, found)
        await asyncio.sleep(0)
        work = Work(
            self._usage.weights(self._now_s() - settings.power_stale_s),
            {source.name: self._usage.busy_cores(source.name) for source in self._sources.usage},
            {} if self._sources.kepler is None else self._sources.kepler.dynamic_w,
            () if self._sources.dcgm is None else self._sources.dcgm.devices,
        )
        shares = await shared(power, running, work)
        self._meters = await self._meters.extended(shares, self._now_s(), settings.power_stale_s)
        self._reports.latest = PowerReport(shares, self._meters, settings.power_stale_s)

    def _unmeasured(self, measured: _Measured) -> set[str]:
        """Nodes without a fresh measurement of CPU or total power."""
        known = np.zeros(len(measured.nodes), dtype=np.bool_)
        oldest_s = self._now_s() - self._settings.power_stale_s
        for source in (*self._sources.power, *self._sources.profiled):
            columns = measured.columns[source.name]
            known |= (columns.cpu.time_s >= oldest_s) | (columns.whole.time_s >= oldest_s)
        return {node.name for node, is_known in zip(measured.nodes, known.tolist(), strict=True) if not is_known}

    def _power_of(self, nodes: tuple[ControlledNode, ...], found: Sequence[Candidate]) -> NodesPower:
        """The power of each node that decisions use, with its parts."""
        choice = choose_power([one.readings for one in found], len(nodes), self._now_s(), self._settings.power_stale_s)

        def chosen(values: Sequence[FloatArray]) -> FloatArray:
            """The value of each node's chosen candidate; NaN without one."""
            table = np.vstack([*values, np.full(len(nodes), np.nan)])
            return np.asarray(table[choice.source, np.arange(len(nodes))])

        sources = [*choice.sources, None]
        return NodesPower(
            nodes,
            tuple(sources[index] for index in choice.source.tolist()),
            chosen([one.total.time_s for one in found]),
            chosen([one.cpu.power_w for one in found]),
            chosen([one.gpu.power_w for one in found]),
            chosen([one.total.power_w for one in found]),
            chosen([one.total.low_w for one in found]),
            chosen([one.total.high_w for one in found]),
            *self._idle_w(nodes),
            self._cpus(nodes),
        )

    def _idle_w(self, nodes: tuple[ControlledNode, ...]) -> tuple[FloatArray, FloatArray]:
        """Idle power of CPUs and GPUs, W, cached: it depends only on the hardware of the nodes."""
        if self._idle is None or self._idle[0] is not nodes:
            self._idle = nodes, self._estimator(nodes).idle_w()
        return self._idle[1]


async def _poll_forever(interval_s: float, read: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await read()
        except Exception:
            _log.exception("polling failed")
        await asyncio.sleep(interval_s)
