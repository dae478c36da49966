"""Energy, emissions and cost of stretches of time, savings, budgets and thinned profiles."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.thinning import thinner
from joulie.domain.accounting.budget import Budget, BudgetAction, crossing, parse_choice
from joulie.domain.accounting.factors import OUTAGE_SLOT_S, steps_between
from joulie.domain.accounting.integrate import Buckets, Stretches, by_span, integrate, qualities
from joulie.domain.accounting.records import ENERGY_FIELDS, Energy, Method, PowerQuality
from joulie.domain.accounting.savings import Profile, saving
from joulie.domain.accounting.thinning import Strategy, time_based
from joulie.domain.grid.series import Series, constant
from joulie.domain.quantities import InvalidQuantityError

HOUR_S = 3600.0
T0 = 1_750_000_000.0 // HOUR_S * HOUR_S


def stretch(from_s, until_s, from_w, until_w, pue=(1.0, 1.0, 1.0), measured=False, assumed=False):
    return Stretches(
        np.array([from_s]),
        np.array([until_s]),
        np.array([from_w], dtype=float),
        np.array([until_w], dtype=float),
        np.array([pue], dtype=float),
        np.array([measured]),
        np.array([assumed]),
    )


def booked(stretches, intensity, price, marginal=None):
    span = float(stretches.from_s.min()), float(stretches.until_s.max())
    return by_span(
        integrate(stretches, [steps_between(one, *span, OUTAGE_SLOT_S) for one in (intensity, marginal, price)])
    )


def total(buckets: Buckets) -> Energy:
    return Energy(*buckets.energy.sum(axis=0).tolist())


def test_energy_is_the_trapezoid_and_pue_is_applied_to_each_part():
    energy = total(booked(stretch(T0, T0 + 30, (100, 10, 0), (200, 10, 400), (1.1, 1.1, 1.15)), None, None))
    assert (energy.cpu_j, energy.mem_j, energy.gpu_j) == pytest.approx((4500, 300, 6000), rel=1e-15)
    assert energy.energy_j == pytest.approx(4800 * 1.1 + 6000 * 1.15, rel=1e-15)


def test_emissions_are_exact_where_a_step_falls_between_two_samples():
    # 0 W to 100 W in 100 s; the intensity doubles after 25 s, when 1/16 of the energy has been drawn.
    series = Series([T0 - 60, T0 + 25], [300.0, 600.0], T0 + 600)
    energy = total(booked(stretch(T0, T0 + 100, (0, 0, 0), (100, 0, 0)), series, None))
    assert energy.energy_j == pytest.approx(5000, rel=1e-15)
    assert energy.emissions_g == pytest.approx(5000 / 3.6e6 * (300 / 16 + 600 * 15 / 16), rel=1e-14)


def test_a_stretch_is_booked_to_the_hours_that_it_lies_in():
    buckets = booked(stretch(T0 + 3000, T0 + 2.5 * HOUR_S, (60, 0, 0), (60, 0, 0)), None, None)
    assert (buckets.hour - T0 / HOUR_S).tolist() == [0, 1, 2]
    assert buckets.energy[:, 3].tolist() == pytest.approx([600 * 60, 3600 * 60, 1800 * 60])


def test_missing_intensity_is_energy_without_intensity_and_never_zero_emissions():
    known = Series([T0], [500.0], T0 + 60)
    energy = total(booked(stretch(T0 - 60, T0 + 120, (100, 0, 0), (100, 0, 0)), known, None))
    assert energy.emissions_g == pytest.approx(6000 / 3.6e6 * 500)
    assert energy.energy_without_intensity_j == pytest.approx(12000)
    assert energy.energy_without_price_j == pytest.approx(18000)
    assert energy.cost == 0.0


def test_negative_prices_are_earned():
    energy = total(booked(stretch(T0, T0 + 3600, (1000, 0, 0), (1000, 0, 0)), None, constant(-0.05, T0, T0 + 7200)))
    assert energy.cost == pytest.approx(-0.05)
    assert energy.energy_without_price_j == 0.0


def test_power_between_samples_is_as_good_as_the_worse_of_the_two():
    measured, assumed = PowerQuality.MEASURED, PowerQuality.ASSUMED
    assert qualities(measured, measured, gap=False) == (True, False)
    assert qualities(measured, PowerQuality.MODELLED, gap=False) == (False, False)
    assert qualities(measured, assumed, gap=False) == (False, True)
    assert qualities(measured, measured, gap=True) == (False, True)


@pytest.mark.slow
@given(
    power=st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)), min_size=1, max_size=4),
    times=st.lists(st.integers(0, 20_000), min_size=2, max_size=8, unique=True),
    steps=st.lists(st.integers(-500, 25_000), min_size=2, max_size=8, unique=True),
    values=st.lists(st.integers(0, 900), min_size=8, max_size=8),
)
def test_integrals_equal_those_of_exact_fractions(power, times, steps, values):
    starts, edges = sorted(times), sorted(steps)
    heights = values[: len(edges) - 1]
    series = Series([T0 + edge for edge in edges[:-1]], heights, T0 + edges[-1])
    for (from_w, until_w), from_s, until_s in zip(power, starts, starts[1:], strict=False):
        energy = total(booked(stretch(T0 + from_s, T0 + until_s, (from_w, 0, 0), (until_w, 0, 0)), series, None))
        length = Fraction(until_s - from_s)
        expected = Fraction(0)
        for low, high, height in zip(edges, edges[1:], heights, strict=False):
            x, y = max(low, from_s) - from_s, min(high, until_s) - from_s
            if x < y:
                slope = (Fraction(until_w) - Fraction(from_w)) / length
                expected += height * (Fraction(from_w) * (y - x) + slope * (y * y - x * x) / 2)
        assert energy.emissions_g == pytest.approx(float(expected / 3_600_000), rel=1e-12, abs=1e-12)
        assert energy.energy_j == pytest.approx((from_w + until_w) / 2 * float(length), rel=1e-12)


def test_energy_adds_up():
    one = Energy(*range(1, len(ENERGY_FIELDS) + 1))
    assert (one + one).cost == 2 * one.cost
    assert one.it_j == 6


def profile(*points):
    times, powers = zip(*points, strict=True)
    return Profile(np.array(times, dtype=float), np.array(powers, dtype=float))


def test_a_saving_is_the_same_profile_on_the_intensity_of_the_time_when_it_was_first_held():
    ran = profile((T0 + 7200, 1000), (T0 + 10800, 1000))
    history = Series([T0, T0 + 1800], [500.0, 400.0], T0 + 3600)
    found = saving(ran, T0, history, 3.6e6, 100.0, (None, None))
    assert found is not None
    assert found.method is Method.TIMESERIES
    assert found.amount == pytest.approx(450 - 100)


def test_a_thinned_profile_gives_the_shape_and_the_counted_energy_the_size():
    ran = profile((T0 + 7200, 100), (T0 + 10800, 100))
    found = saving(ran, T0, constant(500.0, T0, T0 + 3600), 3.6e6, 100.0, (None, None))
    assert found is not None
    assert found.amount == pytest.approx(400)


def test_waiting_for_worse_is_a_negative_saving():
    found = saving(None, T0, None, 3.6e6, None, (300.0, 350.0))
    assert found is not None
    assert (found.amount, found.method) == (pytest.approx(-50), Method.SIMPLE)


def test_no_saving_is_made_up():
    ran = profile((T0 + 7200, 1000), (T0 + 10800, 1000))
    assert saving(ran, None, constant(500.0, T0, T0 + 3600), 3.6e6, 100.0, (500.0, 100.0)) is None
    assert saving(ran, T0, None, 3.6e6, 100.0, (None, 100.0)) is None
    short = constant(500.0, T0, T0 + 1800)
    assert saving(ran, T0, short, 3.6e6, 100.0, (None, None)) is None


def test_emissions_that_are_partly_unknown_are_compared_by_the_two_moments():
    ran = profile((T0 + 7200, 1000), (T0 + 10800, 1000))
    found = saving(ran, T0, constant(500.0, T0, T0 + 3600), 3.6e6, None, (500.0, 100.0))
    assert found is not None
    assert found.method is Method.SIMPLE


def test_a_budget_is_crossed_by_more_than_it_allows():
    budget = Budget("uid", 3.6e6, BudgetAction.ANNOTATE)
    assert crossing(budget, 3.6e6, T0) is None
    crossed = crossing(budget, 5e6, T0)
    assert crossed is not None
    assert crossed.exceeded_by_j == pytest.approx(1.4e6)
    with pytest.raises(InvalidQuantityError):
        Budget("uid", 0.0)
    with pytest.raises(InvalidQuantityError):
        Budget("uid", math.nan)


def test_choices_are_read_as_written_in_annotations():
    assert parse_choice(BudgetAction, " Suspend ") is BudgetAction.SUSPEND
    with pytest.raises(ValueError, match=r"one of log, notify, annotate, label, suspend, got 'stop'"):
        parse_choice(BudgetAction, "stop")


@pytest.mark.parametrize("strategy", list(Strategy))
@pytest.mark.parametrize("keep", [10, 11, 250])
def test_thinning_keeps_the_ends_in_order_and_never_more_than_asked(strategy, keep):
    generator = np.random.default_rng(3)
    times = T0 + np.cumsum(generator.uniform(1, 60, 500))
    kept = thinner(strategy)(times, generator.uniform(0, 300, 500), keep)
    assert (kept[0], kept[-1]) == (0, 499)
    assert keep - 4 <= len(kept) <= keep
    assert (np.diff(kept) > 0).all()


def test_min_max_keeps_peaks_that_even_times_lose():
    power = np.full(500, 50.0)
    power[321] = 900.0
    times = T0 + np.arange(500) * 30.0
    assert 321 in thinner(Strategy.MIN_MAX)(times, power, 50)
    assert 321 not in time_based(times, power, 50)
