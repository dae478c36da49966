"""Grid deferral on the real control plane: who waits, who goes and when, and that no outage holds anybody longer."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import count
from pathlib import Path

import msgspec
import pytest

from joulie.adapters.kubernetes.api.v1alpha1 import PowerTrial
from joulie.adapters.kubernetes.power_trials import workload_protocol_of
from joulie.domain.grid import names
from joulie.domain.trial.holdout import left_out
from joulie.domain.trial.protocol import Arm
from joulie.domain.trial.workload_protocol import WorkloadProtocol
from joulie_lab.control_plane import LocalControlPlane, wait_for
from support.grid_site import (
    KEY,
    MAX_CACHE_AGE_S,
    NAMESPACE,
    PATIENCE_S,
    ElectricityMaps,
    Json,
    Namespace,
    Site,
    gates,
    job,
    now_s,
    pod,
    said,
    template,
    write_time_zone,
)

pytestmark = [pytest.mark.control_plane, pytest.mark.slow, pytest.mark.usefixtures("nightly")]

LABELLED = {names.POLICIES_LABEL: names.POLICIES_ENABLED}
DEFAULT: Json = {"schedulerName": "default-scheduler"}
INTERRUPTIBLE = {names.MODE: "interruptible", names.INTERRUPTIBLE: "true"}
CLEAN, DIRTY = 100.0, 400.0
TRIAL = "/apis/joulie.io/v1alpha1/powertrials/winter"


@pytest.fixture(scope="module")
def site(plane: LocalControlPlane) -> Iterator[Site]:
    maps = ElectricityMaps()
    site = Site(plane, maps)
    site.start_controller()
    yield site
    maps.close()


@pytest.fixture(scope="module")
def nightly(site: Site) -> Namespace:
    """A CronJob that is due within two minutes and then a day later, while other tests run."""
    site.maps.values["PL"] = DIRTY
    here = site.namespace("nightly")
    made = template(in_zone("PL", carbon_intensity_threshold="150.0"), restartPolicy="Never")
    spec = {
        "schedule": time.strftime("%M %H * * *", time.gmtime(now_s() + 90.0)),
        "timeZone": "Etc/UTC",
        "concurrencyPolicy": "Forbid",
        "jobTemplate": {"spec": {"template": made}},
    }
    here.create({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "batch"}, "spec": spec})
    return here


def in_zone(zone: str, **annotations: str) -> dict[str, str]:
    """Annotations of a pod of a zone; keys as the seed names them, with underscores."""
    return {names.ZONE: zone, **{names.PREFIX + key.replace("_", "-"): value for key, value in annotations.items()}}


def test_a_threshold_crossing_releases_pods_jobs_and_deployments(site: Site) -> None:
    zone = "DE"
    site.maps.values[zone] = DIRTY
    here = site.namespace("crossing")
    asked = in_zone(zone, carbon_intensity_threshold="250.0", max_scheduling_delay="12h")
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "service"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "it"}}, "template": template(asked)},
    }
    here.create(pod("plain", asked), job("batch", asked), deployment)
    (plain, batch) = here.await_held("plain", "batch")
    assert said(plain, names.INITIAL_CARBON_INTENSITY) == "400.00"
    here.await_event("GridHold", lambda note: "carbon intensity 400 gCO2eq/kWh (DE, electricity-maps" in note)
    assert not plain["spec"].get("nodeName")
    assert not batch["spec"].get("nodeName")
    wait_for(lambda: [gates(one) for one in here.pods()] == 4 * [[names.GATE]], 90, "all four are gated")

    site.maps.values[zone] = 250.0  # equal to the threshold runs
    wait_for(lambda: all(one["spec"].get("nodeName") for one in here.pods()), PATIENCE_S, "all of them are bound")
    owners = {one["metadata"].get("ownerReferences", [{"kind": "none"}])[0]["kind"] for one in here.pods()}
    assert owners == {"none", "Job", "ReplicaSet"}
    (plain,) = here.await_bound("plain")
    assert said(plain, names.BIND_CARBON_INTENSITY) == "250.00"
    assert said(plain, names.BIND_TIMESTAMP) >= said(plain, names.CARBON_DELAY_TIMESTAMP)
    here.await_event("GridReleased", lambda note: "within 250" in note)


def test_who_opts_out_or_does_not_ask_is_not_held(site: Site) -> None:
    zone = "FR"
    site.maps.values[zone] = DIRTY
    here = site.namespace("opting-out")
    here.create(
        pod("out", {**in_zone(zone), names.DEFER: "false"}),
        pod("skip", in_zone(zone, skip="true")),
        pod("other", in_zone(zone), **DEFAULT),
        pod("unaware", in_zone(zone, carbon_enabled="false")),
        pod("waits", in_zone(zone)),
        pod("asks", {**in_zone(zone), names.DEFER: "true"}, **DEFAULT),
    )
    for free in ("out", "skip", "other"):
        assert gates(here.pod(free)) == [], free
    here.await_bound("out", "skip", "other", "unaware")
    here.await_held("waits", "asks")


def test_a_namespace_says_how_and_overrides_for_a_type_and_asks_for_all(site: Site) -> None:
    zone = "GB"
    site.maps.values[zone] = 300.0
    key = "carbon-intensity-threshold"
    policies = {
        names.POLICY_PREFIX + key: "100",
        f"{names.WORKLOAD_PREFIX}batch-policy-{key}": "350",
        names.ZONE: zone,
    }
    here = site.namespace("policies", labels=LABELLED, annotations=policies)
    here.create(
        pod("by-policy"),
        job("by-override", {}),
        pod("by-itself", in_zone(zone, carbon_intensity_threshold="320")),
        pod("elsewhere", **DEFAULT),
    )
    here.await_bound("by-override", "by-itself", "elsewhere")
    here.await_held("by-policy")

    asking = site.namespace("asking", annotations={names.DEFER: "true", names.ZONE: zone})
    asking.create(pod("all", **DEFAULT), pod("but-me", {names.DEFER: "false"}, **DEFAULT))
    asking.await_bound("but-me")
    asking.await_held("all")


def test_a_malformed_annotation_is_told_and_ignored(site: Site) -> None:
    zone = "NL"
    site.maps.values[zone] = 300.0
    here = site.namespace("malformed")
    here.create(
        pod("high", in_zone(zone, carbon_intensity_threshold="NaN")),
        pod("long", in_zone(zone, carbon_intensity_threshold="350", max_scheduling_delay="a while")),
    )
    here.await_held("high")  # by the default of 200
    here.await_bound("long")
    here.await_event("InvalidAnnotation", lambda note: names.CARBON_THRESHOLD in note and "'NaN'" in note)
    here.await_event("InvalidAnnotation", lambda note: names.MAX_DELAY in note and "'a while'" in note)


def test_an_interruptible_job_is_suspended_and_goes_on_in_time(site: Site) -> None:
    zone = "CZ"
    site.maps.values[zone] = DIRTY
    here = site.namespace("interruptible")
    here.create(
        job("short", in_zone(zone, max_scheduling_delay="10s") | INTERRUPTIBLE),
        job("long", in_zone(zone) | INTERRUPTIBLE),
        job("others", in_zone(zone) | INTERRUPTIBLE, suspend=True),
    )
    wait_for(lambda: _suspended(here, "short") and _suspended(here, "long"), 90, "the Jobs are suspended")
    wait_for(lambda: not here.pods(), 90, "their pods are gone")
    here.await_bound("short-")
    assert _suspended(here, "long")
    site.maps.values[zone] = CLEAN
    here.await_bound("long-")
    assert _suspended(here, "others"), "whom somebody else has suspended"


def test_a_dead_api_holds_nobody_past_the_longest_delay_nor_for_long(site: Site) -> None:
    zone = "BE"
    site.maps.values[zone] = DIRTY
    here = site.namespace("dead-api")
    here.create(pod("patient", in_zone(zone)))
    here.await_held("patient")
    began_s = now_s()
    site.maps.dead.add(zone)
    here.create(pod("hasty", in_zone(zone, max_scheduling_delay="6s")))
    here.await_held("hasty")  # by the last good value
    here.await_bound("hasty")
    here.await_event("GridReleased", lambda note: "longest delay" in note)
    # The last good value ages, then the signal is missing, and missing holds nobody.
    here.await_bound("patient", timeout_s=MAX_CACHE_AGE_S + PATIENCE_S)
    assert now_s() - began_s > MAX_CACHE_AGE_S / 2
    hasty, patient = here.pod("hasty"), here.pod("patient")
    assert _epoch_s(said(hasty, names.BIND_TIMESTAMP)) < _epoch_s(said(patient, names.BIND_TIMESTAMP))
    here.await_event("GridSignalMissing", lambda note: zone in note)
    here.create(pod("newcomer", in_zone(zone)))
    (newcomer,) = here.await_bound("newcomer")
    assert said(newcomer, names.INITIAL_CARBON_INTENSITY) == "", "what is not known is not noted as zero"


def test_other_pods_bind_at_full_speed_while_the_api_hangs(site: Site) -> None:
    zone = "AT"
    site.maps.values[zone] = DIRTY
    here = site.namespace("full-speed")
    here.create(*(pod(f"held-{number}", in_zone(zone)) for number in range(20)))
    here.await_held("held-19")

    def bound(name: str) -> int:
        return sum(bool(one["spec"].get("nodeName")) for one in here.pods() if one["metadata"]["name"].startswith(name))

    site.maps.hanging.add(zone)
    wait_for(lambda: zone in site.maps.kept_waiting, 90.0, "the API is asked again")
    asked = site.maps.asked[zone]
    here.create(*(pod(f"other-{number:02}", **DEFAULT) for number in range(60)))
    wait_for(lambda: bound("other") == 60, 60.0, "the others are bound while the API hangs")
    assert site.maps.asked[zone] - asked < 60, "nobody asks for each pod; an answer that does not come takes 2 s"
    site.maps.hanging.discard(zone)
    assert bound("held") == 0


def test_a_threshold_crossing_releases_the_pods_of_a_cronjob(site: Site, nightly: Namespace) -> None:
    nightly.await_held("batch-", timeout_s=PATIENCE_S)
    site.maps.values["PL"] = CLEAN
    (done,) = nightly.await_bound("batch-")
    assert said(done, names.BIND_CARBON_INTENSITY) == "100.00"
    site.plane.kubectl("delete", "cronjob", "batch", "-n", nightly.name)


def test_g8_a_cron_job_that_is_replaced_each_minute_runs_on_a_dirty_grid(site: Site) -> None:
    zone = "CZ"
    site.maps.values[zone] = DIRTY
    here = site.namespace("minutely")
    made = template(in_zone(zone), restartPolicy="Never")
    spec = {"schedule": "* * * * *", "concurrencyPolicy": "Replace", "jobTemplate": {"spec": {"template": made}}}
    here.create({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "often"}, "spec": spec})
    here.await_bound("often-")
    here.await_event("GridReleased", lambda note: "before the next run of CronJob often" in note)
    site.plane.kubectl("delete", "cronjob", "often", "-n", here.name)


def test_g7_a_service_is_not_deferred_while_it_is_recreated(site: Site) -> None:
    zone = "AT"
    site.maps.values[zone] = CLEAN
    here = site.namespace("recreated", annotations={names.DEFER: "true", names.ZONE: zone})
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "service"},
        "spec": {
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app": "it"}},
            "template": template({}, **DEFAULT),
        },
    }
    here.create(deployment)
    path = f"/apis/apps/v1/namespaces/{here.name}/deployments/service"
    wait_for(lambda: site.plane.request("GET", path)["status"].get("readyReplicas"), PATIENCE_S, "the service is ready")
    (first,) = here.await_bound("service-")

    site.maps.values[zone] = DIRTY
    for number in range(30):  # until the controller has asked again, after which it holds what comes
        here.create(pod(f"probe-{number:02}", in_zone(zone)))
        here.await_decided(f"probe-{number:02}")
        if gates(here.pod(f"probe-{number:02}")):
            break
    here.await_held(f"probe-{number:02}")
    change = {"spec": {"template": {"metadata": {"annotations": {"example.com/version": "2"}}}}}
    site.plane.kubectl("patch", "deployment", "service", "-n", here.name, "-p", json.dumps(change))

    def recreated() -> bool:
        return any(one["spec"].get("nodeName") and one["metadata"]["uid"] != first["metadata"]["uid"]
                   for one in here.pods())  # fmt: skip

    wait_for(recreated, PATIENCE_S, "the new pod is bound")


def test_a_dead_controller_holds_nobody_past_the_longest_delay(site: Site) -> None:
    zone = "ES"
    site.maps.values[zone] = DIRTY
    here = site.namespace("dead-controller")
    here.create(pod("due", in_zone(zone, max_scheduling_delay="15s")), pod("early", in_zone(zone)))
    here.await_held("due", "early")
    here.create(job("paused", in_zone(zone, max_scheduling_delay="15s") | INTERRUPTIBLE))
    wait_for(lambda: _suspended(here, "paused"), 90, "the Job is suspended")
    assert site.controller is not None
    site.controller.process.kill()
    guard = site.start_guard()
    try:
        here.await_bound("due")
        wait_for(lambda: not site.gates_new_pods(), 90, "new pods are not gated any more")
        here.await_bound("paused-", timeout_s=45.0)
        assert gates(here.pod("early")) == [names.GATE], "it may wait on"
    finally:
        guard.stop()
    site.controller.start()
    wait_for(site.gates_new_pods, 90, "the controller turns gating on again")
    (early,) = here.await_held("early")
    site.maps.values[zone] = CLEAN
    here.await_bound("early")
    assert said(early, names.INITIAL_CARBON_INTENSITY) == "400.00"


def test_trap_a_peak_over_midnight_ends_when_clocks_are_set(site: Site, tmp_path: Path) -> None:
    """The window began yesterday, local time, and would last 30 minutes more if the clock were not put forward."""
    # A machine that is too slow to see the peak before the clock is put forward gets more time.
    here, put_forward_s = next(found for ahead_s in (30, 90, 270) if (found := _peak(site, tmp_path, ahead_s)))
    (off_peak, _below) = here.await_held("off-peak", "below")
    assert said(off_peak, names.PRICE_DELAY_TIMESTAMP)
    assert said(off_peak, names.INITIAL_ELECTRICITY_RATE) == "0.300000"
    here.await_event("GridHold", lambda note: "price 0.3/kWh" in note and "in its peak period" in note)
    (off_peak, _below) = here.await_bound("off-peak", "below")
    assert _epoch_s(said(off_peak, names.BIND_TIMESTAMP)) >= put_forward_s - 1.0
    assert said(off_peak, names.BIND_ELECTRICITY_RATE) == "0.100000"


def _peak(site: Site, folder: Path, ahead_s: int) -> tuple[Namespace, int] | None:
    """Pods that a peak holds until the clock is put forward, and when it is, s; None where that was before they came.

    Args:
        site: gets a controller of prices.
        folder: for the time zone and the schedules.
        ahead_s: time until the clock is put forward, s.
    """
    put_forward_s = int(now_s()) + ahead_s
    # Local time is 02:00 when it becomes 03:00; the day of the week is that of yesterday.
    offset_s = (2 * 3600 - put_forward_s) % 86400
    offset_s -= 86400 if offset_s > 43200 else 0
    zones = folder / f"zones-{ahead_s}"
    write_time_zone(zones, "Test/Forward", offset_s, [(put_forward_s, offset_s + 3600)])
    local_day = int((put_forward_s + offset_s) // 86400)
    yesterday = (local_day + 3) % 7  # the epoch began on a Thursday, which is 4
    schedules = folder / f"schedules-{ahead_s}.yaml"
    schedules.write_text(
        f'schedules: [{{name: night, dayOfWeek: "{yesterday}", startTime: "22:00", endTime: "02:30", '
        "timezone: Test/Forward, peakRate: 0.30, offPeakRate: 0.10}]\n"
    )
    site.start_controller(
        f"grid-prices-{ahead_s}",
        CARBON_ENABLED="false",
        PRICING_ENABLED="true",
        PRICING_SCHEDULES_PATH=str(schedules),
        PYTHONTZPATH=str(zones),
    )
    here = site.namespace(f"prices-{ahead_s}")
    here.create(
        pod("off-peak"),
        pod("below", {names.PRICE_THRESHOLD: "0.12"}),
        pod("rich", {names.PRICE_THRESHOLD: "0.40"}),
    )
    here.await_bound("rich")
    here.await_decided("off-peak", "below")
    waits = all(gates(here.pod(name)) for name in ("off-peak", "below"))
    return (here, put_forward_s) if waits and now_s() < put_forward_s else None


def test_a_trial_of_deferral_draws_in_the_holdouts_place_until_it_is_stopped(site: Site) -> None:
    """By the draw of the operator; before and after it GRID_HOLDOUT leaves half of the workloads alone."""
    zone = "DK"
    site.maps.values[zone] = DIRTY
    site.start_controller("grid-drawn", GRID_HOLDOUT="0.5")
    here = site.namespace("drawn")
    singles = [f"single-{number}" for number in range(6)]
    here.create(*(pod(name, in_zone(zone)) for name in singles))
    for name in singles:
        if left_out(here.pod(name)["metadata"]["uid"], 0.5):
            (found,) = here.await_bound(name)
            assert said(found, names.HOLDOUT) == "left-alone 0.5"
        else:
            here.await_held(name)

    operator = site.start_operator()
    protocol = _begin_trial(site)
    workloads = [f"nightly-of-{number:02}" for number in range(60)]
    at_once, (waits, *_) = ([one for one in workloads if protocol.arm_of(here.name, one) is arm] for arm in Arm)

    def held_at_first(name: str) -> bool:
        here.create(job(name, in_zone(zone)))
        here.await_decided(name)
        return not said(here.pod(name), names.HOLDOUT)

    # The controller looks at trials every ten seconds; until then the holdout draws, and may let a workload go.
    first = next(filter(held_at_first, at_once[1:]))
    wait_for(lambda: said(here.pod(first), names.TRIAL), PATIENCE_S, "the controller follows the trial")
    here.create(job(waits, in_zone(zone)), job(at_once[0], in_zone(zone)))
    (found,) = here.await_bound(at_once[0])
    assert (said(found, names.TRIAL), said(found, names.HOLDOUT)) == (f"winter at-once {at_once[0]}", "")
    here.await_event("GridReleased", lambda note: "starts at once, by chance, in trial winter" in note)
    here.await_held(waits)

    site.plane.kubectl("patch", "powertrial", "winter", "--type=merge", "-p", '{"spec":{"stop":true}}')

    def stopped() -> bool:
        one = msgspec.convert(site.plane.request("GET", TRIAL), PowerTrial)
        ended = workload_protocol_of(one)
        assert ended is not None
        return one.status.conditions[0].reason == "Stopped" and ended.end_s <= now_s()

    wait_for(stopped, PATIENCE_S, "the draw ends")
    here.await_held(waits)
    site.maps.values[zone] = CLEAN
    (found,) = here.await_bound(waits)
    assert (said(found, names.TRIAL), said(found, names.HOLDOUT)) == (f"winter waits {waits}", "")
    late = (f"late-{number:03}" for number in count())

    def drawn_by_holdout() -> bool:
        name = next(late)
        here.create(pod(name, in_zone(zone)))
        (found,) = here.await_bound(name)
        return bool(said(found, names.HOLDOUT)) and not said(found, names.TRIAL)

    wait_for(drawn_by_holdout, PATIENCE_S, "the holdout draws again", poll_s=1.0)
    operator.process.stop()


def _begin_trial(site: Site) -> WorkloadProtocol:
    """Create a trial of deferral, and wait until the operator has drawn it."""
    body = {"apiVersion": "joulie.io/v1alpha1", "kind": "PowerTrial", "metadata": {"name": "winter"},
            "spec": {"judges": "deferral", "days": 1}}  # fmt: skip
    site.plane.request("POST", TRIAL.rpartition("/")[0], body)

    def drawn() -> WorkloadProtocol:
        found = workload_protocol_of(msgspec.convert(site.plane.request("GET", TRIAL), PowerTrial))
        assert found is not None
        return found

    return wait_for(drawn, PATIENCE_S, "the operator draws the trial")


def test_r3_held_pods_are_bound_before_the_grid_and_its_scheduler_go(site: Site) -> None:
    """What the hook of an upgrade with grid.enabled=false does, before helm deletes anything."""
    zone = "SE"
    site.maps.values[zone] = DIRTY
    site.start_controller("grid-leaving")
    here = site.namespace("leaving")
    here.create(pod("first", in_zone(zone)), pod("second", in_zone(zone)))
    here.await_held("first", "second")
    site.plane.stop("kube-scheduler")
    cleanup = site.plane.spawn(
        "cleanup",
        [sys.executable, "-m", "joulie", "cleanup"],
        environment={
            "KUBECONFIG": str(site.plane.kubeconfig_for("joulie-cleanup", NAMESPACE)),
            "POD_NAMESPACE": NAMESPACE,
            "CLEANUP_ONLY_GRID": "true",
            "SCHEDULER_NAMES": names.SCHEDULER_NAME,
        },
    )
    wait_for(
        lambda: "waiting for pods to be scheduled" in cleanup.log_tail(), 60.0, "the cleanup waits for a scheduler"
    )
    assert [gates(one) for one in here.pods()] == [[], []]
    assert cleanup.running
    site.plane.start("kube-scheduler")
    here.await_bound("first", "second")
    wait_for(lambda: not cleanup.running, 60.0, "the cleanup ends")
    assert "not scheduled" not in cleanup.log_tail()


def test_nothing_was_refused_and_no_key_was_told(site: Site) -> None:
    """The chart's rights were enough for all of the above, and the key went to the API alone."""
    refused = [
        f"{event['user']['username']} {event['requestURI']}"
        for event in site.plane.audit_events()
        if event.get("responseStatus", {}).get("code") == 403
    ]
    assert refused == []
    assert site.maps.keys == {KEY}
    for log in site.plane.log_folder.glob("*.log"):
        assert KEY not in log.read_text(errors="replace"), log.name
    assert KEY not in site.plane.kubectl("get", "pods,events,configmaps", "-A", "-o", "json")


def _suspended(here: Namespace, name: str) -> bool:
    found = here.site.plane.request("GET", f"/apis/batch/v1/namespaces/{here.name}/jobs/{name}")
    return bool(found["spec"].get("suspend"))


def _epoch_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
