"""The programs with the rights that the chart gives them, and no others, on a real control plane."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from joulie_lab.control_plane import ApiError, LocalControlPlane, kwok_node, wait_for
from joulie_lab.control_plane.ports import free_port

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "joulie"
NAMESPACE = "joulie-system"
NODES = [f"rights-{number}.example" for number in range(4)]
JOULIE = [sys.executable, "-m", "joulie"]


@pytest.fixture(scope="module")
def plane(plane: LocalControlPlane) -> LocalControlPlane:
    labels = {
        "joulie.io/managed": "true",
        "joulie.io/hw.cpu-model": "AMD_EPYC_9654",
        "joulie.io/hw.cpu-sockets": "2",
    }
    allocatable = {"cpu": "192", "memory": "768Gi", "pods": "110"}
    plane.create_nodes([kwok_node(name, labels=labels, allocatable=allocatable) for name in NODES])
    # The programs run here, not in pods, under the accounts that the chart makes for the pods.
    values = {"mode": "enforce", "agentPool": {"enabled": True}, "simulator": {"enabled": True}}
    helm = ("install", "joulie", CHART, "--namespace", NAMESPACE, "--create-namespace", "--values", "-")
    plane.helm(*helm, input=json.dumps(values))
    wait_for(lambda: served(plane), 90, "NodeTwins are served")
    return plane


def served(plane: LocalControlPlane) -> bool:
    try:
        return twins(plane) == {}
    except ApiError:  # not yet: 404, then 429
        return False


def start(plane: LocalControlPlane, program: str, account: str, **variables: str) -> None:
    kubeconfig = plane.kubeconfig_for(f"joulie-{account}", NAMESPACE)
    environment = {"KUBECONFIG": str(kubeconfig), "POD_NAMESPACE": NAMESPACE, **variables}
    plane.spawn(program, [*JOULIE, program], environment=environment)


def twins(plane: LocalControlPlane) -> Mapping[str, dict[str, object]]:
    found = plane.request("GET", "/apis/joulie.io/v1alpha1/nodetwins")["items"]
    return {twin["metadata"]["name"]: twin for twin in found}


def test_the_charts_rights_are_enough(plane: LocalControlPlane, tmp_path: Path) -> None:
    simulator, agent, operator, extender = (free_port() for _ in range(4))
    url = f"http://127.0.0.1:{simulator}"
    wired = {
        f"TELEMETRY_{device}_{part}": value
        for device in ("CPU", "GPU")
        for part, value in {
            "SOURCE": "http",
            "CONTROL": "http",
            "HTTP_ENDPOINT": f"{url}/telemetry/{{node}}",
            "CONTROL_HTTP_ENDPOINT": f"{url}/control/{{node}}",
        }.items()
    }
    start(plane, "simulator", "simulator", SIM_ADDR=f"127.0.0.1:{simulator}")
    start(
        plane,
        "agent",
        "agent-pool",
        AGENT_MODE="pool",
        METRICS_ADDR=f"127.0.0.1:{agent}",
        RECONCILE_INTERVAL="1s",
        STATE_DIR=str(tmp_path),
        **wired,
    )
    start(
        plane,
        "operator",
        "operator",
        METRICS_ADDR=f"127.0.0.1:{operator}",
        RECONCILE_INTERVAL="2s",
        DRAIN_SETTLING="1s",
        POLICY_TYPE="static_partition",
        AGENT_METRICS_URLS=f"http://127.0.0.1:{agent}/metrics",
    )
    start(plane, "extender", "extender", PORT="0", METRICS_ADDR=f"127.0.0.1:{extender}")

    def settled() -> bool:
        found = [twin.get("status", {}) for twin in twins(plane).values()]
        classes = sorted(str(status.get("schedulableClass")) for status in found)
        reported = all("controlStatus" in status for status in found)
        return classes == ["eco", "eco", "performance", "performance"] and reported

    wait_for(settled, 120, "two nodes of four capped, and all agents heard of")

    def labelled() -> bool:
        told = {
            profile: len(
                plane.kubectl("get", "nodes", "-l", f"joulie.io/power-profile={profile}", "-o", "name").split()
            )
            for profile in ("eco", "performance")
        }
        return told == {"eco": 2, "performance": 2}

    wait_for(labelled, 120, "every node has its label")

    account = plane.kubeconfig_for("joulie-cleanup", NAMESPACE)
    environment = {"KUBECONFIG": str(account), "POD_NAMESPACE": NAMESPACE, "CLEANUP_TIMEOUT": "30s"}
    cleanup = plane.spawn("cleanup", [*JOULIE, "cleanup"], environment=environment)
    wait_for(lambda: not cleanup.running, 120, "the cleanup's end")
    assert "4 nodes restored, 4 nodes unlabelled" in cleanup.log_tail()
    assert plane.kubectl("get", "nodes", "-l", "joulie.io/power-profile", "-o", "name") == ""

    refused = [event for event in plane.audit_events() if event.get("responseStatus", {}).get("code") == 403]
    assert refused == []
    writers = {event["user"]["username"].rpartition(":")[2] for event in plane.audit_events()}
    assert {"joulie-operator", "joulie-agent-pool", "joulie-cleanup"} <= writers


def test_the_second_schedulers_configuration(plane: LocalControlPlane) -> None:
    """kube-scheduler takes it, binds pods under both its names, and an extender that is down holds up nobody."""
    template = ("template", "joulie", CHART, "--set", "grid.enabled=true", "-s", "templates/scheduler.yaml")
    documents = yaml.load_all(plane.helm(*template), Loader=yaml.CSafeLoader)
    text = next(document["data"]["configuration.yaml"] for document in documents if document["kind"] == "ConfigMap")
    configuration = yaml.safe_load(text)
    (extender,) = configuration["extenders"]
    extender["urlPrefix"] = f"http://127.0.0.1:{free_port()}"
    plane.configure_scheduler({name: configuration[name] for name in ("extenders", "profiles")})

    for scheduler in ("joulie-scheduler", "compute-gardener-scheduler"):
        name = f"of-{scheduler}"
        body = {
            "metadata": {"name": name},
            "spec": {"schedulerName": scheduler, "containers": [{"name": "c", "image": "i"}]},
        }
        plane.request("POST", "/api/v1/namespaces/default/pods", body)
        one = f"/api/v1/namespaces/default/pods/{name}"
        wait_for(lambda one=one: plane.request("GET", one)["spec"].get("nodeName"), 90, f"{name} is bound")
        plane.request("DELETE", one)
