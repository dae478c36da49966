"""What profiles change in the whole loop: where kube-scheduler puts pods, what holds a drain, and what is evicted."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from joulie.adapters.kubernetes import names
from joulie_lab.control_plane import LocalControlPlane, wait_for
from support.loop import (
    ACTIVE,
    CPU_ONLY,
    DRAINING,
    ECO,
    H100,
    NODES,
    PATIENCE_S,
    PODS,
    Json,
    Loop,
    Program,
    Seen,
    State,
    kubectl_joulie,
    node,
    pod,
)

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
PROFILES = "/apis/joulie.io/v1alpha1/namespaces/default/workloadprofiles"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"

GPU_CAPS_PCT = {"gpu-free": 100, "gpu-mid": 75, "gpu-deep": 50}
COOL = ("cool-0", "cool-1", "cool-2")
CPU_NODES = ("cpu-free", "cpu-capped", "held", "idle", "hot", *COOL)
PAIR = "example.com/pair"
"""Label by which pods choose between two nodes."""
SHED = "example.com/shed"
"""Label of the nodes that may have the pods of the stressed node."""
BUDGET = 2

OPERATOR = {
    "STATIC_HP_FRAC": "1.0",
    "POWER_TREND_WINDOW": "5s",
    "CLASSIFY_SIMULATED": "true",
    "CLASSIFY_METRICS_WINDOW": "5s",
    "CLASSIFY_INTERVAL": "1s",
    "ENABLE_ACTIVE_RESCHEDULING": "true",
    "RESCHEDULE_COOLING_STRESS_PCT": "30",
    "RESCHEDULE_INTERVAL": "1s",
    "RESCHEDULE_COOLDOWN": "0s",
    "RESCHEDULE_MIN_POD_AGE": "1s",
    "RESCHEDULE_MAX_EVICTIONS_PER_NODE": "5",
}


@pytest.fixture(scope="module")
def loop(plane: LocalControlPlane) -> Loop:
    loop = Loop(plane, "operator.settings.ENABLE_ACTIVE_RESCHEDULING=true")
    plane.create_nodes([*(node(name, H100) for name in GPU_CAPS_PCT), *(node(name, CPU_ONLY) for name in CPU_NODES)])
    loop.start_simulator()
    loop.start_agent()
    loop.start_extender()
    loop.start_operator(**OPERATOR, RESCHEDULE_DRY_RUN="true")
    for name in (*GPU_CAPS_PCT, *CPU_NODES):
        loop.await_state(name, ACTIVE)
    return loop


def deployment(name: str, replicas: int, **template: Any) -> Json:
    """A Deployment of pods as `pod` makes them."""
    made = pod(name, labels={"app": name}, **template)
    content = {"metadata": made["metadata"], "spec": made["spec"]}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": content}
    return {"metadata": {"name": name}, "spec": spec}


def pods_of(loop: Loop, name: str) -> dict[str, Json]:
    """Pods of a Deployment by name."""
    items = loop.get(f"{PODS}?labelSelector=app%3D{name}")["items"]
    return {item["metadata"]["name"]: item for item in items}


def await_running(loop: Loop, name: str, replicas: int) -> dict[str, str]:
    """Wait until as many pods of a Deployment run; their nodes by name."""

    def running() -> dict[str, str]:
        found = pods_of(loop, name).values()
        assert [item["status"].get("phase") for item in found] == ["Running"] * replicas
        return {item["metadata"]["name"]: item["spec"]["nodeName"] for item in found}

    return wait_for(running, PATIENCE_S, f"{replicas} pods of {name} run")


def scale(loop: Loop, name: str, replicas: int) -> None:
    loop.patch(f"{DEPLOYMENTS}/{name}", {"spec": {"replicas": replicas}})


def profile(loop: Loop, name: str) -> Json:
    """Status of the WorkloadProfile of a Deployment."""
    found = loop.get(f"{PROFILES}/deployment-{name}") or {}
    return dict(found.get("status", {}))


def profile_of(name: str, deployment: str) -> Json:
    """A WorkloadProfile that somebody writes for a Deployment."""
    return {
        "apiVersion": "joulie.io/v1alpha1",
        "kind": "WorkloadProfile",
        "metadata": {"name": name},
        "spec": {"workloadRef": {"kind": "Deployment", "namespace": "default", "name": deployment}},
    }


def scores(loop: Loop, wanted: Json) -> dict[str, Json]:
    """How the extender comes to its score of each node for a pod, which need not exist."""
    explained = loop.programs["extender"].post("/debug/explain", wanted)
    return {one["node"]: one for one in explained["nodes"]}


def wire(loop: Loop, wanted: Json, *nodes: str) -> tuple[int, ...]:
    found = scores(loop, wanted)
    return tuple(found[name]["wireScore"] for name in nodes)


def pair_up(loop: Loop, pair: str, *nodes: str) -> dict[str, str]:
    """Let pods choose between nodes; the node selector that does it."""
    for name in nodes:
        loop.patch(f"{NODES}/{name}", {"metadata": {"labels": {PAIR: pair}}})
    return {PAIR: pair}


# -- sensitivity


@pytest.fixture(scope="module")
def capped_gpus(loop: Loop) -> Loop:
    """Performance nodes of which two have GPU caps."""
    for name, percent in GPU_CAPS_PCT.items():
        loop.override(name, "performance", gpu={"powerCap": {"scope": "perGpu", "capPctOfMax": percent}})

    def known() -> bool:
        seen = {one["node"]: one["gpuCapFraction"] for one in loop.programs["extender"].get("/debug/scoring")["nodes"]}
        return {name: seen.get(name) for name in GPU_CAPS_PCT} == {
            name: percent / 100.0 for name, percent in GPU_CAPS_PCT.items()
        }

    wait_for(known, PATIENCE_S, "the extender knows the caps")
    for name in GPU_CAPS_PCT:
        loop.await_state(name, ACTIVE)
    return loop


def gpu_pod(name: str, sensitivity: str, **spec: Any) -> Json:
    said = {names.GPU_SENSITIVITY_ANNOTATION: sensitivity}
    return pod(name, workload_class="performance", requests={"nvidia.com/gpu": "1"}, annotations=said, **spec)


def test_a_cap_costs_more_the_deeper_it_is_and_the_more_a_pod_is_sensitive(capped_gpus: Loop) -> None:
    for sensitivity, points in (("high", 20.0), ("medium", 10.0), ("low", 0.0)):
        found = scores(capped_gpus, gpu_pod("any", sensitivity))
        for name, percent in GPU_CAPS_PCT.items():
            one = found[name]
            assert one["allowed"]
            assert one["cappedPoints"] == pytest.approx(points * (1.0 - percent / 100.0))
            assert one["score"] == pytest.approx(one["base"] + one["congestionPoints"] - one["cappedPoints"])
        # What a CPU cap costs is another matter.
        assert {found[name]["cappedPoints"] for name in CPU_NODES} == {0.0}


def test_a_sensitive_performance_pod_avoids_the_capped_gpus_that_another_accepts(capped_gpus: Loop) -> None:
    """Two nodes as good as each other but for the cap, and the capped one has a little more room."""
    loop = capped_gpus
    pair = pair_up(loop, "gpu", "gpu-free", "gpu-deep")
    load = {names.SIM_GPU_UTIL_PCT_ANNOTATION: "100", names.SIM_CPU_UTIL_PCT_ANNOTATION: "0"}
    loop.create(pod("load", on="gpu-free", requests={"cpu": "8", "nvidia.com/gpu": "1"}, annotations=load))
    loop.await_placed("load")

    def settled() -> bool:
        found = {level: wire(loop, gpu_pod("any", level), "gpu-free", "gpu-deep") for level in ("low", "high")}
        assert found == {"low": (7, 7), "high": (7, 6)}
        return True

    wait_for(settled, PATIENCE_S, "the nodes score alike, but for sensitive pods")
    assert capped_gpus.twin("gpu-deep")["spec"]["profile"] == "performance"
    for number in range(2):
        loop.create(gpu_pod(f"low-{number}", "low", nodeSelector=pair))
        assert loop.await_placed(f"low-{number}") == "gpu-deep"
        loop.create(gpu_pod(f"high-{number}", "high", nodeSelector=pair))
        assert loop.await_placed(f"high-{number}") == "gpu-free"
    loop.delete_pods()


def test_an_unannotated_workload_is_classified_and_from_then_on_steered(loop: Loop) -> None:
    pair = pair_up(loop, "cpu", "cpu-free", "cpu-capped")
    loop.override("cpu-capped", "eco", cpu={"packagePowerCapPctOfMax": 50})
    loop.await_state("cpu-capped", State("eco", False, "eco", 50.0))
    # A little room less on the free node: that alone decides as long as nothing is known of the workload.
    loop.create(
        pod("filler", on="cpu-free", requests={"cpu": "16"}, annotations={names.SIM_CPU_UTIL_PCT_ANNOTATION: "0"})
    )
    loop.await_placed("filler")
    stranger = pod("stranger")
    wait_for(lambda: len(set(wire(loop, stranger, "cpu-free", "cpu-capped"))) == 1, PATIENCE_S, "the nodes score alike")
    solver = deployment(
        "solver",
        2,
        requests={"cpu": "100m"},
        annotations={names.SIM_CPU_UTIL_PCT_ANNOTATION: "95", names.SIM_MEMORY_PRESSURE_PCT_ANNOTATION: "10"},
        nodeSelector=pair,
        # One of its own, which asks for nothing, in place of what kube-scheduler spreads Deployments by.
        topologySpreadConstraints=[
            {
                "maxSkew": 100,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": "solver"}},
            }
        ],
    )
    loop.plane.request("POST", PROFILES, profile_of("nobody", "nobody"))
    recordings = {kind: loop.record(kind) for kind in ("pods", "workloadprofiles")}
    loop.plane.request("POST", DEPLOYMENTS, solver)
    first = await_running(loop, "solver", 2)
    assert set(first.values()) == {"cpu-capped"}

    def measured() -> bool:
        status = profile(loop, "solver")
        assert status.get("confidence", 0.0) >= 0.5
        assert status["classificationReason"] == (
            "cpu-intensity=high (util 95%≥75%); cpu-bound=compute, cap-sensitivity=high (util 95%>70%)"
        )
        return bool(status["criticality"] == {"class": "standard"})

    wait_for(measured, PATIENCE_S, "it is measured")

    def in_order() -> bool:
        placed = [_first(recordings["pods"].seen(name), lambda pod: "nodeName" in pod["spec"]) for name in first]
        known = _first(recordings["workloadprofiles"].seen("deployment-solver"), _is_confident)
        return max(placed) < known

    wait_for(in_order, PATIENCE_S, "they were placed before anything was known of them")
    for recording in recordings.values():
        recording.stop()
    loop.delete(f"{PROFILES}/nobody")
    some = next(iter(pods_of(loop, "solver").values()))

    def steered() -> bool:
        found = scores(loop, some)
        assert found["cpu-capped"]["cappedPoints"] == pytest.approx(10.0)
        return bool(found["cpu-capped"]["wireScore"] < found["cpu-free"]["wireScore"])

    wait_for(steered, PATIENCE_S, "the extender knows")
    assert scores(loop, stranger)["cpu-capped"]["cappedPoints"] == 0.0
    scale(loop, "solver", 4)
    second = await_running(loop, "solver", 4)
    assert {second[name] for name in second.keys() - first.keys()} == {"cpu-free"}
    assert {second[name] for name in first} == {"cpu-capped"}  # those that run are left alone
    loop.delete(f"{DEPLOYMENTS}/solver")
    loop.delete_pods("filler")


def _is_confident(found: Json) -> bool:
    return bool(found.get("status", {}).get("confidence", 0.0) >= 0.5)


def _first(changes: Sequence[Seen], holds: Callable[[Json], bool]) -> int:
    """The first version of an object of which something holds."""
    versions = [change.version for change in changes if holds(change.object)]
    assert versions, "not recorded yet"
    return min(versions)


# -- the drain


def test_a_profile_that_says_not_reschedulable_holds_the_drain(loop: Loop) -> None:
    """A profile that somebody wrote; the pods say nothing, and others like them hold nothing."""
    for name, on in (("ledger", "held"), ("cache", "idle")):
        loop.plane.request("POST", DEPLOYMENTS, deployment(name, 1, on=on))
        await_running(loop, name, 1)
    (only,) = pods_of(loop, "ledger").values()
    assert only["metadata"].get("annotations", {}) == {}
    loop.plane.request("POST", PROFILES, profile_of("somebodys", "ledger"))
    loop.patch(f"{PROFILES}/somebodys/status", {"status": {"migratability": {"reschedulable": False}}})
    # The classifier steps back: then it, and the drain guard beside it, know the profile.
    wait_for(
        lambda: not profile(loop, "ledger"), PATIENCE_S, "the classifier leaves the workload to somebody's profile"
    )
    full_w = {name: package_limit_w(loop, name) for name in ("held", "idle")}
    for name in ("held", "idle"):
        loop.override(name, "eco")
    loop.await_state("idle", ECO)
    loop.await_state("held", DRAINING)
    wait_for(lambda: package_limit_w(loop, "idle") == 0.6 * full_w["idle"], PATIENCE_S, "the other node is capped")
    assert package_limit_w(loop, "held") == full_w["held"]
    (why,) = [one for one in loop.twin("held")["status"]["conditions"] if one["type"] == "Draining"]
    assert why["reason"] == "BlockingPods"
    assert pods_of(loop, "ledger").keys() == {only["metadata"]["name"]}

    scale(loop, "ledger", 0)
    loop.await_state("held", ECO)
    wait_for(lambda: package_limit_w(loop, "held") == 0.6 * full_w["held"], PATIENCE_S, "it is capped now")
    loop.delete(f"{PROFILES}/somebodys")
    for name in ("ledger", "cache"):
        loop.delete(f"{DEPLOYMENTS}/{name}")


def package_limit_w(loop: Loop, name: str) -> float:
    """Limit in force of a node's CPU packages."""
    return float(loop.programs["simulator"].get(f"/telemetry/{name}")["cpu"]["capWattsPerPackage"])


# -- the rescheduler


@pytest.fixture(scope="module")
def crowd(loop: Loop) -> dict[str, str]:
    """Pods that put a node under stress, of which few say that they may be restarted; UIDs by name."""
    loop.patch(f"{NODES}/hot", {"metadata": {"labels": {SHED: "yes"}}})
    for name, replicas, cpus, said in (
        ("movable", 3, "10", {names.RESCHEDULABLE_ANNOTATION: "true"}),
        ("silent", 2, "80", {}),
        ("fixed", 1, "80", {names.RESCHEDULABLE_ANNOTATION: "false"}),
    ):
        loop.plane.request("POST", DEPLOYMENTS, deployment(name, replicas, **busy(cpus, said)))
        assert set(await_running(loop, name, replicas).values()) == {"hot"}
    # Nobody would create it again.
    loop.create(pod("alone", **busy("20", {names.RESCHEDULABLE_ANNOTATION: "true"})))
    loop.await_placed("alone")
    budget = {
        "metadata": {"name": "movable"},
        "spec": {"minAvailable": BUDGET, "selector": {"matchLabels": {"app": "movable"}}},
    }
    loop.plane.request("POST", BUDGETS, budget)
    await_allowed(loop, 1)
    wait_for(lambda: stress(loop) > 40.0, PATIENCE_S, "the node is under stress")
    return on_hot(loop)


def await_allowed(loop: Loop, disruptions: int) -> None:
    wait_for(
        lambda: loop.get(f"{BUDGETS}/movable").get("status", {}).get("disruptionsAllowed") == disruptions,
        PATIENCE_S,
        f"the budget allows {disruptions}",
    )


def busy(cpus: str, said: Mapping[str, str]) -> dict[str, Any]:
    annotations = {names.SIM_CPU_UTIL_PCT_ANNOTATION: "100", **said}
    return {"requests": {"cpu": cpus}, "annotations": annotations, "nodeSelector": {SHED: "yes"}}


def stress(loop: Loop) -> float:
    return float(loop.twin("hot").get("status", {}).get("predictedCoolingStressScore", 0.0))


def on_hot(loop: Loop) -> dict[str, str]:
    """UIDs of the pods of the stressed node by name."""
    items = loop.get(f"{PODS}?fieldSelector=spec.nodeName%3Dhot")["items"]
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in items}


def evictions(loop: Loop) -> list[tuple[str, int]]:
    """Pods that anybody asked to evict, and what the API server said."""
    return [
        (event["objectRef"]["name"], event["responseStatus"]["code"])
        for event in loop.plane.audit_events()
        if event["objectRef"].get("subresource") == "eviction"
    ]


def skipped(operator: Program, reason: str) -> float:
    return operator.metric("joulie_rescheduler_skipped_total", node="hot", reason=reason)


def await_steps(operator: Program, number: int) -> None:
    """Wait until an operator has reconciled a number of times: as often as it has looked whether to evict, or more."""

    def steps() -> float:
        return operator.metric("joulie_operator_reconciles_total", result="success")

    goal = steps() + number
    wait_for(lambda: steps() >= goal, PATIENCE_S, f"{number} more steps")


def test_a_dry_run_counts_and_evicts_nothing(loop: Loop, crowd: dict[str, str]) -> None:
    operator = loop.programs["operator"]
    await_steps(operator, 2)
    assert skipped(operator, "dry-run") == 0, "no other node admits the pods: nothing was to be evicted"
    for name in COOL:
        loop.patch(f"{NODES}/{name}", {"metadata": {"labels": {SHED: "yes"}}})
    wait_for(lambda: skipped(operator, "dry-run") >= 3, PATIENCE_S, "it would evict")

    def recommended() -> bool:
        told = loop.twin("hot")["status"].get("rescheduleRecommendations", [])
        assert [one["workloadRef"]["name"] for one in told] == ["movable"]
        assert told[0]["reason"].startswith("cooling stress ")
        assert profile(loop, "movable").get("rescheduleRecommended") is True
        return True

    wait_for(recommended, PATIENCE_S, "it recommends")
    recommendations = partial(operator.metric, "joulie_rescheduler_recommendations")
    wait_for(lambda: recommendations() == 1, PATIENCE_S, "it counts its recommendation")
    assert operator.metric("joulie_rescheduler_evictions_total") == 0
    assert evictions(loop) == []
    assert on_hot(loop) == crowd


def test_people_see_what_the_operator_knows(loop: Loop, crowd: dict[str, str]) -> None:
    """By kubectl's columns, and by the plugin through the API server and from the operator."""
    wait_for(
        lambda: (
            profile(loop, "movable").get("confidence", 0.0) > 0.6 and "rescheduleReason" in profile(loop, "movable")
        ),
        PATIENCE_S,
        "movable is measured, and recommended to move",
    )
    header, *rows = loop.plane.kubectl("get", "wp").splitlines()
    assert header.split() == ["NAME", "CLASS", "CPU", "GPU", "CPU-CAP", "GPU-CAP", "MOVABLE", "CONFIDENCE", "AGE"]
    movable = next(row.split() for row in rows if row.startswith("deployment-movable "))
    assert movable[1:8] == ["standard", "high", "none", "medium", "none", "true", "0.65"]

    told = {one["workload"]: one for one in joulie(loop, "profiles")["profiles"]}
    assert {f"Deployment/{name}" for name in ("movable", "silent", "fixed")} | {"Pod/alone"} <= told.keys()
    assert told["Deployment/movable"]["move"].startswith("hot: cooling stress ")
    assert told["Deployment/silent"]["move"] is None
    assert told["Deployment/fixed"]["reschedulable"] is False
    (move,) = joulie(loop, "recommend")["reschedule"]
    assert (move["node"], move["workload"]) == ("hot", "Deployment/movable")

    where = ("--operator-url", loop.programs["operator"].address)
    nodes = joulie(loop, "top", "nodes", *where)["items"]
    assert {one["name"] for one in nodes} == {*GPU_CAPS_PCT, *CPU_NODES}
    hottest = nodes[0]
    assert (hottest["name"], hottest["source"], hottest["quality"]) == ("hot", "http", "fresh")
    assert hottest["energyKwh"] > 0.0

    def adds_up() -> bool:
        # Each of these was told at its own moment.
        hottest = joulie(loop, "top", "nodes", *where)["items"][0]
        measured_w = loop.twin("hot")["status"]["powerMeasurement"]["measuredNodePowerW"]
        assert hottest["powerW"] == pytest.approx(measured_w, rel=0.02)
        drawn_w = {one["name"]: one["powerW"] for one in joulie(loop, "top", "pods", *where)["items"]}
        assert crowd.keys() <= drawn_w.keys()
        shared_w = sum(drawn_w[name] for name in crowd)
        assert shared_w + hottest["idleW"] + hottest["systemW"] == pytest.approx(measured_w, rel=0.02)
        (namespace,) = joulie(loop, "top", "namespaces", *where)["items"]
        assert (namespace["name"], namespace["pods"]) == ("default", len(drawn_w))
        assert namespace["powerW"] == pytest.approx(sum(drawn_w.values()), rel=0.02)
        return True

    wait_for(adds_up, PATIENCE_S, "power of pods adds up to that of node and namespace", poll_s=1.0)


def joulie(loop: Loop, *arguments: str) -> Json:
    """What `kubectl joulie` says."""
    return dict(json.loads(kubectl_joulie(loop.plane, *arguments, "-o", "json")))


def test_a_stressed_node_sheds_only_what_says_so_and_within_its_budget(loop: Loop, crowd: dict[str, str]) -> None:
    recording = loop.record("pods")
    loop.programs["operator"].process.stop()
    loop.patch(f"{BUDGETS}/movable", {"spec": {"minAvailable": 3}})
    await_allowed(loop, 0)
    operator = loop.start_operator("operator-evicting", **OPERATOR)
    for name in COOL:
        loop.patch(f"{NODES}/{name}", {"metadata": {"labels": {SHED: "yes"}}})
    wait_for(lambda: skipped(operator, "disruption-budget") >= 1, PATIENCE_S, "the budget refuses")
    assert on_hot(loop) == crowd

    # One at a time from now on.
    loop.patch(f"{BUDGETS}/movable", {"spec": {"minAvailable": BUDGET}})
    wait_for(
        lambda: set(await_running(loop, "movable", 3).values()) <= set(COOL),
        PATIENCE_S,
        "all that may be moved are elsewhere",
    )
    movable = {name for name in crowd if name.startswith("movable")}
    assert {name for name, code in evictions(loop) if code == 201} == movable
    assert {code for _, code in evictions(loop)} == {201, 429}
    counted = {"node": "hot", "namespace": "default", "reason": "cooling-stress"}
    evicted = partial(operator.metric, "joulie_rescheduler_evictions_total", **counted)
    wait_for(lambda: evicted() == len(movable), PATIENCE_S, "the evictions are counted")

    # The others stay, although the stress does.
    looks = len(evictions(loop))
    await_steps(operator, 2)
    assert stress(loop) > 30.0
    assert len(evictions(loop)) == looks
    assert on_hot(loop) == {name: uid for name, uid in crowd.items() if name not in movable}
    assert fewest_available([(seen.kind, seen.object) for seen in recording.stop()], "movable") == BUDGET
    check_what_comes_back_is_left_alone(loop, operator)


def fewest_available(changes: list[tuple[str, Json]], app: str) -> int:
    """The smallest number of ready pods of a Deployment after all of them once were, from every version of each."""
    ready: dict[str, bool] = {}
    counts: list[int] = []
    for kind, item in changes:
        if item["metadata"].get("labels", {}).get("app") == app:
            conditions = {one["type"]: one["status"] for one in item["status"].get("conditions", [])}
            there = kind != "DELETED" and "deletionTimestamp" not in item["metadata"]
            ready[item["metadata"]["name"]] = there and conditions.get("Ready") == "True"
            counts.append(sum(ready.values()))
    return min(counts[counts.index(max(counts)) :])


def check_what_comes_back_is_left_alone(loop: Loop, operator: Program) -> None:
    """Every further eviction would be a restart for nothing. Its preference outweighs the extender's scores."""
    hot = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["hot"]}]}
    preference = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": hot}]}
    template = busy("10", {names.RESCHEDULABLE_ANNOTATION: "true"}) | {"affinity": {"nodeAffinity": preference}}
    loop.plane.request("POST", DEPLOYMENTS, deployment("homing", 1, **template))
    wait_for(lambda: skipped(operator, "returned") >= 2, PATIENCE_S, "it came back and stays")
    assert [name.rpartition("-")[0].rpartition("-")[0] for name, _ in evictions(loop)].count("homing") == 1
    assert set(await_running(loop, "homing", 1).values()) == {"hot"}


def test_the_chart_grants_all_that_was_needed(loop: Loop) -> None:
    assert loop.refused() == []
    for program in loop.programs.values():
        assert "forbidden" not in program.log().lower()
