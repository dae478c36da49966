"""Nodes scored by the carbon intensity of their zones, from what the grid controller publishes."""

import asyncio
from pathlib import Path

import pytest

from joulie.adapters.kubernetes.api.core import ConfigMap
from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.connection import connect
from joulie.adapters.kubernetes.intensities import CONFIG_MAP, Intensities, publish, read_intensities
from joulie.adapters.kubernetes.resources import CONFIG_MAPS, NODES
from joulie.apps.extender.feed import Feed
from joulie.apps.extender.fleet import INTENSITIES_STALE_S, Fleet
from joulie.apps.extender.node_facts import ZoneHints
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.mode import Mode
from joulie.domain.quantities import InvalidQuantityError
from joulie.domain.scoring.extender import NodeClass
from joulie_lab.fakes.kubernetes import FakeCluster

NOW_S = 1000.0
FOUND = Intensities(NOW_S, "DE", {"aws:moon-1": "MOON"}, {"DE": 400.0, "FR": 50.0, "MOON": 0.0})


def hints(zone: str = "", region: str = "", provider: str = "") -> ZoneHints:
    labels = {"topology.kubernetes.io/region": region} if region else {}
    return ZoneHints(labels, {"joulie.io/grid-zone": zone} if zone else {}, provider)


def points(fleet: Fleet, now_s: float = NOW_S) -> dict[str, float]:
    view = fleet.view(now_s)
    return {name: float(view.zone_points[slot]) for name, slot in view.roster.slots.items()}


def fleet_of(*, mode: Mode = Mode.ENFORCE, weight: float = 30.0) -> Fleet:
    fleet = Fleet(300.0, mode=mode, intensity_weight=weight)
    fleet.set_zone("default", hints())
    fleet.set_zone("stated", hints(zone="FR"))
    fleet.set_zone("region", hints(region="moon-1", provider="aws:///moon-1a/i-0"))
    fleet.set_zone("unknown", hints(zone="XX"))
    return fleet


def test_a_node_gains_by_the_zone_that_it_states_or_that_its_region_has() -> None:
    fleet = fleet_of()
    fleet.set_intensities(FOUND)
    assert points(fleet) == {"default": -30.0, "stated": pytest.approx(20.0), "region": 30.0, "unknown": 0.0}
    fleet.set_zone("stated", hints(zone="DE"))
    assert points(fleet)["stated"] == -30.0


def test_trap_without_intensities_or_with_old_ones_all_nodes_are_neutral() -> None:
    fleet = fleet_of()
    assert set(points(fleet).values()) == {0.0}
    fleet.set_intensities(FOUND)
    assert set(points(fleet, NOW_S + INTENSITIES_STALE_S + 1.0).values()) == {0.0}
    # Published again, unchanged: they count again.
    fleet.set_intensities(Intensities(NOW_S + INTENSITIES_STALE_S, "DE", FOUND.regions, FOUND.g_per_kwh))
    assert points(fleet, NOW_S + INTENSITIES_STALE_S + 1.0)["region"] == 30.0
    fleet.set_intensities(None)
    assert set(points(fleet).values()) == {0.0}


def test_nothing_counts_in_observe_mode_or_without_a_weight() -> None:
    observing, weightless = fleet_of(mode=Mode.OBSERVE), fleet_of(weight=0.0)
    for fleet in (observing, weightless):
        fleet.set_intensities(FOUND)
        assert set(points(fleet).values()) == {0.0}
    observing.set_label_class("default", NodeClass.UNKNOWN, enforced=True)
    observing.set_label_class("stated", NodeClass.UNKNOWN, enforced=True)
    assert points(observing)["stated"] > 0.0
    assert points(observing)["region"] == 0.0


def test_a_pod_prefers_the_zone_that_was_chosen_for_it() -> None:
    fleet = fleet_of()
    fleet.set_intensities(FOUND)
    view = fleet.view(NOW_S)
    chosen = {name: float(view.points_for("DE")[slot]) for name, slot in view.roster.slots.items()}
    # By intensity it would be the dirtiest; the decision has counted what moving costs.
    assert chosen == {"default": 30.0, "stated": 0.0, "region": 0.0, "unknown": 0.0}
    for unknown in (None, "", "YY"):
        assert view.points_for(unknown) is view.zone_points


def test_a_removed_node_leaves_no_intensity() -> None:
    fleet = fleet_of()
    fleet.set_intensities(FOUND)
    for name in ("stated", "region"):
        fleet.set_zone(name, None)
    assert points(fleet) == {"default": 0.0, "unknown": 0.0}


@pytest.mark.parametrize("text", ["no JSON", '{"time_s": 1}', '{"g_per_kwh": {"DE": -1.0}}'])
def test_invalid_intensities_are_refused(text: str) -> None:
    if "g_per_kwh" in text:
        text = '{"time_s": 1, "default_zone": "DE", "regions": {}, "g_per_kwh": {"DE": -1.0}}'
    with pytest.raises(InvalidQuantityError):
        read_intensities(ConfigMap(metadata=ObjectMeta(CONFIG_MAP), data={"intensities.json": text}))


def test_what_is_published_reaches_the_fleet(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            FakeCluster() as cluster,
            KubeClient(connect(kubeconfig=cluster.kubeconfig(tmp_path / "kubeconfig"))) as client,
        ):
            await client.create(CONFIG_MAPS, {"metadata": {"name": CONFIG_MAP}}, "default")
            labels = {"topology.kubernetes.io/region": "eu-west-3"}
            await client.create(NODES, {"metadata": {"name": "paris", "labels": labels}})
            await client.create(NODES, {"metadata": {"name": "here"}})
            fleet = Fleet(300.0, intensity_weight=30.0)
            feed = Feed(
                client,
                fleet,
                BUILTIN_CATALOGUE,
                min_confidence=0.5,
                silence_s=30.0,
                intensity_namespace="default",
            )
            watching = asyncio.create_task(feed.run())
            await feed.wait_synced()
            assert set(points(fleet).values()) == {0.0}
            await publish(client, "default", FOUND)
            async with asyncio.timeout(10.0):
                while not points(fleet)["paris"] > 0.0 > points(fleet)["here"]:
                    await asyncio.sleep(0.01)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(run())
