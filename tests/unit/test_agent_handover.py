"""H16: an agent that is stopped leaves the caps to the next one, and only where there is one."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from joulie.adapters.kubernetes.api.core import DaemonSetWithTemplate, Node
from joulie.adapters.kubernetes.resources import DAEMON_SETS, NAMESPACES, NODES
from joulie.apps.agent.handover import wants
from support.agent_machine import Bench, Machine, on_cluster, until
from support.sysfs_trees import intel_two_sockets

ECO = {"packagePowerCapPctOfMax": 60}
NAME, NAMESPACE = "joulie-agent", "joulie-system"
MANAGED = {"joulie.io/managed": "true"}


def daemon_set(**pod: Any) -> dict[str, Any]:
    spec = {"nodeSelector": MANAGED, **pod}
    return {"metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": {"template": {"spec": spec}}}


async def install(bench: Bench, **pod: Any) -> None:
    await bench.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    await bench.client.create(DAEMON_SETS, daemon_set(**pod), namespace=NAMESPACE)


def terms(*keys: str) -> dict[str, Any]:
    stated = [{"matchExpressions": [{"key": key, "operator": "Exists"}]} for key in keys]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": stated}}}


@pytest.mark.parametrize(
    ("pod", "labels", "taints", "wanted"),
    [
        ({}, MANAGED, [], True),
        ({}, {}, [], False),
        ({"nodeSelector": {**MANAGED, "gone": "true"}}, MANAGED, [], False),
        ({"nodeSelector": {}, "affinity": terms("a", "b")}, {"b": ""}, [], True),
        ({"nodeSelector": {}, "affinity": terms("a", "b")}, {"c": ""}, [], False),
        ({}, MANAGED, [{"key": "gpu", "effect": "NoSchedule"}], False),
        ({}, MANAGED, [{"key": "gpu", "effect": "PreferNoSchedule"}], True),
        ({"tolerations": [{"operator": "Exists"}]}, MANAGED, [{"key": "gpu", "effect": "NoExecute"}], True),
        # Pods of DaemonSets tolerate these by themselves, among them that of a cordoned node.
        ({}, MANAGED, [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}], True),
        ({}, MANAGED, [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}], True),
    ],
)
def test_h16_daemon_set_wants_the_node(
    pod: dict[str, Any], labels: dict[str, str], taints: list[dict[str, str]], wanted: bool
) -> None:
    node = msgspec.convert({"metadata": {"name": "n", "labels": labels}, "spec": {"taints": taints}}, Node)
    assert wants(msgspec.convert(daemon_set(**pod), DaemonSetWithTemplate), node) is wanted


@pytest.mark.parametrize("deleted", ["daemon_set", "node"])
def test_h16_what_is_being_deleted_wants_nothing(deleted: str) -> None:
    going = {"deletionTimestamp": "2026-11-23T08:00:00Z"}
    found = daemon_set()
    found["metadata"] |= going if deleted == "daemon_set" else {}
    node = {"metadata": {"name": "n", "labels": MANAGED, **(going if deleted == "node" else {})}}
    assert not wants(msgspec.convert(found, DaemonSetWithTemplate), msgspec.convert(node, Node))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pod", "left_w"),
    [
        pytest.param({}, 123.0, id="rollout"),
        pytest.param({"nodeSelector": {"other": "pool"}}, 205.0, id="node-left"),
        pytest.param(None, 205.0, id="uninstalled"),
    ],
)
def test_h16_limits_stay_only_where_the_next_agent_takes_over(
    tmp_path: Path, pod: dict[str, Any] | None, left_w: float
) -> None:
    machine = Machine(tmp_path, settings={"daemonset_names": ("joulie-agent-gpu", NAME)})
    intel_two_sockets(machine.sys)

    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        if pod is not None:
            await install(bench, **pod)
        await bench.ask(cpu=ECO)
        async with bench.agent():
            await until(lambda: machine.limit_w() == 123.0)
        assert machine.limit_w() == left_w
        # Whoever comes next restores the same originals.
        machine.settings.clear()
        async with bench.agent():
            await until(lambda: machine.limit_w() == 123.0)
        assert machine.limit_w() == 205.0

    on_cluster(machine, scenario)


@pytest.mark.slow
def test_h16_in_doubt_limits_are_restored(tmp_path: Path) -> None:
    machine = Machine(tmp_path, settings={"daemonset_names": (NAME,)})
    intel_two_sockets(machine.sys)

    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await install(bench)
        await bench.ask(cpu=ECO)
        async with bench.agent():
            await until(lambda: machine.limit_w() == 123.0)
            await bench.client.delete(NODES, machine.node)
        assert machine.limit_w() == 205.0

    on_cluster(machine, scenario)
