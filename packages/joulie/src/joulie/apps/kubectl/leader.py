"""HTTP requests to the leading replica of the operator or grid controller, for state that is not in the API server.

The aggregated API is asked where there is one. Else the leader's pod is read from the lease and reached through the API
server's proxy or by its address, or a URL is given.
"""

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
from joulie.adapters.program_api.aggregated import POWER_OF_OPERATOR, STATE_OF_GRID
from joulie.adapters.program_api.grid import GRID_PATH
from joulie.adapters.program_api.power import POWER_PATH
from joulie.apps.kubectl.aggregated import query_aggregated
from joulie.http_client import tls_context

_TIMEOUT_S = 15.0
_AGGREGATED = {POWER_PATH: POWER_OF_OPERATOR, GRID_PATH: STATE_OF_GRID}
_UNAVAILABLE = 503


@dataclass(frozen=True)
class LeaderEndpoint:
    """Address of a program with leader election.

    Attributes:
        namespace: namespace of its pods and its lease.
        port: metrics port.
        url: base URL; None to connect to the leader's pod through the API server.
        program: operator or grid, as in the names of the lease and the command options.
        https: whether the pods serve HTTPS.
        verify: whether to verify the certificate at `url`, or of the pod.
        in_cluster: whether the leader's pod is connected to by its address, not through the API server.
    """

    namespace: str
    port: int
    url: str | None
    program: str = "operator"
    https: bool = False
    verify: bool = True
    in_cluster: bool = False

    @property
    def lease(self) -> str:
        """Name of the leader election lease."""
        return f"joulie-{self.program}"

    @property
    def title(self) -> str:
        """Name of the program in messages."""
        return "grid controller" if self.program == "grid" else self.program


async def query_leader(
    client: KubeClient, endpoint: LeaderEndpoint, path: str, query: Mapping[str, str]
) -> dict[str, Any]:
    """JSON object returned by the leading replica.

    Raises:
        KubernetesError: there is no leader, or it is unreachable.
    """
    target = f"{path}?{urlencode(query)}"
    if endpoint.url:
        body = await _direct(endpoint, endpoint.url, target)
    elif endpoint.in_cluster:
        body = await _direct(endpoint, await _leader_url(client, endpoint), target)
    else:
        aggregated = await query_aggregated(client, _AGGREGATED[path], query)
        body = aggregated or await _through_api_server(client, endpoint, path, query)
    try:
        answer = json.loads(body)
    except ValueError:
        raise KubernetesError(
            f"{target}: the response is not JSON: is this the {endpoint.title}'s metrics port?"
        ) from None
    if not isinstance(answer, dict):
        raise KubernetesError(f"{target}: unexpected response from the {endpoint.title}")
    return answer


async def _through_api_server(
    client: KubeClient, endpoint: LeaderEndpoint, path: str, query: Mapping[str, str]
) -> bytes:
    leader = await _leader(client, endpoint)
    scheme = "https:" if endpoint.https else ""
    pod = PODS.path(endpoint.namespace, quote(f"{scheme}{leader}:{endpoint.port}", safe=":"), "proxy")
    try:
        return await client.raw("GET", pod + path, params=query)
    except ApiError as error:
        hint = f"(see --{endpoint.program}-namespace and --{endpoint.program}-url)"
        if error.status == _UNAVAILABLE:
            hint = "(it may have just lost leadership: try again)"
        raise KubernetesError(
            f"the {endpoint.title} {endpoint.namespace}/{leader} does not respond {hint}: {error}"
        ) from error


async def _leader_url(client: KubeClient, endpoint: LeaderEndpoint) -> str:
    leader = await _leader(client, endpoint)
    address = (await client.get(PODS, leader, endpoint.namespace)).status.pod_ip
    if not address:
        raise KubernetesError(f"the {endpoint.title}'s pod {endpoint.namespace}/{leader} has no address")
    host = f"[{address}]" if ":" in address else address
    return f"{'https' if endpoint.https else 'http'}://{host}:{endpoint.port}"


async def _leader(client: KubeClient, endpoint: LeaderEndpoint) -> str:
    """Name of the leader's pod; the lease holder is the pod name followed by ``_`` and a process identifier."""
    namespace = endpoint.namespace
    try:
        lease = await client.get(LEASES, endpoint.lease, namespace)
    except NotFoundError:
        raise KubernetesError(
            f"no leader of the {endpoint.title} in namespace {namespace}: lease {endpoint.lease} not found "
            f"(see --{endpoint.program}-namespace)"
        ) from None
    pod = (lease.spec.holder_identity or "").rpartition("_")[0]
    if not pod:
        raise KubernetesError(
            f"no leader of the {endpoint.title} in namespace {namespace}: lease {endpoint.lease} has no holder"
        )
    return pod


async def _direct(endpoint: LeaderEndpoint, url: str, target: str) -> bytes:
    address = url.rstrip("/") + target
    try:
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, verify=tls_context(verify=endpoint.verify)) as http:
            answer = await http.get(address)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise KubernetesError(f"{address}: {error}") from error
    if answer.status_code == _UNAVAILABLE:
        raise KubernetesError(f"{address}: this {endpoint.title} is not the leader: use another replica")
    if answer.status_code != 200:
        raise KubernetesError(f"{address}: {answer.status_code}: {answer.text.strip()}")
    return answer.content
