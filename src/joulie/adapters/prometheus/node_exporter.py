"""RAPL counters of node_exporter: CPU packages and memory. Source: node_exporter, collector rapl."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from joulie.adapters.prometheus.answers import History
from joulie.adapters.prometheus.client import Prometheus
from joulie.adapters.prometheus.node_sums import NodeSums
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.adapters.prometheus.readings import NodePower
from joulie.adapters.prometheus.zones import Zone, add_zones

_SELECTOR = '{__name__=~"node_rapl_package(_[0-9]+_die_[0-9]+)?_joules_total|node_rapl_dram_joules_total"}'
"""Packages of several dies have a zone, and so a metric, for each die."""


class NodeExporter:
    """Power of nodes by the collector ``rapl`` of node_exporter.

    Args:
        prometheus: to ask.
        window_s: time over which power is averaged, s; at least two scrapes long.
    """

    def __init__(self, prometheus: Prometheus, window_s: float) -> None:
        self._prometheus = prometheus
        self._window_s = window_s

    async def nodes(self, index: NodeIndex) -> NodePower:
        """CPU and memory power; node_exporter knows no GPUs.

        Raises:
            PrometheusError: see `Prometheus.query_samples`.
        """
        histories = await self._prometheus.query_samples(f"{_SELECTOR}[{self._window_s:.0f}s]")
        return await asyncio.to_thread(_node_power, histories, index)


def _node_power(histories: Sequence[History], index: NodeIndex) -> NodePower:
    sums = NodeSums()
    add_zones(sums, index, map(_zone, histories))
    return NodePower(cpu=sums.sums("cpu"), cpu_count=sums.counts("cpu"), dram=sums.sums("dram"), rejected=sums.rejected)


def _zone(history: History) -> Zone:
    part = "dram" if history.name == "node_rapl_dram_joules_total" else "cpu"
    return Zone(part, f"{history.name}/{history.labels.get('index', '')}", history.labels.get("path", ""), history)
