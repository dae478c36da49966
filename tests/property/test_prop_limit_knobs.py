"""The search over both knobs: clocks where power limits do not reach, one knob at a time, the bound plus one window."""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.domain.capping.choice import Goal, Hold, Reason, Trial
from joulie.domain.capping.knobs import CLOCK_SHARES, TunedJob
from joulie.domain.capping.live import NO_PROGRESS, NOT_IN_FORCE, PATIENCE_S, JobClocks, JobGpus, Pace
from joulie.domain.capping.prior import POOLED

BASELINE_W, LARGEST_HZ = 700.0, 1.98e9
PACE = Pace()
WINDOW_S = PACE.settling_s + PACE.window_s
GOAL = Goal(1.05)
POD = ("ml", "train-0")


@dataclass
class Job:
    """A job on one GPU: what it draws and how much slower it is under a power limit and a clock.

    Attributes:
        natural_w: power without limits, W.
        min_w: smallest power limit of its GPU, W.
        clock_bound: share of its time that stretches as the clock falls.
        dynamic: share of its power that falls with the third power of the clock.
    """

    natural_w: float
    min_w: float = 200.0
    clock_bound: float = 0.1
    dynamic: float = 0.6

    def at(self, limit_w: float, share: float) -> tuple[float, float]:
        """Power (W) and slowdown."""
        short = max(0.0, math.log(1.1 * self.natural_w / limit_w))
        power_w = min(self.natural_w * (1.0 - self.dynamic * (1.0 - share**3)), 0.97 * limit_w)
        return power_w, math.exp(short**2) * (1.0 - self.clock_bound + self.clock_bound / share)


@dataclass
class Course:
    """A job over time; the agent puts each limit into force at once, and locks clocks to steps of 15 MHz."""

    job: Job
    start_share: float | None = None
    obeys: bool = True
    clocks: bool = True
    now_s: float = 0.0
    tuned: TunedJob = field(init=False)

    def __post_init__(self) -> None:
        self.tuned = TunedJob.found(self.gpus(), None, self.start_share)

    def gpus(self, ceiling_w: float = math.inf) -> JobGpus:
        limit_w, share = (self.tuned.limit_w, self.tuned.clock_share) if hasattr(self, "tuned") else (BASELINE_W, 1.0)
        locked_hz = share * LARGEST_HZ // 15e6 * 15e6 if share < 1.0 else LARGEST_HZ
        in_force_hz = locked_hz if self.obeys or share == 1.0 else None
        clocks = JobClocks(LARGEST_HZ, in_force_hz) if self.clocks else None
        limits_w = min(limit_w, ceiling_w)
        return JobGpus(
            frozenset({POD}), (("n", "GPU-0", POD),), BASELINE_W, self.job.min_w, limits_w, ceiling_w, clocks
        )

    def look(self, after_s: float = 0.0, ceiling_w: float = math.inf) -> None:
        self.now_s += after_s
        self.tuned = self.tuned.observed(self.gpus(ceiling_w), self.now_s)

    def window(
        self, jitter: float = 1.0, *, progress: float | None = None, silent: bool = False, counts: bool = False
    ) -> tuple[float, float]:
        """One whole window; returns the power limit (W) and the clock (share) that it was under."""
        under = self.tuned.limit_w, self.tuned.clock_share
        assert under[0] == BASELINE_W or under[1] == 1.0, "never both knobs at once"
        self.look()
        self.look(WINDOW_S)
        if (due_s := self.tuned.due_s(PACE)) is None or due_s > self.now_s:
            return under
        power_w, slowdown = self.job.at(*under)
        told = None if silent else progress or 100.0 / slowdown * jitter
        counted = 0.4 / slowdown if counts else None
        self.tuned = self.tuned.measured(power_w, told, POOLED, GOAL, self.now_s, counted_per_s=counted)
        return under

    def run(self, windows: int, noise: float = 0.002, seed: int = 1) -> list[tuple[float, float]]:
        rng = np.random.default_rng(seed)
        return [self.window(float(np.exp(rng.normal(0.0, noise)))) for _ in range(windows)]


@pytest.mark.parametrize(("natural_w", "min_w"), [(180.0, 690.0), (300.0, 400.0)])
def test_a_clock_is_found_where_no_power_limit_reaches(natural_w: float, min_w: float) -> None:
    course = Course(Job(natural_w, min_w))
    windows = course.run(20)
    assert list(dict.fromkeys(share for _, share in windows)) == [1.0, 0.9, 0.8, 0.7]
    held = course.tuned.active.step
    assert isinstance(held, Hold)
    assert (course.tuned.clock_share, course.tuned.max_sm_hz) == (0.7, 0.7 * LARGEST_HZ)
    assert held.saving is not None
    assert held.saving > 0.3
    assert held.slowdown is not None
    assert held.slowdown <= GOAL.max_slowdown


@pytest.mark.parametrize("seed", range(12))
def test_no_power_limit_is_tried_or_held_for_what_noise_seems_to_save(seed: int) -> None:
    course = Course(Job(natural_w=150.0))
    assert {limit_w for limit_w, _ in course.run(20, noise=1e-6, seed=seed)} == {BASELINE_W}
    assert course.tuned.clock_share in {0.6, 0.7}


def test_steps_end_where_the_bound_may_be_exceeded() -> None:
    course = Course(Job(natural_w=180.0, min_w=690.0, clock_bound=0.42))
    windows = course.run(60, noise=0.01)
    assert min(share for _, share in windows) == 0.9, "slowdown 1.047: not surely within 1.05"
    assert course.tuned.clock_share == 0.9


def test_a_job_bound_by_the_clock_returns_to_the_largest_after_two_windows() -> None:
    course = Course(Job(natural_w=180.0, min_w=690.0, clock_bound=1.0))
    windows = course.run(40)
    assert [share for _, share in windows].count(0.9) == 2  # into the first one a checkpoint may have fallen
    assert (course.tuned.clock_share, course.tuned.limit_w, course.tuned.spent) == (1.0, BASELINE_W, True)


def test_a_lie_under_a_clock_is_kept_as_the_reason_of_full_power() -> None:
    course = Course(Job(natural_w=180.0, min_w=690.0, clock_bound=1.0))
    under = [course.window(progress=100.0 + 0.1 * number, counts=True) for number in range(40)]
    assert min(share for _, share in under) < 1.0
    held = course.tuned.active.step
    assert isinstance(held, Hold)
    assert (held.reason, held.limit_w) == (Reason.CONTRADICTED, BASELINE_W)
    assert set(under[20:]) == {(BASELINE_W, 1.0)}


def test_power_limits_that_reach_are_not_given_up() -> None:
    course = Course(Job(natural_w=600.0))
    windows = course.run(60)
    assert {share for _, share in windows} == {1.0}
    assert course.tuned.limit_w < BASELINE_W


@pytest.mark.parametrize(("clock_bound", "knob"), [(0.1, "clock"), (0.9, "power")])
def test_the_knob_that_saves_more_is_held_where_the_smallest_limit_was(clock_bound: float, knob: str) -> None:
    course = Course(Job(natural_w=300.0, min_w=280.0, clock_bound=clock_bound))
    windows = course.run(80)
    assert min(limit_w for limit_w, _ in windows) == 280.0
    assert min(share for _, share in windows) < 1.0
    assert (course.tuned.clock_share < 1.0) == (knob == "clock")
    assert (course.tuned.limit_w < BASELINE_W) == (knob == "power")


def test_without_the_second_knob_nothing_changes() -> None:
    course = Course(Job(natural_w=180.0), clocks=False)
    assert {share for _, share in course.run(40)} == {1.0}


def test_the_next_run_starts_at_the_clock_that_was_held() -> None:
    course = Course(Job(natural_w=180.0), start_share=0.7)
    windows = course.run(15)
    assert {share for _, share in windows} == {1.0, 0.7}
    assert windows[3] == (BASELINE_W, 0.7)
    assert course.tuned.clock_share == 0.7


def test_a_lock_that_is_not_in_force_is_withdrawn_and_not_tried_again() -> None:
    course = Course(Job(natural_w=180.0, min_w=690.0), obeys=False)
    course.run(3)
    assert course.tuned.clock_share == 0.9
    course.look(PATIENCE_S + 1.0)
    assert (course.tuned.clock_share, course.tuned.active.problem) == (1.0, NOT_IN_FORCE)
    assert set(course.run(40)) == {(BASELINE_W, 1.0)}
    assert course.tuned.active.problem == ""


def test_no_window_at_the_own_limit_reaches_back_to_a_clock_that_was_withdrawn() -> None:
    course = Course(Job(natural_w=180.0, min_w=690.0))
    course.run(20)
    assert course.tuned.clock_share == 0.7
    course.window(silent=True)
    assert course.tuned.clock_share == 1.0
    course.look(1.0)
    due_s = course.tuned.due_s(PACE)
    assert due_s is None or due_s >= course.now_s + WINDOW_S


def test_no_window_at_the_own_limit_begins_before_a_clock_is_reset() -> None:
    course = Course(Job(natural_w=180.0, min_w=690.0))
    course.run(20)
    locked = course.gpus()
    course.window(silent=True)
    course.tuned = course.tuned.observed(locked, course.now_s)
    assert course.tuned.due_s(PACE) is None
    course.look(10.0)
    assert course.tuned.due_s(PACE) == course.now_s + WINDOW_S


def test_a_clock_outlives_a_time_without_work() -> None:
    course = Course(Job(natural_w=180.0))
    course.run(20)
    assert course.tuned.clock_share < 1.0
    course.tuned = course.tuned.measured(120.0, 0.0, POOLED, GOAL, course.now_s)
    assert course.tuned.clock_share == 1.0
    course.window(progress=100.1)
    assert course.tuned.clock_share < 1.0


def test_a_gpu_that_loses_the_knob_loses_its_clock() -> None:
    course = Course(Job(natural_w=180.0))
    course.run(40)
    course.clocks = False
    course.look()
    assert (course.tuned.max_sm_hz, course.tuned.clock) == (None, None)


def test_a_budget_ends_the_search_for_a_clock_and_it_is_tried_first_afterwards() -> None:
    course = Course(Job(natural_w=180.0))
    course.run(40)
    held = course.tuned.clock_share
    assert held < 1.0
    for _ in range(3):
        course.look(PATIENCE_S, ceiling_w=400.0)
    assert (course.tuned.clock_share, course.tuned.limit_w, course.tuned.start_share) == (1.0, 400.0, held)


def test_a_budget_that_is_low_for_a_moment_costs_a_clock_no_more_than_its_window() -> None:
    course = Course(Job(natural_w=180.0))
    course.run(40)
    held = course.tuned.clock_share
    course.look(10.0, ceiling_w=400.0)
    assert (course.tuned.clock_share, course.tuned.due_s(PACE)) == (held, None)
    course.look(10.0)
    assert course.tuned.due_s(PACE) == course.now_s + WINDOW_S


jobs = st.builds(Job, st.floats(100.0, 680.0), st.sampled_from((200.0, 400.0, 690.0)), st.floats(0.0, 1.0))


@settings(max_examples=60, deadline=None)
@given(
    jobs,
    st.sampled_from((0.002, 0.01, 0.02)),
    st.sampled_from(("none", "absent", "stuck", "slower", "disobeys")),
    st.integers(0, 2**31),
)
def test_a_job_stays_within_its_bound_and_one_window_for_each_knob(
    job: Job, noise: float, fault: str, seed: int
) -> None:
    rng, course, lost = np.random.default_rng(seed), Course(job), 0.0
    free = job.at(BASELINE_W, 1.0)[1]
    from_window = int(rng.integers(4, 60))
    for number in range(1, 81):
        limit_w, share = course.tuned.limit_w, course.tuned.clock_share
        slowdown = job.at(limit_w, share)[1]
        lost += 1.0 - free / slowdown
        assert lost <= (1.0 - 1.0 / (GOAL.max_slowdown * (1.0 + GOAL.tolerance))) * number + 1.0
        hit = number >= from_window
        course.obeys = not (hit and fault == "disobeys")
        if hit and fault == "slower":
            course.job = job = replace(job, clock_bound=1.0)
        stuck = course.tuned.active.last_progress if hit and fault == "stuck" else None
        course.window(float(np.exp(rng.normal(0.0, noise))), progress=stuck, silent=hit and fault == "absent")
        if hit and fault == "absent":
            assert not course.tuned.limited
            assert course.tuned.active.problem in {"", NO_PROGRESS}


@settings(max_examples=60, deadline=None)
@given(jobs, st.lists(st.tuples(*[st.none() | st.floats(allow_nan=True, allow_infinity=True)] * 2), max_size=60))
def test_any_signal_leaves_limits_of_the_range_and_one_knob(
    job: Job, windows: list[tuple[float | None, float | None]]
) -> None:
    course = Course(job)
    course.run(20)
    for power_w, progress in windows:
        course.look(WINDOW_S)
        course.tuned = course.tuned.measured(power_w, progress, POOLED, GOAL, course.now_s)
        assert course.tuned.limit_w in course.tuned.job.limits_w
        assert min(abs(course.tuned.clock_share - share) for share in CLOCK_SHARES) < 1e-3
        assert course.tuned.limit_w == BASELINE_W or course.tuned.clock_share == 1.0
        if progress is None or not progress > 0.0:
            assert not course.tuned.limited
    assert course.tuned.power.step is None or isinstance(course.tuned.power.step, Trial | Hold)
