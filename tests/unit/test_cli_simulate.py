"""`joulie simulate` and `joulie scenario` from the command line; the engine's loop is stood in for but once."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from joulie.apps.cli.main import main
from joulie_lab.simulation import runner
from joulie_lab.simulation.engine import EngineResult
from joulie_lab.simulation.results import RunRecord, RunSeries
from joulie_lab.simulation.scenario_files import scenario_text

CSV = "t,len,cpus\n0,600,4\n60,600,8\n"
TABLE = "workload={csv: jobs.csv, columns: {arrival: t, duration: len, cores: cpus}}"


class FakeSession:
    """Stands in for the engine: a constant power that tells the seed."""

    def __init__(self, cluster, jobs, scheduler, *, n_steps, step_s, seed, queue) -> None:
        ones = np.ones(n_steps, dtype=np.int64)
        self.it_w = np.full(n_steps, 5e4 + seed)
        self.series = RunSeries(np.arange(n_steps) * step_s, self.it_w, ones, ones, ones, ones, ones)

    def run(self, on_progress) -> None:
        on_progress(len(self.it_w), len(self.it_w))

    def result(self) -> EngineResult:
        return EngineResult(self.series, 1.0, 0.0, 1.0, None, None, None)


@pytest.fixture
def joulie(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "Session", FakeSession)
    monkeypatch.setattr(runner, "warm_up", lambda: None)
    monkeypatch.setattr(runner, "published_jobs", lambda seed, hours, rate: range(100_000))

    def _joulie(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(list(arguments))
        streams = capsys.readouterr()
        return int(caught.value.code or 0), streams.out, streams.err

    return _joulie


def test_json_has_exactly_the_fields(joulie, tmp_path):
    status, out, err = joulie("simulate", "quick", "--scheduler", "t10,joulie", "--seed", "1,2", "--json", "runs.json")
    assert status == 0
    runs = json.loads((tmp_path / "runs.json").read_text(), parse_constant=pytest.fail)
    assert [(run["scheduler"], run["seed"]) for run in runs] == [("t10", 1), ("joulie", 1), ("t10", 2), ("joulie", 2)]
    assert [list(run) for run in runs] == [[field.name for field in fields(RunRecord)]] * 4
    assert runs[0]["mean_pue"] is None
    assert "quick, seed 1" in out
    assert "wrote runs.json" in err


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_output_forms(joulie, form, read):
    status, out, _ = joulie("simulate", "quick", "--hours", "3", "-o", form)
    assert status == 0
    assert [run["hours"] for run in read(out)] == [3.0, 3.0]


def test_table_shows_differences(joulie):
    _, out, _ = joulie("simulate", "quick", "--seed", "5000")
    assert "55.00 (+0.00 %)" in out


@pytest.mark.slow
def test_all_files(joulie, tmp_path):
    status, _, _ = joulie(
        "simulate", "quick", "--hours", "3", "--cooling", "dx", "--report", "a/r.html", "--plots", "p", "--parquet", "q"
    )
    assert status == 0
    assert "<title>quick" in (tmp_path / "a/r.html").read_text()
    assert (tmp_path / "p/power-42.png").read_bytes().startswith(b"\x89PNG")
    frame = pl.read_parquet(tmp_path / "q/series-joulie-42.parquet")
    assert {"time_s", "it_w", "cooling_w", "room_k", "cop"} <= set(frame.columns)
    assert frame.height == 180
    assert pl.read_parquet(tmp_path / "q/runs.parquet")["scheduler"].to_list() == ["most-allocated", "joulie"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "p", "q"]
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["quik"], "no scenario 'quik', did you mean quick?"),
        (["broken.yaml"], "broken.yaml:12: hours: must be a valid number, got 'long'"),
        (["quick", "--scheduler", "jolie"], "--scheduler: schedulers[0]: unknown scheduler 'jolie'"),
        (["quick", "--seed", "one"], "--seed: 'one' is not a whole number"),
        (["quick", "--hours", "nan"], "Invalid value for '--hours': nan is not a finite number"),
        (["quick", "--cooling", "ice"], "--cooling: cooling: must be none, linear, dx or a mapping"),
        (["quick", "--cooling", "cut.fmu"], "cut.fmu: "),
        (
            ["quick", "--set", TABLE, "--set", "workload.csv=nan.csv"],
            "nan.csv:3: len: 'nan', duration must be a number",
        ),
        (["quick", "--set", TABLE, "--set", "workload.csv=none.csv"], "none.csv: no such file"),
    ],
)
def test_bad_input_is_two_and_leaves_nothing(joulie, tmp_path, arguments, expected):
    (tmp_path / "broken.yaml").write_text(scenario_text("quick").replace("hours: 12", "hours: long"))
    (tmp_path / "cut.fmu").write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "nan.csv").write_text(CSV.replace("60,600", "60,nan"))
    before = sorted(tmp_path.iterdir())
    status, out, err = joulie("simulate", *arguments, "--json", "new/a.json", "--plots", "plots", "--report", "r.html")
    assert (status, out) == (2, "")
    lines = [line for line in err.splitlines() if not line.startswith("[")]
    assert lines[0].startswith(f"joulie: error: {expected}")
    assert all(line.startswith("joulie: error: ") for line in lines)
    assert sorted(tmp_path.iterdir()) == before


def test_an_output_that_cannot_be_written_is_told_before_the_run(joulie, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "Session", lambda *_, **__: pytest.fail("played"))
    (tmp_path / "file").write_text("")
    for option, path in (("--json", "."), ("--json", "file/x.json"), ("--plots", "file")):
        status, _, err = joulie("simulate", "quick", option, path)
        assert status == 2
        assert err.startswith(f"joulie: error: {option} {path}: ")
    status, _, err = joulie("simulate", "quick", "--json", "x", "--report", "x")
    assert "another option writes there already" in err


def test_a_failing_run_leaves_old_files_alone(joulie, tmp_path, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "Session", interrupted)
    (tmp_path / "runs.json").write_text("old")
    status, _, _ = joulie("simulate", "quick", "--json", "runs.json")
    assert status == 130
    assert (tmp_path / "runs.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["runs.json"]


def test_late_jobs_are_told(joulie, tmp_path):
    (tmp_path / "jobs.csv").write_text(CSV + "999999,600,1\n")
    status, _, err = joulie("simulate", "quick", "--set", TABLE)
    assert status == 0
    assert "note: 1 jobs arrive after the first 12 h and are not simulated" in err


def test_scenario_commands(joulie, tmp_path):
    assert "published-2500" in joulie("scenario", "list")[1]
    assert {row["name"]: row["nodes"] for row in json.loads(joulie("scenario", "list", "-o", "json")[1])}[
        "quick"
    ] == 250
    status, text, _ = joulie("scenario", "show", "quick")
    (tmp_path / "mine.yaml").write_text(text)
    assert (status, joulie("scenario", "validate", "mine.yaml")[0]) == (0, 0)
    status, _, err = joulie("scenario", "validate", "mine.yaml", "--set", "hours=0", "--set", "x=1")
    assert (status, len(err.splitlines())) == (2, 2)
    assert json.loads(joulie("scenario", "schema")[1])["title"] == "Scenario"


@pytest.mark.slow
def test_the_real_thing_end_to_end(tmp_path: Path):
    command = [sys.executable, "-m", "joulie", "simulate", "quick", "--cooling", "dx", "--json", "runs.json"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    first, second = json.loads((tmp_path / "runs.json").read_text())
    assert (first["scheduler"], first["jobs"], first["dropped"]) == ("most-allocated", 26826, 11243)
    assert second["mean_kw"] < first["mean_kw"]
    assert 1.0 < first["mean_pue"] < 2.0
