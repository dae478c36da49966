"""The rescheduler against the fake cluster: real requests, disruption budgets, a clock of the test's own."""

import httpx2
import pytest

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.resources import EVENTS, NODE_HARDWARES, NODE_TWINS, NODES, PODS, WORKLOAD_PROFILES
from joulie.adapters.kubernetes.times import rfc3339
from joulie.apps.operator.evictions import Evictions
from joulie.domain.mode import Mode
from joulie.domain.policy import PodPhase, PolicySettings
from joulie.domain.profiles.reschedule import RescheduleSettings
from joulie.program.leadership import NotLeadingError
from support import operator_stage
from support.disruption_budgets import set_budget
from support.operator_stage import LABELS, until
from support.played import played

pytestmark = pytest.mark.slow  # whole programs on the fake cluster

HOT, COOL = "hot", "cool"
HOT_W, COOL_W = 700.0, 100.0
"""Of 720 W."""
ROOM = {"cpu": "192", "memory": "512Gi", "pods": "110"}


class Stage(operator_stage.Stage):
    """An operator whose steps and looks at the cluster are taken when a test says so, on a hot and a cool node."""

    def __init__(self, cluster, client, settings):
        self.power_w = {HOT: HOT_W, COOL: COOL_W}
        super().__init__(cluster, client, settings, transport=httpx2.MockTransport(self._telemetry))

    def start(self):
        super().start()
        self.rescheduler = self.loop._rescheduler

    def _telemetry(self, request):
        return httpx2.Response(200, json={"packagePowerWatts": self.power_w[request.url.path.strip("/")]})

    async def round(self, passed_s=60.0):
        """Measure, decide, look at the cluster, and write what is recommended. Gives the pods that are left."""
        self.now_s += passed_s
        await self.loop._power.poll()
        await self.loop.step()
        await self.rescheduler.cycle()
        await self.loop.step()
        await self.loop._events.flush()
        left = await self._kubelet()
        twins = {twin.metadata.name: twin for twin in (await self.client.list(NODE_TWINS)).items}
        await until(lambda: {key.name for key in self.view.pods} == set(left))
        await until(
            lambda: all(
                (seen := self.view.twins.get(Key("", name))) is not None
                and seen.metadata.resource_version == twin.metadata.resource_version
                for name, twin in twins.items()
            )
        )
        return sorted(left)

    async def _kubelet(self):
        """Pods that are on their way out go. Gives the names of the others."""
        left = []
        for pod in (await self.client.list(PODS)).items:
            if pod.metadata.deletion_timestamp is None:
                left.append(pod.metadata.name)
            else:
                await self.client.delete(PODS, pod.metadata.name, "default", grace_s=0)
        return left

    async def add_node(self, name, *, room=ROOM, taints=(), **labels):
        node = {
            "metadata": {"name": name, "labels": LABELS | labels},
            "spec": {"taints": list(taints)},
            "status": {"allocatable": room},
        }
        await self.client.create(NODES, node)
        await until(lambda: self.view.node(name))

    async def add_pod(self, name, node=HOT, *, owner="Deployment", reschedulable="true", age_s=7200.0, **spec):
        workload = name.rstrip("0123456789")
        metadata = {"name": name, "labels": {"app": workload}}
        if reschedulable is not None:
            metadata["annotations"] = {names.RESCHEDULABLE_ANNOTATION: reschedulable}
        if owner is not None:
            kind = "ReplicaSet" if owner == "Deployment" else owner
            controlled_by = f"{workload}-abc" if owner == "Deployment" else workload
            metadata["ownerReferences"] = [
                {"apiVersion": "apps/v1", "kind": kind, "name": controlled_by, "uid": controlled_by, "controller": True}
            ]
            metadata["labels"]["pod-template-hash"] = "abc"
        container = {"name": "c", "resources": {"requests": {"cpu": "8", "memory": "16Gi"}}}
        status = {"phase": "Running", "startTime": rfc3339(self.now_s - age_s)}
        pod = {"metadata": metadata, "spec": {"nodeName": node, "containers": [container]} | spec}
        await self.client.create(PODS, pod, "default")
        await self.client.patch(PODS, name, {"status": status}, namespace="default", subresource="status")
        await until(lambda: (seen := self.view.pods.get(Key("default", name))) and seen.phase is PodPhase.RUNNING)

    async def budget(self, app, allowed):
        set_budget(self.cluster, app, allowed)

    async def reasons(self):
        return [event.reason for event in (await self.client.list(EVENTS)).items if event.involved_object.kind == "Pod"]

    def counted(self, name, **labels):
        return self.metrics.registry.get_sample_value(f"joulie_rescheduler_{name}", labels) or 0.0


def play(body, tmp_path, **settings):
    values = {
        "prometheus_address": "", "sources": ("http",), "telemetry_http_endpoint": "http://sim/{node}",
        "policy": PolicySettings(static_hp_frac=1.0), "active_rescheduling": True,
    }  # fmt: skip

    operator_stage.play(body, tmp_path, kind=Stage, **(values | settings))


async def hot_and_cool(stage):
    await stage.add_node(HOT)
    await stage.add_node(COOL)


@played(play)
async def test_a_stressed_node_sheds_only_what_says_reschedulable(stage):
    await hot_and_cool(stage)
    await stage.add_pod("web1")
    await stage.add_pod("silent1", reschedulable=None)
    await stage.add_pod("fixed1", reschedulable="false")
    assert await stage.round() == ["fixed1", "silent1"]
    assert stage.counted("evictions_total", node=HOT, namespace="default", reason="cooling-stress") == 1.0
    assert await stage.reasons() == ["Rescheduled"]
    assert await stage.round() == ["fixed1", "silent1"]


@played(play, active_rescheduling=False)
async def test_recommendations_are_written_even_where_nothing_is_evicted(stage):
    await hot_and_cool(stage)
    await stage.add_pod("web1")
    assert await stage.round() == ["web1"]
    (recommended,) = (await stage.twin(HOT)).status.reschedule_recommendations
    assert (recommended.workload_ref.kind, recommended.workload_ref.name) == ("Deployment", "web")
    assert recommended.reason == "cooling stress 97%, above 90%"
    assert (await stage.twin(COOL)).status.reschedule_recommendations == ()
    assert stage.counted("recommendations") == 1.0
    # Warmer by a point is nothing new; a node that is well again has nothing to recommend.
    stage.power_w[HOT] = HOT_W + 12.0
    await stage.round()
    assert (await stage.twin(HOT)).status.reschedule_recommendations == (recommended,)
    stage.power_w[HOT] = COOL_W
    await stage.round()
    assert (await stage.twin(HOT)).status.reschedule_recommendations == ()


@played(play, active_rescheduling=False)
async def test_steady_recommendations_are_not_written_again(stage):
    await hot_and_cool(stage)
    await stage.add_pod("web1")
    await stage.round()
    before = (await stage.twin(HOT)).metadata.resource_version
    await stage.round(1.0)
    assert (await stage.twin(HOT)).metadata.resource_version == before


@played(play)
async def test_a_disruption_budget_is_respected_and_tried_again_later(stage):
    await hot_and_cool(stage)
    await stage.add_pod("web1")
    await stage.budget("web", 0)
    refused = {"node": HOT, "reason": "disruption-budget"}
    assert await stage.round() == ["web1"]
    assert stage.counted("skipped_total", **refused) == 1.0
    assert await stage.reasons() == ["RescheduleRefused"]
    # It backs off: longer after every refusal.
    await stage.round(60.0)
    assert stage.counted("skipped_total", **refused) == 1.0
    await stage.round(60.0)
    assert stage.counted("skipped_total", **refused) == 2.0
    await stage.round(120.0)
    assert stage.counted("skipped_total", **refused) == 2.0
    await stage.budget("web", 1)
    assert await stage.round(120.0) == []


@played(play)
async def test_a_refused_workload_makes_room_for_another(stage):
    await hot_and_cool(stage)
    await stage.add_pod("api1")
    await stage.add_pod("web1")
    await stage.budget("api", 0)
    assert await stage.round() == ["api1", "web1"]
    assert await stage.round() == ["api1"]


@played(play)
async def test_a_workload_rests_after_an_eviction(stage):
    await hot_and_cool(stage)
    await stage.add_pod("web1")
    await stage.add_pod("web2")
    assert len(await stage.round()) == 1
    assert len(await stage.round()) == 1
    assert len(await stage.round(600.0)) == 0


@played(play)
async def test_a_workload_rests_no_longer_where_the_clock_was_set_back(stage):
    await hot_and_cool(stage)
    await stage.add_pod("web1")
    await stage.add_pod("web2", age_s=7.0 * 86_400.0)
    assert await stage.round() == ["web2"]
    assert await stage.round(-86_400.0) == ["web2"]
    assert await stage.round(3600.0) == []


@played(play)
async def test_a_workload_that_comes_back_is_not_evicted_again_for_a_day(stage):
    await hot_and_cool(stage)
    await stage.add_pod("web1")
    assert await stage.round() == []
    await stage.add_pod("web2", age_s=0.0)  # kube-scheduler puts the replacement back
    assert await stage.round(3600.0) == ["web2"]
    assert stage.counted("skipped_total", node=HOT, reason="returned") == 1.0
    assert await stage.round(86_400.0) == []


@played(play)
async def test_a_replacement_has_come_back_whatever_the_clock_of_its_node_says(stage):
    await hot_and_cool(stage)
    await stage.add_pod("web1")
    assert await stage.round() == []
    await stage.add_pod("web2", age_s=7.0 * 86_400.0)
    assert await stage.round(3600.0) == ["web2"]
    assert stage.counted("skipped_total", node=HOT, reason="returned") == 1.0
    assert await stage.round(-7.0 * 86_400.0) == ["web2"]
    assert await stage.round(86_400.0) == [], "after a day of the clock that was set back"


@played(play)
async def test_a_replacement_that_runs_before_the_api_server_has_answered_has_come_back(stage, monkeypatch):
    await hot_and_cool(stage)
    await stage.add_pod("web1")
    evict = Evictions.evict

    async def late(evictions, pod):
        answer = await evict(evictions, pod)
        await stage.add_pod("web2", age_s=0.0)
        return answer

    monkeypatch.setattr(Evictions, "evict", late)
    assert await stage.round() == ["web2"]
    assert await stage.round(3600.0) == ["web2"]
    assert stage.counted("skipped_total", node=HOT, reason="returned") == 1.0


@played(play)
async def test_one_workload_loses_one_pod_a_cycle_from_whatever_nodes(stage):
    await hot_and_cool(stage)
    await stage.add_node("hot2")
    stage.power_w["hot2"] = HOT_W
    await stage.add_pod("web1")
    await stage.add_pod("web2", node="hot2")
    assert len(await stage.round()) == 1
    assert sum(stage.counted("skipped_total", node=node, reason="cooldown") for node in (HOT, "hot2")) == 1.0


@played(play, rescheduling=RescheduleSettings(max_per_cycle=2))
async def test_the_whole_cluster_has_a_limit(stage):
    await stage.add_node(COOL)
    for number in range(3):
        await stage.add_node(f"hot{number}")
        stage.power_w[f"hot{number}"] = HOT_W
        await stage.add_pod(f"w{'abc'[number]}", node=f"hot{number}")
    assert len(await stage.round()) == 1
    assert len(await stage.round()) == 0


@played(play, mode=Mode.OBSERVE)
async def test_nothing_is_evicted_from_a_node_in_observe_mode(stage):
    await hot_and_cool(stage)
    await stage.add_pod("web1")
    assert await stage.round() == ["web1"]
    assert stage.counted("evictions_total", node=HOT, namespace="default", reason="cooling-stress") == 0.0


@played(play, reschedule_dry_run=True)
async def test_dry_run_decides_the_same_and_evicts_nothing(stage):
    await hot_and_cool(stage)
    await stage.add_pod("web1")
    assert await stage.round() == ["web1"]
    assert stage.counted("skipped_total", node=HOT, reason="dry-run") == 1.0
    await stage.round()
    assert stage.counted("skipped_total", node=HOT, reason="dry-run") == 1.0


@pytest.mark.parametrize(
    ("place", "spec"),
    [
        ({"room": ROOM | {"cpu": "4"}}, {}),
        ({"room": ROOM | {"memory": "8Gi"}}, {}),
        ({"room": ROOM | {"pods": "0"}}, {}),
        ({"room": {"cpu": "192"}}, {}),
        ({"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}, {}),
        ({}, {"nodeSelector": {"disk": "fast"}}),
    ],
)
@played(play)
async def test_nothing_is_evicted_where_no_other_node_fits(stage, place, spec):
    await stage.add_node(HOT)
    await stage.add_node(COOL, **place)
    await stage.add_pod("web1", **spec)
    assert await stage.round() == ["web1"]
    assert (await stage.twin(HOT)).status.reschedule_recommendations == ()


@played(play)
async def test_tolerations_and_selectors_open_nodes(stage):
    await stage.add_node(HOT)
    await stage.add_node(COOL, taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}], disk="fast")
    toleration = {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}
    await stage.add_pod("web1", nodeSelector={"disk": "fast"}, tolerations=[toleration])
    assert await stage.round() == []


@played(play)
async def test_a_node_that_is_not_ready_gets_nothing(stage):
    await hot_and_cool(stage)
    await stage.add_pod("web1")
    lost = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    await stage.client.patch(NODES, COOL, lost, subresource="status")
    await until(lambda: not stage.view.node(COOL).ready)
    assert await stage.round() == ["web1"]


@pytest.mark.parametrize("owner", ["DaemonSet", "Node", None])
@played(play)
async def test_trap_pods_that_would_not_come_back_elsewhere_stay(stage, owner):
    await hot_and_cool(stage)
    await stage.add_pod("web1", owner=owner)
    assert await stage.round() == ["web1"]


@played(play, policy=PolicySettings(static_hp_frac=0.5))
async def test_a_draining_node_sheds_what_may_move(stage):
    await stage.add_node(HOT)
    await stage.add_node(COOL)
    stage.power_w[HOT] = COOL_W
    # Equal hardware: of two nodes the first by name keeps full power, and the other drains.
    await stage.add_pod("web1")
    await stage.add_pod("fixed1", reschedulable="false")
    assert await stage.round() == ["fixed1"]
    assert stage.counted("evictions_total", node=HOT, namespace="default", reason="draining") == 1.0
    assert (await stage.twin(HOT)).status.schedulable_class == "draining"


@played(play)
async def test_pods_that_went_meanwhile_are_no_error(stage):
    await hot_and_cool(stage)
    await stage.add_pod("web1")
    for status in (404, 409):
        stage.cluster.fail_next(1, status, path="eviction")
        await stage.round()
    assert stage.counted("skipped_total", node=HOT, reason="gone") == 2.0


@played(play)
async def test_a_failing_api_server_is_asked_less_and_less(stage):
    await hot_and_cool(stage)
    await stage.add_pod("web1")
    stage.cluster.fail_next(9, 500, path="eviction")
    await stage.round()
    await stage.round()
    assert stage.counted("skipped_total", node=HOT, reason="error") == 1.0


@played(play)
async def test_who_lost_the_lease_evicts_nothing(stage):
    await hot_and_cool(stage)
    await stage.add_pod("web1")
    await stage.loop._power.poll()
    await stage.loop.step()
    stage.leading = False
    with pytest.raises(NotLeadingError):
        await stage.rescheduler.cycle()
    assert [pod.metadata.name for pod in (await stage.client.list(PODS)).items] == ["web1"]


@played(play)
async def test_an_old_decision_moves_nothing(stage):
    await hot_and_cool(stage)
    await stage.add_pod("web1")
    await stage.loop._power.poll()
    await stage.loop.step()
    stage.now_s += 3600.0
    await stage.rescheduler.cycle()
    assert [pod.metadata.name for pod in (await stage.client.list(PODS)).items] == ["web1"]


@played(play)
async def test_trap_series_go_with_their_nodes_and_namespaces(stage):
    await hot_and_cool(stage)
    await stage.add_pod("web1")
    await stage.add_pod("stays", node=COOL, reschedulable=None)
    await stage.round()
    labels = {"node": HOT, "namespace": "default", "reason": "cooling-stress"}
    assert stage.counted("evictions_total", **labels) == 1.0
    await stage.client.delete(NODES, HOT)
    await until(lambda: stage.view.node(HOT) is None)
    await stage.round()
    assert stage.counted("evictions_total", **labels) == 0.0


# ---- profiles


async def add_profile(stage, name, workload, *, automatic=True, **status):
    labels = {names.MANAGED_BY_LABEL: names.CLASSIFIER} if automatic else {}
    reference = {"kind": "Deployment", "name": workload, "namespace": "default"}
    body = {"metadata": {"name": name, "labels": labels}, "spec": {"workloadRef": reference}}
    await stage.client.create(WORKLOAD_PROFILES, body, "default")
    manager = names.CLASSIFIER_FIELD_MANAGER
    await stage.client.apply(
        WORKLOAD_PROFILES, name, {"status": status}, namespace="default", field_manager=manager, subresource="status"
    )
    await until(
        lambda: (entry := stage.view.profiles.get(Key("default", name))) is not None and entry.status.confidence
    )


@played(play, active_rescheduling=False)
async def test_a_profile_says_that_pods_may_move_and_hears_that_they_should(stage):
    await hot_and_cool(stage)
    await stage.add_pod("web1", reschedulable=None)
    await add_profile(stage, "deployment-web", "web", migratability={"reschedulable": True}, confidence=0.3)
    await stage.round()
    told = (await stage.client.get(WORKLOAD_PROFILES, "deployment-web", "default")).status
    assert (told.reschedule_recommended, told.reschedule_reason) == (True, "hot: cooling stress 97%, above 90%")
    assert told.migratability.reschedulable is True
    stage.power_w[HOT] = COOL_W
    await until(lambda: stage.view.profiles[Key("default", "deployment-web")].status.reschedule_recommended)
    await stage.round()
    told = (await stage.client.get(WORKLOAD_PROFILES, "deployment-web", "default")).status
    assert (told.reschedule_recommended, told.reschedule_reason, told.confidence) == (None, None, 0.3)


@played(play)
async def test_the_annotation_wins_over_the_profile(stage):
    await hot_and_cool(stage)
    await stage.add_pod("web1", reschedulable="false")
    await add_profile(stage, "deployment-web", "web", migratability={"reschedulable": True}, confidence=0.9)
    assert await stage.round() == ["web1"]


@played(play)
async def test_gpu_slicing_follows_the_profiles_of_the_pods(stage):
    gpus = {"joulie.io/hw.gpu-model": "NVIDIA-H100-80GB-HBM3", "joulie.io/hw.gpu-count": "8"}
    await stage.add_node(HOT, room=ROOM | {"nvidia.com/gpu": "8"}, **gpus)
    slicing = {"supported": True, "modes": ["mig", "time-slicing"]}
    await stage.client.create(NODE_HARDWARES, {"metadata": {"name": HOT}, "spec": {"nodeName": HOT}})
    status = {"status": {"gpu": {"present": True, "count": 8, "vendor": "NVIDIA", "slicing": slicing}}}
    await stage.client.apply(NODE_HARDWARES, HOT, status, field_manager="joulie-agent", subresource="status")
    await until(lambda: any(facts.slicing_modes for facts in stage.view.hardware.values()))
    await stage.round()
    told = (await stage.twin(HOT)).status.gpu_slicing_recommendation
    assert (told.mode, told.confidence, told.reason) == (
        "time-slicing", 0.0, "no GPU workload seen: pods can share GPUs by time",
    )  # fmt: skip
    one_gpu = [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    await stage.add_pod("small1", containers=one_gpu)
    # Held, but not measured: nobody knows.
    await stage.round()
    assert (await stage.twin(HOT)).status.gpu_slicing_recommendation is None
    await add_profile(
        stage, "deployment-small", "small", confidence=0.5, gpu={"intensity": "low", "avgUtilizationPct": 10.0}
    )
    await stage.round()
    told = (await stage.twin(HOT)).status.gpu_slicing_recommendation
    assert (told.mode, told.slice_type, told.slices_per_gpu, told.total_slices) == ("mig", "1g.10gb", 7, 56)
    assert (told.estimated_utilization_gain, told.confidence) == (60.0, 0.1)
    # Not again for the same.
    before = (await stage.twin(HOT)).metadata.resource_version
    await stage.round(1.0)
    assert (await stage.twin(HOT)).metadata.resource_version == before
