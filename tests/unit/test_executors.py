"""Work in processes and on Dask."""

import math
import signal
import sys

import pytest

from joulie_lab.adapters.executors import ExecutorError, in_processes, on_dask


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
