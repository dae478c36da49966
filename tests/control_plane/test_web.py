"""`joulie web` as a process with the chart's rights, on a real API server: two tenants and an administrator sign in."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from joulie_lab.control_plane import LocalControlPlane, wait_for
from joulie_lab.control_plane.ports import free_port
from support.loop import NAMESPACE, PATIENCE_S, Loop, pod

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]
COMPONENTS = ("etcd", "kube-apiserver")

TENANTS = ("web-red", "web-blue")
PATHS = ("/", "/nodes/web-node", "/health", "/pods", "/energy", "/plans", "/api/v1/fleet", "/api/v1/nodes/web-node",
         "/api/v1/health", "/api/v1/pods", "/api/v1/openapi.json")  # fmt: skip


@dataclass
class Site:
    """What the tests work with."""

    plane: LocalControlPlane
    url: str

    def token(self, account: str, namespace: str, audience: str = "joulie-web") -> str:
        return self.plane.kubectl("create", "token", account, "-n", namespace, "--audience", audience).strip()

    def client(self, token: str = "") -> httpx2.Client:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx2.Client(base_url=self.url, verify=False, headers=headers)


def bound(name: str, namespace: str, account: str, role: str) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace or TENANTS[0]}],
    }  # fmt: skip


def objects() -> Iterator[dict[str, Any]]:
    """Namespaces with an account, a pod and a budget each; an administrator's account lives in the first one."""
    rule = {"apiGroups": ["", "joulie.io"], "resources": ["pods", "energybudgets"], "verbs": ["list"]}
    kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
    yield {**kind, "metadata": {"name": "web-tenant"}, "rules": [rule]}
    for namespace in TENANTS:
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        for account in ("default", "reader"):  # no controller makes the first one here
            yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": namespace}}
        yield bound("reader", namespace, "reader", "web-tenant")
        yield {**pod(f"{namespace}-pod"), "metadata": {"name": f"{namespace}-pod", "namespace": namespace}}
        yield {
            "apiVersion": "joulie.io/v1alpha1", "kind": "EnergyBudget",
            "metadata": {"name": f"{namespace}-budget", "namespace": namespace},
            "spec": {"limits": {"energyKWh": 5.0}, "period": "month"},
        }  # fmt: skip
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "admin", "namespace": TENANTS[0]}}
    yield bound("web-admin", "", "admin", "cluster-admin")


@pytest.fixture(scope="module")
def site(plane: LocalControlPlane) -> Site:
    loop = Loop(plane, "web.enabled=true")
    plane.kubectl("apply", "-f", "-", input="\n---\n".join(map(json.dumps, objects())))
    pages, probes = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    environment = {"WEB_ADDR": pages, "METRICS_ADDR": probes, "POD_NAMESPACE": NAMESPACE, "SHUTDOWN_DELAY": "0s"}
    loop._start("web", "web", "joulie-web", f"http://{probes}", environment)
    site = Site(plane, f"https://{pages}")
    with site.client(site.token("admin", TENANTS[0])) as admin:

        def watched() -> bool:
            found = admin.get("/api/v1/pods").json()
            return (len(found["budgets"]), len(found["pods"])) == (2, 2)

        # Each kind has a watch of its own.
        wait_for(watched, PATIENCE_S, "budgets and pods are watched")
    return site


@pytest.mark.parametrize("mine", TENANTS)
def test_a_tenant_sees_nothing_of_another_namespace_on_a_real_api_server(site: Site, mine: str) -> None:
    (other,) = set(TENANTS) - {mine}
    with site.client(site.token("reader", mine)) as client:
        answers = {path: client.get(path) for path in PATHS}
        named = client.get("/api/v1/pods", params={"namespace": other})
        energy = client.get("/api/v1/energy", params={"namespace": other})
    assert {path: answer.status_code for path, answer in answers.items()} == {
        path: 404 if path.endswith("web-node") else 200 for path in PATHS
    }
    assert [path for path, answer in answers.items() if other in answer.text] == []
    found = answers["/api/v1/pods"].json()
    assert (found["namespaces"], [one["name"] for one in found["pods"]]) == ([mine], [f"{mine}-pod"])
    assert [one["name"] for one in found["budgets"]] == [f"{mine}-budget"]
    assert (named.json()["pods"], named.json()["budgets"]) == ([], [])
    assert (energy.status_code, energy.text) == (403, f"you may not get energy.joulie.io in namespace {other}\n")
    assert answers["/api/v1/fleet"].json()["summary"]["nodes"] == 0


def test_an_administrator_sees_all_and_a_stranger_nothing(site: Site) -> None:
    with site.client(site.token("admin", TENANTS[0])) as client:
        # A server that has just taken a CustomResourceDefinition refuses its first watches (429), and the page says so.
        wait_for(lambda: client.get("/api/v1/pods").json()["problems"] == [], PATIENCE_S, "all watches are accepted")
        assert {one["namespace"] for one in client.get("/api/v1/pods").json()["pods"]} == set(TENANTS)
    for token in ("", "nobody", site.token("admin", TENANTS[0], "vault")):
        with site.client(token) as client:
            assert client.get("/api/v1/pods").status_code == 401


def test_a_pasted_token_of_the_api_server_signs_in(site: Site) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "guest", "namespace": TENANTS[0]}}
    site.plane.kubectl("apply", "-f", "-", input=json.dumps(account))
    token = site.plane.kubectl("create", "token", "guest", "-n", TENANTS[0]).strip()
    with site.client() as client:
        value = re.search(r'name="form" value="([^"]+)"', client.get("/login").text)[1]
        assert client.post("/login", data={"token": token, "form": value}).status_code == 303
        page = client.get("/pods")
        assert f"system:serviceaccount:{TENANTS[0]}:guest" in page.text
        assert f"{TENANTS[0]}-pod" not in page.text
