"""What the grid controller publishes of the nodes' zones."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from joulie.adapters.grid.feed import GridFeed
from joulie.adapters.kubernetes.client import KubeClient, RetryPolicy
from joulie.adapters.kubernetes.connection import connect
from joulie.adapters.kubernetes.intensities import CONFIG_MAP, Intensities, read_intensities
from joulie.adapters.kubernetes.resources import CONFIG_MAPS, NODES
from joulie.apps.grid import publisher
from joulie.apps.grid.publisher import IntensityPublisher
from joulie.domain.grid.signals import GridSignal, Measure
from joulie.domain.signal import Quality
from joulie_lab.fakes.kubernetes import FakeCluster

NOW_S = 1000.0


class Feed:
    """Carbon intensities; zones that nobody wants have none."""

    def __init__(self) -> None:
        self.wanted: set[str] = set()

    def want(self, zone: str) -> bool:
        self.wanted.add(zone)
        return zone != "refused"

    def carbon(self, zone: str) -> GridSignal:
        if zone == "missing":
            return GridSignal(Measure.CARBON, zone, problem="no answer")
        return GridSignal(Measure.CARBON, zone, Quality.STALE, 100.0, NOW_S)


async def node(client: KubeClient, name: str, zone: str | None = None) -> None:
    await client.create(
        NODES, {"metadata": {"name": name, "annotations": {"joulie.io/grid-zone": zone} if zone else {}}}
    )


def test_zones_with_nodes_are_published_once_there_are_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "PUBLISH_EVERY_S", 0.01)

    async def run() -> None:
        async with (
            FakeCluster() as cluster,
            KubeClient(
                connect(kubeconfig=cluster.kubeconfig(tmp_path / "kubeconfig")), retry=RetryPolicy(attempts=1)
            ) as client,
        ):
            await client.create(CONFIG_MAPS, {"metadata": {"name": CONFIG_MAP}}, "default")

            async def published() -> Intensities | None:
                return read_intensities(await client.get(CONFIG_MAPS, CONFIG_MAP, "default"))

            feed, leads = Feed(), [True]
            one = IntensityPublisher(
                client,
                "default",
                cast("GridFeed", feed),
                "DE",
                {"moon": "MOON"},
                may_write=lambda: leads[0],
                now_s=lambda: NOW_S,
            )
            task = asyncio.create_task(one.run())
            await node(client, "here")
            await node(client, "too")
            await asyncio.sleep(0.1)
            # No node is better by its zone, so no source is asked.
            assert (await published(), feed.wanted) == (None, set())

            cluster.fail_next(1, 500, method="PATCH", path=CONFIG_MAP)
            for zone in ("FR", "missing", "refused"):
                await node(client, zone.lower(), zone)
            async with asyncio.timeout(10.0):
                while (found := await published()) is None or len(found.g_per_kwh) < 2:
                    await asyncio.sleep(0.01)
            assert found == Intensities(NOW_S, "DE", {"moon": "MOON"}, {"DE": 100.0, "FR": 100.0})

            leads[0] = False
            await node(client, "late", "GB")
            await asyncio.sleep(0.1)
            assert await published() == found
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
