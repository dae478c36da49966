"""Trials of deferral: the draw of workloads, what is measured of each, and the interval."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.recording import Exit, PodRecord
from joulie.domain.trial.protocol import Arm
from joulie.domain.trial.workload_measure import Accounted, Used, measure_workloads
from joulie.domain.trial.workload_protocol import Drawn, WorkloadProtocol, drawn_name
from joulie.domain.trial.workloads import (
    MIN_WORKLOADS,
    Amount,
    Quantity,
    WorkloadOutcome,
    evaluate_workloads,
)
from joulie.domain.units import InvalidQuantityError

HOUR_S = 3600.0
START_S = 100 * 24 * HOUR_S
PROTOCOL = WorkloadProtocol(START_S, START_S + 10 * 24 * HOUR_S, 7)
NAMES = [f"nightly-of-{place}" for place in range(40)]


def outcome(name, arm, measured, expected, wait_s=0.0, pods=4):
    amounts = {Quantity.CARBON: Amount(measured, expected)}
    return WorkloadOutcome("ml", name, arm, pods, 0, pods, wait_s * pods, amounts)


def outcomes(count, ratio, seed=1, treated=None):
    rng = np.random.default_rng(seed)
    expected = rng.lognormal(0.0, 1.0, count)
    alone = expected * rng.lognormal(0.0, 0.1, count)
    arms = rng.random(count) < 0.5 if treated is None else np.arange(count) < treated
    return [
        outcome(f"w{at}", Arm.TREATMENT if arms[at] else Arm.CONTROL, alone[at] * (ratio if arms[at] else 1.0),
                expected[at], 7200.0 if arms[at] else 0.0)
        for at in range(count)
    ]  # fmt: skip


def test_each_workload_is_drawn_once_and_for_itself():
    arms = [PROTOCOL.arm_of("ml", name) for name in NAMES]
    assert arms == [PROTOCOL.arm_of("ml", name) for name in NAMES]
    assert 10 < arms.count(Arm.TREATMENT) < 30
    others = WorkloadProtocol(PROTOCOL.start_s, PROTOCOL.end_s, 8)
    assert arms != [others.arm_of("ml", name) for name in NAMES]
    assert arms != [PROTOCOL.arm_of("web", name) for name in NAMES]
    assert drawn_name("ml", "Job", "nightly-29384756") == drawn_name("ml", "CronJob", "nightly") == "nightly"
    assert drawn_name("ml", "Deployment", "web") is None
    assert (PROTOCOL.covers(START_S - 1.0), PROTOCOL.covers(START_S), PROTOCOL.covers(PROTOCOL.end_s)) == (
        False, True, False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("july waits nightly", Drawn("july", Arm.TREATMENT, "nightly")),
        ("july at-once nightly", Drawn("july", Arm.CONTROL, "nightly")),
        ("july somehow nightly", None),
        ("july waits", None),
        ("", None),
    ],
)
def test_a_draw_is_read_as_it_was_noted(text, drawn):
    assert Drawn.read(text) == drawn
    assert drawn is None or str(drawn) == text


def test_a_saving_is_found_with_the_waits_beside_it():
    found = evaluate_workloads(outcomes(60, 0.8), 3)
    saving = found.savings[Quantity.CARBON]
    assert saving.low < 0.2 < saving.high
    assert saving.high - saving.low < 0.2
    assert saving.treated + saving.untreated == 60
    assert found.wait.value == pytest.approx(7200.0)
    assert found.wait.low <= 7200.0 <= found.wait.high
    assert found.waited_s == {Arm.TREATMENT: pytest.approx(7200.0), Arm.CONTROL: 0.0}
    assert Quantity.COST not in found.savings, "no price was known"


@pytest.mark.parametrize(("count", "treated"), [(MIN_WORKLOADS - 1, 5), (30, 3), (30, 28)])
def test_no_interval_from_too_few_workloads(count, treated):
    saving = evaluate_workloads(outcomes(count, 0.8, treated=treated), 3).savings[Quantity.CARBON]
    assert (saving.low, saving.high) == (None, None)
    assert saving.value == pytest.approx(0.2, abs=0.2)


def test_one_arm_alone_says_nothing():
    found = evaluate_workloads(outcomes(30, 0.8, treated=30), 3)
    assert (dict(found.savings), found.wait, dict(found.waited_s)) == ({}, None, {})
    with pytest.raises(InvalidQuantityError):
        evaluate_workloads([outcome("w", Arm.CONTROL, math.nan, 1.0)], 3)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(scale=st.floats(1e-3, 1e6), seed=st.integers(0, 99))
def test_units_do_not_matter_and_the_interval_holds_the_estimate(scale, seed):
    one = outcomes(24, 0.9, seed)
    found = evaluate_workloads(one, 5).savings.get(Quantity.CARBON)
    scaled = [outcome(w.workload, w.arm, *(scale * value for value in w.amounts[Quantity.CARBON])) for w in one]
    again = evaluate_workloads(scaled, 5).savings.get(Quantity.CARBON)
    assert again.value == pytest.approx(found.value, abs=1e-9)
    assert (found.low is None) == (again.low is None)
    if found.low is not None:
        assert found.low < found.value < found.high
        assert (again.low, again.high) == pytest.approx((found.low, found.high), abs=2e-3)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(saving=st.floats(0.0, 0.5), seed=st.integers(0, 99))
def test_a_saving_of_all_moves_the_interval_by_its_logarithm(saving, seed):
    # What `joulie trial plan` rests on: one draw of a past without treatment tells what it would see of any saving.
    before, after = (
        evaluate_workloads(outcomes(24, ratio, seed), 5).savings[Quantity.CARBON] for ratio in (1.0, 1.0 - saving)
    )
    assert (before.low is None) == (after.low is None)
    if before.low is not None:
        moved = [1.0 - (1.0 - one) * (1.0 - saving) for one in (before.low, before.high)]
        assert (after.low, after.high) == pytest.approx(moved, abs=2e-3)


# ---- from a recording


def pod(name, number, arrived_s, *, wait_s=0.0, runs_s=HOUR_S, noted=True, exit_=Exit.SUCCEEDED, arm=None, **other):
    drawn = PROTOCOL.arm_of("ml", name) if arm is None else arm
    note = Drawn("july", drawn, name).recorded if noted and arrived_s >= START_S else {}
    ended = exit_ is not None
    return PodRecord(
        f"{name}-{number}", "ml", f"{name}-{29384700 + number}-x", "Job", f"{name}-{29384700 + number}", cpu_cores=4.0,
        gpus=0.0, arrived_s=arrived_s, started_s=arrived_s + wait_s, node="n", exit=exit_,
        ended_s=arrived_s + wait_s + runs_s if ended else None, **(note | other),
    )  # fmt: skip


def accounted(pods, used, carbon=None):
    return Accounted({one.uid: used(one) for one in pods if one.ended_s}, carbon or {}, {})


def runs(name, kwh=2.0, count=5, **other):
    waits = PROTOCOL.arm_of("ml", name) is Arm.TREATMENT
    before = [pod(name, number, START_S - (20 - number) * 3 * HOUR_S) for number in range(5)]
    return before + [
        pod(name, 5 + number, START_S + number * 24 * HOUR_S, wait_s=6 * HOUR_S if waits else 0.0, **other)
        for number in range(count)
    ]


def test_work_is_weighed_by_what_was_known_before_the_trial():
    pods = [one for place, name in enumerate(NAMES[:20]) for one in runs(name, 1.0 + place)]
    carbon = {int(START_S // HOUR_S) + hour: 300.0 + 10.0 * hour for hour in range(240)}

    def used(one):
        kwh = 1.0 + NAMES.index(one.trial_workload or one.uid.rpartition("-")[0])
        waits = one.trial_arm == Arm.TREATMENT.value
        return Used(kwh, kwh * carbon.get(int((one.arrived_s) // HOUR_S), 1.0) * (0.7 if waits else 1.0))

    found = measure_workloads("july", PROTOCOL, pods, accounted(pods, used, carbon))
    assert [one.workload for one in found.outcomes] == sorted(NAMES[:20])
    assert (found.unmetered, found.unexpected, found.misdrawn, found.by_kin) == (0, 0, 0, 0)
    assert {one.pods for one in found.outcomes} == {5}
    result = evaluate_workloads(found.outcomes, PROTOCOL.seed)
    assert result.savings[Quantity.CARBON].value == pytest.approx(0.3)
    assert result.savings[Quantity.ENERGY].value == pytest.approx(0.0)
    assert result.wait.value == pytest.approx(6 * HOUR_S)


def test_what_cannot_count_is_left_out_and_counted():
    name, kin, new, wrong = NAMES[:4]
    other_arm = next(arm for arm in Arm if arm is not PROTOCOL.arm_of("ml", wrong))
    unnoted = pod(name, 90, START_S + HOUR_S, noted=False)
    failed = pod(name, 91, START_S + HOUR_S, exit_=Exit.FAILED)
    pods = [
        *runs(name), unnoted, failed,
        pod(name, 92, START_S + HOUR_S, exit_=None),
        pod(name, 93, PROTOCOL.end_s),
        pod(kin, 1, START_S),
        pod(new, 1, START_S, memory_gib=999.0),
        pod(wrong, 1, START_S, arm=other_arm),
        pod("elsewhere", 1, START_S, noted=False),
    ]  # fmt: skip
    table = accounted(pods, lambda one: Used(2.0, covered_s=HOUR_S if one is not unnoted else 60.0))
    found = measure_workloads("july", PROTOCOL, pods, table)
    assert [one.workload for one in found.outcomes] == sorted([name, kin, new])
    own = next(one for one in found.outcomes if one.workload == name)
    assert (own.pods, own.failed, own.started) == (7, 1, 8), "the pod without a note is its workload's too"
    assert own.amounts[Quantity.ENERGY] == pytest.approx((12.0, 10.0)), "failed pods used energy and did no work"
    assert (found.unmetered, found.unexpected, found.misdrawn, found.by_kin) == (1, 1, 1, 1)
    assert found.unfinished[PROTOCOL.arm_of("ml", name)] == 1
    assert not measure_workloads("august", PROTOCOL, pods, table).outcomes
    hidden = measure_workloads("july", PROTOCOL, pods, table, named=False)
    assert hidden.misdrawn == 0, "pseudonyms cannot be drawn again"
