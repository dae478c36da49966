"""The search for a job's limit, step by step, from noisy windows: `next_step` and what it makes of windows."""

import dataclasses
import json

import msgspec
import numpy as np
import pytest

from joulie.domain.capping.choice import (
    BASELINE_AGE,
    FIRST_WINDOWS,
    NEXT_SEARCH,
    Goal,
    Hold,
    Reason,
    Trial,
    next_step,
)
from joulie.domain.capping.measurements import Measurement, sweep_of
from joulie.domain.capping.response import learn
from joulie.domain.capping.trials import MAX_WINDOWS, Trials, Window
from joulie.domain.units import InvalidQuantityError

LIMITS_W = [150.0, 200.0, 250.0, 300.0]


def progress(limit_w, natural_w=250.0, steepness=1.0):
    return 0.1 / (1.0 + steepness * (max(natural_w / limit_w, 1.0) - 1.0) ** 2)


def power_w(limit_w, natural_w=250.0):
    return min(limit_w, natural_w)


RESPONSE = learn(
    sweep_of(
        Measurement(limit_w, 1.0 / progress(limit_w, natural_w, steepness), power_w(limit_w, natural_w))
        for limit_w in LIMITS_W
    )
    for natural_w in (160.0, 200.0, 240.0, 290.0)
    for steepness in (0.5, 1.0, 2.0)
)


def window(limit_w, speed=1.0, noise=0.0, rng=None):
    error = np.exp(noise * rng.standard_normal(2)).tolist() if rng else (1.0, 1.0)
    return Window(limit_w, power_w(limit_w) * error[0], progress(limit_w) * speed * error[1])


def search(trials=None, goal=None, noise=0.0, seed=1, at_most=200):
    """The steps until a limit is held."""
    trials, goal, rng = trials or Trials(), goal or Goal(1.10), np.random.default_rng(seed)
    for _ in range(at_most):
        step = next_step(trials, RESPONSE, LIMITS_W, goal)
        if isinstance(step, Hold):
            return trials, step
        trials = trials.measured(window(step.limit_w, noise=noise, rng=rng))
    raise AssertionError("no limit was held")


def test_exact_windows_are_not_repeated_but_at_the_baseline():
    trials, hold = search()
    assert (hold.limit_w, hold.reason) == (200.0, Reason.MEASURED)
    assert (hold.slowdown, hold.saving) == pytest.approx((1.0625, 1.0 - 0.8 * 1.0625))
    limits_w = [one.limit_w for one in trials.windows]
    assert limits_w.count(300.0) == FIRST_WINDOWS
    assert all(limits_w.count(limit_w) == 1 for limit_w in set(limits_w) - {300.0})


def test_noise_is_met_with_windows():
    few, many = (len(search(noise=noise)[0].windows) for noise in (0.002, 0.02))
    assert few < many <= 4 * Goal().max_windows


def test_the_state_passes_through_json():
    trials, hold = search(noise=0.02)
    text = json.dumps(msgspec.to_builtins(trials))
    again = msgspec.convert(json.loads(text), Trials)
    assert again == trials
    assert next_step(again, RESPONSE, LIMITS_W, Goal(1.10)) == hold
    assert dataclasses.asdict(hold)["reason"] == "measured"


def test_a_later_run_starts_where_the_earlier_was_held_and_checks_it():
    trials, hold = search(Trials(start_w=200.0))
    assert hold.limit_w == 200.0
    assert {one.limit_w for one in trials.windows} == {300.0, 200.0}


def test_a_held_job_that_falls_below_the_bound_goes_to_the_baseline_at_once():
    trials, hold = search()
    trials = trials.measured(window(hold.limit_w, speed=0.9))
    assert next_step(trials, RESPONSE, LIMITS_W, Goal(1.10)) == Trial(
        300.0, "the last window departs from the others at its limit"
    )
    # The baseline is as before: the window was of another phase, or the limit has come to cost more.
    trials = trials.measured(window(300.0))
    assert isinstance(next_step(trials, RESPONSE, LIMITS_W, Goal(1.10)), Hold)


def test_a_job_that_has_changed_is_measured_anew():
    trials, hold = search()
    for limit_w in (hold.limit_w, 300.0, 300.0, 300.0):
        trials = trials.measured(window(limit_w, speed=0.5))
    # Nothing of what was measured before counts: the limit that was held is tried again.
    assert next_step(trials, RESPONSE, LIMITS_W, Goal(1.10)) == Trial(hold.limit_w, "may save energy within the bound")


def tried(*windows):
    return next_step(Trials(tuple(windows)), RESPONSE, LIMITS_W, Goal(1.10))


BASELINE = [window(300.0, speed) for speed in (1.0, 1.01, 0.99)]


def paused(limit_w, progress_share, power_share):
    return Window(limit_w, power_share * power_w(limit_w), progress_share * progress(limit_w))


def test_the_first_trial_comes_after_three_windows_and_earns_while_it_is_measured():
    first = tried(*BASELINE)
    assert isinstance(first, Trial)
    assert first.limit_w == 200.0
    limits_w = [one.limit_w for one in search(noise=0.01)[0].windows]
    below = limits_w[FIRST_WINDOWS:]
    assert sum(limit_w < 300.0 for limit_w in below) >= 0.6 * len(below), "most windows save energy"


def test_a_pause_at_a_limit_is_no_verdict_on_it():
    # An evaluation falls into the first window of a trial: the job draws less than its limit lets it.
    step = tried(*BASELINE, paused(200.0, 0.35, 0.8))
    assert step == Trial(300.0, "measure again: windows differ")
    assert tried(*BASELINE, paused(200.0, 0.35, 0.8), window(300.0)).limit_w == 200.0
    # A limit that slows a job down that much holds it at the limit's power: never again.
    slowed = tried(*BASELINE, paused(200.0, 0.35, 1.0), window(300.0))
    assert slowed.limit_w > 200.0


def test_a_pause_under_a_held_limit_costs_one_window_and_a_second_one_the_limit():
    trials, hold = search()
    trials = trials.measured(paused(hold.limit_w, 0.88, 0.93))
    assert next_step(trials, RESPONSE, LIMITS_W, Goal(1.10)) == Trial(hold.limit_w, "the job paused")
    trials = trials.measured(paused(hold.limit_w, 0.88, 0.93))
    assert next_step(trials, RESPONSE, LIMITS_W, Goal(1.10)).limit_w == 300.0


def test_a_checkpoint_among_the_first_windows_does_not_move_the_baseline():
    checkpoint = Window(300.0, 0.93 * power_w(300.0), 0.9 * progress(300.0))
    clean = search()[1]
    trials = Trials((checkpoint, *BASELINE))
    while isinstance(step := next_step(trials, RESPONSE, LIMITS_W, Goal(1.10)), Trial):
        trials = trials.measured(window(step.limit_w))
    assert step.slowdown == pytest.approx(clean.slowdown, abs=0.005)


def test_a_limit_that_has_come_to_cost_a_little_more_is_noticed_after_three_windows():
    rng = np.random.default_rng(4)
    trials, hold = search(noise=0.005)
    for _ in range(20):
        trials = trials.measured(window(hold.limit_w, noise=0.005, rng=rng))
    assert next_step(trials, RESPONSE, LIMITS_W, Goal(1.10)).limit_w == hold.limit_w
    for _ in range(3):  # slower by less than a change of phase, and by less than one window proves
        trials = trials.measured(window(hold.limit_w, speed=0.955, noise=0.002, rng=rng))
    assert next_step(trials, RESPONSE, LIMITS_W, Goal(1.10)).limit_w > hold.limit_w


def test_the_baseline_of_a_limited_job_does_not_grow_old():
    trials, hold = search()
    for _ in range(BASELINE_AGE):
        step = next_step(trials, RESPONSE, LIMITS_W, Goal(1.10))
        if step.limit_w == 300.0:
            break
        trials = trials.measured(window(hold.limit_w))
    assert step == Trial(300.0, "the baseline was measured long ago")
    assert all(one.limit_w < 300.0 for one in trials.windows[-BASELINE_AGE:])


def test_a_search_that_found_nothing_goes_on_after_a_while():
    goal = Goal(1.01, trials=1)
    trials, hold = search(goal=goal)
    assert hold.reason is Reason.NOTHING_BETTER
    while isinstance(step := next_step(trials, RESPONSE, LIMITS_W, goal), Hold):
        assert len(trials.windows) < NEXT_SEARCH
        trials = trials.measured(window(300.0))
    assert step.why == "may save energy within the bound"


def test_a_window_of_another_phase_is_taken_again():
    trials = Trials()
    for speed in (1.0, 1.0, 0.3, 1.0, 1.0):
        trials = trials.measured(window(300.0, speed))
    step = next_step(trials, RESPONSE, LIMITS_W, Goal(1.10))
    assert isinstance(step, Trial)
    assert step.limit_w < 300.0


def test_without_progress_only_what_other_jobs_make_certain():
    trials = Trials(tuple(Window(300.0, 250.0) for _ in range(4)))
    hold = next_step(trials, RESPONSE, LIMITS_W, Goal(1.10))
    assert (hold.limit_w, hold.reason) == (250.0, Reason.PREDICTED)
    assert hold.confidence == pytest.approx(0.977, abs=0.001)
    none_certain = next_step(trials, RESPONSE, LIMITS_W, Goal(1.0))
    assert none_certain == Hold(300.0, Reason.NOTHING_BETTER, None, None, 1.0)


def test_without_progress_the_limit_that_is_held_does_not_sink():
    trials = Trials(tuple(Window(300.0, 250.0) for _ in range(3)))
    held = next_step(trials, RESPONSE, LIMITS_W, Goal(1.10))
    for _ in range(20):  # the job draws less under that limit than by nature
        trials = trials.measured(Window(held.limit_w, 200.0))
        assert next_step(trials, RESPONSE, LIMITS_W, Goal(1.10)).limit_w == held.limit_w


def test_windows_are_bounded():
    trials = Trials()
    for _ in range(3 * MAX_WINDOWS):
        trials = trials.measured(window(300.0)).measured(window(200.0))
    assert len(trials.windows) == 2 * MAX_WINDOWS


@pytest.mark.parametrize("quantities", [(0.0, 1.0, 1.0), (300.0, -1.0, 1.0), (300.0, 1.0, 0.0), (300.0, 1.0, np.nan)])
def test_a_window_that_was_not_measured_is_none(quantities):
    with pytest.raises(InvalidQuantityError):
        Window(*quantities)
