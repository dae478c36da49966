"""Nodes that sleep, on a real control plane: the operator with the chart's rights, the real kube-scheduler."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.demand import CONFIG_MAP, encode_demand
from joulie.domain.scheduling.node_rules import ANYWHERE
from joulie.domain.sleep.demand import SLOT_S, DemandHistory
from joulie.domain.sleep.snapshot import Room
from joulie_lab.control_plane import Binaries, LocalControlPlane, wait_for
from joulie_lab.control_plane.components import Network
from joulie_lab.control_plane.power_switches import ANNOTATION, PowerSwitches
from support.loop import CPU_ONLY, NAMESPACE, NODES, PATIENCE_S, PODS, TWINS, Json, Loop, Program, node, pod

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

SLEEP = {
    "SLEEP": "enforce",
    "SLEEP_INTERVAL": "300ms",
    "SLEEP_EMPTY": "1s",
    "SLEEP_SETTLE": "1s",
    "POLICY_TYPE": "full_power",
}
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
DEDICATED = {"key": "dedicated", "value": "batch", "effect": "NoSchedule"}
ASLEEP = {"key": names.ASLEEP_TAINT, "effect": "NoSchedule"}
FULL_W, FLOOR_W = 1200.0, 1100.0
"""What a node could draw without limits and at its lowest: 2 x 500 W, 2 x 450 W, and a fifth of 1,000 W."""


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


def events_about(loop: Loop, name: str) -> list[tuple[str, str]]:
    """Reason and message of the events about an object."""
    events = loop.get(f"/api/v1/events?fieldSelector=involvedObject.name={name}")["items"]
    return [(one["reason"], one["message"]) for one in events]


def await_event(loop: Loop, about: str, reason: str, message: str, *perhaps: str) -> None:
    """Wait for the event of a reason about a pod, and accept some others: events are written beside the loop."""

    def told() -> bool:
        found = [message for why, message in events_about(loop, about) if why == reason]
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


@pytest.fixture(scope="module")
def switched_plane(
    control_plane_binaries: Binaries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalControlPlane]:
    """Simulated nodes that may be off, and the rights of an operator that also empties nodes."""
    logs, network = tmp_path_factory.mktemp("switched"), Network(switched_nodes=True)
    with LocalControlPlane(binaries=control_plane_binaries, log_folder=logs, network=network, audit=True) as plane:
        yield plane


@pytest.fixture(scope="module")
def switched_loop(switched_plane: LocalControlPlane) -> Loop:
    return Loop(
        switched_plane,
        "mode=enforce",
        "operator.settings.SLEEP=enforce",
        "operator.settings.SLEEP_CONSOLIDATE_NODES=1",
    )


@pytest.fixture
def switched(switched_loop: Loop) -> Iterator[Loop]:
    """Those of `switched_plane`, without nodes and pods."""
    yield switched_loop
    for program in switched_loop.programs.values():
        program.process.stop()
    for path in (DEPLOYMENTS, BUDGETS, NODES):
        switched_loop.plane.request("DELETE", path)
    switched_loop.delete_pods()
    switched_loop.lift_budgets()


def start_with_switches(loop: Loop, replica: str, switches: PowerSwitches, folder: Path, **settings: str) -> Program:
    file, authority = switches.write_file(folder / "switches.yaml"), loop.plane.authority.certificate
    own = {"SLEEP_SWITCHES": str(file), "SLEEP_SWITCHES_CA": str(authority)}
    return loop.start_operator(replica, **SLEEP, **own, **settings)


def add_busy_node(loop: Loop, name: str) -> None:
    """A node with a pod that nobody may move, and room for small ones."""
    loop.plane.create_nodes([node(name, CPU_ONLY, annotations=ANNOTATION)])
    loop.create(pod("busy", on=name, requests={"cpu": "300"}))
    assert loop.await_placed("busy") == name


def test_a_node_with_a_power_switch_is_off_while_it_sleeps_and_boots_for_a_pod(switched: Loop, tmp_path: Path) -> None:
    """Redfish over HTTPS, a kubelet that falls silent, and a boot with a name of its own."""
    loop = switched
    add_busy_node(loop, "n1")
    loop.plane.create_nodes([node("n2", CPU_ONLY, annotations=ANNOTATION)])
    switches = PowerSwitches(loop.plane, ["n1", "n2"], boot_s=1.0)
    with switches.serving():
        start_with_switches(loop, "waking", switches, tmp_path)
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


def test_a_node_that_dies_asleep_is_given_up_and_another_one_wakes(switched: Loop, tmp_path: Path) -> None:
    """That one starts twice; and the first is open to pods again once it was repaired, although nobody woke it."""
    loop = switched
    add_busy_node(loop, "n5")
    loop.plane.create_nodes(node(name, CPU_ONLY, annotations=ANNOTATION) for name in ("n6", "n7"))
    switches = PowerSwitches(loop.plane, ["n5", "n6", "n7"], boot_s=1.0)
    with switches.serving():
        start_with_switches(loop, "giving-up", switches, tmp_path, SLEEP_WAKE_TIMEOUT="3s")
        dead, other = switches.machines["n6"], switches.machines["n7"]
        wait_for(lambda: not (dead.is_on or other.is_on), PATIENCE_S, "n6 and n7 are switched off")
        dead.dead = True
        loop.create(pod("huge", requests={"cpu": "200"}))
        wait_for(lambda: other.is_on, PATIENCE_S, "n7 is switched on in its place")
        switches.reset("n7", "ForceOff")
        switches.reset("n7", "On")
        assert loop.await_placed("huge") == "n7"
        await_states(loop, n5="", n6="failed", n7="")
        assert other.boots == 3
        await_node_event(loop, "n6", "DoesNotWake", "not ready")
        told = ("n6 is being woken for it", "n6 is waking", "n7 is waking")
        await_event(loop, "huge", "WaitsForNode", "n7 is being woken for it", *told)

        dead.dead = False
        switches.reset("n6", "On")
        await_node_event(loop, "n6", "Opened", "ready after it was given up")
    assert loop.refused() == []


def test_a_node_without_power_counts_with_its_worst_case_until_it_reports_again(switched: Loop, tmp_path: Path) -> None:
    """The others give for it; nobody closes or switches it, its pod stays, and none wakes in its place without room."""
    loop = switched
    add_busy_node(loop, "n8")
    loop.plane.create_nodes(node(name, CPU_ONLY, annotations=ANNOTATION) for name in ("n9", "n10"))
    loop.create(pod("work", on="n9", requests={"cpu": "300"}))
    assert loop.await_placed("work") == "n9"
    switches = PowerSwitches(loop.plane, ["n8", "n9", "n10"], boot_s=1.0)
    with switches.serving():
        operator = start_with_switches(loop, "outage", switches, tmp_path, POWER_BUDGET_INTERVAL="1s")
        await_states(loop, n8="", n9="", n10="asleep")
        wait_for(lambda: ready(loop, "n10") == "Unknown", PATIENCE_S, "n10 is switched off")
        watts = FULL_W + FLOOR_W + 70.0
        loop.set_budget(watts)
        await_curtailed(loop, watts, "n8", "n9")

        switches.reset("n9", "ForceOff")
        status = await_curtailed(loop, watts, "n8")
        assert status["worstCaseWatts"] >= FULL_W + FLOOR_W, "n9 may be back at any time, without limits"
        loop.create(pod("patient", requests={"cpu": "200"}))
        told = "a sleeping node has room for it; it waits for power, or for others to have woken"
        await_event(loop, "patient", "WaitsForNode", told)
        switches.reset("n9", "On")
        wait_for(lambda: ready(loop, "n9") == "True", PATIENCE_S, "n9 is back")
        # Its agent has not: what it reported was of the boot before.
        loop.set_budget(watts - 1.0)
        await_curtailed(loop, watts - 1.0, "n8")
        await_curtailed(loop, watts - 1.0, "n8", "n9")
        assert state(loop, "n9") == ""
        assert [on for _, on in switches.machines["n9"].switched] == [True, False, True]
        assert not switches.machines["n10"].is_on
        assert loop.await_placed("work") == "n9"
        assert loop.writes(operator, "pods") == []

        loop.lift_budgets()
        assert loop.await_placed("patient") == "n10"
    assert loop.refused() == []


def await_curtailed(loop: Loop, watts: float, *nodes: str) -> Json:
    """Wait until the budget fits since these nodes give, whose agents confirm what is asked of them; its status."""

    def curtailed() -> Json:
        for name in nodes:
            confirm(loop, name)
        status = loop.budget()
        assert (status.get("limitWatts"), status["conditions"].get("Enforced")) == (watts, "WorstCaseFits"), status
        assert [one["node"] for one in status["curtailed"]] == list(nodes), status
        return status

    return wait_for(curtailed, PATIENCE_S, f"{nodes} give for a budget of {watts:.0f} W", poll_s=0.5)


def confirm(loop: Loop, name: str) -> None:
    """The agent on a node has set what is asked of it, and says so."""
    report = {
        "cpu": {"backend": "rapl", "result": "applied"},
        "observedGeneration": loop.twin(name)["metadata"]["generation"],
        "bootID": stored(loop, name)["status"]["nodeInfo"]["bootID"],
    }
    loop.patch(f"{TWINS}/{name}/status", {"status": {"controlStatus": report}})


def test_a_node_with_few_pods_is_emptied_once_their_disruption_budget_lets_them_go(
    switched: Loop, tmp_path: Path
) -> None:
    """A Deployment's pod is evicted, and its next one has run elsewhere before the node is switched off."""
    loop = switched
    loop.plane.create_nodes([node("n4", CPU_ONLY, annotations=ANNOTATION)])
    before = deploy_one(loop, "few", {names.RESCHEDULABLE_ANNOTATION: "true"})
    add_busy_node(loop, "n3")
    switches = PowerSwitches(loop.plane, ["n3", "n4"], boot_s=1.0)
    with switches.serving():
        settings = {"SLEEP_CONSOLIDATE_MIN_POD_AGE": "1s", "SLEEP_CONSOLIDATE_PAUSE": "1s"}
        operator = start_with_switches(loop, "emptying", switches, tmp_path, SLEEP_CONSOLIDATE_NODES="1", **settings)
        refused = f"the disruption budget of pod default/{before} does not let it go"
        await_node_event(loop, "n4", "NotEmptied", refused)
        assert set(evictions(loop, operator)) == {429}
        written = [event["requestURI"] for event in loop.writes(operator, "nodes")]
        assert not any(names.SLEEP_FIELD_MANAGER in uri for uri in written), "it stays as it is"
        assert loop.pod(before)["spec"]["nodeName"] == "n4"

        loop.patch(f"{BUDGETS}/few", {"spec": {"minAvailable": 0}})
        await_states(loop, n3="", n4="asleep")
        wait_for(lambda: ready(loop, "n4") == "Unknown", PATIENCE_S, "n4 is switched off")
        assert [on for _, on in switches.machines["n4"].switched] == [True, False]
        (after,) = pods_of(loop, "few")
        assert after != before
        assert loop.await_placed(after) == "n3"
        assert loop.pod(before) == {}
        # Asked as a dry run before the node is marked, then done.
        answers = evictions(loop, operator)
        assert set(answers) == {429, 201}
        assert answers.count(201) >= 2
        told = "evicted from n4, which is emptied to sleep; n3 has room for it"
        await_event(loop, before, "Moved", told)
        for reason, why in (("Emptying", "1 pods fit"), ("ClosedToSleep", "its pods"), ("Asleep", "empty and")):
            await_node_event(loop, "n4", reason, why)
    assert operator.metric("joulie_operator_sleep_moves_total", result="moved") == 1.0
    assert loop.refused() == []


def deploy_one(loop: Loop, name: str, annotations: Json) -> str:
    """A Deployment with one pod, which a budget keeps where it is; the pod's name."""
    labels, wanted = {"app": name}, pod(name, annotations=annotations)
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": wanted["spec"]}
    body = {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    loop.plane.request("POST", DEPLOYMENTS, body)
    budget = {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "minAvailable": 1}}
    loop.plane.request("POST", BUDGETS, budget)
    (found,) = wait_for(lambda: pods_of(loop, name), PATIENCE_S, f"{name} has a pod")
    loop.await_placed(found)
    return found


def pods_of(loop: Loop, app: str) -> list[str]:
    """Names of the pods of a Deployment that are not on their way out."""
    found = loop.get(f"{PODS}?labelSelector=app={app}")["items"]
    return [one["metadata"]["name"] for one in found if "deletionTimestamp" not in one["metadata"]]


def evictions(loop: Loop, program: Program) -> list[int]:
    """What the API server answered to each eviction that a program asked for."""
    asked = [event for event in loop.writes(program, "pods") if event["objectRef"].get("subresource") == "eviction"]
    return [event["responseStatus"]["code"] for event in asked]


def await_node_event(loop: Loop, name: str, reason: str, message: str) -> None:
    """Wait for an event about a node whose message begins so."""

    def told() -> bool:
        found = events_about(loop, name)
        assert any(why == reason and said.startswith(message) for why, said in found), found
        return True

    wait_for(told, PATIENCE_S, f"{reason} is told of node {name}")


def ready(loop: Loop, name: str) -> str:
    """Whether a node is ready, as it says."""
    conditions = stored(loop, name)["status"]["conditions"]
    return str(next(one["status"] for one in conditions if one["type"] == "Ready"))
