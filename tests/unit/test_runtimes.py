"""How long workloads run, learned from their earlier runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulie.domain.runtimes import LearnedRuntime, Run, Workload, learned_runtime, workload_of

ETL = Workload("team", "Job", "etl")


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("CronJob", "nightly", "nightly"),
        ("Job", "etl", "etl"),
        ("Job", "etl-x7k2p", "etl"),  # generateName
        ("Job", "etl-20261123-0830", "etl"),
        ("Job", "etl-1795421400", "etl"),
        ("Job", "stage-2", "stage-2"),
        ("Job", "etl-tests", "etl-tests"),
        ("PyTorchJob", "train-bv6dd", "train"),
    ],
)
def test_whose_runs_are_alike(kind: str, name: str, expected: str) -> None:
    assert workload_of("team", kind, name) == Workload("team", kind, expected)


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Node"])
def test_services_have_no_runtime(kind: str) -> None:
    assert workload_of("team", kind, "web") is None


def test_of_few_runs_nothing_is_learned_and_then_the_longest_counts() -> None:
    assert learned_runtime([60.0, 70.0], 0.9) is None
    assert learned_runtime([60.0, 70.0, 65.0], 0.9) == LearnedRuntime(70.0, 0.9, 3)
    assert learned_runtime([*[60.0] * 18, 600.0, 900.0], 0.9) == LearnedRuntime(60.0, 0.9, 20)


@pytest.mark.slow
@given(st.lists(st.floats(0.1, 1e6), min_size=3, max_size=60), st.floats(0.01, 1.0))
def test_the_share_of_runs_took_no_longer(durations_s: list[float], quantile: float) -> None:
    learned = learned_runtime(durations_s, quantile)
    assert learned is not None
    assert sum(one <= learned.runtime_s for one in durations_s) >= quantile * len(durations_s) - 1e-9
    assert sum(one < learned.runtime_s for one in durations_s) < quantile * len(durations_s) + 1e-9


def part(started_s: float, ended_s: float, *, finished: bool = True) -> Run:
    return Run("job-uid", ETL, started_s, ended_s, ended_s - started_s, finished)


def test_pods_of_a_job_that_run_beside_each_other_are_one_run() -> None:
    assert part(0.0, 10.0).joined(part(2.0, 12.0)) == Run("job-uid", ETL, 0.0, 12.0, 12.0, True)
    assert part(2.0, 10.0).joined(part(0.0, 12.0)) == Run("job-uid", ETL, 0.0, 12.0, 12.0, True)


def test_time_in_which_a_job_is_suspended_is_no_runtime() -> None:
    suspended = part(0.0, 10.0, finished=False)
    assert suspended.joined(part(100.0, 120.0)) == Run("job-uid", ETL, 0.0, 120.0, 30.0, True)


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e6), st.floats(0.0, 1e6), st.floats(0.0, 1e6))
def test_what_is_said_twice_counts_once(start_s: float, length_s: float, other_s: float, other_length_s: float) -> None:
    joined = part(start_s, start_s + length_s).joined(part(other_s, other_s + other_length_s))
    assert joined.joined(part(other_s, other_s + other_length_s)) == joined
    assert joined.joined(part(start_s, start_s + length_s)) == joined
