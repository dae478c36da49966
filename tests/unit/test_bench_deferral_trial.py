"""Trials of deferral that are made up: intervals hold the truth, and what waiting really saves is found."""

import numpy as np
import pytest

from joulie_lab.benchmarks.coverage import Work
from joulie_lab.benchmarks.deferral_trial import DISTURBANCES, SETTINGS, Judged, played, summed_up, trials_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["0%, all disturbances", "10%, all disturbances", "real waits"])
def test_intervals_hold_the_truth(name):
    said, trials = trials_of(Work(name, tuple(range(30))))
    found = summed_up(trials)
    assert (said, found.trials) == (name, 30)
    assert found.holds_pct >= 80.0
    assert 1.0 < found.half_width_pct < 30.0


def test_waiting_pays_where_the_grid_is_not_the_same_at_all_hours():
    found, truth, waited_h = played(SETTINGS["real waits"], 1)
    assert 0.05 < truth < 0.4
    assert found.low < truth < found.high
    assert 2.0 < waited_h < 12.0
    assert played(SETTINGS["0%, bursts of load"], 1)[1:] == (0.0, 0.0)


def test_each_disturbance_is_tried_alone_and_with_the_others():
    assert {f"0%, {name}" for name in DISTURBANCES} <= set(SETTINGS)
    assert set(SETTINGS["5%, all disturbances"].disturbances) == set(DISTURBANCES.values())


def test_an_interval_that_claims_too_much_is_seen():
    rng = np.random.default_rng(1)
    lows = rng.normal(0.0, 0.05, 200)
    narrow = summed_up([Judged(low, low + 0.02, 0.0, 0.0) for low in lows.tolist()])
    assert narrow.holds_pct < 50.0
    assert summed_up([Judged(None, None, 0.0, 0.0), Judged(-0.1, 0.1, 0.0, 0.0)]).trials == 1
