"""Limits of jobs' GPUs on a real control plane: simulator, Prometheus, pool agent and operator, each a process."""

import asyncio
import contextlib
import csv
import math
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.control_reports import not_restored_reason
from joulie.adapters.kubernetes.errors import NotFoundError
from joulie.adapters.kubernetes.holdout import CONFIG_MAP, EVIDENCE_KEY
from joulie.adapters.kubernetes.resources import CONFIG_MAPS, EVENTS, PODS
from joulie.adapters.kubernetes.resources import NODES as NODE_OBJECTS
from joulie.adapters.power_sweeps import read_power_sweeps
from joulie.apps.operator.limits import evidence
from joulie.domain.accounting.holdout_evidence import EvidenceByMonth
from joulie.domain.capping.held_out import Holdout
from joulie_lab.apps.bench.live_limits_run import LiveRun, Plan, live_run
from joulie_lab.benchmarks.live_limits import FULL_POWER, STANDARD, LiveJob, choose
from joulie_lab.control_plane import LocalControlPlane, wait_for
from support import fake_gpus
from support.agent_machine import Bench, Machine, until
from support.gpu_limit_site import TRAIN, Jobs, OnCluster, at_site
from support.gpu_limit_site import Site as GpuSite
from support.pod_resources import kubelet_socket
from support.sysfs_trees import intel_two_sockets

CRDS = Path(__file__).parents[2] / "deploy/helm/joulie/files/crds"
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


@pytest.fixture(scope="module")
def shared(control_plane: LocalControlPlane) -> Iterator[LocalControlPlane]:
    """The control plane that tests share, with Joulie's kinds while tests of this file run."""
    control_plane.kubectl("apply", "--server-side", "-f", str(CRDS))
    control_plane.await_definitions()
    yield control_plane
    control_plane.kubectl("delete", "-f", str(CRDS))


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


def test_a_clock_is_found_and_reset_by_the_agent_after_one_that_was_killed(
    shared: LocalControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operator and agent on the real API, over the loadable driver: no power limit reaches, so a clock is held."""
    (folder := tmp_path / "driver").mkdir()
    driver = fake_gpus.install(fake_gpus.build(tmp_path, "fake_nvml"), folder, monkeypatch)
    machine = Machine(tmp_path, node="clocks-1", settings={"gpu_clocks": True})
    intel_two_sockets(machine.sys)
    machine.settings["pod_resources_socket"] = tmp_path / "kubelet.sock"
    for gpu in (0, 1):
        driver.write(gpu, min_mw=690_000)

    async def scenario(site: GpuSite, _operator: object) -> None:
        bench = site.bench
        try:
            await site.add_pod(TRAIN)

            async def is_held() -> bool:
                held = await site.held(TRAIN)
                return held is not None and held.max_sm_clock_mhz is not None

            await until(is_held)
            held = await site.held(TRAIN)
            assert held is not None
            assert held.max_sm_clock_mhz is not None
            assert held.max_sm_clock_mhz < 1980.0
            assert (held.watts, held.baseline_watts) == (700.0, 700.0)
            await until(lambda: driver.read(0, "lock_mhz") > 0)
            resets = driver.read(0, "resets")
            await bench.kill(site.agent)
            assert driver.read(0, "lock_mhz") > 0
            async with bench.agent():
                await until(lambda: driver.read(0, "resets") > resets)
                await bench.client.delete(PODS, TRAIN[1], TRAIN[0], grace_s=0)
                await until(lambda: driver.read(0, "lock_mhz") == 0)

                async def is_restored() -> bool:
                    return not_restored_reason(await bench.twin()) == ""

                await until(is_restored)
        finally:
            with contextlib.suppress(NotFoundError):
                await bench.client.delete(PODS, TRAIN[1], TRAIN[0], grace_s=0)
            await bench.client.delete(NODE_OBJECTS, machine.node)

    with kubelet_socket(tmp_path / "kubelet.sock") as kubelet:
        kubelet.pods = {TRAIN: {"nvidia.com/gpu": ["0"]}}
        at_site(machine, Jobs(driver, natural_w=(300.0, 300.0)), scenario, on_plane(shared))


def test_what_a_holdout_measures_outlives_an_operator_that_is_killed(
    shared: LocalControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the ConfigMap for all workloads and by the profile for one, as the real API server keeps them."""
    (folder := tmp_path / "driver").mkdir()
    driver = fake_gpus.install(fake_gpus.build(tmp_path, "fake_nvml"), folder, monkeypatch)
    machine = Machine(tmp_path, node="holdout-1")
    intel_two_sockets(machine.sys)
    machine.settings["pod_resources_socket"] = tmp_path / "kubelet.sock"
    monkeypatch.setattr(evidence, "SAVE_S", 0.5)

    async def scenario(site: GpuSite, operator: asyncio.Task[None]) -> None:
        bench, client = site.bench, site.bench.client

        seen: list[tuple[int, int]] = []

        async def more_than(of_all: int, of_one: int) -> bool:
            """Whether more windows are kept, of all workloads and of the one."""
            found = (await client.get(CONFIG_MAPS, CONFIG_MAP, "default")).data
            with contextlib.suppress(ValueError):  # spoilt below
                months = EvidenceByMonth.parse(found.get(EVIDENCE_KEY, "{}")).months.values()
                held = await site.held(TRAIN)
                one = 0 if held is None or held.holdout is None else held.holdout.windows
                seen.append((sum(month.evidence.units for month in months), one))
                return seen[-1][0] > of_all and seen[-1][1] > of_one
            return False

        try:
            await site.add_pod(TRAIN)
            await until(lambda: more_than(15, 20))
            await bench.kill(operator)
            await more_than(0, 0)
            killed = seen[-1]
            seen.clear()
            async with site.operator():
                await until(lambda: more_than(*killed))
                assert min(of_all for of_all, _ in seen) >= killed[0], "a leader that begins anew has fewer at first"
                assert min(of_one for _, of_one in seen) >= killed[1]
                before = seen[-1]
                spoilt = {"data": {EVIDENCE_KEY: "spoilt"}}
                await client.patch(CONFIG_MAPS, CONFIG_MAP, spoilt, namespace="default")

                async def is_reported() -> bool:
                    events = (await client.list(EVENTS, namespace="default")).items
                    return any(event.reason == "HoldoutEvidenceSpoilt" for event in events)

                await until(is_reported)
                await until(lambda: more_than(before[0], 0))
        finally:
            with contextlib.suppress(NotFoundError):
                await client.delete(PODS, TRAIN[1], TRAIN[0], grace_s=0)
            await client.delete(CONFIG_MAPS, CONFIG_MAP, "default")
            await client.delete(NODE_OBJECTS, machine.node)

    shared.kubectl("create", "configmap", CONFIG_MAP, "-n", "default")
    with kubelet_socket(tmp_path / "kubelet.sock") as kubelet:
        kubelet.pods = {TRAIN: {"nvidia.com/gpu": ["0"]}}
        jobs = Jobs(driver, natural_w=(500.0, 300.0))
        at_site(machine, jobs, scenario, on_plane(shared), Holdout(0.5, least_saving=0.01))


def on_plane(plane: LocalControlPlane) -> OnCluster:
    """Runs a scenario on the real control plane."""

    def on(machine: Machine, scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with KubeClient.connect(kubeconfig=plane.kubeconfig) as client:
                await scenario(Bench(None, client, machine, plane.kubeconfig))

        asyncio.run(main())

    return on
