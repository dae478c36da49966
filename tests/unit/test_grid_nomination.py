"""Which worker clusters are nominated, and in which order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulie.domain.grid.deferral import Release
from joulie.domain.grid.move import Move
from joulie.domain.grid.nomination import nominate
from joulie.domain.grid.place import choose, rank_now
from joulie.domain.grid.request import Mode
from unit.test_grid_place import FREE, NOW_S, VALUES, place, waiting

CLUSTERS = {"a": "FR", "b": "DE", "c": "FR", "d": "PL", "e": ""}


def test_the_best_zone_first_then_the_next_then_all_others():
    rounds = [()]
    for _ in range(4):
        rounds.append(nominate(CLUSTERS, ["FR", "DE"], rounds[-1], expand=True))
    assert rounds[1:] == [("a", "c"), ("a", "c", "b"), ("a", "c", "b", "d", "e"), ("a", "c", "b", "d", "e")]


def test_within_a_round_nothing_changes():
    assert nominate(CLUSTERS, ["DE", "FR"], ("a", "c"), expand=False) == ("a", "c")


def test_trap_a_cluster_that_is_not_connected_is_not_nominated():
    assert nominate(CLUSTERS, ["FR"], ("gone", "a"), expand=False) == ("a",)
    # With the last of them gone, the next zone does not wait for the end of the round.
    assert nominate({"b": "DE"}, ["FR", "DE"], ("a",), expand=False) == ("b",)
    assert nominate({}, ["FR"], ("a",), expand=True) == ()


def test_without_comparable_zones_all_are_nominated():
    assert nominate(CLUSTERS, [], (), expand=True) == ("a", "b", "c", "d", "e")


NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from(["FR", "DE", "PL", ""])), NAMES, st.booleans())
def test_everything_connected_is_nominated_in_the_end(clusters, nominated, expand):
    zones = ["FR", "DE"]
    chosen = nominate(clusters, zones, nominated, expand=expand)
    assert set(chosen) <= set(clusters)
    assert set(chosen) >= set(nominated) & set(clusters)
    assert len(set(chosen)) == len(chosen)
    assert bool(chosen) == bool(clusters)
    for _ in range(3):
        chosen = nominate(clusters, zones, chosen, expand=True)
    assert set(chosen) == set(clusters)


def test_where_it_emits_least_now_the_transfer_counted():
    home, dirty = place("A", [300, 10]), place("B", [200, 200])
    assert rank_now(waiting(), home, [dirty], FREE, NOW_S) == ("B", "A")
    assert rank_now(waiting(), home, [dirty], Move(100.0, 10.0, 2.0), NOW_S) == ("A", "B")
    # Of a run of two hours, the mean counts.
    assert rank_now(waiting(runtime_h=2.0), home, [dirty], FREE, NOW_S) == ("A", "B")


def test_by_thresholds_what_is_within_them_goes_first():
    request = waiting(Mode.THRESHOLD, carbon_threshold_g_per_kwh=150.0)
    zones = [place("B", [140]), place("C", [100]), place("D", [190])]
    assert rank_now(request, place("A", [160]), zones, FREE, NOW_S) == ("C", "B", "A", "D")


@pytest.mark.parametrize("home", [None, [300]])
def test_a_missing_signal_is_not_ranked(home):
    found = rank_now(waiting(), place("A", home), [place("B", [100]), place("C", None)], FREE, NOW_S)
    assert found == (("B", "A") if home else ())
    assert rank_now(waiting(carbon_enabled=False), place("A", [300]), [place("B", [100])], FREE, NOW_S) == ()


@pytest.mark.slow
@given(VALUES, VALUES, st.floats(0.0, 500.0), st.floats(0.0, 5.0), st.sampled_from(list(Mode)))
def test_what_is_released_is_dispatched_to_the_zone_that_it_was_released_for(here, there, data_gb, delay_h, mode):
    request, move = waiting(mode, delay_h), Move(data_gb, 10.0, 4.0)
    home, other = place("A", here), place("B", there)
    placed = choose(request, home, [other], move, NOW_S)
    if isinstance(placed.decision, Release):
        first, second = rank_now(request, home, [other], move, NOW_S)
        cost = {"A": 0.0, "B": move.g_per_kwh(here[0], there[0])}
        run = {"A": here[0] + cost["A"], "B": there[0] + cost["B"]}
        assert first == placed.zone or run[first] == pytest.approx(run[second], abs=1e-6)
