"""`joulie extender` behind the real kube-scheduler: its bytes are understood, and its word is one among others."""

import json
import sys
import time
import urllib.request
from typing import Any

import pytest

from joulie.adapters.kubernetes import resources
from joulie.adapters.kubernetes.times import rfc3339
from joulie_lab.adapters import crd
from joulie_lab.control_plane import LocalControlPlane, kwok_node, wait_for
from joulie_lab.control_plane.ports import free_port

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

PODS = "/api/v1/namespaces/default/pods"
TWINS = resources.NODE_TWINS.path()
CLASSES = {"perf-1": "performance", "perf-2": "performance", "eco-1": "eco", "draining-1.example": "draining"}
GPU_MILLI = "alibabacloud.com/gpu-milli"
PODS_TOO = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
"""What SCORING=marginal, SCORING=frugal and PowerBudgets need beside `RULES`."""
RULES = [
    {"apiGroups": [""], "resources": ["nodes", "namespaces"], "verbs": ["get", "list", "watch"]},
    {
        "apiGroups": ["joulie.io"],
        "resources": ["nodetwins", "nodehardwares", "workloadprofiles", "powerbudgets"],
        "verbs": ["get", "list", "watch"],
    },
]
"""All that the extender may do."""


class Joulie:
    """A control plane with four nodes, their twins, and an extender that kube-scheduler asks."""

    def __init__(self, plane: LocalControlPlane) -> None:
        self.plane = plane
        self.port, self.metrics_port = free_port(), free_port()
        self.kubeconfig = self._grant()
        self.extender = self._spawn("extender", self.port, self.metrics_port)

    def _grant(self) -> Any:
        plane = self.plane
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "extender"}}
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "extender"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "extender"},
            "subjects": [{"kind": "ServiceAccount", "name": "extender", "namespace": "default"}],
        }
        plane.kubectl("create", "serviceaccount", "extender", "-n", "default")
        plane.request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", role | {"rules": RULES})
        plane.request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
        return plane.kubeconfig_for("extender", "default")

    def _spawn(self, name: str, port: int, metrics_port: int, **environment: str) -> Any:
        program = self.plane.spawn(
            name,
            [sys.executable, "-m", "joulie", "extender"],
            environment={
                "KUBECONFIG": str(self.kubeconfig),
                "PORT": str(port),
                "METRICS_ADDR": f"127.0.0.1:{metrics_port}",
                **environment,
            },
        )
        wait_for(lambda: self.get("/readyz", metrics_port) is not None, 90, f"{name} ready: {program.log_tail()}")
        return program

    def may_watch_pods(self) -> None:
        path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/extender"
        self.plane.request("PATCH", path, {"rules": [*RULES, PODS_TOO]}, content_type="application/merge-patch+json")

    def get(self, path: str, port: int | None = None, body: bytes | None = None) -> str | None:
        """What the extender says; None while it does not answer with 200."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port or self.metrics_port}{path}", body, 5) as answer:
                return str(answer.read().decode())
        except OSError:
            return None

    def metric(self, line: str) -> float:
        for found in (self.get("/metrics") or "").splitlines():
            if found.startswith(line + " "):
                return float(found.split()[-1])
        return 0.0

    def schedule_with(self, **changes: Any) -> None:
        """Restart kube-scheduler with this extender, as the chart configures it."""
        extender = {
            "urlPrefix": f"http://127.0.0.1:{self.port}",
            "filterVerb": "filter",
            "prioritizeVerb": "prioritize",
            "preemptVerb": "preempt",
            "weight": 1,
            "nodeCacheCapable": True,
            "httpTimeout": "20s",
            "ignorable": True,
        }
        self.plane.configure_scheduler({"extenders": [extender | changes]})

    def set_twin(self, node: str, node_class: str, measured_w: float = 200.0, budgets: tuple[str, ...] = ()) -> None:
        """Write a node's twin and wait until the extender has it."""
        path = f"{TWINS}/{node}"
        spec = {"nodeName": node, "profile": "eco" if node_class == "eco" else "performance"}
        status = {
            "schedulableClass": node_class,
            "predictedPowerHeadroomScore": 100.0 - measured_w / 10.0,
            "predictedCoolingStressScore": 10,
            "powerMeasurement": {"nodeCappedPowerW": 1000, "measuredNodePowerW": measured_w},
            "powerBudgets": budgets,
            "lastUpdated": rfc3339(time.time()),  # noqa: TID251 - twins of the real world have its time
        }
        apply = {"content_type": "application/apply-patch+yaml"}
        kind = {"apiVersion": "joulie.io/v1alpha1", "kind": "NodeTwin", "metadata": {"name": node}}
        query = "?fieldManager=joulie-operator&force=true"
        self.plane.request("PATCH", path + query, kind | {"spec": spec}, **apply)
        self.plane.request("PATCH", path + "/status" + query, kind | {"status": status}, **apply)
        wait_for(lambda: self.knows(node, node_class, measured_w), 90, f"the extender knows the twin of {node}")

    def knows(self, node: str, node_class: str, measured_w: float) -> bool:
        nodes = json.loads(self.get("/debug/scoring") or '{"nodes": []}')["nodes"]
        found = {(item["node"], item["class"], item["measuredW"]) for item in nodes if item["fresh"]}
        return (node, node_class, measured_w) in found

    def create(
        self, *names: str, cpu: str = "1", performance: bool = False, runtime: str = "", gpu_milli: int = 0, **spec: Any
    ) -> None:
        annotations = {"joulie.io/workload-class": "performance"} if performance else {}
        if runtime:
            annotations["joulie.io/estimated-runtime"] = runtime
        resources: dict[str, Any] = {"requests": {"cpu": cpu}}
        if gpu_milli:
            annotations[GPU_MILLI] = str(gpu_milli)
            resources["limits"] = {GPU_MILLI: str(gpu_milli)}
        container = {"name": "main", "image": "pause", "resources": resources}
        self.plane.create_all(
            PODS,
            [
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": name, "annotations": annotations, "labels": {"app": name.split("-")[0]}},
                    "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
                }
                for name in names
            ],
        )

    def node_of(self, name: str) -> str:
        """Where a pod runs, once it does."""
        return str(wait_for(lambda: self.pod(name)["spec"].get("nodeName"), 90, f"{name} is bound"))

    def pod(self, name: str) -> dict[str, Any]:
        return dict(self.plane.request("GET", f"{PODS}/{name}"))

    def why_waiting(self, name: str) -> str:
        """The scheduler's message about a pod that fits nowhere, once there is one."""

        def message() -> str:
            conditions = self.pod(name).get("status", {}).get("conditions") or ()
            return next((str(item["message"]) for item in conditions if item.get("reason") == "Unschedulable"), "")

        return wait_for(message, 90, f"{name} is unschedulable")

    def tidy(self) -> None:
        """No pods, nodes and twins as in the beginning."""
        self.plane.kubectl("delete", "pods", "--all", "-n", "default", "--force", "--wait")
        for node, node_class in CLASSES.items():
            self.set_twin(node, node_class)


@pytest.fixture(scope="module")
def installed(plane: LocalControlPlane) -> Joulie:
    plane.create_all("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd.custom_resource_definitions())
    plane.await_definitions()
    plane.create_nodes([kwok_node(name, allocatable={"cpu": "8"}) for name in CLASSES])
    plane.kubectl("create", "priorityclass", "high", "--value=1000")
    joulie = Joulie(plane)
    joulie.schedule_with()
    return joulie


@pytest.fixture
def joulie(installed: Joulie) -> Joulie:
    installed.tidy()
    return installed


@pytest.mark.parametrize("names_only", [True, False], ids=["names", "whole-nodes"])
def test_performance_pods_land_on_performance_nodes_only(joulie: Joulie, names_only: bool) -> None:
    before = joulie.metric('joulie_extender_requests_total{code="200",verb="prioritize"}')
    # So many that all fit one node: a scheduler that is left with one ranks nothing.
    pods = [f"fast-{index}" for index in range(8)]
    joulie.schedule_with(nodeCacheCapable=names_only)
    try:
        joulie.create(*pods, performance=True)
        assert {joulie.node_of(name) for name in pods} <= {"perf-1", "perf-2"}
    finally:
        joulie.schedule_with()
    asked = 'joulie_extender_requests_total{code="200",verb="prioritize"}'
    wait_for(lambda: joulie.metric(asked) >= before + len(pods), 90, "each pod's nodes were ranked")
    assert joulie.metric('joulie_extender_requests_total{code="400",verb="filter"}') == 0.0


def test_standard_pods_run_anywhere(joulie: Joulie) -> None:
    for node in CLASSES:
        joulie.create(f"any-{node}", nodeSelector={"kubernetes.io/hostname": node})
    assert {joulie.node_of(f"any-{node}") for node in CLASSES} == set(CLASSES)


def test_the_node_with_headroom_wins(joulie: Joulie) -> None:
    joulie.set_twin("perf-1", "performance", measured_w=950.0)
    joulie.create("one-1", performance=True)
    assert joulie.node_of("one-1") == "perf-2"
    joulie.set_twin("perf-1", "performance", measured_w=50.0)
    joulie.set_twin("perf-2", "performance", measured_w=950.0)
    joulie.create("two-1", performance=True)
    assert joulie.node_of("two-1") == "perf-1"


def test_trap_taints_still_decide(joulie: Joulie) -> None:
    """Scores of 0..100 where 0..10 are expected drown the other plugins."""
    joulie.set_twin("perf-1", "performance", measured_w=0.0)
    joulie.set_twin("perf-2", "performance", measured_w=990.0)
    joulie.plane.kubectl("taint", "node", "perf-1", "shaky=true:PreferNoSchedule")
    try:
        joulie.create("wary-1", performance=True)
        assert joulie.node_of("wary-1") == "perf-2"
    finally:
        joulie.plane.kubectl("taint", "node", "perf-1", "shaky-")


def test_trap_topology_spread_still_decides(joulie: Joulie) -> None:
    joulie.set_twin("perf-1", "performance", measured_w=0.0)
    joulie.set_twin("perf-2", "performance", measured_w=990.0)
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "spread"}},
    }
    placed = []
    for index in range(4):
        joulie.create(f"spread-{index}", performance=True, cpu="100m", topologySpreadConstraints=[spread])
        placed.append(joulie.node_of(f"spread-{index}"))
    assert sorted(placed) == ["perf-1", "perf-1", "perf-2", "perf-2"]


def test_without_a_performance_node_a_pod_waits_and_nobody_is_evicted(joulie: Joulie) -> None:
    joulie.set_twin("perf-1", "eco")
    joulie.set_twin("perf-2", "draining")
    joulie.create("patient-1", performance=True)
    message = joulie.why_waiting("patient-1")
    assert "2 node(s) run under eco power caps, closed to performance pods" in message
    assert "2 node(s) are draining towards eco power caps, closed to performance pods" in message
    assert "preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling" in message
    # The scheduler tries again when a node changes.
    joulie.set_twin("perf-1", "performance")
    joulie.plane.kubectl("label", "node", "perf-1", "joulie.io/power-profile=performance", "--overwrite")
    assert joulie.node_of("patient-1") == "perf-1"


def test_trap_high_priority_evicts_nobody_from_full_eco_nodes(joulie: Joulie) -> None:
    """Full nodes are refused as preemptible by the scheduler itself: only /preempt saves the pods on them."""
    joulie.set_twin("perf-1", "eco")
    joulie.set_twin("perf-2", "eco")
    low = [f"low-{node}" for node in CLASSES]
    for node in CLASSES:
        joulie.create(f"low-{node}", cpu="6", nodeSelector={"kubernetes.io/hostname": node})
    uids = {name: (joulie.node_of(name), joulie.pod(name)["metadata"]["uid"])[1] for name in low}
    asked = joulie.metric('joulie_extender_requests_total{code="200",verb="preempt"}')
    joulie.create("urgent-1", cpu="6", performance=True, priorityClassName="high")
    joulie.why_waiting("urgent-1")
    wait_for(
        lambda: joulie.metric('joulie_extender_requests_total{code="200",verb="preempt"}') > asked,
        90,
        "asked to preempt",
    )
    assert "nominatedNodeName" not in joulie.pod("urgent-1").get("status", {})
    assert {name: joulie.pod(name)["metadata"]["uid"] for name in low} == uids
    assert not any("deletionTimestamp" in joulie.pod(name)["metadata"] for name in low)
    # On a performance node such a pod may preempt.
    joulie.set_twin("perf-2", "performance")
    joulie.create("urgent-2", cpu="6", performance=True, priorityClassName="high")
    assert joulie.node_of("urgent-2") == "perf-2"
    left = {item["metadata"]["uid"] for item in joulie.plane.request("GET", PODS)["items"]}
    assert left >= {uid for name, uid in uids.items() if name != "low-perf-2"}


def test_marginal_scoring_packs_onto_the_node_that_is_up_anyway(joulie: Joulie) -> None:
    """By default kube-scheduler would spread these pods over the empty nodes."""
    joulie.may_watch_pods()
    port, metrics_port = free_port(), free_port()
    program = joulie._spawn("extender-marginal", port, metrics_port, SCORING="marginal")

    def cost_w_min(node: str) -> float | None:
        asked = json.dumps(joulie.pod("long-1")).encode()
        shown = json.loads(joulie.get("/debug/explain", metrics_port, asked) or '{"nodes": []}')["nodes"]
        return next((one["costWMin"] for one in shown if one["node"] == node), None)

    joulie.schedule_with(urlPrefix=f"http://127.0.0.1:{port}", weight=20, ignorable=False)
    try:
        joulie.create("long-1", cpu="3", runtime="10h", nodeSelector={"kubernetes.io/hostname": "perf-2"})
        joulie.node_of("long-1")
        wait_for(lambda: (cost_w_min("perf-2") or 99.0) < (cost_w_min("perf-1") or 0.0), 90, "it sees the pod")
        short = [f"short-{index}" for index in range(4)]
        joulie.create(*short, runtime="30m")
        assert {joulie.node_of(name) for name in short} == {"perf-2"}
    finally:
        program.stop()
        joulie.schedule_with()


def test_frugal_scoring_shares_frugal_gpus_first_and_never_splits_a_part(joulie: Joulie) -> None:
    """By default kube-scheduler prefers the emptier node, and knows only how much is left of all GPUs of a node."""
    joulie.may_watch_pods()
    joulie.plane.create_nodes(
        kwok_node(
            name,
            labels={"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": "2"},
            allocatable={"cpu": cpu, GPU_MILLI: "2000"},
        )
        for name, product, cpu in (("thrifty", "Tesla-T4", "16"), ("strong", "Tesla-V100-SXM2-32GB", "64"))
    )
    port, metrics_port = free_port(), free_port()
    program = joulie._spawn("extender-frugal", port, metrics_port, SCORING="frugal")

    def refused(pod: str) -> set[str]:
        shown = json.loads(joulie.get("/debug/explain", metrics_port, json.dumps(joulie.pod(pod)).encode()) or "{}")
        return {one["node"] for one in shown.get("nodes", ()) if not one["allowed"]}

    joulie.schedule_with(urlPrefix=f"http://127.0.0.1:{port}", weight=20, ignorable=False)
    try:
        joulie.create("part-1", gpu_milli=600)
        assert joulie.node_of("part-1") == "thrifty"
        here = {"kubernetes.io/hostname": "thrifty"}
        joulie.create("part-2", gpu_milli=600, nodeSelector=here)
        joulie.node_of("part-2")
        wait_for(lambda: "thrifty" in refused("part-2"), 90, "it sees both pods")
        joulie.create("pinned", gpu_milli=500, nodeSelector=here)
        assert "1 no GPU of the node has as much left as the pod's gpu-milli" in joulie.why_waiting("pinned")
        joulie.create("part-3", gpu_milli=500)
        assert joulie.node_of("part-3") == "strong", "800 are left of thrifty, but 400 of each GPU"
        joulie.create("part-4", gpu_milli=400)
        assert joulie.node_of("part-4") == "thrifty"
    finally:
        program.stop()
        joulie.plane.kubectl("delete", "pods", "--all", "-n", "default", "--force", "--wait")
        joulie.plane.kubectl("delete", "node", "thrifty", "strong")
        joulie.schedule_with()


def test_a_pod_without_watts_waits_and_says_which_budget_has_how_many_left(joulie: Joulie) -> None:
    """Two nodes in a rack, one of them in use: the next pod that needs full power finds 20 W, and waits."""
    joulie.may_watch_pods()
    racks = [node for node, node_class in CLASSES.items() if node_class == "performance"]
    for node in racks:
        joulie.set_twin(node, "performance", budgets=("rack",))
    budgets = resources.POWER_BUDGETS.path()
    spec = {"watts": 1000, "nodeSelector": {"joulie.io/rack": "r"}}
    kind = {"apiVersion": "joulie.io/v1alpha1", "kind": "PowerBudget", "metadata": {"name": "rack"}}
    joulie.plane.request("POST", budgets, kind | {"spec": spec})

    def tell(room_w: float) -> None:
        status = {"podHeadroomWatts": room_w, "lastUpdated": rfc3339(time.time())}  # noqa: TID251
        merge = {"content_type": "application/merge-patch+json"}
        joulie.plane.request("PATCH", f"{budgets}/rack/status", {"status": status}, **merge)

    def refusals() -> set[str]:
        asked = json.dumps(joulie.pod("late-1")).encode()
        shown = json.loads(joulie.get("/debug/explain", body=asked) or '{"nodes": []}')["nodes"]
        return {one["refusal"] for one in shown if one["node"] in racks}

    try:
        tell(20.0)
        joulie.create("late-1", performance=True, schedulingGates=[{"name": "example.com/not-yet"}])
        wait_for(lambda: all("power budget rack" in one for one in refusals()), 90, "it knows budget and pods")
        joulie.plane.kubectl("patch", "pod", "late-1", "--type=merge", "-p", '{"spec":{"schedulingGates":[]}}')
        # A core of eight, 70 % of the 150 W of CPUs that nobody knows.
        reason = "2 power budget rack has 20 W left for pods, and the pod needs "
        assert reason in joulie.why_waiting("late-1")
        events = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=late-1,reason=FailedScheduling"

        def told() -> bool:
            items = joulie.plane.request("GET", events)["items"]
            return any(reason in str(one.get("message") or one.get("note")) for one in items)

        wait_for(told, 90, "the pod has the event with the reason")
        tell(500.0)
        wait_for(lambda: refusals() == {""}, 90, "it knows that there is room")
        # kube-scheduler tries again when a node changes.
        joulie.plane.kubectl("label", "node", racks[0], "joulie.io/changed=true", "--overwrite")
        assert joulie.node_of("late-1") in racks
    finally:
        joulie.plane.request("DELETE", f"{budgets}/rack")


def test_mutual_tls_with_the_scheduler(joulie: Joulie) -> None:
    authority = joulie.plane.authority
    server = authority.issue("extender-server", hosts=["127.0.0.1"])
    client = authority.issue("extender-client")
    port, metrics_port = free_port(), free_port()
    program = joulie._spawn(
        "extender-tls",
        port,
        metrics_port,
        TLS_CERT_FILE=str(server.certificate),
        TLS_KEY_FILE=str(server.key),
        TLS_CLIENT_CA_FILE=str(authority.certificate),
    )
    joulie.schedule_with(
        urlPrefix=f"https://127.0.0.1:{port}",
        enableHTTPS=True,
        tlsConfig={
            "caFile": str(authority.certificate),
            "certFile": str(client.certificate),
            "keyFile": str(client.key),
        },
        ignorable=False,
    )
    joulie.create("safe-1", performance=True)
    assert joulie.node_of("safe-1") in {"perf-1", "perf-2"}
    program.stop()
    joulie.schedule_with()


def test_explanation_is_the_schedulers_reason(joulie: Joulie) -> None:
    joulie.create("why-1", performance=True)
    joulie.node_of("why-1")

    def explained() -> bool:
        shown = json.loads(joulie.get("/debug/explain", body=json.dumps(joulie.pod("why-1")).encode()) or "{}")
        allowed = {node["node"]: node["allowed"] for node in shown.get("nodes", ())}
        assert allowed == {"perf-1": True, "perf-2": True, "eco-1": False, "draining-1.example": False}
        return True

    # Its view of nodes, from which another test's are gone, is a watch.
    wait_for(explained, 90, "the extender explains the four nodes")


def test_an_extender_that_is_down_is_ignored(joulie: Joulie) -> None:
    joulie.extender.kill()
    try:
        joulie.create("orphan-1", performance=True, nodeSelector={"kubernetes.io/hostname": "eco-1"})
        assert joulie.node_of("orphan-1") == "eco-1", "the class rule needs the extender, or steering by admission"
    finally:
        joulie.extender.start()
        wait_for(lambda: joulie.get("/readyz") is not None, 90, "the extender is ready again")
