"""The benchmark of deferral: its rules by hand, what it reads, its sample, and what is committed of it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from joulie.apps.cli.main import main
from joulie_lab.adapters.published.errors import PublishedDataError
from joulie_lab.adapters.published.intensity import read_intensity, synthetic_zones
from joulie_lab.apps.bench.deferral import tables
from joulie_lab.benchmarks import deferral as benchmark
from joulie_lab.benchmarks import deferral_capacity as capacity
from joulie_lab.benchmarks.ranges import load_ranges, misses
from joulie_lab.benchmarks.results import of_values, plain

ROOT = Path(__file__).parents[2]


def joulie(*arguments):
    with pytest.raises(SystemExit) as caught:
        main([*map(str, arguments)])
    return caught.value.code


# The rules


def test_a_job_starts_when_the_best_window_is_now():
    # Expected at each of four steps: now, one step later, two steps later.
    means = np.array([[5.0, 4.0, 3.0], [4.0, 6.0, 1.0], [2.0, 2.0, 9.0], [7.0, 0.0, 0.0]])
    # The first one waits, and a step later what it has left is worse; the second waits; the third finds nothing lower.
    assert benchmark.starts_by_window(means, 2).tolist()[:3] == [1, 2, 2]
    assert benchmark.starts_by_window(means, 1).tolist()[:3] == [1, 1, 2]


def test_rounding_is_no_reason_to_wait():
    assert benchmark.starts_by_window(np.array([[0.1 + 0.2, 0.3], [1.0, 1.0]]), 1).tolist() == [0, 1]


def test_a_threshold_is_met_or_the_slack_is_over():
    values = np.array([300.0, 200.0, 300.0, 300.0, 300.0])
    assert benchmark.starts_by_threshold(values, 200, 2).tolist() == [1, 1, 4, 5, 6]


def test_a_job_runs_in_its_best_steps_and_is_done_in_time():
    truth = np.array([5.0, 1.0, 4.0, 2.0, 3.0])
    known = np.array([np.resize(truth[step:], 5) for step in range(5)])
    assert benchmark.run_in_slots(known, np.array([0]), work=2, slack=3).tolist() == [[0, 1, 0, 1, 0]]
    assert benchmark.run_in_slots(known, np.array([0]), work=5, slack=0).tolist() == [[1, 1, 1, 1, 1]]
    # A forecast that always promises better still leaves the job its last steps.
    wrong = np.tile([9.0, 0.0, 0.0, 0.0, 0.0], (5, 1))
    assert benchmark.run_in_slots(wrong, np.array([0]), work=2, slack=3).tolist() == [[0, 0, 0, 1, 1]]


# The data


def test_both_published_formats():
    wait = read_intensity(["Time,Carbon Intensity", "2020-01-01 00:00:00,100.5", "2020-01-01 00:30:00,90"])
    assert (wait.start_s, wait.values.tolist(), wait.end_s) == (1577836800.0, [100.5, 90.0], 1577840400.0)
    column = "Carbon Intensity gCO₂eq/kWh (LCA)"
    maps = read_intensity(
        [
            f"Datetime (UTC),Zone Id,Carbon Intensity gCO₂eq/kWh (direct),{column}",
            "2022-01-01 00:00:00,X,1,200",
            "2022-01-01 01:00:00,X,1,",
            "2022-01-01 02:00:00,X,1,220",
        ]
    )
    assert maps.at(1640995200.0 + 3600.0) == 200.0, "what is left out is no zero"


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["a,b", "1,2"],
        ["Time,Carbon Intensity"],
        ["Time,Carbon Intensity", "soon,3"],
        ["Time,Carbon Intensity", "2020-01-01,x"],
    ],
)
def test_another_file_is_refused(lines):
    with pytest.raises(PublishedDataError):
        read_intensity(lines)


def test_the_command_says_what_it_needs(tmp_path, capsys):
    assert joulie("bench", "deferral") == 2
    assert "lets-wait-awhile" in capsys.readouterr().err
    assert joulie("bench", "deferral", "--data", tmp_path) == 2
    assert "ger_ci.csv" in capsys.readouterr().err


# The sample


needs_seconds = pytest.mark.slow


@pytest.fixture(scope="module")
def sample():
    plan = replace(benchmark.SMALL, capacity_zones=("windy",))
    return plain(benchmark.measure(synthetic_zones(seed=1), capacity.synthetic_jobs(1), plan, lambda _stage: None))


@needs_seconds
def test_the_sample_agrees_with_the_product_and_nobody_is_late(sample):
    for zone in sample["zones"].values():
        assert zone["replayed"] == {"jobs": benchmark.SMALL.replayed, "differ": 0}
        for part in ("windows", "slots"):
            (found,) = zone[part].values()
            assert found["late"] == 0
            saved = {rule: figures["saved_pct"]["mean"] for rule, figures in found["rules"].items()}
            assert max(saved.values()) == saved["joulie"] <= found["oracle_pct"]["mean"]


@needs_seconds
def test_the_sample_holds_its_ranges_and_can_miss_them(sample):
    ranges = load_ranges(ROOT / "benchmarks" / "deferral.yaml", small=True)
    ours = [entry for entry in ranges if "capacity.zones.sunny" not in entry.metric]
    assert misses(ours, sample) == []
    worse = json.loads(json.dumps(sample))
    worse["zones"]["sunny"]["windows"]["4h_24h"]["rules"]["joulie"]["share"]["mean"] = 0.5
    assert len(misses(ours, worse)) == 1


@needs_seconds
def test_tables_have_a_cell_for_each_head(sample):
    for table in tables(of_values(sample, benchmark.DeferralResult)):
        assert {len(row) for row in table.rows} == {len(table.columns)}


# What is committed


def test_the_committed_result_holds_its_ranges():
    result = json.loads((ROOT / "benchmarks" / "results" / "deferral.json").read_text(encoding="utf-8"))
    assert misses(load_ranges(ROOT / "benchmarks" / "deferral.yaml", small=False), result) == []
