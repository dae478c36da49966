"""The grid controller against the fake cluster: real requests, a clock and a grid of the test's own."""

import asyncio
from dataclasses import replace

import msgspec
import pytest

from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.power_trials import stored_workload_protocol
from joulie.adapters.kubernetes.resources import CONFIG_MAPS, JOBS, NAMESPACES, PODS, POWER_TRIALS
from joulie.adapters.kubernetes.times import rfc3339
from joulie.apps.grid import controller, deferrals, jobs, metrics, pending
from joulie.apps.grid.apply import PodWriter
from joulie.apps.grid.facts import Asking, GatedPod, Owner
from joulie.domain.grid import names
from joulie.domain.grid.deferral import Release, ReleaseReason, Waiting
from joulie.domain.grid.release import Limits
from joulie.domain.grid.request import Asked, GridDefaults, GridRequest
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import Period
from joulie.domain.mode import Mode
from joulie.domain.trial.holdout import left_out
from joulie.domain.trial.protocol import Arm
from joulie.domain.trial.workload_protocol import WorkloadProtocol
from support.grid_stage import EPOCH_S, NS, ZONE, play
from support.played import played

pytestmark = pytest.mark.slow  # whole controllers on the fake cluster

HOUR_S = 3600.0


@played(play)
async def test_a_pod_waits_above_the_threshold_and_starts_below_it(stage):
    await stage.pod("web")
    await stage.look()
    assert await stage.gated() == ["web"]
    noted = await stage.annotations("web")
    assert noted["initial-carbon-intensity"] == "300.00"
    assert noted["carbon-delay-timestamp"] == "2027-01-15T08:00:00Z"
    assert "bind-timestamp" not in noted
    (event,) = await stage.events("GridHold")
    assert "300 gCO2eq/kWh (DE, scripted" in event.message
    assert "2027-01-16T08:00:00Z at the latest" in event.message

    stage.carbon.values[ZONE] = 200.0  # equal to the threshold runs
    await stage.look(300.0)
    assert await stage.gated() == []
    noted = await stage.annotations("web")
    assert noted["initial-carbon-intensity"] == "300.00"
    assert noted["bind-time-carbon-intensity"] == "200.00"
    assert noted["bind-timestamp"] == "2027-01-15T08:05:00Z"
    assert len(await stage.events("GridReleased")) == 1
    assert stage.counted("scheduler_compute_gardener_carbon_delay_total", region=ZONE) == 1
    assert stage.counted("scheduler_compute_gardener_scheduling_attempt_total", result="success") == 1


@played(play, release_limits=Limits(0.01, 1))
async def test_a_clean_grid_starts_a_crowd_at_once(stage):
    stage.carbon.values[ZONE] = 100.0
    for index in range(5):
        await stage.pod(f"web-{index}")
    await stage.look()
    assert await stage.gated() == []
    assert await stage.events("GridHold") == []
    assert (await stage.annotations("web-0"))["initial-carbon-intensity"] == "100.00"


@played(play)
async def test_the_gates_of_others_stay(stage):
    stage.carbon.values[ZONE] = 100.0
    await stage.pod("web", gates=[{"name": "example.com/quota"}, {"name": names.GATE}])
    await stage.look()
    pod = await stage.client.get(PODS, "web", NS)
    assert [gate.name for gate in pod.spec.scheduling_gates] == ["example.com/quota"]


@played(play)
async def test_max_delay_holds_absolutely(stage):
    await stage.pod("own", annotations={names.MAX_DELAY: "2h"})
    await stage.pod("default")
    await stage.look(2 * HOUR_S - 1.0)
    assert await stage.gated() == ["default", "own"]
    await stage.look(1.0)
    assert await stage.gated() == ["default"]
    await stage.look(22 * HOUR_S)
    assert await stage.gated() == []
    assert stage.counted("joulie_grid_releases_total", reason="deadline") == 2
    assert stage.counted("joulie_grid_late_seconds_sum") == 0.0


@played(play)
async def test_the_controller_sleeps_until_the_latest_start(stage):
    await stage.pod("web", annotations={names.MAX_DELAY: "2h"})
    await stage.look()
    assert stage.term.next_s == stage.now_s + 2 * HOUR_S


@played(play)
async def test_trap_an_outage_releases_and_says_so_once_a_namespace(stage):
    for index in range(10):
        await stage.pod(f"web-{index}")
    await stage.look()
    stage.carbon.values[ZONE] = None
    await stage.look(1800.0)
    assert len(await stage.gated()) == 10  # the last good value still counts
    await stage.look(1900.0)
    assert await stage.gated() == []
    (event,) = await stage.events("GridSignalMissing")
    assert (event.involved_object.kind, event.count) == ("Namespace", 1)
    assert "no valid value for 62 min" in event.message
    # Missing is never zero: nothing is noted where nothing is known.
    assert "bind-time-carbon-intensity" not in await stage.annotations("web-0")
    await stage.pod("late")
    await stage.look(60.0)
    assert await stage.gated() == []
    assert len(await stage.events("GridSignalMissing")) == 1


@played(play)
async def test_trap_a_source_that_hangs_holds_nobody(stage):
    await stage.pod("web")
    await stage.look()
    for minutes, held in ((59, ["web"]), (2, [])):
        stage.now_s += 60.0 * minutes
        await stage.term.step()  # nobody has said that the signal grew old
        await stage.term.writes.settled()
        assert await stage.gated() == held


@played(play)
async def test_nobody_is_released_in_the_moment_before_the_first_answer(stage):
    await stage.pod("web")
    await stage.term.step()
    await stage.term.writes.settled()
    assert await stage.gated() == ["web"]
    await stage.look()
    assert await stage.gated() == ["web"]


@played(play)
async def test_patience_with_a_zone_that_never_answers_ends_in_time_after_the_clock_was_set_back(stage):
    await stage.pod("web")
    for passed_s, held in ((0.0, ["web"]), (-HOUR_S, ["web"]), (60.0, [])):
        stage.now_s += passed_s
        await stage.term.step()
        await stage.term.writes.settled()
        assert await stage.gated() == held


@played(play)
async def test_trap_a_zone_that_was_forgotten_is_asked_about_again(stage):
    stage.carbon.values["FR"] = 400.0
    stage.clock.now_s = stage.now_s
    await stage.pod("first", annotations={names.ZONE: "FR", names.MAX_DELAY: "1h"})
    await stage.look()
    assert await stage.gated() == ["first"]
    await stage.look(HOUR_S)
    assert await stage.gated() == []
    stage.feed._drop("FR")  # as after a day in which nobody has wanted it
    stage.now_s += HOUR_S
    await stage.pod("second", annotations={names.ZONE: "FR"})
    await stage.term.step()
    await stage.term.writes.settled()
    assert await stage.gated() == ["second"]
    await stage.look()
    assert await stage.gated() == ["second"]
    assert await stage.events("GridSignalMissing") == []


@played(play)
async def test_trap_a_pod_that_comes_before_its_namespace_waits_for_it(stage):
    await stage.client.create(NAMESPACES, {"metadata": {"name": "late", "annotations": {names.DEFER: "true"}}})
    known = stage.view._namespaces._objects
    await stage.until(lambda: Key("", "late") in known)
    facts = known.pop(Key("", "late"))  # its watch lags behind
    await stage.pod("web", namespace="late", scheduler="default-scheduler")
    await stage.look()
    assert await stage.gated() == ["web"]
    stage.view._namespaces._put(Key("", "late"), facts)
    await stage.look()
    assert await stage.gated() == ["web"]
    assert len(await stage.events("GridHold")) == 1


@played(play)
async def test_trap_initial_values_outlive_a_watch_that_lags(stage):
    await stage.pod("web")
    await stage.feed.refresh()
    stage.cluster.delay_watches(30.0)
    await stage.term.step()
    await stage.term.writes.settled()
    assert (await stage.annotations("web"))["initial-carbon-intensity"] == "300.00"
    stage.carbon.values[ZONE] = 10.0
    stage.now_s += 300.0
    await stage.feed.refresh()
    await stage.term.step()
    await stage.term.writes.settled()
    noted = await stage.annotations("web")
    assert (noted["initial-carbon-intensity"], noted["bind-time-carbon-intensity"]) == ("300.00", "10.00")


@played(play, release_limits=Limits(0.01, 1))
async def test_a_new_leader_goes_on_where_the_old_one_stopped(stage):
    for index in range(4):
        await stage.pod(f"web-{index}")
    await stage.look()
    before = await stage.annotations("web-0")
    stage.start()
    stage.carbon.values[ZONE] = 250.0
    await stage.look(HOUR_S)
    assert len(await stage.gated()) == 4
    assert await stage.annotations("web-0") == before
    assert len(await stage.events("GridHold")) == 4
    stage.carbon.values[ZONE] = 10.0
    await stage.look(300.0)
    assert len(await stage.gated()) == 3  # they were held together, so they do not start together


@played(play)
async def test_who_does_not_lead_writes_nothing(stage):
    await stage.pod("web")
    stage.leading = False
    stage.carbon.values[ZONE] = 10.0
    await stage.look()
    assert await stage.gated() == ["web"]
    assert await stage.annotations("web") == {}


@played(play, release_limits=Limits(0.01, 1), enable_pod_priorities=True)
async def test_releases_are_spread_in_order_of_priority_then_age(stage):
    await stage.pod("young", age_s=1.0)
    await stage.pod("old", age_s=100.0)
    await stage.pod("important", priority=1000)
    await stage.pod("last-moment", age_s=HOUR_S, annotations={names.MAX_DELAY: "65m"})
    await stage.look()
    stage.carbon.values[ZONE] = 10.0
    await stage.look(300.0)
    assert await stage.gated() == ["important", "old", "young"]  # the one that could not wait took the turn
    await stage.look(99.0)
    assert await stage.gated() == ["important", "old", "young"]
    await stage.look(1.0)
    assert await stage.gated() == ["old", "young"]
    await stage.look(100.0)
    assert await stage.gated() == ["young"]


@played(play, release_limits=Limits(0.01, 1))
async def test_a_crowd_that_is_still_queueing_is_held_again_when_the_grid_turns(stage):
    for index in range(3):
        await stage.pod(f"web-{index}", age_s=float(index))
    await stage.look()
    stage.carbon.values[ZONE] = 10.0
    await stage.look(300.0)
    assert await stage.gated() == ["web-0", "web-1"]
    stage.carbon.values[ZONE] = 400.0
    await stage.look(300.0)
    assert await stage.gated() == ["web-0", "web-1"]


@played(play)
async def test_skip_and_opting_out_start_at_once(stage):
    await stage.pod("skips", annotations={names.SKIP: "true"})
    await stage.pod("opts-out", annotations={names.DEFER: "false"})
    await stage.pod("does-not-care", annotations={names.CARBON_ENABLED: "false"})
    await stage.pod("asks-by-annotation", scheduler="default-scheduler", annotations={names.DEFER: "true"})
    await stage.look()
    assert await stage.gated() == ["asks-by-annotation"]


@played(play)
async def test_a_malformed_annotation_is_reported_and_counts_as_absent(stage):
    await stage.pod("web", annotations={names.CARBON_THRESHOLD: "lots", names.MAX_DELAY: "1h"})
    await stage.look()
    await stage.look(60.0)
    assert await stage.gated() == ["web"]
    (event,) = await stage.events("InvalidAnnotation")
    assert (event.type, event.count) == ("Warning", 1)
    assert names.CARBON_THRESHOLD in event.message
    assert "'lots'" in event.message


@played(play)
async def test_policies_of_the_namespace_and_their_override_for_batch(stage):
    policies = {
        names.POLICY_PREFIX + "carbon-intensity-threshold": "400",
        names.WORKLOAD_PREFIX + "batch-policy-carbon-intensity-threshold": "250",
    }
    await stage.namespace("team", annotations=policies)
    job = await stage.job("elsewhere")
    await stage.pod("service", namespace="team")
    await stage.pod("batch", namespace="team", labels={names.WORKLOAD_TYPE_LABEL: "batch"})
    await stage.pod("own-word", namespace="team", annotations={names.CARBON_THRESHOLD: "100"})
    await stage.pod("of-a-job", owner=job, annotations={names.CARBON_THRESHOLD: "500"})
    await stage.look()
    assert await stage.gated() == ["batch", "own-word"]


@played(play)
async def test_a_change_of_the_namespace_is_heeded(stage):
    await stage.namespace("team")
    await stage.pod("web", namespace="team")
    await stage.look()
    annotation = {names.POLICY_PREFIX + "carbon-intensity-threshold": "400"}
    await stage.client.patch(NAMESPACES, "team", {"metadata": {"annotations": annotation}})
    await stage.until(lambda: stage.view.namespace("team").annotations)
    await stage.look()
    assert await stage.gated() == []


@played(play)
async def test_zones_are_decided_each_by_itself(stage):
    await stage.pod("here")
    await stage.pod("by-annotation", annotations={names.ZONE: "FR"})
    await stage.pod("by-region", nodeSelector={"topology.kubernetes.io/region": "europe-west9"})
    await stage.look()
    await stage.look()  # the first one asked for the zone
    assert await stage.gated() == ["here"]


def regions(*names_of_regions):
    """The affinity of a pod that may run in several cloud regions."""
    expression = {"key": "topology.kubernetes.io/region", "operator": "In", "values": list(names_of_regions)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


@played(play)
async def test_a_pod_of_several_zones_moves_where_it_need_not_wait(stage):
    stage.carbon.values |= {ZONE: 300.0, "FR": 50.0}
    data = {names.DATA_GB: "100", names.ENERGY_KWH: "1", names.DATA_ZONE: ZONE}
    await stage.pod("here", **regions("europe-west3"))
    await stage.pod("either", **regions("europe-west3", "europe-west9"))
    await stage.pod("heavy", annotations=data, **regions("europe-west3", "europe-west9"))
    for _ in range(3):  # the first ones ask for the zones
        await stage.look()
    # Moving 100 GB emits (300 + 50) / 2 g for the run of 1 kWh: 225 g there are above the threshold, too.
    assert await stage.gated() == ["heavy", "here"]
    annotations = (await stage.client.get(PODS, "either", NS)).metadata.annotations
    assert annotations[names.CHOSEN_ZONE] == "FR"
    assert annotations[names.BIND_CARBON_INTENSITY] == "50.00"


def test_trap_zones_that_users_make_up_are_bounded_labels(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "MAX_ZONE_LABELS", 1)

    async def body(stage):
        stage.carbon.values |= {"ONE": 300.0, "TWO": 300.0}
        for zone in ("ONE", "TWO", "THREE"):
            await stage.pod(zone.lower(), annotations={names.ZONE: zone})
            await stage.look()
        await stage.look()
        assert await stage.gated() == ["one", "two"]
        counted = "scheduler_compute_gardener_carbon_delay_total"
        assert stage.counted(counted, region="ONE") == 1
        assert stage.counted(counted, region="other") == 1

    play(body, tmp_path)


@played(play)
async def test_trap_nothing_is_written_on_another_pod_of_the_same_name(stage):
    await stage.pod("db-0")
    writer = PodWriter(stage.client)
    for write in (writer.annotate, writer.lift):
        with pytest.raises(KubernetesError):
            await write(Key(NS, "db-0"), "the-uid-of-an-earlier-one", {names.BIND_TIMESTAMP: "now"})
    assert await stage.gated() == ["db-0"]
    assert await stage.annotations("db-0") == {}


@played(play, defaults=GridDefaults(price_enabled=True))
async def test_a_price_holds_by_its_threshold_else_in_its_peak_period(stage):
    stage.carbon.values[ZONE] = 100.0
    stage.price.period, stage.price.values[ZONE] = Period.PEAK, 0.34
    await stage.pod("in-peak")
    await stage.pod("cheap-enough", annotations={names.PRICE_THRESHOLD: "0.34"})
    await stage.pod("too-dear", annotations={names.PRICE_THRESHOLD: "0.30"})
    await stage.look()
    assert await stage.gated() == ["in-peak", "too-dear"]
    noted = await stage.annotations("too-dear")
    assert noted["initial-electricity-rate"] == "0.340000"
    assert "price-delay-timestamp" in noted
    assert "carbon-delay-timestamp" not in noted
    assert stage.counted("scheduler_compute_gardener_price_delay_total", period="peak") == 2
    stage.price.period = Period.OFF_PEAK
    await stage.look(600.0)
    assert await stage.gated() == ["too-dear"]
    stage.price.values[ZONE] = -0.02  # a negative price is a price
    await stage.look(600.0)
    assert await stage.gated() == []
    assert (await stage.annotations("too-dear"))["bind-time-electricity-rate"] == "-0.020000"


@played(play, defaults=GridDefaults(price_enabled=True))
async def test_each_reason_to_wait_is_noted_when_it_begins(stage):
    await stage.pod("web", annotations={names.PRICE_THRESHOLD: "0.2"})
    await stage.look()
    assert "price-delay-timestamp" not in await stage.annotations("web")
    stage.price.values[ZONE] = 0.3
    await stage.look(600.0)
    noted = await stage.annotations("web")
    assert noted["carbon-delay-timestamp"] == "2027-01-15T08:00:00Z"
    assert noted["price-delay-timestamp"] == "2027-01-15T08:10:00Z"
    assert noted["initial-electricity-rate"] == "0.100000"
    assert len(await stage.events("GridHold")) == 1


@played(play)
async def test_a_note_that_cannot_be_written_is_written_later(stage):
    await stage.pod("web")
    stage.cluster.fail_next(2, 500, method="PATCH", path="/pods/web")
    await stage.look()
    assert await stage.annotations("web") == {}
    stage.carbon.values[ZONE] = 310.0
    await stage.look(600.0)
    assert (await stage.annotations("web"))["initial-carbon-intensity"] == "310.00"


@played(play, defaults=GridDefaults(price_enabled=True))
async def test_carbon_and_price_hold_together(stage):
    await stage.pod("web", annotations={names.PRICE_THRESHOLD: "0.05"})
    await stage.look()
    noted = await stage.annotations("web")
    assert {"carbon-delay-timestamp", "price-delay-timestamp"} <= noted.keys()
    stage.carbon.values[ZONE] = 10.0
    await stage.look(600.0)
    assert await stage.gated() == ["web"]
    stage.price.values[ZONE] = 0.05
    await stage.look(600.0)
    assert await stage.gated() == []


@played(play)
async def test_in_the_mode_optimal_a_pod_waits_for_the_best_window(stage):
    start = stage.now_s
    hours = [start + HOUR_S * hour for hour in range(48)]
    stage.carbon.ahead = Series(hours, [150.0, 140.0, 80.0, 90.0] + [200.0] * 44, start + 48 * HOUR_S)
    stage.carbon.values[ZONE] = 150.0  # within the threshold, but not the best
    await stage.pod("train", annotations={names.MODE: "optimal", names.RUNTIME: "2h"})
    await stage.look()
    assert await stage.gated() == ["train"]
    assert stage.term.next_s == start + 2 * HOUR_S
    stage.carbon.values[ZONE] = 80.0
    await stage.look(2 * HOUR_S)
    assert await stage.gated() == []


def ahead_of(stage, *values):
    """A forecast of values by hour, and the last one from then on."""
    starts = [stage.now_s + HOUR_S * hour for hour in range(48)]
    return Series(starts, [*values, *[values[-1]] * (48 - len(values))], stage.now_s + 48 * HOUR_S)


@played(play, defaults=GridDefaults(price_enabled=True))
async def test_g3_a_wait_for_a_cheap_window_is_booked_as_price(stage):
    stage.carbon.ahead = ahead_of(stage, 300.0)
    stage.price.ahead = ahead_of(stage, 0.3, 0.3, 0.1, 0.1, 0.3)
    stage.price.values[ZONE] = 0.3
    dear = {names.MODE: "optimal", names.RUNTIME: "2h", names.CARBON_ENABLED: "false"}
    await stage.pod("priced", annotations=dear)
    await stage.look()
    noted = await stage.annotations("priced")
    assert "price-delay-timestamp" in noted
    assert "carbon-delay-timestamp" not in noted
    assert stage.counted("scheduler_compute_gardener_price_delay_total", period="") == 1
    assert stage.counted("scheduler_compute_gardener_carbon_delay_total", region=ZONE) == 0


@played(play, defaults=GridDefaults(price_enabled=True))
async def test_g3_a_window_of_both_is_booked_as_both_from_when_each_held(stage):
    stage.carbon.ahead = ahead_of(stage, 300.0, 300.0, 300.0, 100.0, 100.0, 300.0)
    stage.price.values[ZONE] = None  # not known yet
    await stage.pod("train", annotations={names.MODE: "optimal", names.RUNTIME: "2h"})
    await stage.look()
    assert "price-delay-timestamp" not in await stage.annotations("train")
    stage.price.values[ZONE] = 0.3
    stage.price.ahead = ahead_of(stage, 0.3, 0.3, 0.3, 0.1, 0.1, 0.3)
    await stage.look(HOUR_S)
    noted = await stage.annotations("train")
    assert noted["carbon-delay-timestamp"] == "2027-01-15T08:00:00Z"
    assert noted["price-delay-timestamp"] == "2027-01-15T09:00:00Z"


@played(play)
async def test_a_replica_that_stands_by_piles_up_no_news(stage):
    stage.view.stand_by()
    await stage.pod("web")
    assert not stage.view.changed
    stage.view.begin()
    await stage.look()
    assert await stage.gated() == ["web"]
    assert "carbon-delay-timestamp" in await stage.annotations("web")


# ---- who is never held, and from when on a delay counts


@played(play)
async def test_replacements_start_at_once_unless_the_pod_itself_asks(stage):
    await stage.namespace("team", annotations={names.DEFER: "true"})
    new = await stage.replica_set("new")
    running = await stage.replica_set("running", ready=1)
    collapsed = await stage.replica_set("collapsed", ready=1)
    await stage.ready("collapsed", 0)
    daemon = dict(running, kind="DaemonSet", uid="d")
    plain = {"scheduler": "default-scheduler", "namespace": NS}
    await stage.client.patch(NAMESPACES, NS, {"metadata": {"annotations": {names.DEFER: "true"}}})
    await stage.until(lambda: stage.view.namespace(NS).annotations)
    await stage.pod("first", owner=new, **plain)
    await stage.pod("another", owner=running, **plain)
    await stage.pod("recovered", owner=collapsed, **plain)
    await stage.pod("daemon", owner=daemon, **plain)
    await stage.pod("asks", owner=running)
    await stage.look()
    assert await stage.gated() == ["asks", "first"]
    assert stage.counted("joulie_grid_releases_total", reason="replacement") == 3


@played(play)
async def test_deleting_a_held_pod_does_not_restart_its_delay(stage):
    owner = await stage.replica_set("web")
    await stage.pod("web-1", owner=owner)
    await stage.look(20 * HOUR_S)
    await stage.client.delete(PODS, "web-1", NS, grace_s=0)
    await stage.pod("web-2", owner=owner)
    await stage.look(3 * HOUR_S)
    assert await stage.gated() == ["web-2"]
    await stage.look(HOUR_S)
    assert await stage.gated() == []


async def asks_for_all(stage):
    """The namespace asks that all its pods wait."""
    await stage.client.patch(NAMESPACES, NS, {"metadata": {"annotations": {names.DEFER: "true"}}})
    await stage.until(lambda: stage.view.namespace(NS).annotations)


PLAIN = {"scheduler": "default-scheduler"}


@pytest.mark.parametrize("restarted", [False, True], ids=["same controller", "controller restarted meanwhile"])
@played(play)
async def test_g7_a_rollout_of_a_deployment_that_has_run_is_not_deferred(stage, restarted):
    await asks_for_all(stage)
    deployment = await stage.deployment("web", age_s=2 * HOUR_S)
    await stage.replica_set("web-1", age_s=2 * HOUR_S, ready=1, owner=deployment)
    await stage.available("web", since_s=stage.now_s - HOUR_S)
    await stage.ready("web-1", 0)  # as with the strategy Recreate
    await stage.available("web", since_s=stage.now_s, now=False)
    if restarted:
        await stage.restart_view()
    new = await stage.replica_set("web-2", owner=deployment)
    await stage.pod("web-2-x", owner=new, **PLAIN)
    await stage.look()
    assert await stage.gated() == []
    assert stage.counted("joulie_grid_releases_total", reason="replacement") == 1


@played(play)
async def test_g7_the_first_start_of_a_deployment_waits_once_whatever_its_template(stage):
    await asks_for_all(stage)
    deployment = await stage.deployment("web")
    await stage.available("web", since_s=stage.now_s, now=False)
    first = await stage.replica_set("web-1", owner=deployment)
    await stage.pod("web-1-x", owner=first, **PLAIN)
    await stage.look(20 * HOUR_S)
    await stage.client.delete(PODS, "web-1-x", NS, grace_s=0)
    corrected = await stage.replica_set("web-2", owner=deployment)
    await stage.pod("web-2-x", owner=corrected, **PLAIN)
    await stage.look(4 * HOUR_S - 1.0)
    assert await stage.gated() == ["web-2-x"]
    await stage.look(1.0)
    assert await stage.gated() == []


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet"])
@played(play)
async def test_g7_what_is_older_than_its_delay_starts_for_the_first_time_no_more(stage, kind):
    """Nobody knows whether a StatefulSet or ReplicaSet of yesterday has run before the controller came."""
    await asks_for_all(stage)
    deployment = await stage.deployment("web", age_s=30 * HOUR_S) if kind == "Deployment" else None
    replicas = await stage.replica_set("web-1", age_s=0.0 if deployment else 30 * HOUR_S, owner=deployment)
    await stage.pod("web-1-x", owner=replicas, **PLAIN)
    await stage.look()
    assert await stage.gated() == []
    assert stage.counted("joulie_grid_releases_total", reason="replacement") == 1
    assert stage.counted("joulie_grid_late_seconds_sum") == 0.0


@played(play)
async def test_a_new_pod_of_the_same_name_is_another_pod(stage):
    await stage.pod("db-0")
    await stage.look(20 * HOUR_S)
    await stage.client.delete(PODS, "db-0", NS, grace_s=0)
    await stage.pod("db-0")
    await stage.look(20 * HOUR_S)
    assert await stage.gated() == ["db-0"]
    assert "carbon-delay-timestamp" in await stage.annotations("db-0")


@played(play)
async def test_the_deadline_of_a_job_counts(stage):
    owner = await stage.job("batch", activeDeadlineSeconds=int(4 * HOUR_S))
    await stage.pod("batch-1", owner=owner, annotations={names.RUNTIME: "3h"})
    await stage.look(HOUR_S - 1.0)
    assert await stage.gated() == ["batch-1"]
    await stage.look(1.0)
    assert await stage.gated() == []


@pytest.mark.parametrize("policy", ["Allow", "Forbid", "Replace"])
@played(play)
async def test_g8_a_cron_jobs_run_is_over_before_its_next_one(stage, policy):
    cron = await stage.cron_job("hourly", schedule="30 * * * *", concurrencyPolicy=policy)
    owner = await stage.job("hourly-29999430", owner=cron, age_s=5.0)
    await stage.pod("hourly-1", owner=owner, annotations={names.RUNTIME: "10m"})
    await stage.look(1199.0)  # the next run begins at 08:30
    assert await stage.gated() == ["hourly-1"]
    await stage.look(1.0)
    assert await stage.gated() == []
    (event,) = await stage.events("GridReleased")
    assert "needs 10 min before the next run of CronJob hourly" in event.message
    assert stage.counted("joulie_grid_late_seconds_sum") == 0.0


@played(play)
async def test_g8_the_time_zone_of_a_cron_job_counts(stage):
    cron = await stage.cron_job("night", schedule="0 3 * * *", timeZone="Asia/Kolkata")  # 21:30 UTC
    owner = await stage.job("night-1", owner=cron)
    await stage.pod("night-1", owner=owner, annotations={names.RUNTIME: "30m"})
    await stage.look(13 * HOUR_S - 1.0)
    assert await stage.gated() == ["night-1"]
    await stage.look(1.0)
    assert await stage.gated() == []


@pytest.mark.parametrize("schedule", ["*/15 * * * *", "not a schedule"])
@played(play)
async def test_g8_a_cron_job_without_time_to_wait_does_not_wait(stage, schedule):
    """A run of an hour each quarter of an hour, and a schedule that nobody can read: fail open."""
    owner = await stage.job("often-1", owner=await stage.cron_job("often", schedule=schedule))
    await stage.pod("often-1", owner=owner)
    await stage.look()
    assert await stage.gated() == []
    assert stage.counted("joulie_grid_late_seconds_sum") == 0.0


@played(play)
async def test_g8_a_cron_job_that_is_suspended_has_no_next_run(stage):
    cron = await stage.cron_job("hourly", schedule="30 * * * *", suspend=True)
    await stage.pod("hourly-1", owner=await stage.job("hourly-1", owner=cron))
    await stage.look(2 * HOUR_S)
    assert await stage.gated() == ["hourly-1"]


@played(play)
async def test_g8_an_interruptible_job_is_done_before_the_next_run_of_its_cron_job(stage):
    cron = await stage.cron_job("daily", schedule="0 8 * * *")
    await stage.job("daily-1", owner=cron, template=INTERRUPTIBLE)
    await stage.look(HOUR_S)
    assert await suspended(stage, "daily-1")
    await stage.look(21 * HOUR_S - 1.0)  # two of its three hours are left, it began at 08:00
    assert await suspended(stage, "daily-1")
    await stage.look(1.0)
    assert not await suspended(stage, "daily-1")


# ---- interruptible Jobs

INTERRUPTIBLE = {names.MODE: "interruptible", names.INTERRUPTIBLE: "true", names.RUNTIME: "3h"}


async def suspended(stage, name="train"):
    job = await stage.client.get(JOBS, name, NS)
    await stage.until(lambda: stage.view.jobs[NS, name].suspended == job.spec.suspend)
    return job.spec.suspend


async def run_on(stage, name="train"):
    """What the Job controller does of a Job that is resumed: its time begins anew."""
    status = {"status": {"startTime": rfc3339(stage.now_s)}}
    await stage.client.patch(JOBS, name, status, namespace=NS, subresource="status")
    await stage.until(lambda: stage.view.jobs[NS, name].started_s == stage.now_s)


@played(play)
async def test_an_interruptible_job_is_suspended_and_resumed(stage):
    stage.carbon.values[ZONE] = 100.0
    owner = await stage.job("train", template=INTERRUPTIBLE)
    await stage.pod("train-1", owner=owner, annotations=INTERRUPTIBLE)
    await stage.look()
    assert not await suspended(stage)
    assert await stage.gated() == []  # its pods follow the Job
    stage.carbon.values[ZONE] = 300.0
    await stage.look(HOUR_S)
    assert await suspended(stage)
    job = await stage.client.get(JOBS, "train", NS)
    assert job.metadata.annotations["joulie.io/grid-work-done"] == "3600"
    assert len(await stage.events("GridSuspended")) == 1
    stage.start()  # another leader
    await stage.look(HOUR_S)
    assert await suspended(stage)
    stage.carbon.values[ZONE] = 100.0
    await stage.look(HOUR_S)
    assert not await suspended(stage)
    assert "joulie.io/grid-suspended-since" not in (await stage.client.get(JOBS, "train", NS)).metadata.annotations
    await run_on(stage)
    stage.carbon.values[ZONE] = 300.0
    await stage.look(HOUR_S)
    job = await stage.client.get(JOBS, "train", NS)
    assert job.metadata.annotations["joulie.io/grid-work-done"] == "7200"


@played(play)
async def test_g2_pods_of_a_resumed_job_say_since_when_they_were_held(stage):
    """Each part of its run is accounted from when it would have run had nothing been suspended before."""
    owner = await stage.job("train", template=INTERRUPTIBLE)
    await stage.pod("train-0", owner=owner, annotations=INTERRUPTIBLE)
    await stage.look(60.0)  # suspended before it has run at all
    assert await suspended(stage)
    await stage.client.delete(PODS, "train-0", NS, grace_s=0)
    stage.carbon.values[ZONE] = 100.0
    await stage.look(2 * HOUR_S)
    assert not await suspended(stage)
    stage.start()  # another leader
    await run_on(stage)
    await stage.pod("train-1", owner=owner, annotations=INTERRUPTIBLE)
    await stage.look()
    assert await stage.gated() == []
    noted = await stage.annotations("train-1")
    assert noted["carbon-delay-timestamp"] == "2027-01-15T08:01:00Z"
    assert noted["initial-carbon-intensity"] == "300.00"
    assert noted["bind-time-carbon-intensity"] == "100.00"
    assert "price-delay-timestamp" not in noted

    stage.carbon.values[ZONE] = 350.0  # an hour of work is done
    await stage.look(HOUR_S)
    assert await suspended(stage)
    await stage.client.delete(PODS, "train-1", NS, grace_s=0)
    stage.carbon.values[ZONE] = 90.0
    await stage.look(5 * HOUR_S)
    await run_on(stage)
    await stage.pod("train-2", owner=owner, annotations=INTERRUPTIBLE)
    await stage.look(600.0)  # it comes ten minutes after the Job goes on
    noted = await stage.annotations("train-2")
    assert noted["carbon-delay-timestamp"] == "2027-01-15T09:11:00Z"
    assert noted["bind-time-carbon-intensity"] == "90.00"


@played(play, defaults=GridDefaults(price_enabled=True))
async def test_g2_a_job_paused_for_carbon_then_for_the_price_is_accounted_by_both(stage):
    owner = await stage.job("train", template=INTERRUPTIBLE | {names.PRICE_THRESHOLD: "0.2"})
    await stage.look(HOUR_S)
    assert await suspended(stage)
    stage.carbon.values[ZONE] = 100.0
    await stage.look(2 * HOUR_S)
    await run_on(stage)
    stage.price.values[ZONE] = 0.3
    await stage.look(HOUR_S)
    assert await suspended(stage)
    stage.price.values[ZONE] = 0.1
    await stage.look(HOUR_S)
    await run_on(stage)
    await stage.pod("train-1", owner=owner, annotations=INTERRUPTIBLE)
    await stage.look()
    noted = await stage.annotations("train-1")
    assert noted["carbon-delay-timestamp"] == "2027-01-15T10:00:00Z"  # two hours earlier, but for carbon
    assert noted["price-delay-timestamp"] == "2027-01-15T12:00:00Z"
    assert noted["initial-electricity-rate"] == "0.100000"


@played(play)
async def test_an_interruptible_job_is_resumed_to_be_done_in_time(stage):
    await stage.job("train", template=INTERRUPTIBLE | {names.MAX_DELAY: "5h"})
    await stage.look(2 * HOUR_S)
    assert await suspended(stage)
    await stage.look(5 * HOUR_S - 1.0)  # an hour is left of three, and eight are allowed
    assert await suspended(stage)
    await stage.look(1.0)
    assert not await suspended(stage)


@played(play)
async def test_trap_a_job_that_somebody_resumed_is_theirs_to_suspend(stage):
    await stage.job("train", template=INTERRUPTIBLE)
    await stage.look(HOUR_S)
    assert await suspended(stage)
    for suspend in (False, True):  # by people, who do not know of annotations
        await stage.client.patch(JOBS, "train", {"spec": {"suspend": suspend}}, namespace=NS)
        assert await suspended(stage) is suspend
        await stage.look(HOUR_S)
        assert await suspended(stage) is suspend
    stage.carbon.values[ZONE] = 10.0
    await stage.look(40 * HOUR_S)
    assert await suspended(stage)
    assert stage.counted("joulie_grid_writes_total", kind="resume") == 0


@played(play)
async def test_trap_a_suspended_job_that_asks_no_more_is_resumed(stage):
    await stage.job("train", annotations=INTERRUPTIBLE)
    await stage.look(HOUR_S)
    assert await suspended(stage)
    body = {"metadata": {"annotations": {names.MODE: "threshold"}}}
    await stage.client.patch(JOBS, "train", body, namespace=NS)
    await stage.until(lambda: stage.view.jobs[NS, "train"].asking.annotations[names.MODE] == "threshold")
    await stage.look(60.0)
    assert not await suspended(stage)


@played(play)
async def test_a_change_of_mind_is_not_written(stage):
    await stage.job("train", template=INTERRUPTIBLE)
    stage.now_s += HOUR_S
    await stage.feed.refresh()
    stage.leading = True
    worker = stage.tasks.pop()
    worker.cancel()  # nothing is written for a while
    await stage.term.step()
    stage.carbon.values[ZONE] = 10.0
    stage.now_s += 300.0
    await stage.feed.refresh()
    await stage.term.step()
    stage.tasks.append(asyncio.create_task(stage.term.writes.run()))
    await stage.term.writes.settled()
    assert not await suspended(stage)
    assert stage.counted("joulie_grid_writes_total", kind="suspend") == 0


def test_many_jobs_are_decided_in_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "JOBS_PER_STEP", 1)

    async def body(stage):
        for index in range(3):
            await stage.job(f"train-{index}", template=INTERRUPTIBLE)
        for count in (1, 2, 3):
            await stage.look(HOUR_S if count == 1 else 0.0)
            assert len([job for job in (await stage.client.list(JOBS)).items if job.spec.suspend]) == count

    play(body, tmp_path)


@pytest.mark.parametrize(
    ("job", "after"),
    [
        ({"suspend": True}, True),
        ({"suspend": False, "labels": {"kueue.x-k8s.io/queue-name": "team"}}, False),
        ({"suspend": False, "annotations": {"joulie.io/grid-suspended-since": "2027-01-15T07:00:00Z"}}, False),
        ({"suspend": False, "template": {names.MODE: "interruptible"}}, False),
    ],
    ids=["suspended by somebody else", "managed by a queue", "resumed by somebody else", "does not say so"],
)
@played(play)
async def test_jobs_of_others_are_left_alone(stage, job, after):
    await stage.job("train", **({"template": INTERRUPTIBLE} | job))
    stage.carbon.values[ZONE] = 10.0 if after else 300.0
    await stage.look(HOUR_S)
    await stage.look(HOUR_S)
    assert await suspended(stage) is after
    assert stage.counted("joulie_grid_writes_total", kind="suspend") == 0
    assert stage.counted("joulie_grid_writes_total", kind="resume") == 0


# ---- failures


def test_a_gate_that_cannot_be_lifted_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(controller, "RETRY_S", 0.0)

    async def body(stage):
        stage.carbon.values[ZONE] = 10.0
        await stage.pod("web")
        stage.cluster.fail_next(2, 500, method="PATCH", path="/pods/web")
        await stage.look()
        assert await stage.gated() == ["web"]
        assert stage.counted("joulie_grid_write_errors_total", kind="release") == 1
        await stage.look(10.0)
        assert await stage.gated() == []

    play(body, tmp_path)


@played(play)
async def test_a_pod_that_is_gone_is_no_failure(stage):
    await stage.pod("web")
    await stage.look()
    stage.carbon.values[ZONE] = 10.0
    stage.cluster.delay_watches(30.0)
    await stage.client.delete(PODS, "web", NS, grace_s=0)
    stage.now_s += 300.0
    await stage.feed.refresh()
    await stage.term.step()
    await stage.term.writes.settled()
    assert stage.counted("joulie_grid_write_errors_total", kind="release") == 0


@played(play)
async def test_trap_waiting_pods_are_never_marked_unschedulable(stage):
    before = await stage.pod("web")
    await stage.look()
    after = await stage.client.get(PODS, "web", NS)
    assert after.status == before.status
    assert after.spec == before.spec
    assert await stage.events("FailedScheduling") == []


def test_the_leader_says_that_new_pods_are_to_be_gated_but_not_in_a_dry_run(tmp_path):
    async def body(stage):
        await stage.client.create(CONFIG_MAPS, {"metadata": {"name": "joulie-grid-gating"}}, NS)
        term = asyncio.create_task(stage.term.run())
        while not (said := await stage.gating()):
            await asyncio.sleep(0)
        term.cancel()
        assert said == {"enabled": "false" if stage.settings.dry_run_enabled else "true"}

    play(body, tmp_path, namespace=NS)
    play(body, tmp_path, namespace=NS, dry_run_enabled=True)


@played(play, dry_run_enabled=True)
async def test_a_dry_run_holds_nothing_and_lets_those_go_that_wait(stage):
    await stage.pod("web", annotations={names.CARBON_DELAY_TIMESTAMP: "2027-01-15T07:00:00Z"})
    await stage.look()
    assert await stage.gated() == []


@played(play, dry_run_enabled=True)
async def test_a_dry_run_resumes_the_jobs_that_the_controller_had_suspended(stage):
    ours = {"joulie.io/grid-suspended-since": "2027-01-15T07:00:00Z"}
    await stage.job("ours", suspend=True, annotations=ours, template=INTERRUPTIBLE)
    await stage.job("theirs", suspend=True, template=INTERRUPTIBLE)
    await stage.look()
    assert not await suspended(stage, "ours")
    assert await suspended(stage, "theirs")


@played(play, holdout_share=0.5)
async def test_chance_leaves_workloads_alone_and_notes_it_on_all_that_ask(stage):
    names_of = [f"web-{number}" for number in range(8)]
    for name in names_of:
        await stage.pod(name)
    await stage.look()
    uids = {name: (await stage.client.get(PODS, name, namespace=NS)).metadata.uid for name in names_of}
    alone = {name for name, uid in uids.items() if left_out(uid, 0.5)}
    assert sorted(await stage.gated()) == sorted(set(names_of) - alone)
    stage.carbon.values[ZONE] = 100.0
    await stage.look(600.0)
    assert await stage.gated() == []
    for name in names_of:
        pod = await stage.client.get(PODS, name, namespace=NS)
        noted = pod.metadata.annotations
        assert noted[names.HOLDOUT] == ("left-alone 0.5" if name in alone else "waits 0.5")
        assert noted[names.INITIAL_CARBON_INTENSITY] == "300.00"


def test_pods_of_one_owner_are_drawn_together_and_what_does_not_ask_is_not_drawn():
    asks, silent = GridRequest(asked_by=Asked.POD), GridRequest()
    pods = [GatedPod(uid, 0.0, 0, Owner("Job", "train", "job-uid"), Asking()) for uid in ("a", "b", "c")]

    def drawn(pod, request, settled=None):
        deferral = pending.Deferral(ZONE, Waiting(request, 0.0), settled)
        return deferrals.by_chance(Key(NS, "pod"), pod, deferral, pod.owner, (), 0.5)

    assert len({drawn(pod, asks).drawn for pod in pods}) == 1
    assert drawn(pods[0], silent).drawn is None
    assert drawn(pods[0], replace(asks, skip=True)).drawn is None
    never = Release(ReleaseReason.REPLACEMENT, "")
    assert drawn(pods[0], asks, never).settled is never
    plain = pending.Deferral(ZONE, Waiting(asks, 0.0))
    assert deferrals.by_chance(Key(NS, "pod"), pods[0], plain, None, (), 0.0) is plain


DAY_S = 86400.0
JULY = WorkloadProtocol(EPOCH_S, EPOCH_S + DAY_S, 7)


async def begin_trial(stage, protocol=JULY, name="july"):
    await stage.client.create(POWER_TRIALS, {"metadata": {"name": name}, "spec": {"judges": "deferral"}})
    status = {"status": {"workloads": msgspec.to_builtins(stored_workload_protocol(protocol))}}
    await stage.client.patch(POWER_TRIALS, name, status, subresource="status")
    await stage.term.trials.look()


@played(play, holdout_share=0.5)
async def test_a_trial_draws_whole_workloads_in_place_of_the_holdout(stage):
    await stage.pod("before")
    stage.now_s = stage.clock.now_s = EPOCH_S + 60.0
    await begin_trial(stage, WorkloadProtocol(EPOCH_S + 30.0, EPOCH_S + DAY_S, 7))
    workloads = [f"train-{letter}" for letter in "abcdefgh"]
    for workload in workloads:
        for run in (1, 2):  # two runs of one CronJob are one draw
            owner = await stage.job(f"{workload}-2938475{run}")
            await stage.pod(f"{workload}-2938475{run}-x", owner=owner)
    await stage.look()
    at_once = {one for one in workloads if JULY.arm_of(NS, one) is Arm.CONTROL}
    assert 0 < len(at_once) < 8
    waiting = set(await stage.gated()) - {"before"}
    assert waiting == {f"{one}-2938475{run}-x" for one in set(workloads) - at_once for run in (1, 2)}
    stage.carbon.values[ZONE] = 100.0
    await stage.look(600.0)
    for workload in workloads:
        noted = (await stage.client.get(PODS, f"{workload}-29384751-x", namespace=NS)).metadata.annotations
        assert noted[names.TRIAL] == f"july {'at-once' if workload in at_once else 'waits'} {workload}"
        assert names.HOLDOUT not in noted
    noted = (await stage.client.get(PODS, "before", namespace=NS)).metadata.annotations
    assert (names.TRIAL in noted, names.HOLDOUT in noted) == (False, True), "created before the trial"


@played(play)
async def test_a_trial_that_begins_or_cannot_be_read_changes_no_pod_of_before(stage):
    await stage.pod("web")
    await stage.look()
    broken = WorkloadProtocol(EPOCH_S, EPOCH_S + DAY_S, 7)
    await begin_trial(stage, broken)
    status = {"status": {"workloads": {"startTime": "soon", "endTime": "late", "seed": 1}}}
    await stage.client.patch(POWER_TRIALS, "july", status, subresource="status")
    await stage.term.trials.look()
    assert stage.term.trials.known == ()
    await stage.look()
    assert await stage.gated() == ["web"]


@played(play, mode=Mode.OBSERVE)
async def test_observed_namespaces_take_no_part_in_a_trial(stage):
    await begin_trial(stage)
    for number in range(6):
        await stage.pod(f"web-{number}")
    await stage.look()
    assert await stage.gated() == []
    for number in range(6):
        pod = await stage.client.get(PODS, f"web-{number}", namespace=NS)
        assert names.TRIAL not in pod.metadata.annotations


def test_what_is_odd_about_one_pod_holds_no_other(tmp_path, monkeypatch):
    def deferral_of(key, pod, view):
        if key.name == "odd":
            raise ValueError("odd")
        return deferrals.deferral_of(key, pod, view)

    monkeypatch.setattr(controller, "deferral_of", deferral_of)

    async def body(stage):
        stage.carbon.values[ZONE] = 10.0
        for name in ("a", "odd", "z"):
            await stage.pod(name)
        await stage.look()
        assert await stage.gated() == ["odd"]

    play(body, tmp_path)


@pytest.mark.parametrize(("decider", "name"), [(pending, "choose"), (jobs, "decide")], ids=["pods", "Jobs"])
def test_what_cannot_be_decided_holds_nobody(tmp_path, monkeypatch, decider, name):
    def broken(*_arguments):
        raise ValueError("a forecast that no one can read")

    monkeypatch.setattr(decider, name, broken)

    async def body(stage):
        template = INTERRUPTIBLE if decider is jobs else {}
        owner = await stage.job("train", template=template)
        await stage.pod("train-1", owner=owner, annotations=template)
        await stage.look()
        assert await stage.gated() == []
        if decider is jobs:
            assert not await suspended(stage)

    play(body, tmp_path)
