"""The guard: who is let go, when a controller counts as dead, and what one round does about it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from joulie.adapters.kubernetes.api.core import Lease, LeaseSpec
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import CONFIG_MAPS, JOBS, LEASES, NAMESPACES, PODS
from joulie.adapters.kubernetes.times import parse_rfc3339, rfc3339_micro
from joulie.apps.grid import guard as program
from joulie.apps.grid.facts import (
    BUDGET_WAITING_SINCE,
    SUSPENDED_SINCE,
    WORK_DONE,
    Asking,
    GatedPod,
    JobFacts,
    NamespaceFacts,
    Owner,
)
from joulie.apps.grid.guard import GRACE_S, LEASE_NAME, Cluster, GuardSettings, age_s, look_after, overdue, overdue_jobs
from joulie.domain.grid import names
from joulie.domain.grid.request import GridDefaults
from joulie_lab.adapters.crd import custom_resource_definitions
from joulie_lab.fakes.kubernetes import FakeCluster

NOW_S = 1_780_000_000.0
HOUR_S = 3600.0
NAMESPACE = "joulie-system"
KEY = Key("default", "p")
DEFAULTS = GridDefaults()
SEED = Asking(names.SCHEDULER_NAME)
SINCE = "2026-01-01T00:00:00Z"


def asking(**annotations: str) -> Asking:
    known = {"delay": names.MAX_DELAY, "defer": names.DEFER, "skip": names.SKIP, "runtime": names.RUNTIME}
    return Asking(names.SCHEDULER_NAME, {known[key]: value for key, value in annotations.items()})


def pod(said: Asking = SEED, *, age: float = 0.0, owner: Owner | None = None) -> GatedPod:
    return GatedPod("u", NOW_S - age, 0, owner, said)


def is_due(one: GatedPod, job: JobFacts | None = None, policy: NamespaceFacts | None = None) -> bool:
    jobs = {Key("default", "j"): job} if job is not None else {}
    cluster = Cluster({KEY: one}, jobs, {"default": policy} if policy is not None else {})
    return list(overdue(cluster, DEFAULTS, NOW_S)) == [KEY]


@pytest.mark.parametrize(
    ("said", "age_h", "due"),
    [
        (SEED, 23.9, False),
        (SEED, 24.0, True),
        (asking(delay="12h"), 11.9, False),
        (asking(delay="12h"), 12.0, True),
        (asking(delay="0"), 0.0, True),
        # As if it were not there: the cluster's default holds.
        (asking(delay="soon"), 12.0, False),
        (asking(delay="-1h"), 24.0, True),
        # Nothing entitles these to wait.
        (asking(skip="true"), 0.0, True),
        (asking(defer="false"), 0.0, True),
        (Asking("default-scheduler"), 0.0, True),
    ],
)
def test_pods_go_at_their_latest_start_and_not_before(said: Asking, age_h: float, due: bool) -> None:
    assert is_due(pod(said, age=age_h * HOUR_S)) is due


def test_the_namespaces_policy_counts() -> None:
    labels = {names.POLICIES_LABEL: names.POLICIES_ENABLED}
    policy = NamespaceFacts("n", labels, {names.POLICY_PREFIX + "max-scheduling-delay": "1h"})
    assert is_due(pod(age=HOUR_S), policy=policy)
    assert not is_due(pod(age=HOUR_S), policy=NamespaceFacts("n", {}, policy.annotations))


def test_a_jobs_deadline_leaves_time_for_its_run_and_a_new_pod_no_new_delay() -> None:
    owner = Owner("Job", "j", "job-uid")

    def job(started_h: float, deadline_h: float | None) -> JobFacts:
        deadline_s = None if deadline_h is None else deadline_h * HOUR_S
        started_s = NOW_S - started_h * HOUR_S
        return JobFacts("job-uid", started_s, started_s, deadline_s, suspended=False, queued=False, asking=SEED)

    fresh = pod(asking(runtime="2h"), age=60.0, owner=owner)
    assert not is_due(fresh, job(started_h=7.9, deadline_h=10.0))
    assert is_due(fresh, job(started_h=8.0, deadline_h=10.0))
    assert is_due(fresh, job(started_h=24.0, deadline_h=None))


def test_a_job_of_the_same_name_is_another_job() -> None:
    other = JobFacts("another", NOW_S, NOW_S - 30 * HOUR_S, None, suspended=False, queued=False, asking=SEED)
    assert not is_due(pod(age=60.0, owner=Owner("Job", "j", "job-uid")), other)


@pytest.mark.parametrize(
    ("pauses", "suspended", "since", "age_h", "done_h", "due"),
    [
        ("true", True, SINCE, 10.0, 1.0, False),
        # Of 4 h one is done: it must be done 28 h after its creation.
        ("true", True, SINCE, 24.9, 1.0, False),
        ("true", True, SINCE, 25.0, 1.0, True),
        ("true", True, None, 99.0, 1.0, False),
        ("true", True, "", 99.0, 1.0, False),
        ("true", False, SINCE, 99.0, 1.0, False),
        ("false", True, SINCE, 0.0, 0.0, True),
    ],
)
def test_a_suspended_job_runs_on_in_time(
    pauses: str, suspended: bool, since: str | None, age_h: float, done_h: float, due: bool
) -> None:
    said = asking(runtime="4h")
    said.annotations.update({names.INTERRUPTIBLE: pauses, names.MODE: "interruptible"})
    job = JobFacts(
        uid="job-uid",
        created_s=NOW_S - age_h * HOUR_S,
        started_s=None,
        deadline_s=None,
        suspended=suspended,
        queued=False,
        asking=said,
        suspended_since=since,
        work_done_s=done_h * HOUR_S,
    )
    key = Key("default", "j")
    assert list(overdue_jobs(Cluster({}, {key: job}, {}), DEFAULTS, NOW_S)) == ([key] if due else [])


@pytest.mark.parametrize(
    ("holder", "renewed", "expected"),
    [
        ("c", rfc3339_micro(NOW_S - 20.0), 20.0),
        ("c", rfc3339_micro(NOW_S + 20.0), -20.0),
        # Given up by a replica that ended well: its successor is on the way.
        ("", rfc3339_micro(NOW_S - 20.0), 20.0),
        ("c", None, None),
        ("c", "yesterday", None),
    ],
)
def test_the_age_of_a_lease(holder: str, renewed: str | None, expected: float | None) -> None:
    lease = Lease(spec=LeaseSpec(holder_identity=holder, renew_time=renewed))
    assert age_s(lease, NOW_S) == (None if expected is None else pytest.approx(expected, abs=1e-3))


# ---- rounds


class Stage:
    """A fake cluster with one gated pod, and a guard whose clock is set from the pod's creation."""

    def __init__(self, client: KubeClient, kubeconfig: Path) -> None:
        self.client = client
        self.kubeconfig = kubeconfig
        self.created_s = 0.0

    async def prepare(self) -> None:
        await self.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        body = {"metadata": {"name": "joulie-grid-gating"}, "data": {"enabled": "true"}}
        await self.client.create(CONFIG_MAPS, body, NAMESPACE)
        spec = {
            "schedulerName": names.SCHEDULER_NAME,
            "containers": [{"name": "c", "image": "i"}],
            "schedulingGates": [{"name": "example.com/quota"}, {"name": names.GATE}],
        }
        meta = {"name": "p", "annotations": {names.MAX_DELAY: "1h"}}
        made = await self.client.create(PODS, {"metadata": meta, "spec": spec}, "default")
        self.created_s = parse_rfc3339(made.metadata.creation_timestamp or "")

    async def renew_lease(self, renewed_s: float) -> None:
        spec = {"holderIdentity": "c", "leaseDurationSeconds": 15, "renewTime": rfc3339_micro(renewed_s)}
        await self.client.apply(LEASES, LEASE_NAME, {"spec": spec}, field_manager="c", namespace=NAMESPACE)

    async def round_at(self, age_s: float, **settings: Any) -> program.Round:
        return await look_after(self.client, GuardSettings(**settings), self.created_s + age_s)

    async def gating(self) -> str:
        return (await self.client.get(CONFIG_MAPS, "joulie-grid-gating", NAMESPACE)).data["enabled"]

    async def gates(self) -> list[str]:
        return [gate.name for gate in (await self.client.get(PODS, "p", "default")).spec.scheduling_gates]


def play(tmp_path: Path, scenario: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        async with FakeCluster(custom_resource_definitions()) as cluster:
            kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
            async with KubeClient.connect(kubeconfig=kubeconfig) as client, asyncio.timeout(30.0):
                stage = Stage(client, kubeconfig)
                await stage.prepare()
                await scenario(stage)

    asyncio.run(main())


@pytest.mark.parametrize("alive", [True, False])
def test_g4_what_waits_for_a_budget_is_let_go_when_its_controller_is_dead(tmp_path: Path, alive: bool) -> None:
    async def scenario(stage: Stage) -> None:
        gates = [{"name": names.BUDGET_GATE}, {"name": "example.com/quota"}]
        spec = {"containers": [{"name": "c", "image": "i"}], "schedulingGates": gates}
        await stage.client.create(PODS, {"metadata": {"name": "budgeted"}, "spec": spec}, "default")
        for name, notes in (("ours", {BUDGET_WAITING_SINCE: SINCE}), ("theirs", {})):
            body = {"metadata": {"name": name, "annotations": notes}, "spec": {"suspend": True}}
            await stage.client.create(JOBS, body, "default")
        await stage.renew_lease(stage.created_s - (0.0 if alive else HOUR_S))
        found = await stage.round_at(10.0)
        assert found.problems == []
        assert found.lifted == ([] if alive else ["default/budgeted"])
        assert found.resumed == ([] if alive else ["default/ours"])
        pod = await stage.client.get(PODS, "budgeted", "default")
        left = ["joulie.io/budget", "example.com/quota"] if alive else ["example.com/quota"]
        assert [gate.name for gate in pod.spec.scheduling_gates] == left
        assert (await stage.client.get(JOBS, "ours", "default")).spec.suspend is alive
        assert (await stage.client.get(JOBS, "theirs", "default")).spec.suspend is True

    play(tmp_path, scenario)


def test_a_living_controller_is_left_to_its_work(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        just_due_s = HOUR_S + 0.5 * GRACE_S
        await stage.renew_lease(stage.created_s + just_due_s - 10.0)
        found = await stage.round_at(just_due_s)
        assert (found.controller_alive, found.gating_suspended, found.lifted, found.waiting) == (True, False, [], 1)
        assert await stage.gating() == "true"
        # It lives, and does not do it.
        late_s = HOUR_S + GRACE_S
        await stage.renew_lease(stage.created_s + late_s)
        assert (await stage.round_at(late_s)).lifted == ["default/p"]

    play(tmp_path, scenario)


def test_a_dead_controller_gates_nothing_more_and_nobody_waits_too_long(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.renew_lease(stage.created_s)
        found = await stage.round_at(301.0)
        assert (found.controller_alive, found.gating_suspended, found.lifted, found.waiting) == (False, True, [], 1)
        assert await stage.gating() == "false"
        assert names.GATE in await stage.gates(), "it waits on until its latest start"
        assert (await stage.round_at(HOUR_S)).lifted == ["default/p"]
        assert await stage.gates() == ["example.com/quota"]
        assert (await stage.round_at(HOUR_S)).lifted == []

    play(tmp_path, scenario)


def test_a_suspended_job_is_resumed(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        template = {"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}}
        notes = {SUSPENDED_SINCE: "2026-01-01T00:00:00Z", WORK_DONE: "60"}
        body = {"metadata": {"name": "j", "annotations": notes}, "spec": {"suspend": True, "template": template}}
        await stage.client.create(JOBS, body, "default")
        found = await stage.round_at(25 * HOUR_S)
        assert (found.resumed, found.problems) == (["default/j"], [])
        job = await stage.client.get(JOBS, "j", "default")
        assert not job.spec.suspend
        assert SUSPENDED_SINCE not in job.metadata.annotations

    play(tmp_path, scenario)


def test_trap_a_controller_that_is_being_replaced_is_not_dead(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.renew_lease(stage.created_s)
        await stage.client.patch(LEASES, LEASE_NAME, {"spec": {"holderIdentity": ""}}, namespace=NAMESPACE)
        found = await stage.round_at(299.0)
        assert (found.controller_alive, found.gating_suspended) == (True, False)
        assert await stage.gating() == "true"
        assert (await stage.round_at(301.0)).gating_suspended

    play(tmp_path, scenario)


def test_without_a_controller_kueue_is_answered_whatever_becomes_of_gating(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def opened(*_: object) -> list[str]:
        return ["default/w"]

    monkeypatch.setattr(program, "release_workloads", opened)

    async def scenario(stage: Stage) -> None:
        await stage.client.delete(CONFIG_MAPS, "joulie-grid-gating", NAMESPACE)
        found = await stage.round_at(HOUR_S)
        assert (found.gating_suspended, found.opened) == (False, ["default/w"])

    play(tmp_path, scenario)


def test_g20_the_guard_says_that_it_released_workloads() -> None:
    done = program.Round(False, HOUR_S, True, [], [], 0, ["default/w"], [], [])
    assert "Kueue workloads released: 1" in program._as_text(done, "text")


def test_a_controller_that_never_was_is_dead(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        found = await stage.round_at(0.0)
        assert (found.lease_age_s, found.controller_alive, found.gating_suspended) == (None, False, True)

    play(tmp_path, scenario)


def test_what_fails_is_said_and_the_rest_is_done(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.client.delete(CONFIG_MAPS, "joulie-grid-gating", NAMESPACE)
        found = await stage.round_at(HOUR_S)
        assert found.lifted == ["default/p"]
        (problem,) = found.problems
        assert "joulie-grid-gating" in problem

    play(tmp_path, scenario)


@pytest.mark.parametrize("output", ["text", "json"])
def test_one_round_as_a_command(tmp_path: Path, output: str) -> None:
    async def scenario(stage: Stage) -> None:
        words = ["--once", "-o", output, "--kubeconfig", str(stage.kubeconfig), "--log-level", "warning"]
        done = await asyncio.to_thread(CliRunner().invoke, program.guard, words)
        assert done.exit_code == 0, done.output
        if output == "json":
            assert json.loads(done.stdout)["gating_suspended"] is True
        else:
            assert (
                done.stdout
                == "controller dead, no new pod is gated; pods released: 0, still waiting: 1, Jobs resumed: 0\n"
            )

    play(tmp_path, scenario)
