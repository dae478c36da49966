"""Joulie as the dispatcher of MultiKueue, on the fake cluster: who is nominated, when, and who is left alone."""

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest

from joulie.adapters.kubernetes.kueue import CONTROLLER_NAME, GATED_BY
from joulie.adapters.kubernetes.multikueue import nominate_all
from joulie.adapters.kubernetes.names import MODE_LABEL
from joulie.adapters.kubernetes.resources import EVENTS, JOBS, NAMESPACES
from joulie.adapters.kubernetes.times import parse_rfc3339
from joulie.apps.grid import kueue, multikueue
from joulie.apps.grid.guard import GuardSettings, look_after
from joulie.apps.grid.kueue_settings import KueueMode
from joulie.apps.grid.multikueue import NominationResult
from joulie.domain.grid import names
from unit.test_grid_kueue import RESOURCES, eventually, staged

ROUND_S = 300.0
ABROAD = {"one": "PL", "two": "FR"}
DIRTY_ABROAD = {"FR": 250.0, "PL": 300.0, "DE": 100.0}
"""It is clean in the manager's own zone, where nothing runs."""
SKIPS = {names.SKIP: "true"}


@asynccontextmanager
async def dispatching(
    tmp_path, zones=None, *, intensities=None, checks=("multikueue",), submit=SKIPS, labels=None, **options
):
    """A workload `train` that waits for MultiKueue's check, with clean power in FR and dirty power in DE."""
    async with staged(tmp_path, multikueue_dispatcher=True, multikueue_round_s=ROUND_S, **options) as stage:
        stage.zones = dict(intensities) if intensities else {"FR": 50.0, "DE": 300.0}
        if labels:
            await stage.client.patch(NAMESPACES, "default", {"metadata": {"labels": labels}})
            await asyncio.sleep(0.1)
        await stage.kueue.clusters(**(zones or {"one": "DE", "two": "FR"}))
        await stage.kueue.submit("train", submit)
        await stage.kueue.reserve("train", *checks)
        yield stage


async def nominees(stage, name="train"):
    return (await stage.client.get(RESOURCES.workloads, name, "default")).status.nominated_cluster_names


async def become(stage, *expected, name="train"):
    async def there():
        return await nominees(stage, name) == expected

    await eventually(there)


async def events(stage):
    return [(one.type, one.reason, one.message) for one in (await stage.client.list(EVENTS)).items]


async def says(stage, message):
    return ("Normal", "GridNominated", message) in await events(stage)


def run(scenario, *args, **options):
    async def main():
        async with dispatching(*args, **options) as stage:
            await scenario(stage)

    asyncio.run(main())


def test_the_cluster_where_it_emits_least_is_nominated_and_the_next_one_a_round_later(tmp_path, monkeypatch):
    monkeypatch.setattr(multikueue, "UNKNOWN_ZONE_RETRY_S", 0.05)

    async def scenario(stage):
        await become(stage, "two")
        before = msgspec.json.decode(await stage.client.raw("GET", RESOURCES.workloads.path("default", "train")))[
            "status"
        ]
        assert before["admission"]  # nothing of Kueue's is lost
        assert [one["type"] for one in before["conditions"]] == ["QuotaReserved", "Evicted"]
        # A change of the signal within the round moves nothing.
        stage.zones["DE"] = 10.0
        stage.checks.signals_changed()
        stage.now_s += ROUND_S - 1.0
        stage.checks.signals_changed()
        await asyncio.sleep(0.1)
        assert await nominees(stage) == ("two",)
        stage.now_s += 1.0
        stage.checks.signals_changed()
        await become(stage, "two", "one")
        assert stage.nominated == [NominationResult.BEST, NominationResult.NEXT]
        await eventually(lambda: says(stage, "two (FR, 50 gCO2eq/kWh): there it emits least now"))
        await eventually(
            lambda: says(stage, "one (DE, 10 gCO2eq/kWh) too: no other cluster has admitted it within 5 min")
        )

    run(scenario, tmp_path)


def test_trap_what_is_assigned_is_left_alone_and_kueue_can_assign_it(tmp_path):
    # Kueue removes the nominations when it assigns a cluster. It could not, were they another manager's.
    async def scenario(stage):
        await become(stage, "two")
        await stage.kueue.assign("train", "two")
        stage.now_s += 10 * ROUND_S
        stage.checks.signals_changed()
        await asyncio.sleep(0.1)
        found = (await stage.client.get(RESOURCES.workloads, "train", "default")).status
        assert (found.cluster_name, found.nominated_cluster_names) == ("two", ())
        assert stage.nominated == [NominationResult.BEST]

    run(scenario, tmp_path)


@pytest.mark.parametrize(
    ("zones", "intensity", "said"),
    [
        ({"one": "DE", "two": "FR"}, None, "carbon intensity of DE is not known"),
        ({"one": "", "two": ""}, 50.0, "none of them states its zone"),
    ],
)
def test_without_a_signal_or_zones_all_are_nominated_and_that_is_said(tmp_path, zones, intensity, said):
    async def scenario(stage):
        await become(stage, "one", "two")
        assert stage.nominated == [NominationResult.ALL]
        ((kind, reason, message),) = await eventually(lambda: events(stage))
        assert (kind, reason) == ("Warning", "GridNominated")
        assert said in message

    run(scenario, tmp_path, zones, intensities={"FR": 50.0, "DE": intensity})


def test_a_cluster_that_is_not_connected_is_never_nominated(tmp_path):
    async def scenario(stage):
        await become(stage, "two")
        await stage.kueue.connect("two", "False")
        await become(stage, "one")
        await eventually(lambda: says(stage, "one (DE, 300 gCO2eq/kWh): there it emits least now"))
        await stage.kueue.connect("one", "False")
        await stage.kueue.submit("later", SKIPS)
        await stage.kueue.reserve("later", "multikueue")
        await asyncio.sleep(0.1)
        assert await nominees(stage, "later") == ()
        await stage.kueue.connect("two", "True")
        await become(stage, "two", name="later")

    run(scenario, tmp_path)


def test_a_cluster_that_is_lost_while_others_are_nominated_is_dropped_and_that_is_said(tmp_path):
    async def scenario(stage):
        await become(stage, "one", "two")
        await stage.kueue.connect("two", "False")
        await become(stage, "one")
        await eventually(lambda: says(stage, "two no longer: not connected"))
        assert stage.nominated == [NominationResult.BEST, NominationResult.LOST]

    run(scenario, tmp_path, {"one": "FR", "two": "FR"})


def test_nothing_is_nominated_before_all_other_checks_are_ready(tmp_path):
    async def scenario(stage):
        await asyncio.sleep(0.1)
        assert await nominees(stage) == ()
        await stage.kueue.check("grid", CONTROLLER_NAME)  # Joulie's own: it says Ready
        await become(stage, "two")

    run(scenario, tmp_path, checks=("grid", "multikueue"))


def test_it_waits_while_all_clusters_are_dirty_and_runs_where_it_is_clean(tmp_path):
    async def scenario(stage):
        await stage.kueue.check("grid", CONTROLLER_NAME)
        await stage.kueue.submit("waits", {})
        await stage.kueue.reserve("waits", "grid", "multikueue")
        await stage.becomes("Retry", "waits")
        assert "above 200" in (await stage.kueue.state("waits", "grid"))["message"]
        await stage.kueue.end_eviction("waits", "grid", "multikueue")
        stage.zones["PL"] = 100.0
        await stage.kueue.reserve("waits", "grid", "multikueue")
        await become(stage, "one", name="waits")

    run(scenario, tmp_path, ABROAD, intensities=DIRTY_ABROAD)


def test_data_that_costs_more_to_move_than_it_saves_keeps_it_at_home(tmp_path):
    heavy = SKIPS | {names.DATA_ZONE: "DE", names.DATA_GB: "1000", names.ENERGY_KWH: "4"}
    run(lambda stage: become(stage, "one"), tmp_path, submit=heavy)


def test_the_gate_waits_for_the_checks_of_a_new_workload(tmp_path, monkeypatch):
    # Kueue lists them once it has seen the workload; the manager's own zone is clean.
    monkeypatch.setattr(kueue, "UNKNOWN_ZONE_RETRY_S", 0.02)

    async def scenario(stage):
        train = await stage.client.get(RESOURCES.workloads, "train", "default")
        stage.now_s = parse_rfc3339(train.metadata.creation_timestamp)
        await stage.kueue.submit_job("gated", {}, own={GATED_BY: "joulie.io/grid"})
        await asyncio.sleep(0.1)
        assert await stage.gate_is(JOBS, "gated", "joulie.io/grid")
        stage.now_s += 60.0  # no checks: its queue has none
        await eventually(lambda: stage.gate_is(JOBS, "gated", None))

    run(scenario, tmp_path, ABROAD, intensities=DIRTY_ABROAD)


@pytest.mark.parametrize("options", [{"dry_run": True}, {"labels": {MODE_LABEL: "observe"}}])
def test_in_observe_mode_it_only_says_what_it_would_nominate(tmp_path, options):
    async def scenario(stage):
        ((kind, reason, message),) = await eventually(lambda: events(stage))
        assert (kind, reason) == ("Normal", "GridWouldNominate")
        assert message.startswith("two (FR")
        stage.now_s += 2 * ROUND_S
        stage.checks.signals_changed()
        await asyncio.sleep(0.1)
        assert await nominees(stage) == ()
        assert stage.nominated == [NominationResult.OBSERVED]

    run(scenario, tmp_path, **options)


def test_nominations_of_others_are_kept_and_counted(tmp_path):
    async def scenario(stage):
        await stage.kueue.submit("theirs", SKIPS)
        await stage.client.apply(
            RESOURCES.workloads,
            "theirs",
            {"status": {"nominatedClusterNames": ["one"]}},
            field_manager="kueue-admission",
            namespace="default",
            subresource="status",
        )
        await stage.kueue.reserve("theirs", "multikueue")
        while NominationResult.OTHERS not in stage.nominated:
            await asyncio.sleep(0.01)
        assert await nominees(stage, "theirs") == ("one",)
        stage.now_s += ROUND_S
        stage.checks.signals_changed()
        await become(stage, "one", "two", name="theirs")

    run(scenario, tmp_path)


def test_a_workload_that_is_dispatched_again_starts_with_the_best_zone(tmp_path):
    async def scenario(stage):
        await become(stage, "two")
        await stage.kueue.end_eviction("train", "multikueue")
        assert await nominees(stage) == ()
        stage.zones = {"FR": 300.0, "DE": 50.0}
        await stage.kueue.reserve("train")
        await become(stage, "one")

    run(scenario, tmp_path)


def test_without_a_controller_all_connected_clusters_are_nominated(tmp_path):
    async def main():
        async with staged(tmp_path, KueueMode.FALSE) as stage:
            await stage.kueue.clusters(one="DE", two="FR", lost="PL")
            await stage.kueue.connect("lost", "False")
            for name in ("train", "assigned", "plain"):
                await stage.kueue.submit(name, SKIPS)
            await stage.kueue.reserve("train", "multikueue")
            await stage.kueue.reserve("assigned", "multikueue")
            await stage.kueue.assign("assigned", "two")
            await stage.kueue.reserve("plain", "grid")
            assert await nominate_all(stage.client) == ["default/train"]
            assert await nominees(stage) == ("one", "two")
            assert await nominate_all(stage.client) == []

    asyncio.run(main())


def test_the_guard_nominates_in_place_of_a_dead_dispatcher(tmp_path):
    async def main():
        async with staged(tmp_path, KueueMode.FALSE) as stage:
            await stage.kueue.clusters(one="DE", two="FR")
            await stage.kueue.submit("train", SKIPS)
            await stage.kueue.reserve("train", "multikueue")
            now_s = parse_rfc3339((await stage.client.get(NAMESPACES, "default")).metadata.creation_timestamp) + 1.0
            done = await look_after(stage.client, GuardSettings(), now_s)
            assert (done.controller_alive, done.opened, await nominees(stage)) == (False, [], ())
            done = await look_after(stage.client, GuardSettings(multikueue_dispatcher=True), now_s)
            assert (done.opened, await nominees(stage)) == (["default/train"], ("one", "two"))

    asyncio.run(main())
