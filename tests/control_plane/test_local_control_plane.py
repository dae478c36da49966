"""The local control plane is a real one: versions, TLS, RBAC, scheduling, restarts, slowness, and a clean end."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from joulie_lab.control_plane import (
    COMPONENTS,
    ApiError,
    Binaries,
    KubectlError,
    LocalControlPlane,
    ProcessFailedError,
    cluster,
    kwok_node,
    wait_for,
)
from support.forked_program import spawn_joulie

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

StartControlPlane = Callable[..., LocalControlPlane]


def pod(name: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **spec},
    }


def phase(plane: LocalControlPlane, name: str) -> str:
    status: str = plane.request("GET", f"/api/v1/namespaces/default/pods/{name}")["status"]["phase"]
    return status


def alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    # A zombie of another parent is as good as gone.
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def two_nodes(control_plane: LocalControlPlane) -> Iterator[list[str]]:
    names = ["local-a.example.org", "local-b.example.org"]
    control_plane.create_nodes(
        [
            kwok_node(names[0], labels={"zone": "a"}, allocatable={"nvidia.com/gpu": "8"}),
            kwok_node(names[1], labels={"zone": "b"}, taints=[{"key": "kept", "effect": "NoSchedule"}]),
        ]
    )
    yield names
    for name in names:
        control_plane.request("DELETE", f"/api/v1/nodes/{name}")


def test_the_programs_are_of_the_versions_that_joulie_is_tested_with(control_plane: LocalControlPlane) -> None:
    server = control_plane.request("GET", "/version")["gitVersion"]
    client = json.loads(control_plane.kubectl("version", "--client", "-o", "json"))["clientVersion"]["gitVersion"]
    assert server.startswith("v1.36.")
    assert client.startswith("v1.36.")
    assert control_plane.helm("version", "--short").startswith("v4.3.")


@pytest.mark.parametrize(
    ("name", "version"),
    [("etcd", "3.6."), ("kwok", "0.8."), ("kube-scheduler", "v1.36."), ("kube-controller-manager", "v1.36.")],
)
def test_each_program_tells_its_version(control_plane_binaries: Binaries, name: str, version: str) -> None:
    told = subprocess.run([control_plane_binaries[name], "--version"], capture_output=True, text=True, check=True)
    assert version in told.stdout


def test_tls_is_verified_against_an_authority_of_its_own(control_plane: LocalControlPlane) -> None:
    address = ("127.0.0.1", control_plane.port("kube-apiserver"))
    trusting = ssl.create_default_context(cafile=str(control_plane.authority.certificate))
    with socket.create_connection(address) as raw, trusting.wrap_socket(raw, server_hostname="localhost") as secured:
        assert secured.version() == "TLSv1.3"
    with (
        socket.create_connection(address) as raw,
        pytest.raises(ssl.SSLCertVerificationError),
        ssl.create_default_context().wrap_socket(raw, server_hostname="localhost"),
    ):
        pass


def test_an_unknown_caller_is_not_let_in(control_plane: LocalControlPlane, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.kubeconfig"
    config = json.loads(control_plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": "made-up"}
    stranger.write_text(json.dumps(config))
    with pytest.raises(KubectlError, match=r"Unauthorized|logged in"):
        control_plane.kubectl("get", "nodes", kubeconfig=stranger)


def test_rbac_gives_a_service_account_what_it_was_given_and_no_more(control_plane: LocalControlPlane) -> None:
    control_plane.kubectl("create", "namespace", "rbac")
    control_plane.kubectl("create", "serviceaccount", "reader", "-n", "rbac")
    kubeconfig = control_plane.kubeconfig_for("reader", "rbac")
    who = control_plane.kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}", kubeconfig=kubeconfig)
    assert who == "system:serviceaccount:rbac:reader"
    with pytest.raises(KubectlError, match=r'User "system:serviceaccount:rbac:reader" cannot list resource "nodes"'):
        control_plane.kubectl("get", "nodes", kubeconfig=kubeconfig)

    control_plane.kubectl("create", "clusterrole", "nodes-reader", "--verb=list", "--resource=nodes")
    control_plane.kubectl(
        "create", "clusterrolebinding", "nodes-reader", "--clusterrole=nodes-reader", "--serviceaccount=rbac:reader"
    )
    wait_for(
        lambda: control_plane.kubectl("auth", "can-i", "list", "nodes", kubeconfig=kubeconfig) == "yes\n",
        90,
        "the binding counts",
    )
    control_plane.kubectl("get", "nodes", kubeconfig=kubeconfig)
    with pytest.raises(KubectlError, match="cannot delete resource"):
        control_plane.kubectl("delete", "node", "any", kubeconfig=kubeconfig)


def test_no_token_for_a_service_account_that_does_not_exist(control_plane: LocalControlPlane) -> None:
    with pytest.raises(ApiError, match='serviceaccounts "nobody" not found') as refused:
        control_plane.kubeconfig_for("nobody", "default")
    assert refused.value.status == 404


def test_pods_are_scheduled_to_kwok_nodes_and_run(control_plane: LocalControlPlane, two_nodes: list[str]) -> None:
    control_plane.create_all("/api/v1/namespaces/default/pods", [pod("here"), pod("there", nodeSelector={"zone": "b"})])
    wait_for(lambda: phase(control_plane, "here") == "Running", 90, "pod here runs")
    placed = control_plane.request("GET", "/api/v1/namespaces/default/pods/here")
    assert placed["spec"]["nodeName"] == two_nodes[0]

    def says_why() -> bool:
        status = control_plane.request("GET", "/api/v1/namespaces/default/pods/there")["status"]
        return any("untolerated taint" in condition.get("message", "") for condition in status.get("conditions", ()))

    wait_for(says_why, 90, "pod there waits because of the taint")
    control_plane.kubectl("delete", "pod", "here", "there")
    nodes = control_plane.request("GET", "/api/v1/nodes")["items"]
    assert {node["metadata"]["name"] for node in nodes} == set(two_nodes)
    assert nodes[0]["status"]["capacity"]["nvidia.com/gpu"] == "8"


def test_writes_are_audited_once_each(control_plane: LocalControlPlane) -> None:
    control_plane.kubectl("create", "configmap", "audited", "--from-literal=a=b")
    control_plane.kubectl("label", "configmap", "audited", "x=y")

    def writes() -> list[str]:
        named = [event for event in control_plane.audit_events() if event["objectRef"].get("name") == "audited"]
        return [event["verb"] for event in named]

    wait_for(lambda: writes() == ["create", "patch"], 90, "both writes are in the audit log")


def test_components_restart_under_their_own_objects(start_control_plane: StartControlPlane) -> None:
    plane = start_control_plane()
    plane.create_nodes([kwok_node("only")])
    plane.kubectl("create", "configmap", "kept", "--from-literal=a=b")
    port, first = plane.port("kube-apiserver"), {name: plane.process(name).pid for name in COMPONENTS}

    plane.restart("kube-apiserver")
    assert plane.port("kube-apiserver") == port
    assert plane.kubectl("get", "configmap", "kept", "-o", "jsonpath={.data.a}") == "b"
    plane.kill("etcd")
    plane.start("etcd")

    def ready() -> bool:
        try:
            return bool(plane.request("GET", "/readyz") == "ok")
        except ApiError:  # 500 until it has found etcd
            return False

    wait_for(ready, 90, "the API server found etcd again")
    assert plane.kubectl("get", "configmap", "kept", "-o", "jsonpath={.data.a}") == "b"

    plane.stop("kube-scheduler")
    plane.create_all("/api/v1/namespaces/default/pods", [pod("waits")])
    assert phase(plane, "waits") == "Pending"
    plane.configure_scheduler({"profiles": [{"schedulerName": "other"}]})
    plane.create_all("/api/v1/namespaces/default/pods", [pod("other", schedulerName="other")])
    wait_for(lambda: phase(plane, "other") == "Running", 90, "the other profile schedules its pod")
    assert phase(plane, "waits") == "Pending"
    plane.restart("kube-scheduler", "kube-controller-manager", "kwok")
    assert all(plane.process(name).pid != first[name] for name in COMPONENTS)


def test_a_paused_etcd_makes_requests_wait_and_a_resumed_one_answers(start_control_plane: StartControlPlane) -> None:
    plane = start_control_plane(components=("etcd", "kube-apiserver"))
    write = ("POST", "/api/v1/namespaces/default/configmaps")
    plane.request(*write, {"metadata": {"name": "before"}})
    plane.pause("etcd")
    with pytest.raises(ApiError, match="no answer") as waited:
        plane.request(*write, {"metadata": {"name": "during"}}, timeout_s=1.0)
    assert waited.value.status is None
    plane.resume("etcd")
    plane.request(*write, {"metadata": {"name": "after"}}, timeout_s=20.0)


def test_a_component_that_cannot_start_shows_the_end_of_its_log(start_control_plane: StartControlPlane) -> None:
    plane = start_control_plane(components=("etcd", "kube-apiserver"))
    with pytest.raises(ProcessFailedError, match=r"kube-scheduler ended with status 1(.|\n)*nonsense"):
        plane.configure_scheduler({"nonsense": True})
    plane.request("GET", "/readyz")


def test_a_forked_program_ends_and_says_what_a_started_one_does(start_control_plane: StartControlPlane) -> None:
    plane = start_control_plane(components=("etcd",))
    environment = {"AGENT_MODE": "daemonset", "NODE_NAME": "", "LANG": "C"}
    started = plane.spawn("started", [sys.executable, "-m", "joulie", "agent"], environment=environment)
    forked = spawn_joulie(plane, "forked", "agent", environment)
    wait_for(lambda: not (started.running or forked.running), 60, "both have ended")
    assert forked.exit_status == started.exit_status == 2
    assert forked.log.read_text() == started.log.read_text() != ""


def test_nothing_is_left_after_close(start_control_plane: StartControlPlane) -> None:
    plane = start_control_plane(log_folder=None)
    beside = plane.spawn("beside", ["sleep", "600"])
    process_ids = [beside.pid, *(plane.process(name).pid for name in COMPONENTS)]
    folder, port = plane.folder, plane.port("kube-apiserver")
    plane.pause("etcd")
    plane.close()
    assert not [process_id for process_id in process_ids if alive(process_id)]
    assert not folder.exists()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=5):
        pass
    plane.close()


def test_the_components_die_with_a_parent_that_is_killed(control_plane_binaries: Binaries, tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from joulie_lab.control_plane import LocalControlPlane\n"
        "plane = LocalControlPlane(components=('etcd',))\n"
        "plane.start()\n"
        "print(plane.process('etcd').pid, plane.folder, flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        etcd = int(parent.stdout.readline().split()[0])
        assert alive(etcd)
        parent.send_signal(signal.SIGKILL)
    wait_for(lambda: not alive(etcd), 90, "etcd is gone with its parent")


def test_a_port_that_another_program_takes_first_is_given_up_for_another(
    start_control_plane: StartControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        ports = chain([taken], iter(cluster.free_port, None))
        monkeypatch.setattr(cluster, "free_port", lambda: next(ports))
        plane = start_control_plane(components=("etcd", "kube-apiserver"))
    assert plane.port("kube-apiserver") != taken
    plane.kubectl("get", "namespaces")
