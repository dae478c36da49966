"""Which sample a node is judged by, and its recent past."""

import pytest

from joulie.domain.control_power import (
    HISTORY_SAMPLES,
    PowerHistory,
    PowerQuality,
    SourceReadings,
    choose_power,
    quality_of,
)
from joulie.domain.units import InvalidQuantityError

NODES = ("a", "b", "c", "d")


def choice(now_s=100.0, **samples):
    readings = [SourceReadings.of(source, NODES, known) for source, known in samples.items()]
    return choose_power(readings, len(NODES), now_s, stale_after_s=60.0)


def test_the_best_fresh_sample_counts_and_what_fell_silent_is_known():
    found = choice(
        rapl={"a": (90.0, 300.0), "b": (10.0, 500.0), "c": (10.0, 600.0)},
        utilization={"a": (100.0, 111.0), "b": (100.0, 222.0)},
    )
    assert [found.source_of(index) for index in range(4)] == ["rapl", "utilization", None, None]
    assert found.power_w.tolist() == [300.0, 222.0, 0.0, 0.0]
    assert [quality_of(found.source_of(index), found.silent_source_of(index)) for index in range(4)] == [
        PowerQuality.FRESH,
        PowerQuality.DEGRADED,
        PowerQuality.STALE,
        PowerQuality.MISSING,
    ]
    assert found.silent_source_of(1) == "rapl"
    assert found.known.tolist() == [True, True, False, False]


def test_a_node_that_draws_nothing_is_not_one_that_nobody_measured():
    found = choice(rapl={"a": (100.0, 0.0)})
    assert found.known.tolist() == [True, False, False, False]


def test_a_sample_from_the_future_is_as_stale_as_one_from_the_past():
    found = choice(http={"a": (159.0, 1.0), "b": (161.0, 1.0)})
    assert found.known.tolist() == [True, False, False, False]


@pytest.mark.parametrize("power_w", [float("nan"), -1.0, float("inf")])
def test_impossible_power_is_refused_by_the_name_of_its_source(power_w):
    with pytest.raises(InvalidQuantityError, match="power_w of rapl"):
        SourceReadings.of("rapl", NODES, {"a": (0.0, power_w)})


def test_trend_is_drawn_through_new_samples_of_one_source():
    history = PowerHistory()
    for step in range(4):
        now_s = 60.0 * step
        history = history.extended(NODES, choice(now_s, rapl={"a": (now_s, 100.0 + 30.0 * step), "b": (0.0, 50.0)}))
    trend = history.trend_w_per_min(180.0, window_s=600.0)
    assert trend[0] == pytest.approx(30.0)
    assert trend.tolist()[1:] == [0.0, 0.0, 0.0]
    assert history.valid.sum(axis=1).tolist() == [4, 1, 0, 0]  # the same sample again is no second one


def test_a_change_of_source_is_no_trend():
    history = PowerHistory().extended(NODES, choice(0.0, utilization={"a": (0.0, 700.0)}))
    history = history.extended(NODES, choice(60.0, rapl={"a": (60.0, 100.0)}))
    assert history.trend_w_per_min(60.0, 600.0)[0] == 0.0
    history = history.extended(NODES, choice(120.0, rapl={"a": (120.0, 110.0)}))
    assert history.trend_w_per_min(120.0, 600.0)[0] == pytest.approx(10.0)


def test_a_clock_set_back_begins_a_trend_anew():
    history = PowerHistory()
    for now_s in (7200.0, 7260.0, 3600.0, 3630.0, 3660.0):
        history = history.extended(NODES, choice(now_s, rapl={"a": (now_s, now_s)}))
    assert history.valid[0].sum() == 3
    assert history.trend_w_per_min(3660.0, 600.0)[0] == pytest.approx(60.0)


def test_samples_older_than_the_window_do_not_count():
    history = PowerHistory().extended(NODES, choice(0.0, rapl={"a": (0.0, 900.0)}))
    for now_s in (600.0, 660.0):
        history = history.extended(NODES, choice(now_s, rapl={"a": (now_s, now_s)}))
    assert history.trend_w_per_min(660.0, 300.0)[0] == pytest.approx(60.0)


def test_history_follows_its_nodes():
    history = PowerHistory().extended(NODES, choice(0.0, rapl={"a": (0.0, 1.0), "d": (0.0, 4.0)}))
    fewer = history._reordered(("d", "new", "a"))
    assert fewer.power_w[:, -1].tolist() == [4.0, 0.0, 1.0]
    assert fewer.valid[:, -1].tolist() == [True, False, True]
    assert history.without(frozenset({"a"})).nodes == ("b", "c", "d")


def test_history_is_bounded():
    history = PowerHistory()
    for step in range(3 * HISTORY_SAMPLES):
        history = history.extended(NODES, choice(float(step), rapl={"a": (float(step), 1.0)}))
    assert history.power_w.shape == (4, HISTORY_SAMPLES)


def test_no_nodes_at_all():
    nothing = choose_power([SourceReadings.of("rapl", (), {})], 0, 0.0, 60.0)
    assert PowerHistory().extended((), nothing).trend_w_per_min(0.0, 1.0).shape == (0,)
