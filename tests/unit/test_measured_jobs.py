"""Jobs of sweeps on simulated GPUs: what they draw and do, and what their accounts say."""

import numpy as np
import pytest

from joulie.domain.capping.measurements import Sweep
from joulie_lab.simulation.live.measured_jobs import PHASES, STEPS, MeasuredJob, Noise

SWEEP = Sweep(np.array([300.0, 200.0, 100.0]), np.array([10.0, 11.0, 20.0]), np.array([240.0, 195.0, 100.0]))
QUIET = Noise(0.0)


def after(job: MeasuredJob, limit_w: float, seconds: int, step_s: float = 5.0) -> MeasuredJob:
    for _ in range(int(seconds / step_s)):
        job.at(job.account.time_s)
        job.did(step_s, *job.operate(limit_w))
    return job


def quiet(seed: int = 1) -> MeasuredJob:
    return MeasuredJob("job", SWEEP, seed, QUIET)


@pytest.mark.parametrize(
    ("limit_w", "power_w", "time_s"), [(300.0, 240.0, 10.0), (200.0, 195.0, 11.0), (50.0, 100.0, 20.0)]
)
def test_response_is_that_of_the_sweep(limit_w: float, power_w: float, time_s: float) -> None:
    power, rate = quiet().response(limit_w)
    assert (power, rate) == (pytest.approx(power_w), pytest.approx(10.0 / time_s))


def test_between_measured_limits_it_is_between_their_values() -> None:
    power, rate = quiet().response(150.0)
    assert 100.0 < power < 195.0
    assert 0.5 < rate < 10.0 / 11.0


def test_account_of_a_job_without_a_limit_saves_nothing() -> None:
    account = after(MeasuredJob("job", SWEEP, 3), 300.0, 4 * 3600).account
    assert account.free_time_s == pytest.approx(account.time_s)
    assert account.free_energy_j == pytest.approx(account.energy_j)


def test_account_under_a_limit_is_that_of_the_sweep_outside_of_other_phases() -> None:
    account = after(quiet(), 200.0, 8 * 3600).account
    other_s = sum(phase.length_s * 8 * 3600 / phase.every_s for phase in PHASES)
    steps_s = account.time_s - other_s
    assert account.free_time_s == pytest.approx(steps_s / 1.1 + other_s, rel=2e-3)
    assert 1.0 - account.energy_j / account.free_energy_j == pytest.approx(1.0 - 195.0 * 1.1 / 240.0, rel=0.1)


def test_phases_come_without_steps_and_with_their_power() -> None:
    job, seen = quiet(), dict[str, float]()
    for second in range(2 * 3600):
        job.at(float(second))
        power_w, rate = job.operate(300.0)
        assert (rate > 0.0) == (job.phase == STEPS)
        seen[job.phase] = power_w
    assert seen == {STEPS: pytest.approx(240.0), "evaluation": pytest.approx(192.0), "checkpoint": pytest.approx(96.0)}


@pytest.mark.slow
def test_noise_over_a_window_is_what_was_asked_for() -> None:
    job, noise = MeasuredJob("job", SWEEP, 5), Noise(0.01)
    rates = []
    for window in range(400):
        blocks = []
        for block in range(int(noise.over_s / noise.block_s)):
            job.at(window * noise.over_s + block * noise.block_s)
            blocks.append(job.operate(300.0)[1])
        if min(blocks) > 0.0:
            rates.append(np.log(np.mean(blocks)))
    assert np.std(rates) == pytest.approx(0.01, rel=0.15)
