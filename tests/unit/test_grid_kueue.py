"""AdmissionChecks of Kueue: what is kept of its objects, what is said of them, and failures."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.kubernetes.api.kueue import AdmissionCheck, Workload
from joulie.adapters.kubernetes.api.meta import ObjectMeta, OwnerReference
from joulie.adapters.kubernetes.client import KubeClient, RetryPolicy
from joulie.adapters.kubernetes.connection import connect
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.adapters.kubernetes.kueue import (
    CONTROLLER_NAME,
    GATED_BY,
    GROUP,
    VERSIONS,
    KueueResources,
    QueuedObject,
    find_kueue,
    release_workloads,
)
from joulie.adapters.kubernetes.resources import JOBS, PODS
from joulie.adapters.kubernetes.times import parse_rfc3339
from joulie.apps.grid import kueue
from joulie.apps.grid.facts import Owner
from joulie.apps.grid.kueue import KueueChecks
from joulie.apps.grid.kueue_answers import as_pod, keep_check, keep_workload, pod_set_updates, ready, retry
from joulie.apps.grid.kueue_settings import KueueMode
from joulie.apps.grid.leader import Leader
from joulie.apps.grid.observe import GridView
from joulie.apps.grid.settings import ControllerSettings
from joulie.domain.grid import names
from joulie.domain.grid.deferral import Conditions, Hold, HoldReason, ReleaseReason
from joulie.domain.grid.request import GridDefaults
from joulie.domain.grid.signals import Basis, GridSignal, Measure, Provenance
from joulie.domain.signal import Quality
from joulie_lab.fakes.kubernetes import FakeCluster
from support.kueue_stage import Kueue

CREATED = "2026-03-13T10:00:00Z"
CREATED_S = parse_rfc3339(CREATED)
NOW_S = CREATED_S + 600.0
RESOURCES = KueueResources.for_version("v1beta2")


def workload(
    *, checks=("Pending",), requeue_at=None, active=True, pods=None, annotations=None, deleted=None, **conditions
):
    pods = [("main", {}, "")] if pods is None else pods
    body = {
        "metadata": {
            "name": "train",
            "namespace": "default",
            "uid": "u-1",
            "resourceVersion": "7",
            "creationTimestamp": CREATED,
            "deletionTimestamp": deleted,
            "annotations": annotations or {},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j-1", "controller": True}
            ],
        },
        "spec": {
            "active": active,
            "podSets": [
                {"name": name, "template": {"metadata": {"annotations": said}, "spec": {"schedulerName": scheduler}}}
                for name, said, scheduler in pods
            ],
        },
        "status": {
            "conditions": [{"type": kind, "status": holds} for kind, holds in conditions.items()],
            "admissionChecks": [
                {"name": f"check-{number}", "state": state, "lastTransitionTime": CREATED, "message": ""}
                for number, state in enumerate(checks)
            ],
            "requeueState": None if requeue_at is None else {"requeueAt": requeue_at},
        },
    }
    return msgspec.convert(body, Workload)


def carbon(intensity):
    if intensity is None:
        return Conditions(GridSignal(Measure.CARBON, "DE", problem="no answer"))
    return Conditions(
        GridSignal(Measure.CARBON, "DE", Quality.FRESH, intensity, NOW_S, Provenance("static", "DE", Basis.AVERAGE))
    )


# ---- what is kept


def test_a_workload_with_quota_that_waits_for_a_check_is_kept():
    kept = keep_workload(workload(QuotaReserved="True", Evicted="False", checks=("Ready", "Pending")))
    assert (kept.uid, kept.version, kept.created_s) == ("u-1", "7", CREATED_S)
    assert kept.owners[0].kind == "Job"
    assert kept.pending == ("check-1",)


@pytest.mark.parametrize(
    "found",
    [
        workload(),
        workload(QuotaReserved="False"),
        workload(QuotaReserved="True", Finished="True"),
        workload(QuotaReserved="True", active=False),
        workload(QuotaReserved="True", deleted=CREATED),
        workload(QuotaReserved="True", checks=("Retry", "Ready", "Rejected")),
        workload(QuotaReserved="True", checks=()),
    ],
)
def test_others_are_not(found):
    assert keep_workload(found) is None


def test_trap_a_workload_that_is_being_evicted_is_let_alone():
    # Kueue never looks at a Retry that is written between the reset of a check and the end of the eviction.
    assert keep_workload(workload(QuotaReserved="True", Evicted="True")) is None


LATER = "2026-03-13T10:10:00Z"


def test_trap_a_workload_that_kueue_delays_keeps_its_quota():
    # It is evicted with all its checks: what others said was for quota that it has no more.
    kept = keep_workload(workload(QuotaReserved="True", checks=("Ready", "Retry"), requeue_at=LATER))
    assert kept.pending == ()
    assert [(one.name, one.state) for one in kept.delayed] == [("check-0", "Ready"), ("check-1", "Retry")]


@pytest.mark.parametrize(
    "found",
    [
        workload(QuotaReserved="False", checks=("Retry",), requeue_at=LATER),
        workload(QuotaReserved="True", Evicted="True", checks=("Retry",), requeue_at=LATER),
        workload(QuotaReserved="True", Admitted="True", checks=("Retry",), requeue_at=LATER),
        workload(QuotaReserved="True", checks=("Retry",), requeue_at=LATER, active=False),
        workload(QuotaReserved="True", checks=("Retry", "Rejected"), requeue_at=LATER),
        workload(QuotaReserved="True", checks=("Ready",), requeue_at=LATER),
        # Kueue has not noted the delay yet: evicted now, it would be queued at once.
        workload(QuotaReserved="True", checks=("Retry",)),
        workload(QuotaReserved="True", checks=("Retry",), requeue_at=CREATED),
    ],
)
def test_others_are_not_evicted(found):
    assert keep_workload(found) is None


def test_pods_that_start_together_ask_together():
    pods = [
        ("driver", {names.MAX_DELAY: "2h", "example.com/x": "y"}, ""),
        ("workers", {names.MAX_DELAY: "9h", names.CARBON_THRESHOLD: "100"}, names.SCHEDULER_NAME),
    ]
    kept = keep_workload(workload(QuotaReserved="True", pods=pods))
    assert kept.asking.scheduler_name == names.SCHEDULER_NAME
    assert kept.asking.annotations == {names.MAX_DELAY: "2h", names.CARBON_THRESHOLD: "100"}
    assert keep_workload(workload(QuotaReserved="True", pods=[])).asking.annotations == {}


def test_only_checks_of_ours_are_kept():
    def check(controller, *conditions):
        body = {
            "metadata": {"name": "grid", "resourceVersion": "3", "generation": 2},
            "spec": {"controllerName": controller},
            "status": {"conditions": [{"type": kind, "status": holds} for kind, holds in conditions]},
        }
        return keep_check(msgspec.convert(body, AdmissionCheck))

    assert check("example.com/other") is None
    assert check(CONTROLLER_NAME).active is False
    assert check(CONTROLLER_NAME, ("Active", "False")).active is False
    assert check(CONTROLLER_NAME, ("Active", "True")).active is True


# ---- what is said


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e6), st.floats(1.0, 86400.0))
def test_a_workload_is_never_out_of_its_queue_past_its_latest_start(wake_s, latest_s, longest_s):
    hold = Hold(HoldReason.CARBON, "dirty", NOW_S + min(wake_s, latest_s), NOW_S + latest_s)
    (state,) = retry(["grid"], hold, NOW_S, longest_s)
    assert state.state == "Retry"
    assert state.requeue_after_seconds >= 1  # without, Kueue would ask again and again
    assert state.requeue_after_seconds <= max(1.0, min(wake_s, latest_s, longest_s))


def test_pods_say_what_gated_ones_say_and_are_not_gated_again():
    notes = {names.CARBON_DELAY_TIMESTAMP: CREATED, names.INITIAL_CARBON_INTENSITY: "300.00", names.ZONE: "DE"}
    kept = keep_workload(workload(QuotaReserved="True", annotations=notes))
    (update,) = pod_set_updates(kept, [], carbon(120.0), NOW_S)
    assert update.name == "main"
    assert update.annotations == {
        names.SKIP: "true",
        names.CARBON_DELAY_TIMESTAMP: CREATED,
        names.INITIAL_CARBON_INTENSITY: "300.00",
        names.BIND_CARBON_INTENSITY: "120.00",
        names.BIND_TIMESTAMP: "2026-03-13T10:10:00Z",
    }


def test_trap_what_pods_say_already_is_never_changed():
    # Kueue refuses to admit a workload of which a check changes an annotation.
    pods = [("driver", {names.SKIP: "false", names.BIND_TIMESTAMP: "x"}, ""), ("workers", {}, "")]
    kept = keep_workload(workload(QuotaReserved="True", pods=pods))
    driver, workers = pod_set_updates(kept, [], carbon(120.0), NOW_S)
    assert driver.annotations.keys().isdisjoint(pods[0][1])
    assert workers.annotations[names.SKIP] == "true"


def test_each_set_of_pods_has_an_update():
    said = dict.fromkeys((names.SKIP, names.BIND_TIMESTAMP), "x")
    kept = keep_workload(workload(QuotaReserved="True", pods=[("driver", said, ""), ("workers", {}, "")]))
    driver, workers = pod_set_updates(kept, [], Conditions(), NOW_S)
    assert (driver.name, driver.annotations) == ("driver", {})
    assert (workers.name, workers.annotations[names.SKIP]) == ("workers", "true")


def test_two_checks_do_not_both_change_the_pods():
    kept = keep_workload(workload(QuotaReserved="True"))
    first, second = ready(["a", "b"], "clean", NOW_S, pod_set_updates(kept, [], Conditions(), NOW_S))
    assert first.pod_set_updates
    assert not second.pod_set_updates
    assert (first.state, second.state) == ("Ready", "Ready")


# ---- on the fake cluster


def kinds(versions=VERSIONS):
    """The two kinds, with what the fake cluster needs in order to merge; Kueue's schemas are not here."""
    anything = {"x-kubernetes-preserve-unknown-fields": True}
    conditions = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    states = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    status = {"properties": {"conditions": conditions, "admissionChecks": states}}
    schema = {"openAPIV3Schema": {"properties": {"spec": anything, "status": anything | status}}}
    return [
        {
            "metadata": {"name": f"{plural}.{GROUP}"},
            "spec": {
                "group": GROUP,
                "names": {"plural": plural, "kind": kind},
                "scope": scope,
                "versions": [
                    {"name": version, "subresources": {"status": {}}, "schema": schema} for version in versions
                ],
            },
        }
        for plural, kind, scope in (
            ("workloads", "Workload", "Namespaced"),
            ("admissionchecks", "AdmissionCheck", "Cluster"),
            ("multikueueconfigs", "MultiKueueConfig", "Cluster"),
            ("multikueueclusters", "MultiKueueCluster", "Cluster"),
        )
    ]


class Stage:
    def __init__(self, cluster, client):
        self.cluster, self.client = cluster, client
        self.kueue = Kueue(client, RESOURCES, "default")
        self.leading = True
        self.intensity = 300.0
        self.zones = {}
        self.now_s = NOW_S
        self.decided = []
        self.nominated = []
        self.events = EventRecorder(client, "joulie-grid")

    async def state(self, name="train"):
        return (await self.kueue.state(name, "grid"))["state"]

    async def becomes(self, state, name="train"):
        async with asyncio.timeout(10.0):
            while await self.state(name) != state:
                await asyncio.sleep(0.01)

    async def noted(self, name, annotation):
        """Wait until a workload has an annotation."""
        async with asyncio.timeout(10.0):
            while annotation not in (await self.client.get(RESOURCES.workloads, name, "default")).metadata.annotations:
                await asyncio.sleep(0.01)

    async def gate_is(self, resource, name, gate):
        return (await self.client.get(resource, name, "default")).metadata.annotations.get(GATED_BY) == gate


@asynccontextmanager
async def staged(tmp_path, mode=KueueMode.AUTO, *, dry_run=False, **settings):
    async with (
        FakeCluster(kinds()) as cluster,
        KubeClient(
            connect(kubeconfig=cluster.kubeconfig(tmp_path / "kubeconfig")), retry=RetryPolicy(attempts=1)
        ) as client,
    ):
        stage = Stage(cluster, client)
        view = GridView(client, GridDefaults(), "DE", {})
        leader = Leader(
            client,
            view,
            ControllerSettings(kueue_enabled=mode, dry_run_enabled=dry_run, **settings),
            SimpleNamespace(decided=stage.decided.append, nominated=stage.nominated.append),
            stage.events,
            lambda: stage.leading,
            lambda: stage.now_s,
        )
        checks = KueueChecks(leader, lambda zone: carbon(stage.zones.get(zone, stage.intensity)))
        watching = asyncio.gather(view.run(), stage.events.run())
        await view.wait_synced()
        stage.checks = checks
        stage.answering = asyncio.create_task(checks.run())
        try:
            yield stage
        finally:
            for task in (watching, stage.answering):
                task.cancel()
            await asyncio.gather(watching, stage.answering, return_exceptions=True)


async def submitted(stage):
    await stage.kueue.check("grid", CONTROLLER_NAME)
    await stage.kueue.submit("train", {})
    await stage.kueue.reserve("train", "grid")


# ---- findings


async def eventually(found):
    """What an asynchronous function returns once that is true."""
    async with asyncio.timeout(10.0):
        while not (value := await found()):
            await asyncio.sleep(0.01)
        return value


GATE = {GATED_BY: "example.com/other,joulie.io/grid"}


def test_g17_a_workload_that_waits_for_clean_power_preempts_nobody(tmp_path):
    async def check():
        async with staged(tmp_path) as stage:
            await stage.kueue.check("grid", CONTROLLER_NAME)
            await stage.kueue.submit_job("running", {names.SKIP: "true"})
            await stage.kueue.cycle("grid")
            await stage.becomes("Ready", "running")
            await stage.kueue.admit("running")
            await stage.kueue.submit_job("urgent", {}, own={GATED_BY: "joulie.io/grid"}, priority=10)
            await stage.noted("urgent", names.CARBON_DELAY_TIMESTAMP)
            for _ in range(4):  # Kueue looks again and again
                await stage.kueue.cycle("grid")
            assert stage.kueue.preempted == []

            # As soon as the signal changes, not at the next look of Kueue's.
            stage.intensity = 150.0
            stage.checks.signals_changed()
            await eventually(lambda: stage.gate_is(JOBS, "urgent", None))
            await stage.kueue.cycle("grid")
            assert stage.kueue.preempted == ["running"]
            # Dirty again meanwhile: what has preempted others is not held any more.
            stage.intensity = 300.0
            await stage.becomes("Ready", "urgent")
            (annotations,) = (await stage.kueue.state("urgent", "grid"))["annotations"]
            assert annotations[names.INITIAL_CARBON_INTENSITY] == "300.00"
            assert names.BIND_TIMESTAMP in annotations

    asyncio.run(check())


def test_g17_gates_of_others_stay(tmp_path):
    async def check():
        async with staged(tmp_path) as stage:
            stage.intensity = 100.0
            await stage.kueue.submit_job("train", {}, own=GATE)
            await eventually(lambda: stage.gate_is(JOBS, "train", "example.com/other"))
            await stage.kueue.submit_pods("pods", GATE, group=True)
            for pod in ("pods-0", "pods-1"):
                await eventually(lambda pod=pod: stage.gate_is(PODS, pod, "example.com/other"))
            await stage.kueue.reconcile()

    asyncio.run(check())


def test_g17_a_kueue_that_ignores_the_gate_finds_none_after_the_answer(tmp_path):
    # After an upgrade Kueue would copy the gate to a workload that runs, and refuse that itself for ever.
    async def check():
        async with staged(tmp_path) as stage:
            stage.intensity = 100.0
            await stage.kueue.check("grid", CONTROLLER_NAME)
            await stage.kueue.submit_job("train", {}, own={GATED_BY: "joulie.io/grid"})
            body = {"metadata": {"annotations": {GATED_BY: None}}}
            await stage.client.patch(RESOURCES.workloads, "train", body, namespace="default")
            await stage.kueue.reserve("train", "grid")
            await stage.becomes("Ready")
            await eventually(lambda: stage.gate_is(JOBS, "train", None))

    asyncio.run(check())


def test_g17_without_a_controller_gates_are_lifted(tmp_path):
    async def check():
        async with staged(tmp_path, KueueMode.FALSE) as stage:
            await stage.kueue.submit_job("train", {}, own=GATE)
            stage.cluster.fail_next(1, 403, method="PATCH", path="/jobs/train")
            with pytest.raises(KubernetesError):
                await release_workloads(stage.client, NOW_S, "nobody answers")
            assert await release_workloads(stage.client, NOW_S, "nobody answers") == ["default/train"]
            assert await stage.gate_is(JOBS, "train", "example.com/other")

    asyncio.run(check())


def test_a_gate_that_could_not_be_lifted_is_lifted_later_and_nothing_is_gated_in_a_dry_run(monkeypatch, tmp_path):
    monkeypatch.setattr(kueue, "RETRY_S", 0.01)

    async def check():
        async with staged(tmp_path, dry_run=True) as stage:
            stage.cluster.fail_next(2, 500, method="PATCH", path="/jobs/train")
            await stage.kueue.submit_job("train", {}, own={GATED_BY: "joulie.io/grid"})
            await eventually(lambda: stage.gate_is(JOBS, "train", None))
            assert stage.decided == [ReleaseReason.NOT_ASKED]

    asyncio.run(check())


@pytest.mark.parametrize("group", [False, True])
def test_g18_what_pods_say_is_read_from_the_pods(group, tmp_path):
    async def check():
        async with staged(tmp_path) as stage:
            await stage.kueue.check("grid", CONTROLLER_NAME)
            asks = {names.DEFER: "true", names.CARBON_THRESHOLD: "250", names.WORKLOAD_TYPE_LABEL: "batch"}
            await stage.kueue.submit_pods("asks", asks, group=group, schedulerName="default-scheduler")
            await stage.kueue.reserve("asks", "grid")
            await stage.becomes("Retry", "asks")
            assert "above 250" in (await stage.kueue.state("asks", "grid"))["message"]

            await stage.kueue.submit_pods("skips", {names.SKIP: "true", names.INITIAL_CARBON_INTENSITY: "7"})
            await stage.kueue.reserve("skips", "grid")
            await stage.becomes("Ready", "skips")

            stage.intensity = 240.0
            await stage.kueue.end_eviction("asks", "grid")
            await stage.kueue.reserve("asks", "grid")
            await stage.becomes("Ready", "asks")
            (annotations,) = (await stage.kueue.state("asks", "grid"))["annotations"]
            assert annotations[names.BIND_CARBON_INTENSITY] == "240.00"
            assert names.CARBON_THRESHOLD not in annotations  # Kueue refuses to change what a pod has

    asyncio.run(check())


def test_g18_what_a_job_says_beside_its_template_is_read():
    kept = keep_workload(workload(QuotaReserved="True", pods=[("main", {names.MAX_DELAY: "2h"}, "")]))
    metadata = ObjectMeta("train", annotations={names.MAX_DELAY: "9h", names.DEFER: "true"}, uid="j-1")
    pod = as_pod(kept, [QueuedObject(JOBS, metadata)])
    assert pod.owner == Owner("Job", "train", "j-1")
    assert pod.asking.annotations == {names.MAX_DELAY: "2h", names.DEFER: "true"}


def test_g18_the_pods_of_a_deployment_have_its_replica_set_as_their_owner():
    kept = keep_workload(workload(QuotaReserved="True"))
    replica_set = OwnerReference("apps/v1", "ReplicaSet", "web-1", "r-1", controller=True)
    metadata = ObjectMeta("web-1-x", labels={names.WORKLOAD_TYPE_LABEL: "service"}, owner_references=(replica_set,))
    pod = as_pod(kept, [QueuedObject(PODS, metadata)])
    assert (pod.owner.kind, pod.asking.workload_label) == ("ReplicaSet", "service")


def test_g19_updates_of_an_earlier_admission_are_cleared(tmp_path):
    async def check():
        async with staged(tmp_path) as stage:
            stage.intensity = 100.0
            await submitted(stage)
            await stage.becomes("Ready")
            assert (await stage.kueue.state("train", "grid"))["annotations"] != []
            # Kueue applies the status as a whole, then preempts the workload and forgets what the check said.
            await stage.kueue.admit("train")
            await stage.kueue.end_eviction("train", "grid")
            stage.intensity = 300.0
            await stage.kueue.reserve("train", "grid")
            await stage.becomes("Retry")
            assert (await stage.kueue.state("train", "grid"))["annotations"] == []

            await stage.kueue.delay("train")
            await stage.becomes("Pending")
            assert (await stage.kueue.state("train", "grid"))["annotations"] == []

    asyncio.run(check())


def test_an_answer_that_could_not_be_written_is_given_again(monkeypatch, tmp_path):
    monkeypatch.setattr(kueue, "RETRY_S", 0.01)

    async def check():
        async with staged(tmp_path) as stage:
            stage.cluster.fail_next(2, 403, method="PATCH", path="/admissionchecks/grid/status")
            await stage.kueue.check("grid", CONTROLLER_NAME)
            await stage.kueue.submit("train", {})
            # Joulie's two first answers are lost; Kueue's own writes are none of them.
            stage.leading = False
            await stage.kueue.reserve("train", "grid")
            stage.cluster.fail_next(2, 500, method="PATCH", path="/workloads/train/status")
            stage.leading = True
            await stage.becomes("Retry")
            while not stage.decided:
                await asyncio.sleep(0.01)
            assert stage.decided == [HoldReason.CARBON]

    asyncio.run(check())


def test_a_delayed_workload_is_evicted_only_for_a_check_of_ours(tmp_path):
    async def check():
        async with staged(tmp_path) as stage:
            await submitted(stage)
            await stage.kueue.check("other", "example.com/other")
            await stage.kueue.submit("foreign", {})
            await stage.kueue.reserve("foreign", "other")
            states = [{"name": "other", "state": "Retry", "message": "", "lastTransitionTime": CREATED}]
            await stage.client.apply(
                RESOURCES.workloads,
                "foreign",
                {"status": {"admissionChecks": states}},
                field_manager="other",
                namespace="default",
                subresource="status",
            )
            await stage.becomes("Retry")
            await stage.kueue.delay("foreign")
            await stage.kueue.delay("train")
            await stage.becomes("Pending")
            assert await stage.kueue.is_evicted("train")
            assert not await stage.kueue.is_evicted("foreign")

    asyncio.run(check())


def test_who_does_not_lead_writes_nothing(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(kueue, "RETRY_S", 0.01)

    async def check():
        async with staged(tmp_path) as stage:
            stage.leading = False
            await submitted(stage)
            while "does not lead" not in str([record.__dict__ for record in caplog.records]):
                await asyncio.sleep(0.01)
            assert await stage.state() == "Pending"
            stage.leading = True
            await stage.becomes("Retry")

    asyncio.run(check())


def test_a_dry_run_holds_nothing(tmp_path):
    async def check():
        async with staged(tmp_path, dry_run=True) as stage:
            await submitted(stage)
            await stage.becomes("Ready")
            message = (await stage.kueue.state("train", "grid"))["message"]
            assert "holds nothing" in message
            assert "above 200" in message

    asyncio.run(check())


def test_a_cluster_without_kueue_is_asked_again_later(monkeypatch, tmp_path):
    monkeypatch.setattr(kueue, "LOOK_AGAIN_S", 0.01)
    asked = []

    async def found_later(_client):
        asked.append(None)
        if len(asked) == 1:
            raise KubernetesError("no answer")
        return RESOURCES if len(asked) == 3 else None

    monkeypatch.setattr(kueue, "find_kueue", found_later)

    async def check():
        async with staged(tmp_path) as stage:
            await submitted(stage)
            await stage.becomes("Retry")

    asyncio.run(check())
    assert len(asked) == 3


def test_it_can_be_switched_off(tmp_path):
    async def check():
        async with staged(tmp_path, KueueMode.FALSE) as stage:
            await submitted(stage)
            await stage.answering
            assert await stage.state() == "Pending"

    asyncio.run(check())


@pytest.mark.parametrize(
    ("versions", "found"), [(("v1beta2", "v1beta1"), "v1beta2"), (("v1beta1",), "v1beta1"), (("v1",), None)]
)
def test_the_newest_version_that_both_know_is_used(versions, found, tmp_path):
    async def check():
        async with (
            FakeCluster(kinds(versions)) as cluster,
            KubeClient(
                connect(kubeconfig=cluster.kubeconfig(tmp_path / "kubeconfig")), retry=RetryPolicy(attempts=1)
            ) as client,
        ):
            resources = await find_kueue(client)
            assert (resources and resources.workloads.version) == found
            if found is None:
                assert await release_workloads(client, NOW_S, "nobody answers") == []

    asyncio.run(check())


def test_letting_go_says_what_it_could_not_do(tmp_path):
    async def check():
        async with staged(tmp_path, KueueMode.FALSE) as stage:
            await submitted(stage)
            stage.cluster.fail_next(1, 403, method="PATCH", path="/workloads/train/status")
            with pytest.raises(KubernetesError):
                await release_workloads(stage.client, NOW_S, "nobody answers")
            assert await release_workloads(stage.client, NOW_S, "nobody answers") == ["default/train"]
            assert await stage.state() == "Ready"

    asyncio.run(check())
