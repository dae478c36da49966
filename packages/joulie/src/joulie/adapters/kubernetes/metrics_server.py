"""Reads the usage of pods and nodes from metrics.k8s.io. Source: Kubernetes documentation, "Resource metrics"."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import ApiError, ForbiddenError, KubernetesError, NotFoundError
from joulie.adapters.kubernetes.times import parse_rfc3339
from joulie.domain.resource_quantity import QuantityError, parse_quantity
from joulie.domain.signal import Reading
from joulie.domain.usage import PodKey, PodUsage
from joulie.ports.telemetry import SourceError

_API = "/apis/metrics.k8s.io/v1beta1"
_PAGE = 5000
_UNAVAILABLE = 503
_RETRY_S = 300.0
"""Wait before a cluster without a Metrics Server is queried again, s."""

T = TypeVar("T")


class MetricsUnavailableError(KubernetesError):
    """The cluster has no Metrics Server, it does not respond, or RBAC denies access to it."""


class _Meta(msgspec.Struct):
    name: str
    namespace: str = ""


class _Container(msgspec.Struct):
    usage: dict[str, str] = {}


class _Pod(msgspec.Struct):
    metadata: _Meta
    containers: list[_Container] = []


class _Node(msgspec.Struct):
    metadata: _Meta
    timestamp: str
    usage: dict[str, str] = {}


class _ListMeta(msgspec.Struct, rename={"next_page": "continue"}):
    next_page: str = ""


class _Page(msgspec.Struct):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[msgspec.Raw] | None = None


class MetricsServer:
    """Usage of pods and nodes; empty, without an error, if the cluster has no Metrics Server.

    Args:
        client: Kubernetes client.
        now_s: clock, s.
    """

    def __init__(self, client: KubeClient, now_s: Callable[[], float]) -> None:
        self._client = client
        self._now_s = now_s
        self._missing_since_s = -math.inf

    async def pods(self) -> PodUsage:
        """See `pod_usage`.

        Raises:
            SourceError: the API server could not be queried.
        """
        return await self._query(pod_usage) or PodUsage({}, {})

    async def nodes(self) -> Mapping[str, Reading]:
        """See `node_usage`.

        Raises:
            SourceError: the API server could not be queried.
        """
        return await self._query(node_usage) or {}

    async def _query(self, query: Callable[[KubeClient], Awaitable[T]]) -> T | None:
        if self._now_s() - self._missing_since_s < _RETRY_S:
            return None
        try:
            return await query(self._client)
        except MetricsUnavailableError:
            self._missing_since_s = self._now_s()
            return None
        except KubernetesError as error:
            raise SourceError(str(error)) from error


async def pod_usage(client: KubeClient) -> PodUsage:
    """CPU and memory usage of all pods, summed over their containers; a pod with a missing value is omitted there.

    Raises:
        MetricsUnavailableError: metrics.k8s.io is not available, or RBAC denies access to it.
        KubernetesError: see `KubeClient`.
    """
    cpu_cores: dict[PodKey, float] = {}
    memory_bytes: dict[PodKey, float] = {}
    async for pod in _items(client, "pods", _Pod):
        key = pod.metadata.namespace, pod.metadata.name
        usages = [container.usage for container in pod.containers]
        if (cores := _sum(usages, "cpu")) is not None:
            cpu_cores[key] = cores
        if (size := _sum(usages, "memory")) is not None:
            memory_bytes[key] = size
    return PodUsage(cpu_cores, memory_bytes)


async def node_usage(client: KubeClient) -> Mapping[str, Reading]:
    """CPU usage of all nodes, cores, at the end of each node's measurement window.

    Raises:
        MetricsUnavailableError: metrics.k8s.io is not available, or RBAC denies access to it.
        KubernetesError: see `KubeClient`.
    """
    found: dict[str, Reading] = {}
    async for node in _items(client, "nodes", _Node):
        cores = _sum([node.usage], "cpu")
        try:
            time_s = parse_rfc3339(node.timestamp)
        except QuantityError:
            continue
        if cores is not None:
            found[node.metadata.name] = Reading(time_s, cores)
    return found


async def _items(client: KubeClient, plural: str, kind: type[Any]) -> AsyncIterator[Any]:
    """All items of a list; those that cannot be decoded are skipped."""
    decode = msgspec.json.Decoder(kind).decode
    params: dict[str, str | int] = {"limit": _PAGE}
    while True:
        page = await _page(client, plural, params)
        for raw in page.items or ():
            try:
                item = decode(raw)
            except msgspec.DecodeError:
                continue
            yield item
        if not page.metadata.next_page:
            return
        params["continue"] = page.metadata.next_page


async def _page(client: KubeClient, plural: str, params: Mapping[str, str | int]) -> _Page:
    try:
        return msgspec.json.decode(await client.raw("GET", f"{_API}/{plural}", params=params), type=_Page)
    except (NotFoundError, ForbiddenError) as error:
        raise MetricsUnavailableError(str(error)) from error
    except ApiError as error:
        if error.status == _UNAVAILABLE:
            raise MetricsUnavailableError(str(error)) from error
        raise
    except msgspec.DecodeError as error:
        raise MetricsUnavailableError(f"{plural}.metrics.k8s.io: {error}") from error


def _sum(usages: list[dict[str, str]], resource: str) -> float | None:
    """Sum of a resource over `usages`; None if there are none or a value is missing, invalid or negative."""
    try:
        amounts = [parse_quantity(usage[resource]) for usage in usages]
    except (KeyError, QuantityError):
        return None
    return sum(amounts) if amounts and min(amounts) >= 0.0 else None
