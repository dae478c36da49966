"""The forecast of demand, and how it is kept over a restart."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.kubernetes.demand import decode_demand, encode_demand
from joulie.domain.quantities import InvalidQuantityError
from joulie.domain.scheduling.node_rules import ANYWHERE, NodeRules
from joulie.domain.sleep.demand import MAX_KINDS, SLOT_S, DemandHistory, ForecastSettings
from joulie.domain.sleep.snapshot import Room

DAY_S, HOUR_S = 86_400.0, 3600.0
MONDAY_S = 1_799_971_200.0
"""Midnight."""
POD = Room(8.0, 32.0, 0.0, 1.0)
NINE_S = 9.0 * HOUR_S
SETTINGS = ForecastSettings(quantile=0.8, ahead_s=300.0, keep_s=1800.0)


def days(batches: list[int], *, at_s: float = NINE_S, history: DemandHistory | None = None) -> DemandHistory:
    """Watched days, at each of which so many pods came at one time."""
    history = history or DemandHistory()
    for day, pods in enumerate(batches):
        for slot in range(288):
            history.watch(MONDAY_S + day * DAY_S + slot * SLOT_S)
        for _ in range(pods):
            history.arrived(POD, ANYWHERE, MONDAY_S + day * DAY_S + at_s)
    return history


def expected(history: DemandHistory, day: float, at_s: float, settings: ForecastSettings = SETTINGS) -> tuple[int, int]:
    now_s = MONDAY_S + day * DAY_S + at_s
    history.watch(now_s)
    found = history.expected(now_s, settings)
    return sum(one.soon for one in found), sum(one.later for one in found)


def test_a_batch_of_every_day_is_expected_before_it_comes_and_no_longer_once_it_is_there() -> None:
    history = days([10, 10, 10])
    assert expected(history, 3, NINE_S - 1900.0) == (0, 0)
    assert expected(history, 3, NINE_S - 1800.0) == (0, 10), "no node goes to sleep now"
    assert expected(history, 3, NINE_S - 300.0) == (10, 10), "nodes wake now"
    for _ in range(7):
        history.arrived(POD, ANYWHERE, MONDAY_S + 3 * DAY_S + NINE_S)
    assert expected(history, 3, NINE_S + 10.0) == (3, 3)
    assert expected(history, 3, NINE_S + 590.0) == (3, 3), "it may be late"
    assert expected(history, 3, NINE_S + 610.0) == (0, 0)


def test_without_days_nothing_is_expected() -> None:
    assert expected(DemandHistory(), 0, NINE_S) == (0, 0)
    assert expected(days([10]), 1, NINE_S) == (0, 0), "one day is no habit"
    assert expected(days([10, 10, 10]), 3, NINE_S, ForecastSettings(quantile=0.0)) == (0, 0)


def test_days_that_nobody_watched_are_no_days_without_demand() -> None:
    history = days([10, 10])
    # Away for two days.
    assert expected(history, 4, NINE_S) == (10, 10)


def test_weekdays_count_alone_once_there_are_three() -> None:
    week = [8, 8, 8, 8, 8, 0, 0]
    assert expected(days(week * 2), 14 + 5, NINE_S) == (8, 8), "a third Saturday"
    history = days(week * 3 + week[:5])
    assert expected(history, 21 + 5, NINE_S) == (0, 0), "a fourth one"
    assert expected(history, 28, NINE_S) == (8, 8), "and Monday"


def test_a_quantile_of_the_days_is_expected() -> None:
    history = days([1, 2, 3, 4, 5])
    for quantile, count in ((0.2, 2), (0.5, 3), (1.0, 5)):
        assert expected(history, 5, NINE_S, ForecastSettings(quantile=quantile)) == (count, count)


def test_kinds_are_told_apart_by_size_and_rules_and_are_as_large_as_their_largest() -> None:
    history = DemandHistory()
    rules = NodeRules(selector=(("pool", "a"),))
    for day in range(3):
        at_s = MONDAY_S + day * DAY_S
        for slot in range(288):
            history.watch(at_s + slot * SLOT_S)
        for requests, where in (
            (Room(8.0, 32.0, 0.0, 1.0), ANYWHERE),
            (Room(8.5, 30.0, 0.0, 1.0), ANYWHERE),
            (Room(8.0, 32.0, 0.0, 1.0), rules),
            (Room(8.0, 32.0, 4.0, 1.0), ANYWHERE),
        ):
            history.arrived(requests, where, at_s + NINE_S)
    now_s = MONDAY_S + 3 * DAY_S + NINE_S
    history.watch(now_s)
    found = [(one.requests, one.rules, one.soon) for one in history.expected(now_s, SETTINGS)]
    assert found == [
        (Room(8.0, 32.0, 4.0, 1.0), ANYWHERE, 1),
        (Room(8.5, 32.0, 0.0, 1.0), ANYWHERE, 2),
        (Room(8.0, 32.0, 0.0, 1.0), rules, 1),
    ]


def test_the_rarest_kind_gives_way_and_memory_is_bounded() -> None:
    history = days([5, 5, 5])
    for index in range(3 * MAX_KINDS):
        history.arrived(Room(2.0**index, 1.0, 0.0, 1.0), ANYWHERE, MONDAY_S + 2.6 * DAY_S)
    state = history.state()
    assert state is not None
    assert len(state.kinds) == MAX_KINDS
    assert expected(history, 3, NINE_S) == (5, 5)


@pytest.mark.parametrize("requests", [Room(math.nan), Room(math.inf), Room(-1.0)])
def test_requests_that_are_no_numbers_are_not_learned(requests: Room) -> None:
    history = DemandHistory()
    history.arrived(requests, ANYWHERE, MONDAY_S)
    assert history.state() is None


@pytest.mark.parametrize("jump_s", [-400.0 * DAY_S, -2.0 * HOUR_S, 2.0 * HOUR_S, 400.0 * DAY_S])
def test_a_clock_that_jumps_expects_no_more_than_ever_came(jump_s: float) -> None:
    history = days([10, 10, 10])
    for at_s in (0.0, jump_s, 0.0):
        assert expected(history, 3, NINE_S + at_s) in {(0, 0), (10, 10)}
    if abs(jump_s) < DAY_S:
        assert expected(history, 3, NINE_S) == (10, 10)


def test_settings_that_contradict_one_another_are_refused() -> None:
    with pytest.raises(InvalidQuantityError):
        ForecastSettings(ahead_s=600.0, keep_s=300.0)


arrivals = st.lists(
    st.tuples(st.integers(0, 40 * 288), st.integers(0, 5), st.sampled_from([POD, Room(1.0, 2.0, 0.0, 1.0)])),
    max_size=30,
)


@pytest.mark.slow
@given(arrivals, st.integers(0, 40 * 288), st.sampled_from([0.5, 0.9, 1.0]))
def test_what_is_kept_over_a_restart_expects_the_same_and_no_more_than_came(came, at, quantile) -> None:
    history = DemandHistory()
    counts = {}
    for slot, pods, requests in sorted(came):
        history.watch(MONDAY_S + slot * SLOT_S)
        for _ in range(pods):
            history.arrived(requests, ANYWHERE, MONDAY_S + slot * SLOT_S)
        counts[requests] = counts.get(requests, 0) + pods
    settings, now_s = ForecastSettings(quantile=quantile), MONDAY_S + at * SLOT_S
    again = decode_demand(encode_demand(history))
    for one in (history, again):
        one.watch(now_s)
    found = history.expected(now_s, settings)
    assert again.expected(now_s, settings) == found
    assert again.days == history.days
    for pods in found:
        assert 0 <= pods.soon <= pods.later <= counts[pods.requests]


def test_a_full_history_fits_into_a_config_map() -> None:
    history = DemandHistory()
    rng = np.random.default_rng(0)
    for index in range(MAX_KINDS):
        history.arrived(Room(2.0**index, 1.0, 0.0, 1.0), ANYWHERE, MONDAY_S)
    # A busy cluster: a pod of each kind every ten minutes.
    history._counts[:] = rng.poisson(0.5, history._counts.shape)
    assert len(encode_demand(history)) < 400_000


@pytest.mark.parametrize("text", ["", "!", "AAAA", encode_demand(days([1]))[:-40]])
def test_a_history_that_is_damaged_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="joulie-demand"):
        decode_demand(text)


def test_a_history_with_missing_counts_is_refused() -> None:
    state = days([1]).state()
    assert state is not None
    with pytest.raises(ValueError, match="does not have"):
        DemandHistory.restored(dataclasses.replace(state, counts=state.counts[:-1]))
    with pytest.raises(ValueError, match="cannot request"):
        DemandHistory.restored(dataclasses.replace(state, kinds=((Room(math.nan), ANYWHERE),)))
