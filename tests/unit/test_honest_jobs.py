"""Whether a search goes on believing jobs that do what they say, as a Prometheus shows them, for a working day."""

import math
from collections import deque

import numpy as np
import pytest

from joulie.domain.capping.choice import Goal
from joulie.domain.capping.live import JobGpus, LiveJob, Pace
from joulie.domain.capping.measurements import Sweep
from joulie.domain.capping.prior import POOLED
from joulie_lab.simulation.live.measured_jobs import MeasuredJob

SCRAPE_S, STEP_S, DAY_S = 15.0, 5.0, 9 * 3600.0
POD = ("team", "train-0")


@pytest.mark.parametrize("seed", range(3))
def test_a_day_of_checkpoints_between_scrapes_makes_no_job_a_liar(seed: int) -> None:
    """A counter read at a scrape tells of the time before it, where a checkpoint may end that the rate does not see."""
    natural_w, limits_w = 300.0, np.arange(320.0, 120.0, -20.0)
    short = np.maximum(0.0, np.log(1.1 * natural_w / limits_w))
    job = MeasuredJob("job", Sweep(limits_w, np.exp(0.5 * short**2), np.minimum(natural_w, 0.97 * limits_w)), seed)
    live, pace, in_force_w = LiveJob.found(_gpus(320.0), None), Pace(), 320.0
    scrapes: deque[tuple[float, float, float, float]] = deque(maxlen=int(pace.window_s / SCRAPE_S))
    work_before, problems = 0.0, set()
    for number in range(1, int(DAY_S / STEP_S)):
        now_s = number * STEP_S
        job.at(now_s)
        power_w, rate = job.operate(in_force_w)
        job.did(STEP_S, power_w, rate)
        if now_s % SCRAPE_S == 0.0:
            work = job.account.work
            scrapes.append((now_s, work, power_w, 0.4 * (work - work_before) / SCRAPE_S))
            work_before = work
        if live.since_s is None:
            live = live.observed(_gpus(in_force_w), now_s)
        if (due_s := live.due_s(pace)) is not None and now_s >= due_s:
            (first_s, first, *_), (last_s, last, *_) = scrapes[0], scrapes[-1]
            power_w, counted = (math.fsum(one[at] for one in scrapes) / len(scrapes) for at in (2, 3))
            live = live.measured(
                power_w, (last - first) / (last_s - first_s), POOLED, Goal(1.05), now_s, counted_per_s=counted
            )
            problems.add(live.problem)
            in_force_w = live.limit_w
    assert problems == {""}
    assert len({window.limit_w for window in live.trials.windows}) > 1, "it has a limit to be believed under"


def _gpus(in_force_w: float) -> JobGpus:
    return JobGpus(frozenset({POD}), (("node", "GPU-1", POD),), 320.0, 120.0, in_force_w)
