"""Power of whole servers as their management controllers measure it, fans, memory and power supplies included.

Kepler from 0.11 on exports `kepler_platform_watts` by the entries of Redfish's PowerControl: the server, and in some
servers parts of it. They overlap, so that the largest one is the server's. Virtual machines and blades may report the
meter of a host that they share; such a meter says nothing about one of its nodes.

OpenTelemetry's hardware conventions name the same `hw.host.energy` (preferred) and `hw.host.power`, which Prometheus
stores as `hw_host_energy_joules_total` and `hw_host_power_watts`.
Sources: Kepler, EP-001 Redfish power monitoring; OpenTelemetry, semantic conventions for physical host metrics.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from joulie.adapters.prometheus.answers import History
from joulie.adapters.prometheus.client import Prometheus
from joulie.adapters.prometheus.node_sums import latest_of, rate_of
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.adapters.prometheus.readings import NodePower, Rejection
from joulie.domain.signal import Reading

_KEPLER_WATTS = "kepler_platform_watts"
_HOST_WATTS = "hw_host_power_watts"
_HOST_JOULES = "hw_host_energy_joules_total"
_SELECTOR = f'{{__name__=~"{_KEPLER_WATTS}|{_HOST_WATTS}|{_HOST_JOULES}"}}'
_PART = re.compile(r"cpu|processor|memory|dimm|gpu|fan|storage|disk|sub-?system", re.IGNORECASE)
"""Names of Redfish's PowerControl entries that are a part of the server."""
MAX_SERVER_W = 50_000.0
"""Plausible maximum power of a server, W; larger readings are left out."""


class Platform:
    """Power of whole nodes as measured by their servers.

    Args:
        prometheus: client of the server that scrapes Kepler or an OpenTelemetry collector.
        window_s: window over which energy counters are averaged, at least two scrapes long, s.
    """

    def __init__(self, prometheus: Prometheus, window_s: float) -> None:
        self._prometheus = prometheus
        self._window_s = window_s

    async def nodes(self, index: NodeIndex) -> NodePower:
        """Power of whole nodes.

        Raises:
            PrometheusError: see `Prometheus.query_samples`.
        """
        histories = await self._prometheus.query_samples(f"{_SELECTOR}[{self._window_s:.0f}s]")
        return await asyncio.to_thread(_node_power, histories, index)


def _node_power(histories: Sequence[History], index: NodeIndex) -> NodePower:
    rejected: defaultdict[Rejection, int] = defaultdict(int)
    found: defaultdict[str, dict[str, Reading]] = defaultdict(dict)
    """Best reading of each metric, by node."""
    for node, history, reading in _readings(histories, index):
        if isinstance(reading, Rejection):
            rejected[reading] += 1
            continue
        best = found[node].get(history.name)
        # The parts of a server overlap, and of two scrapes of one meter the newer one counts.
        if best is None or (reading.value, reading.time_s) > (best.value, best.time_s):
            found[node][history.name] = reading
    whole = {
        node: next(metrics[name] for name in (_KEPLER_WATTS, _HOST_JOULES, _HOST_WATTS) if name in metrics)
        for node, metrics in found.items()
    }
    return NodePower(whole=whole, rejected=dict(rejected))


def _readings(histories: Sequence[History], index: NodeIndex) -> Iterator[tuple[str, History, Reading | Rejection]]:
    """Reading of each series of a server, or why it has none, by node; parts of servers are passed over."""
    nodes_by_bmc: defaultdict[str, set[str]] = defaultdict(set)
    of_nodes = [(index.node_of(history.labels), history) for history in histories]
    for node, history in of_nodes:
        if node is not None and (bmc := _bmc(history)):
            nodes_by_bmc[bmc].add(node)
    for node, history in of_nodes:
        if node is None:
            yield "", history, Rejection.UNKNOWN_NODE
        elif len(nodes_by_bmc[_bmc(history)]) > 1:
            yield node, history, Rejection.SHARED
        elif history.name == _HOST_JOULES:
            yield node, history, rate_of(history.samples, MAX_SERVER_W)
        elif not _PART.search(history.labels.get("power_control_name", "")):
            yield node, history, latest_of(history.samples, MAX_SERVER_W)


def _bmc(history: History) -> str:
    """Management controller of a series; empty where the exporter does not name it."""
    return history.labels.get("bmc_id") or history.labels.get("bmc", "")
