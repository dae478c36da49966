"""Questions to the accounting program: what it knows of energy, emissions, cost and savings."""

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

SELECTOR = "app.kubernetes.io/name=joulie,app.kubernetes.io/component=accounting"
_TIMEOUT_S = 30.0

A = TypeVar("A")


@dataclass(frozen=True)
class AccountingAt:
    """Where the accounting program is.

    Attributes:
        namespace: of its pod.
        port: of its API, over HTTPS.
        url: its address; None to go through the API server to its pod.
        verify: whether the certificate at `url` is checked.
    """

    namespace: str
    port: int
    url: str | None
    verify: bool


async def ask_accounting(
    client: KubeClient, where: AccountingAt, path: str, query: Mapping[str, str], answer: type[A]
) -> A:
    """The answer of the accounting program.

    Raises:
        KubernetesError: see `fetch_accounting`.
    """
    body = await fetch_accounting(client, where, path, query)
    try:
        return msgspec.json.decode(body, type=answer)
    except msgspec.DecodeError as error:
        raise KubernetesError(f"{path}: the answer is not the accounting program's: {error}") from error


async def fetch_accounting(client: KubeClient, where: AccountingAt, path: str, query: Mapping[str, str]) -> bytes:
    """The body of the accounting program's answer.

    Raises:
        KubernetesError: it is not there, cannot be reached, or refuses.
    """
    return await (_direct(where, path, query) if where.url else _through_api_server(client, where, path, query))


async def _through_api_server(client: KubeClient, where: AccountingAt, path: str, query: Mapping[str, str]) -> bytes:
    pods = await client.list(PODS, namespace=where.namespace, label_selector=SELECTOR)
    running = [pod.metadata.name for pod in pods.items if pod.status.phase == "Running"]
    if not running:
        raise KubernetesError(
            f"no accounting program runs in namespace {where.namespace}: no running pod has the labels {SELECTOR} "
            "(see --accounting-namespace; the chart starts it with accounting.enabled=true)"
        )
    target = PODS.path(where.namespace, quote(f"https:{running[0]}:{where.port}", safe=":"), "proxy")
    try:
        return await client.raw("GET", target + path, params=query)
    except ApiError as error:
        raise KubernetesError(
            f"the accounting program {where.namespace}/{running[0]} does not answer "
            f"(see --accounting-port and --accounting-url): {error}"
        ) from error


async def _direct(where: AccountingAt, path: str, query: Mapping[str, str]) -> bytes:
    address = (where.url or "").rstrip("/") + path
    try:
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, verify=where.verify) as http:
            answer = await http.get(address, params=query)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise KubernetesError(f"{address}: {error}") from error
    if answer.status_code != httpx2.codes.OK:
        raise KubernetesError(f"{address}: {answer.status_code}: {answer.text.strip()}")
    return answer.content
