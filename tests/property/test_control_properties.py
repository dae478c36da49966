"""What holds of the operator's steps whatever happens in the cluster."""

from dataclasses import fields, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.capping.node_limits import PowerCeiling
from joulie.domain.control import ControlSettings, Memory, Override, Snapshot, StoredState, controlled_node, decide
from joulie.domain.control_caps import ReportedCap, ReportedCaps
from joulie.domain.control_decision import KeptDecisions
from joulie.domain.control_power import SourceReadings, choose_power
from joulie.domain.drain import DrainingPerformance, DrainSettings, Escalation, SchedulableClass
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.hardware.resolve import resolve
from joulie.domain.policies import POLICIES
from joulie.domain.policy import DEFAULT_CAPS, Cap, ClusterSnapshot, PolicySettings, Profile

HARDWARE = [
    resolve(None, labels, {"cpu": 192.0}, BUILTIN_CATALOGUE)
    for labels in (
        {"joulie.io/hw.cpu-model": "AMD-EPYC-9654", "joulie.io/hw.cpu-sockets": "2"},
        {
            "joulie.io/hw.cpu-model": "AMD-EPYC-9655",
            "joulie.io/hw.gpu-model": "NVIDIA-L40S",
            "joulie.io/hw.gpu-count": "4",
        },
        {},
    )
]
NAMES = [f"n{index}" for index in range(6)]
POWER_W = st.floats(0.0, 5000.0)


@st.composite
def clusters(draw):
    """One moment of a cluster: nodes, pods that block, demand, power."""
    chosen = draw(st.lists(st.sampled_from(NAMES), unique=True))
    nodes = tuple(
        controlled_node(
            name,
            HARDWARE[draw(st.integers(0, 2))],
            eligible=draw(st.booleans()) or draw(st.booleans()),
            rack=draw(st.sampled_from([None, "r1", "r2"])),
        )
        for name in chosen
    )
    blocking = draw(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3)))
    measured = draw(st.dictionaries(st.sampled_from(NAMES), POWER_W))
    return nodes, draw(st.integers(0, 60)), blocking, measured


def snapshot(moment, now_s):
    nodes, demand, blocking, measured = moment
    readings = SourceReadings.of(
        "rapl", [node.name for node in nodes], {name: (now_s, w) for name, w in measured.items()}
    )
    return Snapshot(now_s, nodes, demand, blocking, (readings,))


def stored(decision):
    """What the NodeTwins of a decision would tell a restarted operator."""
    return {
        node.node.name: StoredState(
            node.guarded.profile,
            node.draining,
            node.state.since_s if isinstance(node.state, DrainingPerformance) else None,
        )
        for node in decision.nodes
    }


@settings(max_examples=50)
@given(
    st.lists(st.tuples(clusters(), st.floats(0.0, 120.0)), max_size=12),
    st.sampled_from(sorted(POLICIES)),
)
def test_nothing_is_capped_under_pods_that_need_full_power(moments, policy_name):
    policy, memory, now_s = POLICIES[policy_name](PolicySettings()), Memory(), 1e9
    for moment, passed_s in moments:
        now_s += passed_s
        decision = decide(snapshot(moment, now_s), memory, ControlSettings(), policy)
        memory = decision.memory
        eligible = tuple(node.planned for node in moment[0] if node.eligible)
        planned = policy.plan(ClusterSnapshot(eligible, moment[1], now_s)).caps
        for node in decision.nodes:
            if node.blocking:
                assert node.guarded.profile is Profile.PERFORMANCE
                # `energy_per_work` caps performance nodes too, by as little as performance pods may be slowed down.
                full = planned.get(node.node.name, DEFAULT_CAPS)[Profile.PERFORMANCE].cpu
                full = full or DEFAULT_CAPS[Profile.PERFORMANCE].cpu
                assert full.percent == 100.0 or policy_name == "energy_per_work"
                assert node.caps.cpu is None or node.caps.cpu == full
            # A word that opens a node never goes with caps, nor caps with a word that opens.
            assert (node.guarded.schedulable is SchedulableClass.ECO) == (node.guarded.profile is Profile.ECO)
            assert (node.label is None) == (not node.node.eligible)
        assert set(memory.states) == {node.name for node in moment[0]}


@settings(max_examples=50)
@given(clusters(), clusters())
def test_a_restart_between_two_steps_flaps_nothing(first, second):
    policy = POLICIES["static_partition"](PolicySettings())
    before = decide(snapshot(first, 1e9), Memory(), ControlSettings(), policy)
    told = stored(before)
    there = {node.name for node in second[0]}
    later = snapshot(second, 1e9 + 5.0)  # sooner than any settling ends
    went_on = decide(later, before.memory, ControlSettings(), policy)
    restarted = decide(
        replace(later, stored={name: state for name, state in told.items() if name in there}),
        Memory(),
        ControlSettings(),
        policy,
    )
    assert [node.guarded.profile for node in restarted.nodes] == [node.guarded.profile for node in went_on.nodes]
    assert [node.guarded.schedulable for node in restarted.nodes] == [
        node.guarded.schedulable for node in went_on.nodes
    ]
    assert [node.caps for node in restarted.nodes] == [node.caps for node in went_on.nodes]


REPORTS = st.builds(
    ReportedCap, st.sampled_from([None, Cap(60.0), Cap(watts=200.0)]), st.just("blocked"), st.booleans(), st.booleans()
)


@st.composite
def varied_snapshots(draw):
    """One moment of a cluster with all that decisions depend on."""
    nodes, *rest = draw(clusters())
    enforced = st.booleans() | st.just(True)
    nodes = tuple(
        node._replace(enforced=draw(enforced), not_ready_since_s=draw(st.sampled_from([None, 1e9]))) for node in nodes
    )
    named = st.sampled_from(NAMES)
    return replace(
        snapshot((nodes, *rest), 1e9),
        overrides=draw(st.dictionaries(named, st.builds(Override, named, st.sampled_from(Profile)))),
        full_power=draw(st.none() | st.dictionaries(named, st.integers(0, 3))),
        reported=draw(st.none() | st.dictionaries(named, st.builds(ReportedCaps, REPORTS, REPORTS))),
        ceilings=draw(st.dictionaries(named, st.builds(PowerCeiling, st.sampled_from([None, 180.0]), st.none()))),
    )


CHANGES = ["nodes", "performance_demand", "blocking", "overrides", "full_power", "reported", "ceilings"]


@st.composite
def courses(draw):
    """Moments of one cluster, between which little changes, and often nothing but the time."""
    first, other = draw(varied_snapshots()), draw(varied_snapshots())
    kinds = [first]
    for name in draw(st.lists(st.sampled_from(CHANGES), unique=True, max_size=2)):
        changed = {name: getattr(other, name)} | ({"power": other.power} if name == "nodes" else {})
        kinds.append(replace(first, **changed))
    now_s, moments = 1e9, []
    for _ in range(draw(st.integers(2, 10))):
        # A clock may also be set back.
        now_s += draw(st.floats(-30.0, 120.0))
        moments.append(replace(draw(st.sampled_from(kinds)), now_s=now_s))
    return moments


@settings(max_examples=100)
@given(
    courses(),
    st.sampled_from(sorted(POLICIES)),
    st.sampled_from(Escalation),
    st.frozensets(st.sampled_from(NAMES), max_size=2),
)
def test_decisions_that_were_kept_are_those_that_would_be_made_anew(moments, policy_name, escalation, failed):
    policy, memory = POLICIES[policy_name](PolicySettings()), Memory()
    control = ControlSettings(drain=DrainSettings(timeout_s=120.0, escalation=escalation))
    for moment in moments:
        kept = decide(moment, memory, control, policy)
        anew = decide(moment, replace(memory, columns=None, kept=KeptDecisions()), control, policy)
        assert (kept.nodes, kept.transitions, kept.next_due_s) == (anew.nodes, anew.transitions, anew.next_due_s)
        assert (kept.memory.states, kept.memory.would) == (anew.memory.states, anew.memory.would)
        for column in fields(kept.twin):
            np.testing.assert_array_equal(getattr(kept.twin, column.name), getattr(anew.twin, column.name))
        memory = kept.memory.published(memory, failed, moment.now_s)


@settings(max_examples=50)
@given(clusters(), st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_decides_nothing(moment, shuffle):
    nodes, *rest = moment
    shuffled = list(nodes)
    shuffle.shuffle(shuffled)
    policy = POLICIES["queue_aware_v1"](PolicySettings())
    one = decide(snapshot((nodes, *rest), 1e9), Memory(), ControlSettings(), policy)
    two = decide(snapshot((tuple(shuffled), *rest), 1e9), Memory(), ControlSettings(), policy)
    assert {node.node.name: node for node in one.nodes} == {node.node.name: node for node in two.nodes}
    headroom = dict(zip([node.node.name for node in two.nodes], two.twin.headroom.tolist(), strict=True))
    for node, value in zip(one.nodes, one.twin.headroom.tolist(), strict=True):
        assert np.isclose(headroom[node.node.name], value, equal_nan=True)


@settings(max_examples=50)
@given(
    st.lists(st.dictionaries(st.sampled_from(NAMES), st.tuples(st.floats(0.0, 1000.0), POWER_W)), max_size=4),
    st.floats(0.0, 1000.0),
    st.floats(0.0, 200.0),
)
def test_only_fresh_samples_are_chosen_and_none_is_passed_over(sources, now_s, stale_after_s):
    readings = [SourceReadings.of(f"s{index}", NAMES, samples) for index, samples in enumerate(sources)]
    choice = choose_power(readings, len(NAMES), now_s, stale_after_s)
    for index, name in enumerate(NAMES):
        fresh = [
            at
            for at, samples in enumerate(sources)
            if name in samples and abs(now_s - samples[name][0]) <= stale_after_s
        ]
        assert choice.source_of(index) == (f"s{fresh[0]}" if fresh else None)
        if fresh:
            assert choice.power_w[index] == sources[fresh[0]][name][1]
