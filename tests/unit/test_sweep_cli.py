"""``joulie sweep`` from end to end: interruption and resumption, files and refusals."""

import json
import signal
import subprocess
import sys

import pytest

from joulie.apps.cli.main import main
from joulie_lab.program.parallel import Executor, Work, run_record
from joulie_lab.simulation.scenario import Scenario
from joulie_lab.simulation.scenario_files import load_scenario, shipped_names
from joulie_lab.simulation.sweep import Task

SEEDS = ",".join(map(str, range(30)))
SWEEP = ("sweep", "quick", "--scheduler", "most-allocated,t10", "--seed", SEEDS, "--hours", "4")
N_RUNS = 60


def joulie(*arguments):
    with pytest.raises(SystemExit) as caught:
        main([*map(str, arguments)])
    return caught.value.code


def runs(path):
    document = json.loads(path.read_text())
    return [{key: value for key, value in run.items() if key != "seconds"} for run in document["runs"]]


def lines(path):
    return path.read_bytes().count(b"\n")


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on_and_ends_as_if_nothing_had_been(tmp_path):
    state, resumed, whole = tmp_path / "state.jsonl", tmp_path / "resumed.json", tmp_path / "whole.json"
    command = [sys.executable, "-m", "joulie", *SWEEP, "--jobs", "2", "--state", state, "--json", resumed]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        for line in process.stderr:
            if line.startswith("[5/"):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.returncode == 130
    assert f"of {N_RUNS} runs are stored in {state}" in rest
    assert "Traceback" not in rest
    assert not resumed.exists()
    done = lines(state) - 1
    assert 5 <= done < N_RUNS
    # As if the machine had lost power while the last line was written.
    state.write_bytes(state.read_bytes()[:-20])
    assert joulie(*SWEEP, "--jobs", 1, "--state", state, "--json", resumed) == 0
    assert lines(state) == N_RUNS + 1
    assert joulie(*SWEEP, "--jobs", 1, "--state", tmp_path / "other.jsonl", "--json", whole) == 0
    assert runs(resumed) == runs(whole)


@pytest.mark.slow
def test_processes_find_what_one_process_finds(tmp_path):
    small = ("sweep", "quick", "--seed", "1,2", "--hours", "3", "--baseline", "joulie")
    assert joulie(*small, "--jobs", 1, "--state", tmp_path / "1", "--json", tmp_path / "1.json") == 0
    assert joulie(*small, "--jobs", 2, "--state", tmp_path / "2", "--json", tmp_path / "2.json") == 0
    assert runs(tmp_path / "1.json") == runs(tmp_path / "2.json")
    assert json.loads((tmp_path / "1.json").read_text())["baseline"] == "joulie"


def test_a_finished_sweep_runs_nothing_again(tmp_path, capsys):
    small = ("sweep", "quick", "--seed", "1", "--hours", "3", "--jobs", 1, "--state", tmp_path)
    assert joulie(*small) == 0
    first = capsys.readouterr()
    assert joulie(*small, "--report", tmp_path / "r.html") == 0
    second = capsys.readouterr()
    assert second.out == first.out
    assert "2 of 2 runs are stored" in second.err
    assert "[1/" not in second.err
    assert joulie(*small, "--fresh") == 0
    assert "[1/2]" in capsys.readouterr().err
    assert "</html>" in (tmp_path / "r.html").read_text()


def test_the_published_sweep_is_the_default():
    from joulie_lab.apps.sweep import _load

    published = _load("published-2500", [], [], None, [], None)
    assert published.schedulers[0] == "most-allocated"
    assert (len(published.schedulers), len(published.seeds)) == (10, 8)
    named = _load("published-2500", ["t10", "t15"], ["7"], 2.0, ["seeds=[1]"], "random")
    assert (named.schedulers, named.seeds, named.hours) == (("random", "t10", "t15"), (1,), 2.0)
    assert len(_load("quick", [], [], None, [], None).seeds) == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--scheduler", "nonsense"), "nonsense"),
        (("--baseline", "nonsense"), "nonsense"),
        (("--seed", "one"), "'one' is not a whole number"),
        (("--executor", "moon"), "neither local, dask nor dask://HOST:PORT"),
        (("--executor", "dask://"), "neither local, dask nor dask://HOST:PORT"),
    ],
)
def test_what_cannot_be_is_one_line_and_status_2(tmp_path, capsys, arguments, message):
    assert joulie("sweep", "quick", *arguments, "--state", tmp_path / "s", "--json", tmp_path / "j") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_state_of_another_sweep_is_refused(tmp_path, capsys):
    small = ("sweep", "quick", "--seed", "1", "--jobs", 1, "--state", tmp_path / "s")
    assert joulie(*small, "--hours", 3) == 0
    capsys.readouterr()
    assert joulie(*small, "--hours", 4) == 2
    assert "hours: 3.0 in the file, 4.0 now" in capsys.readouterr().err


@pytest.mark.parametrize("name", shipped_names())
def test_a_scenario_reaches_a_worker_as_it_is(name):
    scenario = load_scenario(name, [] if name == "pai-100k" else ["cooling=dx"])
    assert Scenario.model_validate_json(scenario.model_dump_json(by_alias=True, exclude_unset=True)) == scenario


def test_a_worker_of_another_version_refuses():
    with pytest.raises(RuntimeError, match="install the same"):
        run_record(Work("{}", Task("joulie", 1), version="0.0.0"))


@pytest.mark.parametrize(
    ("text", "executor"),
    [
        ("local", Executor(3)),
        ("dask", Executor(3, dask=True)),
        ("dask://host:8786", Executor(3, dask=True, address="host:8786")),
    ],
)
def test_executors_by_name(text, executor):
    assert Executor.parse(text, 3) == executor
