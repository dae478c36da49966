"""Work in processes and on Dask."""

import math
import signal
import sys
from concurrent.futures import CancelledError
from contextlib import nullcontext

import pytest

from joulie_lab.adapters.executors import ExecutorError, in_processes, on_dask
from joulie_lab.apps.experiment.native import NativeWork, play
from joulie_lab.benchmarks.coverage import Work
from joulie_lab.benchmarks.holdout import courses
from joulie_lab.benchmarks.trials import Family, Process, SettingRun, setting_run
from joulie_lab.program.parallel import Executor, executed
from joulie_lab.simulation.experiment.files import load_experiment
from joulie_lab.simulation.experiment.plan import run_keys


def test_one_worker_is_this_process_and_keeps_the_order():
    assert list(in_processes(lambda item: item + 1, [3, 1, 2], 1)) == [4, 2, 3]


def test_no_work_needs_no_workers():
    assert list(in_processes(math.sqrt, [], 4)) == []


@pytest.mark.slow
def test_results_of_several_processes_are_all_there():
    assert sorted(in_processes(math.sqrt, [1.0, 4.0, 9.0], 2)) == [1.0, 2.0, 3.0]


@pytest.mark.slow
def test_a_killed_worker_is_told():
    with pytest.raises(ExecutorError, match="killed"):
        list(in_processes(signal.raise_signal, [signal.SIGKILL] * 2, 2))


def test_dask_that_is_not_installed_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ExecutorError, match=r"pip install 'joulie-lab\[dask\]'"):
        list(on_dask(math.sqrt, [1.0], None, 1))


@pytest.fixture(scope="module")
def dask():
    """Address of a Dask scheduler with two workers, each a process of its own."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        yield cluster.scheduler_address.removeprefix("tcp://")


@pytest.mark.slow
def test_native_runs_of_experiments_and_courses_of_trials_are_the_same_on_dask_workers(dask):
    experiment = load_experiment("quick").model_copy(update={"seeds": (1,), "hours": 0.2, "drain_hours": 0.5})
    work = [NativeWork(experiment.model_dump_json(exclude_defaults=True), key) for key in run_keys(experiment)[:1]]
    trials = [SettingRun(Process({"cpu": Family(6, 2e6, 1.2, 3e5, 1e6, 0.5, 0.6)}, 0.4), "0%, silent meters", 2, 7)]
    there = Executor.parse(f"dask://{dask}", 2)
    assert there.dask
    assert list(executed(courses, [Work("5%", (1,))], there)) == [courses(Work("5%", (1,)))]
    assert list(executed(setting_run, trials, there)) == [setting_run(trials[0])]
    energy_j = {one.key: one.outcome.it_j for one in executed(play, work, there)}
    assert energy_j == {one.key: one.outcome.it_j for one in map(play, work)}


@pytest.mark.slow
def test_what_fails_on_a_dask_worker_fails_here(dask):
    with pytest.raises(ValueError, match="math domain"):
        list(executed(math.sqrt, [-1.0], Executor.parse(f"dask://{dask}", 1)))


def test_a_scheduler_that_does_not_answer_is_told(monkeypatch):
    class Silent:
        @staticmethod
        def Client(_address):
            raise OSError("timed out")

    monkeypatch.setitem(sys.modules, "distributed", Silent)
    with pytest.raises(ExecutorError, match="no Dask scheduler answers at nowhere:1: timed out"):
        list(on_dask(math.sqrt, [1.0], "nowhere:1", 1))


@pytest.mark.parametrize(
    ("lost", "told"), [("worker", "workers died again and again"), ("scheduler", "was lost; run again")]
)
def test_what_dask_lost_in_mid_run_is_told(monkeypatch, lost, told):
    distributed = pytest.importorskip("distributed")
    error = distributed.KilledWorker("run-1", None, 3) if lost == "worker" else CancelledError("run-1")

    class Client(nullcontext):
        def submit(self, _work, _item, **_options):
            return self

        def result(self):
            raise error

    monkeypatch.setattr(distributed, "Client", lambda _address: Client(Client()))
    monkeypatch.setattr(distributed, "as_completed", iter)
    with pytest.raises(ExecutorError, match=told):
        list(on_dask(math.sqrt, [1.0], "nowhere:1", 1))
