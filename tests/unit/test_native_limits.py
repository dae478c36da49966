"""Limits of single jobs' GPUs in native runs, searched by the operator's own state machine."""

from dataclasses import replace

import pytest

from joulie.domain.capping.choice import Goal
from joulie_lab.simulation.experiment.outcome import JobEnd, Outcome
from joulie_lab.simulation.job_course import NOISE, seen
from joulie_lab.simulation.native.limits import GpuLimits
from joulie_lab.simulation.native.runtime import run

from .test_native_runtime import HOUR_S, job, setup

DAY_S = 24 * HOUR_S
SETUP = setup(duration_s=2 * DAY_S)
LIMITED = replace(SETUP, gpu_limits=GpuLimits(Goal(1.05)))


def trained(which, **facts) -> Outcome:
    jobs = [job(f"train-{number}", gpus=2, work_s=DAY_S, **facts) for number in range(4)]
    return run(which, jobs)


def busy_j(outcome: Outcome) -> float:
    assert outcome.busy_gpu_j is not None
    return outcome.busy_gpu_j


def lengths(outcome: Outcome) -> list[float]:
    assert all(one.end is JobEnd.COMPLETED for one in outcome.jobs)
    return [float(one.end_s or 0.0) - float(one.start_s or 0.0) for one in outcome.jobs]


def test_a_limit_for_each_job_saves_energy_within_its_slowdown() -> None:
    free, limited = trained(SETUP), trained(LIMITED)
    assert busy_j(limited) < 0.99 * busy_j(free)
    slowdowns = [after / before for before, after in zip(lengths(free), lengths(limited), strict=True)]
    assert max(slowdowns) < 1.06
    assert max(slowdowns) > 1.0


def test_performance_jobs_keep_full_power_unless_they_have_a_goal() -> None:
    free = trained(SETUP, performance=True)
    assert busy_j(trained(LIMITED, performance=True)) == busy_j(free)
    own = replace(SETUP, gpu_limits=GpuLimits(Goal(1.05), performance=Goal(1.02)))
    assert busy_j(trained(own, performance=True)) < busy_j(free)


def test_a_limit_ends_with_its_job() -> None:
    def both(which) -> Outcome:
        first = job("first", gpus=2, work_s=DAY_S)
        return run(which, [first, job("later", 1.5 * DAY_S, gpus=2, work_s=HOUR_S, performance=True)])

    free, limited = both(replace(SETUP, nodes=SETUP.nodes[2:3])), both(replace(LIMITED, nodes=SETUP.nodes[2:3]))
    assert lengths(limited)[1] == pytest.approx(lengths(free)[1])
    assert lengths(limited)[0] > lengths(free)[0]


def test_windows_of_a_job_scatter_around_its_mean_and_are_the_same_again() -> None:
    windows = [seen("job", 600.0 * number, 600.0 * (number + 1)) for number in range(2000)]
    assert windows[7] == seen("job", 4200.0, 4800.0)
    for values in zip(*windows, strict=True):
        mean = sum(values) / len(values)
        assert mean == pytest.approx(1.0, abs=0.005)
        deviation = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
        assert NOISE < deviation < 0.2
