"""CPU power of remote nodes from Prometheus, for pool agents."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import httpx2

from joulie.adapters.prometheus import Prometheus, PrometheusError, Series
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.apps.agent.routing import NODE, Route

_ANSWER_LIFETIME_S = 5.0
"""How long a response is shared by nodes with the same query text, s: a cycle over many nodes queries once."""

_log = logging.getLogger(__name__)


class PowerQueries:
    """Queries Prometheus for the power of nodes.

    Args:
        client: shared HTTP client, closed by its owner.
        clock: monotonic time, s.
    """

    def __init__(self, client: httpx2.AsyncClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._servers: dict[str, Prometheus] = {}
        self._answers: dict[tuple[str, str], tuple[float, asyncio.Task[list[Series]]]] = {}

    async def power_w(self, node: str, route: Route) -> float | None:
        """Total power of a node's CPU packages, W; None if unavailable (a failed query is logged)."""
        text = route.query.replace(NODE, node)
        try:
            async with asyncio.timeout(route.timeout_s):
                series = await asyncio.shield(self._query(route.endpoint, text))
        except (PrometheusError, TimeoutError) as error:
            _log.warning("power query failed", extra={"node": node, "error": str(error) or "timed out"})
            return None
        return _power_w(series, node, alone=text != route.query)

    def _query(self, address: str, text: str) -> asyncio.Task[list[Series]]:
        """Response to a query: the shared one if it is recent, else a new one."""
        now_s = self._clock()
        self._answers = {key: one for key, one in self._answers.items() if now_s - one[0] < _ANSWER_LIFETIME_S}
        key = (address, text)
        if key not in self._answers:
            if address not in self._servers:
                self._servers[address] = Prometheus(address, self._client)
            self._answers[key] = now_s, asyncio.create_task(self._servers[address].query(text))
        return self._answers[key][1]


def _power_w(series: list[Series], node: str, *, alone: bool) -> float | None:
    """Sum of a node's series, W; if `alone`, the query is for this node only and unlabelled series count too."""
    index = NodeIndex((node,), {})
    found = [one.value for one in series if (alone or index.node_of(one.labels) == node) and one.value >= 0.0]
    return sum(found) if found else None
