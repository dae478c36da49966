"""Nodes that are emptied so that they can sleep, through the operator against the fake cluster."""

import dataclasses

import pytest

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.errors import TooManyRequestsError
from joulie.adapters.kubernetes.resources import NODES, PODS
from joulie.adapters.kubernetes.times import rfc3339
from joulie.apps.operator.settings import OperatorSettings
from joulie.apps.operator.settings.sleep import SleepMode
from joulie.domain.mode import Mode
from joulie.domain.sleep.snapshot import ConsolidationSettings
from joulie.program.leadership import NotLeadingError
from joulie.program.settings import settings_from
from support import sleep_stage
from support.disruption_budgets import set_budget
from support.operator_stage import until
from support.power_switches import Site
from support.sleep_stage import add, add_pod, closed, end_pod, events, look, sample

pytestmark = pytest.mark.slow

SWITCH = {"metadata": {"annotations": {names.POWER_SWITCH_ANNOTATION: "redfish"}}}
MOVABLE = {names.RESCHEDULABLE_ANNOTATION: "true"}


def play(body, tmp_path, *, max_nodes=1, few_pods=("few1", "few2"), **more):
    """Play with n1, which is busy for long, and n2 with few pods, which may be moved."""

    async def scenario(stage):
        site = Site("n1", "n2")
        connect(stage, site, max_nodes)
        for name in ("n1", "n2"):
            await add(stage, name)
            await stage.client.patch(NODES, name, SWITCH)
            await until(lambda name=name: stage.view.node(name).power_switch)
        await site.kubelets(stage)
        await add_running(stage, "busy", "n1", cpu="32", reschedulable=False)
        for name in few_pods:
            await add_running(stage, name, "n2")
        await body(stage, site)

    sleep_stage.play(scenario, tmp_path, **more)


def connect(stage, site, max_nodes=1):
    """Nodes are emptied as asked for, and have switches."""
    settings = {"SLEEP_CONSOLIDATE_NODES": str(max_nodes)}
    consolidation = settings_from(OperatorSettings, settings).consolidation
    stage.settings = dataclasses.replace(stage.settings, consolidation=consolidation)
    volumes = stage.loop._sleep._volumes
    stage.start()
    stage.loop._sleep._volumes = volumes
    stage.loop._sleep._power._switches = site


async def add_running(stage, name, node, *, cpu="4", reschedulable=True, age_s=7200.0, kind="ReplicaSet"):
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": "of-" + name, "uid": "of-" + name, "controller": True}
    annotations = MOVABLE if reschedulable else {}
    await add_pod(stage, name, node, cpu=cpu, labels={"app": name}, annotations=annotations, ownerReferences=[owner])
    status = {"startTime": rfc3339(stage.now_s - age_s)}
    await stage.client.patch(PODS, name, {"status": status}, namespace="default", subresource="status")
    await until(lambda: stage.view.pods[Key("default", name)].running_since_s is not None)


async def pods_on(stage, node):
    found = (await stage.client.list(PODS, field_selector=f"spec.nodeName={node}")).items
    return {pod.metadata.name for pod in found if pod.metadata.deletion_timestamp is None}


def moves(stage, result):
    return stage.metrics.registry.get_sample_value("joulie_operator_sleep_moves_total", {"result": result}) or 0.0


async def evicted(stage):
    """The pods of n2 are evicted, and end as soon as their kubelet sees it."""
    await look(stage)
    left = (await stage.client.list(PODS, field_selector="spec.nodeName=n2")).items
    for pod in left:
        assert pod.metadata.deletion_timestamp is not None
        await stage.client.delete(PODS, pod.metadata.name, "default", grace_s=0)
    await until(lambda: not any(Key("default", name) in stage.view.pods for name in ("few1", "few2")))


def test_nothing_is_moved_unless_asked_for(tmp_path):
    assert settings_from(OperatorSettings, {}).consolidation == ConsolidationSettings()

    async def body(stage, site):
        await look(stage, 60.0, times=5)
        assert await closed(stage) == {}
        assert await pods_on(stage, "n2") == {"few1", "few2"}

    play(body, tmp_path, max_nodes=0)


def test_a_node_is_emptied_then_sleeps(tmp_path):
    async def body(stage, site):
        await look(stage)
        assert await closed(stage) == {"n2": "emptying"}
        assert await pods_on(stage, "n2") == {"few1", "few2"}, "the mark first"
        await evicted(stage)
        assert moves(stage, "moved") == 2.0
        assert ("few1", "Moved") in await events(stage, "Pod")
        assert await closed(stage) == {"n2": "emptying"}
        await look(stage, times=4)
        assert await closed(stage) == {"n2": "cordoned"}
        await look(stage, 30.0, times=4)
        assert await closed(stage) == {"n2": "asleep"}
        assert await pods_on(stage, "n1") == {"busy"}
        assert {("n2", "Emptying"), ("n2", "ClosedToSleep"), ("n2", "Asleep")} <= await events(stage)
        assert sample(stage, "nodes", state="asleep", mode="enforce") == 1.0

    play(body, tmp_path)


def test_a_new_leader_goes_on_with_a_node_that_is_emptied(tmp_path):
    async def body(stage, site):
        await look(stage)
        connect(stage, site)
        assert await closed(stage) == {"n2": "emptying"}
        await evicted(stage)
        assert moves(stage, "moved") == 2.0

    play(body, tmp_path)


@pytest.mark.parametrize("how", [{"sleep": SleepMode.OBSERVE}, {"mode": Mode.OBSERVE}])
def test_observed_it_is_only_said_once(tmp_path, how):
    async def body(stage, site):
        await look(stage, times=10)
        assert await closed(stage) == {}
        assert await pods_on(stage, "n2") == {"few1", "few2"}
        assert await events(stage) == {("n2", "WouldEmpty")}
        assert sample(stage, "commands_total", action="empty", mode="observe") == 1.0
        planned = stage.loop._sleep.planned("n2")
        assert (planned.state, planned.reason.partition(";")[0]) == ("emptying", "2 pods fit elsewhere")
        for name in ("few1", "few2"):
            await end_pod(stage, name)
        await look(stage)
        assert stage.loop._sleep.planned("n2") is None, "they have gone by themselves"

    play(body, tmp_path, **how)


@pytest.mark.parametrize("change", [{"sleep": SleepMode.OFF}, {"mode": Mode.OBSERVE}, {}])
def test_it_is_opened_where_nodes_are_emptied_no_longer(tmp_path, change):
    async def body(stage, site):
        await look(stage)
        assert await closed(stage) == {"n2": "emptying"}
        stage.settings = dataclasses.replace(stage.settings, **change)
        if "mode" in change:
            await stage.client.patch(NODES, "n2", {"metadata": {"labels": {names.MODE_LABEL: "observe"}}})
            await until(lambda: not stage.view.node("n2").enforced)
        connect(stage, site, 1 if change else 0)
        await look(stage)
        assert await closed(stage) == {}
        assert await pods_on(stage, "n2") == {"few1", "few2"}

    play(body, tmp_path)


def test_a_disruption_budget_that_lets_no_pod_go_keeps_the_node(tmp_path):
    async def body(stage, site):
        set_budget(stage.cluster, "few2", 0)
        await look(stage, times=3)
        assert await closed(stage) == {}
        assert await pods_on(stage, "n2") == {"few1", "few2"}, "the API server was only asked"
        assert await events(stage) == {("n2", "NotEmptied")}
        set_budget(stage.cluster, "few2", 1)
        await look(stage, 3000.0)
        assert await closed(stage) == {}, "left alone for an hour"
        await look(stage, 1000.0)
        assert await closed(stage) == {"n2": "emptying"}

    play(body, tmp_path)


def test_a_refusal_in_between_is_a_wait_and_then_the_node_is_opened(tmp_path):
    async def body(stage, site):
        await look(stage)
        set_budget(stage.cluster, "few2", 0)
        await look(stage, times=6)
        assert await pods_on(stage, "n2") == {"few2"}
        assert (moves(stage, "refused"), moves(stage, "error")) == (1.0, 0.0), "not asked at each look"
        await look(stage, 30.0, times=30)
        assert await closed(stage) == {}
        assert await pods_on(stage, "n2") == {"few2"}

    play(body, tmp_path)


def test_a_pod_that_waits_opens_the_node_at_once_where_it_fits_nowhere_else(tmp_path):
    async def body(stage, site):
        await look(stage)
        await add_pod(stage, "large", cpu="40")
        await look(stage)
        assert await closed(stage) == {}
        assert await pods_on(stage, "n2") == {"few1", "few2"}

    play(body, tmp_path)


@pytest.mark.parametrize(
    "pod",
    [
        {"reschedulable": False},
        {"kind": "Job"},
        {"age_s": 60.0},
    ],
    ids=["does not say so", "would lose its work", "young"],
)
def test_a_pod_that_must_stay_keeps_its_node(tmp_path, pod):
    async def body(stage, site):
        await add_running(stage, "stays", "n2", cpu="16", **pod)
        await look(stage, times=3)
        assert await closed(stage) == {}

    play(body, tmp_path)


def test_nothing_is_evicted_without_the_lease_or_from_a_node_that_was_opened(tmp_path):
    async def body(stage, site):
        await look(stage)
        read = type(stage.loop._sleep)._read

        async def read_and_lose(self, name):
            found = await read(self, name)
            stage.leading = False
            return found

        stage.loop._sleep._read = read_and_lose.__get__(stage.loop._sleep)
        with pytest.raises(NotLeadingError):
            await look(stage)
        stage.leading = True
        assert await pods_on(stage, "n2") == {"few1", "few2"}

        async def read_changed(self, name):
            found = await read(self, name)
            found.metadata.annotations.pop(names.SLEEP_STATE_ANNOTATION, None)
            return found

        stage.loop._sleep._read = read_changed.__get__(stage.loop._sleep)
        await look(stage)
        assert await pods_on(stage, "n2") == {"few1", "few2"}

    play(body, tmp_path)


def test_no_node_is_closed_while_the_api_server_refuses_to_say_whether_its_pods_may_go(tmp_path, monkeypatch):
    async def body(stage, site):
        async def refused(*_args, **_more):
            raise TooManyRequestsError("busy", status=429)

        monkeypatch.setattr(stage.client, "create_subresource", refused)
        await look(stage)
        assert await closed(stage) == {}

    play(body, tmp_path)
