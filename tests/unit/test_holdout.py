"""A holdout: what windows left alone at random say, at all looks together, and what follows from it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from joulie.domain.capping.choice import Goal, Hold
from joulie.domain.capping.held_out import NOT_PAYING, HeldOut, Holdout
from joulie.domain.capping.live import MAX_FAILURES, JobGpus, LiveJob
from joulie.domain.capping.prior import POOLED
from joulie.domain.capping.trials import Window
from joulie.domain.trial.holdout import MAX_UNITS, MIN_LEFT_OUT, Effect, Evidence, Expected, left_out
from joulie.domain.units import InvalidQuantityError

SHARE = 0.05
POD = ("ml", "train-0")
JOB = JobGpus(frozenset({POD}), (("node", "GPU-0", POD),), 700.0, 200.0, 700.0)
HOLDOUT = Holdout(SHARE, least_saving=0.01)


def evidence(effect: float, seed: int, units: int = 600, noise: float = 0.015) -> list[Evidence]:
    """What the units of one course say, one after another, as soon as enough are left alone."""
    rng = np.random.default_rng(seed)
    expected, known, course = Expected(rng.normal(effect, 0.01), rng.normal(0.0, 0.01)), Evidence(), []
    for unit in range(units):
        alone = left_out(f"{seed}/{unit}", SHARE)
        outcome = rng.normal(0.0 if alone else effect, noise)
        known = known.added(expected.effect(outcome, SHARE, left_out=alone))
        expected = expected.learned(outcome, left_out=alone)
        if known.bounds is not None:
            course.append(known)
    return course


def test_chance_leaves_the_share_alone_and_says_the_same_again():
    drawn = [left_out(f"ml/Job/train/{second}", SHARE) for second in range(20_000)]
    assert drawn == [left_out(f"ml/Job/train/{second}", SHARE) for second in range(20_000)]
    assert np.mean(drawn) == pytest.approx(SHARE, abs=0.005)
    assert not left_out("any", 0.0)


@pytest.mark.slow
def test_the_interval_holds_at_all_looks_together_and_finds_the_saving():
    effect = math.log(0.92)
    courses = [evidence(effect, seed) for seed in range(60)]
    missed = sum(any(not low <= effect <= high for low, high in (one.bounds for one in known)) for known in courses)
    assert missed <= 6  # 5 % of 60 are 3, and 6 are beyond two standard errors
    last = courses[0][-1].interval
    assert last.low < 0.08 < last.high
    assert last.high - last.low < 0.03


def test_a_wrong_prediction_widens_the_interval_and_does_not_shift_it():
    def known(expected: Expected) -> Evidence:
        found = Evidence()
        for unit in range(4000):
            alone = unit % 20 == 0
            outcome = 0.0 if alone else -0.08
            found = found.added(expected.effect(outcome, SHARE, left_out=alone))
        return found

    right, wrong = known(Expected(-0.08, 0.0)), known(Expected(0.3, -0.4))
    assert right.effect / right.weight == pytest.approx(-0.08)
    assert wrong.effect / wrong.weight == pytest.approx(-0.08)
    assert wrong.square > right.square


def test_evidence_of_several_jobs_adds_up_by_weight():
    one = Evidence().added(Effect(-0.10, 0.01, True, 300.0))
    other = Evidence().added(Effect(-0.02, 0.01, False, 100.0))
    both = one + other
    assert both.effect / both.weight == pytest.approx(-0.08)
    assert (both.units, both.left_out) == (2, 1)
    assert both.interval is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: Expected(0.0, 0.0).effect(math.nan, SHARE, left_out=True),
        lambda: Expected(0.0, 0.0).effect(0.0, 0.0, left_out=True),
        lambda: Expected(0.0, 0.0).effect(0.0, SHARE, left_out=True, weight=0.0),
        lambda: left_out("any", 1.5),
        lambda: Holdout(0.7),
    ],
)
def test_what_is_no_number_of_a_holdout_is_refused(call):
    with pytest.raises(InvalidQuantityError):
        call()


class Job:
    """A running job whose agent puts each limit into force at once; saves by `saving` under any lower limit."""

    def __init__(self, holdout: Holdout, saving: float, seed: int = 1) -> None:
        self.live, self.holdout, self.saving = LiveJob.found(JOB, None), holdout, saving
        self.rng, self.now_s, self.limits_w = np.random.default_rng(seed), 0.0, []

    def window(self) -> None:
        limit_w = self.live.limit_w
        self.live = self.live.observed(replace(JOB, in_force_w=limit_w), self.now_s)
        self.now_s += 210.0
        power_w = 600.0 * (1.0 if limit_w >= 600.0 else 1.0 - self.saving)
        self.measured(power_w * math.exp(self.rng.normal(0.0, 0.004)))
        self.limits_w.append((limit_w, self.live.held_out.latest))

    def measured(self, power_w: float) -> None:
        progress_per_s = 10.0 * math.exp(self.rng.normal(0.0, 0.002))
        self.live = self.live.measured(
            power_w, progress_per_s, POOLED, Goal(1.05), self.now_s, self.holdout, "ml/Job/train"
        )

    def windows(self, count: int) -> "Job":
        for _ in range(count):
            self.window()
        return self


@pytest.mark.slow
def test_a_held_job_is_left_alone_at_random_and_its_saving_is_measured():
    job = Job(HOLDOUT, 0.10).windows(400)
    counted = [(limit_w, effect) for limit_w, effect in job.limits_w if effect is not None]
    assert len(counted) > 300
    assert all(effect.left_out == (limit_w == 700.0) for limit_w, effect in counted)
    assert job.live.held_out.evidence.left_out >= MIN_LEFT_OUT
    assert job.live.held_out.interval.low < 0.10 < job.live.held_out.interval.high
    assert not job.live.held_out.stopped_paying(HOLDOUT)


def test_a_window_that_is_not_measured_costs_a_job_no_evidence():
    job = Job(HOLDOUT, 0.10).windows(60)
    before = job.live.held_out.evidence
    assert before.units > 0
    job.live = job.live.measured(None, None, POOLED, Goal(1.05), job.now_s, HOLDOUT, "ml/Job/train")
    assert job.live.limit_w == 700.0
    assert (job.live.held_out.evidence, job.live.held_out.drawn, job.live.held_out.latest) == (before, None, None)


def test_without_a_holdout_no_window_is_drawn():
    job = Job(Holdout(), 0.10).windows(60)
    assert isinstance(job.live.step, Hold)
    assert all(effect is None for _, effect in job.limits_w)


@pytest.mark.slow
@pytest.mark.parametrize("withdraws", [False, True])
def test_a_limit_that_has_stopped_paying_is_reported_and_withdrawn_where_asked(withdraws):
    holdout = replace(HOLDOUT, share=0.2, withdraws=withdraws)
    job = Job(holdout, 0.10).windows(40)
    held = job.live
    assert isinstance(held.step, Hold)
    # From here on the limit is worth nothing; its evidence is begun anew to keep the course short.
    job.saving, job.live = 0.0, replace(held, held_out=replace(held.held_out, evidence=Evidence()))
    for _ in range(400):
        job.window()
        if job.live.held_out.stopped_paying(holdout) or job.live.problem:
            break
    if withdraws:
        assert (job.live.problem, job.live.failures, job.live.limited) == (NOT_PAYING, MAX_FAILURES, False)
        assert not job.windows(20).live.limited
    else:
        assert not job.live.problem


def test_a_window_under_a_ceiling_is_not_drawn_since_the_job_could_not_be_left_alone():
    job = Job(replace(HOLDOUT, share=0.5), 0.10).windows(40)
    before = job.live.held_out.evidence.units
    bounded = replace(JOB, ceiling_w=690.0)
    for _ in range(20):
        limit_w = job.live.limit_w
        if job.live.left_alone:
            job.window()
            continue
        job.live = job.live.observed(replace(bounded, in_force_w=limit_w), job.now_s)
        job.now_s += 210.0
        job.live = job.live.measured(540.0, 10.0, POOLED, Goal(1.05), job.now_s, job.holdout, "ml/Job/train")
    assert before > 0
    assert job.live.held_out.drawn is None


def test_evidence_begins_anew_after_many_windows_and_the_one_before_is_shown_meanwhile():
    begun = HeldOut(None, 500.0, 600.0, Expected(math.log(54.0), math.log(60.0)))
    weight = MAX_UNITS * 600.0
    full = replace(begun, evidence=Evidence(MAX_UNITS, 50, weight, -0.1 * weight, 1.0), drawn=False)
    after = full.measured(Window(500.0, 540.0, 10.0), HOLDOUT)
    assert after.evidence.units == 1
    assert after.known is full.evidence
    assert after.interval == full.evidence.interval
