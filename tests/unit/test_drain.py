from dataclasses import replace

import pytest

from joulie.domain.drain import (
    ActiveEco,
    ActivePerformance,
    DrainingPerformance,
    DrainSettings,
    Escalation,
    GuardDecision,
    GuardedPod,
    NodeState,
    SchedulableClass,
    guard,
    restored,
)
from joulie.domain.policy import PowerConstraint, Profile, WorkloadClass
from joulie.domain.units import InvalidQuantityError

SETTINGS = DrainSettings(settling_s=30.0, timeout_s=600.0)
FORCE = DrainSettings(settling_s=30.0, timeout_s=600.0, escalation=Escalation.FORCE)


def run(looks: list[tuple[float, int]], settings: DrainSettings = SETTINGS) -> list[GuardDecision]:
    """Decisions of a node that is planned eco from the start, at (time, blocking pods)."""
    state: NodeState = ActivePerformance()
    decisions = []
    for now_s, blocking in looks:
        decisions.append(guard(state, Profile.ECO, blocking, now_s, settings))
        state = decisions[-1].state
    return decisions


def test_trap_eco_caps_written_while_performance_pods_still_run() -> None:
    decisions = run([(0.0, 2), (60.0, 1), (120.0, 1), (599.0, 1)])
    assert {d.profile for d in decisions} == {Profile.PERFORMANCE}
    assert {d.schedulable for d in decisions} == {SchedulableClass.DRAINING}


def test_becomes_eco_after_a_quiet_settling_time() -> None:
    decisions = run([(0.0, 1), (60.0, 0), (89.0, 0), (90.0, 0)])
    assert [d.profile for d in decisions] == [Profile.PERFORMANCE] * 3 + [Profile.ECO]
    assert decisions[-1].schedulable is SchedulableClass.ECO


def test_trap_pod_on_its_way_to_the_node_is_capped() -> None:
    """No pod is bound at the first look, one arrives while the node settles: settling starts anew."""
    decisions = run([(0.0, 0), (20.0, 1), (40.0, 0), (60.0, 0), (70.0, 0)])
    assert [d.profile for d in decisions] == [Profile.PERFORMANCE] * 4 + [Profile.ECO]


def test_a_clock_that_is_set_back_has_a_drain_begin_anew() -> None:
    decisions = run([(4000.0, 0), (400.0, 0), (429.0, 0), (430.0, 0)])
    assert [d.profile for d in decisions] == [Profile.PERFORMANCE] * 3 + [Profile.ECO]
    timed = run([(4000.0, 1), (400.0, 1), (999.0, 1), (1000.0, 1)], FORCE)
    assert [d.profile for d in timed] == [Profile.PERFORMANCE] * 3 + [Profile.ECO]


def test_replanned_drain_is_cancelled() -> None:
    draining = DrainingPerformance(since_s=0.0, quiet_since_s=None)
    decision = guard(draining, Profile.PERFORMANCE, 3, 10.0, SETTINGS)
    assert decision == GuardDecision(ActivePerformance(), Profile.PERFORMANCE, SchedulableClass.PERFORMANCE)


def test_eco_is_promoted_at_once() -> None:
    decision = guard(ActiveEco(), Profile.PERFORMANCE, 0, 10.0, SETTINGS)
    assert decision.state == ActivePerformance()


def test_eco_stays_eco_under_pods_that_only_block_drains() -> None:
    assert guard(ActiveEco(), Profile.ECO, 5, 10.0, SETTINGS, full_power_pods=0).state == ActiveEco()


def test_l1_pods_that_need_full_power_lift_the_caps_of_an_eco_node_until_they_end() -> None:
    state: NodeState = ActiveEco()
    decisions = []
    for now_s, blocking in [(0.0, 3), (20.0, 1), (40.0, 0), (69.0, 0), (70.0, 0)]:
        decisions.append(guard(state, Profile.ECO, blocking, now_s, SETTINGS))
        state = decisions[-1].state
    assert [d.profile for d in decisions] == [Profile.PERFORMANCE] * 4 + [Profile.ECO]
    assert [d.schedulable for d in decisions] == [SchedulableClass.DRAINING] * 4 + [SchedulableClass.ECO]


def test_l1_lifted_caps_do_not_wait_for_standard_pods() -> None:
    lifted = guard(ActiveEco(), Profile.ECO, 2, 0.0, SETTINGS, full_power_pods=1).state
    assert lifted == DrainingPerformance(0.0, None, lifted=True)
    quiet = guard(lifted, Profile.ECO, 1, 10.0, SETTINGS, full_power_pods=0).state
    assert guard(quiet, Profile.ECO, 1, 40.0, SETTINGS, full_power_pods=0).state == ActiveEco()


def test_l1_what_the_timeout_has_forced_stays_until_more_such_pods_come() -> None:
    forced = run([(0.0, 2), (600.0, 2)], FORCE)[-1]
    assert forced.state == ActiveEco(forced_pods=2)
    fewer = guard(forced.state, Profile.ECO, 1, 700.0, FORCE)
    assert (fewer.state, fewer.forced) == (ActiveEco(forced_pods=1), True)
    assert guard(fewer.state, Profile.ECO, 2, 800.0, FORCE).profile is Profile.PERFORMANCE


def test_timeout_holds_by_default_and_is_visible() -> None:
    decisions = run([(0.0, 1), (599.0, 1), (600.0, 1), (6000.0, 1)])
    assert [d.timed_out for d in decisions] == [False, False, True, True]
    assert decisions[-1].profile is Profile.PERFORMANCE


def test_timeout_forces_where_told_to() -> None:
    decisions = run([(0.0, 1), (600.0, 1)], FORCE)
    assert decisions[-1] == GuardDecision(ActiveEco(1), Profile.ECO, SchedulableClass.ECO, forced=True)


def test_no_timeout_never_forces() -> None:
    settings = DrainSettings(timeout_s=None, escalation=Escalation.FORCE)
    assert run([(0.0, 1), (1e9, 1)], settings)[-1].profile is Profile.PERFORMANCE


def test_no_way_from_performance_to_eco_but_through_draining() -> None:
    assert not hasattr(ActivePerformance(), "finished")
    assert isinstance(ActivePerformance().drained(0.0), DrainingPerformance)
    assert run([(0.0, 0)], DrainSettings(settling_s=0.0))[0].state == ActiveEco()


@pytest.mark.parametrize(
    ("pod", "blocks"),
    [
        (GuardedPod(), False),
        (GuardedPod(WorkloadClass.PERFORMANCE), True),
        (GuardedPod(WorkloadClass.STANDARD), False),
        (GuardedPod(None, PowerConstraint.PERFORMANCE_ONLY), True),
        (GuardedPod(None, PowerConstraint.UNKNOWN), True),
        (GuardedPod(None, PowerConstraint.ECO_ONLY), False),
        (GuardedPod(WorkloadClass.STANDARD, PowerConstraint.PERFORMANCE_ONLY), False),
        (GuardedPod(WorkloadClass.STANDARD, PowerConstraint.UNKNOWN), False),
        (GuardedPod(reschedulable=False), True),
        (GuardedPod(WorkloadClass.PERFORMANCE, reschedulable=True), False),
    ],
)
def test_blocking_rules(pod: GuardedPod, blocks: bool) -> None:
    assert pod.blocks is blocks
    assert pod.lifts_caps is (blocks and pod.reschedulable is None)


def test_l4_what_cannot_leave_does_not_block() -> None:
    for pod in (GuardedPod(WorkloadClass.PERFORMANCE), GuardedPod(reschedulable=False)):
        stuck = replace(pod, bound_to_node=True)
        assert (stuck.blocks, stuck.lifts_caps) == (False, False)


@pytest.mark.parametrize(
    ("profile", "draining", "since_s", "state"),
    [
        (None, False, None, ActivePerformance()),
        (Profile.PERFORMANCE, False, None, ActivePerformance()),
        (Profile.ECO, False, None, ActiveEco()),
        (Profile.PERFORMANCE, True, 50.0, DrainingPerformance(50.0, None)),
        (Profile.PERFORMANCE, True, None, DrainingPerformance(100.0, None)),
        (Profile.PERFORMANCE, True, 1e6, DrainingPerformance(100.0, None)),
        (Profile.ECO, True, 50.0, DrainingPerformance(50.0, None)),
    ],
)
def test_state_survives_a_restart(
    profile: Profile | None, draining: bool, since_s: float | None, state: NodeState
) -> None:
    assert restored(profile, draining, since_s, now_s=100.0) == state


def test_l1_a_restart_remembers_why_caps_are_lifted_or_forced() -> None:
    lifted = restored(Profile.PERFORMANCE, True, 50.0, now_s=100.0, lifted=True)
    assert lifted == DrainingPerformance(50.0, None, lifted=True)
    forced = restored(Profile.ECO, False, None, now_s=100.0, forced=True)
    assert guard(forced, Profile.ECO, 3, 100.0, FORCE).state == ActiveEco(forced_pods=3)


def test_restart_keeps_the_timeout_running() -> None:
    state = restored(Profile.PERFORMANCE, True, 0.0, now_s=700.0)
    assert guard(state, Profile.ECO, 1, 700.0, SETTINGS).timed_out


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidQuantityError, match="blocking_pods"):
        guard(ActiveEco(), Profile.ECO, -1, 0.0, SETTINGS)
    with pytest.raises(InvalidQuantityError, match="now_s"):
        guard(ActiveEco(), Profile.ECO, 0, float("nan"), SETTINGS)
    with pytest.raises(InvalidQuantityError, match="settling_s"):
        DrainSettings(settling_s=-1.0)
    with pytest.raises(InvalidQuantityError, match="timeout_s"):
        DrainSettings(timeout_s=0.0)
