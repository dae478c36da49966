"""Two writers of one NodeTwin, and a world that does not keep still: edits by hand, nodes that go and come, outages.

And readings that are false, and clocks that jump: under PowerBudgets, by what the simulated nodes draw.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.times import parse_rfc3339
from joulie.domain.capping.trip import EARLIEST
from joulie_lab.control_plane import ApiError, LocalControlPlane, wait_for
from support.jumping_clock import JumpingClock
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
from support.native import compile_library
from support.plant_readings import PlantReadings

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

NODE_NAMES = [f"ip-10-0-0-{number}.eu-west-1.compute.internal" for number in range(1, 5)]
ACTIVE_A, ACTIVE_B, ECO_A, ECO_B = NODE_NAMES
REST = {ACTIVE_A: ACTIVE, ACTIVE_B: ACTIVE, ECO_A: ECO, ECO_B: ECO}
PACKAGE_MAX_W, GPU_MAX_W = 360.0, 400.0
DEVICES_MAX_W = 2 * PACKAGE_MAX_W + 8 * GPU_MAX_W
CPU_MIN_W, GPU_MIN_W = 320.0, 200.0
"""Lowest limits that the devices accept."""
FAST = {"TWIN_STALENESS_THRESHOLD": "10s", "RECONCILE_INTERVAL": "1s"}
"""Thirty times as fast as by default: what takes minutes takes seconds."""
RECENT_S = 120.0
OTHER_PCT = 5.0
OTHER_W = DEVICES_MAX_W * OTHER_PCT / 100.0
"""What these nodes draw at most beside their CPUs and GPUs."""

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
def clocks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, JumpingClock]:
    """Wall clocks of the programs that write times."""
    folder = tmp_path_factory.mktemp("clocks")
    library = compile_library("jumping_clock", folder / "jumping_clock.so")
    return {program: JumpingClock(library, folder / program) for program in ("agent", "operator")}


@pytest.fixture(scope="module")
def simulated(plane: LocalControlPlane) -> Loop:
    """The nodes alone."""
    loop = Loop(plane)
    plane.create_nodes(node(name, H100) for name in NODE_NAMES)
    loop.start_simulator()
    return loop


@pytest.fixture(scope="module")
def readings(simulated: Loop) -> Iterator[PlantReadings]:
    """All that the operator knows of their power."""
    readings = PlantReadings(simulated.programs["simulator"])
    with readings.serving():
        yield readings


@pytest.fixture(scope="module")
def loop(simulated: Loop, readings: PlantReadings, clocks: dict[str, JumpingClock]) -> Loop:
    simulated.start_agent(RECONCILE_INTERVAL="200ms", **clocks["agent"].environment)
    simulated.start_extender()
    own = {"POWER_BUDGET_OTHER_PCT": f"{OTHER_PCT:g}", **clocks["operator"].environment}
    simulated.start_operator(**FAST, **readings.settings, **own)
    return simulated


@pytest.fixture
def at_rest(loop: Loop, readings: PlantReadings, clocks: dict[str, JumpingClock]) -> Iterator[Loop]:
    await_rest(loop)
    yield loop
    loop.raise_if_any_ended()
    readings.disturb({})
    for clock in clocks.values():
        clock.jump_to(0)
    loop.delete_pods()
    loop.lift_overrides()
    loop.lift_budgets()


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
    loop.lift_budgets()
    await_rest(loop)
    assert {name: program.process.pid for name, program in loop.programs.items()} == process_ids


def limits_w(loop: Loop) -> dict[str, float]:
    """The power limits of the devices of each node together, W."""
    told = {name: loop.programs["simulator"].get(f"/telemetry/{name}") for name in NODE_NAMES}
    return {name: 2 * one["cpu"]["capWattsPerPackage"] + 8 * one["gpu"]["capWattsPerGpu"] for name, one in told.items()}


DISTURBED = dict(zip(("late", "lost", "stuck", "lying"), NODE_NAMES, strict=True))
"""What becomes of the readings of each node, which has a feed of its own."""
FEED_RESPONSE_S, RESPONSE_S = 10, 60
"""Response times: of feeds, to which readings are too old after half of it, and of a budget that needs none."""
LEASE_S = 15.0
HOUR_S = 3600


def test_budgets_are_kept_whatever_is_read_and_whoever_is_killed(
    at_rest: Loop, readings: PlantReadings, clocks: dict[str, JumpingClock]
) -> None:
    """By what nodes draw. Readings are false when the load comes; agent and operator die while limits fall."""
    loop = at_rest
    operator, agent = loop.programs["operator"], loop.programs["agent"]
    for name in (ECO_A, ECO_B):
        loop.override(name, "performance")
    for name in NODE_NAMES:
        loop.await_state(name, ACTIVE)
    loop.set_budget(1e6)
    full_w = loop.await_budget(1e6)["worstCaseWatts"]
    rated_w = 0.75 * full_w / len(NODE_NAMES)
    feed_w = round(0.99 * rated_w)
    for kind, name in DISTURBED.items():
        feed = {"nodeSelector": {"kubernetes.io/hostname": name}, "breaker": {"ratedWatts": rated_w}}
        loop.set_budget(feed_w, kind, responseSeconds=FEED_RESPONSE_S, **feed)
    for kind in DISTURBED:
        loop.await_budget(feed_w, "BreakerCarries", kind)
    began = len(readings.taken)

    readings.disturb({name: kind for kind, name in DISTURBED.items()})
    use = {names.SIM_GPU_UTIL_PCT_ANNOTATION: "100", names.SIM_CPU_UTIL_PCT_ANNOTATION: "100"}
    whole = {"nvidia.com/gpu": "8", "cpu": "190"}
    loop.create(*(pod(f"load-{kind}", on=name, requests=whole, annotations=use) for kind, name in DISTURBED.items()))
    await_blind(loop, hall="NoReading", late="OldReadings", lost="NoReading", stuck="OldReadings", lying="AllRead")
    for kind, name in DISTURBED.items():
        await_drawn(readings, [name], feed_w, f"the feed whose readings are {kind}")

    lowered = len(readings.taken)
    hall_w = round(3.7 * feed_w)
    agent.process.kill()
    loop.set_budget(hall_w, responseSeconds=RESPONSE_S)
    loop.await_budget(hall_w, "WaitingForAgents")
    agent.start()
    loop.await_budget(hall_w)
    await_drawn(readings, NODE_NAMES, hall_w, "the hall")
    assert readings.longest_over_s(NODE_NAMES, hall_w, lowered) <= RESPONSE_S

    lowered = len(readings.taken)
    hall_w = round(3.4 * feed_w)
    agent.process.pause()
    loop.set_budget(hall_w, responseSeconds=RESPONSE_S)
    loop.await_budget(hall_w, "WaitingForAgents")
    operator.process.kill()
    readings.disturb({})
    agent.process.resume()
    await_drawn(readings, NODE_NAMES, hall_w, "the hall, while no operator runs,")
    # To the next one, whose clock is wrong, the lease was renewed an hour ago.
    clocks["operator"].jump_to(HOUR_S)
    term, started_s = lease(loop), clock_s()
    operator.start()
    wait_for(lambda: clock_s() - started_s > LEASE_S / 2.0, PATIENCE_S, "it has looked at the lease")
    clocks["operator"].jump_to(0)
    wait_for(lambda: lease(loop) != term, PATIENCE_S, "it takes the lease")
    assert clock_s() - started_s >= LEASE_S
    loop.await_budget(hall_w)
    await_blind(loop, hall="AllRead", **dict.fromkeys(DISTURBED, "AllRead"))
    assert readings.longest_over_s(NODE_NAMES, hall_w, lowered) <= RESPONSE_S
    for name in NODE_NAMES:
        assert_carried(readings.taken[began:], name, rated_w)

    loop.lift_budgets()
    await_unlimited(loop)
    wait_for(lambda: readings.drawn_w(NODE_NAMES) > 4 * rated_w, PATIENCE_S, "nodes draw what they like")


def clock_s() -> float:
    return time.monotonic()  # noqa: TID251 - real programs run in real time


def await_blind(loop: Loop, **wanted: str) -> None:
    def told() -> bool:
        found = {name: loop.budget(name)["conditions"]["Blind"] for name in wanted}
        assert found == wanted, found
        return True

    wait_for(told, PATIENCE_S, f"budgets say what they read: {wanted}", poll_s=0.5)


def await_drawn(readings: PlantReadings, nodes: list[str], watts: float, who: str) -> None:
    def within() -> bool:
        drawn_w = readings.drawn_w(nodes)
        assert drawn_w <= watts, f"{drawn_w:.0f} W"
        return True

    wait_for(within, PATIENCE_S, f"{who} draws at most {watts:.0f} W")


def await_unlimited(loop: Loop) -> None:
    def unlimited() -> bool:
        set_w = limits_w(loop)
        assert set_w == dict.fromkeys(NODE_NAMES, DEVICES_MAX_W), set_w
        return True

    wait_for(unlimited, PATIENCE_S, "no limit is left")


def assert_carried(samples: list[tuple[float, dict[str, float]]], name: str, rated_w: float) -> None:
    """A breaker by the earliest trip curve would have carried what a node drew."""
    heat = 0.0
    for (before_s, _), (now_s, power_w) in itertools.pairwise(samples):
        load = power_w[name] / rated_w
        heat = float(EARLIEST.heated(heat, load, now_s - before_s))
        assert not EARLIEST.trips(heat, load), f"it trips {now_s - samples[0][0]:.0f} s after the load came"


def test_clocks_that_jump_by_an_hour_break_no_budget_and_leave_no_false_time(
    at_rest: Loop, clocks: dict[str, JumpingClock]
) -> None:
    """The operator's, the agent's, and both: forward and back in the middle of a curtailment."""
    loop = at_rest
    loop.set_budget(1e6)
    full_w = loop.await_budget(1e6)["worstCaseWatts"]
    term = lease(loop)
    recording = loop.record("nodetwins")
    share, kept_w = 1.0, {0: full_w}
    for jumping in (("operator",), ("agent",), ("operator", "agent")):
        for ahead_s in (HOUR_S, 0):
            for program in jumping:
                clocks[program].jump_to(ahead_s)
            share -= 0.02
            loop.set_budget(share * full_w)
            loop.await_budget(share * full_w)
            kept_w[int(loop.get(NODES)["metadata"]["resourceVersion"])] = share * full_w
            await_blind(loop, hall="AllRead" if ahead_s == 0 or jumping == ("agent",) else "NoReading")
            await_dated(loop, clocks)
    asked_w: dict[str, float] = {}
    for one in recording.stop():
        asked_w[one.name] = asked(one.object)
        limit_w = next(watts for version, watts in reversed(kept_w.items()) if version <= one.version)
        assert sum(asked_w.values()) + OTHER_W * len(NODE_NAMES) <= limit_w + 1.0, "a budget that was kept stays kept"
    assert lease(loop) == term
    assert loop.programs["operator"].metric("joulie_operator_leader") == 1.0


def lease(loop: Loop) -> tuple[str, int]:
    """Who leads, and for how many changes of leaders there were."""
    spec = loop.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/joulie-operator")["spec"]
    return spec["holderIdentity"], spec["leaseTransitions"]


def await_dated(loop: Loop, clocks: dict[str, JumpingClock]) -> None:
    """Wait until all is dated by the clocks as they are now, and the extender believes what is dated rightly."""

    def dated() -> bool:
        twins, budget = loop.twins().values(), loop.budget()
        now_s = clocks["operator"].now_s
        times = [budget["lastUpdated"], *(twin["status"]["lastUpdated"] for twin in twins)]
        late_s = [abs(now_s - parse_rfc3339(one)) for one in times]
        assert max(late_s) < RECENT_S, late_s
        since = [one["since"] for one in budget["curtailed"]]
        since += [one["lastTransitionTime"] for twin in twins for one in twin["status"]["conditions"]]
        assert max(map(parse_rfc3339, since)) <= now_s, since
        told = [twin["status"]["controlStatus"]["gpu"]["updatedAt"] for twin in twins]
        now_s = clocks["agent"].now_s
        assert min(now_s - parse_rfc3339(one) for one in told) < RECENT_S, told
        stale = {one["node"] for one in loop.programs["extender"].get("/debug/scoring")["nodes"] if not one["fresh"]}
        assert stale == (set() if right else set(NODE_NAMES)), stale
        return True

    right = clocks["operator"].ahead_s == 0
    wait_for(dated, PATIENCE_S, "all is dated by the clocks", poll_s=0.5)


def asked(twin: dict[str, Any]) -> float:
    """Limits of the devices of a node that its NodeTwin asks for together, W."""
    cpu, gpu = twin["spec"]["cpu"], twin["spec"]["gpu"]["powerCap"]
    cpu_w = cpu.get("packagePowerCapWatts", PACKAGE_MAX_W * cpu.get("packagePowerCapPctOfMax", 100.0) / 100.0)
    gpu_w = gpu.get("capWattsPerGpu", GPU_MAX_W * gpu.get("capPctOfMax", 100.0) / 100.0)
    return float(2 * cpu_w + 8 * gpu_w)


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
