"""Readings of the power and resource use of pods, taken from all sources in every cycle, most trusted first.

If a source fails, the next one is used in the same cycle, and samples record their source. No reading is kept between
cycles, since a sample describes its own time only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.metrics_server import MetricsServer
from joulie.adapters.prometheus import Prometheus
from joulie.adapters.prometheus.agents import scraped_agents
from joulie.adapters.prometheus.cadvisor import Cadvisor
from joulie.adapters.prometheus.dcgm import Dcgm
from joulie.adapters.prometheus.kepler import Kepler
from joulie.adapters.prometheus.node_exporter import NodeCpus, NodeExporter
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.adapters.prometheus.platform import Platform
from joulie.adapters.prometheus.readings import NodePower, PodPower
from joulie.domain.gpu_holders import GpuDevice
from joulie.domain.usage import PodKey, PodUsage
from joulie.program.sources import SourceStates

KEPLER = "kepler"
AGENTS = "agents"
PLATFORM = "platform"
DCGM = "dcgm"
CADVISOR = "cadvisor"
METRICS_SERVER = "metrics-server"
NODE_EXPORTER = "node-exporter"
SUFFICIENT_SHARE = 0.9
"""Share of measured pods from which the Metrics Server is not queried: some pods are too young to be measured."""

_NO_CPUS = NodeCpus({}, {})

T = TypeVar("T")


@dataclass(frozen=True)
class Readings:
    """Measurements of all sources at one time. Unmeasured pods and nodes have no entry.

    Attributes:
        power: dynamic power of pods by Kepler, without idle power.
        idle_w: idle power of the CPUs of nodes by Kepler, W.
        usage: CPU and memory use of pods by source, most trusted first.
        gpus: all GPUs known to DCGM, with the pods that hold them.
        cpus: CPU use and frequency of nodes by node_exporter.
        cpu_w: power of the CPU packages of nodes by Joulie's agents, W.
        gpu_w: power of all GPUs of nodes by Joulie's agents, W, and number of GPUs.
        whole_w: power of whole servers by their own meters, W.
    """

    power: Mapping[PodKey, PodPower] = field(default_factory=dict)
    idle_w: Mapping[str, float] = field(default_factory=dict)
    usage: Mapping[str, PodUsage] = field(default_factory=dict)
    gpus: Sequence[GpuDevice] = ()
    cpus: NodeCpus = _NO_CPUS
    cpu_w: Mapping[str, float] = field(default_factory=dict)
    gpu_w: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    whole_w: Mapping[str, float] = field(default_factory=dict)


class UsageReader:
    """Reads the power and resource use of pods from all sources.

    Args:
        client: Kubernetes client, for the Metrics Server.
        prometheus: client of the Prometheus that scrapes Kepler, agents, cAdvisor, DCGM and node_exporter, or None.
        window_s: averaging window of rates, s, at least two scrape intervals. Older samples of agents are ignored.
        timeout_s: timeout per source, s.
        now_s: current time, s since the epoch.

    Attributes:
        states: result of the last reading of each source.
    """

    def __init__(
        self,
        client: KubeClient,
        prometheus: Prometheus | None,
        *,
        window_s: float,
        timeout_s: float,
        now_s: Callable[[], float],
    ) -> None:
        self.states = SourceStates()
        self._prometheus = prometheus
        self._metrics_server = MetricsServer(client, now_s)
        self._window_s = window_s
        self._timeout_s = timeout_s
        self._now_s = now_s

    async def read(self, pods: set[PodKey], index: NodeIndex) -> Readings:
        """Read all exporters in Prometheus at once, and the Metrics Server if too many pods remain unmeasured.

        CPU and memory use are read even if power is measured: metrics show them, and they are needed for pods whose
        power is not measured.

        Args:
            pods: running pods.
            index: nodes by the names that exporters may use.
        """
        readings = Readings() if self._prometheus is None else await self._exporters(self._prometheus, index)
        known = {pod for use in readings.usage.values() for pod in use.cpu_cores}
        if len(pods - known) > (1.0 - SUFFICIENT_SHARE) * len(pods):
            use = await self._ask(METRICS_SERVER, self._metrics_server.pods)
            if use is not None:
                return replace(readings, usage={**readings.usage, METRICS_SERVER: use})
        return readings

    async def _exporters(self, prometheus: Prometheus, index: NodeIndex) -> Readings:
        kepler, window_s = Kepler(prometheus, self._window_s), self._window_s
        work, gpus, use, cpus, nodes, servers = await asyncio.gather(
            self._ask(KEPLER, lambda: asyncio.gather(kepler.pods(), kepler.nodes(index))),
            self._ask(DCGM, partial(Dcgm(prometheus, window_s).devices, index)),
            self._ask(CADVISOR, partial(Cadvisor(prometheus).pods, window_s)),
            self._ask(NODE_EXPORTER, partial(NodeExporter(prometheus, window_s).cpus, index)),
            self._ask(AGENTS, partial(scraped_agents, prometheus, index, window_s)),
            self._ask(PLATFORM, partial(Platform(prometheus, window_s).nodes, index)),
        )
        power, by_kepler = work or ({}, NodePower())
        by_agents = nodes or NodePower()
        oldest_s = self._now_s() - window_s
        return Readings(
            power,
            _idle_w(by_kepler),
            {} if use is None else {CADVISOR: use},
            gpus or (),
            cpus or _NO_CPUS,
            {node: one.value for node, one in by_agents.cpu.items() if one.time_s >= oldest_s},
            {
                node: (one.value, by_agents.gpu_count[node])
                for node, one in by_agents.gpu.items()
                if one.time_s >= oldest_s
            },
            {node: one.value for node, one in (servers or NodePower()).whole.items() if one.time_s >= oldest_s},
        )

    async def _ask(self, source: str, read: Callable[[], Awaitable[T]]) -> T | None:
        # Called by the task that awaits it: one that is cancelled before its first step would leave it unawaited.
        return await self.states.ask(source, read(), self._timeout_s)


def _idle_w(nodes: NodePower) -> dict[str, float]:
    """Idle power of the CPUs of nodes by Kepler: total minus dynamic power, W."""
    work = {node: reading.value for node, reading in nodes.cpu_dynamic.items()}
    return {node: max(0.0, reading.value - work[node]) for node, reading in nodes.cpu.items() if node in work}
