"""The operator against the fake cluster: real requests, CRD schemas held, a clock of the test's own."""

import asyncio
from collections import Counter

import pytest

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.v1alpha1 import MatchedNodes
from joulie.adapters.kubernetes.client import KubeClient, NotFoundError
from joulie.adapters.kubernetes.resources import (
    EVENTS,
    LEASES,
    NODE_POWER_PROFILES,
    NODE_TWINS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    TELEMETRY_PROFILES,
)
from joulie.adapters.kubernetes.times import rfc3339
from joulie.apps.extender.feed import twin_facts
from joulie.apps.operator.loop import ControlLoop
from joulie.apps.operator.main import LEASE_NAME, serve
from joulie.apps.operator.power.wiring import Clients
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.mode import Mode
from joulie_lab.adapters.crd import custom_resource_definitions
from joulie_lab.fakes.kubernetes import FakeCluster
from support.operator_stage import EPOCH_S, LABELS, N1, N2, play, until
from support.played import played

pytestmark = pytest.mark.slow


async def two_nodes(stage):
    """n1 performance, n2 eco: equal hardware, so the name decides."""
    await stage.add_node(N1)
    await stage.add_node(N2)
    await stage.step()
    await stage.step(31.0)


@played(play)
async def test_a_cluster_from_nothing(stage):
    await stage.add_node(N1)
    await stage.add_node(N2)
    assert await stage.step() == {"spec": 2, "status": 2, "labels": 2}
    twin = await stage.twin(N2)
    assert (twin.metadata.name, twin.spec.profile, twin.status.schedulable_class) == (N2, "performance", "draining")
    assert stage.view.node(N2).draining_label == "true"
    assert await stage.step(31.0) == {"spec": 1, "status": 1, "labels": 1}
    twin = await stage.twin(N2)
    assert (twin.spec.profile, twin.status.schedulable_class) == ("eco", "eco")
    assert twin.spec.cpu.package_power_cap_pct_of_max == 60.0
    assert stage.view.node(N2).draining_label is None
    # A dotted name stays one name, for spec and status.
    assert (await stage.twin(N1)).status.schedulable_class == "performance"


@played(play)
async def test_a_steady_cluster_sees_no_write(stage):
    await two_nodes(stage)
    for _ in range(3):
        assert await stage.step(10.0) == {}
    assert not stage.wake.is_set()


@played(play)
async def test_twins_are_kept_young_by_their_own_moments(stage):
    await two_nodes(stage)
    total = Counter()
    for _ in range(15):  # more than one period of 150 s
        since_s = stage.now_s
        assert await stage.step(20.0) == {}
        before = stage.writes()
        await stage.loop._publisher.refresh(since_s, stage.now_s)
        await stage.caught_up()
        total += stage.writes() - before
    assert set(total) == {"refresh"}
    assert 2 <= total["refresh"] <= 6


@played(play)
async def test_twins_that_a_clock_ahead_has_dated_are_dated_anew_once_it_is_set_back(stage):
    """To readers whose clock is right they would be stale until the wrong time is reached."""
    await two_nodes(stage)
    await stage.step(3600.0)
    stage.now_s -= 3600.0
    assert await stage.step() == {"status": 2}
    assert {(await stage.twin(name)).status.last_updated for name in (N1, N2)} == {rfc3339(stage.now_s)}


@played(play, write_concurrency=1)
async def test_l7_a_queued_refresh_never_overwrites_a_newer_status(stage):
    nodes = [f"node-{index:02}" for index in range(32)]
    for node in nodes:
        await stage.add_node(node)
    await stage.step()
    await stage.step(31.0)
    await stage.step(80.0)
    publisher = stage.loop._publisher
    due = [decision.node.name for decision in stage.loop._decision.nodes]
    last = due[list(publisher._refreshes.due(stage.now_s - 150.0, stage.now_s))[-1]]
    before = (await stage.twin(last)).status.schedulable_class
    other = "eco" if before == "performance" else "performance"
    await pin(stage, last, other)
    begun, wrote = asyncio.Event(), publisher._wrote
    publisher._wrote = lambda kind: (wrote(kind), begun.set())
    refreshing = asyncio.create_task(publisher.refresh(stage.now_s - 150.0, stage.now_s))
    await begun.wait()
    await stage.loop.step()
    assert await refreshing == []
    assert (await stage.twin(last)).status.schedulable_class == {"eco": "draining"}.get(other, other)


@played(play)
async def test_l7_a_node_is_opened_once_the_watch_shows_its_new_twin(stage):
    await two_nodes(stage)
    shown = []
    patch = stage.client.patch

    async def patched(resource, name, content, **how):
        if resource is NODES and name == N2:
            shown.append(stage.view.twin_of(N2).status.schedulable_class)
        return await patch(resource, name, content, **how)

    stage.client.patch = patched
    await pin(stage, N2, "performance")
    assert await stage.step() == {"spec": 1, "status": 1, "labels": 1}
    assert shown == ["performance"]


@played(play)
async def test_what_is_edited_by_hand_is_healed(stage):
    await two_nodes(stage)
    stage.wake.clear()
    await stage.client.patch(NODE_TWINS, N2, {"spec": {"profile": "performance", "cpu": {"packagePowerCapWatts": 99}}})
    await until(stage.wake.is_set)
    await stage.caught_up()
    assert await stage.step() == {"spec": 1}
    assert (await stage.twin(N2)).spec.cpu.package_power_cap_watts is None

    stage.wake.clear()
    await stage.client.patch(NODES, N2, {"metadata": {"labels": {names.POWER_PROFILE_LABEL: "performance"}}})
    await until(stage.wake.is_set)
    assert await stage.step() == {"labels": 1}

    await stage.client.patch(
        NODE_TWINS,
        N2,
        {"status": {"schedulableClass": "performance", "predictedPsuStressScore": 99}},
        subresource="status",
    )
    await stage.caught_up()
    assert await stage.step() == {"status": 1}
    assert (await stage.twin(N2)).status.schedulable_class == "eco"


@played(play)
async def test_a_score_that_the_operator_does_not_know_is_taken_out_again(stage):
    await stage.add_node("odd", cpus="0", **{"joulie.io/hw.cpu-model": "unheard-of"})
    await stage.step()
    forged = {"status": {"predictedPowerHeadroomScore": 100}}
    await stage.client.patch(NODE_TWINS, "odd", forged, subresource="status")
    await stage.caught_up()
    assert await stage.step() == {"status": 1}
    assert (await stage.twin("odd")).status.predicted_power_headroom_score is None
    assert await stage.step() == {}


@played(play)
async def test_agent_and_operator_leave_each_other_s_fields_alone(stage):
    await two_nodes(stage)
    report = {"cpu": {"backend": "rapl", "result": "applied", "message": "216 W", "updatedAt": "2026-01-01T00:00:00Z"}}
    await stage.report(N2, report)
    await stage.caught_up()
    assert await stage.step() == {}
    await stage.client.patch(NODES, N2, {"metadata": {"labels": {names.RESERVED_LABEL: ""}}})
    await until(lambda: not stage.view.node(N2).eligible)
    await stage.step()
    twin = await stage.twin(N2)
    assert twin.status.control_status.cpu.message == "216 W"
    assert twin.status.schedulable_class == "performance"


@played(play)
async def test_l9_a_cap_counts_once_its_agent_has_confirmed_it(stage):
    await two_nodes(stage)

    async def report(result, generation):
        stage.wake.clear()
        control = {"cpu": {"backend": "rapl", "result": result}, "observedGeneration": generation}
        await stage.report(N2, control)
        await stage.caught_up()
        woken = stage.wake.is_set()
        await stage.step(1.0)
        twin = await stage.twin(N2)
        (caps,) = (one for one in twin.status.conditions if one.type == "CapsInForce")
        return woken, twin.status.effective_cap_state.cpu_pct, (caps.status, caps.reason, caps.message)

    generation = (await stage.twin(N2)).metadata.generation
    assert generation > 1
    assert await report("applied", generation - 1) == (False, 100.0, ("False", "NotConfirmed", "cpu: no report"))
    assert await report("unconfirmed", generation) == (True, 100.0, ("False", "NotConfirmed", "cpu: unconfirmed"))
    assert await report("applied", generation) == (True, 88.89, ("True", "Confirmed", ""))
    assert (await stage.twin(N2)).status.power_measurement.node_capped_power_w == 640.0
    assert await report("blocked", generation) == (True, 100.0, ("False", "NotConfirmed", "cpu: blocked"))


@pytest.mark.parametrize(
    ("control", "schedulable"),
    [
        ({"backend": "none", "result": "blocked", "message": "rapl: no powercap"}, "performance"),
        ({"backend": "rapl", "result": "blocked", "message": "SIMULATE_ONLY: nothing is written"}, "performance"),
        ({"backend": "rapl", "result": "blocked", "message": "1 x 99 W in force; package-1: refused"}, "eco"),
        ({"backend": "none", "result": "error", "message": "rapl: input/output error"}, "eco"),
    ],
)
@played(play)
async def test_l9_class_and_label_are_those_of_the_state_in_force(stage, control, schedulable):
    await two_nodes(stage)
    generation = (await stage.twin(N2)).metadata.generation
    report = {"cpu": control, "gpu": control, "observedGeneration": generation}
    await stage.report(N2, report)
    await stage.caught_up()
    await stage.step(1.0)
    twin = await stage.twin(N2)
    assert (twin.spec.profile, twin.status.schedulable_class) == ("eco", schedulable)
    assert twin_facts(twin).node_class.name.lower() == schedulable
    node = await stage.client.get(NODES, N2)
    assert node.metadata.labels[names.POWER_PROFILE_LABEL] == schedulable
    assert (await stage.twin(N2)).metadata.generation == generation, "the cap goes on being asked for"


@played(play)
async def test_l3_the_slot_of_a_node_that_is_not_ready_goes_to_another(stage):
    await two_nodes(stage)
    lost = {"type": "Ready", "status": "Unknown", "lastTransitionTime": rfc3339(stage.now_s)}
    stage.wake.clear()
    await stage.client.patch(NODES, N1, {"status": {"conditions": [lost]}}, subresource="status")
    await until(stage.wake.is_set)
    assert await stage.step(299.0, result="success") is not None
    assert (await stage.twin(N2)).status.schedulable_class == "eco"
    await stage.step(1.0)
    assert (await stage.twin(N2)).status.schedulable_class == "performance"
    twin = await stage.twin(N1)
    assert (twin.status.schedulable_class, twin.spec.policy.name) == ("draining", "not-ready")


def test_l12_a_plug_in_that_fails_stops_no_step(tmp_path):
    class Broken:
        def plan(self, _snapshot):
            raise RuntimeError("no plan")

    async def body(stage):
        await stage.add_node(N1)
        stage.loop = ControlLoop(
            stage.settings, BUILTIN_CATALOGUE, Clients(stage.client, stage.http), stage.view, stage.wake, stage.metrics,
            policy=Broken(), cooling=lambda *_: 1 / 0, may_write=lambda: True, now_s=lambda: stage.now_s,
        )  # fmt: skip
        await stage.step()
        assert (await stage.twin(N1)).spec.policy.name == "full_power"
        for plugin in ("policy", "cooling"):
            value = stage.metrics.registry.get_sample_value("joulie_operator_plugin_failures_total", {"plugin": plugin})
            assert value == 1.0

    play(body, tmp_path)


@played(play)
async def test_l14_gpus_of_claims_count_as_soon_as_they_are_allocated(stage):
    meta = {"metadata": {"name": "train-gpu", "namespace": "default"}}
    await stage.client.create(RESOURCE_CLAIMS, {**meta, "spec": {}}, "default")
    spec = {
        "nodeName": N1,
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "train-gpu"}],
    }
    await stage.client.create(PODS, {"metadata": {"name": "train"}, "spec": spec}, "default")
    running = {"status": {"phase": "Running"}}
    await stage.client.patch(PODS, "train", running, namespace="default", subresource="status")
    await until(lambda: stage.view.ledger.loads.get(N1))
    assert stage.view.ledger.loads[N1] == (2000, 0)
    devices = [{"request": "g", "driver": "gpu.nvidia.com", "pool": N1, "device": f"gpu-{i}"} for i in range(2)]
    status = {
        "allocation": {"devices": {"results": devices}},
        "reservedFor": [{"resource": "pods", "name": "train"}],
    }
    await stage.client.patch(
        RESOURCE_CLAIMS, "train-gpu", {"status": status}, namespace="default", subresource="status"
    )
    await until(lambda: stage.view.ledger.loads[N1] == (2000, 2000))
    await stage.client.delete(RESOURCE_CLAIMS, "train-gpu", "default")
    await until(lambda: stage.view.ledger.loads[N1] == (2000, 0))


@played(play)
async def test_a_reserved_node_is_given_back(stage):
    await two_nodes(stage)
    await stage.client.patch(NODES, N2, {"metadata": {"labels": {names.RESERVED_LABEL: "team-a"}}})
    await until(lambda: not stage.view.node(N2).eligible)
    await stage.step()
    twin = await stage.twin(N2)
    assert (twin.spec.profile, twin.spec.cpu, twin.spec.policy) == ("performance", None, None)
    assert stage.view.node(N2).profile_label is None
    assert twin.status.predicted_power_headroom_score is not None


def confirm(generation, message="restored: no cap requested, original limits in force"):
    result = {"backend": "rapl", "result": "applied", "message": message, "updatedAt": rfc3339(EPOCH_S)}
    return {"status": {"controlStatus": {"cpu": result, "gpu": result, "observedGeneration": generation}}}


@played(play)
async def test_h17_label_keeps_the_agent_until_the_restore_is_confirmed(stage):
    label = names.RESTORE_PENDING_LABEL

    async def pending(name):
        await stage.caught_up()
        return label in (await stage.client.get(NODES, name)).metadata.labels

    async def report(*arguments):
        body = confirm(*arguments)
        await stage.client.apply(
            NODE_TWINS, names.object_name(N2), body, field_manager="joulie-agent", subresource="status"
        )
        await stage.caught_up()

    await two_nodes(stage)
    # Set before the cap, and only where there is one.
    assert (await pending(N1), await pending(N2)) == (False, True)
    await stage.client.patch(NODES, N2, {"metadata": {"labels": {"joulie.io/managed": None}}})
    await until(lambda: not stage.view.node(N2).managed)
    await stage.step()
    twin = await stage.twin(N2)
    assert twin.spec.cpu is None
    # A report about the spec with the cap, or one that says otherwise, confirms nothing.
    await report(twin.metadata.generation - 1)
    await stage.step()
    assert await pending(N2)
    await report(twin.metadata.generation, "original limits not restored: package-0: write refused")
    await stage.step()
    assert await pending(N2)
    await report(twin.metadata.generation)
    await stage.step()
    assert not await pending(N2)
    assert not await stage.step()


@played(play)
async def test_h17_twin_deleted_by_hand_is_written_again_while_a_restore_is_pending(stage):
    await two_nodes(stage)
    await stage.client.patch(NODES, N2, {"metadata": {"labels": {"joulie.io/managed": None}}})
    await until(lambda: not stage.view.node(N2).managed)
    await stage.client.delete(NODE_TWINS, names.object_name(N2))
    await until(lambda: stage.view.twin_of(N2) is None)
    await stage.step()
    assert (await stage.twin(N2)).spec.cpu is None


@played(play, mode=Mode.OBSERVE)
async def test_observe_mode_reports_the_plan_and_applies_nothing(stage):
    await stage.add_node(N1)
    await stage.add_node(N2)
    await stage.add_pod("web", N2, workload_class="performance")
    await until(lambda: stage.view.pods)
    assert await stage.step() == {"spec": 2, "status": 2}
    for name in (N1, N2):
        assert (stage.view.node(name).profile_label, stage.view.node(name).draining_label) == (None, None)
        twin = await stage.twin(name)
        assert (twin.spec.profile, twin.spec.cpu, twin.spec.gpu) == ("performance", None, None)
        assert not twin.spec.scheduling.draining
        assert twin.status.schedulable_class == "performance"
        assert twin.status.effective_cap_state.cpu_pct == 100.0
    assert (await stage.twin(N1)).status.planned.profile == "performance"
    planned = (await stage.twin(N2)).status.planned
    assert (planned.profile, planned.draining, planned.policy.name) == ("eco", True, "static_partition")
    assert planned.cpu.package_power_cap_pct_of_max == 60.0
    assert stage.loop._decision.transitions[0].result == "observed"
    await stage.client.delete(PODS, "web", "default", grace_s=0)
    await until(lambda: not stage.view.pods)
    assert await stage.step() == {"status": 1}
    assert not (await stage.twin(N2)).status.planned.draining
    # A restart repeats no event, and a steady cluster sees no write.
    stage.start()
    assert await stage.step() == {}
    assert stage.loop._decision.transitions == ()


@played(play, mode=Mode.OBSERVE)
async def test_the_label_of_a_node_takes_precedence_over_the_mode(stage):
    await stage.add_node(N1)
    await stage.add_node(N2, **{names.MODE_LABEL: "enforce"})
    await stage.step()
    await stage.step(31.0)
    canary = await stage.twin(N2)
    assert (canary.spec.profile, canary.status.planned) == ("eco", None)
    assert stage.view.node(N2).profile_label == "eco"
    assert stage.view.node(N1).profile_label is None

    # Back to observe: caps and labels are lifted at the next step.
    await stage.client.patch(NODES, N2, {"metadata": {"labels": {names.MODE_LABEL: "observe"}}})
    await until(lambda: not stage.view.node(N2).enforced)
    assert stage.wake.is_set()
    assert await stage.step() == {"spec": 1, "status": 1, "labels": 1}
    canary = await stage.twin(N2)
    assert (canary.spec.profile, canary.spec.cpu, canary.status.planned.profile) == ("performance", None, "eco")
    assert stage.view.node(N2).profile_label is None


@played(play, mode=Mode.OBSERVE)
async def test_a_node_power_profile_caps_a_canary_and_only_plans_elsewhere(stage):
    await stage.add_node(N1, **{names.MODE_LABEL: "enforce"})
    await stage.add_node(N2)
    await pin(stage, N1, "eco")
    await pin(stage, N2, "eco")
    await stage.step()
    await stage.step(31.0)
    assert (await stage.twin(N1)).spec.profile == "eco"
    observed = await stage.twin(N2)
    assert (observed.spec.profile, observed.status.planned.profile) == ("performance", "eco")
    assert sorted(reason for _, reason, *_ in (await counted(stage)).values()) == ["Applied", "ObserveMode"]


@played(play)
async def test_a_mode_that_does_not_exist_observes_and_is_reported(stage, caplog):
    await stage.add_node(N1, **{names.MODE_LABEL: "enforced"})
    assert not stage.view.node(N1).enforced
    assert [record.value for record in caplog.records if "unknown mode" in record.message] == ["enforced"]


@played(play)
async def test_a_node_that_leaves_the_selection_is_given_back(stage):
    await two_nodes(stage)
    await stage.client.patch(NODES, N2, {"metadata": {"labels": {names.MANAGED_LABEL: None}}})
    await until(lambda: not stage.view.node(N2).managed)
    await stage.step()
    twin = await stage.twin(N2)
    assert (twin.spec.profile, twin.spec.cpu, twin.status.schedulable_class) == ("performance", None, "unknown")
    assert twin.status.predicted_power_headroom_score is None
    assert stage.view.node(N2).profile_label is None
    assert await stage.step(1000.0) == {"status": 1}  # of the node that is left


@played(play)
async def test_twins_go_with_their_nodes_and_a_new_node_starts_anew(stage):
    await two_nodes(stage)
    old = await stage.twin(N2)
    await stage.client.delete(NODES, N2)
    await until(lambda: stage.view.node(N2) is None)
    await stage.step()
    with pytest.raises(NotFoundError):
        await stage.twin(N2)
    await stage.add_node(N2)
    await stage.step()
    new = await stage.twin(N2)
    assert new.metadata.uid != old.metadata.uid
    assert (new.spec.profile, new.spec.scheduling.draining) == ("performance", True)


@played(play)
async def test_a_node_replaced_between_two_steps_starts_anew(stage):
    await two_nodes(stage)
    uid = stage.view.node(N2).uid
    await stage.client.delete(NODES, N2)
    await stage.client.create(
        NODES, {"metadata": {"name": N2, "labels": LABELS}, "status": {"allocatable": {"cpu": "192"}}}
    )
    await until(lambda: (facts := stage.view.node(N2)) is not None and facts.uid != uid)
    await until(lambda: stage.view.twin_of(N2) is None)
    await stage.step()
    twin = await stage.twin(N2)
    assert (twin.spec.profile, twin.spec.scheduling.draining) == ("performance", True)


@played(play)
async def test_the_twin_of_an_earlier_node_of_that_name_says_nothing(stage):
    await stage.add_node(N1)
    await stage.add_node(N2)
    owner = {"apiVersion": "v1", "kind": "Node", "name": N2, "uid": "of-the-old-one"}
    old = {"metadata": {"name": N2, "ownerReferences": [owner]}, "spec": {"nodeName": N2, "profile": "eco"}}
    await stage.client.create(NODE_TWINS, old)
    await until(lambda: stage.view.twin_of(N2))
    await stage.step()
    twin = await stage.twin(N2)
    assert (twin.spec.profile, twin.spec.scheduling.draining) == ("performance", True)
    assert stage.view.node(N2).uid in [owner.uid for owner in twin.metadata.owner_references]


@played(play)
async def test_a_failing_node_stops_no_other_and_is_tried_again(stage):
    await stage.add_node(N1)
    await stage.add_node(N2)
    stage.cluster.fail_next(1, 422, method="PATCH", path=f"/nodetwins/{N1}")
    await stage.step(result="error")
    assert (await stage.twin(N2)).status.schedulable_class == "draining"
    assert stage.metrics.registry.get_sample_value("joulie_operator_write_errors_total") == 1.0
    await stage.step()
    assert (await stage.twin(N1)).status.schedulable_class == "performance"


@played(play)
async def test_a_word_that_closes_a_node_goes_before_its_power(stage):
    await two_nodes(stage)
    stage.cluster.fail_next(1, 422, method="PATCH", path=f"/nodetwins/{N1}/status")
    await pin(stage, N1, "eco")
    await stage.step(result="error")
    twin = await stage.twin(N1)
    assert (twin.spec.scheduling.draining, twin.status.schedulable_class) == (False, "performance")


async def pin(stage, node, profile):
    override = {
        "metadata": {"name": f"pin-{node}", "labels": {names.OVERRIDE_LABEL: "true"}},
        "spec": {"nodeName": node, "profile": profile},
    }
    stage.wake.clear()
    await stage.client.create(NODE_POWER_PROFILES, override)
    await until(stage.wake.is_set)


@played(play)
async def test_only_a_labelled_power_profile_overrides(stage):
    await two_nodes(stage)
    leftover = {"metadata": {"name": "old"}, "spec": {"nodeName": N1, "profile": "eco"}}
    await stage.client.create(NODE_POWER_PROFILES, leftover)
    await pin(stage, N2, "performance")
    await stage.step()
    assert (await stage.twin(N1)).spec.profile == "performance"
    twin = await stage.twin(N2)
    assert (twin.spec.profile, twin.spec.policy.name) == ("performance", f"nodepowerprofile/pin-{N2}")


async def counted(stage):
    """What the operator says of each power profile, once its cache has seen it."""
    profiles = (await stage.client.list(NODE_POWER_PROFILES)).items
    stored = {item.metadata.name: item.status.conditions for item in profiles}
    await until(lambda: {key.name: (facts.counted,) for key, facts in stage.view.overrides.items()} == stored)
    return {name: (one.status, one.reason) for name, (one,) in stored.items()}


@played(play)
async def test_each_power_profile_is_told_whether_it_counts(stage):
    await two_nodes(stage)
    leftover = {"metadata": {"name": "old"}, "spec": {"nodeName": N1, "profile": "eco"}}
    await stage.client.create(NODE_POWER_PROFILES, leftover)
    for node, profile in (("a-typo", "eco"), (N2, "performance"), (N1, "eco")):
        await pin(stage, node, profile)
    second = {
        "metadata": {"name": "z-second", "labels": {names.OVERRIDE_LABEL: "true"}},
        "spec": {"nodeName": N1, "profile": "performance"},
    }
    await stage.client.create(NODE_POWER_PROFILES, second)
    await until(lambda: len(stage.view.overrides) == 5)
    stage.wake.clear()
    assert await stage.loop._overrides.publish() == []
    said = {
        "old": ("False", "NotAnOverride"),
        "pin-a-typo": ("False", "UnknownNode"),
        f"pin-{N2}": ("True", "Applied"),
        f"pin-{N1}": ("True", "Applied"),
        "z-second": ("False", "Superseded"),
    }
    assert await counted(stage) == said
    # The operator's own words are no news: they wake nobody, and are written once.
    assert not stage.wake.is_set()
    before = (await stage.client.list(NODE_POWER_PROFILES)).items
    await stage.step(1.0)
    assert (await stage.client.list(NODE_POWER_PROFILES)).items == before

    await stage.client.delete(NODE_POWER_PROFILES, f"pin-{N1}")
    await stage.client.patch(NODES, N2, {"spec": {"unschedulable": True}})
    await until(lambda: len(stage.view.overrides) == 4 and not stage.view.node(N2).eligible)
    await stage.step()
    del said[f"pin-{N1}"]
    said |= {"z-second": ("True", "Applied"), f"pin-{N2}": ("False", "NodeNotPlanned")}
    assert await counted(stage) == said
    (old,) = (await stage.client.get(NODE_POWER_PROFILES, "old")).status.conditions
    assert old.message == "it has no effect without the label joulie.io/override=true"


@played(play)
async def test_what_is_said_of_a_power_profile_needs_the_lease_and_stops_nothing(stage):
    await two_nodes(stage)
    await pin(stage, N1, "performance")
    stage.leading = False
    assert await stage.loop._overrides.publish() == []
    assert (await stage.client.get(NODE_POWER_PROFILES, f"pin-{N1}")).status.conditions == ()
    stage.leading = True
    stage.cluster.fail_next(1, 422, method="PATCH", path=f"/nodepowerprofiles/pin-{N1}/status")
    await stage.step(result="error")
    assert (await stage.twin(N1)).spec.policy.name == f"nodepowerprofile/pin-{N1}"
    await stage.step()
    assert await counted(stage) == {f"pin-{N1}": ("True", "Applied")}


@played(play)
async def test_a_restart_in_the_middle_of_a_drain_changes_nothing(stage):
    await stage.add_node(N1)
    await stage.add_node(N2)
    await stage.add_pod("important", N2, workload_class="performance")
    await until(lambda: stage.view.ledger.blocking)
    await stage.step()
    since = {one.type: one.last_transition_time for one in (await stage.twin(N2)).status.conditions}
    stage.start()
    assert await stage.step(120.0) == {}
    assert stage.loop._decision.transitions == ()
    after = {one.type: one.last_transition_time for one in (await stage.twin(N2)).status.conditions}
    assert after == since
    await stage.client.delete(PODS, "important", "default", grace_s=0)
    await until(lambda: not stage.view.ledger.blocking)
    await stage.step()
    await stage.step(31.0)
    assert (await stage.twin(N2)).spec.profile == "eco"


@played(play)
async def test_l1_a_performance_pod_on_a_capped_node_lifts_its_caps(stage):
    await two_nodes(stage)
    stage.wake.clear()
    await stage.add_pod("by-name", N2, workload_class="performance")
    await until(stage.wake.is_set)
    await stage.step(1.0)
    twin = await stage.twin(N2)
    (draining,) = (one for one in twin.status.conditions if one.type == "Draining")
    assert (twin.spec.profile, twin.status.schedulable_class) == ("performance", "draining")
    assert twin.spec.cpu.package_power_cap_pct_of_max == 100.0
    assert (draining.status, draining.reason) == ("True", "CapsLifted")
    assert stage.view.node(N2).draining_label == "true"
    value = stage.metrics.registry.get_sample_value
    steps = {"from_state": "ActiveEco", "to_state": "DrainingPerformance", "result": "applied"}
    assert value("joulie_operator_state_transitions_total", {"node": N2, **steps}) == 1.0
    assert value("joulie_operator_node_blocking_pods", {"node": N2}) == 1.0
    await stage.loop._events.flush()
    (event,) = (one for one in (await stage.client.list(EVENTS)).items if one.reason == "CapsLifted")
    assert (event.type, event.involved_object.name) == ("Warning", N2)
    stage.start()
    assert await stage.step(100.0) == {}, "a restart remembers why"
    await stage.client.delete(PODS, "by-name", "default", grace_s=0)
    await until(lambda: not stage.view.ledger.full_power)
    await stage.step()
    await stage.step(31.0)
    assert (await stage.twin(N2)).spec.profile == "eco"


@played(play)
async def test_nothing_is_written_without_the_lease(stage):
    await stage.add_node(N1)
    stage.leading = False
    assert await stage.step(result="error") == {}
    assert (await stage.client.list(NODE_TWINS)).items == []


@played(play, environment={"CPU_WRITE_ABSOLUTE_CAPS": "true"})
async def test_whole_watts_survive_the_way_there_and_back(stage):
    await stage.add_node(N1)
    await stage.step()
    assert (await stage.twin(N1)).spec.cpu.package_power_cap_watts == 5000.0
    assert await stage.step() == {}


@played(play)
async def test_a_pod_with_a_class_that_does_not_exist_is_told_so_once(stage):
    await stage.add_node(N1)
    await stage.add_pod("typo", N1, workload_class="perfomance")
    await until(lambda: stage.view.ledger.invalid_pods)
    await stage.step()
    await stage.step()
    await stage.loop._events.flush()
    told = [one for one in (await stage.client.list(EVENTS)).items if one.involved_object.kind == "Pod"]
    assert [(one.reason, one.count) for one in told] == [("InvalidAnnotation", 1)]
    assert "invalid value 'perfomance': must be performance or standard" in told[0].message


@played(play)
async def test_profiles_of_many_nodes_are_counted(stage):
    watching = asyncio.create_task(stage.loop._telemetry.run())
    await two_nodes(stage)
    for name, target in (
        ("all", {"scope": "cluster"}),
        ("some", {"scope": "node", "nodeSelector": {"pool": "x"}}),
        ("one", {"scope": "node", "nodeName": N1}),
    ):
        await stage.client.create(TELEMETRY_PROFILES, {"metadata": {"name": name}, "spec": {"target": target}})
    for name, results in ((N1, ("applied", "blocked")), (N2, ("applied", "applied"))):
        report = {kind: {"result": result} for kind, result in zip(("cpu", "gpu"), results, strict=True)}
        await stage.report(name, report)
    await stage.caught_up()
    profiles = stage.loop._telemetry._profiles
    await until(lambda: len(profiles.objects) == 3)
    await stage.step()
    counts = {item.metadata.name: item.status.nodes for item in (await stage.client.list(TELEMETRY_PROFILES)).items}
    assert counts == {
        "all": MatchedNodes(matched=2, applied=1, blocked=1, failed=0),
        "some": MatchedNodes(matched=0, applied=0, blocked=0, failed=0),
        "one": None,
    }
    await until(lambda: all(one.conditions for one in profiles.objects.values()))
    assert await stage.loop._telemetry.publish({}) == 0
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


@played(play)
async def test_metrics_have_the_documented_names_and_go_with_their_nodes(stage):
    await two_nodes(stage)

    def value(name, **labels):
        return stage.metrics.registry.get_sample_value(f"joulie_operator_{name}", labels)

    assert value("node_state", node=N2, state="ActiveEco") == 1.0
    assert value("node_state", node=N2, state="ActivePerformance") == 0.0
    assert value("node_profile_label", node=N2, profile="eco") == 1.0
    assert value("node_compute_density", node=N2, component="cpu") == 100.0
    steps = {"from_state": "DrainingPerformance", "to_state": "ActiveEco", "result": "applied"}
    assert value("state_transitions_total", node=N2, **steps) == 1.0
    assert value("power_source_nodes", source="requests") == 2.0
    await stage.client.delete(NODES, N2)
    await until(lambda: stage.view.node(N2) is None)
    await stage.step()
    assert value("node_state", node=N2, state="ActiveEco") is None
    assert value("state_transitions_total", node=N2, **steps) is None


def test_the_program_starts_leads_and_lets_go(tmp_path):
    async def main():
        async with FakeCluster(custom_resource_definitions()) as cluster:
            kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
            settings = OperatorSettings(
                kubeconfig=kubeconfig,
                metrics_addr="127.0.0.1:0",
                namespace="default",
                agent_pod_selector="",
                prometheus_address="",
            )
            stop = asyncio.Event()
            async with KubeClient.connect(kubeconfig=kubeconfig) as client, asyncio.timeout(20.0):
                await client.create(NODES, {"metadata": {"name": "n", "labels": LABELS}})
                running = asyncio.create_task(serve(settings, BUILTIN_CATALOGUE, stop))
                while not (await client.list(NODE_TWINS)).items:
                    await asyncio.sleep(0)
                stop.set()
                await running
                assert (await client.get(LEASES, LEASE_NAME, "default")).spec.holder_identity in (None, "")

    asyncio.run(main())
