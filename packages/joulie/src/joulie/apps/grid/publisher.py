"""Publishes the carbon intensity of the nodes' zones for the extender, in clusters of several zones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from joulie.adapters.grid.feed import GridFeed
from joulie.adapters.kubernetes.api.core import Node
from joulie.adapters.kubernetes.cache import Cache
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.intensities import Intensities, publish
from joulie.adapters.kubernetes.resources import NODES
from joulie.domain.grid.cloud_regions import CLOUD_REGIONS
from joulie.domain.grid.zones import zone_of_node

PUBLISH_EVERY_S = 60.0
"""Interval of publishing, s; readers treat what is many times older as missing."""

_log = logging.getLogger(__name__)


class IntensityPublisher:
    """Publishes while this replica leads.

    Args:
        client: Kubernetes client.
        namespace: namespace of the ConfigMap.
        feed: carbon intensity.
        default_zone: zone of nodes that state none.
        regions: zone by cloud region, besides the built-in table.
        may_write: whether this replica leads.
        now_s: current time, s since the epoch.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        feed: GridFeed,
        default_zone: str,
        regions: Mapping[str, str],
        *,
        may_write: Callable[[], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._feed = feed
        self._default_zone = default_zone
        self._regions = dict(regions)
        self._may_write = may_write
        self._now_s = now_s
        self._nodes: Cache[Node, str] = Cache(client, NODES, self._zone)

    def _zone(self, node: Node) -> str:
        meta, table = node.metadata, {**CLOUD_REGIONS, **self._regions}
        return zone_of_node(meta.labels, meta.annotations, node.spec.provider_id, self._default_zone, table)

    async def run(self) -> None:
        """Publish until cancelled. A failed write is repeated at the next interval."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run())
            await self._nodes.wait_synced()
            while True:
                try:
                    await self._publish()
                except KubernetesError as error:
                    _log.warning("intensities not published", extra={"problem": str(error)})
                except Exception:  # the controller does not depend on it
                    _log.exception("intensities not published")
                await asyncio.sleep(PUBLISH_EVERY_S)

    async def _publish(self) -> None:
        """Write the intensities of all zones; nothing in a cluster of one zone, where no node is better by it."""
        zones = sorted(set(self._nodes.objects.values()))
        if len(zones) < 2 or not self._may_write():
            return
        known = {}
        for zone in zones:
            signal = self._feed.carbon(zone) if self._feed.want(zone) else None
            if signal is not None and signal.known and signal.value is not None:
                known[zone] = signal.value
        await publish(
            self._client,
            self._namespace,
            Intensities(self._now_s(), self._default_zone, self._regions, known),
        )
