"""How long the beginning of a block has to be left out, by how long pods still run."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.recording import Exit, PodRecord
from joulie.domain.trial.washout import (
    LEFT,
    LONGEST,
    MIN_RUNNING,
    runtimes_s,
    still_running,
    washout_by_ages_s,
    washout_s,
)
from joulie.domain.units import InvalidQuantityError

BLOCK_S = 6 * 3600.0
RUNTIMES = st.lists(st.tuples(st.floats(1.0, 1e5), st.floats(0.1, 64.0)), min_size=1, max_size=20)


def test_pods_of_one_length_leave_what_is_left_of_the_square():
    one_hour = [(3600.0, 4.0)] * 5
    assert still_running(one_hour, 0.0) == 1.0
    assert still_running(one_hour, 1800.0) == pytest.approx(0.5)
    assert still_running(one_hour, 3600.0) == 0.0
    assert washout_s(one_hour, BLOCK_S) == 54 * 60.0, "a tenth of an hour is left"


def test_it_is_what_is_seen_at_the_switches_of_a_cluster():
    rng = np.random.default_rng(5)
    starts_s = rng.uniform(0.0, 1e6, 40_000)
    lengths_s = rng.lognormal(math.log(1200.0), 1.0, len(starts_s))
    seen = []
    for switch_s in rng.uniform(1e5, 9e5, 200):
        there = (starts_s <= switch_s) & (switch_s < starts_s + lengths_s)
        left = there & (starts_s + lengths_s > switch_s + 1800.0)
        seen.append((there.sum(), left.sum()))
    there, left = np.sum(seen, axis=0)
    assert still_running([(length, 1.0) for length in lengths_s], 1800.0) == pytest.approx(left / there, rel=0.03)


def test_large_and_long_pods_count_for_what_they_are():
    small, large = (600.0, 1.0), (7200.0, 64.0)
    assert washout_s([small] * 100, BLOCK_S) < 600.0
    assert washout_s([small] * 100 + [large], BLOCK_S) > 3600.0


def test_pods_that_outlast_a_block_do_not_take_all_of_it():
    assert washout_s([(1e6, 1.0)], BLOCK_S) == LONGEST * BLOCK_S
    assert washout_s([], BLOCK_S) == 0.0


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(RUNTIMES, st.floats(600.0, 1e5))
def test_it_is_the_shortest_that_leaves_no_more_than_asked(runtimes, block_s):
    found_s = washout_s(runtimes, block_s)
    assert 0.0 <= found_s <= LONGEST * block_s
    assert found_s % 60.0 == 0.0
    if found_s > 0.0:
        assert still_running(runtimes, found_s - 60.0) > LEFT
    assert still_running(runtimes, found_s) <= LEFT or found_s > LONGEST * block_s - 60.0


def test_only_pods_that_completed_have_a_runtime():
    pods = [
        PodRecord("a", "ml", "a", cpu_cores=2.0, gpus=1.0, started_s=10.0, ended_s=70.0, exit=Exit.SUCCEEDED),
        PodRecord("b", "ml", "b", started_s=10.0, ended_s=70.0, exit=Exit.FAILED),
        PodRecord("c", "ml", "c", started_s=10.0),
        PodRecord("d", "ml", "d", started_s=70.0, ended_s=70.0, exit=Exit.SUCCEEDED),
    ]
    assert runtimes_s(pods) == [(60.0, 3.0)]


@pytest.mark.parametrize("after_s", [-1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_refused(after_s):
    with pytest.raises(InvalidQuantityError):
        still_running([(1.0, 1.0)], after_s)


@pytest.mark.slow
def test_the_ages_of_what_runs_say_what_the_runtimes_say():
    rng = np.random.default_rng(5)
    starts_s = rng.uniform(0.0, 1e6, 40_000)
    sizes = rng.choice([1.0, 4.0], len(starts_s))
    lengths_s = rng.lognormal(math.log(1200.0), 1.0, len(starts_s))
    found_s = []
    for now_s in rng.uniform(2e5, 9e5, 300):
        there = (starts_s <= now_s) & (now_s < starts_s + lengths_s)
        found_s.append(washout_by_ages_s(zip(now_s - starts_s[there], sizes[there], strict=True), BLOCK_S))
    known_s = washout_s(zip(lengths_s, sizes, strict=True), BLOCK_S)
    assert np.median(found_s) == pytest.approx(known_s, rel=0.05)


def test_too_few_running_pods_say_nothing_and_no_washout_is_longer_than_half_a_block():
    assert washout_by_ages_s([(600.0, 1.0)] * (MIN_RUNNING - 1), BLOCK_S) is None
    assert washout_by_ages_s([(600.0, 0.0)] * 99, BLOCK_S) is None
    assert washout_by_ages_s([(601.0, 1.0)] * MIN_RUNNING, BLOCK_S) == 660.0
    assert washout_by_ages_s([(1e6, 1.0)] * MIN_RUNNING, BLOCK_S) == LONGEST * BLOCK_S
    one_old = [(1e6, 1.0)] + [(60.0, 1.0)] * MIN_RUNNING
    assert washout_by_ages_s(one_old, BLOCK_S) == 60.0, "a tenth may still run"
