"""When an interruptible Job is paused and when it runs on."""

import dataclasses

from joulie.domain.grid.deferral import Conditions
from joulie.domain.grid.interrupt import MIN_PAUSE_S, MIN_RUN_S, Pause, Progress, Run, decide
from joulie.domain.grid.request import Asked, GridRequest, Mode
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import GridSignal, Measure
from joulie.domain.signal import Quality

NOW_S = 1_700_000_000.0
HOUR_S = 3600.0
REQUEST = GridRequest(
    asked_by=Asked.POD, mode=Mode.INTERRUPTIBLE, interruptible=True, runtime_s=2 * HOUR_S, max_delay_s=6 * HOUR_S
)
RUNNING = Progress(REQUEST, held_since_s=NOW_S - HOUR_S, done_s=HOUR_S, paused=False, changed_s=NOW_S - HOUR_S)
PAUSED = dataclasses.replace(RUNNING, paused=True)


def expecting(*values: float) -> Conditions:
    starts = [NOW_S + HOUR_S * at for at in range(len(values))]
    series = Series(starts, values, NOW_S + HOUR_S * len(values))
    return Conditions(GridSignal(Measure.CARBON, "DE", Quality.FRESH, values[0], NOW_S, forecast=series))


def test_it_is_paused_for_better_hours_and_runs_on_in_them() -> None:
    conditions = expecting(300.0, 250.0, 100.0, 200.0, 300.0)
    pause = decide(RUNNING, conditions, NOW_S)
    assert pause == Pause("better hours from 2 h on, 67% lower for what is left", NOW_S + 2 * HOUR_S, (Measure.CARBON,))
    assert isinstance(decide(PAUSED, conditions, NOW_S), Pause)
    run = decide(PAUSED, conditions, NOW_S + 2 * HOUR_S)
    assert isinstance(run, Run)
    assert run.wake_s == NOW_S + 3 * HOUR_S


def test_a_small_gain_is_not_worth_a_pause() -> None:
    conditions = expecting(300.0, 300.0, 290.0, 300.0)
    assert isinstance(decide(RUNNING, conditions, NOW_S), Run)
    assert isinstance(decide(PAUSED, conditions, NOW_S), Pause)  # but neither is a start, once it is paused


def test_it_runs_on_in_time_to_be_done() -> None:
    dirty = expecting(900.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    latest_s = PAUSED.latest_resume_s
    assert latest_s == NOW_S + 6 * HOUR_S
    assert isinstance(decide(PAUSED, dirty, NOW_S), Pause)
    late = dataclasses.replace(PAUSED, held_since_s=NOW_S - 7 * HOUR_S, changed_s=NOW_S)
    assert late.latest_resume_s == NOW_S
    assert decide(late, dirty, NOW_S) == Run("runs on to be done in time")


def test_it_is_not_paused_if_there_is_no_time_for_a_pause() -> None:
    """While it runs the time that is left for pauses stays the same, so nothing has to be decided any more."""
    tight = dataclasses.replace(RUNNING, held_since_s=NOW_S - 7 * HOUR_S + MIN_PAUSE_S)
    assert tight.latest_resume_s == NOW_S + MIN_PAUSE_S
    assert decide(tight, expecting(900.0, 1.0, 1.0), NOW_S) == Run("runs on to be done in time")


def test_neither_runs_nor_pauses_are_short() -> None:
    just_begun = dataclasses.replace(RUNNING, changed_s=NOW_S - 60.0)
    run = decide(just_begun, expecting(900.0, 1.0, 1.0, 1.0), NOW_S)
    assert run == Run("has just begun to run", NOW_S - 60.0 + MIN_RUN_S)
    just_paused = dataclasses.replace(PAUSED, changed_s=NOW_S - 60.0)
    pause = decide(just_paused, expecting(1.0, 900.0, 900.0), NOW_S)
    assert pause == Pause("has just been paused", NOW_S - 60.0 + MIN_PAUSE_S)


def test_what_has_not_begun_waits_for_any_gain_and_begins_at_once() -> None:
    new = dataclasses.replace(RUNNING, held_since_s=NOW_S, done_s=0.0, changed_s=NOW_S)
    pause = decide(new, expecting(300.0, 300.0, 299.0, 299.0, 300.0), NOW_S)
    assert isinstance(pause, Pause)
    assert pause.wake_s == NOW_S + 2 * HOUR_S
    clean = expecting(100.0, 100.0, 300.0)
    assert isinstance(decide(dataclasses.replace(new, paused=True), clean, NOW_S + 1.0), Run)


def test_without_a_forecast_it_goes_by_the_threshold() -> None:
    def now(value: float) -> Conditions:
        return Conditions(GridSignal(Measure.CARBON, "DE", Quality.FRESH, value, NOW_S))

    pause = decide(RUNNING, now(300.0), NOW_S)
    assert isinstance(pause, Pause)
    assert pause.wake_s == RUNNING.latest_resume_s
    assert isinstance(decide(RUNNING, now(200.0), NOW_S), Run)


def test_missing_signals_pause_nobody() -> None:
    assert isinstance(decide(PAUSED, Conditions(GridSignal(Measure.CARBON, "DE")), NOW_S), Run)
    assert isinstance(decide(PAUSED, Conditions(), NOW_S), Run)


def test_a_job_that_takes_longer_than_expected_is_left_alone() -> None:
    over = dataclasses.replace(RUNNING, done_s=3 * HOUR_S)
    assert decide(over, expecting(900.0, 1.0, 1.0), NOW_S).wake_s is None


def test_only_who_says_so_is_interrupted() -> None:
    for change in ({"mode": Mode.OPTIMAL}, {"interruptible": False}, {"skip": True}, {"asked_by": Asked.NOBODY}):
        job = dataclasses.replace(RUNNING, request=dataclasses.replace(REQUEST, **change))
        assert isinstance(decide(job, expecting(900.0, 1.0, 1.0), NOW_S), Run)


def test_a_forecast_that_is_too_short_pauses_nobody() -> None:
    long = dataclasses.replace(RUNNING, request=dataclasses.replace(REQUEST, runtime_s=9 * HOUR_S))
    assert isinstance(decide(long, expecting(900.0, 1.0, 1.0), NOW_S), Run)
