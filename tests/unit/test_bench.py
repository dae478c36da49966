"""Ranges, the lower bound, and the figures of the benchmarks."""

import dataclasses
import json

import numpy as np
import pytest

from joulie.apps.cli.main import main
from joulie_lab.benchmarks import equal_work, parity
from joulie_lab.benchmarks.ranges import Range, RangesError, load_ranges, misses
from joulie_lab.benchmarks.results import plain
from joulie_lab.simulation.cluster import Cluster, NodePool
from joulie_lab.simulation.engine import QueueSettings
from joulie_lab.simulation.results import RunRecord
from joulie_lab.simulation.workload import JobTable

CPU = NodePool("cpu", 2, cores=10, cpu_max_w=100.0)
GPU = NodePool("gpu", 1, cores=20, cpu_max_w=200.0, gpus=4, gpu_max_w=400.0, gpu_idle_w=50.0)
QUEUE = QueueSettings(awake_fraction=0.25, sleep_fraction=0.05, w_per_core=5.0)


def jobs(*rows):
    """Rows of (duration_s, cores, gpus, performance, cpu_util, gpu_util)."""
    duration_s, cores, gpus, performance, cpu_util, gpu_util = zip(*rows, strict=True)
    return JobTable(
        arrival_s=np.zeros(len(rows)),
        duration_s=np.array(duration_s, float),
        cores=np.array(cores, np.int16),
        gpus=np.array(gpus, np.int16),
        performance=np.array(performance),
        cpu_util=np.array(cpu_util, float),
        gpu_util=np.array(gpu_util, float),
        job_class=np.zeros(len(rows), np.int8),
    )


def bound_wh(table, pools=(CPU, GPU)):
    return equal_work.lower_bound_kwh(Cluster(pools), table, QUEUE, n_steps=120, step_s=60.0) * 1000.0


ASLEEP_WH = 0.05 * (2 * 100.0 + 200.0) * 2.0
"""All nodes asleep for two hours."""


def test_a_cpu_job_costs_its_cores_and_its_share_of_an_awake_node():
    # 5 cores for an hour: 5 W x 5 x 0.6, and half a node's base above sleep.
    table = jobs((3600, 5, 0, False, 0.6, 0.0))
    assert bound_wh(table) == pytest.approx(ASLEEP_WH + 15.0 + 0.5 * 0.20 * 100.0)


def test_durations_round_up_to_steps():
    assert bound_wh(jobs((3541, 5, 0, False, 0.6, 0.0))) == bound_wh(jobs((3600, 5, 0, False, 0.6, 0.0)))
    assert bound_wh(jobs((3541, 5, 0, False, 0.6, 0.0))) > bound_wh(jobs((3540, 5, 0, False, 0.6, 0.0)))


@pytest.mark.parametrize(("performance", "coefficient"), [(True, 0.85), (False, 0.65)])
def test_a_gpu_job_costs_its_gpus_and_its_share_of_a_gpu_node(performance, coefficient):
    table = jobs((3600, 2, 1, performance, 0.5, 0.8))
    assert bound_wh(table) == pytest.approx(ASLEEP_WH + 5.0 + 400.0 * coefficient * 0.8 + 0.25 * 0.20 * 200.0)


def test_cpu_work_fits_beside_gpu_jobs_for_nothing():
    # The GPU job keeps all four GPUs: one GPU node, of whose 20 cores 12 are free.
    gpu_job = (3600, 8, 4, False, 0.0, 0.0)
    alone = bound_wh(jobs(gpu_job))
    assert bound_wh(jobs(gpu_job, (3600, 10, 0, False, 0.0, 0.0), (3600, 2, 0, False, 0.0, 0.0))) == alone
    one_core_more = jobs(gpu_job, (3600, 10, 0, False, 0.0, 0.0), (3600, 3, 0, False, 0.0, 0.0))
    assert bound_wh(one_core_more) == pytest.approx(alone + 0.1 * 0.20 * 100.0)


@pytest.mark.parametrize("pools", [(CPU,), (GPU, GPU), (CPU, CPU, GPU)])
def test_the_bound_is_defined_for_two_kinds_of_node(pools):
    with pytest.raises(ValueError, match="one pool"):
        bound_wh(jobs((60, 1, 0, False, 0.0, 0.0)), pools)


def test_a_scaled_cluster_keeps_its_proportions_and_its_size():
    for n_nodes in (2, 3, 100, 2_501):
        assert parity.scaled(Cluster((CPU, GPU)), n_nodes).n_nodes == n_nodes
    assert [pool.count for pool in parity.scaled(Cluster((CPU, GPU)), 300).pools] == [200, 100]


def record(scheduler, seed, it_kwh, ramp=1.0):
    whole = dict.fromkeys((field.name for field in dataclasses.fields(RunRecord)), 0)
    return RunRecord(**whole | {"scheduler": scheduler, "seed": seed, "it_kwh": it_kwh, "p99_ramp_kw": ramp})


def test_equal_work_reports_the_seeds_it_is_told_to():
    energies = {"most-allocated": 100.0, "least-allocated": 125.0, "joulie": 120.0, "marginal-energy-ramp": 90.0}
    records = [
        record(name, seed, energy * factor, ramp=energy)
        for name, energy in energies.items()
        for seed, factor in ((42, 9.0), (1, 1.0), (2, 2.0))
    ]
    measured = plain(equal_work.summarise(records, {42: 9.0, 1: 80.0, 2: 160.0}, (1, 2)))
    best = measured["reported"]["marginal-energy-ramp"]
    assert best["it_kwh"]["mean"] == pytest.approx(135.0)
    assert best["above_bound_pct"] == pytest.approx({"mean": 12.5, "half_width": 0.0})
    assert best["saving_pct"]["joulie"]["mean"] == pytest.approx(25.0)
    assert best["saving_pct"]["least-allocated"]["mean"] == pytest.approx(28.0)
    assert best["saving_pct"]["most-allocated"]["mean"] == pytest.approx(10.0)
    assert best["ramp_above_most_allocated_pct"]["mean"] == pytest.approx(-10.0)
    assert best["ramp_not_above_most_allocated"] == 2
    assert measured["reported"]["joulie"]["ramp_not_above_most_allocated"] == 0
    assert measured["parity"]["joulie"]["it_kwh"] == 1080.0


def test_nothing_is_reported_on_the_seed_of_the_published_figures():
    assert equal_work.PARITY_SEED not in equal_work.REPORT_SEEDS
    assert len(set(equal_work.REPORT_SEEDS)) == 8


MEASURED = {"run": {"x": 1.0, "nan": float("nan"), "none": None}}


@pytest.mark.parametrize(
    ("limits", "missed"),
    [
        ({"metric": "run.x", "min": 1.0, "max": 1.0}, None),
        ({"metric": "run.x", "min": 1.5}, "run.x: 1 is below 1.5 (because)"),
        ({"metric": "run.x", "max": 0.5}, "run.x: 1 is above 0.5 (because)"),
        ({"metric": "run.x", "equals": 1.0 + 1e-12, "within": 1e-9}, None),
        ({"metric": "run.x", "equals": 1.1, "within": 0.01}, "run.x: 1.0 is not 1.1 within 0.01 (because)"),
        ({"metric": "run.nan", "max": 5.0}, "run.nan: nan is above 5 (because)"),
        ({"metric": "run.nan", "equals": 5.0}, "run.nan: nan is not 5.0 within 0 (because)"),
        ({"metric": "run.none", "max": 5.0}, "run.none: was not measured (because)"),
        ({"metric": "run.y.z", "max": 5.0}, "run.y.z: was not measured (because)"),
    ],
)
def test_a_missed_range_says_how(limits, missed):
    assert misses([Range(**limits, why="because")], MEASURED) == ([missed] if missed else [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("full: [{metric: a, why: b}]\nsmall: []", "needs either equals"),
        ("full: [{metric: a, equals: 1, min: 0, why: b}]\nsmall: []", "needs either equals"),
        ("full: [{metric: a, max: 1}]\nsmall: []", "why"),
        ("full: [{metric: a, max: .nan, why: b}]\nsmall: []", "finite"),
        ("full: []", "small"),
        ("full: [", "not YAML"),
        (None, "No such file"),
    ],
)
def test_a_file_of_ranges_that_is_none_is_told(tmp_path, text, problem):
    path = tmp_path / "r.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RangesError, match=problem):
        load_ranges(path, small=False)


def joulie(*arguments):
    with pytest.raises(SystemExit) as caught:
        main([*map(str, arguments)])
    return caught.value.code


def test_the_benchmarks_are_listed(capsys):
    expected = (
        "parity equal-work extender binding operator-step attribution power-estimate profiles deferral place backtest"
        " openb openb-cluster capping feeds rack limits live-limits lives owners native replay sleep"
        " sleep-forecast consolidation marginal-cluster trials deferral-trial holdout live-trial"
    )
    assert joulie("bench", "list") == 0
    assert " ".join(line.split()[0] for line in capsys.readouterr().out.splitlines()) == expected
    assert joulie("bench", "list", "-o", "json") == 0
    assert " ".join(row["name"] for row in json.loads(capsys.readouterr().out)) == expected


@pytest.mark.parametrize(
    "arguments",
    [("parity", "--ranges", "nowhere.yaml"), ("equal-work", "--seeds", "1,x"), ("equal-work", "--jobs", "0")],
)
def test_what_cannot_be_measured_is_one_line_and_status_2(capsys, arguments):
    assert joulie("bench", *arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
