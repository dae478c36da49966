"""Work of a trial by the pods' own progress metric."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.recording import Exit, NodeRecord, PodRecord
from joulie.domain.trial.draw import TrialNode, draw
from joulie.domain.trial.estimate import evaluate
from joulie.domain.trial.measure import Metered, measure
from joulie.domain.trial.progress import Course
from joulie.domain.trial.protocol import Arm

HOUR_S = 3600.0
STEP_S = 300.0
NODES = [NodeRecord(f"n{index}", cores=8.0) for index in range(4)]
STEPS = 12 * 28
TRAIN = "ml/StatefulSet/train"


def drawn(block_s=HOUR_S, washout_s=600.0):
    nodes = [TrialNode(one.node, "cpu", float(index)) for index, one in enumerate(NODES)]
    return draw(nodes, start_s=0.0, pairs=12, seed=3, block_s=block_s, washout_s=washout_s)


def trainer(node, **changed):
    """A pod that runs all the time, under both arms, and does not end."""
    known = PodRecord(f"uid-{node}", "ml", f"train-{node}", "StatefulSet", "train", cpu_cores=8.0, started_s=0.0,
                      node=node, progress_metric="steps_total")  # fmt: skip
    return replace(known, **changed)


def metered(protocol, pods, power=0.8, speed=0.9, increases=None, without=()):
    """Enforced nodes draw a part of 100 W, and their pods count a part of 30 a step."""
    treated = np.array([[protocol.arms_at(step * STEP_S).get(one.node) is Arm.TREATMENT for step in range(STEPS)]
                        for one in NODES])  # fmt: skip
    row = {one.node: place for place, one in enumerate(NODES)}
    known = np.array([step for step in range(STEPS) if step not in without])
    progress = {
        (one.namespace, one.name): Course(
            known, (np.where(treated[row[one.node]], 30.0 * speed, 30.0) if increases is None else increases)[known]
        )
        for one in pods
    }
    return Metered(NODES, 0.0, STEP_S, np.where(treated, 100.0 * power, 100.0), progress)


def saving_of(protocol, pods, known):
    found = measure(protocol, pods, known)
    return found, evaluate(protocol, found.blocks, found.joules_per_unit).saving


def test_pods_that_never_end_count_by_their_own_progress():
    protocol, pods = drawn(), [trainer(one.node) for one in NODES]
    found, saving = saving_of(protocol, pods, metered(protocol, pods))
    assert found.units[TRAIN].metric == "steps_total"
    assert saving.saved == pytest.approx(1.0 - 0.8 / 0.9), "less power, but less work too"
    assert (found.both_arms, found.enforced) == (0.0, pytest.approx(0.9 / 1.9))


def with_servers(pods, known):
    """Beside the trainers as many servers, which enforcing does not slow, and which count in the billions."""
    tokens = [
        replace(one, uid=one.uid + "t", name="serve-" + one.node, owner_name="serve", progress_metric="tokens_total")
        for one in pods
    ]
    known.progress.update({("ml", one.name): Course(np.arange(STEPS), np.full(STEPS, 3e10)) for one in tokens})
    return tokens


def test_units_of_workloads_do_not_mix():
    protocol, pods = drawn(), [trainer(one.node) for one in NODES]
    known = metered(protocol, pods)
    tokens = with_servers(pods, known)
    found, saving = saving_of(protocol, [*pods, *tokens], known)
    assert {owner: unit.metric for owner, unit in found.units.items()} == {
        TRAIN: "steps_total",
        "ml/StatefulSet/serve": "tokens_total",
    }
    work = (0.9 / 0.95 + 1.0) / (1.0 / 0.95 + 1.0)  # each weighs the same energy, over both arms
    assert saving.saved == pytest.approx(1.0 - 0.8 / work)


@pytest.mark.parametrize(
    ("changed", "without", "why_not"),
    [
        ({"progress_metric": None}, (), "not all of its pods name the same metric"),
        ({"progress_metric": "other_total"}, (), "not all of its pods name the same metric"),
        ({"name": "silent"}, (), "steps_total is not known of all of its pods"),
        ({}, range(0, STEPS, 10), "steps_total is known of 9"),
    ],
)
def test_a_workload_of_which_progress_is_not_known_counts_completed_pods(changed, without, why_not):
    protocol, pods = drawn(), [trainer(one.node) for one in NODES]
    known = metered(protocol, pods, without=without)
    short = [
        trainer(node.node, uid=f"{node.node}-{hour}", name=f"short-{node.node}-{hour}", started_s=hour * HOUR_S + 900.0,
                ended_s=hour * HOUR_S + 3000.0, exit=Exit.SUCCEEDED)
        for hour in range(28) for node in NODES
    ]  # fmt: skip
    every = np.arange(STEPS)
    known.progress.update({("ml", one.name): Course(every, np.ones(STEPS)) for one in short})
    pods = [*pods[1:], replace(pods[0], **changed), *short]
    found, saving = saving_of(protocol, pods, known)
    assert found.units[TRAIN].metric == ""
    assert found.units[TRAIN].why_not.startswith(why_not)
    done = math.fsum(one.work.get(TRAIN, 0.0) for one in found.blocks)
    assert done == pytest.approx(len(short)), "each completed pod once, none that did not end"
    assert saving is not None


def test_a_gap_is_no_missing_work_and_a_silent_meter_needs_no_progress():
    protocol, pods = drawn(), [trainer(one.node) for one in NODES]
    gap = {60, 61, 147}
    found, _ = saving_of(protocol, pods, metered(protocol, pods, speed=1.0, without=gap))
    assert {round(one.work[TRAIN], 9) for one in found.blocks} == {300.0}, "like the rest of the block"
    outage = set(range(120, 156))
    known = metered(protocol, pods, without=outage)
    assert measure(protocol, pods, known).units[TRAIN].metric == ""
    known.power_w[:, sorted(outage)] = np.nan
    found, saving = saving_of(protocol, pods, known)
    assert found.units[TRAIN].metric == "steps_total"
    assert saving.saved == pytest.approx(1.0 - 0.8 / 0.9)


def test_a_moment_tells_nothing_of_the_rest_of_a_stay():
    protocol, pods = drawn(), [trainer(one.node) for one in NODES]
    brief = trainer(
        "n0", uid="brief", name="brief", started_s=HOUR_S - 10.0, ended_s=HOUR_S, progress_metric="steps_total"
    )
    late = replace(brief, uid="late", name="late", started_s=3.0 * HOUR_S - 310.0, ended_s=3.0 * HOUR_S)
    known = metered(protocol, pods)
    known.progress["ml", "late"] = Course(np.array([34]), np.array([100.0]))  # 10 of its 310 seconds
    before = math.fsum(one.work[TRAIN] for one in measure(protocol, pods, known).blocks)
    found = measure(protocol, [*pods, brief, late], known)
    assert found.units[TRAIN].metric == "steps_total"
    assert math.fsum(one.work[TRAIN] for one in found.blocks) == pytest.approx(before + 100.0)


def test_pods_that_bore_a_name_one_after_another_share_its_progress():
    protocol, pods = drawn(washout_s=0.0), [trainer(one.node) for one in NODES]
    moved = trainer("n1", uid="again", name="train-n0", started_s=10.25 * HOUR_S + 100.0)
    found = measure(protocol, [*pods, moved], metered(protocol, pods, speed=1.0))
    on = {node.node: math.fsum(one.work.get(TRAIN, 0.0) for one in found.blocks if one.node == node.node)
          for node in NODES}  # fmt: skip
    assert on["n0"] == pytest.approx(30.0 * 124), "the step in which both ran counts once, for the first"
    assert on["n1"] == pytest.approx(30.0 * (STEPS + STEPS - 132) + 240.0 * (8.0 + 2.0 / 3.0) / 8.0)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    increases=st.lists(st.floats(0.0, 1e6), min_size=STEPS // 12, max_size=STEPS // 12).map(
        lambda drawn_: np.repeat(np.array(drawn_) + 1.0, 12)
    ),
    exponent=st.floats(-9.0, 9.0),
)
def test_the_unit_of_a_metric_does_not_matter_and_blocks_add_up(increases, exponent):
    protocol, pods = drawn(), [trainer(one.node) for one in NODES]
    known, more = (metered(protocol, pods, increases=increases * factor) for factor in (1.0, 10.0**exponent))
    both = [*pods, *with_servers(pods, known)]
    with_servers(pods, more)
    found, saving = saving_of(protocol, both, known)
    scaled, same = saving_of(protocol, both, more)
    assert same.saved == pytest.approx(saving.saved, abs=1e-9)
    assert (same.low, same.high) == pytest.approx((saving.low, saving.high), abs=1e-9)
    assert scaled.enforced == pytest.approx(found.enforced)
    whole = measure(drawn(washout_s=0.0), pods, known).blocks
    halves = measure(drawn(HOUR_S / 2.0, washout_s=0.0), pods, known).blocks
    within = [one.work[TRAIN] for one in whole if one.block < 14]
    assert math.fsum(one.work[TRAIN] for one in halves) == pytest.approx(math.fsum(within))
