"""A budget is held to what is measured, lets go when its period turns, and takes nothing unknown for nothing."""

import math

from hypothesis import given
from hypothesis import strategies as st

from joulie.domain.accounting.budget import WhenUnknown
from joulie.domain.accounting.energy_budget import (
    Amounts,
    BudgetTarget,
    HoldReason,
    Measured,
    decide,
    holds,
    pace_since_s,
    standing,
)
from joulie.domain.accounting.period import Window
from joulie.domain.accounting.records import Energy

LIMITS = st.floats(1e-3, 1e9)
SHARES = st.floats(0.0, 3.0)
TIMES = st.floats(0.0, 1e6)
POLICIES = st.sampled_from(WhenUnknown)
STALE_S = 300.0


def decided(limit, share, now_s, *, measured_s, turns_s, when_unknown=WhenUnknown.OPEN, holding=False):
    used = None if share is None else Amounts(energy_kwh=limit * share)
    return decide(
        Amounts(energy_kwh=limit),
        Measured(used, measured_s, turns_s),
        now_s,
        stale_after_s=STALE_S,
        when_unknown=when_unknown,
        holding=holding,
    )


@given(LIMITS, SHARES, TIMES, TIMES, POLICIES, st.booleans())
def test_an_exhausted_period_holds_until_it_turns_and_not_beyond(limit, share, age_s, left_s, policy, holding):
    now_s = 2e6
    before = decided(limit, share, now_s, measured_s=now_s - age_s, turns_s=now_s + left_s + 1.0, when_unknown=policy)
    if limit * share >= limit:
        assert before is HoldReason.EXHAUSTED
    elif age_s <= STALE_S:
        assert before is HoldReason.WITHIN
    after = decided(
        limit, share, now_s, measured_s=now_s - age_s, turns_s=now_s - left_s, when_unknown=policy, holding=holding
    )
    if age_s <= STALE_S:
        assert after is HoldReason.WITHIN
    else:
        assert holds(after) is (policy is WhenUnknown.CLOSED)


@given(LIMITS, SHARES, st.floats(1.0, 10.0), TIMES)
def test_a_raised_limit_never_holds_more(limit, share, times, left_s):
    now_s = 2e6
    same = {"measured_s": now_s, "turns_s": now_s + left_s + 1.0}
    if not holds(decided(limit, share, now_s, **same)):
        assert not holds(decided(limit * times, share / times, now_s, **same))


@given(LIMITS, POLICIES, st.booleans(), st.booleans())
def test_unknown_is_neither_zero_nor_exhausted(limit, policy, holding, rolling):
    turns_s = None if rolling else 2e6 + 1.0
    reason = decided(limit, None, 2e6, measured_s=2e6, turns_s=turns_s, when_unknown=policy, holding=holding)
    assert reason is (HoldReason.FAILS_OPEN if policy is WhenUnknown.OPEN else HoldReason.FAILS_CLOSED)


@given(LIMITS, SHARES, st.booleans())
def test_a_rolling_budget_does_not_flap(limit, share, holding):
    reason = decided(limit, share, 2e6, measured_s=2e6, turns_s=None, holding=holding)
    if limit * share >= limit:
        assert reason is HoldReason.EXHAUSTED
    elif share < 0.94:
        assert reason is HoldReason.WITHIN
    elif share > 0.96:
        assert holds(reason) is holding


@given(st.floats(1e3, 1e12), st.floats(0.0, 1.0), st.floats(1.0, 1e6), st.floats(-1e6, 1e6))
def test_what_is_unknown_counts_at_the_mean_of_the_rest(energy_j, unknown_share, grams, cost):
    unknown_j = energy_j * unknown_share
    energy = Energy(
        energy_j=energy_j,
        emissions_g=grams * (1.0 - unknown_share),
        energy_without_intensity_j=unknown_j,
        cost=cost * (1.0 - unknown_share),
        energy_without_price_j=unknown_j,
    )
    window = Window(0.0, 86400.0)
    used = standing(window, energy, Energy(), 39600.0, 43200.0).used
    assert math.isclose(used.energy_kwh, energy_j / 3.6e6)
    if unknown_share < 0.999:
        assert math.isclose(used.emissions_g, grams, rel_tol=1e-6)
        assert math.isclose(used.cost, cost, rel_tol=1e-6, abs_tol=1e-9)
    elif unknown_share == 1.0:
        assert used.emissions_g is None
        assert used.cost is None


@given(st.floats(0.0, 1e6), st.floats(3600.0, 86400.0))
def test_the_forecast_of_a_steady_power_is_that_of_the_whole_period(power_w, now_s):
    window = Window(0.0, 86400.0)
    since_s = pace_since_s(window, now_s)
    used, recent = Energy(energy_j=power_w * now_s), Energy(energy_j=power_w * (now_s - since_s))
    now = standing(window, used, recent, since_s, now_s)
    assert math.isclose(now.forecast.energy_kwh, power_w * 86400.0 / 3.6e6, rel_tol=1e-6, abs_tol=1e-12)
    assert now.forecast_from_s is None


@given(
    st.sampled_from([3600.0, 86400.0, 604800.0, 2678400.0]),
    st.floats(0.0, 1.0),
    st.floats(0.0, 0.999),
    st.floats(0, 1e9),
)
def test_a_forecast_extends_what_was_measured_at_most_24_times(period_s, counted_share, now_share, recent_j):
    """A minute of a month said that 1,265,383 % would be used."""
    window = Window(1e9, 1e9 + period_s)
    now_s = window.start_s + now_share * period_s
    since_s = max(pace_since_s(window, now_s), window.start_s + counted_share * (now_s - window.start_s))
    energy = Energy(energy_j=recent_j)
    now = standing(window, energy, energy, since_s, now_s)
    if now.forecast_from_s is None:
        assert recent_j <= now.forecast.energy_kwh * 3.6e6 * (1 + 1e-9) + 1e-9
        assert now.forecast.energy_kwh * 3.6e6 <= 25.0 * recent_j * (1 + 1e-9) + 1e-9
    else:
        assert now.forecast == Amounts()
        assert now_s < now.forecast_from_s < window.end_s
        later = standing(window, energy, energy, since_s, now.forecast_from_s + 1e-3)
        assert later.forecast_from_s is None


def test_a_rolling_period_needs_no_forecast():
    now = standing(Window(0.0, 86400.0), Energy(energy_j=3.6e6), Energy(), 86400.0, 86400.0)
    assert (now.forecast.energy_kwh, now.forecast_from_s) == (1.0, None)


@given(st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy")), st.sampled_from(["Job", "CronJob"]))
def test_a_target_is_all_that_it_gives(labels, kind):
    everything = BudgetTarget("team")
    assert everything.matches("team", kind, "train", labels)
    assert not everything.matches("other", kind, "train", labels)
    assert BudgetTarget("team", "Job", "train").matches("team", kind, "train", labels) is (kind == "Job")
    assert BudgetTarget("team", labels=(("a", "x"),)).matches("team", kind, "train", labels) is (labels.get("a") == "x")


def test_one_exhausted_limit_is_enough_though_another_is_unknown():
    limits = Amounts(energy_kwh=1.0, emissions_g=100.0)
    assert Amounts(energy_kwh=1.5).share_of(limits) == 1.5
    assert Amounts(energy_kwh=0.5).share_of(limits) is None
    assert Amounts(energy_kwh=0.5, emissions_g=80.0).share_of(limits) == 0.8
