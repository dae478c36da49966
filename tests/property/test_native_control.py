"""The native run's control decides what the operator's step decides."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.control import ControlSettings, Memory, Snapshot, controlled_node, decide
from joulie.domain.control_power import SourceReadings
from joulie.domain.drain import DrainingPerformance, DrainSettings, Escalation, SchedulableClass
from joulie.domain.policies import POLICIES
from joulie.domain.policy import PolicySettings
from joulie.domain.scoring.extender import NodeClass
from joulie_lab.simulation.experiment.scenario import ControlTimes, NodeGroup
from joulie_lab.simulation.native.control import Control, NativeControl, NodeCap
from joulie_lab.simulation.native.nodes import sim_nodes

OPERATOR_S, AGENT_S = 20.0, 10.0
NODES = sim_nodes(
    [
        NodeGroup(name="cpu", count=2, cpu="AMD EPYC 9654"),
        NodeGroup(name="nvl", count=3, cpu="AMD EPYC 9654", gpu="NVIDIA H100 NVL", gpus=8),
        NodeGroup(name="amd", count=1, cpu="AMD EPYC 9534", gpu="AMD Instinct MI300X", gpus=8),
    ]
)
CLASSES = {
    SchedulableClass.PERFORMANCE: NodeClass.PERFORMANCE,
    SchedulableClass.ECO: NodeClass.ECO,
    SchedulableClass.DRAINING: NodeClass.DRAINING,
}
MOMENTS = st.lists(
    st.tuples(
        st.integers(1, 11),  # cycles since the last one
        st.sampled_from([0, 0, 5, 30, 60]),  # demand
        st.lists(st.integers(0, 2), min_size=len(NODES), max_size=len(NODES)),  # blocking
        st.lists(st.floats(0.0, 5000.0), min_size=len(NODES), max_size=len(NODES)),  # power
        st.integers(0, 2),  # of the blocking pods on a node at most so many need full power
    ),
    min_size=1,
    max_size=6,
)


def snapshot(now_s, demand, blocking, power_w, full_power):
    nodes = tuple(controlled_node(node.name, node.hardware) for node in NODES)
    names = [node.name for node in nodes]
    readings = SourceReadings.of("http", names, {name: (now_s, w) for name, w in zip(names, power_w, strict=True)})
    held = {name: count for name, count in zip(names, blocking, strict=True) if count}
    lifting = {name: min(count, full_power) for name, count in held.items()}
    return Snapshot(now_s, nodes, demand, held, (readings,), full_power=lifting)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(POLICIES)), MOMENTS, st.sampled_from(list(Escalation)))
def test_equals_the_operators_step(policy_name, moments, escalation):
    policy = POLICIES[policy_name](PolicySettings())
    control = Control(
        policy,
        ControlSettings(drain=DrainSettings(settling_s=30.0, timeout_s=120.0, escalation=escalation)),
    )
    native = NativeControl(control, NODES, ControlTimes(operator_s=OPERATOR_S, agent_s=AGENT_S))
    memory, now_s, last = Memory(), 0.0, None
    for cycles, *values in moments:
        for number in range(1, cycles + 1):
            now_s += OPERATOR_S
            # In between nothing changes: the operator makes these steps, the native run may leave them out.
            same = number < cycles and last is not None
            native.caps_due(now_s - AGENT_S)
            moment = last if same else values
            decision = decide(snapshot(now_s, *moment), memory, control.settings, control.policy)
            memory = decision.memory
            if not same or native.next_change_s(now_s - OPERATOR_S) <= now_s:
                native.cycle(
                    now_s, moment[0], np.array(moment[1]), np.array(moment[2]), np.minimum(moment[1], moment[3])
                )
            last = moment
            np.testing.assert_allclose(
                native.twin_view(now_s).trend_w_per_min, decision.twin.power_trend_w_per_min, atol=1e-6
            )
        assert native.node_class.tolist() == [CLASSES[one.guarded.schedulable] for one in decision.nodes]
        view, twin = native.twin_view(now_s), decision.twin
        np.testing.assert_allclose(view.headroom_score, twin.headroom)
        np.testing.assert_allclose(view.capped_w, twin.cpu_capped_w + twin.gpu_capped_w)
        np.testing.assert_allclose(view.cooling_stress_pct, twin.cooling_stress)
        np.testing.assert_allclose(view.trend_w_per_min, twin.power_trend_w_per_min, atol=1e-6)
        np.testing.assert_allclose(view.cpu_cap_fraction, [one.caps.cpu_percent / 100.0 for one in decision.nodes])
        np.testing.assert_allclose(view.gpu_cap_fraction, [one.caps.gpu_percent / 100.0 for one in decision.nodes])
    draining = [isinstance(one.state, DrainingPerformance) for one in decision.nodes]
    still = {drain.node for drain in native.drains() if drain.end_s is None}
    assert still == {node.name for node, drains in zip(NODES, draining, strict=True) if drains}


def test_caps_reach_a_node_at_the_agents_next_moment():
    control = Control(
        POLICIES["static_partition"](PolicySettings(static_hp_frac=0.0)),
        ControlSettings(drain=DrainSettings(settling_s=0.0)),
    )
    native = NativeControl(control, NODES, ControlTimes(operator_s=OPERATOR_S, agent_s=AGENT_S))
    idle = np.zeros(len(NODES), dtype=np.int64), np.full(len(NODES), 100.0)
    assert native.cycle(0.0, 0, *idle)
    assert native.caps_due(0.0) == ()
    assert native.next_change_s(0.0) == AGENT_S
    caps = native.caps_due(AGENT_S)
    assert [cap.node for cap in caps] == list(range(len(NODES)))
    assert caps[0] == NodeCap(0, 0.6 * 360.0, None)
    assert caps[2] == NodeCap(2, 0.6 * 360.0, 0.6 * 400.0)
    assert native.caps_due(2 * AGENT_S) == ()
    assert native.next_change_s(AGENT_S) == np.inf
    assert not native.cycle(OPERATOR_S, 0, *idle)
