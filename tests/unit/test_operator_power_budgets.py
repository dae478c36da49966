"""PowerBudgets through the operator against the fake cluster."""

import msgspec
import pytest

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.errors import InvalidError, KubernetesError
from joulie.adapters.kubernetes.resources import NODE_TWINS, NODES, POWER_BUDGETS
from joulie.adapters.kubernetes.times import rfc3339
from joulie.domain.capping.budgets import RESPONSE_S
from joulie.domain.mode import Mode
from support.operator_stage import play, until
from support.played import played

pytestmark = pytest.mark.slow

GPUS = {names.HW_GPU_MODEL_LABEL: "NVIDIA-H100-80GB-HBM3", names.HW_GPU_COUNT_LABEL: "8"}
"""With two EPYC 9654 (320 to 360 W) and eight H100 (350 to 700 W)."""
OTHER_W = 0.2 * (2 * 360.0 + 8 * 700.0)
FULL_W, FLOOR_W = 2 * 360.0 + 8 * 700.0 + OTHER_W, 2 * 320.0 + 8 * 350.0 + OTHER_W
FLEET = [f"node-{index}" for index in range(4)]


async def fleet(stage):
    for index, name in enumerate(FLEET):
        await stage.add_node(name, **GPUS, **{names.RACK_LABEL: f"rack-{index // 2}"})
    await stage.step()
    await confirm(stage)
    await stage.step()


async def confirm(stage, *nodes, result="applied", gpu=None, boot=None, own_w=None):
    """Agents confirm the limits in the NodeTwins of some nodes; of all without names."""
    for name in nodes or FLEET:
        twin = await stage.twin(name)
        one = {"backend": "http", "result": result}
        report = {"cpu": one, "gpu": one | ({} if gpu is None else {"result": gpu})}
        report["observedGeneration"] = twin.metadata.generation
        report |= {} if boot is None else {"bootID": boot}
        report |= {} if own_w is None else {"gpus": [{"id": "GPU-0", "originalWatts": own_w}]}
        await stage.report(name, report)
    await stage.caught_up()


async def create(stage, name, watts, **spec):
    await stage.client.create(POWER_BUDGETS, {"metadata": {"name": name}, "spec": {"watts": watts} | spec})
    await seen(stage)


async def nested(stage):
    """A budget over all nodes, one over those of rack-0, and a performance pod outside that."""
    await fleet(stage)
    await stage.add_pod("critical", "node-2", workload_class="performance")
    await until(lambda: stage.view.ledger.full_power.get("node-2"))
    await create(stage, "hall", 25_200.0)
    await create(stage, "rack-0", 10_000.0, nodeSelector={names.RACK_LABEL: "rack-0"})


async def change(stage, name, **spec):
    await stage.client.patch(POWER_BUDGETS, name, {"spec": spec})
    await seen(stage)


async def seen(stage):
    stored = {
        one.metadata.name: one.metadata.resource_version for one in (await stage.client.list(POWER_BUDGETS)).items
    }
    await until(
        lambda: {key.name: one.metadata.resource_version for key, one in stage.view.power_budgets.items()} == stored
    )


async def new_leader(stage):
    """Another replica leads, and takes its first step."""
    stage.start()
    stage.loop._budgets.decide()
    await stage.step()


async def look(stage, passed_s=2.0):
    stage.now_s += passed_s
    await stage.loop._budgets.look()
    await stage.caught_up()
    await seen(stage)


async def settled(stage, looks=4):
    """Looks with agents that confirm what they are asked for."""
    for _ in range(looks):
        await look(stage)
        await confirm(stage)
    await look(stage)


async def budget(stage, name):
    return await stage.client.get(POWER_BUDGETS, name)


async def enforced(stage, name):
    conditions = {one.type: one for one in (await budget(stage, name)).status.conditions}
    return conditions["Enforced"].status, conditions["Enforced"].reason


async def asked_w(stage, name):
    """Worst case under the limits that a node is asked for, W."""
    spec = (await stage.twin(name)).spec
    cpu_w = spec.cpu.package_power_cap_watts or 360.0 * (spec.cpu.package_power_cap_pct_of_max or 100.0) / 100.0
    gpu = spec.gpu.power_cap
    gpu_w = gpu.cap_watts_per_gpu or 700.0 * (gpu.cap_pct_of_max or 100.0) / 100.0
    return 2 * max(cpu_w, 320.0) + 8 * max(gpu_w, 350.0) + OTHER_W


async def asked_sum_w(stage, nodes=FLEET):
    return sum([await asked_w(stage, name) for name in nodes])


@played(play, mode=Mode.ENFORCE)
async def test_a_budget_without_nodes_says_so_and_leaves_the_others_alone(stage):
    await fleet(stage)
    await create(stage, "nobody", 1_000.0, nodeSelector={names.RACK_LABEL: "rack-9"})
    await create(stage, "hall", 20_000.0)
    await settled(stage)
    assert await enforced(stage, "nobody") == ("False", "NoNodes")
    assert (await budget(stage, "nobody")).status.nodes == 0
    assert await enforced(stage, "hall") == ("True", "WorstCaseFits")


@played(play, mode=Mode.ENFORCE)
async def test_a_status_that_is_refused_keeps_no_other_from_being_written(stage, monkeypatch, caplog):
    await fleet(stage)
    for name in ("first", "second"):
        await create(stage, name, 20_000.0)
    apply = stage.client.apply

    async def refuses_first(resource, name, body, **options):
        if name == "first":
            raise InvalidError(422, "Invalid", "status is too long", what="patch", hint="")
        return await apply(resource, name, body, **options)

    with monkeypatch.context() as patched:
        patched.setattr(stage.loop._budgets._client, "apply", refuses_first)
        await look(stage)
    assert (await budget(stage, "second")).status.limit_watts == 20_000.0
    (told,) = [one for one in caplog.records if one.getMessage() == "power budget not reported"]
    assert told.budget == "first"
    await look(stage)
    assert (await budget(stage, "first")).status.limit_watts == 20_000.0, "tried again at the next look"


@played(play, mode=Mode.ENFORCE)
async def test_times_from_a_clock_that_was_set_back_are_not_in_the_future_for_good(stage):
    await fleet(stage)
    stage.now_s += 3600.0
    await create(stage, "hall", 20_000.0)
    await settled(stage)
    await stage.step()
    stage.now_s -= 3600.0
    await settled(stage)
    await stage.step()
    status, now = (await budget(stage, "hall")).status, rfc3339(stage.now_s)
    since = [one.since for one in status.curtailed] + [one.last_transition_time for one in status.conditions]
    for name in FLEET:
        since += [one.last_transition_time for one in (await stage.twin(name)).status.conditions]
    assert max(since) <= now


@played(play, mode=Mode.ENFORCE)
async def test_a_budget_is_kept_as_soon_as_agents_have_confirmed(stage):
    await fleet(stage)
    await create(stage, "hall", 20_000.0)
    await look(stage)
    assert await asked_sum_w(stage) <= 20_000.0, "limits are written in the first look"
    assert await enforced(stage, "hall") == ("False", "WaitingForAgents")
    await confirm(stage)
    await look(stage)
    assert await enforced(stage, "hall") == ("True", "WorstCaseFits")
    status = (await budget(stage, "hall")).status
    assert status.worst_case_watts <= 20_000.0
    assert (status.limit_watts, status.nodes, status.curtailed_nodes) == (20_000.0, 4, 4)
    assert [one.node for one in status.curtailed] == FLEET
    # The cycle keeps the ceilings, and counts what is confirmed as in force.
    await stage.step()
    assert await asked_sum_w(stage) <= 20_000.0
    twin = await stage.twin("node-0")
    assert twin.status.effective_cap_state.gpu_pct < 100.0
    assert stage.metrics.registry.get_sample_value(
        "joulie_operator_power_budget_worst_case_watts", {"budget": "hall"}
    ) == pytest.approx(status.worst_case_watts, abs=0.1)


@played(play, mode=Mode.ENFORCE)
async def test_the_tightest_of_nested_budgets_holds_and_standard_nodes_give_first(stage):
    await nested(stage)
    await settled(stage)
    assert await asked_sum_w(stage, FLEET[:2]) <= 10_000.0
    assert await asked_sum_w(stage) <= 25_200.0
    # What the rack takes from its nodes is room for the others.
    assert [one.node for one in (await budget(stage, "hall")).status.curtailed] == ["node-0", "node-1"]
    await change(stage, "hall", watts=23_000.0)
    await settled(stage)
    assert await asked_w(stage, "node-2") == pytest.approx(FULL_W), "the standard node in its rack gives first"
    assert await asked_w(stage, "node-3") < FULL_W


@played(play, mode=Mode.ENFORCE)
async def test_a_budget_says_what_is_left_for_pods_and_nodes_which_budgets_cover_them(stage):
    await nested(stage)
    await create(stage, "looks-only", 1_000.0, mode="observe")
    await settled(stage)
    # Nothing is measured here, so the node with the pod counts with its worst case.
    assert (await budget(stage, "hall")).status.pod_headroom_watts == pytest.approx(
        25_200 - FULL_W - 3 * FLOOR_W - 0.005 * 25_200
    )
    assert (await budget(stage, "rack-0")).status.pod_headroom_watts == pytest.approx(
        10_000 - 2 * FLOOR_W - 0.005 * 10_000
    )
    assert (await budget(stage, "looks-only")).status.pod_headroom_watts is None
    assert (await stage.twin("node-0")).status.power_budgets == ("hall", "rack-0")
    assert (await stage.twin("node-2")).status.power_budgets == ("hall",)
    await stage.client.delete(POWER_BUDGETS, "rack-0")
    await seen(stage)
    await look(stage)
    assert (await stage.twin("node-0")).status.power_budgets == ("hall",)


@played(play, mode=Mode.ENFORCE)
async def test_nothing_is_moved_under_a_budget_that_curtails_or_before_budgets_are_known(stage):
    await fleet(stage)
    await create(stage, "rack", 12_000.0, nodeSelector={names.RACK_LABEL: "rack-0"})
    budgets = stage.loop._budgets
    assert not budgets.pod_room().known
    await settled(stage)
    covered = (await budget(stage, "rack")).status.nodes
    assert 0 < covered < len(FLEET)
    assert len(budgets.pod_room().budgets) == covered
    assert budgets.pod_room().left_w == {"rack": 0.0}
    await change(stage, "rack", watts=100_000.0)
    await look(stage, 300.0)
    await settled(stage, 8)
    assert len(budgets.pod_room().budgets) == covered
    assert budgets.pod_room().left_w["rack"] > 10_000.0


@played(play, mode=Mode.ENFORCE)
async def test_standard_nodes_give_in_the_order_of_their_pods_priority_classes(stage):
    await fleet(stage)
    for name, priority in (("node-0", 1000), ("node-1", 1000), ("node-2", -5)):
        await stage.add_pod(f"pod-{name}", name, priority=priority)
    await until(lambda: len(stage.view.ledger.priorities) == 3)
    await create(stage, "hall", 4 * FULL_W - 4_000.0)
    await settled(stage)
    given_w = {name: FULL_W - await asked_w(stage, name) for name in FLEET}
    assert given_w["node-2"] == pytest.approx(FULL_W - FLOOR_W), "the lowest priority gives all that it can"
    assert 0.0 < given_w["node-3"] < FULL_W - FLOOR_W
    assert given_w["node-0"] == given_w["node-1"] == 0.0


@played(play, mode=Mode.ENFORCE)
async def test_a_budget_below_what_is_possible_is_reported_with_what_is_missing(stage):
    await fleet(stage)
    await create(stage, "hall", 10_000.0)
    await settled(stage)
    assert await asked_sum_w(stage) == pytest.approx(4 * FLOOR_W)
    assert await enforced(stage, "hall") == ("False", "Infeasible")
    conditions = {one.type: one for one in (await budget(stage, "hall")).status.conditions}
    assert f"{4 * FLOOR_W - 10_000.0:.0f} W are missing" in conditions["Infeasible"].message


@played(play, mode=Mode.ENFORCE)
async def test_a_node_that_does_not_answer_counts_with_its_worst_case(stage):
    await fleet(stage)
    await create(stage, "hall", 24_000.0)
    for _ in range(10):  # 20 s: beyond the response time
        await look(stage)
        await confirm(stage, *FLEET[1:])
    await look(stage)
    rest_w = await asked_sum_w(stage, FLEET[1:])
    assert rest_w <= 24_000.0 - FULL_W
    assert await enforced(stage, "hall") == ("True", "WorstCaseFits")
    # It answers at last: the others get their share of what it gives.
    for _ in range(10):
        await look(stage)
        await confirm(stage)
    await look(stage)
    assert await asked_sum_w(stage, FLEET[1:]) > rest_w
    assert await asked_sum_w(stage) <= 24_000.0


@played(play, mode=Mode.ENFORCE)
async def test_a_node_that_does_not_answer_gets_no_more_time_when_its_limit_changes(stage):
    await fleet(stage)
    await create(stage, "hall", 24_900.0)
    *others, silent = FLEET
    asked = []
    for number in range(10):  # 20 s: beyond the response time
        await look(stage)
        await confirm(stage, *others)
        await change(stage, "hall", watts=24_800.0 - 120.0 * number)
        asked.append(await asked_w(stage, silent))
    await look(stage)
    assert len(set(asked)) > 5
    assert await asked_sum_w(stage, others) <= 23_720.0 - FULL_W


def test_a_report_from_before_a_power_cut_confirms_nothing(tmp_path):
    """Its limits went with the power; until its agent runs again, the node counts with its worst case."""

    async def boot(stage, name, ident):
        await stage.client.patch(NODES, name, {"status": {"nodeInfo": {"bootID": ident}}}, subresource="status")
        await until(lambda: stage.view.node(name).boot_id == ident)

    async def body(stage):
        await fleet(stage)
        for name in FLEET:
            await boot(stage, name, "boot-1")
        await create(stage, "hall", 22_000.0)
        for _ in range(3):
            await look(stage)
            await confirm(stage, boot="boot-1")
        await look(stage)
        assert await enforced(stage, "hall") == ("True", "WorstCaseFits")
        await boot(stage, "node-0", "boot-2")
        await look(stage)
        status = (await budget(stage, "hall")).status
        assert status.worst_case_watts > 22_000.0, "nobody has set a limit in this boot"
        await look(stage, 16.0)  # nor does anybody answer: the others give what it draws
        await confirm(stage, *FLEET[1:], boot="boot-1")
        await look(stage)
        assert await asked_sum_w(stage, FLEET[1:]) <= 22_000.0 - FULL_W
        assert (await budget(stage, "hall")).status.worst_case_watts <= 22_000.0
        await confirm(stage, "node-0", boot="boot-2")
        await look(stage)
        assert (await budget(stage, "hall")).status.worst_case_watts < 22_000.0 - 1_000.0

    play(body, tmp_path, mode=Mode.ENFORCE)


@played(play, mode=Mode.ENFORCE)
async def test_gpus_count_with_the_limit_that_their_administrator_raised_above_the_default(stage):
    """A cap is lifted to what was found before it, not to the default: 600 W of an RTX 4090, whose default is 450."""
    labels = {names.HW_GPU_MODEL_LABEL: "NVIDIA-GeForce-RTX-4090", names.HW_GPU_COUNT_LABEL: "8"}
    await stage.add_node("node-0", **labels)
    await stage.step()
    await confirm(stage, "node-0", own_w=600.0)
    await stage.step()
    full_w = 2 * 360.0 + 8 * 600.0 + 0.2 * (2 * 360.0 + 8 * 450.0)
    await create(stage, "hall", full_w - 1.0)
    await look(stage)
    assert (await budget(stage, "hall")).status.worst_case_watts == pytest.approx(full_w)
    for _ in range(3):
        await confirm(stage, "node-0", own_w=600.0)
        await look(stage)
    cap = (await stage.twin("node-0")).spec.gpu.power_cap
    assert 450.0 < cap.cap_watts_per_gpu < 600.0, "a watt less than all, which its default keeps by far"
    assert await enforced(stage, "hall") == ("True", "WorstCaseFits")


@played(play, mode=Mode.ENFORCE)
async def test_nodes_that_report_blocked_are_charged_in_full(stage):
    await fleet(stage)
    await confirm(stage, "node-0", result="blocked")
    await create(stage, "hall", 24_000.0)
    await settled(stage, looks=1)
    await confirm(stage, "node-0", result="blocked")
    await look(stage)
    assert await asked_sum_w(stage, FLEET[1:]) <= 24_000.0 - FULL_W


@pytest.mark.parametrize("gpu", ["unconfirmed", "blocked", "error"])
def test_gpus_whose_driver_does_not_answer_are_asked_for_what_they_were_asked_before(tmp_path, gpu):
    """A driver that is slow, upgraded or restarted may set its limit again at any time: it must not be a higher one."""

    async def body(stage):
        await fleet(stage)
        await create(stage, "hall", 22_000.0)
        await settled(stage)
        before = (await stage.twin("node-0")).spec.gpu.power_cap
        assert before.cap_watts_per_gpu < 700.0
        await confirm(stage, "node-0", gpu=gpu)
        for leader in ("the same", "a new one"):
            if leader == "a new one":
                await new_leader(stage)
            await look(stage)
            assert (await stage.twin("node-0")).spec.gpu.power_cap == before, leader
            assert await asked_sum_w(stage, FLEET[1:]) <= 22_000.0 - 8 * 700.0 - 2 * 320.0 - OTHER_W
            await confirm(stage, "node-0", gpu=gpu)
        await settled(stage)
        assert await enforced(stage, "hall") == ("True", "WorstCaseFits")

    play(body, tmp_path, mode=Mode.ENFORCE)


@played(play, mode=Mode.ENFORCE)
async def test_a_new_leader_asks_a_node_that_is_not_ready_for_no_more_than_the_one_before(stage):
    await fleet(stage)
    await create(stage, "hall", 22_000.0)
    await settled(stage)
    before_w = await asked_w(stage, "node-0")
    assert before_w < FULL_W
    lost = {"type": "Ready", "status": "Unknown", "lastTransitionTime": rfc3339(stage.now_s)}
    await stage.client.patch(NODES, "node-0", {"status": {"conditions": [lost]}}, subresource="status")
    await until(lambda: not stage.view.node("node-0").ready)
    await look(stage)
    assert await asked_w(stage, "node-0") == before_w
    await new_leader(stage)
    await look(stage)
    assert await asked_w(stage, "node-0") == before_w


@played(play, mode=Mode.ENFORCE)
async def test_in_observe_mode_nothing_is_limited_and_the_status_says_what_would_be(stage):
    await fleet(stage)
    before = [(await stage.twin(name)).spec for name in FLEET]
    await create(stage, "hall", 20_000.0, mode="observe")
    await look(stage)
    await stage.step()
    assert [(await stage.twin(name)).spec for name in FLEET] == before
    assert await enforced(stage, "hall") == ("False", "ObserveMode")
    assert (await budget(stage, "hall")).status.curtailed_nodes == 4


def test_a_new_leader_keeps_the_limits_and_a_deleted_budget_lifts_them(tmp_path):
    async def body(stage):
        await fleet(stage)
        await create(stage, "hall", 20_000.0)
        await settled(stage)
        kept = [msgspec.to_builtins((await stage.twin(name)).spec) for name in FLEET]
        await new_leader(stage)
        await settled(stage)
        assert [msgspec.to_builtins((await stage.twin(name)).spec) for name in FLEET] == kept
        await stage.client.delete(POWER_BUDGETS, "hall")
        await seen(stage)
        await look(stage)
        await stage.step()
        assert await asked_sum_w(stage, ["node-0"]) >= asked_w_before(kept[0])
        assert stage.loop._budgets.ceilings == {}

    def asked_w_before(spec):
        return 8 * spec["gpu"]["powerCap"]["capWattsPerGpu"]

    play(body, tmp_path, mode=Mode.ENFORCE)


@played(play, mode=Mode.ENFORCE)
async def test_limits_that_could_not_be_written_are_written_as_soon_as_the_api_server_is_back(stage):
    """Lowered, and away for five minutes before a limit was written: nothing rises, and then the promise holds."""
    await fleet(stage)
    await create(stage, "hall", 22_000.0)
    await settled(stage)
    await change(stage, "hall", watts=20_000.0)
    before_w = await asked_sum_w(stage)
    stage.cluster.fail_next(100_000, 503)
    stage.cluster.drop_connections()
    for _ in range(30):
        stage.now_s += 10.0
        with pytest.raises(KubernetesError):
            await stage.loop._budgets.look()
    stage.cluster.recover()
    assert await asked_sum_w(stage) == before_w
    # By its own loop alone: a cycle of the operator may be a minute away.
    for _ in range(int(RESPONSE_S / 2.0)):
        await look(stage)
        await confirm(stage)
    assert await asked_sum_w(stage) <= 20_000.0
    await look(stage)
    assert await enforced(stage, "hall") == ("True", "WorstCaseFits")


@played(play, mode=Mode.ENFORCE)
async def test_what_the_first_cycle_of_a_leader_fails_to_write_is_written_by_the_next_looks(stage):
    await fleet(stage)
    await create(stage, "hall", 22_000.0)
    await settled(stage)
    await change(stage, "hall", watts=20_000.0)
    stage.start()
    stage.loop._budgets.begin()
    stage.cluster.fail_next(100_000, 503)
    await stage.loop.step()
    stage.cluster.recover()
    assert await asked_sum_w(stage) > 20_000.0
    for _ in range(int(RESPONSE_S / 2.0)):
        await look(stage)
        await confirm(stage)
    assert await asked_sum_w(stage) <= 20_000.0


@played(play, mode=Mode.ENFORCE)
async def test_what_a_leader_that_was_slow_writes_last_is_corrected_at_once(stage):
    await fleet(stage)
    await create(stage, "hall", 20_000.0)
    await settled(stage)
    await stage.step()
    stage.wake.clear()
    late = {"spec": {"gpu": {"powerCap": {"capWattsPerGpu": 700}}}}
    await stage.client.patch(NODE_TWINS, names.object_name("node-0"), late)
    assert await asked_sum_w(stage) > 20_000.0
    await until(stage.wake.is_set)
    await stage.caught_up()
    await look(stage)
    assert (await enforced(stage, "hall"))[0] == "False", "its agent may have set that"
    await stage.step()
    assert await asked_sum_w(stage) <= 20_000.0


@played(play, mode=Mode.ENFORCE)
async def test_power_rises_only_into_room_that_others_have_given(stage):
    await fleet(stage)
    await create(stage, "hall", 22_000.0)
    await settled(stage)
    await stage.add_pod("critical", "node-0", workload_class="performance")
    await until(lambda: stage.view.ledger.full_power.get("node-0"))
    await look(stage)
    assert await asked_w(stage, "node-0") < 0.9 * FULL_W, "nobody has confirmed to give"
    for _ in range(8):
        await confirm(stage)
        await look(stage)
        assert (await budget(stage, "hall")).status.worst_case_watts <= 22_000.0
    assert await asked_w(stage, "node-0") == pytest.approx(FULL_W, rel=0.01)


def stamp(time_s):
    return rfc3339(time_s)


@played(play, mode=Mode.ENFORCE)
async def test_an_event_reduces_a_budget_ramps_back_and_says_what_it_achieved(stage):
    await fleet(stage)
    start_s = stage.now_s + 20.0
    event = {"name": "dr", "start": stamp(start_s), "end": stamp(start_s + 60.0), "reducePercent": 20}
    await create(stage, "hall", 26_000.0, reductions=[event | {"rampSeconds": 100}])
    await settled(stage)
    assert (await budget(stage, "hall")).status.limit_reason == "spec"
    stage.now_s = start_s
    for _ in range(3):
        await look(stage)
        await confirm(stage)
    status = (await budget(stage, "hall")).status
    assert (status.limit_watts, status.limit_reason) == (20_800.0, "dr")
    assert await asked_sum_w(stage) <= 20_800.0
    await look(stage)
    (achieved,) = (await budget(stage, "hall")).status.reductions
    assert (achieved.name, achieved.limit_watts) == ("dr", 20_800.0)
    # Nothing is measured here, so nodes count with their worst case, which fits once agents have confirmed.
    assert 0.0 < achieved.complied_seconds <= 8.0
    stage.now_s = start_s + 60.0 + 48.0
    await look(stage)
    assert (await budget(stage, "hall")).status.limit_watts == pytest.approx(23_400.0)
    (achieved,) = (await budget(stage, "hall")).status.reductions
    assert achieved.message.startswith("no baseline")
    await settled(stage)
    assert 20_800.0 < await asked_sum_w(stage) <= 26_000.0


@played(play, mode=Mode.ENFORCE)
async def test_a_leader_that_comes_during_an_event_keeps_how_long_it_took(stage):
    await fleet(stage)
    event = {"name": "dr", "start": stamp(stage.now_s), "end": stamp(stage.now_s + 600.0), "reducePercent": 20}
    await create(stage, "hall", 26_000.0, reductions=[event])
    await settled(stage)
    (before,) = (await budget(stage, "hall")).status.reductions
    assert before.complied_seconds > 0.0
    stage.now_s += 20.0
    await new_leader(stage)
    await look(stage)
    (after,) = (await budget(stage, "hall")).status.reductions
    assert after.complied_seconds == before.complied_seconds


@played(play, mode=Mode.ENFORCE)
async def test_a_new_leader_keeps_what_the_one_before_wrote_of_an_event(stage):
    await fleet(stage)
    event = {"name": "dr", "start": stamp(stage.now_s - 100.0), "end": stamp(stage.now_s - 50.0), "watts": 20_000}
    await create(stage, "hall", 26_000.0, reductions=[event])
    written = {"name": "dr", "limitWatts": 20_000.0, "meanWatts": 19_000.0, "shedWatts": 5_000.0}
    body = {"status": {"reductions": [written]}}
    manager = names.POWER_BUDGET_FIELD_MANAGER
    await stage.client.apply(POWER_BUDGETS, "hall", body, field_manager=manager, subresource="status")
    await seen(stage)
    await settled(stage)
    (achieved,) = (await budget(stage, "hall")).status.reductions
    assert (achieved.mean_watts, achieved.shed_watts) == (19_000.0, 5_000.0)


@played(play, mode=Mode.ENFORCE)
async def test_each_feed_of_a_redundant_pair_carries_the_nodes_of_both(stage):
    await fleet(stage)
    for name, other, rack in (("feed-a", "feed-b", "rack-0"), ("feed-b", "feed-a", "rack-1")):
        await create(stage, name, 21_000.0, redundantWith=other, nodeSelector={names.RACK_LABEL: rack})
        await look(stage)
        if name == "feed-a":
            (why, *_) = (await budget(stage, name)).status.conditions
            assert (why.reason, why.message.partition(";")[0]) == (
                "Invalid", "redundantWith: there is no PowerBudget 'feed-b'",
            )  # fmt: skip
    await settled(stage)
    assert await enforced(stage, "feed-a") == ("True", "WorstCaseFits")
    assert await asked_sum_w(stage) <= 21_000.0
    assert (await budget(stage, "feed-a")).status.nodes == 4


def unread(zone="Mars/Olympus", watts=19_000):
    """A schedule in a zone that nobody knows."""
    return {"timeZone": zone, "schedule": [{"start": "00:00", "end": "24:00", "watts": watts}]}


@played(play, mode=Mode.ENFORCE)
async def test_a_budget_that_is_edited_to_what_cannot_be_read_holds_what_was_in_force(stage):
    await fleet(stage)
    rack = {"nodeSelector": {names.RACK_LABEL: "rack-0"}}
    await create(stage, "rack-0", 10_000.0, **rack)
    await create(stage, "hall", 26_000.0, **unread("Europe/Berlin", 20_000))
    await settled(stage, looks=1)
    await change(stage, "rack-0", watts=18_000.0, **unread())
    await settled(stage, looks=1)
    for leader in ("the same", "a new one"):
        if leader == "a new one":
            await new_leader(stage)
            await settled(stage, looks=1)
        assert await asked_sum_w(stage, FLEET[:2]) <= 10_000.0, leader
        status = (await budget(stage, "rack-0")).status
        assert (status.limit_watts, status.limit_reason) == (10_000.0, "invalid")
        assert await enforced(stage, "rack-0") == ("False", "Invalid")
        assert stage.loop._budgets.rack_limits_w["rack-0"] == 10_000.0
    # The others go on, and what can be read counts.
    assert (await budget(stage, "hall")).status.limit_reason == "schedule"
    await change(stage, "rack-0", watts=9_000.0)
    await settled(stage, looks=1)
    assert (await budget(stage, "rack-0")).status.limit_watts == 9_000.0
    await change(stage, "rack-0", watts=18_000.0, **unread("UTC", 12_000))
    await settled(stage, looks=1)
    status = (await budget(stage, "rack-0")).status
    assert (status.limit_watts, status.limit_reason) == (12_000.0, "schedule")
    assert await enforced(stage, "rack-0") == ("True", "WorstCaseFits")


@played(play, mode=Mode.ENFORCE)
async def test_what_cannot_be_read_of_a_budget_is_told_once_for_each_change(stage, caplog):
    told = []
    await fleet(stage)
    stage.loop._budgets._events.emit = lambda about, severity, reason, _: told.append((about.name, severity, reason))
    await create(stage, "new", 20_000.0, **unread())
    await create(stage, "looks-only", 1_000.0, mode="observe", **unread())
    await settled(stage, looks=1)
    assert await asked_sum_w(stage) <= 20_000.0, "its own watts can be read"
    (condition,) = [one for one in (await budget(stage, "new")).status.conditions if one.type == "Enforced"]
    assert condition.message == (
        "schedule: unknown time zone 'Mars/Olympus'; until that is mended the limit may fall and does not rise"
    )
    assert await enforced(stage, "looks-only") == ("False", "Invalid")
    await change(stage, "new", timeZone="Mars/Elysium")
    await settled(stage, looks=1)
    invalid = ("new", "Warning", "PowerBudgetInvalid")
    assert sorted(told) == [("looks-only", *invalid[1:]), invalid, invalid]
    assert [one.levelname for one in caplog.records if one.getMessage() == "power budget"] == ["WARNING"] * 3
    await change(stage, "new", timeZone="UTC")
    await settled(stage, looks=1)
    assert told[-1] == ("new", "Normal", "PowerBudgetWorstCaseFits")


@played(play, mode=Mode.ENFORCE)
async def test_an_event_that_cannot_be_read_costs_no_other(stage):
    await fleet(stage)
    now = stamp(stage.now_s)
    events = [
        {"name": "good", "start": now, "end": stamp(stage.now_s + 600.0), "watts": 20_000},
        {"name": "bad", "start": "2026-03-13T12:00:00,5Z", "end": "2026-03-13T13:00:00Z", "watts": 18_500},
    ]
    await create(stage, "hall", 26_000.0, reductions=events)
    await settled(stage, looks=1)
    status = (await budget(stage, "hall")).status
    assert (status.limit_watts, status.limit_reason) == (20_000.0, "invalid")
    (condition,) = [one for one in status.conditions if one.type == "Enforced"]
    assert condition.message.startswith("reduction bad: start or end is no time")
    assert [one.name for one in status.reductions] == ["good"]
    await change(stage, "hall", reductions=events[:1])
    await settled(stage, looks=1)
    assert (await budget(stage, "hall")).status.limit_reason == "good"


@played(play, mode=Mode.ENFORCE)
async def test_a_rack_with_a_budget_has_that_capacity_in_the_twin(stage):
    await fleet(stage)
    await create(stage, "rack-0", 13_000.0, nodeSelector={names.RACK_LABEL: "rack-0"})
    await settled(stage)
    await stage.step()
    stress = [(await stage.twin(name)).status.predicted_psu_stress_score for name in ("node-0", "node-2")]
    assert stress[0] > stress[1] * 3.0
