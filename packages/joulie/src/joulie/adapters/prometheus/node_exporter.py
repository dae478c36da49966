"""Power and CPU usage of nodes from node_exporter. Source: node_exporter, collectors rapl, cpu and cpufreq."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from joulie.adapters.prometheus.answers import History, Series
from joulie.adapters.prometheus.client import Prometheus
from joulie.adapters.prometheus.node_sums import NodeSums
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.adapters.prometheus.readings import NodePower
from joulie.adapters.prometheus.zones import Zone, add_zones

_SELECTOR = '{__name__=~"node_rapl_package(_[0-9]+_die_[0-9]+)?_joules_total|node_rapl_dram_joules_total"}'
"""A package with several dies has a zone, and so a metric, per die."""


_MAX_HZ = 1e11
_MAX_CORES = 1e5


@dataclass(frozen=True)
class NodeCpus:
    """CPU usage and frequency by node; nodes without a value have no entry.

    Attributes:
        busy_cores: number of busy cores of a node, by pods and all other processes.
        frequency_hz: frequency of a node's fastest CPU, Hz: idle ones are slow, and do no work.
    """

    busy_cores: Mapping[str, float]
    frequency_hz: Mapping[str, float]


class NodeExporter:
    """Power and CPU usage of nodes as measured by node_exporter.

    Args:
        prometheus: client of the server that scrapes it.
        window_s: window over which power is averaged, at least two scrapes long, s.
    """

    def __init__(self, prometheus: Prometheus, window_s: float) -> None:
        self._prometheus = prometheus
        self._window_s = window_s

    async def nodes(self, index: NodeIndex) -> NodePower:
        """CPU and memory power of nodes; node_exporter does not measure GPUs.

        Raises:
            PrometheusError: see `Prometheus.query_samples`.
        """
        histories = await self._prometheus.query_samples(f"{_SELECTOR}[{self._window_s:.0f}s]")
        return await asyncio.to_thread(_node_power, histories, index)

    async def cpus(self, index: NodeIndex) -> NodeCpus:
        """Busy cores and CPU frequency of nodes.

        Raises:
            PrometheusError: see `Prometheus.query`.
        """
        rate = f'rate(node_cpu_seconds_total{{mode!~"idle|iowait|steal"}}[{self._window_s:.0f}s])'
        busy, fastest = await asyncio.gather(
            self._prometheus.query(f"sum without (cpu, mode) ({rate})"),
            self._prometheus.query("max without (cpu) (node_cpu_scaling_frequency_hertz)"),
        )
        return NodeCpus(_by_node(busy, index, _MAX_CORES), _by_node(fastest, index, _MAX_HZ))


def _by_node(series: Sequence[Series], index: NodeIndex, maximum: float) -> dict[str, float]:
    """Value by node; the maximum for nodes scraped by several jobs."""
    found: dict[str, float] = {}
    for one in series:
        node = index.node_of(one.labels)
        if node is not None and 0.0 <= one.value <= maximum:
            found[node] = max(one.value, found.get(node, 0.0))
    return found


def _node_power(histories: Sequence[History], index: NodeIndex) -> NodePower:
    sums = NodeSums()
    add_zones(sums, index, map(_zone, histories))
    return NodePower(cpu=sums.sums("cpu"), cpu_count=sums.counts("cpu"), dram=sums.sums("dram"), rejected=sums.rejected)


def _zone(history: History) -> Zone:
    part = "dram" if history.name == "node_rapl_dram_joules_total" else "cpu"
    return Zone(part, f"{history.name}/{history.labels.get('index', '')}", history.labels.get("path", ""), history)
