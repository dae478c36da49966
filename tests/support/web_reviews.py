"""`joulie web` before an API server that only answers reviews, and a cluster that has been filled."""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from prometheus_client import CollectorRegistry

from joulie.adapters.kubernetes.errors import ConnectionLostError, NotFoundError
from joulie.apps.kubectl.accounting import AccountingEndpoint
from joulie.apps.kubectl.leader import LeaderEndpoint
from joulie.apps.kubectl.web.metrics import WebMetrics
from joulie.apps.kubectl.web.programs import Programs
from joulie.apps.kubectl.web.readers import AUDIENCE, Readers
from joulie.apps.kubectl.web.server import application
from joulie.apps.kubectl.web.sessions import Sessions
from joulie.apps.kubectl.web.sign_in import READER, ClusterAccess, ProxyHeaders
from joulie.program.http import AsgiApp
from support.web_stage import filled

API_SERVER = "https://kubernetes.default.svc"
NOWHERE = "http://127.0.0.1:9"
CLUSTER_WIDE = ("nodes", "nodetwins", "nodehardwares", "powertrials", "powerbudgets")
NAMESPACED = ("pods", "workloadprofiles", "energybudgets")

Right = tuple[str, str, str]


def tenant(*namespaces: str, verb: str = "list") -> set[Right]:
    """Rights (verb, resource, namespace) of a tenant: nodes in the whole cluster, the rest in some namespaces."""
    return {(verb, kind, "") for kind in CLUSTER_WIDE} | {
        (verb, kind, namespace) for kind in NAMESPACED for namespace in namespaces
    }


ADMINISTRATOR = tenant("")


@dataclass
class Reviews:
    """Answers reviews: tokens are names of users.

    Attributes:
        rights: what each user may do; groups are users too.
        audiences: audience of a user's token; that of the API server without.
        asked: user and attributes of each SubjectAccessReview.
        away: whether the API server does not answer.
    """

    rights: dict[str, set[Right]]
    audiences: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    away: bool = False

    async def raw(self, _method: str, path: str, *, body: bytes) -> bytes:
        if self.away:
            raise ConnectionLostError("no answer", sent=False)
        spec = json.loads(body)["spec"]
        if path.endswith("tokenreviews"):
            self.tokens.append(spec["token"])
            audience = self.audiences.get(spec["token"], API_SERVER)
            known = spec["token"] in self.rights and audience in spec.get("audiences", [API_SERVER])
            user = {"username": spec["token"], "groups": ["system:authenticated"]} if known else {}
            status = {"authenticated": known, "user": user, "audiences": [audience] if known else []}
            return json.dumps({"status": status}).encode()
        asked = spec["resourceAttributes"]
        self.asked.append((spec["user"], asked))
        right = (asked["verb"], asked["resource"], asked.get("namespace", ""))
        names = [spec["user"], *spec["groups"]]
        return json.dumps({"status": {"allowed": any(right in self.rights.get(name, ()) for name in names)}}).encode()

    async def get(self, resource: Any, name: str, namespace: str | None = None) -> Any:
        raise NotFoundError(404, "NotFound", f"{resource.plural} {namespace}/{name} not found")


@dataclass
class WebStage:
    """The program's application.

    Attributes:
        reviews: the API server.
        now: time, s since the epoch; it may be changed.
        app: the application.
        proxied: the same for the OIDC proxy.
        registry: metrics.
        pages: the application without protection, for readers in its scope.
    """

    reviews: Reviews
    now: list[float]
    app: ClusterAccess
    proxied: ClusterAccess
    registry: CollectorRegistry
    pages: AsgiApp

    def client(self, *, proxy: bool = False, **headers: str) -> httpx2.AsyncClient:
        """A client that keeps cookies."""
        transport = httpx2.ASGITransport(app=self.proxied if proxy else self.app)
        return httpx2.AsyncClient(transport=transport, base_url="https://joulie.example", headers=headers)


def web_stage(
    reviews: Reviews,
    objects: Iterable[tuple[str, dict[str, Any]]] = (),
    url: str = NOWHERE,
    proxy: ProxyHeaders | None = None,
) -> WebStage:
    """The program before an API server and a cluster with some objects; its programs are at a URL."""
    now = [1_770_000_000.0]
    clock: Callable[[], float] = lambda: now[0]  # noqa: E731 - read by name below
    client: Any = reviews
    cluster = filled(objects)
    programs = Programs(
        client,
        LeaderEndpoint("joulie-system", 8081, url),
        LeaderEndpoint("joulie-system", 10259, url, program="grid"),
        AccountingEndpoint("joulie-system", 10259, url, verify=False, token_file=Path(os.devnull)),
    )
    readers = Readers(client, cluster, programs, clock)
    registry = CollectorRegistry()
    metrics, sessions = WebMetrics(registry), Sessions(43200.0, clock)

    async def api_of(request: Any) -> Any:
        return await readers.api_of(request.scope[READER].user)

    pages = application(api_of)
    headers = proxy or ProxyHeaders("X-Forwarded-User", "X-Forwarded-Groups")
    return WebStage(
        reviews,
        now,
        ClusterAccess(pages, readers, sessions, metrics),
        ClusterAccess(pages, readers, sessions, metrics, headers),
        registry,
        pages,
    )


__all__ = ["ADMINISTRATOR", "AUDIENCE", "NOWHERE", "Reviews", "WebStage", "tenant", "web_stage"]
