"""Gates at admission on a real API server: the chart's policy, the webhook as a process, the guard on its own.

Nothing of the chart runs in pods here: the programs are processes under the ServiceAccounts that the chart makes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from joulie.adapters.kubernetes import gating
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.times import rfc3339_micro
from joulie_lab.control_plane import ApiError, LocalControlPlane, wait_for
from joulie_lab.control_plane.ports import free_port
from joulie_lab.control_plane.process import ManagedProcess
from support.grid_admission_cases import ARRIVALS, DEFER, GATE, PREFIX, SEED, Arrival
from support.loop import MERGE

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager")

CHART = Path(__file__).parents[2] / "deploy/helm/joulie"
NAMESPACE = "joulie-system"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/joulie-grid-webhook"
JOULIE = [sys.executable, "-m", "joulie"]
PATIENCE_S = 120.0

Json = dict[str, Any]


def rendered(plane: LocalControlPlane, **grid: Any) -> list[Json]:
    values = json.dumps({"mode": "enforce", "grid": {"enabled": True, **grid}})
    text = plane.helm("template", "joulie", CHART, "--namespace", NAMESPACE, "-f", "-", input=values)
    return [item for item in yaml.load_all(text, Loader=yaml.CSafeLoader) if item]


def apply(plane: LocalControlPlane, documents: list[Json], *kinds: str) -> None:
    wanted = [item for item in documents if item["kind"] in kinds]
    assert {item["kind"] for item in wanted} == set(kinds)
    plane.kubectl("apply", "-f", "-", input=yaml.dump_all(wanted, Dumper=yaml.CSafeDumper))


RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
POLICY = "MutatingAdmissionPolicy"


@pytest.fixture(scope="module")
def installed(plane: LocalControlPlane) -> LocalControlPlane:
    """Rights, the gating ConfigMap, and a namespace for each answer to whether it asks; no admission yet."""
    plane.kubectl("create", "namespace", NAMESPACE)
    documents = rendered(plane, admission={"mode": "webhook"})
    apply(plane, documents, *RIGHTS, "ConfigMap", "Secret")
    for asking in {one.asking for one in ARRIVALS.values()}:
        annotations = {DEFER: asking} if asking else {}
        body = {"metadata": {"name": namespace_of(asking), "annotations": annotations}}
        plane.request("POST", "/api/v1/namespaces", body)
        wait_for(lambda body=body: has_account(plane, body["metadata"]["name"]), PATIENCE_S, "pods can be created")
    return plane


def namespace_of(asking: str) -> str:
    return f"asks-{asking.lower()}-{len(asking)}-{'upper' if asking.isupper() else 'lower'}" if asking else "asks-not"


def has_account(plane: LocalControlPlane, namespace: str) -> bool:
    try:
        plane.request("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
    except ApiError:
        return False
    return True


def gates_of(plane: LocalControlPlane, arrival: Arrival) -> list[str]:
    """Scheduling gates of a pod as the API server makes it, without storing it."""
    namespace = namespace_of(arrival.asking)
    made = plane.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", arrival.pod(namespace))
    return [gate["name"] for gate in made["spec"].get("schedulingGates", [])]


def set_gating(plane: LocalControlPlane, *, enabled: bool) -> None:
    """As the leading controller does, and wait until the API server has noticed."""

    async def switch() -> None:
        async with KubeClient.connect(kubeconfig=plane.kubeconfig_for("joulie-grid", NAMESPACE)) as client:
            await gating.set_gating(client, NAMESPACE, enabled=enabled)

    asyncio.run(switch())
    asks = ARRIVALS["asks"]
    wait_for(lambda: gates_of(plane, asks) == ([GATE] if enabled else []), PATIENCE_S, f"gating is {enabled}")


def disagreements(plane: LocalControlPlane) -> dict[str, list[str]]:
    """The arrivals whose gates are not as expected, with those gates."""
    found = {name: gates_of(plane, arrival) for name, arrival in ARRIVALS.items()}
    return {name: gates for name, gates in found.items() if gates != ARRIVALS[name].expected_gates}


@contextmanager
def policy_of(plane: LocalControlPlane, **grid: Any) -> Iterator[None]:
    """The chart's policy, in force, until the block ends."""
    apply(plane, rendered(plane, admission={"mode": "policy"}, **grid), POLICY)
    try:
        assert gates_of(plane, ARRIVALS["asks"]) == [], "the chart itself turns nothing on"
        set_gating(plane, enabled=True)
        yield
    finally:
        plane.kubectl("delete", f"{POLICY}/joulie-grid")
        set_gating(plane, enabled=False)
        wait_for(lambda: not bindings(plane), PATIENCE_S, "the policy's binding is gone")


def bindings(plane: LocalControlPlane) -> str:
    return plane.kubectl("get", "mutatingadmissionpolicybindings", "-o", "name")


def test_the_policy_gates_who_asks_and_nobody_while_gating_is_off(installed: LocalControlPlane) -> None:
    plane = installed
    with policy_of(plane):
        wait_for(lambda: disagreements(plane) == {}, PATIENCE_S, "the policy gates who asks")
        system = plane.request("POST", "/api/v1/namespaces/kube-system/pods?dryRun=All", seed_pod("kube-system"))
        assert "schedulingGates" not in system["spec"]
        set_gating(plane, enabled=True)  # again: nothing changes
        set_gating(plane, enabled=False)
        assert [name for name in ARRIVALS if GATE in gates_of(plane, ARRIVALS[name])] == ["gated already"]
        # Switched, and installed anew below: an API server that has seen the policy before takes it again.
        set_gating(plane, enabled=True)
        wait_for(lambda: disagreements(plane) == {}, PATIENCE_S, "the policy gates again")


def test_the_binding_goes_with_its_policy(installed: LocalControlPlane) -> None:
    plane = installed
    with policy_of(plane):
        plane.kubectl("delete", f"{POLICY}/joulie-grid")
        wait_for(lambda: not bindings(plane), PATIENCE_S, "the binding is collected")
        apply(plane, rendered(plane, admission={"mode": "policy"}), POLICY)
        wait_for(lambda: gates_of(plane, ARRIVALS["asks"]) == [], PATIENCE_S, "a new policy is not in force")


def seed_pod(namespace: str) -> Json:
    return Arrival(True, spec=SEED).pod(namespace)


def test_pods_of_kueue_are_left_to_its_admission_check(installed: LocalControlPlane) -> None:
    plane = installed
    body = seed_pod("asks-not")
    body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    with policy_of(plane, kueue="true", kueueResources=[]):
        made = plane.request("POST", "/api/v1/namespaces/asks-not/pods?dryRun=All", body)
        assert "schedulingGates" not in made["spec"]


def job(namespace: str, own: dict[str, str], template: dict[str, str], scheduler: str = "") -> Json:
    spec = {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "train",
            "namespace": namespace,
            "labels": {"kueue.x-k8s.io/queue-name": "team"},
            **({"annotations": own} if own else {}),
        },
        "spec": {
            "suspend": True,
            "template": {
                "metadata": {"annotations": template},
                "spec": {**spec, **({"schedulerName": scheduler} if scheduler else {})},
            },
        },
    }


ADMISSION_GATE = "kueue.x-k8s.io/admission-gated-by"


def admission_gate(plane: LocalControlPlane, body: Json) -> str | None:
    """Kueue's admission gates of a Job or pod as the API server makes it, without storing it."""
    group, plural = ("apis/batch/v1", "jobs") if body["kind"] == "Job" else ("api/v1", "pods")
    path = f"/{group}/namespaces/{body['metadata']['namespace']}/{plural}?dryRun=All"
    return plane.request("POST", path, body)["metadata"].get("annotations", {}).get(ADMISSION_GATE)


def test_g17_what_waits_in_kueue_is_gated_before_it_has_quota(installed: LocalControlPlane) -> None:
    plane, asks, asks_not = installed, namespace_of("true"), "asks-not"
    apply(plane, rendered(plane, admission={"mode": "policy"}, kueue="true"), POLICY)
    try:
        set_gating(plane, enabled=True)
        own = {DEFER: "true"}
        wait_for(lambda: admission_gate(plane, job(asks_not, own, {})) == GATE, PATIENCE_S, "the policy is in force")
        assert admission_gate(plane, job(asks_not, {}, own)) == GATE
        assert admission_gate(plane, job(asks_not, {}, {}, "compute-gardener-scheduler")) == GATE
        assert admission_gate(plane, job(asks, {}, {})) == GATE
        others = {**own, ADMISSION_GATE: "example.com/other"}
        assert admission_gate(plane, job(asks_not, others, {})) == f"example.com/other,{GATE}"
        assert admission_gate(plane, job(asks_not, {**own, ADMISSION_GATE: GATE}, {})) == GATE

        assert admission_gate(plane, job(asks_not, {}, {})) is None
        assert admission_gate(plane, job(asks, {DEFER: "0"}, {})) is None
        assert admission_gate(plane, job(asks, {}, {DEFER: "false"})) is None
        assert admission_gate(plane, job(asks, {f"{PREFIX}skip": "true"}, {})) is None
        unqueued = job(asks, own, {})
        del unqueued["metadata"]["labels"]
        assert admission_gate(plane, unqueued) is None

        def pod(owner: str) -> Json:
            body = Arrival(True, own, owner=owner).pod(asks_not)
            body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
            return body

        assert admission_gate(plane, pod("")) == admission_gate(plane, pod("ReplicaSet")) == GATE
        assert admission_gate(plane, pod("StatefulSet")) is None
    finally:
        plane.kubectl("delete", f"{POLICY}/joulie-grid", f"{POLICY}/joulie-grid-kueue")
        set_gating(plane, enabled=False)
        wait_for(lambda: not bindings(plane), PATIENCE_S, "the bindings are gone")


# ---- the guard


def guard(plane: LocalControlPlane, *words: str) -> Json:
    environment = {"POD_NAMESPACE": NAMESPACE, "LOG_LEVEL": "warning"}
    done = ManagedProcess(
        "guard",
        [*JOULIE, "grid", "guard", "--once", "-o", "json", *words],
        plane.log_folder / "guard.log",
        {"KUBECONFIG": str(plane.kubeconfig_for("joulie-grid-guard", NAMESPACE)), **environment},
    )
    done.log.write_text("")
    done.start()
    wait_for(lambda: not done.running, PATIENCE_S, "the guard has done its round")
    return dict(json.loads(done.log.read_text().splitlines()[-1]))


def wall_clock_s() -> float:
    return time.time()  # noqa: TID251 - the guard is a process, and has the world's time


def waiting_pod(name: str, namespace: str, annotations: dict[str, str]) -> Json:
    body = Arrival(True, annotations, spec={**SEED, "schedulingGates": [{"name": "example.com/quota"}]}).pod(namespace)
    body["metadata"]["name"] = name
    body["spec"]["schedulingGates"].append({"name": GATE})
    return body


def test_without_a_controller_the_guard_lets_pods_go_in_time_and_stops_gating(installed: LocalControlPlane) -> None:
    plane = installed
    prefix = "compute-gardener-scheduler.kubernetes.io/"
    pods = "/api/v1/namespaces/asks-not/pods"
    now = {f"{prefix}max-scheduling-delay": "0s"}
    later = {f"{prefix}max-scheduling-delay": "6h"}
    plane.create_all(pods, [waiting_pod("due", "asks-not", now), waiting_pod("early", "asks-not", later)])

    def gates(name: str) -> list[str]:
        return [gate["name"] for gate in plane.request("GET", f"{pods}/{name}")["spec"].get("schedulingGates", [])]

    lease = {
        "metadata": {"name": "joulie-grid"},
        "spec": {"holderIdentity": "c", "leaseDurationSeconds": 15, "renewTime": rfc3339_micro(wall_clock_s())},
    }
    with policy_of(plane):
        plane.request("POST", LEASES, lease)
        alive = guard(plane)
        assert (alive["controller_alive"], alive["gating_suspended"], alive["lifted"]) == (True, False, [])
        assert gates_of(plane, ARRIVALS["asks"]) == [GATE]

        stale = {"spec": {"renewTime": rfc3339_micro(wall_clock_s() - 301.0)}}
        plane.request("PATCH", f"{LEASES}/joulie-grid", stale, content_type=MERGE)
        dead = guard(plane)
        assert (dead["controller_alive"], dead["gating_suspended"], dead["problems"]) == (False, True, [])
        assert (dead["lifted"], dead["waiting"]) == (["asks-not/due"], 1)
        assert gates("due") == ["example.com/quota"]
        assert gates("early") == ["example.com/quota", GATE]
        wait_for(lambda: gates_of(plane, ARRIVALS["asks"]) == [], PATIENCE_S, "new pods are not gated")

        plane.request("DELETE", f"{LEASES}/joulie-grid")
        never = guard(plane, "--max-scheduling-delay", "0s")
        assert (never["lease_age_s"], never["gating_suspended"], never["lifted"]) == (None, True, [])
    for name in ("due", "early"):
        plane.request("DELETE", f"{pods}/{name}?gracePeriodSeconds=0")


# ---- the webhook


class Webhook:
    """The program, registered as the chart registers it; its Service is this machine."""

    def __init__(self, plane: LocalControlPlane) -> None:
        self.plane = plane
        self.port, self._metrics_port = free_port(), free_port()
        registration = next(
            item
            for item in rendered(plane, admission={"mode": "webhook"})
            if item["kind"] == "MutatingWebhookConfiguration"
        )
        for one in registration["webhooks"]:
            one["clientConfig"]["service"]["port"] = self.port
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "joulie-grid-webhook", "namespace": NAMESPACE},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }
        plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all([service, registration]))
        self.process = self._start()

    def _start(self) -> ManagedProcess:
        environment = {
            "KUBECONFIG": str(self.plane.kubeconfig_for("joulie-grid-webhook", NAMESPACE)),
            "POD_NAMESPACE": NAMESPACE,
            "WEBHOOK_ADDR": f"127.0.0.1:{self.port}",
            "METRICS_ADDR": f"127.0.0.1:{self._metrics_port}",
        }
        return self.plane.spawn("webhook", [*JOULIE, "grid", "webhook"], environment=environment)

    def ready(self) -> bool:
        self.process.raise_if_ended()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def reviews(self, result: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        name = f'joulie_grid_webhook_reviews_total{{result="{result}"}} '
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


@pytest.fixture(scope="module")
def webhook(installed: LocalControlPlane) -> Iterator[Webhook]:
    webhook = Webhook(installed)
    wait_for(webhook.ready, PATIENCE_S, "the webhook is ready")
    yield webhook
    webhook.process.stop()
    installed.kubectl("delete", "mutatingwebhookconfiguration", "joulie-grid-webhook")


def test_the_webhook_gates_as_the_policy_does_and_sees_no_other_pods(webhook: Webhook) -> None:
    plane = webhook.plane
    set_gating(plane, enabled=True)
    wait_for(lambda: disagreements(plane) == {}, PATIENCE_S, "the webhook agrees")
    before = webhook.reviews("left") + webhook.reviews("gated")
    for name in ("plain", "bound", "skips", "of a DaemonSet", "gated already", "asks in other words"):
        assert gates_of(plane, ARRIVALS[name]) == ARRIVALS[name].expected_gates
    assert webhook.reviews("left") + webhook.reviews("gated") == before
    # A namespace that begins to ask is registered.
    plane.kubectl("annotate", "namespace", "asks-not", f"{DEFER}=true")
    wait_for(lambda: gates_of(plane, ARRIVALS["plain"]) == [GATE], PATIENCE_S, "the new namespace is known")
    plane.kubectl("annotate", "namespace", "asks-not", f"{DEFER}-")
    wait_for(lambda: gates_of(plane, ARRIVALS["plain"]) == [], PATIENCE_S, "the namespace is forgotten")
    set_gating(plane, enabled=False)
    assert gates_of(plane, ARRIVALS["asks"]) == []
    assert webhook.reviews("malformed") == 0.0


def test_the_webhook_rotates_its_certificate_before_it_ends(webhook: Webhook) -> None:
    plane = webhook.plane
    set_gating(plane, enabled=True)
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/joulie-grid-webhook"
    before = plane.request("GET", secret)["data"]["tls.crt"]
    # As if it were about to end: what cannot be read is replaced as well.
    plane.request("PATCH", secret, {"data": {"tls.crt": "bm90aGluZw=="}}, content_type=MERGE)
    plane.kubectl("annotate", "namespace", "asks-not", "joulie.io/wake=now")

    def rotated() -> bool:
        now = plane.request("GET", secret)["data"]["tls.crt"]
        bundles = {one["clientConfig"]["caBundle"] for one in plane.request("GET", REGISTRATION)["webhooks"]}
        return now not in (before, "bm90aGluZw==") and bundles == {now}

    wait_for(rotated, PATIENCE_S, "a new certificate is registered")
    webhook.process.stop()
    webhook.process.start()
    wait_for(webhook.ready, PATIENCE_S, "it serves the new one")
    # The API server may still hold a connection to the process that is gone.
    wait_for(lambda: gates_of(plane, ARRIVALS["asks"]) == [GATE], PATIENCE_S, "it gates again")


def test_trap_a_dead_webhook_keeps_no_pod_out(webhook: Webhook) -> None:
    plane = webhook.plane
    set_gating(plane, enabled=True)
    webhook.process.kill()
    assert gates_of(plane, ARRIVALS["asks"]) == []
    assert gates_of(plane, ARRIVALS["plain"]) == []
    webhook.process.start()
    wait_for(webhook.ready, PATIENCE_S, "it is back")
    wait_for(lambda: gates_of(plane, ARRIVALS["asks"]) == [GATE], PATIENCE_S, "it gates again")


def test_nothing_was_refused(installed: LocalControlPlane) -> None:
    """The chart's rights were enough for what the programs did above."""
    refused = [
        f"{event['user']['username']} {event['requestURI']}"
        for event in installed.audit_events()
        if event.get("responseStatus", {}).get("code") == 403
    ]
    assert refused == []
