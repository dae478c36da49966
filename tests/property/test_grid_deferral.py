"""Deferral, whatever the signals are: nobody waits too long, nobody for nothing, and tariffs are what clocks say."""

import dataclasses
import math
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from joulie.domain.grid import interrupt, names
from joulie.domain.grid.deferral import Conditions, FinishBy, Hold, HoldReason, Release, ReleaseReason, Waiting, decide
from joulie.domain.grid.release import Bucket, Due, Limits, due_now, in_order
from joulie.domain.grid.request import Asked, GridDefaults, GridRequest, Mode, request_of
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import GridSignal, Measure, Period
from joulie.domain.grid.tou import Schedule, TouTariff
from joulie.domain.signal import Quality

NOW_S = 1_700_000_000.0
intensities = st.floats(0.0, 2000.0)
prices = st.none() | st.floats(-1.0, 5.0)
spans_s = st.floats(0.0, 3e5)


@st.composite
def forecasts(draw: st.DrawFn, values: st.SearchStrategy[float] = intensities) -> Series:
    steps = draw(st.lists(st.tuples(st.floats(1.0, 2e4), values), min_size=1, max_size=20))
    starts = [NOW_S + draw(st.floats(-1e4, 5e3))]
    for length_s, _value in steps[:-1]:
        starts.append(starts[-1] + length_s)
    return Series(starts, [value for _length, value in steps], starts[-1] + steps[-1][0])


@st.composite
def signals(draw: st.DrawFn, measure: Measure) -> GridSignal:
    quality = draw(st.sampled_from(Quality))
    if quality is Quality.MISSING:
        return GridSignal(measure, "DE")
    values = intensities if measure is Measure.CARBON else st.floats(-1.0, 5.0)
    period = draw(st.none() | st.sampled_from(Period)) if measure is Measure.PRICE else None
    value = draw(values if period is None else prices)
    return GridSignal(measure, "DE", quality, value, NOW_S, None, period, draw(st.none() | forecasts(values)))


conditions = st.builds(Conditions, st.none() | signals(Measure.CARBON), st.none() | signals(Measure.PRICE))
requests = st.builds(
    GridRequest,
    asked_by=st.sampled_from(Asked),
    skip=st.booleans(),
    carbon_enabled=st.booleans(),
    carbon_threshold_g_per_kwh=intensities,
    price_enabled=st.booleans(),
    price_threshold_per_kwh=st.none() | st.floats(0.0, 5.0),
    max_delay_s=spans_s,
    mode=st.sampled_from(Mode),
    interruptible=st.booleans(),
    runtime_s=st.floats(1.0, 2e5),
    carbon_weight=st.floats(0.0, 1.0),
    price_weight=st.floats(0.0, 1.0),
)
waitings = st.builds(
    Waiting,
    requests,
    spans_s.map(lambda span_s: NOW_S - span_s),
    st.none() | spans_s.map(lambda span_s: FinishBy(NOW_S + span_s, "the deadline of its Job")),
)


@given(waitings, conditions)
def test_nobody_is_held_past_the_latest_start(waiting: Waiting, known: Conditions) -> None:
    decision = decide(waiting, known, NOW_S)
    if isinstance(decision, Hold):
        assert NOW_S < waiting.latest_start_s == decision.latest_start_s
        assert NOW_S < decision.wake_s <= waiting.latest_start_s
        assert decision.wake_s == waiting.latest_start_s or decision.wake_s >= NOW_S + 1.0
    assert isinstance(decide(waiting, known, max(NOW_S, waiting.latest_start_s)), Release)


@given(waitings, conditions)
def test_nobody_is_held_without_asking_or_for_what_is_missing(waiting: Waiting, known: Conditions) -> None:
    decision = decide(waiting, known, NOW_S)
    watched = [
        signal
        for signal, enabled in (
            (known.carbon, waiting.request.carbon_enabled),
            (known.price, waiting.request.price_enabled),
        )
        if enabled and signal is not None and signal.known
    ]
    if not waiting.request.defer or not watched:
        assert isinstance(decision, Release)
    if isinstance(decision, Hold):
        assert decision.text
        held_by = {
            HoldReason.CARBON: {Measure.CARBON},
            HoldReason.PRICE: {Measure.PRICE},
            HoldReason.BOTH: {*Measure},
        }
        assert held_by.get(decision.reason, set()) <= {signal.measure for signal in watched}


@given(waitings, intensities, st.floats(0.0, 1.0))
def test_a_cleaner_grid_never_holds_who_would_run(waiting: Waiting, value: float, share: float) -> None:
    by_threshold = dataclasses.replace(waiting, request=dataclasses.replace(waiting.request, mode=Mode.THRESHOLD))
    dirty, clean = (
        decide(by_threshold, Conditions(GridSignal(Measure.CARBON, "DE", Quality.FRESH, now, NOW_S)), NOW_S)
        for now in (value, value * share)
    )
    if isinstance(dirty, Release):
        assert isinstance(clean, Release)


@given(waitings, intensities)
def test_equal_to_the_threshold_runs(waiting: Waiting, value: float) -> None:
    request = dataclasses.replace(waiting.request, mode=Mode.THRESHOLD, carbon_threshold_g_per_kwh=value)
    signal = GridSignal(Measure.CARBON, "DE", Quality.STALE, value, NOW_S)
    assert isinstance(decide(dataclasses.replace(waiting, request=request), Conditions(signal), NOW_S), Release)


@given(waitings, signals(Measure.CARBON))
def test_deciding_again_at_each_wake_ends(waiting: Waiting, signal: GridSignal) -> None:
    """With nothing new heard, the wakes alone lead to a release, at the latest start or before."""
    now_s, rounds = NOW_S, 0
    while isinstance(decision := decide(waiting, Conditions(signal), now_s), Hold):
        now_s, rounds = decision.wake_s, rounds + 1
        assert rounds < 100
    assert decision.reason is ReleaseReason.DEADLINE or now_s <= max(NOW_S, waiting.latest_start_s)


@given(st.text(), st.text())
def test_no_text_in_an_annotation_breaks_the_reading(text: str, other: str) -> None:
    keys = (names.CARBON_THRESHOLD, names.PRICE_THRESHOLD, names.MAX_DELAY, names.RUNTIME, names.RUNTIME_HOURS)
    read = request_of("", dict.fromkeys(keys, text), {}, None, {}, {names.MODE: other}, GridDefaults())
    for number in (read.carbon_threshold_g_per_kwh, read.max_delay_s, read.runtime_s):
        assert math.isfinite(number)
        assert number >= 0.0


# --- order and spread ---

dues = st.lists(
    st.builds(Due, st.text(max_size=3), st.integers(-3, 3), st.integers(0, 5).map(float), st.booleans()),
    max_size=30,
    unique_by=lambda due: due.name,
)
limits = st.builds(Limits, st.floats(0.01, 100.0), st.integers(1, 20))


@given(dues.flatmap(lambda pods: st.tuples(st.just(pods), st.permutations(pods))), st.booleans())
def test_the_order_does_not_depend_on_how_pods_were_listed(listed: tuple[list[Due], list[Due]], by_age: bool) -> None:
    first, second = listed
    assert in_order(first, not by_age) == in_order(second, not by_age)


@given(dues, limits, st.floats(0.0, 30.0))
def test_urgent_ones_go_at_once_and_nobody_starves(pods: list[Due], allowed: Limits, tokens: float) -> None:
    waiting, bucket, now_s = in_order(pods, use_priorities=True), Bucket(tokens, 0.0), 0.0
    urgent = {pod.name for pod in pods if pod.urgent}
    first = due_now(waiting, bucket, now_s, allowed)
    assert urgent <= {pod.name for pod in first.now}
    assert len(first.now) - len(urgent) <= allowed.burst
    rounds = 0
    while waiting:
        releases = due_now(waiting, bucket, now_s, allowed)
        waiting, bucket = waiting[len(releases.now) :], releases.bucket
        assert (releases.next_s is None) is (not waiting)
        now_s, rounds = releases.next_s or now_s, rounds + 1
        assert rounds <= len(pods) + 1
    assert now_s <= (len(pods) + 1) / allowed.rate_per_s


# --- tariffs ---

ZONES = ("Europe/Berlin", "America/Los_Angeles", "Australia/Lord_Howe", "America/Sao_Paulo", "Asia/Kolkata", "UTC")
DAYS = (date(2026, 3, 8), date(2026, 3, 29), date(2026, 4, 5), date(2026, 10, 4), date(2026, 10, 25), date(2026, 11, 1))
minutes = st.integers(0, 24 * 4 - 1).map(lambda quarter: quarter * 15)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    start_min, end_min = draw(minutes), draw(minutes)
    assume(start_min != end_min)
    return Schedule(
        "test",
        frozenset(draw(st.sets(st.integers(0, 6)))),
        start_min,
        end_min,
        ZoneInfo(draw(st.sampled_from(ZONES))),
        draw(st.floats(0.0, 1.0)),
        draw(st.floats(0.0, 1.0)),
        (frozenset(draw(st.sets(st.sampled_from(DAYS)))),),
    )


def naive_peak(schedule: Schedule, time_s: float) -> bool:
    """Whether any day's window holds the local time, written as minutes since that day's midnight."""
    local = datetime.fromtimestamp(time_s, UTC).astimezone(schedule.zone).replace(tzinfo=None)
    for back in (0, 1):
        day = local.date() - timedelta(days=back)
        weekday = (day.weekday() + 1) % 7
        if weekday not in schedule.days or day in schedule.holidays[0]:
            continue
        minute = local.hour * 60 + local.minute + back * 1440
        end_min = schedule.end_min + (1440 if schedule.end_min <= schedule.start_min else 0)
        if schedule.start_min <= minute < end_min:
            return True
    return False


@settings(max_examples=40)
@given(st.lists(schedules(), min_size=1, max_size=3), st.sampled_from(DAYS))
@example(
    [Schedule("t", frozenset({6, 0}), 23 * 60, 150, ZoneInfo("Europe/Berlin"), 1.0, 0.5, (frozenset(),))],
    date(2026, 10, 25),
)
def test_a_tariff_agrees_with_the_clock_quarter_by_quarter(rules: list[Schedule], day: date) -> None:
    tariff = TouTariff(tuple(rules))
    from_s = datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() - 86400.0
    series = tariff.series(from_s, from_s + 3 * 86400.0)
    assert series is not None
    for quarter in range(3 * 96):
        time_s = from_s + 900.0 * quarter
        peaks = [rule for rule in rules if naive_peak(rule, time_s)]
        assert (tariff.period(time_s) is Period.PEAK) is bool(peaks)
        if peaks:
            assert series.at(time_s) == peaks[0].peak_rate
        assert series.at(time_s) == series.at(time_s + 899.0) == tariff.rate(time_s)


# --- interruption ---


@settings(max_examples=50)
@given(forecasts(), st.floats(600.0, 4e4), st.floats(0.0, 6e4), intensities)
def test_an_interrupted_job_is_always_done_in_time(
    forecast: Series, runtime_s: float, max_delay_s: float, threshold: float
) -> None:
    request = GridRequest(
        asked_by=Asked.POD,
        mode=Mode.INTERRUPTIBLE,
        interruptible=True,
        runtime_s=runtime_s,
        max_delay_s=max_delay_s,
        carbon_threshold_g_per_kwh=threshold,
    )
    signal = GridSignal(Measure.CARBON, "DE", Quality.FRESH, 500.0, NOW_S, forecast=forecast)
    job = interrupt.Progress(request, NOW_S, 0.0, paused=False, changed_s=NOW_S)
    now_s, rounds = NOW_S, 0
    while job.left_s > 1e-3:
        decision = interrupt.decide(job, Conditions(signal), now_s)
        paused = isinstance(decision, interrupt.Pause)
        next_s = decision.wake_s if paused else min(decision.wake_s or math.inf, now_s + job.left_s)
        assert next_s is not None
        assert now_s < next_s
        if paused:
            assert next_s <= job.latest_resume_s + 1e-3
        job = dataclasses.replace(
            job,
            done_s=job.done_s + (0.0 if paused else next_s - now_s),
            paused=paused,
            changed_s=now_s if paused is not job.paused else job.changed_s,
        )
        now_s, rounds = next_s, rounds + 1
        assert rounds < 200
    assert now_s <= job.finish_by_s + 1e-2
