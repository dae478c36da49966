"""`joulie bench live-trial`: a run on two clocks, put together and evaluated; the saving is put in by hand."""

from dataclasses import replace

import numpy as np
import pytest

from joulie.domain.trial.protocol import Arm, Protocol, Treated
from joulie_lab.apps.bench.live_trial import evaluated, made_jobs
from joulie_lab.apps.bench.live_trial_native import Truth, native_trial
from joulie_lab.apps.bench.live_trial_run import WASHOUT_S, Plan, Samples, Seen, put_together
from joulie_lab.simulation.experiment.scenario import NodeGroup
from joulie_lab.simulation.native.nodes import sim_nodes

pytestmark = pytest.mark.slow

SCALE, BLOCK_S, START_S = 100.0, 60.0, 1_790_000_000.0
SAVED = 0.08
NODES = sim_nodes([NodeGroup(name="node", count=4, cpu="AMD EPYC 9654")])
FIRST, SECOND = (tuple(node.name for node in NODES[half::2]) for half in (0, 1))
ORDER = (Treated.FIRST_HALF, Treated.SECOND_HALF) * 6 + (Treated.ALL, Treated.NONE)
PROTOCOL = Protocol(START_S, BLOCK_S, 0.0, FIRST, SECOND, (), ORDER, 1)
LENGTH_S = BLOCK_S * SCALE / 8.0
SWITCHED_S = [2.0] * 27 + [7.0]


def play():
    """Samples at odd moments; an enforced node draws less while the pods that it runs last as long as elsewhere."""
    blocks = list(PROTOCOL.blocks())
    wall_s = np.arange(START_S - 10.0, blocks[-1].end_s + 10.0, 0.7)
    power_w = np.array([[power(node.name, at_s) for at_s in wall_s[:-1]] for node in NODES])
    energy_j = np.concatenate([np.zeros((4, 1)), np.cumsum(power_w * 0.7 * SCALE, axis=1)], axis=1)
    samples = Samples(wall_s.tolist(), ((wall_s - wall_s[0]) * SCALE).tolist(), energy_j.T.tolist())
    count = len(blocks) * 8
    jobs = made_jobs(NODES, 4.0 * count * LENGTH_S, seed=1)
    first_s = (START_S - wall_s[0]) * SCALE
    done = [
        {
            "jobId": jobs[place * count + number].job_id,
            "node": node.name,
            "submittedSeconds": first_s + number * LENGTH_S,
            "startedSeconds": first_s + number * LENGTH_S,
            "completedSeconds": first_s + (number + 1) * LENGTH_S,
        }
        for place, node in enumerate(NODES)
        for number in range(count)
    ]
    waiting = {
        "jobId": jobs[-1].job_id,
        "node": "",
        "submittedSeconds": 0.0,
        "startedSeconds": None,
        "completedSeconds": None,
    }
    return Plan(NODES, jobs, SCALE, 5.0), samples, [*done, waiting]


def power(node, at_s):
    return 500.0 * (1.0 - SAVED if PROTOCOL.arms_at(at_s).get(node) is Arm.TREATMENT else 1.0)


def test_energy_and_pods_of_both_clocks_give_the_saving():
    plan, samples, jobs = play()
    seen = [Seen(block, labelled=4, capped=4 if block.index else 2) for block in PROTOCOL.blocks()]
    found = put_together(plan, PROTOCOL, samples, jobs, seen, SWITCHED_S, "Completed", 0)
    assert found.scale == pytest.approx(SCALE)
    assert found.protocol.block_s == pytest.approx(BLOCK_S * SCALE)
    assert found.protocol.washout_s == pytest.approx(WASHOUT_S * SCALE)
    result = evaluated(plan, found, Truth(SAVED, 1.0, 0.4), 1, ())
    assert result.refused == ""
    # A sample spans a switch by up to 0.7 s of a block's 60 s.
    assert result.trial.saved == pytest.approx(SAVED, abs=0.002)
    assert result.all_or_none.saved == pytest.approx(SAVED, abs=0.002)
    assert (result.trial.pairs, result.blocks, result.labels_left) == (12, 28, 0)
    assert (result.labelled_pct, result.capped_pct) == (100.0, 100.0 * (112 - 2) / 112)
    assert result.pods == 4 * 28 * 8
    assert result.hidden == pytest.approx(0.4 * np.log((1.0 - result.enforced) / result.enforced))
    assert result.both_arms == pytest.approx(0.0)
    assert [one.enforced for one in result.pairs] == list(ORDER)
    assert (result.switched_s, result.latest_switch_s) == (2.0, 7.0)
    assert [(one.seed, one.truth) for one in result.native] == [(1, SAVED)]


def test_a_saving_that_the_interval_misses_is_told():
    plan, samples, jobs = play()
    seen = [Seen(block, 4, 4) for block in PROTOCOL.blocks()]
    found = put_together(plan, PROTOCOL, samples, jobs, seen, SWITCHED_S, "Completed", 0)
    assert evaluated(plan, found, Truth(0.2, 1.0, 0.4), 1, ()).held_pct == 0.0


def test_natively_a_late_switch_hides_what_no_washout_leaves_out():
    block_s = BLOCK_S * SCALE
    protocol = replace(PROTOCOL, start_s=3000.0, block_s=block_s)
    jobs = made_jobs(NODES, protocol.end_s, seed=1)
    at_once, late = (native_trial(NODES, jobs, protocol, late_s) for late_s in (0.0, block_s / 3.0))
    assert at_once.saving.saved > 0.03
    # A third of each block under the other arm takes two thirds of the difference.
    assert late.saving.saved == pytest.approx(at_once.saving.saved / 3.0, abs=0.015)
    washed = native_trial(NODES, jobs, replace(protocol, washout_s=block_s / 3.0), block_s / 3.0)
    assert washed.saving.saved == pytest.approx(at_once.saving.saved, abs=0.015)
    assert at_once.equal_work.saved > at_once.saving.saved, "spread pods go to the nodes that are not slowed"
