"""Sources of the power and of the use of pods, read anew for every sample, most trusted first.

A source that fails costs one cycle nothing but its answer: the next one is taken at once, and samples say so. Nothing
is kept from cycle to cycle, for a sample is about its own moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from joulie.adapters.prometheus.readings import NodePower, PodPower
from joulie.domain.gpu_holders import GpuDevice
from joulie.domain.usage import PodKey, PodUsage
from joulie.program.sources import SourceStates

KEPLER = "kepler"
AGENTS = "agents"
DCGM = "dcgm"
CADVISOR = "cadvisor"
METRICS_SERVER = "metrics-server"
NODE_EXPORTER = "node-exporter"
ENOUGH = 0.9
"""Share of the pods from which the Metrics Server is not asked: some are too young to have been measured."""

_NO_CPUS = NodeCpus({}, {})

T = TypeVar("T")


@dataclass(frozen=True)
class Readings:
    """What sources measured at one moment. What none measured has no entry.

    Attributes:
        power: of the work of pods, by Kepler, without idle power.
        idle_w: of the CPUs of nodes, by Kepler, W.
        usage: of CPU and memory by source, best first.
        gpus: all GPUs that DCGM knows, with the pods that hold them.
        cpus: of nodes, by node_exporter.
        cpu_w: of the CPU packages of nodes, by Joulie's agents, W.
        gpu_w: of all GPUs of nodes, by Joulie's agents: W and number of GPUs.
    """

    power: Mapping[PodKey, PodPower] = field(default_factory=dict)
    idle_w: Mapping[str, float] = field(default_factory=dict)
    usage: Mapping[str, PodUsage] = field(default_factory=dict)
    gpus: Sequence[GpuDevice] = ()
    cpus: NodeCpus = _NO_CPUS
    cpu_w: Mapping[str, float] = field(default_factory=dict)
    gpu_w: Mapping[str, tuple[float, int]] = field(default_factory=dict)


class UsageReader:
    """Reads what pods draw and use.

    Args:
        client: to ask the Metrics Server with.
        prometheus: which scrapes Kepler, agents, cAdvisor, DCGM and node_exporter; None for none.
        window_s: time over which rates are averaged, s; at least two scrapes. What agents measured before counts as
            not measured.
        timeout_s: how long one source may take, s.
        now_s: s since the epoch.

    Attributes:
        states: how the last reading of each source went.
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
        """Ask all that Prometheus has at once, and the Metrics Server where that leaves too many pods out.

        Who measures power does not say how busy pods are, which is shown, and needed wherever power is not measured.

        Args:
            pods: that run.
            index: nodes as exporters may call them.
        """
        readings = Readings() if self._prometheus is None else await self._exporters(self._prometheus, index)
        known = {pod for use in readings.usage.values() for pod in use.cpu_cores}
        if len(pods - known) > (1.0 - ENOUGH) * len(pods):
            use = await self._ask(METRICS_SERVER, self._metrics_server.pods())
            if use is not None:
                return replace(readings, usage={**readings.usage, METRICS_SERVER: use})
        return readings

    async def _exporters(self, prometheus: Prometheus, index: NodeIndex) -> Readings:
        kepler, window_s = Kepler(prometheus, self._window_s), self._window_s
        work, gpus, use, cpus, nodes = await asyncio.gather(
            self._ask(KEPLER, asyncio.gather(kepler.pods(), kepler.nodes(index))),
            self._ask(DCGM, Dcgm(prometheus, window_s).devices(index)),
            self._ask(CADVISOR, Cadvisor(prometheus).pods(window_s)),
            self._ask(NODE_EXPORTER, NodeExporter(prometheus, window_s).cpus(index)),
            self._ask(AGENTS, scraped_agents(prometheus, index, window_s)),
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
        )

    async def _ask(self, source: str, asking: Awaitable[T]) -> T | None:
        return await self.states.ask(source, asking, self._timeout_s)


def _idle_w(nodes: NodePower) -> dict[str, float]:
    """What CPUs draw without the work of anybody, by Kepler, W."""
    work = {node: reading.value for node, reading in nodes.cpu_dynamic.items()}
    return {node: max(0.0, reading.value - work[node]) for node, reading in nodes.cpu.items() if node in work}
