"""Two writers of one NodeTwin, and a world that does not keep still: edits by hand, nodes that go and come, outages."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from joulie.adapters.kubernetes import names
from joulie_lab.control_plane import ApiError, LocalControlPlane, wait_for
from support.loop import (
    ACTIVE,
    ECO,
    H100,
    HARDWARES,
    JSON_PATCH,
    NAMESPACE,
    NODES,
    PATIENCE_S,
    TWINS,
    Loop,
    node,
    pod,
)

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

NODE_NAMES = [f"ip-10-0-0-{number}.eu-west-1.compute.internal" for number in range(1, 5)]
ACTIVE_A, ACTIVE_B, ECO_A, ECO_B = NODE_NAMES
REST = {ACTIVE_A: ACTIVE, ACTIVE_B: ACTIVE, ECO_A: ECO, ECO_B: ECO}
PACKAGE_MAX_W = 360.0
CPU_MIN_W, GPU_MIN_W = 320.0, 200.0
"""Lowest limits that the devices accept."""
FAST = {"TWIN_STALENESS_THRESHOLD": "10s", "RECONCILE_INTERVAL": "1s"}
"""Thirty times as fast as by default: what takes minutes takes seconds."""

OPERATORS_STATUS = {
    "schedulableClass",
    "predictedPowerHeadroomScore",
    "predictedCoolingStressScore",
    "predictedPsuStressScore",
    "hardwareDensityScore",
    "estimatedPUE",
    "effectiveCapState",
    "powerMeasurement",
    "lastUpdated",
    "conditions",
}


@pytest.fixture(scope="module")
def loop(plane: LocalControlPlane) -> Loop:
    loop = Loop(plane)
    plane.create_nodes(node(name, H100) for name in NODE_NAMES)
    loop.start_simulator()
    loop.start_agent(RECONCILE_INTERVAL="200ms")
    loop.start_extender()
    loop.start_operator(**FAST)
    return loop


@pytest.fixture
def at_rest(loop: Loop) -> Iterator[Loop]:
    await_rest(loop)
    yield loop
    loop.raise_if_any_ended()
    loop.delete_pods()
    loop.lift_overrides()


def await_rest(loop: Loop) -> None:
    for name, state in REST.items():
        loop.await_state(name, state)

    def rests() -> bool:
        twins = [loop.twin(name) for name in REST]
        return all(complete(twin) and confirmed(twin) for twin in twins)

    wait_for(rests, PATIENCE_S, "all twins are complete, and their caps in force")


def confirmed(twin: dict[str, Any]) -> bool:
    """Whether the agent has confirmed all limits that are planned."""
    return all(one["reason"] != "NotConfirmed" for one in twin.get("status", {}).get("conditions", []))


def complete(twin: dict[str, Any]) -> bool:
    """Whether both writers have said all that they have to say."""
    status = twin.get("status", {})
    control = status.get("controlStatus", {})
    return (
        status.keys() >= OPERATORS_STATUS
        and twin["spec"].keys() >= {"nodeName", "profile", "cpu", "gpu", "policy", "scheduling"}
        and all(
            {"backend", "result", "message", "updatedAt"} <= control.get(part, {}).keys() for part in ("cpu", "gpu")
        )
    )


def managed(twin: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Fields by their manager and the subresource that it writes."""
    return {
        (entry["manager"], entry.get("subresource", "")): entry["fieldsV1"]
        for entry in twin["metadata"]["managedFields"]
    }


def test_agent_and_operator_write_one_twin_without_erasing_each_other(at_rest: Loop) -> None:
    """A dozen changes of caps and load, seen version by version: whatever was once said is never gone."""
    loop = at_rest
    recording = loop.record("nodetwins", managed_fields=True)
    operator, agent = loop.programs["operator"], loop.programs["agent"]
    written_before = len(loop.writes(operator, "nodetwins")), len(loop.writes(agent, "nodetwins"))
    rounds = 12
    for number in range(rounds):
        percent = 40.0 + 5.0 * number
        for name in (ECO_A, ECO_B):
            loop.override(name, "eco", cpu={"packagePowerCapPctOfMax": percent})
        use = {names.SIM_GPU_UTIL_PCT_ANNOTATION: "100"}
        loop.create(pod(f"load-{number}", on=ECO_A, requests={"nvidia.com/gpu": "1"}, annotations=use))
        if number >= 6:  # the load goes up, and down again
            loop.delete_pods(f"load-{number - 6}")

        def applied(percent: float = percent) -> bool:
            told = [loop.twin(name) for name in (ECO_A, ECO_B)]
            wanted = f"{percent / 100.0 * PACKAGE_MAX_W:.4g} W for each CPU package"
            return all(
                twin["spec"]["cpu"]["packagePowerCapPctOfMax"] == percent
                and twin["status"]["effectiveCapState"]["cpuPct"] == percent
                and twin["status"]["controlStatus"]["cpu"]["message"] == wanted
                for twin in told
            )

        wait_for(applied, PATIENCE_S, f"both writers tell of {percent:g} %")

    versions = [one for name in (ECO_A, ECO_B) for one in recording.seen(name)]
    recording.stop()
    assert {one.kind for one in versions} == {"ADDED", "MODIFIED"}  # never deleted and made anew
    assert [one.version for one in versions if not complete(one.object)] == []
    # Both wrote, and often.
    assert len(loop.writes(operator, "nodetwins")) - written_before[0] >= 4 * rounds
    assert len(loop.writes(agent, "nodetwins")) - written_before[1] >= 2 * rounds
    for one in versions:
        fields = managed(one.object)
        assert fields.keys() == {("joulie-operator", ""), ("joulie-operator", "status"), ("joulie-agent", "status")}
        assert fields["joulie-agent", "status"].keys() == {"f:status"}
        assert fields["joulie-agent", "status"]["f:status"].keys() == {"f:controlStatus"}
        assert "f:controlStatus" not in fields["joulie-operator", "status"]["f:status"]


def test_trap_dotted_node_names_have_one_name_everywhere(at_rest: Loop) -> None:
    """Spec and status of a node were once written to objects of two different names."""
    assert at_rest.twins().keys() == set(NODE_NAMES)
    hardware = at_rest.plane.request("GET", HARDWARES)["items"]
    assert {item["metadata"]["name"]: item["spec"]["nodeName"] for item in hardware} == {name: name for name in REST}
    for name, twin in at_rest.twins().items():
        assert twin["spec"]["nodeName"] == name
        assert complete(twin)
    assert {one["node"] for one in at_rest.programs["extender"].get("/debug/scoring")["nodes"]} == set(NODE_NAMES)


def test_trap_the_first_status_of_a_twin_is_one_that_its_schema_allows(at_rest: Loop) -> None:
    """A node that nobody knew: its very first versions are valid, and no write was refused."""
    loop, name = at_rest, "ip-10-0-9-9.eu-west-1.compute.internal"
    recording = loop.record("nodetwins")
    try:
        loop.plane.create_nodes([node(name, H100)])
        wait_for(lambda: complete(loop.twin(name)), PATIENCE_S, "its twin is complete")
        wait_for(lambda: any(complete(one.object) for one in recording.seen(name)), PATIENCE_S, "the recording has it")
        statuses = [one.object.get("status", {}) for one in recording.seen(name)]
        # The agent's part of a status may come before the operator's.
        classes = [status["schedulableClass"] for status in statuses if "schedulableClass" in status]
        assert set(classes) <= {"performance", "draining", "eco"}
        assert classes[0] in {"performance", "draining"}  # never capped before anybody looked
    finally:
        recording.stop()
        delete_node(loop, name)
    for program in loop.programs.values():
        refused = [event for event in loop.writes(program) if event["responseStatus"]["code"] in (400, 403, 422)]
        assert refused == []


def delete_node(loop: Loop, name: str) -> None:
    loop.delete(f"{NODES}/{name}")
    wait_for(lambda: not loop.twin(name), PATIENCE_S, f"the NodeTwin of {name} goes with it")
    wait_for(lambda: loop.get(f"{HARDWARES}/{name}") is None, PATIENCE_S, f"the NodeHardware of {name} goes with it")


@pytest.mark.parametrize("pause", [True, False], ids=["later", "at-once"])
def test_a_node_deleted_and_created_again_starts_anew(at_rest: Loop, pause: bool) -> None:
    loop = at_rest
    old = loop.plane.request("GET", f"{NODES}/{ECO_B}")["metadata"]["uid"]
    recording = loop.record("nodetwins")
    if pause:
        delete_node(loop, ECO_B)
    else:
        loop.delete(f"{NODES}/{ECO_B}")
    loop.plane.create_nodes([node(ECO_B, H100)])
    new = loop.plane.request("GET", f"{NODES}/{ECO_B}")["metadata"]["uid"]
    assert new != old

    def belongs() -> bool:
        objects = loop.twin(ECO_B), loop.get(f"{HARDWARES}/{ECO_B}") or {}
        owners = [[owner["uid"] for owner in item["metadata"]["ownerReferences"]] for item in objects if item]
        assert owners == [[new], [new]], f"owners are {owners}, the node is {new}"
        return complete(objects[0])

    wait_for(belongs, PATIENCE_S, "twin and hardware belong to the new node")
    loop.await_state(ECO_B, ECO)
    wait_for(belongs, PATIENCE_S, "they still do")

    def profiles() -> list[str]:
        return [
            one.object["spec"]["profile"]
            for one in recording.seen(ECO_B)
            if [owner["uid"] for owner in one.object["metadata"]["ownerReferences"]] == [new]
        ]

    # Another machine: what the last one of that name ran at is no reason to cap it before it was drained.
    assert wait_for(profiles, PATIENCE_S, "the recording has the new twin")[0] == "performance"
    recording.stop()


Edit = Callable[[Loop], Any]


def edit_twin(body: dict[str, Any], subresource: str = "") -> Edit:
    return lambda loop: loop.patch(f"{TWINS}/{ECO_A}{subresource}", body)


def edit_label(key: str, value: str | None) -> Edit:
    return lambda loop: loop.patch(f"{NODES}/{ECO_A}", {"metadata": {"labels": {key: value}}})


def edit_hardware(loop: Loop) -> None:
    loop.patch(f"{HARDWARES}/{ECO_A}/status", {"status": {"cpu": {"model": "made up", "sockets": 7}}})


EDITS: dict[str, Edit] = {
    "another cap": edit_twin({"spec": {"cpu": {"packagePowerCapPctOfMax": 30}}}),
    "a cap in watts, which would win": edit_twin({"spec": {"cpu": {"packagePowerCapWatts": 100}}}),
    "no caps": edit_twin({"spec": {"cpu": None, "gpu": None}}),
    "another profile": edit_twin({"spec": {"profile": "performance"}}),
    "a drain that is none": edit_twin({"spec": {"scheduling": {"draining": True}}}),
    "another class": edit_twin({"status": {"schedulableClass": "performance"}}, "/status"),
    "no status at all": lambda loop: loop.patch(
        f"{TWINS}/{ECO_A}/status", [{"op": "remove", "path": "/status"}], JSON_PATCH
    ),
    "another result of control": edit_twin(
        {"status": {"controlStatus": {"cpu": {"result": "error", "message": "made up"}}}}, "/status"
    ),
    "no twin": lambda loop: loop.delete(f"{TWINS}/{ECO_A}"),
    "another profile label": edit_label(names.POWER_PROFILE_LABEL, "performance"),
    "no profile label": edit_label(names.POWER_PROFILE_LABEL, None),
    "a draining label": edit_label(names.DRAINING_LABEL, "true"),
    "other hardware": edit_hardware,
    "no hardware": lambda loop: loop.delete(f"{HARDWARES}/{ECO_A}"),
}


def settled_facts(loop: Loop) -> dict[str, Any]:
    """What is said of a node, without what changes by itself: scores, watts, times."""
    twin, hardware = loop.twin(ECO_A), loop.get(f"{HARDWARES}/{ECO_A}") or {}
    status = twin.get("status", {})
    return {
        "spec": twin.get("spec"),
        "owners": twin.get("metadata", {}).get("ownerReferences"),
        "class": status.get("schedulableClass"),
        "caps": status.get("effectiveCapState"),
        "control": {
            part: (told.get("result"), told.get("message"))
            for part, told in status.get("controlStatus", {}).items()
            if part in {"cpu", "gpu"}
        },
        "conditions": {one["type"]: one["status"] for one in status.get("conditions", [])},
        "labels": {key: value for key, value in loop.labels(ECO_A).items() if key.startswith("joulie.io/")},
        "hardware": (hardware.get("spec"), hardware.get("status")),
    }


def test_what_is_edited_by_hand_is_healed(at_rest: Loop) -> None:
    before = settled_facts(at_rest)
    for what, edit in EDITS.items():
        edit(at_rest)

        def healed() -> bool:
            now = settled_facts(at_rest)
            different = {key: now[key] for key in before if now[key] != before[key]}
            assert not different, f"still different: {different}"
            return True

        wait_for(healed, PATIENCE_S, f"healed from {what}")
    limit_w = 0.6 * PACKAGE_MAX_W
    telemetry = partial(at_rest.programs["simulator"].get, f"/telemetry/{ECO_A}")
    wait_for(lambda: telemetry()["cpu"]["capWattsPerPackage"] == limit_w, PATIENCE_S, "the cap is in force again")


def test_a_twin_of_no_node_is_removed(at_rest: Loop) -> None:
    stray = {
        "apiVersion": "joulie.io/v1alpha1",
        "kind": "NodeTwin",
        "metadata": {"name": "nobody.example"},
        "spec": {"nodeName": "nobody.example", "profile": "eco"},
    }
    at_rest.plane.request("POST", TWINS, stray)
    wait_for(lambda: not at_rest.twin("nobody.example"), PATIENCE_S, "the stray twin is removed")


def test_trap_an_agent_of_one_machine_reads_nothing_of_the_others(at_rest: Loop, tmp_path: Path) -> None:
    """N agents that each list N twins are N squared; RBAC by name shows that it asks for its own objects only."""
    loop = at_rest
    loop.programs["agent"].process.stop()
    own = {"resourceNames": [ACTIVE_A], "verbs": ["list", "watch", "patch"]}
    lonely = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "lonely"},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes"], **own},
            {"apiGroups": ["joulie.io"], "resources": ["nodetwins", "nodehardwares"], **own},
            {"apiGroups": ["joulie.io"], "resources": ["nodehardwares/status", "nodetwins/status"], **own},
            {"apiGroups": ["joulie.io"], "resources": ["nodehardwares"], "verbs": ["create"]},
            {"apiGroups": ["joulie.io"], "resources": ["telemetryprofiles"], "verbs": ["list", "watch"]},
        ],
    }
    loop.plane.request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", lonely)
    loop.plane.kubectl("create", "serviceaccount", "lonely", "-n", NAMESPACE)
    loop.plane.kubectl(
        "create", "clusterrolebinding", "lonely", "--clusterrole=lonely", f"--serviceaccount={NAMESPACE}:lonely"
    )
    loop.delete(f"{HARDWARES}/{ACTIVE_A}")
    (tmp_path / "sys").mkdir()
    agent = loop.plane.spawn(
        "lonely-agent",
        [sys.executable, "-m", "joulie", "agent"],
        environment={
            "KUBECONFIG": str(loop.plane.kubeconfig_for("lonely", NAMESPACE)),
            "NODE_NAME": ACTIVE_A,
            "HOST_SYS": str(tmp_path / "sys"),
            "STATE_DIR": str(tmp_path / "state"),
            "METRICS_ADDR": "127.0.0.1:0",
        },
    )
    try:

        def published() -> bool:
            agent.raise_if_ended()
            return loop.get(f"{HARDWARES}/{ACTIVE_A}") is not None

        wait_for(published, PATIENCE_S, "the agent publishes its node's hardware")
        assert "forbidden" not in agent.log_tail().lower()
    finally:
        agent.stop()
        loop.delete(f"{HARDWARES}/{ACTIVE_A}")
        loop.programs["agent"].start()


def test_pods_are_placed_while_the_extender_is_down(at_rest: Loop) -> None:
    at_rest.programs["extender"].process.kill()
    at_rest.create(pod("meanwhile"))
    at_rest.await_placed("meanwhile")
    at_rest.programs["extender"].start()
    at_rest.create(pod("afterwards", workload_class="performance"))
    assert at_rest.await_placed("afterwards") in {ACTIVE_A, ACTIVE_B}


def test_every_write_was_granted(loop: Loop) -> None:
    # Asked before the API server restarts: until its RBAC is loaded again it refuses everybody for a moment.
    assert loop.refused() == []


def test_the_api_server_restarts_and_all_programs_go_on(at_rest: Loop) -> None:
    loop = at_rest
    process_ids = {name: program.process.pid for name, program in loop.programs.items()}
    generations = {name: twin["metadata"]["generation"] for name, twin in loop.twins().items()}
    scores = loop.wire_scores(pod("any"))
    loop.plane.stop("kube-apiserver")
    # Without it nothing is forgotten: placement and caps are as they were.
    assert loop.programs["extender"].ready()
    assert loop.wire_scores(pod("any")).keys() == scores.keys()
    said = loop.programs["simulator"].get(f"/telemetry/{ECO_A}")
    assert said["cpu"]["capWattsPerPackage"] == 0.6 * PACKAGE_MAX_W
    loop.plane.start("kube-apiserver")

    await_rest(loop)
    assert {name: twin["metadata"]["generation"] for name, twin in loop.twins().items()} == generations  # no flap
    loop.override(ACTIVE_B, "eco")
    loop.await_state(ACTIVE_B, ECO)
    loop.create(pod("after", workload_class="performance"))
    assert loop.await_placed("after") == ACTIVE_A
    loop.lift_overrides()
    await_rest(loop)
    assert {name: program.process.pid for name, program in loop.programs.items()} == process_ids


def test_a_curtailment_goes_on_after_the_api_server_was_away(at_rest: Loop) -> None:
    """Killed between a limit that was written and the agent that sets it, until the operator has given up its lease."""
    loop = at_rest
    process_ids = {name: program.process.pid for name, program in loop.programs.items()}
    operator, agent = loop.programs["operator"], loop.programs["agent"]
    loop.set_budget(1e6)
    full_w = loop.await_budget(1e6)["worstCaseWatts"]
    loop.set_budget(0.9 * full_w)
    loop.await_budget(0.9 * full_w)
    before_w = limits_w(loop)
    agent.process.pause()
    loop.set_budget(0.8 * full_w)
    loop.await_budget(0.8 * full_w, "WaitingForAgents")
    loop.plane.kill("kube-apiserver")
    agent.process.resume()
    wait_for(lambda: operator.metric("joulie_operator_leader") == 0.0, PATIENCE_S, "the operator gives up its lease")
    away_w = limits_w(loop)
    assert all(away_w[name] <= before_w[name] for name in NODE_NAMES), "at most what was on its way to the agent is set"
    loop.plane.start("kube-apiserver")

    loop.await_budget(0.8 * full_w)
    assert sum(limits_w(loop).values()) < sum(before_w.values())
    # Less than is possible is said to be, and all that is possible is given.
    loop.set_budget(100.0)
    loop.await_budget(100.0, "Infeasible")
    floor_w = 2 * CPU_MIN_W + 8 * GPU_MIN_W
    wait_for(lambda: max(limits_w(loop).values()) <= floor_w, PATIENCE_S, "all give what they can")
    loop.lift_budget()
    await_rest(loop)
    assert {name: program.process.pid for name, program in loop.programs.items()} == process_ids


def limits_w(loop: Loop) -> dict[str, float]:
    """The power limits of the devices of each node together, W."""
    told = {name: loop.programs["simulator"].get(f"/telemetry/{name}") for name in NODE_NAMES}
    return {name: 2 * one["cpu"]["capWattsPerPackage"] + 8 * one["gpu"]["capWattsPerGpu"] for name, one in told.items()}


def test_a_slow_etcd_is_outlasted(at_rest: Loop) -> None:
    """Long enough that no lease can be renewed and every write fails: nothing ends, nothing flaps."""
    loop = at_rest
    process_ids = {name: program.process.pid for name, program in loop.programs.items()}
    generations = {name: twin["metadata"]["generation"] for name, twin in loop.twins().items()}
    operator = loop.programs["operator"]
    loop.plane.pause("etcd")
    try:

        def nothing_is_written() -> bool:
            with pytest.raises(ApiError):
                loop.plane.request(
                    "PATCH",
                    f"{NODES}/{ACTIVE_A}",
                    {"metadata": {"annotations": {"tried": "1"}}},
                    content_type="application/merge-patch+json",
                    timeout_s=2,
                )
            return operator.metric("joulie_operator_leader") == 0.0

        wait_for(nothing_is_written, PATIENCE_S, "the operator gives up its lease rather than act without it")
        assert loop.programs["extender"].ready()
        loop.raise_if_any_ended()
    finally:
        loop.plane.resume("etcd")
    loop.await_leader("operator")
    await_rest(loop)
    assert {name: twin["metadata"]["generation"] for name, twin in loop.twins().items()} == generations
    loop.override(ACTIVE_B, "eco")
    loop.await_state(ACTIVE_B, ECO)
    assert {name: program.process.pid for name, program in loop.programs.items()} == process_ids
