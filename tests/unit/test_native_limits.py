"""Limits of single jobs' GPUs in native runs, searched by the operator's own state machine."""

from dataclasses import replace

import pytest

from joulie.domain.capping.choice import Goal
from joulie_lab.simulation.experiment.outcome import JobEnd, Outcome
from joulie_lab.simulation.job_course import NOISE, seen
from joulie_lab.simulation.native.limits import GpuLimits
from joulie_lab.simulation.native.runtime import run
from joulie_lab.simulation.trace import JobProfile

from .test_native_runtime import HOUR_S, job, setup

pytestmark = pytest.mark.slow

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


def test_the_best_limits_in_hindsight_save_more_than_a_search_within_the_same_bound() -> None:
    free, found, best = trained(SETUP), trained(LIMITED), trained(replace(SETUP, gpu_scheme="best"))
    assert busy_j(best) < busy_j(found) < busy_j(free)
    slowdowns = [after / before for before, after in zip(lengths(free), lengths(best), strict=True)]
    assert 1.0 < max(slowdowns) < 1.0501
    unlimited = trained(replace(SETUP, gpu_scheme="best"), performance=True)
    assert lengths(unlimited) == pytest.approx(lengths(trained(SETUP, performance=True)))
    limited = trained(replace(SETUP, gpu_scheme="best-all"), performance=True)
    assert max(after / before for before, after in zip(lengths(unlimited), lengths(limited), strict=True)) < 1.0201
    assert busy_j(limited) < busy_j(unlimited)


def test_a_node_wide_limit_acts_on_nodes_that_come_near_their_peak_alone() -> None:
    busy = {"profile": JobProfile(0.8, 1.0), "gpu_class": "compute_bound", "gpu_units": 4.0 * DAY_S}
    few, all_gpus = [job("one", gpus=1, work_s=DAY_S)], [job("all", cores=64, gpus=4, work_s=DAY_S, **busy)]
    node_wide = replace(SETUP, gpu_scheme="node-wide")
    assert lengths(run(node_wide, few)) == pytest.approx(lengths(run(SETUP, few)))
    assert lengths(run(node_wide, all_gpus))[0] > 1.01 * lengths(run(SETUP, all_gpus))[0]


def test_what_was_found_for_a_workload_is_known_to_its_next_run() -> None:
    first = job("monday", gpus=2, work_s=HOUR_S * 20.0, owner="nightly")
    second = job("tuesday", DAY_S, gpus=2, work_s=HOUR_S * 5.0, owner="nightly")
    of_second_j = busy_j(run(LIMITED, [first, second])) - busy_j(run(LIMITED, [first]))
    assert of_second_j != pytest.approx(busy_j(run(LIMITED, [second])), rel=1e-5)
    stranger = replace(second, owner="")
    assert busy_j(run(LIMITED, [first, stranger])) - busy_j(run(LIMITED, [first])) == pytest.approx(
        busy_j(run(LIMITED, [stranger])), rel=1e-5
    )


def test_work_on_a_slower_gpu_takes_longer_where_speeds_count() -> None:
    slow = [replace(node, gpu_speed=0.5) for node in SETUP.nodes]
    jobs = [job("train", gpus=2, work_s=HOUR_S, cpu_units=1.0)]
    equal = lengths(run(replace(SETUP, nodes=tuple(slow)), jobs))[0]
    told = lengths(run(replace(SETUP, nodes=tuple(slow), gpu_speeds=True), jobs))[0]
    assert told == pytest.approx(2.0 * equal, rel=1e-6)


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
