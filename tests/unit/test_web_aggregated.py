"""The aggregated API: nobody but the API server is believed, and it answers each user what they may see."""

import asyncio
import json
import ssl
from types import SimpleNamespace

import httpx2
import pytest

from joulie.adapters.kubernetes.access import UserInfo
from joulie.adapters.kubernetes.errors import NotFoundError
from joulie.apps.kubectl.web import aggregation
from joulie.apps.kubectl.web.aggregated import AggregatedApi, FrontProxy, FrontProxyError
from joulie.apps.kubectl.web.aggregation import Aggregation
from joulie.apps.kubectl.web.server import OPERATIONS
from joulie.program.http import Server, TlsFiles
from joulie_lab.control_plane.certificates import CertificateAuthority
from joulie_lab.control_plane.ports import free_port
from support.web_reviews import ADMINISTRATOR, Reviews, tenant, web_stage
from support.web_stage import fleet

ROOT = "/apis/energy.joulie.io/v1alpha1"
NOW = "2026-03-01T00:00:00Z"


def config(authority, **more):
    return {
        "requestheader-client-ca-file": authority.certificate.read_text(),
        "requestheader-allowed-names": '["front-proxy"]',
        "requestheader-username-headers": '["X-Remote-User"]',
        "requestheader-uid-headers": '["X-Remote-Uid"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
        **more,
    }


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """An authority with the certificates of the API server, of a user, and of the program."""
    authority = CertificateAuthority(tmp_path_factory.mktemp("pki"))
    front = authority.issue("front-proxy", common_name="front-proxy")
    user = authority.issue("mallory", common_name="mallory", groups=["system:masters"])
    server = authority.issue("server", hosts=["localhost", "127.0.0.1"])
    other = CertificateAuthority(tmp_path_factory.mktemp("other"))
    stranger = other.issue("front-proxy", common_name="front-proxy")
    return SimpleNamespace(authority=authority, front=front, user=user, server=server, other=other, stranger=stranger)


@pytest.fixture
def stage():
    return web_stage(Reviews({"anna": ADMINISTRATOR, "dev": tenant("team-1")}), fleet(6, 3, NOW))


def context(site, certificate=None):
    found = ssl.create_default_context(cafile=site.authority.certificate)
    if certificate is not None:
        found.load_cert_chain(certificate.certificate, certificate.key)
    return found


def ask(site, app, *paths, sender="front", headers=(("X-Remote-User", "anna"),)):
    """Answers of the program's server to requests over TLS; None where there is no connection."""

    async def get(http, path):
        try:
            return await http.get(path, headers=list(headers))
        except httpx2.TransportError:
            return None

    async def main():
        files = TlsFiles(site.server.certificate, site.server.key, site.authority.certificate)
        async with Server(app, ("127.0.0.1", 0), tls=files) as server:
            tls = context(site, getattr(site, sender) if sender else None)
            async with httpx2.AsyncClient(base_url=f"https://127.0.0.1:{server.port}", verify=tls) as http:
                return [await get(http, path) for path in paths]

    return asyncio.run(main())


def api(site, stage):
    return AggregatedApi(stage.pages, FrontProxy.read(config(site.authority)), OPERATIONS)


def test_users_of_any_credentials_get_what_they_may_see(site, stage):
    paths = (f"{ROOT}/pods", f"{ROOT}/fleet?limit=2")
    pods, nodes = ask(site, api(site, stage), *paths)
    assert len(pods.json()["namespaces"]) == 5
    assert (len(nodes.json()["nodes"]), nodes.json()["summary"]["nodes"]) == (2, 6)
    headers = [("X-Remote-User", "tom"), ("X-Remote-Group", "ops"), ("X-Remote-Group", "dev")]
    (mine, named, energy) = ask(
        site, api(site, stage), *paths[:1], f"{ROOT}/pods?namespace=team-2", f"{ROOT}/energy", headers=headers
    )
    assert mine.json()["namespaces"] == ["team-1"]
    assert {pod["namespace"] for pod in mine.json()["pods"]} == {"team-1"}
    assert (named.json()["pods"], named.json()["budgets"]) == ([], [])
    assert (energy.status_code, energy.text) == (403, "you may not get energy.joulie.io in all namespaces\n")


@pytest.mark.parametrize(("sender", "status"), [("user", 403), (None, None), ("stranger", None)])
def test_headers_without_the_certificate_of_the_api_server_are_refused(site, stage, sender, status):
    answers = ask(site, api(site, stage), f"{ROOT}/pods", ROOT, "/apis", "/api/v1/pods", sender=sender)
    assert [answer and answer.status_code for answer in answers] == [status] * 4
    assert stage.reviews.asked == []


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (f"{ROOT}/pods", (), 401),
        (f"{ROOT}/pods", (("X-Remote-Group", "system:masters"),), 401),
        ("/api/v1/pods", (("X-Remote-User", "anna"),), 404),
        ("/", (("X-Remote-User", "anna"),), 404),
        ("/static/joulie.css", (("X-Remote-User", "anna"),), 404),
        (f"{ROOT}/namespaces/team-1/pods", (("X-Remote-User", "anna"),), 404),
        (f"{ROOT}/../../../api/v1/pods", (("X-Remote-User", "anna"),), 404),
        (f"{ROOT}/nothing", (("X-Remote-User", "anna"),), 404),
    ],
)
def test_nothing_but_the_api_is_served_and_to_nobody_without_a_name(site, stage, path, headers, status):
    (answer,) = ask(site, api(site, stage), path, headers=headers)
    assert answer.status_code == status


def test_discovery_lists_what_there_is_with_the_only_verb(site, stage):
    group, version, groups, swagger, schemas = ask(
        site, api(site, stage), "/apis/energy.joulie.io", ROOT, "/apis", "/openapi/v2", "/openapi/v3", headers=()
    )
    assert groups.json()["groups"][0]["preferredVersion"] == group.json()["preferredVersion"]
    resources = {one["name"]: one for one in version.json()["resources"]}
    assert set(resources) >= {"energy", "export", "fleet", "nodes", "plans", "pods", "report", "savings", "signals"}
    assert {(tuple(one["verbs"]), one["namespaced"]) for one in resources.values()} == {(("get",), False)}
    assert (swagger.json()["paths"], schemas.json()["paths"]) == ({}, {})


def test_all_that_the_api_server_knows_of_a_user_is_passed_on(site):
    proxy = FrontProxy.read(config(site.authority, **{"requestheader-username-headers": '["X-User", "X-Remote-User"]'}))
    headers = httpx2.Headers(
        [("X-Remote-User", "anna"), ("X-Remote-Uid", "7"), ("X-Remote-Group", "a"), ("X-Remote-Group", "b,c"),
         ("X-Remote-Extra-Authentication.kubernetes.io%2fpod-name", "p"), ("X-Remote-Extra-scopes", "x"),
         ("X-Remote-Extra-scopes", "y")]
    )  # fmt: skip
    from starlette.datastructures import Headers

    user = proxy.user_of(Headers(raw=[(name.lower(), value) for name, value in headers.raw]))
    extra = {"authentication.kubernetes.io/pod-name": ["p"], "scopes": ["x", "y"]}
    assert user == UserInfo("anna", "7", ["a", "b,c"], extra)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"requestheader-client-ca-file": ""}, "no usable requestheader-client-ca-file"),
        ({"requestheader-client-ca-file": "-----BEGIN CERTIFICATE-----"}, "no usable requestheader-client-ca-file"),
        ({"requestheader-username-headers": "[]"}, "names no header of users"),
        ({"requestheader-allowed-names": "front-proxy"}, "requestheader-allowed-names is not a list of texts"),
        ({"requestheader-group-headers": "[1]"}, "requestheader-group-headers is not a list of texts"),
    ],
)
def test_an_api_server_that_does_not_say_how_it_is_known_is_not_guessed(site, more, why):
    with pytest.raises(FrontProxyError, match=why):
        FrontProxy.read(config(site.authority, **more))


class ApiServer:
    """A client of an API server with the ConfigMap and the APIService."""

    def __init__(self, data):
        self.data = data
        self.service = None
        self.patched = []

    async def get(self, resource, name, namespace=None):
        if resource.plural == "configmaps":
            return SimpleNamespace(data=self.data)
        if self.service is None:
            raise NotFoundError(404, "NotFound", f"{name} not found")
        return SimpleNamespace(spec=self.service)

    async def patch(self, resource, name, body):
        assert (resource.plural, name) == ("apiservices", "v1alpha1.energy.joulie.io")
        self.service = self.service | body["spec"]
        self.patched.append(body)


def test_a_rotated_authority_replaces_the_one_before_and_the_certificate_is_registered_again(
    site, stage, tmp_path, monkeypatch
):
    client, delays_s = ApiServer({}), []
    steps = asyncio.Queue()

    async def main():
        stop, paused = asyncio.Event(), asyncio.Queue()

        async def pause(_stop, delay_s):
            delays_s.append(delay_s)
            paused.put_nowait(None)
            await steps.get()

        async def after(**changes):
            for name, value in changes.items():
                setattr(client, name, value)
            steps.put_nowait(None)
            await paused.get()
            found = []
            for certificate in (site.front, site.stranger):
                try:
                    async with httpx2.AsyncClient(verify=context(site, certificate)) as http:
                        answer = await http.get(f"https://127.0.0.1:{port}{ROOT}", headers={"X-Remote-User": "anna"})
                    found.append(answer.status_code)
                except httpx2.TransportError:
                    found.append(None)
            return found

        monkeypatch.setattr(aggregation, "set_within", pause)
        port = free_port()
        files = TlsFiles(site.server.certificate, site.server.key)
        served = Aggregation(
            client, lambda proxy: AggregatedApi(stage.pages, proxy, OPERATIONS), ("127.0.0.1", port), files, tmp_path,
            registers=True,
        )  # fmt: skip
        running = asyncio.create_task(served.run(stop))
        await paused.get()
        answers = [
            await after(),  # the API server says nothing yet
            await after(data=config(site.authority)),  # there is no APIService yet
            await after(service={"group": "energy.joulie.io"}),
            await after(data={}, service={}),  # it says nothing any more, and the APIService was made again
            await after(data=config(site.other)),
        ]
        stop.set()
        steps.put_nowait(None)
        await running
        return answers

    assert asyncio.run(main()) == [[None, None], [200, None], [200, None], [200, None], [None, 200]]
    # What fails is tried again soon: the APIService may be made after the program has started.
    assert delays_s == [5.0, 5.0, 5.0, 60.0, 60.0, 60.0]
    bundles = [json.dumps(body) for body in client.patched]
    assert len(bundles) == 2
    assert len(set(bundles)) == 1
