"""Whether a search believes jobs that do what they say, and no others, as a Prometheus shows them for a working day."""

import numpy as np
import pytest

from joulie.domain.capping.choice import Reason
from joulie.domain.capping.live import Pace
from joulie.domain.capping.measurements import Sweep
from joulie.domain.capping.plausibility import contradicted
from joulie.domain.capping.trials import Window
from joulie_lab.benchmarks.claims import HONEST_HOURS, LIES, LYING_HOURS, run

NATURAL_W, LIMITS_W = 300.0, np.arange(320.0, 120.0, -20.0)
PACE = Pace()


def job(steepness: float) -> Sweep:
    short = np.maximum(0.0, np.log(1.1 * NATURAL_W / LIMITS_W))
    return Sweep(LIMITS_W, np.exp(steepness * short**2), np.minimum(NATURAL_W, 0.97 * LIMITS_W))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_day_of_pauses_between_scrapes_makes_no_job_a_liar(seed: int) -> None:
    """Pod and exporter are scraped at moments of their own: a checkpoint is seen by one that the other does not see."""
    course = run(job(0.5), seed, HONEST_HOURS)
    assert course.doubted == 0
    assert len({window.limit_w for window in course.live.trials.windows}) > 1, "it has a limit to be believed under"


@pytest.mark.parametrize("said", sorted(LIES))
def test_a_lie_costs_no_more_than_the_bound_and_a_window(said: str) -> None:
    course = run(job(4.0), 1, LYING_HOURS, LIES[said])
    assert course.most_lost_s < PACE.settling_s + PACE.window_s
    assert course.live.problem in {"", Reason.CONTRADICTED}


def test_a_pause_that_counters_show_a_window_later_than_progress_is_no_lie() -> None:
    free = [Window(320.0, 300.0, progress, 0.4) for progress in (1.0, 1.01, 0.99)]
    under = [Window(280.0, 270.0, progress, counted) for progress, counted in ((0.97, 0.39), (0.66, 0.35), (0.9, 0.25))]
    assert not contradicted([*free, *under], 320.0)
    lies = [*under[:1], *(Window(280.0, 270.0, 0.97, 0.25) for _ in range(2))]
    assert contradicted([*free, *lies], 320.0)
