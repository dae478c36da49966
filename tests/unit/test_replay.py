"""`joulie replay`: the past as it was, a model that was fitted to one half and judged on the other, and forecasts."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from joulie.adapters.recording_files import Head, RecordingFiles
from joulie.apps.cli import main as joulie
from joulie.domain.recording import NodeRecord, Period, PodRecord
from joulie_lab.apps.replay.run import Question, replay
from joulie_lab.program.parallel import Executor
from joulie_lab.simulation.replay.fit import Hourly, Line, errors, fit, fitted, misfit, resampled
from joulie_lab.simulation.replay.past import Cluster, Use, past_of, predicted_w

START_S = 1_790_000_000.0 // 86400.0 * 86400.0
HOURS = 48
STEP_S = 1800.0
ONE_FAMILY = np.zeros(4, dtype=np.int64)


def node(name, **fields):
    values = {"cpu_model": "AMD EPYC 9654", "sockets": 2, "cores": 192.0, "memory_gib": 512.0}
    return NodeRecord(name, **(values | fields))


def pod(name, on, start_h, end_h, cores=64.0, **fields):
    times = {"arrived_s": START_S + 3600.0 * start_h, "started_s": START_S + 3600.0 * start_h}
    ended = {"ended_s": START_S + 3600.0 * end_h, "exit": "succeeded"}
    return PodRecord(
        f"uid-{name}", "team", name, "Job", name, fields.pop("workload_class", "standard"), cores, 16.0, 0.0, node=on,
        **(times | ended | fields),
    )  # fmt: skip


NODES = [node("a"), node("b"), node("no-cpu", cpu_model=None)]
PERIOD = Period(START_S, START_S + HOURS * 3600.0)


def record(folder: Path, distort=lambda hour, power_w: power_w, missing=lambda hour: False):
    """A recording of two nodes; the plant draws what the model says, distorted."""
    pods = [
        pod(
            f"{name}-{number}",
            name,
            4.0 * number + offset,
            4.0 * number + offset + 2.0,
            cores=32.0 + 16.0 * (number % 5),
        )
        for offset, name in ((0.0, "a"), (1.0, "b"))
        for number in range(11)
    ]
    files = RecordingFiles.create(folder, Head(PERIOD, STEP_S, anonymised=False))
    files.write("nodes", [{"node": one.node, "cpu_model": one.cpu_model, "sockets": one.sockets, "cores": one.cores,
                           "memory_gib": one.memory_gib, "gpus": 0} for one in NODES])  # fmt: skip
    files.write("pods", [{name: getattr(one, name) for name in PodRecord.__slots__} for one in pods])
    cluster = Cluster.of(NODES)
    past = past_of(pods, {one.uid: Use(one.cpu_cores / 2.0, None) for one in pods}, cluster, PERIOD)
    times_s = np.arange(1, HOURS * 2 + 1) * STEP_S
    power_w = predicted_w(cluster, past.runs, times_s, STEP_S)
    for hour, part in enumerate(PERIOD.hours):
        use = [
            {"time_s": part.until_s, "namespace": "team", "pod": one.name, "cpu_cores": one.cpu_cores / 2.0}
            for one in pods
            if one.started_s < part.until_s and one.ended_s > part.from_s
        ]
        files.write("use", use, part)
        rows = [
            {
                "time_s": part.from_s + (step + 1) * STEP_S,
                "node": cluster.names[place],
                "power_w": float(distort(hour, power_w[place, 2 * hour + step])),
            }
            for place in range(2)
            for step in range(2)
            if not missing(hour)
        ]
        files.write("power", rows, part)
    return files


def run(capsys, *arguments):
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        joulie.main(["replay", *map(str, arguments)])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


ASK = ("--policies", "static_partition", "--seeds", "2", "--jobs", "1")


@pytest.mark.slow
def test_a_plant_that_draws_more_is_fitted_and_policies_are_forecast(tmp_path, capsys):
    record(tmp_path / "week", lambda _, power_w: 40.0 + 1.2 * power_w)
    page = tmp_path / "page.html"
    status, out, _ = run(capsys, tmp_path / "week", *ASK, "-o", "json", "--html", page)
    document = json.loads(out)
    assert status == 0
    assert list(document)[1] == "error", "the report begins with the error"
    assert abs(document["error"]["held_out"]["bias"]) < 1e-6
    assert document["error"]["catalogue"]["bias"] < -0.1
    assert document["fit"]["AMD EPYC 9654"] == {"base_w": pytest.approx(40.0), "factor": pytest.approx(1.2)}
    none, partition = document["policies"]
    assert (none["policy"], none["saving"], none["figures"]["unfinished"]) == ("none", None, 0)
    assert partition["work_pct"] < 1.0
    low, high = partition["interval"]
    assert low <= partition["saving"] <= high
    assert "1 nodes are left out" in document["notes"][0]
    text = page.read_text(encoding="utf-8")
    assert text.index("which it was not fitted to") < text.index("Policies on the same arrivals")
    assert len(text) < 100_000
    assert "<script" not in text


@pytest.mark.slow
def test_each_run_says_what_it_cost_and_a_meter_that_falls_silent_is_not_judged(tmp_path):
    files = record(tmp_path / "week", lambda _, power_w: power_w)
    for part in PERIOD.hours[HOURS // 2 :]:
        rows = pl.read_parquet(files._path("power", part)).to_dicts()
        files.write("power", [row for row in rows if row["node"] == "a"], part)
    found = replay(tmp_path / "week", Question(("static_partition",), seeds=1), Executor(1))
    assert [(one.policy, one.events) for one in found.costs] == [("none", 44), ("static_partition", 44)]
    assert all(one.cpu_s > 0.0 and one.peak_mib > 10.0 for one in found.costs)
    assert "costs" not in found.document(), "a document is the same on every machine"
    assert [node for node, _ in found.judged.worst_nodes] == ["a"]


@pytest.mark.slow
def test_a_model_that_misses_the_past_forecasts_nothing(tmp_path, capsys):
    record(tmp_path / "week", lambda hour, power_w: power_w * (1.0 if hour < HOURS / 2 else 1.3))
    page = tmp_path / "page.html"
    status, out, _ = run(capsys, tmp_path / "week", *ASK, "--html", page)
    assert status == 1
    assert out.startswith("No forecast: the model misses the past: its bias is 23.1%, the bound is 3.0%")
    assert "Policies on the same arrivals" not in out
    assert "Nothing is forecast." in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_gaps_are_neither_zero_nor_judged(tmp_path, capsys):
    record(tmp_path / "week", missing=lambda hour: 30 <= hour < 36)
    status, out, _ = run(capsys, tmp_path / "week", *ASK, "-o", "json")
    held_out = json.loads(out)["error"]["held_out"]
    assert status == 0
    assert abs(held_out["bias"]) < 1e-9
    assert held_out["coverage"] == pytest.approx(18 / 24)
    assert [hour for hour, bias in enumerate(held_out["by_hour"]) if bias is None] == list(range(6, 12))


@pytest.mark.slow
def test_wrong_input_is_one_line(tmp_path, capsys):
    record(tmp_path / "week")
    for arguments, problem in (
        ([tmp_path], "not a recording"),
        ([tmp_path / "week", "--policies", "statc_partition"], "statc_partition"),
    ):
        status, _, err = run(capsys, *arguments)
        assert (status, len(err.splitlines())) == (2, 1)
        assert problem in err


def test_past_counts_only_what_ran_on_known_nodes_in_the_period():
    pods = [
        pod("before", "a", -5.0, -1.0),
        pod("across", "a", -1.0, 1.0),
        pod("after", "b", 47.0, 50.0, cores=None),
        pod("elsewhere", "no-cpu", 1.0, 2.0),
    ]
    past = past_of(pods, {"uid-across": Use(32.0, None)}, Cluster.of(NODES), PERIOD)
    across, after = past.runs
    assert (across.start_s, across.end_s, across.job.cpu_units) == (0.0, 3600.0, 32.0 * 3600.0)
    assert (after.start_s, after.end_s) == (47 * 3600.0, 48 * 3600.0)
    assert any("1 pods are left out" in note for note in past.notes)


def hourly(factor, base_w, hours=72, seed=3, noise=0.0):
    rng = np.random.default_rng(seed)
    predicted_w = rng.uniform(200.0, 800.0, (4, hours))
    return Hourly((base_w + factor * predicted_w) * rng.normal(1.0, noise, predicted_w.shape), predicted_w)


def test_fit_finds_base_and_factor_and_leaves_out_what_was_hardly_measured():
    (line,) = fit(hourly(0.9, 55.0), ONE_FAMILY, 1)
    assert line == pytest.approx(Line(55.0, 0.9))
    assert fit(hourly(0.9, 55.0, hours=5), ONE_FAMILY, 1) == [None]


def test_power_that_hardly_changes_gives_a_factor_alone():
    flat = Hourly(np.full((4, 24), 330.0), np.full((4, 24), 300.0))
    assert fit(flat, ONE_FAMILY, 1) == [pytest.approx(Line(0.0, 1.1))]


def test_errors_are_relative_and_signed():
    found = errors(Hourly(np.array([[100.0, 100.0, np.nan]]), np.array([[110.0, 100.0, np.nan]])), 23)
    assert (found.bias, found.cluster_error, found.coverage) == pytest.approx((0.05, 0.05, 2 / 3))
    assert found.by_hour[23] == pytest.approx(0.1)
    assert found.by_hour[0] == 0.0
    with pytest.raises(ValueError, match="nothing to judge"):
        errors(Hourly(np.full((1, 3), np.nan), np.full((1, 3), np.nan)), 0)


def test_resampling_covers_the_fit_and_misfit_sees_a_bend():
    noisy = hourly(0.9, 55.0, noise=0.05)
    factors = [lines[0].factor for lines in resampled(noisy, ONE_FAMILY, 1, np.random.default_rng(1), 50)]
    assert min(factors) < 0.9 < max(factors)
    straight = fitted(hourly(0.9, 55.0), ONE_FAMILY, fit(hourly(0.9, 55.0), ONE_FAMILY, 1))
    assert misfit(straight, ONE_FAMILY, 1) == pytest.approx(0.0, abs=1e-12)
    bent = Hourly(straight.measured_w * (1.0 + straight.predicted_w / 8000.0), straight.predicted_w)
    assert misfit(bent, ONE_FAMILY, 1) > 0.01
