"""What must hold for every history of plans and pods that a node lives through."""

from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.drain import (
    ActiveEco,
    ActivePerformance,
    DrainingPerformance,
    DrainSettings,
    Escalation,
    GuardDecision,
    NodeState,
    SchedulableClass,
    guard,
    restored,
)
from joulie.domain.policy import Profile

quick = settings(max_examples=50, deadline=None)
LOOKS = st.lists(
    st.tuples(
        st.floats(0.0, 120.0), st.sampled_from([Profile.ECO, Profile.ECO, Profile.PERFORMANCE]), st.integers(0, 2)
    ),
    max_size=25,
)
STATES = st.one_of(
    st.just(ActivePerformance()),
    st.just(ActiveEco()),
    st.builds(DrainingPerformance, since_s=st.floats(0.0, 100.0), quiet_since_s=st.none() | st.floats(0.0, 100.0)),
)


def live(
    looks: list[tuple[float, Profile, int]], setup: DrainSettings, state: NodeState
) -> list[tuple[float, Profile, int, NodeState, GuardDecision]]:
    history = []
    now_s = 100.0
    for wait_s, planned, blocking in looks:
        now_s += wait_s
        decision = guard(state, planned, blocking, now_s, setup)
        history.append((now_s, planned, blocking, state, decision))
        state = decision.state
    return history


@quick
@given(looks=LOOKS, state=STATES, timeout_s=st.none() | st.floats(1.0, 600.0))
def test_caps_never_go_down_while_a_blocking_pod_is_there(
    looks: list[tuple[float, Profile, int]], state: NodeState, timeout_s: float | None
) -> None:
    for _, _, blocking, before, decision in live(looks, DrainSettings(timeout_s=timeout_s), state):
        assert not (decision.profile is Profile.ECO and blocking > 0)
        assert not decision.forced
        # Caps come off without any delay.
        if blocking > 0 and before == ActiveEco():
            assert (decision.profile, decision.schedulable) != (Profile.ECO, SchedulableClass.PERFORMANCE)
            assert decision.profile is Profile.PERFORMANCE


@quick
@given(looks=LOOKS, state=STATES, timeout_s=st.none() | st.floats(1.0, 600.0), full_power=st.integers(0, 2))
def test_l1_no_pod_that_needs_full_power_is_capped_unless_the_timeout_forces_it(
    looks: list[tuple[float, Profile, int]], state: NodeState, timeout_s: float | None, full_power: int
) -> None:
    """Whatever reaches a node, and however: with `force` the caps last as long as no more such pods come."""
    setup = DrainSettings(timeout_s=timeout_s, escalation=Escalation.FORCE)
    now_s, forced = 100.0, 0
    for wait_s, planned, blocking in looks:
        now_s += wait_s
        lifting = min(blocking, full_power)
        decision = guard(state, planned, blocking, now_s, setup, full_power_pods=lifting)
        if decision.profile is Profile.ECO and lifting > 0:
            timed_out = isinstance(state, DrainingPerformance) and state.timed_out(now_s, timeout_s)
            # A timeout may also pass in the very step that closes the node.
            assert decision.forced
            assert timed_out or lifting <= forced or timeout_s is not None
        forced = lifting if decision.profile is Profile.ECO else 0
        state = decision.state


@quick
@given(looks=LOOKS, state=STATES)
def test_eco_comes_only_after_a_settled_drain(looks: list[tuple[float, Profile, int]], state: NodeState) -> None:
    setup = DrainSettings(settling_s=30.0, timeout_s=None)
    for now_s, _, _, before, decision in live(looks, setup, state):
        if isinstance(decision.state, ActiveEco) and not isinstance(before, ActiveEco):
            assert isinstance(before, DrainingPerformance)
            assert before.quiet_since_s is not None
            assert now_s - before.quiet_since_s >= setup.settling_s


@quick
@given(looks=LOOKS, state=STATES, escalation=st.sampled_from(list(Escalation)))
def test_profile_and_class_follow_the_state(
    looks: list[tuple[float, Profile, int]], state: NodeState, escalation: Escalation
) -> None:
    published = {
        ActivePerformance: (Profile.PERFORMANCE, SchedulableClass.PERFORMANCE),
        DrainingPerformance: (Profile.PERFORMANCE, SchedulableClass.DRAINING),
        ActiveEco: (Profile.ECO, SchedulableClass.ECO),
    }
    for _, planned, _, _, decision in live(looks, DrainSettings(timeout_s=60.0, escalation=escalation), state):
        assert (decision.profile, decision.schedulable) == published[type(decision.state)]
        assert (planned is Profile.PERFORMANCE) == (decision.state == ActivePerformance())


@quick
@given(state=STATES, planned=st.sampled_from(list(Profile)), blocking=st.integers(0, 2), setup=st.builds(DrainSettings))
def test_deciding_twice_at_one_moment_changes_nothing(
    state: NodeState, planned: Profile, blocking: int, setup: DrainSettings
) -> None:
    once = guard(state, planned, blocking, 200.0, setup)
    assert guard(once.state, planned, blocking, 200.0, setup) == once


@quick
@given(looks=LOOKS, state=STATES, at=st.integers(0, 24))
def test_a_restart_never_caps_earlier(looks: list[tuple[float, Profile, int]], state: NodeState, at: int) -> None:
    """What NodeTwin stores is enough to go on, and costs at most a new settling time."""
    history = live(looks, DrainSettings(timeout_s=None), state)
    if not history:
        return
    now_s, _, _, _, decision = history[at % len(history)]
    current = decision.state
    draining = isinstance(current, DrainingPerformance)
    since_s = current.since_s if isinstance(current, DrainingPerformance) else None
    lifted = isinstance(current, DrainingPerformance) and current.lifted
    again = restored(decision.profile, draining, since_s, now_s, lifted=lifted)
    assert type(again) is type(current)
    if isinstance(again, DrainingPerformance) and isinstance(current, DrainingPerformance):
        assert (again.since_s, again.lifted) == (current.since_s, current.lifted)
        assert again.quiet_since_s is None
