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
from joulie.apps.accounting.policies import NAMESPACE_BUDGET_ACTION, NAMESPACE_BUDGET_KWH, NAMESPACE_BUDGET_PERIOD
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
DIRTY_ZONE = "FR"
TEAM = "team"
SOON_KWH = "0.000001"
"""An energy budget that every pod exceeds within seconds."""

PLACEMENT = {
    names.RESCHEDULABLE_ANNOTATION: "true",
    names.CPU_SENSITIVITY_ANNOTATION: "high",
    names.GPU_SENSITIVITY_ANNOTATION: "high",
    names.GPU_LIMITS_ANNOTATION: "true",
    names.GPU_POWER_LIMIT_ANNOTATION: "500",
    names.PROGRESS_METRIC_ANNOTATION: "steps_total",
    names.SIM_CPU_UTIL_PCT_ANNOTATION: "90",
    names.SIM_GPU_UTIL_PCT_ANNOTATION: "90",
    names.SIM_MEMORY_PRESSURE_PCT_ANNOTATION: "10",
    names.SIM_GPU_JOB_ANNOTATION: "true",
    grid_names.MAX_POWER_WATTS: "1",
    grid_names.MIN_EFFICIENCY: "1000",
    grid_names.GPU_WORKLOAD_TYPE: "training",
    grid_names.ZONE: f"{ZONE},{DIRTY_ZONE}",
    grid_names.DATA_ZONE: ZONE,
    grid_names.DATA_GB: "100",
}
"""Annotations of a pod by which nodes are refused, preferred or capped."""
DEFERRAL = {
    grid_names.DEFER: "true",
    grid_names.MODE: "interruptible",
    grid_names.INTERRUPTIBLE: "true",
    grid_names.RUNTIME: "2h",
    grid_names.RUNTIME_HOURS: "2",
    grid_names.ENERGY_KWH: "3",
    grid_names.CARBON_ENABLED: "true",
    grid_names.CARBON_THRESHOLD: "1",
    grid_names.PRICE_THRESHOLD: "0.01",
    grid_names.MAX_DELAY: "12h",
    grid_names.FUNCTIONAL_UNITS: "5000 images",
}
"""By which it waits."""
BUDGET = {
    grid_names.ENERGY_BUDGET_KWH: SOON_KWH,
    grid_names.ENERGY_BUDGET_ACTION: "suspend",
    grid_names.PUE: "1.5",
    grid_names.GPU_PUE: "1.4",
}
"""By which it is marked or suspended."""
SPREAD = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
    {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}]}}}  # fmt: skip
ASKED: dict[str, dict[str, Any]] = {
    "critical": {"workload_class": "performance"},
    "standard": {},
    "movable": {"annotations": {names.RESCHEDULABLE_ANNOTATION: "true"}},
    "deferrable": {"annotations": {grid_names.DEFER: "true"}},
    "spread": {"affinity": SPREAD},
    "all": {"annotations": PLACEMENT | DEFERRAL | BUDGET, "labels": {grid_names.WORKLOAD_TYPE_LABEL: "batch"}},
    "all-critical": {"workload_class": "performance", "annotations": PLACEMENT | DEFERRAL | BUDGET},
    "marked": {"annotations": BUDGET | {grid_names.ENERGY_BUDGET_ACTION: "annotate"}},
    "labelled": {"annotations": BUDGET | {grid_names.ENERGY_BUDGET_ACTION: "label"}},
    "skipped": {"annotations": DEFERRAL | {grid_names.SKIP: "true"}},
}
"""Pods that Joulie would refuse, prefer, evict, hold, mark, suspend or change."""
NODE_LABELS = {
    names.RACK_LABEL: "r1",
    names.COOLING_ZONE_LABEL: "hall-1",
    names.MODE_LABEL: "observe",
    names.KEEP_AWAKE_LABEL: "false",
    grid_names.ZONE: ZONE,
}
NODE_ANNOTATIONS = {names.POWER_SWITCH_ANNOTATION: "redfish"}
NAMESPACE_LABELS = {grid_names.POLICIES_LABEL: grid_names.POLICIES_ENABLED}
NAMESPACE_ANNOTATIONS = {
    grid_names.POLICY_PREFIX + "carbon-intensity-threshold": "1",
    grid_names.POLICY_PREFIX + "max-power-watts": "1",
    NAMESPACE_BUDGET_KWH: SOON_KWH,
    NAMESPACE_BUDGET_PERIOD: "day",
    NAMESPACE_BUDGET_ACTION: "annotate",
}
CEILINGS = {
    grid_names.CARBON_MAX_REPLICAS: "1: 1",
    grid_names.PRICE_MAX_REPLICAS: "0.01: 1",
    grid_names.MAX_REPLICAS_FLOOR: "1",
    grid_names.MAX_REPLICAS_EXEMPT: "false",
}
WRITTEN_BY_JOULIE = {
    names.POWER_PROFILE_LABEL, names.DRAINING_LABEL, names.RESTORE_PENDING_LABEL, names.TRIAL_LABEL,
    names.ASLEEP_TAINT, names.SLEEP_STATE_ANNOTATION, names.REMOVABLE_ANNOTATION,
    grid_names.GATE, grid_names.BUDGET_GATE, grid_names.LEARNED_RUNTIME, *grid_names.HELD_KEYS,
    grid_names.HOLDOUT, grid_names.TRIAL, grid_names.BIND_TIMESTAMP, grid_names.BIND_CARBON_INTENSITY,
    grid_names.BIND_ELECTRICITY_RATE,
    grid_names.CHOSEN_ZONE, grid_names.REPLICA_CEILING, grid_names.BUDGET_EXCEEDED,
    grid_names.BUDGET_EXCEEDED_BY, grid_names.ENERGY_USAGE_KWH,
}  # fmt: skip
BY_THE_FIXTURE = {
    names.MANAGED_LABEL, names.RESERVED_LABEL, names.HW_CPU_MODEL_LABEL, names.HW_CPU_SOCKETS_LABEL,
    names.HW_GPU_MODEL_LABEL, names.HW_GPU_COUNT_LABEL, names.OVERRIDE_LABEL, names.WORKLOAD_CLASS_ANNOTATION,
    names.MANAGED_BY_LABEL,
}  # fmt: skip
"""Given to nodes, pods and overrides by their functions; what the operator's own profiles carry; and the label that
takes a node out of Joulie's reach altogether."""


def test_the_scenario_has_every_annotation_and_label() -> None:
    """One that is added to Joulie has to be added to the scenario."""
    known = {
        value
        for module in (names, grid_names)
        for name, value in vars(module).items()
        if name.isupper() and "/" in str(value) and isinstance(value, str) and not value.endswith(("/", "-"))
    }
    pods = PLACEMENT | DEFERRAL | BUDGET | ASKED["skipped"]["annotations"] | ASKED["all"]["labels"]
    others = NODE_LABELS | NODE_ANNOTATIONS | NAMESPACE_LABELS | NAMESPACE_ANNOTATIONS | CEILINGS
    assert known - pods.keys() - others.keys() - WRITTEN_BY_JOULIE - BY_THE_FIXTURE == set()


@pytest.fixture(scope="module")
def intensity() -> Iterator[ElectricityMaps]:
    maps = ElectricityMaps()
    maps.values |= {ZONE: 900.0, DIRTY_ZONE: 1200.0}
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
        "grid.replicaCeilings=true",
        "accounting.enabled=true",
        "operator.settings.ENABLE_ACTIVE_RESCHEDULING=true",
        "operator.settings.SLEEP=enforce",
    )
    loop = Loop(plane, *values)
    admission = [item for item in loop._rendered if item["kind"].startswith("MutatingAdmissionPolicy")]
    gating = [item for item in loop._rendered if item["metadata"]["name"] == "joulie-grid-gating"]
    plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(admission + gating))
    zones = [ZONE, ZONE, DIRTY_ZONE, DIRTY_ZONE]
    nodes = [
        node(name, H100, labels=NODE_LABELS | {grid_names.ZONE: zone})
        for name, zone in zip(NODE_NAMES, zones, strict=True)
    ]
    for one in nodes:
        one["metadata"].setdefault("annotations", {}).update(NODE_ANNOTATIONS)
    plane.create_nodes(nodes)
    mode = {"MODE": "observe"}
    loop.start_simulator()
    loop.start_agent(**mode)
    loop.start_extender(**mode, INTENSITY_NAMESPACE=NAMESPACE)
    loop.start_operator(
        **mode,
        ENABLE_ACTIVE_RESCHEDULING="true",
        RESCHEDULE_INTERVAL="2s",
        RESCHEDULE_MIN_POD_AGE="0s",
        SLEEP="enforce",
        SLEEP_INTERVAL="500ms",
        SLEEP_EMPTY="0s",
        SLEEP_SETTLE="0s",
    )
    start_grid(loop, intensity)
    start_accounting(loop)
    return loop


def start_accounting(loop: Loop) -> None:
    address = f"127.0.0.1:{free_port()}"
    environment = {
        "MODE": "observe",
        "METRICS_ADDR": address,
        "METRICS_TLS": "false",
        "METRICS_SAMPLING_INTERVAL": "1s",
        "LEDGER_URL": f"sqlite:///{loop.plane.folder / 'ledger.db'}",
        "PROMETHEUS_ADDRESS": "none",
        "NODE_DEFAULT_IDLE_POWER": "100000",
        "NODE_DEFAULT_MAX_POWER": "300000",
        "CARBON_SOURCES": "static",
        "CARBON_STATIC_INTENSITY": "250",
    }
    loop._start("accounting", "accounting", "joulie-accounting", f"http://{address}", environment)


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
            "REPLICA_CEILINGS_ENABLED": "true",
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


def reports_observed(loop: Loop, name: str) -> bool:
    report = loop.twin(name)["status"].get("controlStatus", {})
    return {report.get(device, {}).get("result") for device in ("cpu", "gpu")} == {"observed"}


def planned(loop: Loop) -> dict[str, str]:
    return {name: twin.get("status", {}).get("planned", {}).get("profile", "") for name, twin in loop.twins().items()}


def test_observe_mode_writes_nothing_that_is_not_joulies(loop: Loop) -> None:
    """Planned, scheduled, deferred, rescheduled: on paper only. Then one canary, and back."""
    wait_for(
        lambda: sorted(planned(loop).values()) == ["eco"] * 2 + ["performance"] * 2, PATIENCE_S, "nodes are planned"
    )
    reasons = ("get", "events", "-A", "-o", "jsonpath={.items[*].reason}")
    wait_for(lambda: "WouldSleep" in loop.plane.kubectl(*reasons), PATIENCE_S, "empty nodes would sleep")

    def would_be_asleep() -> bool:
        plans = [twin.get("status", {}).get("planned", {}) for twin in loop.twins().values()]
        return [plan.get("sleep", {}).get("state") for plan in plans].count("asleep") == len(NODE_NAMES) - 1

    wait_for(would_be_asleep, PATIENCE_S, "NodeTwins say that all but one would be asleep")
    bodies = {name: pod(name, **asked) for name, asked in ASKED.items()}
    for name in NODE_NAMES:
        bodies[f"critical-on-{name}"] = pod(f"critical-on-{name}", workload_class="performance", on=name)
    team = Team(loop)
    loop.override(NODE_NAMES[0], "eco")
    loop.create(*bodies.values())
    for name, body in bodies.items():
        loop.await_placed(name)
        unchanged(loop.pod(name), body)

    def would_drain() -> bool:
        plans = [twin.get("status", {}).get("planned", {}) for twin in loop.twins().values()]
        return all(plan.get("draining", False) is (plan.get("profile") == "eco") for plan in plans)

    wait_for(would_drain, PATIENCE_S, "performance pods would hold up the drains")
    for name, body in bodies.items():
        if not name.startswith("critical-on-"):
            passed, scores, preempted = answers(loop, body)
            assert (passed, set(scores.values()), preempted) == (NODE_NAMES, {5}, NODE_NAMES), name
    delayed = {"namespace": "default", "delay_type": "carbon"}
    dry = "compute_gardener_dryrun_pods_would_delay_total"
    wait_for(lambda: loop.programs["grid"].metric(dry, **delayed) >= 1.0, PATIENCE_S, "the grid would have held one")
    team.await_exhausted()
    would = {"WouldDrain", "WouldCap"}
    wait_for(lambda: would & set(loop.plane.kubectl(*reasons).split()), PATIENCE_S, "nodes would be drained or capped")
    for name in NODE_NAMES:
        wait_for(lambda name=name: reports_observed(loop, name), PATIENCE_S, f"the agent observes {name}")
        spec = loop.twin(name)["spec"]
        assert (spec["profile"], spec.get("cpu"), spec.get("gpu")) == ("performance", None, None)
        assert not {names.POWER_PROFILE_LABEL, names.DRAINING_LABEL} & loop.labels(name).keys()
        assert loop.programs["simulator"].get(f"/telemetry/{name}")["gpu"]["capWattsPerGpu"] == H100_LIMIT_W
    assert foreign_writes(loop.plane.audit_events()) == []
    for name, body in bodies.items():
        unchanged(loop.pod(name), body)
    team.assert_unchanged()
    team.delete()

    loop.lift_overrides()
    canary = next(name for name, profile in planned(loop).items() if profile == "performance")
    loop.delete_pods(f"critical-on-{canary}")
    loop.override(canary, "eco")
    loop.patch(f"{NODES}/{canary}", {"metadata": {"labels": {names.MODE_LABEL: "enforce"}}}, MERGE)
    for name in ("critical", "all-critical"):  # either would hold the drain
        if loop.pod(name)["spec"]["nodeName"] == canary:
            loop.delete_pods(name)
    loop.await_state(canary, ECO)
    passed, scores, preempted = answers(loop, pod("any", workload_class="performance"))
    others = [name for name in NODE_NAMES if name != canary]
    assert (passed, preempted) == (others, others)
    assert {scores[name] for name in others} == {5}
    assert set(foreign_writes(loop.plane.audit_events())) == {("patch", "nodes", canary)}

    loop.patch(f"{NODES}/{canary}", {"metadata": {"labels": {names.MODE_LABEL: "observe"}}}, MERGE)

    def lifted() -> bool:
        ours = {names.POWER_PROFILE_LABEL, names.DRAINING_LABEL} & loop.labels(canary).keys()
        return not ours and "cpu" not in loop.twin(canary)["spec"]

    wait_for(lifted, PATIENCE_S, "caps and labels of the canary are lifted")
    assert set(foreign_writes(loop.plane.audit_events())) == {("patch", "nodes", canary)}
    assert loop.refused() == []
    loop.raise_if_any_ended()


class Team:
    """A namespace in which every kind of budget is exhausted and an autoscaler asks for a ceiling."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        namespace = {"name": TEAM, "labels": NAMESPACE_LABELS, "annotations": NAMESPACE_ANNOTATIONS}
        self._post("/api/v1/namespaces", "v1", "Namespace", {}, **namespace)
        accounts = f"/api/v1/namespaces/{TEAM}/serviceaccounts"
        wait_for(lambda: loop.plane.request("GET", accounts)["items"], PATIENCE_S, "pods can be created")
        # The pods of its Job end at once, this one uses the budget up.
        loop.plane.request("POST", f"/api/v1/namespaces/{TEAM}/pods", pod("serving"))
        template = pod("", annotations=PLACEMENT | DEFERRAL | BUDGET, restartPolicy="Never")
        job: dict[str, Any] = {
            "completions": 1000,
            "template": {"metadata": template["metadata"], "spec": template["spec"]},
        }
        del job["template"]["metadata"]["name"]
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
        budget = {"limits": {"energyKWh": float(SOON_KWH)}, "period": "day", "action": "suspend"}
        self.objects = [
            self._post(f"/apis/batch/v1/namespaces/{TEAM}/jobs", "batch/v1", "Job", job, annotations=DEFERRAL),
            self._post(
                f"/apis/autoscaling/v2/namespaces/{TEAM}/horizontalpodautoscalers",
                "autoscaling/v2",
                "HorizontalPodAutoscaler",
                {"scaleTargetRef": target, "maxReplicas": 20},
                annotations=CEILINGS,
            ),
        ]
        self._budget = f"/apis/joulie.io/v1alpha1/namespaces/{TEAM}/energybudgets"
        self._post(self._budget, "joulie.io/v1alpha1", "EnergyBudget", budget)

    def _post(self, path: str, version: str, kind: str, spec: Any, **meta: Any) -> tuple[str, Any]:
        body = {"apiVersion": version, "kind": kind, "metadata": {"name": "all", **meta}, "spec": spec}
        made = self.loop.plane.request("POST", path, body)
        return f"{path}/{made['metadata']['name']}", made

    def await_exhausted(self) -> None:
        """Wait until each program would have acted, had it been allowed to."""
        loop = self.loop

        def conditions() -> dict[str, str]:
            found = loop.get(f"{self._budget}/all").get("status", {}).get("conditions", [])
            return {one["type"]: one["status"] for one in found}

        wait_for(lambda: conditions().get("Exhausted") == "True", PATIENCE_S, "the EnergyBudget is exhausted")
        wait_for(lambda: conditions().get("Holding") == "False", PATIENCE_S, "it holds nothing")

        def exceeded() -> set[tuple[str, str]]:
            events = loop.plane.request("GET", "/api/v1/events?fieldSelector=reason=EnergyBudgetExceeded")["items"]
            return {(one["involvedObject"]["kind"], one["involvedObject"]["name"]) for one in events}

        due = {("Namespace", TEAM), *(("Pod", name) for name in ("all", "marked", "labelled"))}
        wait_for(lambda: due <= exceeded(), PATIENCE_S, "budgets of annotations are exceeded")
        ceilings = loop.programs["grid"].metric
        wait_for(lambda: ceilings("joulie_grid_replica_ceilings", decision="observed") == 1.0, PATIENCE_S, "a ceiling")

    def assert_unchanged(self) -> None:
        """Nobody has changed what users wrote."""
        for path, made in self.objects:
            found = self.loop.get(path)
            assert (found["spec"], found["metadata"]["annotations"]) == (made["spec"], made["metadata"]["annotations"])
        found = self.loop.get(f"/api/v1/namespaces/{TEAM}")["metadata"]
        assert found["annotations"] == NAMESPACE_ANNOTATIONS
        assert NAMESPACE_LABELS.items() <= found["labels"].items()

    def delete(self) -> None:
        """End its Job."""
        self.loop.delete(self.objects[0][0])


def unchanged(found: dict[str, Any], submitted: dict[str, Any]) -> None:
    """Neither admission nor a program has changed the pod."""
    meta = found["metadata"]
    assert meta.get("labels", {}) == submitted["metadata"]["labels"]
    assert meta.get("annotations", {}) == submitted["metadata"]["annotations"]
    assert found["spec"].get("affinity") == submitted["spec"].get("affinity")
    assert "schedulingGates" not in found["spec"]
    assert found["spec"].get("nodeSelector") == submitted["spec"].get("nodeSelector")
