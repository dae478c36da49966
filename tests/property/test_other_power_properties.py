"""What no limit of a node reaches, learned from its readings."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from joulie.domain.capping.other_power import HALF_LIFE_S, MAX_SHARE, MIN_STATED, SAMPLES, OtherPower

FULL_W, STATED_W = 1000.0, 200.0
watts = st.one_of(st.just(np.nan), st.floats(0.0, 5000.0))
courses = st.lists(st.tuples(watts, watts, st.floats(-100.0, 1e6)), max_size=20)


def after(course, start=None):
    """What is known of one node after readings of whole node, its parts, and the time that passed."""
    found, now_s = start or OtherPower.unknown(1, 0.0), 0.0 if start is None else start.time_s
    for whole_w, parts_w, step_s in course:
        now_s += step_s
        found = found.learned(np.array([whole_w]), np.array([parts_w]), np.array([FULL_W]), now_s)
    return found


def counted_w(found):
    return float(found.watts(np.array([STATED_W]))[0])


@given(courses)
def test_what_is_learned_is_bounded_whatever_is_read(course):
    assert MIN_STATED * STATED_W <= counted_w(after(course)) <= max(MAX_SHARE * FULL_W, STATED_W)


@given(courses, st.floats(0.0, 900.0), st.floats(0.0, FULL_W))
def test_a_difference_that_lasts_counts_at_once_in_full(course, other_w, parts_w):
    found = after([(parts_w + other_w, parts_w, 60.0)] * SAMPLES, after(course))
    assert counted_w(found) >= other_w - 1e-6


@given(st.floats(0.0, FULL_W), st.floats(0.0, 900.0))
def test_a_node_counts_less_than_stated_only_by_as_much_as_it_was_seen_busy(parts_w, other_w):
    found = after([(parts_w + other_w, parts_w, 60.0)] * SAMPLES)
    assert counted_w(found) >= STATED_W * (1.0 - parts_w / FULL_W) - 1e-6
    if parts_w == FULL_W:
        assert counted_w(found) <= max(other_w, MIN_STATED * STATED_W) + 1e-6


@given(courses)
def test_without_readings_of_both_the_stated_share_counts(course):
    half = [(whole_w, np.nan, step_s) for whole_w, _, step_s in course]
    assert counted_w(after(half)) == STATED_W


@given(st.integers(0, SAMPLES // 2), st.floats(0.0, 900.0))
def test_single_readings_that_lie_count_nothing_and_what_was_true_is_forgotten_slowly(lies, lie_w):
    true = [(600.0 + 100.0, 600.0, 60.0)] * SAMPLES
    once = after([*true, *[(600.0 + lie_w, 600.0, 60.0)] * lies, *true])
    assert counted_w(once) <= max(100.0, STATED_W * 0.5)
    high_w = float(once.high_w[0])
    later = after([(np.nan, np.nan, HALF_LIFE_S)], once)
    assert float(later.high_w[0]) == high_w / 2.0
    assert counted_w(later) >= counted_w(once) / 2.0


@given(st.permutations(range(4)), st.integers(0, 4))
def test_a_history_follows_its_node(order, new):
    found = OtherPower.unknown(4, 0.0)
    parts_w, other_w = np.full(4, 500.0), np.arange(4) * 50.0
    for step in range(SAMPLES):
        found = found.learned(parts_w + other_w, parts_w, np.full(4, FULL_W), 60.0 * step)
    places = [*order, *[-1] * new]
    moved = found.moved(np.array(places, dtype=np.int64))
    assert moved.high_w.tolist() == [0.0 if place < 0 else found.high_w[place] for place in places]
