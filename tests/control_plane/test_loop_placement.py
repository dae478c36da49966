"""Placement by the whole loop: twelve nodes of three families, the policy's split, and who may run where."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from joulie.adapters.kubernetes import names
from joulie_lab.control_plane import LocalControlPlane, kwok_node, wait_for
from support.loop import (
    ACTIVE,
    CPU_ONLY,
    DRAINING,
    ECO,
    H100,
    HARDWARES,
    JSON_PATCH,
    L40S,
    NODES,
    PATIENCE_S,
    PODS,
    Loop,
    node,
    pod,
)

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

ZONE = "topology.kubernetes.io/zone"
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists"}

# static_partition, half of twelve: the densest of each family, then the densest of all, by name where they are equal.
PERFORMANCE = {"cpu-0", "cpu-1", "cpu-2", "cpu-3", "h100-0", "l40s-0"}
ECO_NODES = {"h100-1", "h100-2", "h100-3", "l40s-1", "l40s-2", "l40s-3"}
ALL = PERFORMANCE | ECO_NODES


@pytest.fixture(scope="module")
def loop(plane: LocalControlPlane) -> Loop:
    loop = Loop(plane)
    plane.create_nodes(
        node(f"{prefix}-{number}", family, labels={ZONE: "ab"[number // 2]}, taints=taints)
        for prefix, family, taints in (("cpu", CPU_ONLY, []), ("h100", H100, []), ("l40s", L40S, [GPU_TAINT]))
        for number in range(4)
    )
    for name, value in (("low", 1), ("high", 1_000_000)):
        plane.kubectl("create", "priorityclass", name, f"--value={value}")
    loop.start_simulator()
    loop.start_agent()
    loop.start_extender()
    loop.start_operator()
    return loop


@pytest.fixture
def split(loop: Loop) -> Iterator[Loop]:
    """The loop with nothing but the policy's split: no pods, no overrides."""
    await_split(loop)
    yield loop
    loop.raise_if_any_ended()
    loop.delete_pods()
    loop.lift_overrides()


def await_split(loop: Loop) -> None:
    for name in sorted(PERFORMANCE):
        loop.await_state(name, ACTIVE)
    for name in sorted(ECO_NODES):
        loop.await_state(name, ECO)


def await_class_at_extender(loop: Loop, wanted: Mapping[str, str]) -> None:
    """Wait until the extender, which watches on its own, knows what the twins say."""

    def known() -> bool:
        told = {one["node"]: one["class"] for one in loop.programs["extender"].get("/debug/scoring")["nodes"]}
        return {name: told.get(name) for name in wanted} == dict(wanted)

    wait_for(known, PATIENCE_S, f"the extender knows {wanted}")


def deletions_by_the_scheduler(loop: Loop) -> list[str]:
    return [
        event["requestURI"]
        for event in loop.plane.audit_events()
        if event["user"]["username"] == "system:kube-scheduler"
        and (event["verb"] == "delete" or event["objectRef"].get("subresource") == "eviction")
    ]


def test_labels_hardware_and_twins_appear_for_three_families(split: Loop) -> None:
    wait_for(lambda: all_appeared(split), PATIENCE_S, "labels, hardware and twins of all nodes", poll_s=1.0)


def all_appeared(split: Loop) -> bool:
    twins = split.twins()
    hardware = {item["metadata"]["name"]: item for item in split.plane.request("GET", HARDWARES)["items"]}
    assert twins.keys() == hardware.keys() == ALL
    assert all("cpu" in item.get("status", {}) for item in hardware.values())
    assert all("powerMeasurement" in twin.get("status", {}) for twin in twins.values())
    models = {
        name: (item["status"]["cpu"]["model"], item["status"].get("gpu", {}).get("model"))
        for name, item in hardware.items()
    }
    assert Counter(models.values()) == {
        ("AMD EPYC 9965", None): 4,
        ("AMD EPYC 9654", "NVIDIA H100 NVL"): 4,
        ("Intel Xeon Gold 6530", "NVIDIA L40S"): 4,
    }
    for name, twin in twins.items():
        assert twin["spec"]["nodeName"] == hardware[name]["spec"]["nodeName"] == name
        status = twin["status"]
        assert status["powerMeasurement"]["source"] == "http"
        assert status["powerMeasurement"]["measuredNodePowerW"] > 0
        assert 0 <= status["predictedPowerHeadroomScore"] <= 100
        conditions = {one["type"]: one["status"] for one in status["conditions"]}
        # True once the agent has confirmed the caps of an eco node, which may be later.
        assert conditions.pop("CapsInForce") in {"True", "False"}
        assert conditions == {
            "Draining": "False",
            "HardwareKnown": "True",
            "PowerMeasured": "True",
        }
        uid = split.plane.request("GET", f"{NODES}/{name}")["metadata"]["uid"]
        for item in (twin, hardware[name]):
            assert [owner["uid"] for owner in item["metadata"]["ownerReferences"]] == [uid]
    labels = {name: split.labels(name).get(names.POWER_PROFILE_LABEL) for name in ALL}
    assert labels == dict.fromkeys(PERFORMANCE, "performance") | dict.fromkeys(ECO_NODES, "eco")
    return True


def test_the_policy_splits_and_the_caps_arrive_at_the_hardware(split: Loop) -> None:
    # A performance node in each family, and half of all nodes.
    assert {name.split("-")[0] for name in PERFORMANCE} == {"cpu", "h100", "l40s"}
    simulator = split.programs["simulator"]

    def caps(name: str) -> tuple[float, float | None]:
        said = simulator.get(f"/telemetry/{name}")
        return said["cpu"]["capWattsPerPackage"], said.get("gpu", {}).get("capWattsPerGpu")

    # 60 % of what 100 % is: 360 W and 400 W on the H100 nodes, 270 W and 350 W on the L40S nodes.
    wanted = {"h100-0": (360.0, 400.0), "h100-1": (216.0, 240.0), "l40s-0": (270.0, 350.0), "l40s-3": (162.0, 210.0)}
    wait_for(lambda: {name: caps(name) for name in wanted} == wanted, PATIENCE_S, "the caps are in force")

    def reported() -> bool:
        return all(is_applied(split, name, device) for name in wanted for device in ("cpu", "gpu"))

    wait_for(reported, PATIENCE_S, "the agent reports them as applied")


def is_applied(loop: Loop, name: str, device: str) -> bool:
    report = loop.twin(name).get("status", {}).get("controlStatus", {})
    return bool(report.get(device, {}).get("result") == "applied")


def test_performance_pods_land_on_performance_nodes_only(split: Loop) -> None:
    await_class_at_extender(split, dict.fromkeys(ECO_NODES, "eco") | dict.fromkeys(PERFORMANCE, "performance"))
    tolerant: dict[str, Any] = {"tolerations": [GPU_TOLERATION]}
    pods = [pod(f"cpu-work-{i}", workload_class="performance", requests={"cpu": "16"}, **tolerant) for i in range(16)]
    gpus = {"nvidia.com/gpu": "1"}
    pods += [pod(f"gpu-work-{i}", workload_class="performance", requests=gpus, **tolerant) for i in range(8)]
    split.create(*pods)
    placed = {item["metadata"]["name"]: split.await_placed(item["metadata"]["name"]) for item in pods}
    assert set(placed.values()) <= PERFORMANCE
    assert {on for name, on in placed.items() if name.startswith("gpu")} <= {"h100-0", "l40s-0"}


@pytest.mark.parametrize("name", ["cpu-0", "h100-0", "h100-1"])
def test_a_standard_pod_runs_anywhere(split: Loop, name: str) -> None:
    split.create(pod("plain", on=name), pod("said", on=name, workload_class="standard"))
    assert split.await_placed("plain") == split.await_placed("said") == name


def test_a_draining_node_takes_standard_pods_and_no_performance_pods(split: Loop) -> None:
    split.create(pod("keeper", workload_class="performance", on="cpu-1"))
    split.await_placed("keeper")
    split.override("cpu-1", "eco")
    split.await_state("cpu-1", DRAINING)
    await_class_at_extender(split, {"cpu-1": "draining"})
    split.create(pod("late", workload_class="performance", on="cpu-1"), pod("plain", on="cpu-1"))
    assert split.await_placed("plain") == "cpu-1"
    assert "1 node(s) are draining towards eco power caps" in split.await_unschedulable("late")
    assert split.state("cpu-1") == DRAINING
    assert split.await_placed("keeper") == "cpu-1"


def test_daemon_pods_run_on_every_node_whatever_their_class(split: Loop) -> None:
    template = pod("", workload_class="performance", labels={"app": "everywhere"}, tolerations=[{"operator": "Exists"}])
    del template["spec"]["terminationGracePeriodSeconds"]
    daemon = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "everywhere"},
        "spec": {
            "selector": {"matchLabels": {"app": "everywhere"}},
            "template": {"metadata": template["metadata"] | {"name": None}, "spec": template["spec"]},
        },
    }
    path = "/apis/apps/v1/namespaces/default/daemonsets"
    split.plane.request("POST", path, daemon)
    ready = wait_for(
        lambda: split.plane.request("GET", f"{path}/everywhere")["status"].get("numberReady") == 12,
        PATIENCE_S,
        "a pod runs on each of the twelve nodes",
    )
    assert ready
    # Daemon pods of class performance hold no node back either: they go with the node.
    split.delete(f"{path}/everywhere")


def test_trap_performance_pods_never_preempt_where_they_may_not_run(split: Loop) -> None:
    """Without a performance node they wait, whatever their priority; once there is one they do preempt."""
    # First everything is eco: there is no performance node at all.
    for name in sorted(PERFORMANCE):
        split.override(name, "eco")
    for name in sorted(ALL):
        split.await_state(name, ECO)
    await_class_at_extender(split, dict.fromkeys(ALL, "eco"))
    anywhere: dict[str, Any] = {"workload_class": "performance", "tolerations": [GPU_TOLERATION]}
    evicted_before = deletions_by_the_scheduler(split)
    everybody: dict[str, Any] = {"priorityClassName": "low", "tolerations": [GPU_TOLERATION]}
    split.create(*(pod(f"resident-{name}", on=name, **everybody) for name in sorted(ALL)))
    for name in sorted(ALL):
        split.await_placed(f"resident-{name}")
    split.create(pod("early", priorityClassName="high", **anywhere))
    assert "12 node(s) run under eco power caps" in split.await_unschedulable("early")
    assert deletions_by_the_scheduler(split) == evicted_before
    split.delete_pods()
    # Then all of them are full, of pods that anybody with a higher priority could evict.
    sizes = {"cpu": CPU_ONLY, "h100": H100, "l40s": L40S}
    fillers = [
        pod(
            f"filler-{name}",
            on=name,
            requests={"cpu": str(sizes[name.split("-")[0]].cores)},
            **everybody,
        )
        for name in sorted(ALL)
    ]
    split.create(*fillers)
    for filler in fillers:
        split.await_placed(filler["metadata"]["name"])
    uids = {item["metadata"]["name"]: item["metadata"]["uid"] for item in split.plane.request("GET", PODS)["items"]}
    split.create(pod("usual", **anywhere), pod("urgent", priorityClassName="high", **anywhere))
    for name in ("usual", "urgent"):
        assert "0/12 nodes are available" in split.await_unschedulable(name)
    # A pod that may run there does preempt: so the scheduler is able to, and has had its time to.
    split.create(pod("sentinel", on="h100-3", priorityClassName="high"))
    assert split.await_placed("sentinel") == "h100-3"
    evicted = [path for path in deletions_by_the_scheduler(split) if path not in evicted_before]
    assert [path.partition("?")[0] for path in evicted] == [f"{PODS}/filler-h100-3"]
    for name in ("usual", "urgent"):
        status = split.pod(name)["status"]
        assert status["phase"] == "Pending"
        assert not status.get("nominatedNodeName")
    for name in sorted(ALL - {"h100-3"}):
        assert split.pod(f"filler-{name}")["metadata"]["uid"] == uids[f"filler-{name}"]

    # A performance node again, and full: there the urgent pod may preempt, and nobody else has to go.
    split.override("cpu-2", "performance")
    assert split.await_placed("urgent") == "cpu-2"
    evicted = [path for path in deletions_by_the_scheduler(split) if path not in evicted_before]
    assert {path.partition("?")[0] for path in evicted} == {f"{PODS}/filler-h100-3", f"{PODS}/filler-cpu-2"}
    assert split.await_placed("usual") == "cpu-2"


def heat(loop: Loop, *nodes: str) -> None:
    """GPU work that takes the power of nodes and hardly any of their CPU requests; their scores fall."""
    for name in nodes:
        use = {names.SIM_GPU_UTIL_PCT_ANNOTATION: "100", names.SIM_CPU_UTIL_PCT_ANNOTATION: "100"}
        loop.create(pod(f"heat-{name}", on=name, requests={"nvidia.com/gpu": "8"}, annotations=use))
    for name in nodes:
        loop.await_placed(f"heat-{name}")
    cool = [name for name in sorted(ALL) if name.startswith("h100") and name not in nodes]

    def told_apart() -> bool:
        scores = loop.wire_scores(pod("any"))
        hot, cold = max(scores[name] for name in nodes), min(scores[name] for name in cool)
        assert cold - hot >= 6, f"scores are {scores}"
        return True

    wait_for(told_apart, PATIENCE_S, f"scores of {', '.join(nodes)} have fallen")


def on_h100(name: str, **spec: Any) -> dict[str, Any]:
    return pod(name, nodeSelector={names.HW_GPU_MODEL_LABEL: H100.gpu_model}, **spec)


def test_scores_steer_where_nothing_else_decides(split: Loop) -> None:
    heat(split, "h100-0", "h100-1")
    for number in range(4):
        split.create(on_h100(f"free-{number}"))
        assert split.await_placed(f"free-{number}") in {"h100-2", "h100-3"}


def test_trap_scores_do_not_drown_topology_spread(split: Loop) -> None:
    """A score of 0..100 where 0..10 is meant would send both pods to the cool zone."""
    heat(split, "h100-0", "h100-1")
    spread = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "spread"}},
    }
    zones = []
    for number in range(2):
        split.create(on_h100(f"spread-{number}", labels={"app": "spread"}, topologySpreadConstraints=[spread]))
        zones.append(split.labels(split.await_placed(f"spread-{number}"))[ZONE])
    assert zones == ["b", "a"]  # the scores choose the first, the spread the second


def test_a_strict_topology_spread_decides(split: Loop) -> None:
    heat(split, "h100-0", "h100-1")
    spread = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "strict"}},
    }
    zones = []
    for number in range(6):
        split.create(on_h100(f"strict-{number}", labels={"app": "strict"}, topologySpreadConstraints=[spread]))
        zones.append(split.labels(split.await_placed(f"strict-{number}"))[ZONE])
    assert Counter(zones) == {"a": 3, "b": 3}


def test_trap_scores_do_not_drown_taints(split: Loop) -> None:
    """A preference against a taint outweighs the best score; a taint that forbids is never overruled."""
    heat(split, "h100-0", "h100-1")
    avoided = [{"key": "avoid", "effect": "PreferNoSchedule"}]
    try:
        for name in ("h100-2", "h100-3"):
            split.patch(f"{NODES}/{name}", {"spec": {"taints": avoided}})
        for number in range(3):
            split.create(on_h100(f"picky-{number}"))
            assert split.await_placed(f"picky-{number}") in {"h100-0", "h100-1"}
    finally:
        for name in ("h100-2", "h100-3"):
            split.patch(f"{NODES}/{name}", [{"op": "replace", "path": "/spec/taints", "value": []}], JSON_PATCH)


def test_trap_a_node_without_data_is_not_the_best(split: Loop) -> None:
    """A large and empty node that nobody measures is neutral, and so less good than one that is known to be idle."""
    large = {"cpu": "1024", "memory": "8Ti"}
    split.plane.create_nodes([kwok_node("bare", labels={"pick": "me"}, allocatable=large)])
    split.patch(f"{NODES}/h100-3", {"metadata": {"labels": {"pick": "me"}}})
    try:

        def told_apart() -> bool:
            scores = split.wire_scores(pod("any"))
            assert scores.get("bare") == 5, f"scores are {scores}"
            return scores["h100-3"] >= 8

        wait_for(told_apart, PATIENCE_S, "the idle node scores well, the bare one neutral")
        for number in range(3):
            split.create(pod(f"choosy-{number}", nodeSelector={"pick": "me"}))
            assert split.await_placed(f"choosy-{number}") == "h100-3"
    finally:
        split.delete(f"{NODES}/bare")
        split.patch(f"{NODES}/h100-3", {"metadata": {"labels": {"pick": None}}})


def test_trap_tainted_gpu_nodes_are_kept_by_the_loop_and_by_their_taint(split: Loop) -> None:
    """Their twins, hardware and caps are as those of any other node, and pods need the toleration as ever."""
    wait_for(lambda: is_applied(split, "l40s-3", "gpu"), PATIENCE_S, "its GPUs are capped")
    wanted: dict[str, Any] = {"requests": {"nvidia.com/gpu": "1"}, "workload_class": "performance"}
    l40s = {names.HW_GPU_MODEL_LABEL: L40S.gpu_model}
    split.create(
        pod("intolerant", nodeSelector=l40s, **wanted),
        pod("tolerant", nodeSelector=l40s, tolerations=[GPU_TOLERATION], **wanted),
    )
    assert split.await_placed("tolerant") == "l40s-0"
    assert "untolerated taint" in split.await_unschedulable("intolerant")
    (agent,) = (
        item
        for item in _chart_objects(split)
        if item["kind"] == "DaemonSet" and item["metadata"]["name"].endswith("agent")
    )
    assert {"operator": "Exists"} in agent["spec"]["template"]["spec"]["tolerations"]


def test_the_chart_grants_all_that_was_needed(loop: Loop) -> None:
    assert loop.refused() == []
    for program in loop.programs.values():
        assert "forbidden" not in program.log().lower()


def _chart_objects(loop: Loop) -> list[dict[str, Any]]:
    chart = Path(__file__).parents[2] / "deploy/helm/joulie"
    return [
        item for item in yaml.load_all(loop.plane.helm("template", "joulie", chart), Loader=yaml.CSafeLoader) if item
    ]
