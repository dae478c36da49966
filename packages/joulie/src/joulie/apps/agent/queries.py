"""Power of nodes that Prometheus knows, for agents that have no devices of their own to read it from."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import httpx2

from joulie.adapters.prometheus import Prometheus, PrometheusError, Series
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.apps.agent.routing import NODE, Route

_SHARED_S = 5.0
"""How long an answer serves all nodes whose queries read the same: a cycle of an agent of many nodes asks once."""

_log = logging.getLogger(__name__)


class PowerQueries:
    """Asks Prometheus for the power of nodes.

    Args:
        client: shared; its owner closes it.
        clock: monotonic time, s.
    """

    def __init__(self, client: httpx2.AsyncClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._servers: dict[str, Prometheus] = {}
        self._answers: dict[tuple[str, str], tuple[float, asyncio.Task[list[Series]]]] = {}

    async def power_w(self, node: str, route: Route) -> float | None:
        """Power of a node's CPU packages, W; None where it was not told, which is logged."""
        text = route.query.replace(NODE, node)
        try:
            async with asyncio.timeout(route.timeout_s):
                series = await asyncio.shield(self._asked(route.endpoint, text))
        except (PrometheusError, TimeoutError) as error:
            _log.warning("power query failed", extra={"node": node, "error": str(error) or "timed out"})
            return None
        return _power_w(series, node, alone=text != route.query)

    def _asked(self, address: str, text: str) -> asyncio.Task[list[Series]]:
        """The answer to a query: a young one that somebody else has asked for, or a new one."""
        now_s = self._clock()
        self._answers = {key: one for key, one in self._answers.items() if now_s - one[0] < _SHARED_S}
        key = (address, text)
        if key not in self._answers:
            if address not in self._servers:
                self._servers[address] = Prometheus(address, self._client)
            self._answers[key] = now_s, asyncio.create_task(self._servers[address].query(text))
        return self._answers[key][1]


def _power_w(series: list[Series], node: str, *, alone: bool) -> float | None:
    """The sum of the series of a node; of a query about it alone, also of those that name no node."""
    index = NodeIndex((node,), {})
    found = [one.value for one in series if (alone or index.node_of(one.labels) == node) and one.value >= 0.0]
    return sum(found) if found else None
