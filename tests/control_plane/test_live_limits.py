"""Limits of jobs' GPUs on a real control plane: simulator, Prometheus, pool agent and operator, each a process."""

import csv
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from joulie.adapters.power_sweeps import read_power_sweeps
from joulie_lab.apps.bench.live_limits_run import LiveRun, Plan, live_run
from joulie_lab.benchmarks.live_limits import FULL_POWER, STANDARD, LiveJob, choose
from joulie_lab.control_plane import wait_for

BASELINE_W = 300.0
PATIENCE_S = 300.0
SCALE = 30.0
NATURAL_W = {"bert": 280.0, "resnet": 260.0}


def sweeps(folder: Path) -> Path:
    """Jobs that slow down below 1.1 of their natural power, the more the lower the limit."""
    path = folder / "sweeps.csv"
    with path.open("w", newline="") as lines:
        table = csv.writer(lines)
        table.writerow(["network", "power_limit", "time_per_epoch", "average_power"])
        for network, natural_w in NATURAL_W.items():
            for limit_w in range(100, 325, 25):
                short = max(0.0, math.log(1.1 * natural_w / limit_w))
                table.writerow([network, limit_w, math.exp(short**2), min(natural_w, 0.97 * limit_w)])
    return path


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    path = sweeps(tmp_path_factory.mktemp("sweeps"))
    chosen = choose({"A40": read_power_sweeps(path).jobs}, 1, 2, seed=1)
    jobs = [job._replace(takes_part=takes_part) for job, takes_part in zip(chosen, (STANDARD, FULL_POWER), strict=True)]
    return Plan(jobs, {"A40": path}, SCALE, 0.002, seed=1)


@pytest.fixture(scope="module")
def run(plan: Plan) -> Iterator[LiveRun]:
    with live_run(plan) as run:
        run.start()
        yield run


def limits_w(run: LiveRun) -> list[float]:
    """Limits of both GPUs, the lower first."""
    devices = run.site.get(f"{run.url}/telemetry/node-0")["gpu"]["devices"]
    return sorted(float(device["limitWatts"]) for device in devices)


def test_standard_job_saves_within_its_bound_and_its_limit_ends_with_it(run: LiveRun, plan: Plan) -> None:
    standard, performance = plan.jobs

    def saves() -> bool:
        now = run.sample()
        account = now.accounts[standard.pod]
        assert now.limits_w[performance.pod] == BASELINE_W
        return now.limits_w[standard.pod] < BASELINE_W and account.energy_j < 0.97 * account.free_energy_j

    wait_for(saves, PATIENCE_S, "the standard job saves 3 % of its energy, its search included")
    account = run.sample().accounts[standard.pod]
    assert account.time_s <= 1.06 * account.free_time_s
    untouched = run.sample().accounts[performance.pod]
    assert untouched.energy_j == pytest.approx(untouched.free_energy_j)
    lower_w, higher_w = limits_w(run)
    assert lower_w < higher_w == BASELINE_W
    run.site.plane.kubectl("delete", "pod", standard.pod, "--wait=false")
    wait_for(lambda: limits_w(run) == [BASELINE_W] * 2, PATIENCE_S, "the limit ends with its pod")


def test_oracle_is_the_best_of_the_limits_that_may_be_set(plan: Plan) -> None:
    standard, performance = plan.jobs
    assert performance.oracle_saved(100.0) == 0.0
    natural_w = NATURAL_W[standard.truth.name]

    def saved(limit_w: float) -> float:
        slowdown = math.exp(max(0.0, math.log(1.1 * natural_w / limit_w)) ** 2)
        slowdown /= math.exp(max(0.0, math.log(1.1 * natural_w / BASELINE_W)) ** 2)
        return 1.0 - min(natural_w, 0.97 * limit_w) / natural_w * slowdown if slowdown <= 1.05 else 0.0

    best = max(saved(limit_w) for limit_w in range(120, 301, 15))
    assert isinstance(standard, LiveJob)
    assert standard.oracle_saved(100.0) == pytest.approx(best, abs=0.01)
