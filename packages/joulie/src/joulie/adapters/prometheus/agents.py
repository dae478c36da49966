"""Node power measured by Joulie's agents (RAPL, NVML): from Prometheus if it scrapes them, else from their /metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import httpx2

from joulie.adapters.prometheus.answers import History, PrometheusError
from joulie.adapters.prometheus.client import Prometheus
from joulie.adapters.prometheus.exposition import scrape
from joulie.adapters.prometheus.node_sums import NodeSums
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.adapters.prometheus.readings import NodePower, Steps
from joulie.domain.signal import Reading

CONCURRENCY = 32
"""Maximum number of agents that are scraped concurrently."""
_CPU_METRIC = "joulie_rapl_package_total_power_watts"
_GPU_METRIC = "joulie_gpu_power_watts"
_CYCLE_METRIC = "joulie_agent_last_cycle_timestamp_seconds"
_METRICS = (_CPU_METRIC, _GPU_METRIC, _CYCLE_METRIC)

_log = logging.getLogger(__name__)

Endpoint = tuple[str, str | None]
"""URL of an agent's /metrics, and the node that its pod runs on; None if unknown."""


class Agents:
    """Power of nodes as measured by their agents.

    A sample has the time of the agent's measurement cycle, so that the samples of an agent that hangs but still
    responds grow old. If an agent does not publish that time, the time of the scrape is used.

    Args:
        prometheus: client to query first; None if not configured.
        window_s: maximum age of samples in Prometheus, s.
        client: HTTP client for scraping agents.
        endpoints: returns the current endpoints of the agents.
        now_s: current time, s since the epoch.
    """

    def __init__(
        self,
        prometheus: Prometheus | None,
        window_s: float,
        client: httpx2.AsyncClient,
        endpoints: Callable[[], Iterable[Endpoint]],
        now_s: Callable[[], float],
    ) -> None:
        self._prometheus = prometheus
        self._window_s = window_s
        self._client = client
        self._endpoints = endpoints
        self._now_s = now_s

    async def nodes(self, index: NodeIndex, wanted: Collection[str]) -> NodePower:
        """Read the power of nodes; agents are scraped only for nodes that are missing in Prometheus.

        Args:
            index: maps labels of series to nodes.
            wanted: nodes of interest: agents of unknown nodes are scraped only while one of these is missing.

        Raises:
            PrometheusError: no agent responded.
        """
        found = _AgentReadings()
        if self._prometheus is not None and self._prometheus.problem is None:
            try:
                found = await _from_prometheus(self._prometheus, index, self._window_s)
            except PrometheusError as error:
                _log.info("query failed: agents are scraped instead", extra={"error": str(error)})
        measured = found.nodes
        missing = not measured.issuperset(wanted)
        urls = {url for url, node in self._endpoints() if (node not in measured if node else missing)}
        await self._scrape(sorted(urls), found)
        return found.power()

    async def _scrape(self, urls: Sequence[str], found: _AgentReadings) -> None:
        failures: list[str] = []
        limit = asyncio.Semaphore(CONCURRENCY)

        async def scrape_one(url: str) -> None:
            try:
                async with limit:
                    series = await scrape(self._client, url, _METRICS)
            except PrometheusError as error:
                failures.append(str(error))
                return
            read_at_s = self._now_s()
            for one in series:
                node = one.labels.get("node")
                if node is not None:
                    found.add(one.name, node, one.labels.get("gpu", ""), Reading(read_at_s, one.value))

        await asyncio.gather(*map(scrape_one, urls))
        if not failures:
            return
        if len(failures) == len(urls) and not found.nodes:
            raise PrometheusError(f"none of {len(urls)} agents responded: {failures[0]}")
        _log.warning("agents did not respond", extra={"agents": len(failures), "first": failures[0]})


async def scraped_agents(prometheus: Prometheus, index: NodeIndex, window_s: float) -> NodePower:
    """Read the power of the nodes whose agents Prometheus scrapes.

    Raises:
        PrometheusError: see `Prometheus.query_samples`.
    """
    return (await _from_prometheus(prometheus, index, window_s)).power()


async def _from_prometheus(prometheus: Prometheus, index: NodeIndex, window_s: float) -> _AgentReadings:
    found = _AgentReadings()
    for history in await prometheus.query_samples(f'{{__name__=~"{"|".join(_METRICS)}"}}[{window_s:.0f}s]'):
        node = index.node_of(history.labels)
        if node is not None and history.samples:
            found.add(history.name, node, history.labels.get("gpu", ""), history.samples[-1])
    return found


class _AgentReadings:
    """Readings published by agents; of two samples of a series, the newer one counts."""

    def __init__(self) -> None:
        self._sums = NodeSums()
        self._cycle_ended_s: dict[str, float] = {}
        self.nodes: set[str] = set()
        """Nodes whose power an agent published."""

    def add(self, metric: str, node: str, gpu: str, reading: Reading) -> None:
        """Add a sample; negative ones are ignored as invalid."""
        if reading.value < 0.0:
            return
        if metric == _CYCLE_METRIC:
            self._cycle_ended_s[node] = max(self._cycle_ended_s.get(node, 0.0), reading.value)
        else:
            self.nodes.add(node)
            self._sums.add("cpu" if metric == _CPU_METRIC else "gpu", node, gpu, reading)

    def power(self) -> NodePower:
        """Power of nodes, with the time of their agents' measurement."""
        return NodePower(cpu=self._sum("cpu"), gpu=self._sum("gpu"), gpu_count=self._sums.counts("gpu"))

    def _sum(self, part: str) -> dict[str, Reading]:
        return {
            node: reading._replace(time_s=self._cycle_ended_s.get(node, reading.time_s))
            for node, reading in self._sums.sums(part).items()
        }


async def power_courses(
    prometheus: Prometheus, index: NodeIndex, gpus: Mapping[str, int], steps: Steps
) -> Mapping[str, Mapping[float, float]]:
    """Measured power of nodes (CPU packages and GPUs) by time, W.

    A time at which the agent did not run a cycle is left out, and so is one at which a GPU of the node was not read.

    Args:
        prometheus: client of the server that scrapes the agents.
        index: maps labels of series to nodes.
        gpus: number of GPUs by node.
        steps: times, and the window over which each value is averaged.

    Raises:
        PrometheusError: see `Prometheus.query_range`.
    """
    window = f"[{steps.mean_s:.0f}s]"
    cycles = f"on (node) (changes({_CYCLE_METRIC}{window}) > 0)"
    queries = (
        f"sum by (node) (avg_over_time({_CPU_METRIC}{window})) and {cycles}",
        f"sum by (node) (avg_over_time({_GPU_METRIC}{window}))",
        f"count by (node) (avg_over_time({_GPU_METRIC}{window}))",
    )
    asked = (prometheus.query_range(query, steps.start_s, steps.end_s, steps.step_s) for query in queries)
    cpu, gpu, count = [_by_node(histories, index) for histories in await asyncio.gather(*asked)]
    return {
        node: {
            time_s: value + (gpu.get(node, {}).get(time_s, 0.0) if gpus.get(node) else 0.0)
            for time_s, value in course.items()
            if value >= 0.0 and count.get(node, {}).get(time_s, 0) >= gpus.get(node, 0)
        }
        for node, course in cpu.items()
    }


def _by_node(histories: Iterable[History], index: NodeIndex) -> dict[str, dict[float, float]]:
    found: dict[str, dict[float, float]] = {}
    for history in histories:
        node = index.node_of(history.labels)
        if node is not None:
            found.setdefault(node, {}).update(history.samples)
    return found
