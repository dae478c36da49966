"""Limits of jobs' GPUs through the whole loop: operator, agent, kubelet and driver, with modelled jobs."""

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from joulie.adapters.kubernetes.resources import EVENTS, PODS, POWER_BUDGETS, WORKLOAD_PROFILES
from joulie.apps.kubectl.limits import show_limits
from joulie.domain.capping.choice import Reason
from support.agent_machine import Machine, until
from support.fake_gpus import FakeGpus
from support.gpu_limit_site import BASELINE_W, METRIC, SERVE, TRAIN, Jobs, Site, at_site
from support.pod_resources import PodResourcesSocket, kubelet_socket
from support.sysfs_trees import intel_two_sockets

pytestmark = pytest.mark.slow


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[PodResourcesSocket]:
    with kubelet_socket(tmp_path / "kubelet.sock") as socket:
        socket.pods = {TRAIN: {"nvidia.com/gpu": ["0"]}, SERVE: {"nvidia.com/gpu": ["1"]}}
        yield socket


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    intel_two_sockets(machine.sys)
    machine.settings["pod_resources_socket"] = tmp_path / "kubelet.sock"
    return machine


def test_each_job_gets_the_limit_that_saves_within_its_bound(
    machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = Jobs(driver)

    async def scenario(site: Site, _operator: object) -> None:
        await site.add_pod(TRAIN)
        await site.add_pod(SERVE, **{"joulie.io/workload-class": "performance"})

        async def is_held() -> bool:
            held = await site.held(TRAIN)
            return held is not None and held.watts == site.limits_w()[0] < BASELINE_W

        await until(is_held)
        held = await site.held(TRAIN)
        assert held is not None
        assert held.slowdown is not None
        assert held.slowdown <= 1.05
        assert (held.saved_pct or 0.0) > 5.0
        assert jobs.slowdown(0) <= 1.06
        rows: dict[str, Any] = {}

        async def is_reported() -> bool:
            await show_limits(site.bench.client, "json")
            rows.update({row["job"]: row for row in json.loads(capsys.readouterr().out)["gpus"]})
            return bool(rows["Pod/train-0"]["limit_w"] == held.watts)

        await until(is_reported)
        assert (rows["Pod/train-0"]["knob"], rows["Pod/train-0"]["why"]) == ("power", held.reason)
        assert (rows["Pod/train-0"]["slowdown"], rows["Pod/train-0"]["saved_pct"]) == (held.slowdown, held.saved_pct)
        assert (rows["Pod/serve-0"]["limit_w"], rows["Pod/serve-0"]["why"]) == (BASELINE_W, "not limited")
        await show_limits(site.bench.client, "table")
        assert "2 GPUs reported, 1 with a limit" in capsys.readouterr().out
        # A performance pod that did not ask for it keeps full power.
        assert site.limits_w()[1] == BASELINE_W
        # The job ends: its limit goes with it, though the kubelet lists it for a while.
        await site.bench.client.delete(PODS, TRAIN[1], TRAIN[0], grace_s=0)
        await until(lambda: site.limits_w() == [BASELINE_W, BASELINE_W])

    at_site(machine, jobs, scenario)


def test_a_users_own_profile_keeps_the_limit_of_its_job(
    machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario(site: Site, _operator: object) -> None:
        reference = {"kind": "Pod", "namespace": TRAIN[0], "name": TRAIN[1]}
        mine = {"metadata": {"name": "mine"}, "spec": {"workloadRef": reference}}
        created = await site.bench.client.create(WORKLOAD_PROFILES, mine, TRAIN[0])
        await site.add_pod(TRAIN)

        async def is_held() -> bool:
            held = await site.held(TRAIN, "mine")
            return held is not None and held.watts == site.limits_w()[0] < BASELINE_W

        await until(is_held)

        async def is_shown() -> bool:
            await show_limits(site.bench.client, "json")
            rows = {row["job"]: row for row in json.loads(capsys.readouterr().out)["gpus"]}
            return bool(rows["Pod/train-0"]["why"] == Reason.MEASURED)

        await until(is_shown)
        kept = await site.bench.client.get(WORKLOAD_PROFILES, "mine", TRAIN[0])
        assert (kept.spec, kept.metadata.labels) == (created.spec, created.metadata.labels)
        assert await site.held(TRAIN) is None

    at_site(machine, Jobs(driver), scenario)


def test_a_job_whose_metric_counts_time_gets_its_limit_back_with_the_reason(
    machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = Jobs(driver, steepness=8.0, counts_time=True)

    async def scenario(site: Site, _operator: object) -> None:
        await site.add_pod(TRAIN)

        async def is_contradicted() -> bool:
            held = await site.held(TRAIN)
            return held is not None and held.reason == Reason.CONTRADICTED

        await until(is_contradicted)
        held = await site.held(TRAIN)
        assert held is not None
        assert (held.watts, held.saved_pct) == (BASELINE_W, None)
        await until(lambda: site.limits_w()[0] == BASELINE_W)

        async def is_shown() -> bool:
            await show_limits(site.bench.client, "json")
            rows = {row["job"]: row for row in json.loads(capsys.readouterr().out)["gpus"]}
            return bool(rows["Pod/train-0"]["why"] == Reason.CONTRADICTED)

        await until(is_shown)

        async def is_told() -> bool:
            events = (await site.bench.client.list(EVENTS)).items
            return "ProgressContradicted" in {event.reason for event in events}

        await until(is_told)
        (event,) = [one for one in (await site.bench.client.list(EVENTS)).items if one.reason == "ProgressContradicted"]
        assert (event.involved_object.kind, event.involved_object.name, event.type) == ("Pod", TRAIN[1], "Warning")
        said = re.fullmatch(
            f"{Reason.CONTRADICTED}: under a limit of (.*) W there was a change of {METRIC} by (.*)%, of its GPUs'"
            " memory traffic by (.*)%, of their power by (.*)%; the limit was taken back.*",
            event.message,
        )
        assert said is not None, event.message
        limit_w, claimed, counted, power = map(float, said.groups())
        assert limit_w < BASELINE_W
        assert counted < claimed - 2.0
        assert power < -2.0

    at_site(machine, jobs, scenario)


def test_limit_returns_when_progress_is_lost_or_falls(
    machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket
) -> None:
    jobs = Jobs(driver)

    async def scenario(site: Site, _operator: object) -> None:
        await site.add_pod(TRAIN)
        await until(lambda: site.limits_w()[0] < BASELINE_W)
        jobs.silent = True
        await until(lambda: site.limits_w()[0] == BASELINE_W)
        jobs.silent = False
        await until(lambda: site.limits_w()[0] < BASELINE_W)
        jobs.slower = 1.5
        await until(lambda: site.limits_w()[0] == BASELINE_W)

    at_site(machine, jobs, scenario)


def test_limits_return_when_the_operator_dies(machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket) -> None:
    machine.settings["gpu_limit_lease_s"] = 1.0
    jobs = Jobs(driver)

    async def scenario(site: Site, operator: asyncio.Task[None]) -> None:
        await site.add_pod(TRAIN)
        await until(lambda: site.limits_w()[0] < BASELINE_W)
        operator.cancel()  # as SIGKILL
        await until(lambda: site.limits_w()[0] == BASELINE_W)
        # Nobody withdrew it: the lease did.
        assert (await site.bench.twin()).spec.gpu_limits

    at_site(machine, replace(jobs), scenario)


def test_a_limit_that_a_pod_states_is_in_force_and_the_search_stays_below_it(
    machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket
) -> None:
    own = "dynamo.nvidia.com/gpu-power-limit"

    async def scenario(site: Site, _operator: object) -> None:
        await site.add_pod(SERVE, **{"joulie.io/workload-class": "performance", own: "600"})
        await until(lambda: site.limits_w()[1] == 600.0)
        await site.add_pod(TRAIN, **{own: "550"})
        await until(lambda: site.limits_w()[0] <= 550.0)
        seen: set[float] = set()

        async def is_searched() -> bool:
            seen.add(site.limits_w()[0])
            return min(seen) < 550.0

        await until(is_searched)
        assert max(seen) <= 550.0
        owners = {limit.watts: limit.owner for limit in (await site.bench.twin()).spec.gpu_limits}
        assert owners.pop(600.0) == own
        await site.bench.client.delete(PODS, SERVE[1], SERVE[0], grace_s=0)
        await until(lambda: site.limits_w()[1] == BASELINE_W)

    at_site(machine, Jobs(driver), scenario)


def test_limits_are_searched_beneath_the_ceiling_of_a_power_budget(
    machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket
) -> None:
    async def scenario(site: Site, _operator: object) -> None:
        client = site.bench.client
        body = {"metadata": {"name": "rack"}, "spec": {"watts": 1900.0, "responseSeconds": 60}}
        await client.create(POWER_BUDGETS, body)

        async def ceiling_w() -> float | None:
            gpu = (await site.bench.twin()).spec.gpu
            return None if gpu is None else gpu.power_cap.cap_watts_per_gpu

        async def is_bounded() -> bool:
            limit_w = await ceiling_w()
            return limit_w is not None and site.limits_w() == [limit_w, limit_w]

        await until(is_bounded)
        first_w = await ceiling_w()
        assert first_w is not None
        await site.add_pod(TRAIN)
        seen: set[float] = set()

        async def is_held() -> bool:
            seen.add(site.limits_w()[0])
            held = await site.held(TRAIN)
            return held is not None and held.watts == site.limits_w()[0] < first_w

        await until(is_held)
        held = await site.held(TRAIN)
        assert held is not None
        assert held.baseline_watts == first_w  # what the budget leaves is the job's full power
        assert max(seen) <= first_w
        assert site.limits_w()[1] == first_w
        # The budget falls below the limit of the job: the ceiling counts.
        await client.patch(POWER_BUDGETS, "rack", {"spec": {"watts": 1300.0}})

        async def is_lower() -> bool:
            limit_w = await ceiling_w()
            return limit_w is not None and limit_w < held.watts and max(site.limits_w()) <= limit_w

        await until(is_lower)
        # Without the budget the job is measured at the GPU's own limit again.
        await client.delete(POWER_BUDGETS, "rack")

        async def is_held_at_full_power() -> bool:
            held = await site.held(TRAIN)
            return held is not None and held.baseline_watts == BASELINE_W and site.limits_w()[1] == BASELINE_W

        await until(is_held_at_full_power)

    at_site(machine, Jobs(driver), scenario)


def test_a_clock_is_locked_where_no_power_limit_reaches(
    machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.settings["gpu_clocks"] = True
    for gpu in (0, 1):
        driver.write(gpu, min_mw=690_000)
    jobs = Jobs(driver, natural_w=(300.0, 300.0))

    async def scenario(site: Site, _operator: object) -> None:
        await site.add_pod(TRAIN)
        await site.add_pod(SERVE, **{"joulie.io/workload-class": "performance"})

        async def is_held() -> bool:
            held = await site.held(TRAIN)
            return held is not None and held.max_sm_clock_mhz is not None

        await until(is_held)
        held = await site.held(TRAIN)
        assert held is not None
        assert held.max_sm_clock_mhz in {1782.0, 1584.0, 1386.0}
        assert (held.watts, held.baseline_watts) == (BASELINE_W, BASELINE_W)
        assert held.slowdown is not None
        assert held.slowdown <= 1.05
        assert (held.saved_pct or 0.0) > 10.0
        assert site.limits_w() == [BASELINE_W, BASELINE_W], "one knob at a time"
        rows: dict[str, Any] = {}

        async def is_shown() -> bool:
            await show_limits(site.bench.client, "json")
            rows.update({row["job"]: row for row in json.loads(capsys.readouterr().out)["gpus"]})
            return (rows["Pod/train-0"]["knob"], rows["Pod/train-0"]["clock_result"]) == ("clock", "applied")

        await until(is_shown)
        assert driver.read(1, "lock_mhz") == 0, "a performance pod that did not ask for it keeps its clock"
        # Progress falls: the clock is released, and locked again once it is back.
        jobs.slower = 2.0
        await until(lambda: driver.read(0, "lock_mhz") == 0)
        jobs.slower = 1.0
        await until(lambda: driver.read(0, "lock_mhz") > 0)
        await site.bench.client.delete(PODS, TRAIN[1], TRAIN[0], grace_s=0)
        await until(lambda: driver.read(0, "lock_mhz") == 0)

    at_site(machine, jobs, scenario)


def test_a_lock_without_effect_ends_the_search_for_a_clock(
    machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket
) -> None:
    machine.settings["gpu_clocks"] = True
    for gpu in (0, 1):
        driver.write(gpu, min_mw=690_000, ignore_lock=1)

    async def scenario(site: Site, _operator: object) -> None:
        await site.add_pod(TRAIN)

        async def is_held() -> bool:
            held = await site.held(TRAIN)
            return held is not None and driver.read(0, "locks") > 0

        await until(is_held)
        held = await site.held(TRAIN)
        assert held is not None
        assert (held.watts, held.max_sm_clock_mhz) == (BASELINE_W, None)
        locks = driver.read(0, "locks")

        async def is_withdrawn() -> bool:
            return not (await site.bench.twin()).spec.gpu_limits

        await until(is_withdrawn)
        assert driver.read(0, "locks") == locks

    at_site(machine, Jobs(driver, natural_w=(300.0, 300.0)), scenario)
