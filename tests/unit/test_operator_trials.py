"""PowerTrials through the operator against the fake cluster."""

import pytest

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.power_trials import protocol_of, workload_protocol_of
from joulie.adapters.kubernetes.resources import NODES, PODS, POWER_TRIALS
from joulie.adapters.kubernetes.times import rfc3339
from joulie.apps.operator.trials import LOOK_S
from joulie.domain.grid.names import TRIAL
from joulie.domain.mode import Mode
from joulie.domain.policy import PodPhase
from joulie.domain.trial.protocol import Arm, arms
from joulie.domain.trial.workload_protocol import Drawn, WorkloadProtocol
from support.operator_stage import LABELS, play, until
from support.played import played

pytestmark = pytest.mark.slow

HOUR_S = 3600.0
FLEET = [f"node-{index}" for index in range(6)]
SPEC = {"pairs": 12, "blockMinutes": 60, "washoutMinutes": 10}


async def fleet(stage):
    for name in FLEET:
        await stage.add_node(name)
    await stage.step()


async def create(stage, name="july", **spec):
    return await stage.client.create(POWER_TRIALS, {"metadata": {"name": name}, "spec": SPEC | spec})


async def look(stage, passed_s=0.0):
    stage.now_s += passed_s
    await stage.loop._trials.look()
    listed = {one.metadata.name: one.metadata.labels for one in (await stage.client.list(NODES)).items}
    await until(lambda: all(stage.view.node(name).labels == labels for name, labels in listed.items()))
    return {name: (labels.get(names.MODE_LABEL), labels.get(names.TRIAL_LABEL)) for name, labels in listed.items()}


async def trial(stage, name="july"):
    return await stage.client.get(POWER_TRIALS, name)


def reason(trial):
    return trial.status.conditions[0].reason


def modes(protocol, block):
    first, second = (Mode.ENFORCE if arm is Arm.TREATMENT else Mode.OBSERVE for arm in arms(block.treated))
    return dict.fromkeys(protocol.first_half, (first, "july")) | dict.fromkeys(protocol.second_half, (second, "july"))


@played(play, mode=Mode.OBSERVE)
async def test_every_block_runs_as_drawn_and_the_labels_go_at_the_end(stage):
    await fleet(stage)
    await create(stage)
    found = await look(stage)
    protocol = protocol_of(await trial(stage))
    blocks = list(protocol.blocks())
    assert len(blocks) == 28
    for block in blocks:
        assert found == modes(protocol, block)
        status = (await trial(stage)).status
        assert (status.block, status.treated) == (block.index + 1, block.treated)
        found = await look(stage, HOUR_S)
    assert found == dict.fromkeys(FLEET, (None, None))
    assert reason(await trial(stage)) == "Completed"
    assert (await trial(stage)).status.block is None


@played(play, mode=Mode.OBSERVE)
async def test_the_operator_looks_when_a_block_begins(stage):
    await fleet(stage)
    trials = stage.loop._trials
    await create(stage, startTime=rfc3339(stage.now_s + 4.0))
    await look(stage)
    assert 3.0 < trials.pause_s() <= 4.0, "until it starts"
    await look(stage, 4.0)
    protocol = protocol_of(await trial(stage))
    assert trials.pause_s() == LOOK_S
    await look(stage, protocol.start_s + HOUR_S - 3.0 - stage.now_s)
    assert trials.pause_s() == pytest.approx(3.0)
    stage.now_s += 3.5
    assert trials.pause_s() == LOOK_S, "a look that failed is not repeated at once"
    await look(stage, protocol.end_s - stage.now_s)
    assert trials.pause_s() == LOOK_S, "it is over"


@played(play, mode=Mode.OBSERVE)
async def test_a_new_leader_continues_the_draw(stage):
    await fleet(stage)
    await create(stage)
    await look(stage)
    before = protocol_of(await trial(stage))
    stage.start()
    found = await look(stage, 5.5 * HOUR_S)  # without a decision
    assert protocol_of(await trial(stage)) == before
    assert found == modes(before, before.block_at(stage.now_s))


@pytest.mark.parametrize("how", ["stop", "delete"])
@played(play, mode=Mode.OBSERVE)
async def test_a_trial_that_is_stopped_or_deleted_leaves_no_label(stage, how):
    await fleet(stage)
    await create(stage)
    await look(stage)
    if how == "delete":
        await stage.client.delete(POWER_TRIALS, "july")
    else:
        await stage.client.patch(POWER_TRIALS, "july", {"spec": {"stop": True}})
    assert await look(stage, 60.0) == dict.fromkeys(FLEET, (None, None))
    if how == "stop":
        assert reason(await trial(stage)) == "Stopped"


@played(play, mode=Mode.OBSERVE)
async def test_nodes_whose_mode_somebody_set_take_no_part(stage):
    await fleet(stage)
    await stage.client.patch(NODES, "node-0", {"metadata": {"labels": {names.MODE_LABEL: "observe"}}})
    await until(lambda: names.MODE_LABEL in stage.view.node("node-0").labels)
    await create(stage)
    found = await look(stage)
    protocol = protocol_of(await trial(stage))
    assert found["node-0"] == ("observe", None)
    assert "node-0" not in {*protocol.first_half, *protocol.second_half, *protocol.left_out}
    # Taken out by hand while it runs: the label is not fought over.
    out = protocol.first_half[0]
    labels = {names.MODE_LABEL: "observe", names.TRIAL_LABEL: None}
    await stage.client.patch(NODES, out, {"metadata": {"labels": labels}})
    await until(lambda: names.TRIAL_LABEL not in stage.view.node(out).labels)
    for _ in range(4):
        assert (await look(stage, HOUR_S))[out] == ("observe", None)


@played(play, mode=Mode.OBSERVE)
async def test_the_oldest_trial_runs_and_others_wait_with_the_reason(stage):
    await fleet(stage)
    await create(stage)
    await create(stage, "later")
    await look(stage)
    assert reason(await trial(stage)) == "InBlock"
    waiting = (await trial(stage, "later")).status
    assert waiting.protocol is None
    assert "july is running" in waiting.conditions[0].message


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"nodeSelector": {"pool": "none"}}, "needs two nodes with the same hardware"),
        ({"startTime": "soon"}, "invalid time"),
    ],
)
@played(play, mode=Mode.OBSERVE)
async def test_a_trial_that_cannot_be_drawn_says_why(stage, spec, why):
    await fleet(stage)
    await create(stage, **spec)
    assert await look(stage) == dict.fromkeys(FLEET, (None, None))
    found = await trial(stage)
    assert reason(found) == "Invalid"
    assert why in found.status.conditions[0].message


@played(play, mode=Mode.OBSERVE)
async def test_who_lost_the_lease_writes_nothing(stage):
    await fleet(stage)
    await create(stage)
    stage.leading = False
    with pytest.raises(Exception, match="lease"):
        await look(stage)
    assert (await trial(stage)).status.protocol is None
    assert stage.view.node("node-0").labels == LABELS


@played(play, mode=Mode.OBSERVE)
async def test_the_course_is_exported_while_this_replica_leads(stage):
    def shown(name, **labels):
        return stage.metrics.registry.get_sample_value(f"joulie_operator_{name}", labels)

    await fleet(stage)
    await create(stage)
    await create(stage, "september")
    await look(stage)
    await look(stage, HOUR_S)
    status = (await trial(stage)).status
    assert shown("trial_block") == status.block == 2.0
    assert shown("trial_blocks") == 2.0 * len(status.protocol.order)
    assert {reason: shown("trials", reason=reason) for reason in ("InBlock", "Waiting", "Invalid")} == {
        "InBlock": 1.0, "Waiting": 1.0, "Invalid": 0.0,
    }  # fmt: skip
    found = arms(status.treated)
    for arm in Arm:
        assert shown("trial_nodes", arm=arm) == 3.0 * found.count(arm)
    stage.metrics.stood_down()
    assert (shown("trial_block"), shown("trial_blocks"), shown("trials", reason="InBlock")) == (0.0, 0.0, None)


def shown_guard(stage, name, **labels):
    return stage.metrics.registry.get_sample_value(f"joulie_operator_trial_{name}", labels)


async def run_jobs(stage, protocol, count, treated_s, failed=False):
    """Pods of one owner on all nodes, for ten minutes or as long as `treated_s` where enforced; each look sees them."""
    arms_now = protocol.arms_at(stage.now_s)
    for number in range(count):
        for node in FLEET:
            name = f"pod-{stage.now_s:.0f}-{node}-{number}"
            await create_pod(stage, name, node)
    await until(lambda: len(stage.view.pods) == count * len(FLEET))
    await look(stage)
    await finish(stage, [node for node in FLEET if arms_now[node] is Arm.CONTROL], 600.0, failed=False)
    await finish(stage, [node for node in FLEET if arms_now[node] is Arm.TREATMENT], treated_s - 600.0, failed=failed)
    return arms_now


async def create_pod(stage, name, node):
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    meta = {"name": name, "ownerReferences": [owner]}
    spec = {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}
    await stage.client.create(PODS, {"metadata": meta, "spec": spec}, "default")
    status = {"phase": "Running", "startTime": rfc3339(stage.now_s)}
    await stage.client.patch(PODS, name, {"status": status}, namespace="default", subresource="status")
    await until(lambda: ("default", name) in stage.view.pods and running(stage, name))


def running(stage, name):
    return stage.view.pods["default", name].phase is PodPhase.RUNNING


async def finish(stage, nodes, passed_s, *, failed):
    found = (await stage.client.list(PODS)).items
    phase = "Failed" if failed else "Succeeded"
    for pod in found:
        if pod.spec.node_name in nodes and pod.status.phase == "Running":
            await stage.client.patch(
                PODS,
                pod.metadata.name,
                {"status": {"phase": phase}},
                namespace=pod.metadata.namespace,
                subresource="status",
            )
    await until(
        lambda: not any(one.phase is PodPhase.RUNNING and one.node_name in nodes for one in stage.view.pods.values())
    )
    await look(stage, passed_s)


@pytest.mark.parametrize(
    ("guard", "treated_s", "failed", "why"),
    [
        ({"maxSlowdownPercent": 5}, 900.0, False, "pods on enforced nodes run longer by 5"),
        ({"maxFailuresPercent": 10}, 900.0, True, "the share of pods that fail is higher"),
        ({"maxSlowdownPercent": 80}, 900.0, False, None),
        ({}, 900.0, True, None),
    ],
)
@played(play, mode=Mode.OBSERVE)
async def test_the_guard_ends_a_trial_that_harms_pods_and_a_new_leader_leaves_it_ended(
    stage, guard, treated_s, failed, why
):
    await fleet(stage)
    await create(stage, guard=guard)
    await look(stage)
    protocol = protocol_of(await trial(stage))
    first_half_only = next(
        block for block in protocol.blocks() if len(set(arms(block.treated))) == 2 and block.index % 2 == 0
    )
    await look(stage, first_half_only.start_s - stage.now_s)
    await run_jobs(stage, protocol, 8, treated_s, failed)
    found = await trial(stage)
    if why is None:
        assert reason(found) == "InBlock"
        pods, harm = {arm: shown_guard(stage, "pods", arm=arm.value) for arm in Arm}, "slowdown"
        assert pods == dict.fromkeys(Arm, 24.0)
        assert (shown_guard(stage, "harm_ratio", harm=harm) or 0.0) == pytest.approx(0.5 / 0.8 if guard else 0.0)
        return
    assert reason(found) == "GuardBroken"
    assert found.status.conditions[0].message.startswith(why)
    assert await look(stage) == dict.fromkeys(FLEET, (None, None))
    stage.start()
    assert await look(stage, HOUR_S) == dict.fromkeys(FLEET, (None, None))
    assert reason(await trial(stage)) == "GuardBroken"
    assert {shown_guard(stage, "pods", arm=arm.value) for arm in Arm} == {None}, "nothing is judged any more"


# ---- deferral

DAY_S = 24 * HOUR_S


async def begin_deferral(stage, name="july", **spec):
    body = {"metadata": {"name": name}, "spec": {"judges": "deferral", "days": 2} | spec}
    await stage.client.create(POWER_TRIALS, body)
    await look(stage)
    return (await trial(stage, name)).status


@played(play, mode=Mode.OBSERVE)
async def test_a_trial_of_deferral_is_drawn_without_nodes_and_labels_none(stage):
    status = await begin_deferral(stage, seed=9)
    began_s = stage.now_s
    assert workload_protocol_of(await trial(stage)) == WorkloadProtocol(began_s, began_s + 2 * DAY_S, 9)
    assert (status.protocol, reason(await trial(stage)), status.conditions[0].message) == (
        None, "Assigning", "day 1 of 2",
    )  # fmt: skip
    await fleet(stage)
    await create(stage, "later")
    assert set((await look(stage, DAY_S)).values()) == {(None, None)}
    assert (await trial(stage)).status.conditions[0].message == "day 2 of 2"
    assert reason(await trial(stage, "later")) == "Waiting", "one at a time"
    shown = stage.metrics.registry.get_sample_value
    assert shown("joulie_operator_trials", {"reason": "Assigning"}) == 1.0
    await look(stage, DAY_S)
    assert reason(await trial(stage)) == "Completed"
    assert (await trial(stage)).status.workloads == status.workloads


@played(play, mode=Mode.OBSERVE)
async def test_a_trial_of_deferral_that_is_stopped_draws_no_pod_that_comes_later(stage):
    await begin_deferral(stage)
    stage.now_s += HOUR_S
    await stage.client.patch(POWER_TRIALS, "july", {"spec": {"stop": True}})
    await look(stage)
    stopped = workload_protocol_of(await trial(stage))
    assert (stopped.covers(stage.now_s - 1.0), stopped.covers(stage.now_s)) == (True, False)
    await look(stage, HOUR_S)
    assert workload_protocol_of(await trial(stage)) == stopped
    later = await begin_deferral(stage, "later", startTime=rfc3339(stage.now_s + HOUR_S))
    assert later.conditions[0].reason == "Waiting"
    await stage.client.patch(POWER_TRIALS, "later", {"spec": {"stop": True}})
    await look(stage)
    never = workload_protocol_of(await trial(stage, "later"))
    assert never.start_s == never.end_s, "stopped before it began"


@pytest.mark.parametrize(("bound_min", "why"), [(30, "pods of workloads that wait do so for 60"), (90, None)])
@played(play, mode=Mode.OBSERVE)
async def test_the_guard_ends_a_trial_of_deferral_by_the_waits_of_workloads(stage, bound_min, why):
    await stage.add_node("node-0")
    # With some seeds an arm has too few of the workloads for the guard to judge.
    await begin_deferral(stage, guard={"maxWaitMinutes": bound_min}, seed=1)
    protocol = workload_protocol_of(await trial(stage))
    stage.now_s += 60.0
    drawn = {f"train-of-{place}": protocol.arm_of("default", f"train-of-{place}") for place in range(30)}
    for name, arm in drawn.items():
        meta = {"name": name, "annotations": {TRIAL: str(Drawn("july", arm, name))}}
        spec = {"nodeName": "node-0", "containers": [{"name": "c"}]}
        await stage.client.create(PODS, {"metadata": meta, "spec": spec}, "default")
    await until(lambda: len(stage.view.pods) == len(drawn))
    await look(stage)
    stage.now_s += HOUR_S
    for name in drawn:
        status = {"phase": "Running", "startTime": rfc3339(stage.now_s)}
        await stage.client.patch(PODS, name, {"status": status}, namespace="default", subresource="status")
    await until(lambda: all(running(stage, name) for name in drawn))
    await look(stage)
    await finish(stage, ["node-0"], 600.0, failed=False)
    found = await trial(stage)
    assert reason(found) == ("Assigning" if why is None else "GuardBroken")
    assert (why or "day 1 of 2") in found.status.conditions[0].message
    if why is None:
        assert 0.0 < shown_guard(stage, "harm_ratio", harm="wait") <= 1.0
    assert workload_protocol_of(found).covers(stage.now_s) is (why is None)


# ---- washout


@pytest.mark.parametrize(("pods", "minutes"), [(24, 20), (8, 30)])
@played(play, mode=Mode.OBSERVE)
async def test_a_washout_follows_the_pods_that_run_at_the_draw(stage, pods, minutes):
    await fleet(stage)
    for number in range(pods):
        await create_pod(stage, f"pod-{number}", FLEET[number % len(FLEET)])
    await stage.step()
    stage.now_s += 20 * 60.0
    body = {"metadata": {"name": "july"}, "spec": {"pairs": 12, "blockMinutes": 60, "washout": "auto"}}
    await stage.client.create(POWER_TRIALS, body)
    await look(stage)
    assert (await trial(stage)).status.protocol.washout_minutes == minutes
