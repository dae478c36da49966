"""Power telemetry owned by the current leader: sources read in the background, and what decisions take from them.

Decisions never wait for a source. Each is read at the pace of the poll and keeps its last samples; a step takes what is
there and judges its age.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.apps.operator.metrics import OperatorMetrics
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.power.catalogue import REQUESTS, SOURCES, STATIC, estimates
from joulie.apps.operator.power.columns import Candidate, Column, SourceColumns, candidates
from joulie.apps.operator.power.estimates import Estimator
from joulie.apps.operator.power.facility import FacilityFeed
from joulie.apps.operator.power.feed import PowerFeed
from joulie.apps.operator.power.pods import Meters, NodesPower, Work, running_pods, shared
from joulie.apps.operator.power.profiled import Allowed, allowed, node_ambient_k
from joulie.apps.operator.power.report import PowerReport
from joulie.apps.operator.power.sources import NodePowerSource, gpus_of
from joulie.apps.operator.power.usage import UsageFeed
from joulie.apps.operator.power.wiring import Clients, wire
from joulie.apps.operator.settings import OperatorSettings
from joulie.apps.operator.telemetry import TelemetryProfiles
from joulie.domain.control import ControlledNode, Decision, Facility
from joulie.domain.control_power import SourceReadings, choose_power
from joulie.domain.hardware import Catalogue
from joulie.domain.units import BoolArray, FloatArray
from joulie.program.sources import SourceStates

FIRST_READING_S = 5.0
"""How long the first step waits for measurements; later ones wait for nothing."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Measured:
    """What sources said of nodes.

    Attributes:
        nodes: which.
        cpu: masks of the readings of their CPUs.
        gpu: masks of the readings of their GPUs.
        columns: readings by name of the source, masked.
    """

    nodes: tuple[ControlledNode, ...]
    cpu: Allowed
    gpu: Allowed
    columns: Mapping[str, SourceColumns]


class ClusterPower:
    """Power of nodes and pods, and measurements of the building.

    Args:
        settings: of the program.
        catalogue: known hardware.
        clients: to measure with.
        view: of the cluster.
        profiles: TelemetryProfiles.
        metrics: to count in.
        now_s: s since the epoch.
    """

    def __init__(
        self,
        settings: OperatorSettings,
        catalogue: Catalogue,
        clients: Clients,
        view: ClusterView,
        profiles: TelemetryProfiles,
        metrics: OperatorMetrics,
        *,
        now_s: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._catalogue = catalogue
        self._view = view
        self._profiles = profiles
        self._reports = metrics.power.reports
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
            rejected=metrics.power.rejected,
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
        metrics.power.show(self._states, self.facility)

    # ---- in the background

    async def run(self) -> None:
        """Read all sources again and again, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(_for_ever(self._settings.power_poll_interval_s, self.poll))
            if self._facility is not None:
                group.create_task(_for_ever(self._settings.facility_poll_interval_s, self._read_facility))

    async def watch(self) -> None:
        """Follow the agents' pods, until cancelled."""
        if self._sources.agents is not None:
            await self._sources.agents.run()

    async def first_reading(self) -> None:
        """Give measurements a moment, so that the first step need not call every node unmeasured."""
        try:
            async with asyncio.timeout(FIRST_READING_S):
                if self._sources.agents is not None:
                    await self._sources.agents.wait_synced()
                await self._profiles.wait_synced()
                await self.poll()
        except TimeoutError:
            _log.info("measurements are slow, the first step goes on without them")

    async def poll(self) -> None:
        """Read all sources once, and share the power of nodes among their pods."""
        nodes = self._view.nodes
        self._index = NodeIndex.of({name: facts.aliases for name, facts in self._view.node_facts})
        await self._profiles.match()
        await self._feed.read(nodes)
        await self._share(nodes)

    async def _read_facility(self) -> None:
        if self._facility is not None:
            await self._facility.read(self._view.nodes)

    # ---- what decisions take

    def readings(self, nodes: tuple[ControlledNode, ...]) -> list[SourceReadings]:
        """What is known of the power of these nodes, best first; an estimate never goes before a measurement."""
        return [candidate.readings for candidate in self._candidates(self._measured(nodes))]

    def pod_power_w(self) -> Mapping[str, float]:
        """Measured power of pods by UID, W; empty where nothing was measured lately."""
        measured_s = self._meters.time_s
        if measured_s is None or self._now_s() - measured_s > self._settings.power_stale_s:
            return {}
        return self._meters.known_pods_w()

    def facility(self) -> Facility:
        """What is fresh of the building, and of the air at nodes whose TelemetryProfile has it measured."""
        facility = Facility() if self._facility is None else self._facility.facility()
        oldest_s = self._now_s() - self._settings.power_stale_s
        ambient_k = {
            node: temperature_k
            for source in self._sources.profiled
            for node, temperature_k in node_ambient_k(source.ambient, oldest_s).items()
        }
        return replace(facility, node_ambient_k=ambient_k)

    def decided(self, decision: Decision) -> None:
        """Estimates are made under the caps of this decision from now on."""
        self._caps = {node.node.name: (node.caps.cpu_percent, node.caps.gpu_percent) for node in decision.nodes}

    @property
    def failed_by_profile(self) -> Mapping[str, str]:
        """Nodes whose TelemetryProfile's sources could not be read, and why."""
        http, prometheus = self._sources.profiled
        return {**prometheus.failed, **http.failed}

    # ---- composition

    def _measured(self, nodes: tuple[ControlledNode, ...]) -> _Measured:
        """What sources said of these nodes, as far as the nodes' TelemetryProfiles let them."""
        cpu, gpu = allowed(nodes, self._profiles.routes)
        columns = {source.name: self._columns(source.name, nodes, cpu, gpu) for source in self._feed.sources}
        return _Measured(nodes, cpu, gpu, columns)

    def _candidates(self, measured: _Measured) -> list[Candidate]:
        """All ways to know the power of nodes, best first."""
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
        """A source's readings, masked by TelemetryProfiles. Of nodes that it lost, only very recent ones count."""
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
        # Within one step of its last word, the next source takes over.
        oldest_s = self._now_s() - min(self._settings.power_stale_s, self._settings.reconcile_interval_s)
        return columns.mapped(lambda column: column.without_stale(oldest_s, down))

    def _estimator(self, nodes: Sequence[ControlledNode]) -> Estimator:
        caps = np.array([self._caps.get(node.name, (100.0, 100.0)) for node in nodes]).reshape(-1, 2)
        return Estimator(self._catalogue, nodes, self._cpus(nodes), caps[:, 0], caps[:, 1])

    def _cpus(self, nodes: Sequence[ControlledNode]) -> FloatArray:
        """Logical CPUs of nodes, as Kubernetes counts; agents report physical cores."""
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
        """Power of pods, from the power that nodes are judged by."""
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
        """Nodes whose CPU power no sensor measures."""
        known = np.zeros(len(measured.nodes), dtype=np.bool_)
        oldest_s = self._now_s() - self._settings.power_stale_s
        for source in (*self._sources.power, *self._sources.profiled):
            columns = measured.columns[source.name]
            known |= (columns.cpu.time_s >= oldest_s) | (columns.whole.time_s >= oldest_s)
        return {node.name for node, is_known in zip(measured.nodes, known.tolist(), strict=True) if not is_known}

    def _power_of(self, nodes: tuple[ControlledNode, ...], found: Sequence[Candidate]) -> NodesPower:
        """The power that each node is judged by, with its parts."""
        choice = choose_power([one.readings for one in found], len(nodes), self._now_s(), self._settings.power_stale_s)

        def chosen(values: Sequence[FloatArray]) -> FloatArray:
            """Of each node what its candidate says; NaN without one."""
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
        """Idle power of CPUs and GPUs; it hangs on hardware alone, so it is worked out once for the same nodes."""
        if self._idle is None or self._idle[0] is not nodes:
            self._idle = nodes, self._estimator(nodes).idle_w()
        return self._idle[1]


async def _for_ever(interval_s: float, read: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await read()
        except Exception:
            _log.exception("reading failed")
        await asyncio.sleep(interval_s)
