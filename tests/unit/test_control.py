"""The operator's step: snapshot and memory in, decisions out."""

import pytest

from joulie.domain.capping.node_limits import PowerCeiling
from joulie.domain.control import (
    ControlSettings,
    Facility,
    IncompletePlanError,
    Memory,
    Override,
    PlanRecord,
    Snapshot,
    StoredState,
    TransitionResult,
    controlled_node,
    decide,
)
from joulie.domain.control_caps import UNCAPPED, ReportedCap, ReportedCaps
from joulie.domain.control_power import SourceReadings
from joulie.domain.drain import (
    ActiveEco,
    ActivePerformance,
    DrainingPerformance,
    DrainSettings,
    Escalation,
    SchedulableClass,
)
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.hardware.resolve import ReportedHardware, resolve
from joulie.domain.policies import POLICIES
from joulie.domain.policy import DEFAULT_CAPS, Cap, Plan, PolicySettings, Profile, ProfileCaps

CPU = resolve(
    ReportedHardware(cpu_model="AMD EPYC 9654", sockets=2, cores=192, cpu_min_w=50.0, cpu_max_w=360.0),
    {}, {}, BUILTIN_CATALOGUE,
)  # fmt: skip
GPU = resolve(
    ReportedHardware(
        cpu_model="AMD EPYC 9654", sockets=2, cores=192, cpu_min_w=50.0, cpu_max_w=360.0,
        gpu_model="NVIDIA H100 NVL", gpu_count=4, gpu_min_w=200.0, gpu_max_w=400.0, gpu_default_w=350.0,
    ),
    {}, {}, BUILTIN_CATALOGUE,
)  # fmt: skip
UNKNOWN = resolve(None, {}, {}, BUILTIN_CATALOGUE)


class Fixed:
    """A policy that makes the named nodes eco."""

    def __init__(self, *eco):
        self.eco = eco

    def plan(self, snapshot):
        return Plan(
            "fixed",
            {node.name: Profile.ECO if node.name in self.eco else Profile.PERFORMANCE for node in snapshot.nodes},
        )


def step(nodes, eco=(), *, now_s=1000.0, memory=None, settings=None, power=None, **rest):
    names = [node.name for node in nodes]
    readings = (
        ()
        if power is None
        else (SourceReadings.of("rapl", names, {name: (now_s, watts) for name, watts in power.items()}),)
    )
    snapshot = Snapshot(now_s, tuple(nodes), power=readings, **rest)
    return decide(snapshot, memory or Memory(), settings or ControlSettings(), Fixed(*eco))


def cpu_node(name="n", **more):
    return controlled_node(name, CPU, **more)


def states(decision):
    return {node.node.name: type(node.state) for node in decision.nodes}


def test_a_new_node_drains_before_it_is_capped():
    first = step([cpu_node()], eco=["n"])
    assert states(first) == {"n": DrainingPerformance}
    node = first.nodes[0]
    assert (node.guarded.profile, node.caps.cpu_percent, node.label, node.draining) == (
        Profile.PERFORMANCE, 100.0, Profile.PERFORMANCE, True,
    )  # fmt: skip
    assert first.next_due_s == 1030.0
    early = step([cpu_node()], eco=["n"], now_s=1029.0, memory=first.memory)
    assert states(early) == {"n": DrainingPerformance}
    capped = step([cpu_node()], eco=["n"], now_s=1030.0, memory=early.memory)
    assert states(capped) == {"n": ActiveEco}
    assert capped.nodes[0].caps.cpu == Cap(60.0)
    assert capped.next_due_s is None


def confirmed(cap, result="applied"):
    return ReportedCap(cap, result, confirmed=result == "applied")


def unlimited(cap, result="blocked"):
    return ReportedCap(cap, result, confirmed=False, unlimited=True)


@pytest.mark.parametrize(
    ("reported", "cpu_percent", "not_in_force"),
    [
        ({}, 100.0, ("cpu: no report",)),
        ({"n": ReportedCaps(confirmed(Cap(60.0)))}, 60.0, ()),
        ({"n": ReportedCaps(confirmed(Cap(5.0, watts=216.0)))}, 100.0, ("cpu: no report",)),
        ({"n": ReportedCaps(confirmed(Cap(100.0)))}, 100.0, ("cpu: no report",)),
        ({"n": ReportedCaps(confirmed(Cap(60.0), "blocked"))}, 100.0, ("cpu: blocked",)),
        ({"n": ReportedCaps(confirmed(Cap(60.0), "unconfirmed"))}, 100.0, ("cpu: unconfirmed",)),
        ({"n": ReportedCaps(confirmed(Cap(60.0), "error"))}, 100.0, ("cpu: error",)),
    ],
)
def test_l9_only_caps_that_were_confirmed_count(reported, cpu_percent, not_in_force):
    decision = step([cpu_node()], eco=["n"], memory=Memory({"n": ActiveEco()}), power={"n": 216.0}, reported=reported)
    node = decision.nodes[0]
    assert (node.caps.cpu, node.caps.cpu_percent, node.not_in_force) == (Cap(60.0), cpu_percent, not_in_force)
    capped_w = 720.0 * cpu_percent / 100.0
    assert decision.twin.cpu_capped_w[0] == capped_w
    assert decision.twin.headroom[0] == pytest.approx((capped_w - 216.0) / capped_w * 100.0)
    assert node.guarded.schedulable is SchedulableClass.ECO, "closed as long as something may limit it"


def test_l9_a_node_that_nothing_can_cap_is_open_to_all_pods():
    memory = Memory({"n": ActiveEco()})

    def look(reported, pods=0):
        nonlocal memory
        decision = step([cpu_node()], eco=["n"], memory=memory, reported={"n": reported}, blocking={"n": pods})
        memory, node = decision.memory, decision.nodes[0]
        return node.guarded.schedulable, node.label, node.draining, node.caps.cpu

    full_power = (SchedulableClass.PERFORMANCE, Profile.PERFORMANCE, False, Cap(60.0))
    capped = (SchedulableClass.ECO, Profile.ECO, False, Cap(60.0))
    assert look(ReportedCaps()) == capped, "nothing is reported yet, the cap is coming"
    assert look(ReportedCaps(unlimited(Cap(60.0)))) == full_power
    assert look(ReportedCaps(unlimited(Cap(60.0))), pods=2) == full_power, "there is no cap to lift for them"
    assert look(ReportedCaps(unlimited(Cap(50.0)))) == capped, "about another cap"
    assert look(ReportedCaps(confirmed(Cap(60.0)))) == capped
    assert look(ReportedCaps(confirmed(Cap(60.0))), pods=2) == (
        SchedulableClass.DRAINING, Profile.PERFORMANCE, True, Cap(100.0),
    ), "a cap that came into force is lifted for them"  # fmt: skip


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (unlimited(Cap(60.0)), SchedulableClass.PERFORMANCE),
        (confirmed(Cap(60.0)), SchedulableClass.ECO),
        (confirmed(Cap(60.0), "error"), SchedulableClass.ECO),
    ],
)
def test_l9_a_node_is_open_only_where_nothing_of_it_can_be_capped(gpu, expected):
    reported = {"g": ReportedCaps(unlimited(Cap(60.0)), gpu)}
    decision = step([controlled_node("g", GPU)], eco=["g"], memory=Memory({"g": ActiveEco()}), reported=reported)
    assert decision.nodes[0].guarded.schedulable is expected


def test_l9_what_has_no_limit_needs_no_report():
    node = step([cpu_node()], reported={}).nodes[0]
    assert (node.caps.cpu_percent, node.not_in_force) == (100.0, ())


def test_l9_one_device_that_is_blocked_leaves_the_other_capped():
    gpu = confirmed(Cap(60.0), "blocked")
    decision = step(
        [controlled_node("g", GPU)],
        eco=["g"],
        memory=Memory({"g": ActiveEco()}),
        reported={"g": ReportedCaps(confirmed(Cap(60.0)), gpu)},
    )
    assert decision.nodes[0].caps[2:] == (60.0, 100.0)
    assert decision.nodes[0].not_in_force == ("gpu: blocked",)


def test_caps_are_never_written_while_performance_pods_run():
    memory = Memory()
    for minute in range(20):
        decision = step([cpu_node()], eco=["n"], now_s=1000.0 + 60.0 * minute, memory=memory, blocking={"n": 1})
        memory = decision.memory
        assert decision.nodes[0].caps.cpu == Cap(100.0)
        assert decision.nodes[0].guarded.schedulable is SchedulableClass.DRAINING


def test_pending_performance_pods_count_in_the_plan():
    nodes = tuple(cpu_node(f"n{index}") for index in range(10))
    policy = POLICIES["queue_aware_v1"](PolicySettings())
    plan = decide(Snapshot(0.0, nodes, performance_demand=95), Memory(), ControlSettings(), policy)
    assert sum(isinstance(node.state, ActivePerformance) for node in plan.nodes) == 10


def test_transitions_are_told_once():
    first = step([cpu_node()], eco=["n"], blocking={"n": 2})
    assert [(one.from_state, one.to_state, one.result) for one in first.transitions] == [
        ("ActivePerformance", "DrainingPerformance", TransitionResult.APPLIED),
        ("DrainingPerformance", "ActiveEco", TransitionResult.DEFERRED),
    ]
    assert "2 pods" in first.transitions[1].reason
    second = step([cpu_node()], eco=["n"], now_s=1060.0, memory=first.memory, blocking={"n": 2})
    assert second.transitions == ()


def test_a_drain_that_takes_too_long_is_told_once_and_holds():
    settings = ControlSettings(drain=DrainSettings(timeout_s=100.0))
    memory, told = Memory(), []
    for minute in range(5):
        decision = step(
            [cpu_node()], eco=["n"], now_s=60.0 * minute, memory=memory, settings=settings, blocking={"n": 1}
        )
        memory = decision.memory
        told += [one for one in decision.transitions if "timed out" in one.reason]
        assert decision.nodes[0].caps.cpu == Cap(100.0)
    assert len(told) == 1


def test_a_forced_drain_says_so():
    settings = ControlSettings(drain=DrainSettings(timeout_s=100.0, escalation=Escalation.FORCE))
    first = step([cpu_node()], eco=["n"], settings=settings, blocking={"n": 1})
    forced = step([cpu_node()], eco=["n"], now_s=1100.0, memory=first.memory, settings=settings, blocking={"n": 1})
    assert states(forced) == {"n": ActiveEco}
    assert "forced" in forced.transitions[0].reason


def test_a_restart_reads_states_back_and_changes_nothing():
    nodes = [cpu_node("perf"), cpu_node("drain"), cpu_node("eco")]
    stored = {
        "perf": StoredState(Profile.PERFORMANCE, False, None),
        "drain": StoredState(Profile.PERFORMANCE, True, 400.0),
        "eco": StoredState(Profile.ECO, False, None),
    }
    decision = step(nodes, eco=["drain", "eco"], stored=stored, blocking={"drain": 1})
    assert states(decision) == {"perf": ActivePerformance, "drain": DrainingPerformance, "eco": ActiveEco}
    assert decision.transitions == ()
    assert decision.memory.states["drain"] == DrainingPerformance(since_s=400.0, quiet_since_s=None)


def test_a_node_that_may_not_be_planned_is_given_back():
    memory = Memory({"n": ActiveEco()})
    decision = step([cpu_node(eligible=False)], memory=memory)
    node = decision.nodes[0]
    assert (node.caps, node.label, node.policy) == (UNCAPPED, None, "")
    assert [one.reason for one in decision.transitions] == ["no longer planned"]


def test_a_replaced_node_starts_anew():
    memory = Memory({"n": ActiveEco(), "m": ActiveEco()}).without(frozenset({"n"}))
    decision = step([cpu_node("n"), cpu_node("m")], eco=["n", "m"], memory=memory)
    assert states(decision) == {"n": DrainingPerformance, "m": ActiveEco}


def test_an_override_goes_before_the_policy_but_not_before_the_guard():
    pin = {"n": Override("nodepowerprofile/pin", Profile.ECO, cpu=Cap(40.0))}
    held = step([cpu_node()], overrides=pin, blocking={"n": 1})
    assert held.nodes[0].caps.cpu == Cap(100.0)
    first = step([cpu_node()], overrides=pin)
    capped = step([cpu_node()], now_s=1030.0, overrides=pin, memory=first.memory)
    assert capped.nodes[0].caps.cpu == Cap(40.0)
    assert capped.nodes[0].policy == "nodepowerprofile/pin"


def test_an_override_may_keep_a_node_at_full_power():
    decision = step(
        [cpu_node()], eco=["n"], overrides={"n": Override("o", Profile.PERFORMANCE)}, memory=Memory({"n": ActiveEco()})
    )
    assert states(decision) == {"n": ActivePerformance}


def test_caps_are_what_the_device_makes_of_them():
    node = controlled_node("g", GPU)
    decision = step([node], eco=["g"], memory=Memory({"g": ActiveEco()}), power={"g": 400.0})
    caps = decision.nodes[0].caps
    assert (caps.cpu, caps.gpu) == (Cap(60.0), Cap(60.0))
    assert caps.cpu_percent == pytest.approx(60.0)
    # 60 % of the default 350 W is 210 W, above the device's least.
    assert caps.gpu_percent == pytest.approx(60.0)
    assert decision.twin.gpu_capped_w[0] == pytest.approx(4 * 210.0)
    assert decision.twin.headroom[0] == pytest.approx((1272.0 - 400.0) / 1272.0 * 100.0)


def test_a_cap_below_what_the_device_accepts_is_what_it_accepts():
    caps = {**DEFAULT_CAPS, Profile.ECO: ProfileCaps(Cap(5.0), Cap(10.0))}
    decision = step(
        [controlled_node("g", GPU)], eco=["g"], memory=Memory({"g": ActiveEco()}), settings=ControlSettings(caps=caps)
    )
    in_force = decision.nodes[0].caps
    assert in_force.cpu_percent == pytest.approx(50.0 / 360.0 * 100.0)
    assert in_force.gpu_percent == pytest.approx(200.0 / 350.0 * 100.0)


def test_gpu_caps_in_watts_by_setting_and_by_model():
    eco = Memory({"g": ActiveEco()})
    absolute = step(
        [controlled_node("g", GPU)], eco=["g"], memory=eco, settings=ControlSettings(absolute_gpu_caps=True)
    )
    assert absolute.nodes[0].caps.gpu == Cap(60.0, 210.0)
    by_model = {**DEFAULT_CAPS, Profile.ECO: ProfileCaps(Cap(60.0), Cap(60.0), {"H100-NVL": 250.0})}
    named = step([controlled_node("g", GPU)], eco=["g"], memory=eco, settings=ControlSettings(caps=by_model))
    assert named.nodes[0].caps.gpu == Cap(watts=250.0)


def test_a_node_without_data_has_no_scores():
    nodes = [cpu_node("ok"), cpu_node("silent"), controlled_node("strange", UNKNOWN)]
    decision = step(nodes, power={"ok": 300.0, "strange": 100.0})
    assert decision.twin.scored.tolist() == [True, False, False]


def test_l11_without_racks_only_a_limit_of_the_cluster_is_one():
    nodes = [cpu_node(name) for name in "abc"]
    power = dict.fromkeys("abc", 20_000.0)
    assert step(nodes, power=power).twin.psu_stress.tolist() == [0.0, 0.0, 0.0]
    limited = ControlSettings(cluster_capacity_w=120_000.0)
    assert step(nodes, power=power, settings=limited).twin.psu_stress.tolist() == [50.0, 50.0, 50.0]


def test_l3_a_node_that_is_not_ready_gives_up_its_slot_after_a_grace():
    policy = POLICIES["static_partition"](PolicySettings(static_hp_frac=0.5))

    def decided(now_s, memory, **lost):
        nodes = tuple(cpu_node(name, not_ready_since_s=lost.get(name)) for name in "abcd")
        return decide(Snapshot(now_s, nodes), memory, ControlSettings(), policy)

    first = decided(0.0, Memory())
    assert [node.node.name for node in first.nodes if node.guarded.schedulable is SchedulableClass.PERFORMANCE] == [
        "a", "b",
    ]  # fmt: skip
    within = decided(399.0, first.memory, a=100.0)
    assert states(within)["a"] is ActivePerformance
    assert within.next_due_s == 400.0
    after = decided(400.0, within.memory, a=100.0)
    found = states(after)
    assert (found["a"], found["b"], found["c"]) == (DrainingPerformance, ActivePerformance, ActivePerformance)
    assert after.nodes[0].policy == "not-ready"
    back = decided(500.0, after.memory)
    assert states(back)["a"] is ActivePerformance


def test_l3_an_outage_of_all_nodes_moves_no_slot():
    nodes = tuple(cpu_node(name, not_ready_since_s=0.0) for name in "ab")
    policy = POLICIES["static_partition"](PolicySettings(static_hp_frac=0.5))
    decision = decide(Snapshot(1e6, nodes), Memory(), ControlSettings(), policy)
    assert states(decision) == {"a": ActivePerformance, "b": DrainingPerformance}


def test_l10_the_operator_looks_again_when_the_number_may_fall():
    policy = POLICIES["queue_aware_v1"](PolicySettings(queue_hp_base_frac=0.0))
    nodes = tuple(cpu_node(name) for name in "abcd")
    memory, settings = Memory(), ControlSettings(drain=DrainSettings(timeout_s=None))
    for now_s, demand, performance, due_s in (
        (0.0, 35, 4, None),
        (10.0, 5, 4, 300.0),
        (299.0, 5, 4, 300.0),
        (300.0, 5, 1, 330.0),  # the three that drain settle
        (301.0, 15, 2, 330.0),
    ):
        decision = decide(Snapshot(now_s, nodes, demand), memory, settings, policy)
        memory = decision.memory
        assert (memory.planned.performance_nodes, decision.next_due_s) == (performance, due_s)


def test_l10_a_restart_of_the_operator_caps_no_node():
    policy = POLICIES["queue_aware_v1"](PolicySettings(queue_hp_base_frac=0.0))
    stored = {name: StoredState(Profile.PERFORMANCE, name == "d", 0.0) for name in "abcd"}
    snapshot = Snapshot(1000.0, tuple(cpu_node(name) for name in "abcd"), 5, stored=stored)
    decision = decide(snapshot, Memory(), ControlSettings(), policy)
    assert decision.memory.planned == PlanRecord(3, 1000.0)
    assert [state is ActivePerformance for state in states(decision).values()] == [True, True, True, False]


def test_zones_and_racks_of_the_building():
    nodes = [cpu_node("a", rack="r1", zone="hot"), cpu_node("b", rack="r2", zone="cold"), cpu_node("c")]
    facility = Facility(ambient_k=293.15, zone_ambient_k={"hot": 313.15}, rack_power_w={"r1": 40_000.0}, pue=1.3)
    twin = step(nodes, power={"a": 360.0, "b": 360.0, "c": 360.0}, facility=facility).twin
    assert twin.cooling_stress.tolist() == pytest.approx([50.0 / 0.6, 50.0, 50.0])
    assert twin.psu_stress.tolist() == pytest.approx([80.0, 0.72, 0.0])
    assert twin.estimated_pue.tolist() == [1.3, 1.3, 1.3]


def test_an_empty_cluster():
    decision = step([])
    assert (decision.nodes, decision.transitions, decision.next_due_s) == ((), (), None)


def test_the_same_snapshot_gives_the_same_decision():
    nodes = [cpu_node("a"), controlled_node("b", GPU)]
    one, two = (step(nodes, eco=["a"], power={"a": 1.0}) for _ in range(2))
    assert one.nodes == two.nodes
    assert one.transitions == two.transitions


def test_a_closed_node_is_quiet_from_when_the_word_was_out():
    nodes = [cpu_node("a"), cpu_node("b")]
    first = step(nodes, eco=["a", "b"], blocking={"b": 1})
    memory = first.memory.published(Memory(), frozenset(), now_s=1050.0)
    assert memory.states["a"] == DrainingPerformance(since_s=1000.0, quiet_since_s=1050.0)
    assert memory.states["b"] == DrainingPerformance(since_s=1000.0, quiet_since_s=None)
    second = step(nodes, eco=["a", "b"], now_s=1079.0, memory=memory)
    assert states(second) == {"a": DrainingPerformance, "b": DrainingPerformance}
    later = second.memory.published(memory, frozenset(), now_s=1079.5)
    assert later.states["a"] == DrainingPerformance(since_s=1000.0, quiet_since_s=1050.0)


def test_a_node_that_could_not_be_written_is_where_it_was():
    memory = Memory({"a": ActivePerformance()})
    nodes = [cpu_node("a"), cpu_node("new")]
    decision = step(nodes, eco=["a", "new"], memory=memory)
    assert decision.memory.published(memory, frozenset({"a", "new"}), 1001.0).states == {"a": ActivePerformance()}


def test_a_policy_that_forgets_a_node_is_told_so():
    class Forgetful:
        def plan(self, snapshot):
            return Plan("forgetful", {})

    with pytest.raises(IncompletePlanError, match="'forgetful' has no profile for 1 nodes, n among them"):
        decide(Snapshot(0.0, (cpu_node(),)), Memory(), ControlSettings(), Forgetful())


def test_trends_are_of_the_nodes_time_where_it_runs_faster_than_the_clock():
    def trend_w_per_min(time_scale):
        settings = ControlSettings(time_scale=time_scale)
        first = step([cpu_node()], now_s=1000.0, settings=settings, power={"n": 200.0})
        second = step([cpu_node()], now_s=1006.0, settings=settings, power={"n": 260.0}, memory=first.memory)
        return second.twin.power_trend_w_per_min[0]

    assert trend_w_per_min(1.0) == pytest.approx(600.0)
    assert trend_w_per_min(20.0) == pytest.approx(30.0)


def test_a_node_at_rest_is_decided_once_until_one_of_its_inputs_changes():
    node = cpu_node()
    first = step([node], eco=["n"], memory=Memory({"n": ActiveEco()}))
    second = step([cpu_node()], eco=["n"], now_s=2000.0, memory=first.memory)
    assert second.nodes[0] is first.nodes[0]
    third = step([node], eco=["n"], now_s=3000.0, memory=second.memory, ceilings={"n": PowerCeiling(150.0, None)})
    assert third.nodes[0].caps.cpu == Cap(watts=150.0)
    other = ControlSettings(caps={profile: ProfileCaps(Cap(80.0), None) for profile in Profile})
    assert step([node], eco=["n"], memory=second.memory, settings=other).nodes[0].caps.cpu == Cap(80.0)
