"""`joulie web` as a process with the chart's rights, on a real API server: two tenants and an administrator sign in.

The same over the aggregated API, with a client certificate as the only credential.
"""

import json
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from joulie_lab.control_plane import KubectlError, LocalControlPlane, wait_for
from joulie_lab.control_plane.kubeconfig import certificate_user, write_kubeconfig
from joulie_lab.control_plane.ports import free_port
from support.loop import NAMESPACE, PATIENCE_S, Loop, kubectl_joulie, pod

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]
COMPONENTS = ("etcd", "kube-apiserver")

TENANTS = ("web-red", "web-blue")
PATHS = ("/", "/nodes/web-node", "/health", "/pods", "/energy", "/plans", "/api/v1/fleet", "/api/v1/nodes/web-node",
         "/api/v1/health", "/api/v1/pods", "/api/v1/openapi.json")  # fmt: skip


CAROL = {"kind": "Group", "name": "red-team", "apiGroup": "rbac.authorization.k8s.io"}
"""What the certificate of a user says, who has no token."""
API = "/apis/energy.joulie.io/v1alpha1"
API_SERVICE = "v1alpha1.energy.joulie.io"


@dataclass
class Site:
    """What the tests work with."""

    plane: LocalControlPlane
    url: str
    api_url: str

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
    for role in ("web-tenant", "joulie-energy-view"):
        yield bound(f"carol-{role}", TENANTS[0], "", role) | {"subjects": [CAROL]}
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "admin", "namespace": TENANTS[0]}}
    yield bound("web-admin", "", "admin", "cluster-admin")


@pytest.fixture(scope="module")
def site(plane: LocalControlPlane) -> Site:
    pages, probes, accounting, api = (f"127.0.0.1:{free_port()}" for _ in range(4))
    api_port = api.rpartition(":")[2]
    values = ("grid.enabled=true", "accounting.enabled=true", "web.enabled=true", "web.aggregatedApi.enabled=true")
    loop = Loop(plane, *values, f"web.aggregatedApi.port={api_port}")
    plane.kubectl("apply", "-f", "-", input="\n---\n".join(map(json.dumps, objects())))
    folder = plane.folder
    (folder / "web-token").write_text(
        plane.kubectl("create", "token", "joulie-web", "-n", NAMESPACE, "--audience", "joulie-accounting").strip()
    )
    energy = {"METRICS_ADDR": accounting, "METRICS_TLS": "false", "PROMETHEUS_ADDRESS": "none",
              "LEDGER_URL": f"sqlite:///{folder / 'ledger.db'}"}  # fmt: skip
    loop._start("accounting", "accounting", "joulie-accounting", f"http://{accounting}", energy)
    # The chart's own APIService, behind a Service that leads to this machine.
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "joulie-web", "namespace": NAMESPACE},
               "spec": {"type": "ExternalName", "externalName": "localhost"}}  # fmt: skip
    registered = next(item for item in loop._rendered if item["kind"] == "APIService")
    plane.kubectl("apply", "-f", "-", input="\n---\n".join(map(json.dumps, (service, registered))))
    environment = {
        "WEB_ADDR": pages, "METRICS_ADDR": probes, "POD_NAMESPACE": NAMESPACE, "SHUTDOWN_DELAY": "0s",
        "AGGREGATED_API_ADDR": api, "ACCOUNTING_URL": f"http://{accounting}",
        "ACCOUNTING_TOKEN_FILE": str(folder / "web-token"),
    }  # fmt: skip
    loop._start("web", "web", "joulie-web", f"http://{probes}", environment)
    site = Site(plane, f"https://{pages}", f"https://{api}")
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


def _listed(plane: LocalControlPlane, kubeconfig: Path) -> set[str]:
    """Resources of the aggregated API that a user finds and can be answered; none while there is no API."""
    try:
        plane.kubectl("get", "--raw", f"{API}/pods", kubeconfig=kubeconfig)
        group = ("--api-group", API_SERVICE.partition(".")[2])
        return set(plane.kubectl("api-resources", *group, "-o", "name", kubeconfig=kubeconfig).split())
    except KubectlError:
        return set()


@pytest.fixture(scope="module")
def carol(site: Site) -> Path:
    """Kubeconfig of a user with a client certificate, once the API server serves the aggregated API."""
    plane = site.plane
    identity = plane.authority.issue("carol", common_name="carol", groups=[CAROL["name"]])
    file = write_kubeconfig(
        plane.folder / "carol.kubeconfig", server=plane.url, authority=plane.authority.certificate,
        user=certificate_user(identity), namespace=TENANTS[0],
    )  # fmt: skip

    # It is registered once the program has written its certificate, and passed on to once an informer has seen that.
    wait_for(lambda: _listed(plane, file), PATIENCE_S, "the API server passes requests on")
    return file


def test_a_client_certificate_is_enough_for_the_aggregated_api_and_shows_no_other_tenant(
    site: Site, carol: Path
) -> None:
    mine, other = TENANTS
    found = json.loads(site.plane.kubectl("get", "--raw", f"{API}/pods", kubeconfig=carol))
    assert (found["namespaces"], [one["name"] for one in found["pods"]]) == ([mine], [f"{mine}-pod"])
    assert [one["name"] for one in found["budgets"]] == [f"{mine}-budget"]
    for path in ("pods", "fleet", "plans", f"pods?namespace={other}", f"energy?namespace={mine}"):
        assert other not in site.plane.kubectl("get", "--raw", f"{API}/{path}", kubeconfig=carol)
    with pytest.raises(KubectlError, match=f"you may not get energy.joulie.io in namespace {other}"):
        site.plane.kubectl("get", "--raw", f"{API}/energy?namespace={other}", kubeconfig=carol)
    everything = json.loads(site.plane.kubectl("get", "--raw", f"{API}/pods"))
    assert {one["namespace"] for one in everything["pods"]} == set(TENANTS)


def test_kubectl_joulie_takes_the_aggregated_api_with_no_token_and_no_right_to_proxy(site: Site, carol: Path) -> None:
    told = kubectl_joulie(site.plane, "energy", "-n", TENANTS[0], "--since", "1h", kubeconfig=carol)
    assert told.startswith(f"No energy recorded in namespace {TENANTS[0]}")
    with pytest.raises(KubectlError, match=f"you may not get energy.joulie.io in namespace {TENANTS[1]}"):
        kubectl_joulie(site.plane, "energy", "-n", TENANTS[1], kubeconfig=carol)


def test_headers_of_anybody_but_the_api_server_are_refused(site: Site, carol: Path) -> None:
    plane, headers = site.plane, {"X-Remote-User": "carol", "X-Remote-Group": "system:masters"}
    # The certificate of a user, of the authority that signs for the API server too, and none at all.
    certificate = plane.authority.folder / "carol.crt"
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    tls.load_cert_chain(certificate, certificate.with_suffix(".key"))
    with httpx2.Client(verify=tls, headers=headers) as client:
        assert client.get(f"{site.api_url}{API}/pods").status_code == 403
    with httpx2.Client(verify=False, headers=headers) as client, pytest.raises(httpx2.TransportError):
        client.get(f"{site.api_url}{API}/pods")
    # Those that a client sends to the API server are replaced by what it knows of the client.
    with site.client(site.token("reader", TENANTS[1])) as client:
        assert client.get("/api/v1/pods", headers=headers).json()["namespaces"] == [TENANTS[1]]


def test_discovery_lists_the_api_and_offers_nothing_to_list(site: Site, carol: Path) -> None:
    assert {"energy.energy.joulie.io", "pods.energy.joulie.io"} <= _listed(site.plane, carol)
    assert "energy" not in site.plane.kubectl("api-resources", "--verbs=list,watch", "-o", "name").replace(
        "energybudgets.joulie.io", ""
    )
