"""Trials drawn from a process: it is found again from its own runs, and intervals hold the truth under disturbances."""

import math

import numpy as np
import pytest

from joulie_lab.benchmarks.trials import (
    DISTURBANCES,
    Family,
    Process,
    TrialsResult,
    covered,
    deviation,
    drawn,
    fitted,
    played,
    process_trials,
    settings,
)

pytestmark = pytest.mark.slow

PROCESS = Process(
    {
        "cpu": Family(24, 2.5e6, 1.2, 3e5, 1e6, 0.5, 0.6),
        "gpu": Family(16, 7e6, 1.7, 2e6, 3e6, 6.0, 0.2),
    },
    0.4,
)


def runs(number, *disturbances):
    return [played(PROCESS, disturbances, np.random.default_rng([3, seed])) for seed in range(number)]


def test_the_process_is_found_again_from_its_own_runs():
    found = fitted(runs(20))
    assert found.load == pytest.approx(PROCESS.load, rel=0.15)
    for name, true in PROCESS.families.items():
        one = found.families[name]
        assert one.nodes == true.nodes
        for part in ("base_j", "per_work", "noise_j", "work"):
            assert getattr(one, part) == pytest.approx(getattr(true, part), rel=0.2), (name, part)
        # A load that is common to all spreads what is a node's own, too.
        assert one.shape == pytest.approx(true.shape, rel=0.4)


@pytest.mark.parametrize(("name", "setting"), settings().items())
def test_intervals_hold_the_truth(name, setting):
    found = process_trials(PROCESS, *setting, trials=60, seed=11)
    for one in found:
        assert one.holds_pct >= 85.0, name
        assert 0.0 < one.half_width_pct < 30.0


def test_an_interval_that_claims_too_much_is_seen():
    protocol_of = [(one, drawn(one, number)) for number, one in enumerate(runs(30))]
    off_by_a_tenth = covered([one.trial(protocol, 0.15).saving for one, protocol in protocol_of], 0.02)
    assert off_by_a_tenth.holds_pct < 50.0


def test_disturbances_do_what_they_say():
    quiet = runs(10)
    assert deviation(runs(10, DISTURBANCES["failing nodes"])) > deviation(quiet)
    silent = runs(1, DISTURBANCES["silent meters"])[0]
    assert 0.03 < np.isnan(silent.energy_j).mean() < 0.12
    failing = runs(1, DISTURBANCES["failing nodes"])[0]
    assert (failing.work == 0.0).any()
    assert not np.isnan(quiet[0].energy_j).any()


def test_false_savings_are_those_without_an_effect():
    one = process_trials(PROCESS, 0.0, (), trials=4, seed=1)
    result = TrialsResult({"0%, x": one.per_work}, {"0%, x": one.at_equal_work}, {}, {}, 0.0, 0.0)
    assert math.isfinite(result.false_savings_pct)
    assert math.isfinite(result.false_savings_at_equal_work_pct)
