"""Nodes that sleep, on a real control plane: the operator with the chart's rights, the real kube-scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.demand import CONFIG_MAP, encode_demand
from joulie.domain.scheduling.node_rules import ANYWHERE
from joulie.domain.sleep.demand import SLOT_S, DemandHistory
from joulie.domain.sleep.snapshot import Room
from joulie_lab.control_plane import LocalControlPlane, wait_for
from joulie_lab.control_plane.components import Network
from joulie_lab.control_plane.power_switches import ANNOTATION, PowerSwitches
from support.loop import CPU_ONLY, NAMESPACE, PATIENCE_S, Json, Loop, node, pod

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

SLEEP = {
    "SLEEP": "enforce",
    "SLEEP_INTERVAL": "300ms",
    "SLEEP_EMPTY": "1s",
    "SLEEP_SETTLE": "1s",
    "POLICY_TYPE": "full_power",
}
DEDICATED = {"key": "dedicated", "value": "batch", "effect": "NoSchedule"}
ASLEEP = {"key": names.ASLEEP_TAINT, "effect": "NoSchedule"}


def stored(loop: Loop, name: str) -> Json:
    found: Json = loop.get(f"/api/v1/nodes/{name}")
    return found


def state(loop: Loop, name: str) -> str:
    """First word of a node's mark; "" without one."""
    mark = stored(loop, name)["metadata"].get("annotations", {}).get(names.SLEEP_STATE_ANNOTATION, "")
    return str(mark).partition(" ")[0]


def await_states(loop: Loop, **wanted: str) -> None:
    def reached() -> bool:
        found = {name: state(loop, name) for name in wanted}
        assert found == wanted, found
        return True

    wait_for(reached, PATIENCE_S, f"nodes are {wanted}")


def await_event(loop: Loop, about: str, reason: str, message: str, *perhaps: str) -> None:
    """Wait for the event of a reason about a pod, and accept some others: events are written beside the loop."""

    def told() -> bool:
        events = loop.get(f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={about}")["items"]
        found = [one["message"] for one in events if one["reason"] == reason]
        assert {message} <= set(found) <= {message, *perhaps}, found
        return True

    wait_for(told, PATIENCE_S, f"pod {about} is told {reason}")


def keep_history(plane: LocalControlPlane, requests: Room) -> None:
    """A week in which such a pod came at this time of each day, as an operator before has kept it."""
    history, now_s = DemandHistory(), time.time()  # noqa: TID251 - real programs run in real time
    for day in range(7, 0, -1):
        for slot in range(-3, 4):
            history.watch(now_s - day * 86400.0 + slot * SLOT_S)
        history.arrived(requests, ANYWHERE, now_s - day * 86400.0)
    body = {"metadata": {"name": CONFIG_MAP}, "data": {"history": encode_demand(history)}}
    plane.request("POST", f"/api/v1/namespaces/{NAMESPACE}/configmaps", body)


def test_nodes_that_nobody_needs_sleep_and_a_pod_wakes_one(plane: LocalControlPlane) -> None:
    loop = Loop(plane, "mode=enforce", "operator.settings.SLEEP=enforce")
    plane.create_nodes(node(name, CPU_ONLY) for name in ("n1", "n2"))
    plane.create_nodes([node("n3", CPU_ONLY, taints=[DEDICATED])])
    loop.create(pod("busy", on="n1", requests={"cpu": "300"}))
    assert loop.await_placed("busy") == "n1"
    operator = loop.start_operator(**SLEEP)
    await_states(loop, n1="", n2="asleep", n3="asleep")
    assert stored(loop, "n2")["spec"]["taints"] == [ASLEEP]
    assert stored(loop, "n3")["spec"]["taints"] == [DEDICATED, ASLEEP], "taints of others stay"

    loop.create(pod("small"))
    assert loop.await_placed("small") == "n1", "which has room"
    loop.create(pod("large", requests={"cpu": "200"}))
    assert loop.await_placed("large") == "n2"
    await_states(loop, n2="", n3="asleep")
    await_event(loop, "large", "WaitsForNode", "n2 is being woken for it")

    operator.process.kill()
    loop.delete_pods("large")
    second = loop.start_operator("second", **SLEEP)
    await_states(loop, n1="", n2="asleep", n3="asleep")

    # One like it came at this time of each day of the last week: a node wakes before it is there.
    second.process.kill()
    keep_history(plane, Room(200.0, 1.0, 0.0, 1.0))
    loop.start_operator("third", **SLEEP)
    await_states(loop, n1="", n2="", n3="asleep")
    assert loop.pod("large") == {}
    label = {"metadata": {"labels": {names.KEEP_AWAKE_LABEL: "true"}}}
    for name in ("n2", "n3"):
        loop.patch(f"/api/v1/nodes/{name}", label)
    await_states(loop, n1="", n2="", n3="")
    assert "taints" not in stored(loop, "n2")["spec"]
    assert stored(loop, "n3")["spec"]["taints"] == [DEDICATED]
    assert loop.refused() == []


def test_a_node_with_a_power_switch_is_off_while_it_sleeps_and_boots_for_a_pod(
    start_control_plane: Callable[..., LocalControlPlane], tmp_path: Path
) -> None:
    """Redfish over HTTPS, a kubelet that falls silent, and a boot with a name of its own."""
    plane = start_control_plane(network=Network(switched_nodes=True), audit=True)
    loop = Loop(plane, "mode=enforce", "operator.settings.SLEEP=enforce")
    plane.create_nodes(node(name, CPU_ONLY, annotations=ANNOTATION) for name in ("n1", "n2"))
    loop.create(pod("busy", on="n1", requests={"cpu": "300"}))
    assert loop.await_placed("busy") == "n1"
    switches = PowerSwitches(plane, ["n1", "n2"], boot_s=1.0)
    with switches.serving():
        file, authority = switches.write_file(tmp_path / "switches.yaml"), plane.authority.certificate
        loop.start_operator(**SLEEP, SLEEP_SWITCHES=str(file), SLEEP_SWITCHES_CA=str(authority))
        await_states(loop, n1="", n2="asleep")
        wait_for(lambda: ready(loop, "n2") == "Unknown", PATIENCE_S, "n2 is switched off")
        assert ready(loop, "n1") == "True"

        loop.create(pod("large", requests={"cpu": "200"}))
        assert loop.await_placed("large") == "n2"
        await_states(loop, n1="", n2="")
        assert [on for _, on in switches.machines["n2"].switched] == [True, False, True]
        assert stored(loop, "n2")["status"]["nodeInfo"]["bootID"] == "n2-2"
        await_event(loop, "large", "WaitsForNode", "n2 is being woken for it", "n2 is waking")
    assert loop.refused() == []


def ready(loop: Loop, name: str) -> str:
    """Whether a node is ready, as it says."""
    conditions = stored(loop, name)["status"]["conditions"]
    return str(next(one["status"] for one in conditions if one["type"] == "Ready"))
