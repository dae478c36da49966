"""The search for a job's power limit under every signal: the bound is kept plus one window, and limits return."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.capping.choice import Goal, Hold, Reason
from joulie.domain.capping.live import MAX_FAILURES, PATIENCE_S, STUCK_REPEATS, JobGpus, LiveJob, Pace
from joulie.domain.capping.plausibility import LOWEST_UNVOUCHED
from joulie.domain.capping.prior import POOLED

BASELINE_W, MIN_W = 700.0, 200.0
PACE = Pace()
WINDOW_S = PACE.settling_s + PACE.window_s
GOAL = Goal(1.05)
POD = ("ml", "train-0")


def job(limit_w: float | None, ceiling_w: float = math.inf) -> JobGpus:
    return JobGpus(frozenset({POD}), (("node", "GPU-0", POD),), BASELINE_W, MIN_W, limit_w, ceiling_w)


def response(natural_w: float, steepness: float) -> Callable[[float], tuple[float, float]]:
    """Power (W) and slowdown of a job under a limit: none above 1.1 of its natural power, steeper below."""

    def at(limit_w: float) -> tuple[float, float]:
        short = max(0.0, math.log(1.1 * natural_w / limit_w))
        slowdown = math.exp(steepness * short**2)
        return min(natural_w, limit_w * 0.97), slowdown

    return at


class Course:
    """A job and its limit over time; the agent puts each limit into force at once."""

    def __init__(self, start_w: float | None = None) -> None:
        self.now_s = 0.0
        self.live = LiveJob.found(job(BASELINE_W), start_w)

    def window(self, power_w: float | None, progress: float | None, counted: float | None = None) -> float:
        """One whole window; returns the limit that it was under, W."""
        limit_w = self.live.limit_w
        self.live = self.live.observed(job(limit_w), self.now_s)
        self.now_s += WINDOW_S
        self.live = self.live.observed(job(limit_w), self.now_s)
        due_s = self.live.due_s(PACE)
        assert due_s is not None
        assert due_s <= self.now_s
        self.live = self.live.measured(power_w, progress, POOLED, GOAL, self.now_s, counted_per_s=counted)
        return limit_w

    def honest(self, at: Callable[[float], tuple[float, float]], jitter: float = 1.0) -> float:
        power_w, slowdown = at(self.live.limit_w)
        return self.window(power_w, 100.0 / slowdown * jitter)


def searched(at: Callable[[float], tuple[float, float]], noise: np.ndarray) -> Course:
    course = Course()
    for jitter in noise:
        course.honest(at, jitter)
        if isinstance(course.live.step, Hold):
            break
    return course


NOISE = st.integers(0, 2**32 - 1).map(lambda seed: np.exp(np.random.default_rng(seed).normal(0.0, 0.002, 200)))
JOBS = st.builds(response, st.floats(250.0, 680.0), st.floats(0.2, 8.0))


@settings(max_examples=60, deadline=None)
@given(JOBS, NOISE)
def test_held_limit_keeps_the_bound(at: Callable[[float], tuple[float, float]], noise: np.ndarray) -> None:
    course = searched(at, noise)
    assert isinstance(course.live.step, Hold)
    slowdown = at(course.live.limit_w)[1] / at(BASELINE_W)[1]  # the largest limit may hold some jobs back already
    assert slowdown <= GOAL.max_slowdown * (1.0 + GOAL.tolerance) * 1.01
    assert MIN_W <= course.live.limit_w <= BASELINE_W


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))] * 2), max_size=40))
def test_any_signal_leaves_a_limit_of_the_range(windows: list[tuple[float | None, float | None]]) -> None:
    course = Course(start_w=490.0)
    for power_w, progress in windows:
        course.window(power_w, progress)
        assert course.live.limit_w in course.live.job.limits_w
        if progress is None or not progress > 0.0:
            assert not course.live.limited


@settings(max_examples=40, deadline=None)
@given(JOBS, NOISE, st.sampled_from(("absent", "stuck", "zero")))
def test_signal_that_fails_costs_one_window_and_one_that_is_stuck_two(
    at: Callable[[float], tuple[float, float]], noise: np.ndarray, fault: str
) -> None:
    course = searched(at, noise)
    last = course.live.last_progress
    windows = 0
    for _ in range(3 * STUCK_REPEATS):
        windows += course.live.limited
        course.window(at(course.live.limit_w)[0], {"absent": None, "stuck": last, "zero": 0.0}[fault])
    assert not course.live.limited
    assert windows <= (STUCK_REPEATS if fault == "stuck" else 1)


@settings(max_examples=40, deadline=None)
@given(NOISE, st.floats(1.3, 3.0))
def test_job_that_slows_under_its_limit_is_released_after_one_window(noise: np.ndarray, factor: float) -> None:
    at = response(500.0, 1.0)
    course = searched(at, noise)
    assert course.live.limited
    held_w = course.live.limit_w
    course.window(at(held_w)[0], 100.0 / factor)
    assert not course.live.limited


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.floats(250.0, 680.0),
    st.floats(0.2, 8.0),
    st.sampled_from((0.002, 0.01, 0.02)),
    st.sampled_from(("none", "phase", "pauses", "absent", "stuck", "jumps")),
    st.integers(0, 2**31),
)
def test_whole_job_stays_within_its_bound_and_one_window(
    natural_w: float, steepness: float, noise: float, fault: str, seed: int
) -> None:
    """The time that limits cost a job, search included, whatever happens on the way; the limit returns at its end."""
    rng, at, course = np.random.default_rng(seed), response(natural_w, steepness), Course()
    free = at(BASELINE_W)[1]
    from_window, lost, speed = int(rng.integers(4, 60)), 0.0, 1.0
    for number in range(1, 81):
        power_w, slowdown = at(course.live.limit_w)
        lost += 1.0 - free / slowdown
        assert lost <= (1.0 - 1.0 / (GOAL.max_slowdown * (1.0 + GOAL.tolerance))) * number + 1.0
        if fault == "phase" and number == from_window:
            speed = float(rng.uniform(0.4, 2.0))
        paused = fault == "pauses" and rng.random() < 0.1
        progress: float | None = 100.0 / slowdown * speed * float(np.exp(rng.normal(0.0, noise)))
        if number >= from_window:
            if fault == "absent":
                progress = None
            elif fault == "stuck":
                progress = course.live.last_progress
            elif fault == "jumps" and rng.random() < 0.3:
                progress = (progress or 0.0) * 3.0
        course.window(
            power_w * (0.9 if paused else 1.0), progress if progress is None else progress * (0.8 if paused else 1.0)
        )
    for _ in range(STUCK_REPEATS + 1):
        course.window(power_w, None)
    assert not course.live.limited


Lie = Callable[[float, int], float | None]
"""What a program says of its progress, by the truth and the number of the window."""
LIES: dict[str, Lie] = {
    "counts time": lambda truth, number: 100.0,
    "counts ever more": lambda truth, number: 100.0 * 1.01**number,
    "hides half": lambda truth, number: 100.0 * (truth / 100.0) ** 0.5,
    "hides most": lambda truth, number: 100.0 * (truth / 100.0) ** 0.1,
    "gains by limits": lambda truth, number: 100.0 * (100.0 / truth),
    "starts to lie": lambda truth, number: truth if number < 12 else 100.0,
    "starts again": lambda truth, number: None if number % 9 == 0 else 100.0,
    "runs backwards": lambda truth, number: -100.0 if number % 7 == 0 else 100.0,
}


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.floats(250.0, 680.0),
    st.floats(0.2, 8.0),
    st.sampled_from((0.0, 0.002, 0.01, 0.02)),
    st.sampled_from(sorted(LIES)),
    st.integers(0, 2**31),
)
def test_a_lie_that_counters_contradict_costs_a_job_no_more_than_its_bound_and_one_window(
    natural_w: float, steepness: float, noise: float, lie: str, seed: int
) -> None:
    rng, at, course = np.random.default_rng(seed), response(natural_w, steepness), Course()
    free, lost = at(BASELINE_W)[1], 0.0
    for number in range(1, 51):
        power_w, slowdown = at(course.live.limit_w)
        lost += 1.0 - free / slowdown
        assert lost <= (1.0 - 1.0 / (GOAL.max_slowdown * (1.0 + GOAL.tolerance))) * number + 1.0
        truth, jitter = 100.0 * free / slowdown, np.exp(rng.normal(0.0, noise, 2)).tolist()
        told = LIES[lie](truth, number)
        course.window(power_w, told and told * jitter[0], 0.4 * truth / 100.0 * jitter[1])


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.floats(250.0, 680.0), st.floats(0.2, 8.0), st.sampled_from((0.0, 0.002, 0.02)), st.sampled_from(sorted(LIES)))
def test_a_lie_without_counters_leads_to_no_limit_at_which_most_jobs_are_slowed_beyond_their_bound(
    natural_w: float, steepness: float, noise: float, lie: str
) -> None:
    rng, at, course = np.random.default_rng(1), response(natural_w, steepness), Course()
    for number in range(1, 51):
        power_w, slowdown = at(course.live.limit_w)
        truth = 100.0 * at(BASELINE_W)[1] / slowdown
        told = LIES[lie](truth, number)
        course.window(power_w, told and told * float(np.exp(rng.normal(0.0, noise))))
        assert course.live.limit_w >= 0.99 * LOWEST_UNVOUCHED * natural_w


def test_a_lie_leads_no_deeper_after_a_time_without_work() -> None:
    at, course = response(600.0, 1.0), Course()
    for _ in range(10):
        course.window(120.0, None)  # a context is open, data is loaded
    for number in range(50):
        course.window(at(course.live.limit_w)[0], 100.0 + 0.01 * (number % 2))
        assert course.live.limit_w >= LOWEST_UNVOUCHED * 600.0


@settings(max_examples=25, deadline=None, derandomize=True)
@given(JOBS, st.sampled_from((0.003, 0.01, 0.02)), st.integers(0, 2**31), st.booleans())
def test_an_honest_job_is_believed_through_phases(
    at: Callable[[float], tuple[float, float]], noise: float, seed: int, counts: bool
) -> None:
    rng, course, speed, traffic = np.random.default_rng(seed), Course(), 1.0, 0.4
    for number in range(60):
        if number == 25:  # another phase: other steps, which move other data
            speed, traffic = float(rng.uniform(0.5, 2.0)), float(rng.uniform(0.1, 0.8))
        power_w, slowdown = at(course.live.limit_w)
        jitter = np.exp(rng.normal(0.0, noise, 2)).tolist()
        course.window(power_w, 100.0 * speed / slowdown * jitter[0], traffic / slowdown * jitter[1] if counts else None)
        # At the change itself it may be doubted, and is measured anew.
        assert course.live.failures <= (number >= 25)
    assert course.live.problem == ""


def test_a_job_that_stands_while_it_counts_is_withdrawn_with_the_reason() -> None:
    at = response(500.0, 1.0)
    course = searched(at, np.exp(np.random.default_rng(1).normal(0.0, 0.002, 200)))
    assert course.live.limited
    for number in range(6):
        # Idle power, and as many steps as ever.
        course.window(80.0 if course.live.limited else 500.0, 100.0 + 0.1 * number)
    assert course.live.problem == Reason.CONTRADICTED
    assert isinstance(course.live.step, Hold)
    assert (course.live.step.reason, course.live.limited) == (Reason.CONTRADICTED, False)


@settings(max_examples=30, deadline=None)
@given(JOBS, NOISE, st.integers(3, 12))
def test_job_that_ends_in_mid_trial_leaves_nothing_to_the_next_on_its_gpu(
    at: Callable[[float], tuple[float, float]], noise: np.ndarray, windows: int
) -> None:
    course = Course()
    for jitter in noise[:windows]:
        course.honest(at, jitter)
    # The next job on the GPU is another state, which begins at the GPU's own limit and knows no window.
    other = LiveJob.found(job(course.live.limit_w), None)
    assert (other.limited, other.limit_w, other.trials.windows) == (False, BASELINE_W, ())
    # A pod of the same workload that takes over the GPU does not inherit the window that ran.
    pod = ("ml", "train-1")
    taken = JobGpus(frozenset({pod}), (("node", "GPU-0", pod),), BASELINE_W, MIN_W, course.live.limit_w)
    assert course.live.observed(taken, course.now_s).due_s(PACE) is None


def test_limit_that_does_not_come_into_force_is_withdrawn_and_given_up() -> None:
    at = response(500.0, 1.0)
    course = searched(at, np.exp(np.random.default_rng(1).normal(0.0, 0.002, 200)))
    for jitter in np.exp(np.random.default_rng(2).normal(0.0, 0.002, 60)):
        if course.live.limited:
            # One of several GPUs keeps another limit: nothing can be measured, and nothing may stay.
            course.live = course.live.observed(job(None), course.now_s)
            course.now_s += PATIENCE_S + 1.0
            course.live = course.live.observed(job(None), course.now_s)
            assert not course.live.limited
        course.honest(at, jitter)
    assert course.live.failures == MAX_FAILURES
    assert not course.live.limited


def test_a_job_that_stands_still_for_a_while_has_its_limit_back_each_time_it_goes_on() -> None:
    at, course = response(500.0, 1.0), Course()
    noise = iter(np.exp(np.random.default_rng(1).normal(0.0, 0.002, 400)).tolist())
    for _ in range(2 * MAX_FAILURES):
        while not (isinstance(course.live.step, Hold) and course.live.limited):
            course.honest(at, next(noise))
        for _ in range(3):
            course.window(120.0, 0.0)  # an evaluation, or data that loads: its processes keep a context
            assert not course.live.limited


def test_a_limit_under_which_a_job_makes_no_progress_at_all_is_given_up() -> None:
    at, course = response(500.0, 1.0), Course()
    for number in range(60):
        course.window(at(course.live.limit_w)[0], 0.0 if course.live.limited else 100.0 + 0.01 * (number % 2))
    assert (course.live.failures, course.live.limited) == (MAX_FAILURES, False)


def test_limit_is_withdrawn_where_pods_come_and_go_faster_than_windows_end() -> None:
    course = searched(response(500.0, 1.0), np.exp(np.random.default_rng(1).normal(0.0, 0.002, 200)))
    assert course.live.limited
    began_s = course.now_s
    for number in range(20):
        course.now_s += PACE.window_s / 2.0
        pod = ("ml", f"train-{number}")
        now = JobGpus(frozenset({pod}), (("node", "GPU-0", pod),), BASELINE_W, MIN_W, course.live.limit_w)
        course.live = course.live.observed(now, course.now_s)
        assert not course.live.limited or course.now_s - began_s <= PATIENCE_S
    assert not course.live.limited


def test_earlier_run_is_tried_first_and_held_after_one_check() -> None:
    at = response(500.0, 1.0)
    noise = np.exp(np.random.default_rng(1).normal(0.0, 0.002, 400))
    first = searched(at, noise)
    second = Course(start_w=first.live.limit_w)
    used = [second.honest(at, jitter) for jitter in noise[:14]]
    assert set(used) == {BASELINE_W, first.live.limit_w}
    assert second.live.limit_w == first.live.limit_w


def test_pods_that_come_begin_a_new_window() -> None:
    course = Course()
    course.live = course.live.observed(job(BASELINE_W), 0.0)
    other = ("ml", "train-1")
    more = JobGpus(
        frozenset({POD, other}), (("node", "GPU-0", POD), ("node", "GPU-1", other)), BASELINE_W, MIN_W, BASELINE_W
    )
    course.live = course.live.observed(more, 100.0)
    assert course.live.due_s(PACE) is None
    assert course.live.observed(more, 101.0).due_s(PACE) == 101.0 + WINDOW_S


class Bounded(Course):
    """A job on a node with a power budget; the agent puts the lower of limit and ceiling into force."""

    def under(self, ceiling_w: float, at: Callable[[float], tuple[float, float]], jitter: float) -> None:
        """One window's time under a ceiling."""
        lowest_w = max(ceiling_w, MIN_W)  # devices clamp
        for passed_s in (0.0, WINDOW_S):
            self.now_s += passed_s
            self.live = self.live.observed(job(min(self.live.limit_w, lowest_w), ceiling_w), self.now_s)
        due_s = self.live.due_s(PACE)
        if due_s is not None and due_s <= self.now_s:
            power_w, slowdown = at(min(self.live.limit_w, lowest_w))
            self.live = self.live.measured(power_w, 100.0 / slowdown * jitter, POOLED, GOAL, self.now_s)


CEILINGS_W = st.sampled_from((math.inf, 650.0, 550.0, 420.0, 150.0))


@settings(max_examples=40, deadline=None)
@given(JOBS, NOISE, st.lists(CEILINGS_W, max_size=30), CEILINGS_W)
def test_search_beneath_a_budget_counts_no_window_under_a_tighter_ceiling_and_keeps_the_bound(
    at: Callable[[float], tuple[float, float]], noise: np.ndarray, ceilings_w: list[float], at_last_w: float
) -> None:
    course = Bounded()
    for number, ceiling_w in enumerate([*ceilings_w, *[at_last_w] * 120]):
        before, lowest_w = course.live, max(ceiling_w, MIN_W)
        course.under(ceiling_w, at, float(noise[number]))
        if len(course.live.trials.windows) > len(before.trials.windows):
            assert course.live.trials.windows[-1].limit_w <= lowest_w
        # What is asked for is a limit of the search, and full power beneath the ceiling is its baseline.
        assert course.live.limit_w in course.live.job.limits_w
        assert course.live.job.baseline_w >= min(lowest_w, BASELINE_W)
        if number >= len(ceilings_w) + 2 and isinstance(course.live.step, Hold) and course.live.since_s is not None:
            break
    assert isinstance(course.live.step, Hold)
    slowdown = at(min(course.live.limit_w, max(at_last_w, MIN_W)))[1] / at(min(BASELINE_W, max(at_last_w, MIN_W)))[1]
    assert slowdown <= GOAL.max_slowdown * (1.0 + GOAL.tolerance) * 1.01


def held_at_full_power() -> Course:
    course = searched(response(500.0, 1.0), np.exp(np.random.default_rng(1).normal(0.0, 0.002, 200)))
    assert course.live.limited
    return course


def test_a_ceiling_above_a_held_limit_changes_nothing() -> None:
    course = held_at_full_power()
    course.live = course.live.observed(job(course.live.limit_w, course.live.limit_w + 10.0), course.now_s)
    assert course.live.since_s is not None
    assert course.live.job.baseline_w == BASELINE_W


def test_a_ceiling_below_a_held_limit_stops_the_window_and_is_no_failure() -> None:
    course = held_at_full_power()
    held, ceiling_w = course.live, course.live.limit_w - 50.0
    under, free = job(ceiling_w, ceiling_w), job(held.limit_w)
    paused = held.observed(under, course.now_s)
    assert (paused.limit_w, paused.since_s) == (held.limit_w, None)
    # A dip between two looks leaves the limit in force as it was, but the ceiling tells.
    assert held.observed(replace(free, ceiling_w=ceiling_w), course.now_s).since_s is None
    # It is back in time: the search goes on with what it knew.
    again = paused.observed(free, course.now_s + 60.0)
    assert (again.limit_w, again.since_s, again.trials) == (held.limit_w, course.now_s + 60.0, held.trials)
    late = paused.observed(replace(under, ceiling_w=math.inf), course.now_s + PATIENCE_S + 1.0)
    assert (late.limit_w, late.failures, late.trials.start_w) == (BASELINE_W, 0, held.limit_w)
    # It stays: the search begins anew beneath it, then above it again, where the limit that was held is tried first.
    anew = paused.observed(under, course.now_s + PATIENCE_S + 1.0)
    assert (anew.limit_w, anew.limited, anew.failures, anew.trials.windows) == (ceiling_w, False, 0, ())
    lifted = anew.observed(free, course.now_s + PATIENCE_S + 2.0)
    assert (lifted.limit_w, lifted.trials.start_w) == (BASELINE_W, held.limit_w)


def test_a_ceiling_that_rises_above_the_baseline_beneath_it_begins_anew_at_once() -> None:
    live = LiveJob.found(job(500.0, 500.0), None)
    assert (live.limit_w, live.limited) == (500.0, False)
    assert live.observed(job(501.0, 501.0), 0.0).limit_w == 500.0  # devices round
    risen = replace(live, limit_w=400.0, failures=MAX_FAILURES).observed(job(400.0, 600.0), 1.0)
    assert (risen.limit_w, risen.limited, risen.failures) == (600.0, False, MAX_FAILURES)


def test_a_ceiling_below_what_devices_accept_counts_as_their_lowest_limit() -> None:
    live = LiveJob.found(job(MIN_W, 1.0), None)
    assert (live.limit_w, live.job.limits_w) == (MIN_W, [MIN_W])
    assert live.observed(job(MIN_W, 1.0), 5.0).since_s == 5.0
