"""Where and when a workload of several zones runs, and the points of nodes by their zones."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joulie.domain.grid.deferral import Conditions, Hold, HoldReason, ReleaseReason, Waiting
from joulie.domain.grid.move import Move
from joulie.domain.grid.place import Place, choose, with_zone_points, zone_points
from joulie.domain.grid.request import Asked, GridRequest, Mode
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import GridSignal, Measure
from joulie.domain.quantities import InvalidQuantityError
from joulie.domain.signal import Quality

HOUR_S = 3600.0
NOW_S = 1_700_000_000.0
FREE = Move()


def waiting(mode=Mode.OPTIMAL, delay_h=24.0, runtime_h=1.0, since_s=NOW_S, **asks):
    request = GridRequest(
        asked_by=Asked.POD, mode=mode, max_delay_s=delay_h * HOUR_S, runtime_s=runtime_h * HOUR_S, **asks
    )
    return Waiting(request, since_s)


def place(zone, values):
    """A zone with values from now on, one an hour; None is missing."""
    if values is None:
        return Place(zone, Conditions(GridSignal(Measure.CARBON, zone, problem="no answer")))
    starts_s = NOW_S + HOUR_S * np.arange(len(values))
    forecast = Series(starts_s, values, starts_s[-1] + HOUR_S) if len(values) > 1 else None
    signal = GridSignal(Measure.CARBON, zone, Quality.FRESH, float(values[0]), NOW_S, forecast=forecast)
    return Place(zone, Conditions(signal))


def test_there_now_is_taken_where_it_beats_here_later():
    found = choose(waiting(), place("A", [400, 400, 200, 400]), [place("B", [100, 300, 300, 300])], FREE, NOW_S)
    assert (found.zone, found.decision.reason) == ("B", ReleaseReason.WINDOW)


def test_here_later_is_taken_where_it_beats_there_now():
    found = choose(waiting(), place("A", [400, 400, 50, 400]), [place("B", [100, 300, 300, 300])], FREE, NOW_S)
    assert isinstance(found.decision, Hold)
    assert (found.zone, found.decision.wake_s) == ("A", NOW_S + 2 * HOUR_S)


def test_there_later_is_waited_for():
    found = choose(waiting(), place("A", [400, 400, 300]), [place("B", [500, 60, 500])], FREE, NOW_S)
    assert (found.zone, found.decision.reason) == ("B", HoldReason.WINDOW)


def test_moving_data_costs():
    # 100 GB at 10 Wh/GB are 1 kWh, of a run of 4 kWh: (300 + 100) / 2 / 4 = 50 g for each kWh.
    move = Move(100.0, 10.0, 4.0)
    here, there = place("A", [300, 300]), place("B", [100, 300])
    found = choose(waiting(), here, [there], move, NOW_S)
    assert (found.zone, found.move_g_per_kwh) == ("B", 50.0)
    assert choose(waiting(), here, [there], Move(500.0, 10.0, 4.0), NOW_S).zone == "A"


def test_what_has_data_and_an_unknown_energy_stays():
    here, there = place("A", [300, 300]), place("B", [1, 300])
    assert choose(waiting(), here, [there], Move(1.0, 10.0), NOW_S).zone == "A"
    assert choose(waiting(), here, [there], Move(0.0, 10.0), NOW_S).zone == "B"


def test_equal_zones_are_no_reason_to_move():
    assert choose(waiting(), place("B", [300, 300]), [place("A", [300, 300])], FREE, NOW_S).zone == "B"


def test_by_thresholds_the_cleanest_of_those_that_are_clean_now_is_taken():
    request = waiting(Mode.THRESHOLD)
    here = place("A", [300, 100, 100])
    found = choose(request, here, [place("B", [190]), place("C", [150]), place("D", [250])], FREE, NOW_S)
    assert (found.zone, found.decision.reason) == ("C", ReleaseReason.CLEAN)
    # None is clean: the one that is expected to be clean first.
    found = choose(request, here, [place("B", [300, 300, 100])], FREE, NOW_S)
    assert (found.zone, found.decision.wake_s) == ("A", NOW_S + HOUR_S)


@pytest.mark.parametrize("mode", [Mode.THRESHOLD, Mode.OPTIMAL])
def test_trap_a_missing_signal_neither_attracts_nor_holds(mode):
    dirty, missing = place("A", [300, 250]), place("B", None)
    assert choose(waiting(mode), dirty, [missing], FREE, NOW_S).zone == "A"
    found = choose(waiting(mode), missing, [dirty], FREE, NOW_S)
    assert (found.zone, found.decision.reason) == ("B", ReleaseReason.MISSING)


def test_at_the_latest_start_it_runs_where_it_is_cleanest_now():
    late = waiting(since_s=NOW_S - 25 * HOUR_S)
    found = choose(late, place("A", [300, 10]), [place("B", [200, 200])], FREE, NOW_S)
    assert (found.zone, found.decision.reason) == ("B", ReleaseReason.DEADLINE)


def test_what_ignores_carbon_stays_at_home():
    found = choose(waiting(carbon_enabled=False), place("A", [300, 10]), [place("B", [1, 1])], FREE, NOW_S)
    assert (found.zone, found.decision.reason) == ("A", ReleaseReason.NOT_WATCHED)


@pytest.mark.parametrize(
    "values",
    [{"data_gb": float("nan")}, {"data_gb": -1.0}, {"wh_per_gb": float("inf")}, {"run_kwh": 0.0}],
)
def test_invalid_costs_are_refused(values):
    with pytest.raises(InvalidQuantityError):
        Move(**values)


VALUES = st.lists(st.floats(0.0, 1000.0), min_size=6, max_size=6)


@pytest.mark.slow
@given(VALUES, VALUES, st.floats(0.0, 500.0), st.floats(0.0, 5.0), st.sampled_from(list(Mode)))
def test_both_is_never_worse_than_waiting_or_moving_alone(here, there, data_gb, delay_h, mode):
    """By what is forecast; and no decision waits past the latest start."""
    asks = waiting(mode, delay_h)
    move = Move(data_gb, 10.0, 4.0)
    home, other = place("A", here), place("B", there)
    found = choose(asks, home, [other], move, NOW_S)
    assert found.zone in {"A", "B"}
    if isinstance(found.decision, Hold):
        assert NOW_S < found.decision.wake_s <= asks.latest_start_s
    if mode is Mode.THRESHOLD:
        return

    def expected(placement):
        start_s = placement.decision.wake_s if isinstance(placement.decision, Hold) else NOW_S
        forecast = {"A": home, "B": other}[placement.zone].conditions.carbon.forecast
        return forecast.mean(start_s, start_s + HOUR_S) + placement.move_g_per_kwh

    if isinstance(found.decision, Hold) and found.decision.wake_s == NOW_S + 1.0:
        return  # the next decision is never sooner than that
    alone = [choose(asks, home, [], move, NOW_S), choose(waiting(mode, 0.0), home, [other], move, NOW_S)]
    for one in alone:
        assert expected(found) <= expected(one) + 1e-6


# ---- points of nodes


def test_nodes_of_cleaner_zones_gain_what_dirtier_ones_lose():
    intensity = np.array([100.0, 300.0, 100.0, np.nan])
    points = zone_points(intensity, 40.0)
    assert points.tolist() == [20.0, -20.0, 20.0, 0.0]


def test_trap_without_two_known_intensities_nobody_gains():
    assert not zone_points(np.array([100.0, 100.0, np.nan]), 40.0).any()
    assert not zone_points(np.full(3, np.nan), 40.0).any()


@pytest.mark.slow
@given(st.lists(st.one_of(st.just(float("nan")), st.floats(0.0, 2000.0)), min_size=1), st.floats(0.0, 100.0))
@example([0.0, 5e-324], 40.0)
def test_points_stay_within_the_weight_and_follow_the_intensity(values, weight):
    intensity = np.array(values)
    points = zone_points(intensity, weight)
    assert (np.abs(points) <= weight).all()
    assert not points[np.isnan(intensity)].any()
    known = ~np.isnan(intensity)
    order = np.argsort(intensity[known])
    assert (np.diff(points[known][order]) <= 1e-9).all()


def test_invalid_intensities_are_refused():
    for wrong in (-1.0, np.inf):
        with pytest.raises(InvalidQuantityError):
            zone_points(np.array([wrong, 1.0]), 40.0)


def test_a_draining_node_gains_nothing_for_what_must_not_move():
    assert with_zone_points(np.array([0.0, 50.0, 90.0]), np.array([40.0, -60.0, 40.0])).tolist() == [0.0, 0.0, 100.0]
