"""Client of the accounting program's HTTP API: energy, emissions, cost and savings.

Requests go to its pod through the API server's proxy, or directly to a URL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ApiError, KubernetesError
from joulie.adapters.kubernetes.resources import PODS
from joulie.http_client import tls_context

SELECTOR = "app.kubernetes.io/name=joulie,app.kubernetes.io/component=accounting"
_TIMEOUT_S = 30.0

A = TypeVar("A")


@dataclass(frozen=True)
class AccountingEndpoint:
    """Address of the accounting program.

    Attributes:
        namespace: namespace of its pod.
        port: HTTPS port of its API.
        url: base URL; None to connect to the pod through the API server.
        verify: whether to verify the certificate at `url`.
    """

    namespace: str
    port: int
    url: str | None
    verify: bool


async def query_accounting(
    client: KubeClient, endpoint: AccountingEndpoint, path: str, query: Mapping[str, str], answer: type[A]
) -> A:
    """Query the accounting program and decode the response as `answer`.

    Raises:
        KubernetesError: see `fetch_accounting`.
    """
    body = await fetch_accounting(client, endpoint, path, query)
    try:
        return msgspec.json.decode(body, type=answer)
    except msgspec.DecodeError as error:
        raise KubernetesError(f"{path}: unexpected response from the accounting program: {error}") from error


async def fetch_accounting(
    client: KubeClient, endpoint: AccountingEndpoint, path: str, query: Mapping[str, str]
) -> bytes:
    """Body of the accounting program's response.

    Raises:
        KubernetesError: the program does not run, is unreachable, or rejects the request.
    """
    if endpoint.url:
        return await _direct(endpoint, path, query)
    return await _through_api_server(client, endpoint, path, query)


async def _through_api_server(
    client: KubeClient, endpoint: AccountingEndpoint, path: str, query: Mapping[str, str]
) -> bytes:
    pods = await client.list(PODS, namespace=endpoint.namespace, label_selector=SELECTOR)
    running = [pod.metadata.name for pod in pods.items if pod.status.phase == "Running"]
    if not running:
        raise KubernetesError(
            f"no accounting program in namespace {endpoint.namespace}: no running pod has the labels {SELECTOR} "
            "(see --accounting-namespace; the chart starts it with accounting.enabled=true)"
        )
    target = PODS.path(endpoint.namespace, quote(f"https:{running[0]}:{endpoint.port}", safe=":"), "proxy")
    try:
        return await client.raw("GET", target + path, params=query)
    except ApiError as error:
        raise KubernetesError(
            f"the accounting program {endpoint.namespace}/{running[0]} does not respond "
            f"(see --accounting-port and --accounting-url): {error}"
        ) from error


async def _direct(endpoint: AccountingEndpoint, path: str, query: Mapping[str, str]) -> bytes:
    address = (endpoint.url or "").rstrip("/") + path
    try:
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, verify=tls_context(verify=endpoint.verify)) as http:
            answer = await http.get(address, params=query)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise KubernetesError(f"{address}: {error}") from error
    if answer.status_code != httpx2.codes.OK:
        raise KubernetesError(f"{address}: {answer.status_code}: {answer.text.strip()}")
    return answer.content
