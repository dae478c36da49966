"""Client of the accounting program's HTTP API: energy, emissions, cost and savings.

Requests go to the aggregated API where there is one: the API server says who asks. Else they go to the program's
Service through the API server's proxy, or directly to a URL, with the user's bearer token: the program asks the API
server what the user may read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ApiError, KubernetesError
from joulie.adapters.program_api.energy import EXPORT_PATH, TOKEN_HEADER
from joulie.apps.kubectl.aggregated import query_aggregated
from joulie.http_client import tls_context

_TIMEOUT_S = 30.0

A = TypeVar("A")


@dataclass(frozen=True)
class AccountingEndpoint:
    """Address of the accounting program.

    Attributes:
        namespace: namespace of its pod.
        port: HTTPS port of its Service.
        url: base URL; None to connect to the Service through the API server.
        verify: whether to verify the certificate at `url`.
        service: name of its Service.
        token_file: file with a token to send; None for that of the kubeconfig.
    """

    namespace: str
    port: int
    url: str | None
    verify: bool
    service: str = "joulie-accounting"
    token_file: Path | None = None


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
    if not endpoint.url and endpoint.token_file is None:
        found = await query_aggregated(client, path, {**query, "format": "ndjson"} if path == EXPORT_PATH else query)
        if found is not None:
            return found
    token = await _token(client, endpoint)
    if endpoint.url:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return await _direct(endpoint, path, query, headers)
    return await _through_api_server(client, endpoint, path, query, {TOKEN_HEADER: token} if token else {})


async def stream_accounting(
    client: KubeClient, endpoint: AccountingEndpoint, path: str, query: Mapping[str, str]
) -> AsyncIterator[bytes]:
    """Parts of the accounting program's response, which may not fit into memory; through the API server all at once.

    Raises:
        KubernetesError: see `fetch_accounting`.
    """
    if not endpoint.url:
        yield await fetch_accounting(client, endpoint, path, query)
        return
    token = await _token(client, endpoint)
    address = endpoint.url.rstrip("/") + path
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        async with (
            httpx2.AsyncClient(timeout=_TIMEOUT_S, verify=tls_context(verify=endpoint.verify)) as http,
            http.stream("GET", address, params=query, headers=headers) as answer,
        ):
            if answer.status_code != httpx2.codes.OK:
                raise KubernetesError(
                    f"{address}: {answer.status_code}: {(await answer.aread()).decode(errors='replace')}"
                )
            async for part in answer.aiter_bytes():
                yield part
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise KubernetesError(f"{address}: {error}") from error


async def _token(client: KubeClient, endpoint: AccountingEndpoint) -> str | None:
    if endpoint.token_file is None:
        return await client.connection.bearer_token()
    try:
        return endpoint.token_file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise KubernetesError(f"--token-file: {error}") from error


async def _through_api_server(
    client: KubeClient, endpoint: AccountingEndpoint, path: str, query: Mapping[str, str], headers: Mapping[str, str]
) -> bytes:
    target = quote(f"https:{endpoint.service}:{endpoint.port}", safe=":")
    root = f"/api/v1/namespaces/{endpoint.namespace}/services/{target}/proxy"
    try:
        return await client.raw("GET", root + path, params=query, headers=headers)
    except ApiError as error:
        raise KubernetesError(
            f"the accounting program behind Service {endpoint.namespace}/{endpoint.service} does not answer this "
            f"(see --accounting-namespace, --accounting-service, --accounting-url and --token-file): {error}"
        ) from error


async def _direct(
    endpoint: AccountingEndpoint, path: str, query: Mapping[str, str], headers: Mapping[str, str]
) -> bytes:
    address = (endpoint.url or "").rstrip("/") + path
    try:
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, verify=tls_context(verify=endpoint.verify)) as http:
            answer = await http.get(address, params=query, headers=headers)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise KubernetesError(f"{address}: {error}") from error
    if answer.status_code != httpx2.codes.OK:
        raise KubernetesError(f"{address}: {answer.status_code}: {answer.text.strip()}")
    return answer.content
