"""Questions to the operator or grid controller that leads: what it knows, and the API server does not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import httpx2

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ApiError, KubernetesError, NotFoundError
from joulie.adapters.kubernetes.resources import LEASES, PODS

_TIMEOUT_S = 15.0
_UNAVAILABLE = 503


@dataclass(frozen=True)
class Whereabouts:
    """Where a program is of whose replicas one leads.

    Attributes:
        namespace: of its pods and its lease.
        port: of its metrics.
        url: its address; None to go through the API server to the pod that leads.
        program: operator or grid, as its lease and the options of the commands name it.
        https: whether its pods serve HTTPS.
        verify: whether the certificate at `url` is checked.
    """

    namespace: str
    port: int
    url: str | None
    program: str = "operator"
    https: bool = False
    verify: bool = True

    @property
    def lease(self) -> str:
        """Name of its lease."""
        return f"joulie-{self.program}"

    @property
    def title(self) -> str:
        """What people call it."""
        return "grid controller" if self.program == "grid" else self.program


async def ask_leader(client: KubeClient, where: Whereabouts, path: str, query: Mapping[str, str]) -> dict[str, Any]:
    """The answer of the replica that leads.

    Raises:
        KubernetesError: nobody leads, or whoever leads cannot be reached.
    """
    target = f"{path}?{urlencode(query)}"
    body = await (_direct(where, where.url, target) if where.url else _through_api_server(client, where, path, query))
    try:
        answer = json.loads(body)
    except ValueError:
        raise KubernetesError(f"{target}: the answer is no JSON: is this the {where.title}'s metrics port?") from None
    if not isinstance(answer, dict):
        raise KubernetesError(f"{target}: the answer is not of the {where.title}")
    return answer


async def _through_api_server(client: KubeClient, where: Whereabouts, path: str, query: Mapping[str, str]) -> bytes:
    leader = await _leader(client, where)
    scheme = "https:" if where.https else ""
    pod = PODS.path(where.namespace, quote(f"{scheme}{leader}:{where.port}", safe=":"), "proxy")
    try:
        return await client.raw("GET", pod + path, params=query)
    except ApiError as error:
        hint = f"(see --{where.program}-namespace and --{where.program}-url)"
        if error.status == _UNAVAILABLE:
            hint = "(it may have just stopped leading: try again)"
        raise KubernetesError(
            f"the {where.title} {where.namespace}/{leader} does not answer {hint}: {error}"
        ) from error


async def _leader(client: KubeClient, where: Whereabouts) -> str:
    """Name of the pod that leads; a lease is held under the pod's name and something of the process's own."""
    namespace = where.namespace
    try:
        lease = await client.get(LEASES, where.lease, namespace)
    except NotFoundError:
        raise KubernetesError(
            f"no {where.title} has ever led in namespace {namespace}: there is no lease {where.lease} "
            f"(see --{where.program}-namespace)"
        ) from None
    pod = (lease.spec.holder_identity or "").rpartition("_")[0]
    if not pod:
        raise KubernetesError(
            f"no {where.title} leads in namespace {namespace} just now: nobody holds lease {where.lease}"
        )
    return pod


async def _direct(where: Whereabouts, url: str, target: str) -> bytes:
    address = url.rstrip("/") + target
    try:
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, verify=where.verify) as http:
            answer = await http.get(address)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise KubernetesError(f"{address}: {error}") from error
    if answer.status_code == _UNAVAILABLE:
        raise KubernetesError(f"{address}: this {where.title} does not lead: ask another replica")
    if answer.status_code != 200:
        raise KubernetesError(f"{address}: {answer.status_code}: {answer.text.strip()}")
    return answer.content
