"""Observe mode on a real control plane: by the audit log, nothing that is not Joulie's is written."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from joulie.adapters.kubernetes import names
from joulie.domain.grid import names as grid_names
from joulie_lab.control_plane import LocalControlPlane, wait_for
from joulie_lab.control_plane.ports import free_port
from support.audit import foreign_writes
from support.grid_site import ElectricityMaps
from support.loop import ECO, H100, MERGE, NAMESPACE, NODES, PATIENCE_S, Loop, Program, node, pod

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

NODE_NAMES = [f"watched-{number}.example" for number in range(4)]
ZONE = "DE"
H100_LIMIT_W = 400.0
ASKED = {
    "critical": {"workload_class": "performance"},
    "standard": {},
    "movable": {"annotations": {names.RESCHEDULABLE_ANNOTATION: "true"}},
    "deferrable": {"annotations": {grid_names.DEFER: "true"}},
    "spread": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}]}}}},
}  # fmt: skip
"""Pods that Joulie would refuse, prefer, evict, hold or change."""


@pytest.fixture(scope="module")
def intensity() -> Iterator[ElectricityMaps]:
    maps = ElectricityMaps()
    maps.values[ZONE] = 900.0
    yield maps
    maps.close()


@pytest.fixture(scope="module")
def loop(plane: LocalControlPlane, intensity: ElectricityMaps) -> Loop:
    """All programs as the chart installs them by default, with every option on that would change something."""
    values = (
        "mode=observe",
        "steering.mode=extender",
        "grid.enabled=true",
        "grid.admission.mode=policy",
        "operator.settings.ENABLE_ACTIVE_RESCHEDULING=true",
    )
    loop = Loop(plane, *values)
    admission = [item for item in loop._rendered if item["kind"].startswith("MutatingAdmissionPolicy")]
    gating = [item for item in loop._rendered if item["metadata"]["name"] == "joulie-grid-gating"]
    plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(admission + gating))
    plane.create_nodes(node(name, H100) for name in NODE_NAMES)
    mode = {"MODE": "observe"}
    loop.start_simulator()
    loop.start_agent(**mode)
    loop.start_extender(**mode)
    loop.start_operator(
        **mode, ENABLE_ACTIVE_RESCHEDULING="true", RESCHEDULE_INTERVAL="2s", RESCHEDULE_MIN_POD_AGE="0s"
    )
    start_grid(loop, intensity)
    return loop


def start_grid(loop: Loop, intensity: ElectricityMaps) -> Program:
    plane, address = loop.plane, f"127.0.0.1:{free_port()}"
    key = plane.folder / "electricity-maps.key"
    key.write_text("key")
    process = plane.spawn(
        "grid",
        [sys.executable, "-m", "joulie", "grid", "controller"],
        environment={
            "KUBECONFIG": str(plane.kubeconfig_for("joulie-grid", NAMESPACE)),
            "MODE": "observe",
            "POD_NAME": "grid",
            "POD_NAMESPACE": NAMESPACE,
            "METRICS_ADDR": address,
            "METRICS_TLS": "false",
            "KUEUE_ENABLED": "false",
            "ELECTRICITY_MAP_API_KEY_FILE": str(key),
            "ELECTRICITY_MAP_API_URL": f"{intensity.url}/carbon-intensity/latest?zone=",
            "ELECTRICITY_MAP_API_REGION": ZONE,
            "DRY_RUN_MODE": "annotate",
            "API_RATE_LIMIT": "100000",
        },
    )
    loop.programs["grid"] = Program(process, f"http://{address}", "")
    loop.programs["grid"].await_ready()
    return loop.programs["grid"]


def call(loop: Loop, verb: str, body: Any) -> Any:
    """What the extender answers kube-scheduler."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{loop._ports['extender']}/{verb}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20.0) as response:
        return json.load(response)


def answers(loop: Loop, asked: dict[str, Any]) -> tuple[list[str], dict[str, int], list[str]]:
    """Nodes that pass the filter, scores, and nodes where preemption may happen."""
    filtered = call(loop, "filter", {"Pod": asked, "NodeNames": NODE_NAMES})
    scores = call(loop, "prioritize", {"Pod": asked, "NodeNames": NODE_NAMES})
    victims = {name: {"Pods": [{"UID": name}], "NumPDBViolations": 0} for name in NODE_NAMES}
    preempted = call(loop, "preempt", {"Pod": asked, "NodeNameToMetaVictims": victims})
    return (
        filtered["NodeNames"],
        {one["Host"]: one["Score"] for one in scores},
        sorted(preempted["NodeNameToMetaVictims"]),
    )


def planned(loop: Loop) -> dict[str, str]:
    return {name: twin.get("status", {}).get("planned", {}).get("profile", "") for name, twin in loop.twins().items()}


def test_observe_mode_writes_nothing_that_is_not_joulies(loop: Loop) -> None:
    """Planned, scheduled, deferred, rescheduled: on paper only. Then one canary, and back."""
    wait_for(
        lambda: sorted(planned(loop).values()) == ["eco"] * 2 + ["performance"] * 2, PATIENCE_S, "nodes are planned"
    )
    bodies = {name: pod(name, **asked) for name, asked in ASKED.items()}
    for name in NODE_NAMES:
        bodies[f"critical-on-{name}"] = pod(f"critical-on-{name}", workload_class="performance", on=name)
    loop.create(*bodies.values())
    for name, body in bodies.items():
        loop.await_placed(name)
        unchanged(loop.pod(name), body)

    def would_drain() -> bool:
        return all(
            twin["status"]["planned"].get("draining", False) is (twin["status"]["planned"]["profile"] == "eco")
            for twin in loop.twins().values()
        )

    wait_for(would_drain, PATIENCE_S, "performance pods would hold up the drains")
    for performance in ("performance", ""):
        passed, scores, preempted = answers(loop, pod("any", workload_class=performance))
        assert (passed, set(scores.values()), preempted) == (NODE_NAMES, {5}, NODE_NAMES)
    delayed = {"namespace": "default", "delay_type": "carbon"}
    dry = "compute_gardener_dryrun_pods_would_delay_total"
    wait_for(lambda: loop.programs["grid"].metric(dry, **delayed) == 1.0, PATIENCE_S, "the grid would have held one")
    events = loop.plane.kubectl("get", "events", "-A", "-o", "jsonpath={.items[*].reason}").split()
    assert "WouldDrain" in events or "WouldCap" in events
    for name in NODE_NAMES:
        twin = loop.twin(name)
        assert (twin["spec"]["profile"], twin["spec"].get("cpu"), twin["spec"].get("gpu")) == (
            "performance",
            None,
            None,
        )
        assert not {names.POWER_PROFILE_LABEL, names.DRAINING_LABEL} & loop.labels(name).keys()
        report = twin["status"]["controlStatus"]
        assert {report[device]["result"] for device in ("cpu", "gpu")} == {"observed"}
        assert loop.programs["simulator"].get(f"/telemetry/{name}")["gpu"]["capWattsPerGpu"] == H100_LIMIT_W
    assert foreign_writes(loop.plane.audit_events()) == []

    canary = next(name for name, profile in planned(loop).items() if profile == "performance")
    loop.delete_pods(f"critical-on-{canary}")
    loop.override(canary, "eco")
    loop.patch(f"{NODES}/{canary}", {"metadata": {"labels": {names.MODE_LABEL: "enforce"}}}, MERGE)
    if loop.pod("critical")["spec"]["nodeName"] == canary:
        loop.delete_pods("critical")
    loop.await_state(canary, ECO)
    passed, scores, preempted = answers(loop, pod("any", workload_class="performance"))
    others = [name for name in NODE_NAMES if name != canary]
    assert (passed, preempted) == (others, others)
    assert {scores[name] for name in others} == {5}
    assert set(foreign_writes(loop.plane.audit_events())) == {("patch", "nodes", canary)}

    loop.patch(f"{NODES}/{canary}", {"metadata": {"labels": {names.MODE_LABEL: None}}}, MERGE)

    def lifted() -> bool:
        ours = {names.POWER_PROFILE_LABEL, names.DRAINING_LABEL} & loop.labels(canary).keys()
        return not ours and "cpu" not in loop.twin(canary)["spec"]

    wait_for(lifted, PATIENCE_S, "caps and labels of the canary are lifted")
    assert set(foreign_writes(loop.plane.audit_events())) == {("patch", "nodes", canary)}
    assert loop.refused() == []
    loop.raise_if_any_ended()


def unchanged(found: dict[str, Any], submitted: dict[str, Any]) -> None:
    """Neither admission nor a program has changed the pod."""
    meta = found["metadata"]
    assert meta.get("labels", {}) == submitted["metadata"]["labels"]
    assert meta.get("annotations", {}) == submitted["metadata"]["annotations"]
    assert found["spec"].get("affinity") == submitted["spec"].get("affinity")
    assert "schedulingGates" not in found["spec"]
    assert found["spec"].get("nodeSelector") == submitted["spec"].get("nodeSelector")
