"""The chart installed by Helm: its programs run under its ServiceAccounts, are seen through kubectl, and leave nothing.

The pods of the chart land on KWOK nodes, where nothing really runs; the programs run here, as processes that may do
exactly what the chart's RBAC lets them. One node, `metal.example`, has an agent of its own over a tree of sysfs files.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from joulie.adapters.kubernetes import names
from joulie_lab.control_plane import LocalControlPlane, kwok_node, wait_for
from joulie_lab.control_plane.ports import free_port
from support.agent_machine import Machine
from support.loop import (
    ACTIVE,
    DRAINING,
    ECO,
    H100,
    NAMESPACE,
    NODES,
    PATIENCE_S,
    PODS,
    Loop,
    Program,
    kubectl_joulie,
    node,
    pod,
)
from support.sysfs_trees import intel_two_sockets

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

CHART = Path(__file__).parents[2] / "deploy/helm/joulie"
VALUES = {"mode": "enforce", "simulator": {"enabled": True}, "agentPool": {"enabled": True, "useSimulator": True}}
SIMULATED = ("sim-0.example", "sim-1.example", "sim-2.example")
METAL = "metal.example"
POOL_LABEL = "example.com/simulated"
PACKAGES = ("intel-rapl:0", "intel-rapl:2")
ORIGINAL_W, ECO_W = 190.0, 123.0
"""Of a package of 205 W: as its administrator set it, and 60 % of the most."""
GPU_DEFAULT_W, GPU_ECO_W = 400.0, 240.0
GATE = "joulie.io/carbon"


class Release(Loop):
    """The programs of a release that Helm installed, instead of objects that were applied."""

    def __init__(self, plane: LocalControlPlane, folder: Path) -> None:
        self.plane = plane
        self.programs: dict[str, Program] = {}
        self._recordings = 0
        self._ports = {name: free_port() for name in ("simulator", "agent", "extender", "extender-metrics")}
        where = ("--namespace", NAMESPACE)
        plane.helm("install", "joulie", CHART, *where, "--create-namespace", "-f", "-", input=json.dumps(VALUES))
        plane.await_definitions()
        self.machine = Machine(folder, node=METAL)
        intel_two_sockets(self.machine.sys)
        for zone in PACKAGES:
            self.machine.set_limit_w(ORIGINAL_W, zone)

    def start_metal(self) -> Program:
        """The agent of the node that has a machine, as the DaemonSet runs it."""
        address = f"127.0.0.1:{free_port()}"
        own = {
            "AGENT_MODE": "daemonset",
            "NODE_NAME": METAL,
            "RECONCILE_INTERVAL": "1s",
            "METRICS_ADDR": address,
            "HOST_SYS": str(self.machine.sys),
            "HOST_PROC": str(self.machine.proc),
            "STATE_DIR": str(self.machine.root / "state"),
        }
        return self._start("metal", "agent", "joulie-agent", f"http://{address}", own, on_node=METAL)

    def start_all(self) -> None:
        """Every program of the chart; the pool agent has the simulated nodes, the other one its machine."""
        self.start_simulator(SIM_NODE_SELECTOR=POOL_LABEL)
        self.start_agent(POOL_NODE_SELECTOR=POOL_LABEL)
        self.start_metal()
        # No agent answers on the addresses of pods that KWOK plays.
        self.start_operator(STATIC_HP_FRAC="1.0", AGENT_POD_SELECTOR="")
        self._start_extender()

    def _start_extender(self) -> Program:
        metrics = f"127.0.0.1:{self._ports['extender-metrics']}"
        own = {"PORT": str(self._ports["extender"]), "METRICS_ADDR": metrics}
        return self._start("extender", "extender", "joulie-extender", f"http://{metrics}", own)

    def limits_w(self) -> set[float]:
        """Limits in force of the machine's packages."""
        return {self.machine.limit_w(zone) for zone in PACKAGES}

    def gpu_limit_w(self, name: str) -> float:
        """Limit in force of the GPUs of a simulated node."""
        return float(self.programs["simulator"].get(f"/telemetry/{name}")["gpu"]["capWattsPerGpu"])

    def joulie(self, *arguments: str) -> str:
        """What `kubectl joulie` prints."""
        return kubectl_joulie(self.plane, *arguments)

    def clean_up(self) -> subprocess.CompletedProcess[str]:
        """Run what the chart's hook runs, as the hook's ServiceAccount."""
        hook = hook_of(self.plane)
        settings = {item["name"]: item["value"] for item in hook.environment if "value" in item}
        environment = {
            **self.plane.environment(self.plane.kubeconfig_for(hook.service_account, NAMESPACE)),
            **settings,
            "POD_NAMESPACE": NAMESPACE,
            "SERVICE_ACCOUNT": hook.service_account,
            "CLEANUP_TIMEOUT": "20s",
            "LOG_LEVEL": "warning",
        }
        command = [sys.executable, "-m", "joulie", *hook.arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@dataclass(frozen=True)
class Hook:
    """What a release runs before it is deleted."""

    service_account: str
    arguments: list[str]
    environment: list[dict[str, Any]]


def hook_of(plane: LocalControlPlane) -> Hook:
    (job,) = filter(None, yaml.safe_load_all(plane.helm("get", "hooks", "joulie", "--namespace", NAMESPACE)))
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return Hook(spec["serviceAccountName"], container["args"], container["env"])


@pytest.fixture
def release(start_control_plane: Callable[..., LocalControlPlane], tmp_path: Path) -> Iterator[Release]:
    plane = start_control_plane(audit=True)
    plane.create_nodes([node(name, H100, labels={POOL_LABEL: "true"}) for name in SIMULATED])
    allocatable = {"cpu": "64", "memory": "256Gi"}
    plane.create_nodes([kwok_node(METAL, labels={names.MANAGED_LABEL: "true"}, allocatable=allocatable)])
    folder = tmp_path / "machine"
    folder.mkdir()
    release = Release(plane, folder)
    yield release
    release.raise_if_any_ended()
    assert release.refused() == [], "the chart's RBAC grants what its programs need"


def await_limits(release: Release, limit_w: float) -> None:
    def reached() -> bool:
        assert release.limits_w() == {limit_w}, f"they are {release.limits_w()} W"
        return True

    wait_for(reached, PATIENCE_S, f"the packages' limits are {limit_w} W")


def test_an_agent_killed_while_capped_restores_the_originals_when_it_returns(release: Release) -> None:
    metal = release.start_metal()
    release.start_operator(STATIC_HP_FRAC="1.0", AGENT_POD_SELECTOR="")
    release.override(METAL, "eco")
    release.await_state(METAL, ECO)
    await_limits(release, ECO_W)

    metal.process.kill()
    release.override(METAL, "performance")
    release.await_state(METAL, ACTIVE)
    assert release.limits_w() == {ECO_W}, "nobody is there to lift the cap"

    # What it finds now is its own cap; what it saved is not.
    metal.start()
    await_limits(release, ORIGINAL_W)

    def told() -> bool:
        report = release.twin(METAL)["status"]["controlStatus"]["cpu"]
        return bool(report["backend"] == "rapl" and report["message"].startswith("restored"))

    wait_for(told, PATIENCE_S, "the agent says so")


def test_installed_seen_cleaned_up_and_uninstalled(release: Release) -> None:
    plane = release.plane
    # What the chart deploys is placed on nodes, and becomes available as far as KWOK can tell.
    plane.kubectl("wait", "deployment", "--all", "-n", NAMESPACE, "--for=condition=Available", "--timeout=180s")
    agents = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/joulie-agent"
    everywhere = len(SIMULATED) + 1
    wait_for(
        lambda: plane.request("GET", agents)["status"].get("desiredNumberScheduled") == everywhere,
        PATIENCE_S,
        "an agent is wanted on each node",
    )
    release.start_all()
    eco, draining, performance = SIMULATED
    release.create(pod("critical", on=draining, workload_class="performance"))
    release.create(pod("gated", schedulingGates=[{"name": GATE}, {"name": "example.com/other"}]))
    release.await_placed("critical")
    for name in (eco, draining, METAL):
        release.override(name, "eco")
    for name, state in ((eco, ECO), (draining, DRAINING), (performance, ACTIVE), (METAL, ECO)):
        release.await_state(name, state)
    await_limits(release, ECO_W)
    wait_for(lambda: release.gpu_limit_w(eco) == GPU_ECO_W, PATIENCE_S, "the simulated GPUs are capped")
    _seen_through_kubectl(release, eco, draining, performance)

    release.programs.pop("metal").process.kill()
    done = release.clean_up()
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 nodes restored, 4 nodes unlabelled, 1 pod released\n"
    assert done.stderr.splitlines() == [
        "1 node not restored; limits return when an agent starts there again, or at the next boot:",
        f"  {METAL}: CPU applied: 2 x {ECO_W:g} W in force for a cap of 60 %",
    ]
    _nothing_is_left(release)
    assert {release.gpu_limit_w(name) for name in SIMULATED} == {GPU_DEFAULT_W}
    # The operator still runs, as it does when the hook ends. It writes nothing more from the moment it lost its Lease;
    # its metric follows when the cycle under way has ended.
    operator = release.programs["operator"]
    wait_for(lambda: operator.metric("joulie_operator_leader") == 0.0, PATIENCE_S, "the operator has stood down")
    _nothing_is_left(release)

    # An agent that starts there again finds the twin without caps, and its own notes.
    metal = release.start_metal()
    await_limits(release, ORIGINAL_W)
    again = release.clean_up()
    assert (again.returncode, again.stderr) == (0, "")
    # The label that keeps an agent there goes with the restore.
    assert again.stdout == "4 nodes restored, 1 node unlabelled, 0 pods released\n"

    metal.process.stop()
    del release.programs["metal"]
    plane.helm("uninstall", "joulie", "--namespace", NAMESPACE, "--wait", "--timeout", "60s")
    _nothing_is_left(release)
    for kind in ("deployment", "daemonset", "statefulset", "serviceaccount", "job"):
        wait_for(lambda kind=kind: not left_of(plane, kind), PATIENCE_S, f"no {kind} is left")
    wait_for(lambda: not left_of(plane, "lease"), PATIENCE_S, "R7: the Leases go with the release")


def left_of(plane: LocalControlPlane, kind: str) -> list[str]:
    left = plane.kubectl("get", kind, "-n", NAMESPACE, "-o", "name").split()
    return [name for name in left if "joulie" in name]


def _seen_through_kubectl(release: Release, eco: str, draining: str, performance: str) -> None:
    def told() -> bool:
        document = json.loads(release.joulie("status", "-o", "json"))
        rows = {row["name"]: row for row in document["nodes"]}
        classes = {name: row["schedulable_class"] for name, row in rows.items()}
        assert classes == {eco: "eco", draining: "draining", performance: "performance", METAL: "eco"}
        assert rows[eco]["power_source"] == "http"
        assert (rows[METAL]["cpu_cap"], rows[METAL]["cpu_control"]) == ("60%", "rapl:applied")
        return True

    # The agent reports a cap after it is in force.
    wait_for(told, PATIENCE_S, "kubectl joulie status tells of the four nodes", poll_s=0.5)
    table = release.joulie("status", "--sort-by", "class").splitlines()
    assert table[0].startswith("4 nodes (1 performance, 2 eco, 1 draining)")
    explained = release.joulie(
        "explain", "pod", "critical", "--extender-url", release.programs["extender"].address
    ).splitlines()
    assert explained[0] == "default/critical: performance pod that requests 1 CPU, 1 GiB"
    assert explained[1].startswith(f"It is running on {draining};")
    assert "1 of 4 nodes are allowed for its class." in explained


def _nothing_is_left(release: Release) -> None:
    for name, twin in release.twins().items():
        spec: Mapping[str, Any] = twin["spec"]
        assert spec == {"nodeName": name, "profile": "performance"}
        assert "finalizers" not in twin["metadata"]
    for name in (*SIMULATED, METAL):
        ours = [key for key in release.labels(name) if key in (names.POWER_PROFILE_LABEL, names.DRAINING_LABEL)]
        assert ours == []
        assert "finalizers" not in release.get(f"{NODES}/{name}")["metadata"]
    assert release.get(f"{PODS}/gated")["spec"]["schedulingGates"] == [{"name": "example.com/other"}]
