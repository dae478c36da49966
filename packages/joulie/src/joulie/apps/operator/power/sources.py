"""Who knows the power of nodes. Each source is asked for all nodes at once, and says how old its samples are."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import httpx2

from joulie.adapters.control_http import HostTelemetry, HttpControl, HttpControlError
from joulie.adapters.prometheus import Prometheus, PrometheusError, scrape
from joulie.adapters.prometheus.dcgm import Dcgm
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.adapters.prometheus.readings import GpuDevice, NodePower
from joulie.domain.control import ControlledNode
from joulie.domain.signal import Reading

CONCURRENCY = 32
"""Requests to agents, or to endpoints of nodes, at once."""
_CPU_METRIC = "joulie_rapl_package_total_power_watts"
_GPU_METRIC = "joulie_gpu_power_watts"
_CYCLE_METRIC = "joulie_agent_last_cycle_timestamp_seconds"
_AGENT_METRICS = (_CPU_METRIC, _GPU_METRIC, _CYCLE_METRIC)
_NODE_LABEL = "node"

T = TypeVar("T")

_log = logging.getLogger(__name__)


class SourceError(RuntimeError):
    """A source that could not be read at all; the message says why."""


@dataclass(frozen=True)
class Parts:
    """What a source knows, by node. A node that it knows in part only (one of two GPUs) has no entry for that part.

    Attributes:
        cpu: power of all CPU packages, W.
        gpu: power of all GPUs, W.
        whole: power of the node, where the source cannot tell the two apart, W.
    """

    cpu: Mapping[str, Reading] = field(default_factory=dict)
    gpu: Mapping[str, Reading] = field(default_factory=dict)
    whole: Mapping[str, Reading] = field(default_factory=dict)


class NodePowerSource(Protocol):
    """Something that knows the power of nodes."""

    name: str
    """As POWER_SOURCES has it."""

    async def read(self, nodes: Sequence[ControlledNode]) -> Parts:
        """Power of those nodes that it knows.

        Raises:
            SourceError: it knows nothing of any node, for a reason.
        """
        ...


@dataclass(frozen=True)
class AgentEndpoint:
    """Where an agent publishes its metrics.

    Attributes:
        url: of /metrics.
        node: that the agent's pod runs on; None where that is not known.
    """

    url: str
    node: str | None = None


class AgentSource:
    """RAPL and NVML as the agents publish them: by Prometheus where it scrapes them, else from their /metrics.

    A sample is as old as the cycle that it was measured in: an agent that hangs, yet answers, tells of ever older ones.
    Agents that do not publish when that was are taken to have measured when they were asked.

    Args:
        client: to scrape with.
        endpoints: of the agents now.
        now_s: s since the epoch.
        prometheus: to ask first; None where there is none.
        index: nodes as Prometheus may call them.
        window_s: how far back samples of Prometheus are looked for, s.
    """

    name = "agents"

    def __init__(
        self,
        client: httpx2.AsyncClient,
        endpoints: Callable[[], Iterable[AgentEndpoint]],
        now_s: Callable[[], float],
        *,
        prometheus: Prometheus | None = None,
        index: Callable[[], NodeIndex] = lambda: NodeIndex((), {}),
        window_s: float = 120.0,
    ) -> None:
        self._client = client
        self._endpoints = endpoints
        self._now_s = now_s
        self._prometheus = prometheus
        self._index = index
        self._window_s = window_s

    async def read(self, nodes: Sequence[ControlledNode]) -> Parts:
        """See `NodePowerSource.read`. Only agents of nodes that Prometheus says nothing of are scraped."""
        told = await self._from_prometheus()
        found = told.nodes()
        unheard = {node.name for node in nodes} - found
        urls = {one.url for one in self._endpoints() if (one.node not in found if one.node else unheard)}
        await self._scrape(sorted(urls), told)
        return told.parts(nodes)

    async def _from_prometheus(self) -> _Told:
        told = _Told()
        if self._prometheus is None or self._prometheus.problem is not None:
            return told
        query = f'{{__name__=~"{"|".join(_AGENT_METRICS)}"}}[{self._window_s:.0f}s]'
        try:
            histories = await self._prometheus.query_samples(query)
        except PrometheusError as error:
            _log.info("agents are scraped instead", extra={"error": str(error)})
            return told
        index = self._index()
        for history in histories:
            node = index.node_of(history.labels)
            if node is not None and history.samples:
                told.add(history.name, node, history.labels.get("gpu", ""), history.samples[-1])
        return told

    async def _scrape(self, urls: Sequence[str], told: _Told) -> None:
        failures: list[str] = []

        async def ask(url: str) -> None:
            try:
                series = await scrape(self._client, url, _AGENT_METRICS)
            except PrometheusError as error:
                failures.append(str(error))
                return
            read_at_s = self._now_s()
            for one in series:
                node = one.labels.get(_NODE_LABEL)
                if node is not None:
                    told.add(one.name, node, one.labels.get("gpu", ""), Reading(read_at_s, one.value))

        await bounded(ask, urls)
        if not failures:
            return
        if len(failures) == len(urls) and not told.nodes():
            raise SourceError(f"none of {len(urls)} agents answered: {failures[0]}")
        _log.warning("agents did not answer", extra={"agents": len(failures), "first": failures[0]})


class _Told:
    """What agents said, series by series; of one that came twice, the newer sample."""

    def __init__(self) -> None:
        self._cpu: dict[str, Reading] = {}
        self._gpus: dict[str, dict[str, Reading]] = defaultdict(dict)
        self._cycle_ended_s: dict[str, float] = {}

    def add(self, metric: str, node: str, gpu: str, reading: Reading) -> None:
        """One sample; negative ones are no measurement."""
        if reading.value < 0.0:
            return
        if metric == _CPU_METRIC:
            self._cpu[node] = max(self._cpu.get(node, reading), reading)
        elif metric == _GPU_METRIC:
            self._gpus[node][gpu] = max(self._gpus[node].get(gpu, reading), reading)
        else:
            self._cycle_ended_s[node] = max(self._cycle_ended_s.get(node, 0.0), reading.value)

    def nodes(self) -> set[str]:
        """Nodes of which anything was said."""
        return self._cpu.keys() | self._gpus.keys()

    def parts(self, nodes: Sequence[ControlledNode]) -> Parts:
        """Power of nodes; GPUs where all of the node's were told of."""
        cpu: dict[str, Reading] = {}
        gpu: dict[str, Reading] = {}
        for node in nodes:
            name = node.name
            if name in self._cpu:
                cpu[name] = self._measured(name, self._cpu[name])
            devices = self._gpus.get(name, {}).values()
            if devices and len(devices) == gpus_of(node):
                total = Reading(min(one.time_s for one in devices), sum(one.value for one in devices))
                gpu[name] = self._measured(name, total)
        return Parts(cpu, gpu)

    def _measured(self, node: str, reading: Reading) -> Reading:
        """The reading at the time that the agent measured it."""
        return reading._replace(time_s=self._cycle_ended_s.get(node, reading.time_s))


class QuerySource:
    """Power of whole nodes by a query of the administrator's own."""

    name = "prometheus"

    def __init__(self, prometheus: Prometheus, query: str) -> None:
        """Ask `query`, whose series carry the label node."""
        self._prometheus = prometheus
        self._query = query

    async def read(self, nodes: Sequence[ControlledNode]) -> Parts:
        """See `NodePowerSource.read`; several series of a node are summed."""
        try:
            series = await self._prometheus.query(self._query)
        except PrometheusError as error:
            raise SourceError(str(error)) from error
        known = {node.name for node in nodes}
        found: dict[str, Reading] = {}
        for one in series:
            node = one.labels.get(_NODE_LABEL)
            if node in known and one.time_s is not None and one.value >= 0.0:
                time_s, power_w = found.get(node, Reading(one.time_s, 0.0))
                found[node] = Reading(min(time_s, one.time_s), power_w + one.value)
        if series and not found:
            raise SourceError(f"{self._query!r}: no series has a label {_NODE_LABEL} that names a node in scope")
        return Parts(whole=found)


class ExporterSource:
    """Power of nodes as an exporter measures it and Prometheus keeps it.

    Args:
        name: as POWER_SOURCES has it.
        ask: the exporter.
        index: nodes as Prometheus may call them.
        rejected: told how many series were left out, by reason.
    """

    def __init__(
        self,
        name: str,
        ask: Callable[[NodeIndex], Awaitable[NodePower]],
        index: Callable[[], NodeIndex],
        rejected: Callable[[str, Mapping[str, int]], None] = lambda _source, _counts: None,
    ) -> None:
        self.name = name
        self._ask = ask
        self._index = index
        self._rejected = rejected
        self.dynamic_w: Mapping[str, float] = {}
        """The part of the CPU power that the exporter attributes to work, W, by node."""

    async def read(self, nodes: Sequence[ControlledNode]) -> Parts:
        """See `NodePowerSource.read`. A node counts only with all of its packages, or all of its GPUs."""
        try:
            power = await self._ask(self._index())
        except PrometheusError as error:
            raise SourceError(str(error)) from error
        self._rejected(self.name, {reason.value: count for reason, count in power.rejected.items()})
        self.dynamic_w = {node: reading.value for node, reading in power.cpu_dynamic.items()}
        sockets = {node.name: node.hardware.cpu.sockets for node in nodes}
        gpus = {node.name: gpus_of(node) for node in nodes}
        return Parts(
            cpu={
                node: reading
                for node, reading in power.cpu.items()
                if node in sockets and power.cpu_count.get(node, sockets[node]) >= sockets[node]
            },
            gpu={node: reading for node, reading in power.gpu.items() if power.gpu_count.get(node) == gpus.get(node)},
        )


class DcgmSource:
    """Power of GPUs by NVIDIA's exporter, which also says which pods hold them.

    Attributes:
        devices: as last read.
    """

    name = "dcgm"

    def __init__(self, dcgm: Dcgm, index: Callable[[], NodeIndex]) -> None:
        self._dcgm = dcgm
        self._index = index
        self.devices: tuple[GpuDevice, ...] = ()

    async def read(self, nodes: Sequence[ControlledNode]) -> Parts:
        """See `NodePowerSource.read`. A node counts only with all of its GPUs."""
        try:
            self.devices = tuple(await self._dcgm.devices(self._index()))
        except PrometheusError as error:
            self.devices = ()
            raise SourceError(str(error)) from error
        by_node: dict[str, dict[str, Reading | None]] = defaultdict(dict)
        for device in self.devices:
            by_node[device.node][device.uuid] = device.power_w
        gpu: dict[str, Reading] = {}
        for node in nodes:
            readings = [reading for reading in by_node.get(node.name, {}).values() if reading is not None]
            if readings and len(readings) == gpus_of(node):
                gpu[node.name] = Reading(min(one.time_s for one in readings), sum(one.value for one in readings))
        return Parts(gpu=gpu)


class HttpSource:
    """Telemetry over HTTP: the simulator's, or a management controller's gateway."""

    name = "http"

    def __init__(self, client: httpx2.AsyncClient, endpoint: str, now_s: Callable[[], float]) -> None:
        """Ask `endpoint`: of each node where it contains ``{node}``, else of all at once."""
        self._control = HttpControl(endpoint, None, client)
        self._by_node = "{node}" in endpoint
        self._now_s = now_s

    async def read(self, nodes: Sequence[ControlledNode]) -> Parts:
        """See `NodePowerSource.read`."""
        telemetry = await (self._each(nodes) if self._by_node else self._all())
        return telemetry_parts(telemetry, nodes, self._now_s())

    async def _all(self) -> Mapping[str, HostTelemetry]:
        try:
            return await self._control.all_telemetry()
        except HttpControlError as error:
            raise SourceError(str(error)) from error

    async def _each(self, nodes: Sequence[ControlledNode]) -> Mapping[str, HostTelemetry]:
        found: dict[str, HostTelemetry] = {}
        failures: list[str] = []

        async def ask(node: str) -> None:
            try:
                found[node] = await self._control.telemetry(node)
            except HttpControlError as error:
                failures.append(str(error))

        await bounded(ask, [node.name for node in nodes])
        if failures:
            _log.warning("telemetry of nodes failed", extra={"nodes": len(failures), "first": failures[0]})
        if nodes and not found:
            raise SourceError(failures[0])
        return found


def telemetry_parts(telemetry: Mapping[str, HostTelemetry], nodes: Sequence[ControlledNode], now_s: float) -> Parts:
    """Answers of telemetry endpoints, as of now; of a node without GPUs, what is said of them does not count."""
    cpu: dict[str, Reading] = {}
    gpu: dict[str, Reading] = {}
    for node in nodes:
        told = telemetry.get(node.name)
        if told is None:
            continue
        if told.package_power_w is not None:
            cpu[node.name] = Reading(now_s, told.package_power_w)
        if told.gpu_power_w is not None and gpus_of(node):
            gpu[node.name] = Reading(now_s, told.gpu_power_w)
    return Parts(cpu, gpu)


def gpus_of(node: ControlledNode) -> int:
    """How many GPUs a node has."""
    return 0 if node.hardware.gpu is None else node.hardware.gpu.count


async def bounded(ask: Callable[[T], Awaitable[None]], targets: Iterable[T]) -> None:
    """Ask all targets, at most `CONCURRENCY` at once."""
    queue = iter(targets)

    async def work() -> None:
        for target in queue:  # shared: each worker takes the next
            await ask(target)

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(work())
