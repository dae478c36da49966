"""`joulie cleanup` on the fake cluster; agents and operators are played by the tests."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.control_reports import not_restored_reason
from joulie.adapters.kubernetes.lease import LeaderElector
from joulie.adapters.kubernetes.resources import (
    CONFIG_MAPS,
    HORIZONTAL_POD_AUTOSCALERS,
    JOBS,
    LEASES,
    NAMESPACES,
    NODE_TWINS,
    NODES,
    PODS,
    SERVICE_ACCOUNTS,
)
from joulie.adapters.kubernetes.sleep_marks import TAINT
from joulie.apps.agent.outcome import Outcome as AgentOutcome
from joulie.apps.agent.outcome import blocked, failed, restored
from joulie.apps.cleanup import main as program
from joulie.apps.cleanup import steps as steps_module
from joulie.apps.cleanup.steps import (
    BUDGET_WAITING_SINCE,
    GRID_LEASE,
    GRID_SUSPENDED_SINCE,
    GRID_WORK_DONE,
    Cleanup,
    Outcome,
    is_lifted,
)
from joulie.apps.grid import facts as grid_facts
from joulie.apps.grid import guard as grid_guard
from joulie.apps.operator.main import LEASE_NAME
from joulie_lab.adapters.crd import custom_resource_definitions
from joulie_lab.fakes.kubernetes import FakeCluster
from joulie_lab.fakes.kubernetes.api import Writer

pytestmark = pytest.mark.slow

NAMESPACE = "joulie-system"
CAPPED: dict[str, Any] = {
    "cpu": {"packagePowerCapPctOfMax": 60},
    "gpu": {"powerCap": {"scope": "perGpu", "capPctOfMax": 60}},
    "scheduling": {"draining": True},
    "policy": {"name": "static_partition"},
}
IN_FORCE = AgentOutcome("rapl", restored("rapl", "").result, "2 x 123 W in force for a cap of 60 %")
AS_FOUND = restored("rapl", "no cap requested, original limits in force")

Scenario = Callable[["Stage"], Awaitable[None]]


class Rounds:
    """A clock that ticks a second at each look, so that waiting is counted in looks and takes no time."""

    def __init__(self, at_round: Callable[[int], None] = lambda _round: None) -> None:
        self.now_s = 0
        self._at_round = at_round

    def __call__(self) -> float:
        self.now_s += 1
        self._at_round(self.now_s)
        return float(self.now_s)


class Stage:
    """A fake cluster, and who plays on it."""

    def __init__(self, cluster: FakeCluster, client: KubeClient, kubeconfig: Path) -> None:
        self.cluster = cluster
        self.client = client
        self.kubeconfig = kubeconfig

    async def add_node(self, name: str, *, labels: dict[str, str] | None = None, spec: Any = None) -> None:
        profile = {names.POWER_PROFILE_LABEL: "eco", names.DRAINING_LABEL: "true"}
        own = {names.MANAGED_LABEL: "true", **(profile if labels is None else labels)}
        await self.client.create(NODES, {"metadata": {"name": name, "labels": own}})
        await self.cap(name, CAPPED if spec is None else spec)

    async def cap(self, name: str, spec: Any) -> None:
        body = {"spec": {"nodeName": name, "profile": "eco", **spec}}
        await self.client.apply(NODE_TWINS, name, body, field_manager=names.OPERATOR_FIELD_MANAGER)

    async def report(self, name: str, cpu: AgentOutcome, gpu: AgentOutcome = AS_FOUND) -> None:
        """What an agent writes."""
        said = {
            device: {"backend": outcome.backend, "result": outcome.result.value, "message": outcome.message}
            for device, outcome in (("cpu", cpu), ("gpu", gpu))
        }
        body = {"status": {"controlStatus": said}}
        manager = names.AGENT_FIELD_MANAGER
        await self.client.apply(NODE_TWINS, name, body, field_manager=manager, subresource="status")

    async def answer(self, *nodes: str) -> None:
        """Agents that restore their nodes as soon as the caps are lifted."""
        waiting = set(nodes)
        while waiting:
            for name in sorted(waiting):
                if is_lifted(await self.twin(name)):
                    await self.report(name, AS_FOUND)
                    waiting.discard(name)
            await asyncio.sleep(0)

    async def twin(self, name: str) -> NodeTwin:
        return await self.client.get(NODE_TWINS, name)

    async def labels(self, name: str) -> dict[str, str]:
        return (await self.client.get(NODES, name)).metadata.labels

    async def add_pod(self, name: str, *gates: str, scheduler: str = "") -> None:
        gated = [{"name": gate} for gate in gates]
        spec = {
            "schedulerName": scheduler,
            "containers": [{"name": "main", "image": "none"}],
            "schedulingGates": gated,
        }
        await self.client.create(PODS, {"metadata": {"name": name}, "spec": spec}, "default")

    async def add_job(self, name: str, annotations: dict[str, str], *, suspended: bool) -> None:
        template = {"spec": {"containers": [{"name": "main", "image": "none"}], "restartPolicy": "Never"}}
        body = {
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"suspend": suspended, "template": template},
        }
        await self.client.create(JOBS, body, "default")

    async def gates(self, name: str) -> list[str]:
        return [gate.name for gate in (await self.client.get(PODS, name, "default")).spec.scheduling_gates]

    async def clean(self, clock: Callable[[], float] | None = None, *, timeout_s: float = 500.0) -> Outcome:
        return await self.steps(clock=clock).run(timeout_s=timeout_s)

    def steps(self, *, clock: Callable[[], float] | None = None, **more: Any) -> Cleanup:
        return Cleanup(
            self.client,
            lease_namespace=NAMESPACE,
            lease_name=LEASE_NAME,
            handover_s=5.0,
            poll_s=0.0,
            clock=clock or Rounds(),
            **more,
        )


def play(tmp_path: Path, scenario: Scenario) -> None:
    async def main() -> None:
        async with FakeCluster(custom_resource_definitions()) as cluster:
            kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
            async with KubeClient.connect(kubeconfig=kubeconfig) as client, asyncio.timeout(30.0):
                await scenario(Stage(cluster, client, kubeconfig))

    asyncio.run(main())


def test_the_operators_lease_is_ours() -> None:
    assert program.CleanupSettings().lease_name == LEASE_NAME


def test_the_grid_controllers_words_are_ours() -> None:
    assert (grid_facts.SUSPENDED_SINCE, grid_facts.WORK_DONE) == (GRID_SUSPENDED_SINCE, GRID_WORK_DONE)
    assert grid_facts.BUDGET_WAITING_SINCE == BUDGET_WAITING_SINCE
    assert grid_guard.LEASE_NAME == GRID_LEASE


def test_pods_and_jobs_that_wait_for_the_grid_go_on(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        client = stage.client
        await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        gating = {"metadata": {"name": "joulie-grid-gating"}, "data": {"enabled": "true"}}
        await client.create(CONFIG_MAPS, gating, NAMESPACE)
        lease = {"metadata": {"name": GRID_LEASE}, "spec": {"holderIdentity": "controller"}}
        await client.create(LEASES, lease, NAMESPACE)
        notes = {GRID_SUSPENDED_SINCE: "2026-01-01T00:00:00Z", GRID_WORK_DONE: "60"}
        await stage.add_job("ours", notes, suspended=True)
        await stage.add_job("theirs", {}, suspended=True)
        await stage.add_job("left", {GRID_SUSPENDED_SINCE: ""}, suspended=True)
        await stage.add_job("running", notes, suspended=False)
        await stage.add_job("of-budget", {BUDGET_WAITING_SINCE: "2026-01-01T00:00:00Z"}, suspended=True)
        await stage.add_pod("gated", "joulie.io/grid")
        await stage.add_pod("budgeted", "joulie.io/budget")

        outcome = await stage.clean()
        assert outcome == Outcome(gates_removed=2, jobs_resumed=2)
        assert await stage.gates("gated") == await stage.gates("budgeted") == []
        assert (await client.get(CONFIG_MAPS, "joulie-grid-gating", NAMESPACE)).data == {"enabled": "false"}
        # Its controller leads no more, and so gates nothing anew.
        assert (await client.get(LEASES, GRID_LEASE, NAMESPACE)).spec.holder_identity == "joulie-cleanup"
        jobs = {job.metadata.name: job for job in (await client.list(JOBS)).items}
        assert {name: job.spec.suspend for name, job in jobs.items()} == {
            "ours": False,
            "theirs": True,
            "left": True,
            "running": False,
            "of-budget": False,
        }
        assert jobs["ours"].metadata.annotations == jobs["of-budget"].metadata.annotations == {}

    play(tmp_path, scenario)


def test_lowered_maxima_of_autoscalers_are_restored(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        record = '{"original":20,"ceiling":5,"since":"2026-01-01T00:00:00Z","changed":"2026-01-01T00:00:00Z"}'
        asks = {"joulie.io/carbon-max-replicas": "5"}
        for name, maximum in (("ours", 5), ("changed-by-others", 7)):
            annotations = {**asks, "joulie.io/replica-ceiling": record}
            body = {"metadata": {"name": name, "annotations": annotations}, "spec": {"maxReplicas": maximum}}
            await stage.client.create(HORIZONTAL_POD_AUTOSCALERS, body, "default")
        assert await stage.steps().restore_maxima() == Outcome(maxima_restored=1)
        found = {one.metadata.name: one for one in (await stage.client.list(HORIZONTAL_POD_AUTOSCALERS)).items}
        assert {name: one.spec.max_replicas for name, one in found.items()} == {"ours": 20, "changed-by-others": 7}
        assert all(one.metadata.annotations == asks for one in found.values())
        lowered = {"metadata": {"annotations": {"joulie.io/replica-ceiling": record}}, "spec": {"maxReplicas": 5}}
        await stage.client.patch(HORIZONTAL_POD_AUTOSCALERS, "ours", lowered, namespace="default")
        assert (await stage.clean()).maxima_restored == 1

    play(tmp_path, scenario)


def test_the_grid_alone_is_let_go(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.add_node("a")
        await stage.add_pod("gated", "joulie.io/grid")
        steps = Cleanup(stage.client, lease_namespace=NAMESPACE, lease_name=LEASE_NAME, handover_s=0.0, poll_s=0.0)
        assert await steps.release_grid(timeout_s=0.0) == Outcome(), "there has never been one"
        await stage.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        lease = {"metadata": {"name": GRID_LEASE}, "spec": {"holderIdentity": "controller"}}
        await stage.client.create(LEASES, lease, NAMESPACE)
        assert await steps.release_grid(timeout_s=0.0) == Outcome(gates_removed=1)
        assert await stage.gates("gated") == []
        assert (await stage.twin("a")).spec.cpu is not None, "caps stay"

    play(tmp_path, scenario)


def test_trap_nobody_leads_again_while_thousands_of_gates_are_lifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps_module, "LEASE_RENEW_INTERVAL_S", 0.001)

    async def scenario(stage: Stage) -> None:
        await stage.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        for name in (GRID_LEASE, LEASE_NAME):
            await stage.client.create(LEASES, {"metadata": {"name": name}, "spec": {}}, NAMESPACE)
        for index in range(50):
            await stage.add_pod(f"gated-{index}", "joulie.io/grid")
        taken: set[str | None] = set()
        outcome = Cleanup._releaser

        def watched(self: Cleanup, pod: Any) -> Any:
            release = outcome(self, pod)

            async def release_and_look() -> None:
                await asyncio.sleep(0.01)
                taken.add((await stage.client.get(LEASES, GRID_LEASE, NAMESPACE)).spec.renew_time)
                await release()

            return release_and_look

        monkeypatch.setattr(Cleanup, "_releaser", watched)
        steps = Cleanup(stage.client, lease_namespace=NAMESPACE, lease_name=LEASE_NAME, handover_s=0.0, poll_s=0.0)
        assert await steps.release_grid(timeout_s=0.0) == Outcome(gates_removed=50)
        assert len(taken) > 1, "renewed meanwhile"
        operator = await stage.client.get(LEASES, LEASE_NAME, NAMESPACE)
        assert operator.spec.holder_identity is None, "the operator stays"

    play(tmp_path, scenario)


def test_nothing_is_left(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        for name in ("a", "ip-10-0-0-1.eu"):
            await stage.add_node(name)
            await stage.report(name, IN_FORCE)
        await stage.add_node("plain", labels={"tier": "gold"}, spec={"profile": "performance"})
        await stage.report("plain", AS_FOUND)
        await stage.add_pod("gated", "joulie.io/carbon", "example.com/other")
        await stage.add_pod("others", "example.com/other")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stage.answer("a", "ip-10-0-0-1.eu"))
            outcome = await stage.clean()
        assert outcome == Outcome(restored=3, labels_removed=2, gates_removed=1)
        for name in ("a", "ip-10-0-0-1.eu"):
            spec = (await stage.twin(name)).spec
            assert (spec.profile, spec.cpu, spec.gpu, spec.scheduling, spec.policy) == ("performance", *[None] * 4)
            assert await stage.labels(name) == {names.MANAGED_LABEL: "true"}
        assert (await stage.labels("plain"))["tier"] == "gold"
        assert await stage.gates("gated") == ["example.com/other"]
        assert await stage.gates("others") == ["example.com/other"]
        # Again there is nothing to do, and nobody to wait for.
        assert await stage.clean(Rounds()) == Outcome(restored=3)

    play(tmp_path, scenario)


def test_nodes_whose_agent_does_not_answer_are_named(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        for name in ("alive", "dead", "never", "refuses"):
            await stage.add_node(name)
        for name in ("alive", "dead"):
            await stage.report(name, IN_FORCE)
        await stage.report("refuses", AS_FOUND, failed("nvml", "original limits not restored: gpu-0: lost"))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stage.answer("alive"))
            outcome = await stage.clean(timeout_s=15.0)
        assert outcome.restored == 1
        assert outcome.not_restored == {
            "dead": "CPU applied: 2 x 123 W in force for a cap of 60 %",
            "never": "no agent has reported",
            "refuses": "GPU error: original limits not restored: gpu-0: lost",
        }
        # Their labels go all the same, and so do the caps: an agent that comes back restores.
        assert outcome.labels_removed == 4
        assert is_lifted(await stage.twin("dead"))

    play(tmp_path, scenario)


def test_h17_label_of_a_pending_restore_stays_where_nobody_confirmed_it(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        label = {names.RESTORE_PENDING_LABEL: "true"}
        for name in ("alive", "dead", "no-twin"):
            await stage.add_node(name, labels=label)
        for name in ("alive", "dead"):
            await stage.report(name, IN_FORCE)
        await stage.client.delete(NODE_TWINS, "no-twin")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stage.answer("alive"))
            await stage.clean(timeout_s=15.0)
        assert [names.RESTORE_PENDING_LABEL in await stage.labels(name) for name in ("alive", "dead", "no-twin")] == [
            False,
            True,
            False,
        ]

    play(tmp_path, scenario)


def test_the_mode_that_a_trial_set_goes_with_it(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.add_node("in-trial", labels={names.MODE_LABEL: "enforce", names.TRIAL_LABEL: "july"})
        await stage.add_node("by-hand", labels={names.MODE_LABEL: "observe"})
        await stage.clean(timeout_s=15.0)
        assert not {names.MODE_LABEL, names.TRIAL_LABEL} & (await stage.labels("in-trial")).keys()
        assert (await stage.labels("by-hand"))[names.MODE_LABEL] == "observe"

    play(tmp_path, scenario)


def test_nodes_that_sleep_are_opened_and_taints_of_others_stay(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        other = {"key": "nvidia.com/gpu", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
        for name, mark, taints in (
            ("asleep", {names.SLEEP_STATE_ANNOTATION: "asleep since 1", "other": "x"}, [other, TAINT]),
            ("garbled", {names.SLEEP_STATE_ANNOTATION: ""}, []),
            ("removable", {names.REMOVABLE_ANNOTATION: "2026-01-01T00:00:00Z"}, []),
        ):
            await stage.add_node(name)
            await stage.client.patch(NODES, name, {"metadata": {"annotations": mark}, "spec": {"taints": taints}})
        off = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
        for name in ("asleep", "removable"):
            await stage.client.patch(NODES, name, off, subresource="status")
        outcome = await stage.clean(timeout_s=15.0)
        assert (outcome.problems, outcome.nodes_opened, outcome.nodes_off) == ([], 1, ["asleep"])
        for name, left, annotations in (
            ("asleep", [other], {"other": "x"}),
            ("garbled", [], {}),
            ("removable", [], {}),
        ):
            node = json.loads(await stage.client.raw("GET", f"/api/v1/nodes/{name}"))
            assert node["spec"].get("taints", []) == left
            assert node["metadata"].get("annotations", {}) == annotations
            assert names.POWER_PROFILE_LABEL not in node["metadata"]["labels"]

    play(tmp_path, scenario)


def test_ranges_of_gpu_limits_go_with_the_operator_that_published_them(tmp_path: Path) -> None:
    ranges = dict.fromkeys(names.GPU_LIMIT_RANGE_LABELS, "200000")

    async def scenario(stage: Stage) -> None:
        await stage.add_node("published")
        body = {"metadata": {"labels": ranges}}
        await stage.client.apply(NODES, "published", body, field_manager=names.GPU_RANGE_FIELD_MANAGER)
        await stage.add_node("of-feature-discovery", labels=ranges)
        outcome = await stage.clean(timeout_s=15.0)
        assert (outcome.problems, outcome.labels_removed) == ([], 1)
        assert not ranges.keys() & (await stage.labels("published")).keys()
        assert ranges.items() <= (await stage.labels("of-feature-discovery")).items()

    play(tmp_path, scenario)


def test_blocked_is_no_restore(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.add_node("a")
        await stage.report("a", blocked("http", "SIMULATE_ONLY: nothing is sent"))
        assert not_restored_reason(await stage.twin("a")) == "CPU blocked: SIMULATE_ONLY: nothing is sent"
        await stage.report("a", AS_FOUND)
        assert not_restored_reason(await stage.twin("a")) == ""

    play(tmp_path, scenario)


def test_an_operator_stops_leading_and_its_last_writes_are_undone(tmp_path: Path) -> None:
    """Between taking the Lease and the operator's noticing, caps may come back."""

    async def scenario(stage: Stage) -> None:
        await stage.add_node("a")
        await stage.report("a", AS_FOUND)
        await stage.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        led = asyncio.Event()
        lost = asyncio.Event()

        async def lead() -> None:
            led.set()
            try:
                while True:
                    if is_lifted(await stage.twin("a")):
                        await stage.cap("a", CAPPED)
                    await asyncio.sleep(0)
            finally:
                lost.set()

        operator = LeaderElector(
            stage.client,
            namespace=NAMESPACE,
            name=LEASE_NAME,
            identity="operator-1",
            retry_s=0.02,
            renew_deadline_s=1.0,
            lease_s=2.0,
        )
        running = asyncio.create_task(operator.run(lead))
        await led.wait()
        # As long as the operator leads, no second passes: the handover is over when it has noticed.
        clock = Rounds()
        steps = partial(stage.clean, lambda: clock() if lost.is_set() else 0.0)
        outcome = await steps()
        assert not operator.is_leader
        assert operator.transitions == 1
        assert outcome == Outcome(restored=1, labels_removed=1)
        assert is_lifted(await stage.twin("a"))
        lease = await stage.client.get(LEASES, LEASE_NAME, NAMESPACE)
        assert lease.spec.holder_identity == "joulie-cleanup"
        running.cancel()
        await asyncio.wait([running])

    play(tmp_path, scenario)


def test_an_operator_without_the_lease_is_told_of(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.add_node("a")
        await stage.report("a", AS_FOUND)

        api = stage.cluster.api
        twins = api.kind(names.GROUP, names.VERSION, NODE_TWINS.plural)

        def cap_again(_round: int) -> None:
            capped = {"nodeName": "a", "profile": "eco", **CAPPED}
            api.patch(twins, "", "a", lambda twin: {**twin, "spec": capped}, Writer("stubborn"))

        outcome = await stage.clean(Rounds(cap_again), timeout_s=8.0)
        (problem,) = outcome.problems
        assert problem.startswith("caps were set again during the cleanup, on a: ")
        assert f"{NAMESPACE}/{LEASE_NAME}" in problem

    play(tmp_path, scenario)


def test_a_gate_that_changed_meanwhile_stays_and_is_told(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.add_pod("gated", "joulie.io/carbon")
        stage.cluster.fail_next(9, 422, method="PATCH", path="/pods/gated")
        outcome = await stage.clean()
        assert outcome.gates_removed == 0
        assert outcome.problems[0].startswith("patch pods gated in namespace default: 422")

    play(tmp_path, scenario)


def test_r3_released_pods_are_bound_before_their_scheduler_goes(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.add_pod("mine", "joulie.io/grid", scheduler="second")
        await stage.add_pod("of-others", "example.com/wait", scheduler="second")
        await stage.add_pod("default", scheduler="default-scheduler")
        ended: list[Outcome] = []

        async def bind() -> None:
            while await stage.gates("mine"):
                await asyncio.sleep(0)
            for _ in range(20):
                await stage.gates("mine")
                assert not ended, "the cleanup waits for the scheduler"
            await stage.client.create_subresource(PODS, "mine", "binding", {"target": {"name": "n1"}}, "default")

        binding = asyncio.create_task(bind())
        ended.append(await stage.steps(schedulers=["second"]).run(timeout_s=1e6))
        await binding
        assert (ended[0].gates_removed, ended[0].unscheduled) == (1, [])

    play(tmp_path, scenario)


def test_r3_pods_that_a_full_cluster_leaves_behind_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def prepare(stage: Stage) -> None:
        await stage.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await stage.client.create(LEASES, {"metadata": {"name": GRID_LEASE}}, NAMESPACE)
        await stage.add_pod("train", "joulie.io/grid", scheduler="second")

    result = run_program(tmp_path, monkeypatch, prepare, SCHEDULER_NAMES="second", CLEANUP_ONLY_GRID="true")
    assert result.exit_code == 0
    assert "1 pod not scheduled yet" in result.stderr
    assert "default/train" in result.stderr


def test_r7_the_leases_go_with_the_release(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        account = await stage.client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "joulie-cleanup"}}, NAMESPACE)
        for name in (LEASE_NAME, GRID_LEASE, "second", "of-others"):
            await stage.client.create(LEASES, {"metadata": {"name": name}}, NAMESPACE)
        await stage.steps(schedulers=["second"], service_account="joulie-cleanup").run(timeout_s=0.0)
        leases = (await stage.client.list(LEASES, namespace=NAMESPACE)).items
        owners = {lease.metadata.name: [owner.uid for owner in lease.metadata.owner_references] for lease in leases}
        own = [account.metadata.uid]
        assert owners == {LEASE_NAME: own, GRID_LEASE: own, "second": own, "of-others": []}

    play(tmp_path, scenario)


def test_r7_a_cleanup_that_may_not_own_leases_goes_on(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await stage.client.create(LEASES, {"metadata": {"name": LEASE_NAME}}, NAMESPACE)
        stage.cluster.fail_next(1, 403, path="/serviceaccounts")
        outcome = await stage.steps(service_account="joulie-cleanup").run(timeout_s=0.0)
        assert outcome.problems == []

    play(tmp_path, scenario)


def test_an_agent_in_observe_mode_has_nothing_to_restore(tmp_path: Path) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.add_node("n1")
        said = {"cpu": {"result": "observed"}, "gpu": {"result": "observed"}}
        await stage.client.apply(
            NODE_TWINS,
            "n1",
            {"status": {"controlStatus": said}},
            field_manager=names.AGENT_FIELD_MANAGER,
            subresource="status",
        )
        assert (await stage.clean()).not_restored == {}

    play(tmp_path, scenario)


def run_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Scenario, **environment: str) -> Result:
    """The command as a user runs it, without its waiting."""
    monkeypatch.setattr(program, "Cleanup", partial(Cleanup, poll_s=0.0, handover_s=0.0, clock=Rounds()))
    results: list[Result] = []

    async def scenario(stage: Stage) -> None:
        await prepare(stage)
        variables = {"KUBECONFIG": str(stage.kubeconfig), "CLEANUP_TIMEOUT": "3s", "LOG_LEVEL": "error", **environment}
        results.append(await asyncio.to_thread(CliRunner().invoke, program.cleanup, [], env=variables))

    play(tmp_path, scenario)
    return results[0]


async def _dead_agent(stage: Stage) -> None:
    await stage.add_node("n1", labels={"example.com/profile": "eco"})
    await stage.report("n1", IN_FORCE)


def test_what_people_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_program(tmp_path, monkeypatch, _dead_agent, POWER_PROFILE_LABEL="example.com/profile")
    assert result.exit_code == 0
    assert result.stdout == "0 nodes restored, 1 node unlabelled, 0 pods released\n"
    assert result.stderr.splitlines() == [
        "1 node not restored; limits return when an agent starts there again, or at the next boot:",
        "  n1: CPU applied: 2 x 123 W in force for a cap of 60 %",
    ]


def test_strict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_program(tmp_path, monkeypatch, _dead_agent, CLEANUP_STRICT="true").exit_code == 1


def test_a_cluster_that_cannot_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def forbid(stage: Stage) -> None:
        stage.cluster.fail_next(9, 403, path="/nodetwins")

    result = run_program(tmp_path, monkeypatch, forbid)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: list nodetwins.joulie.io: 403")
