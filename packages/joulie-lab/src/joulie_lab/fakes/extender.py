"""Client of a scheduler extender: protocol v1 with node names only (nodeCacheCapable)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

import httpx2 as httpx
import msgspec

from joulie.domain.scheduling.scores import EXTENDER_POINTS
from joulie_lab.fakes.kubernetes.kinds import Json

T = TypeVar("T")


class ExtenderError(RuntimeError):
    """The extender did not respond, or its response violates the protocol."""


@dataclass(frozen=True)
class ExtenderSettings:
    """Settings of an extender, as in KubeSchedulerConfiguration.

    Attributes:
        url_prefix: base URL of the extender.
        weight: weight of its scores.
        ignorable: whether pods are scheduled without it if it fails.
        timeout_s: timeout of one call, s.
        filter_verb: path of the filter call; empty to skip it.
        prioritize_verb: path of the prioritize call; empty to skip it.
    """

    url_prefix: str
    weight: int = 1
    ignorable: bool = True
    timeout_s: float = 1.0
    filter_verb: str = "filter"
    prioritize_verb: str = "prioritize"


class _FilterResult(msgspec.Struct):
    nodes: object = msgspec.field(name="Nodes", default=None)
    node_names: list[str] | None = msgspec.field(name="NodeNames", default=None)
    failed: dict[str, str] | None = msgspec.field(name="FailedNodes", default=None)
    unresolvable: dict[str, str] | None = msgspec.field(name="FailedAndUnresolvableNodes", default=None)
    error: str = msgspec.field(name="Error", default="")


class _HostPriority(msgspec.Struct):
    host: str = msgspec.field(name="Host")
    score: int = msgspec.field(name="Score")


class ExtenderClient:
    """Calls an extender as kube-scheduler does; an async context manager.

    Args:
        settings: settings of the extender.
        transport: HTTP transport; None for the network.
    """

    def __init__(self, settings: ExtenderSettings, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.settings = settings
        self._client = httpx.AsyncClient(timeout=settings.timeout_s, trust_env=False, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def filter(self, pod: Json, names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Filter nodes: returns those that pass, and the reasons why the others fail.

        Raises:
            ExtenderError: no valid response, or the extender reports an error.
        """
        if not self.settings.filter_verb:
            return list(names), {}
        result = self._decode(await self._call(self.settings.filter_verb, pod, names), _FilterResult)
        if result.error:
            raise ExtenderError(f"extender {self.settings.url_prefix}: {result.error}")
        return result.node_names or [], (result.failed or {}) | (result.unresolvable or {})

    async def prioritize(self, pod: Json, names: Sequence[str]) -> dict[str, int]:
        """The extender's contribution to each node's score, on the scale of a plugin's weighted score.

        Raises:
            ExtenderError: no valid response.
        """
        if not self.settings.prioritize_verb:
            return {}
        answer = self._decode(await self._call(self.settings.prioritize_verb, pod, names), list[_HostPriority])
        return {entry.host: entry.score * self.settings.weight * EXTENDER_POINTS for entry in answer}

    async def _call(self, verb: str, pod: Json, names: Sequence[str]) -> bytes:
        url = f"{self.settings.url_prefix.rstrip('/')}/{verb}"
        arguments = msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": list(names)})
        try:
            response = await self._client.post(url, content=arguments, headers={"content-type": "application/json"})
        except httpx.HTTPError as error:
            raise ExtenderError(f"extender {url}: {error!r}") from error
        if response.status_code != httpx.codes.OK:
            raise ExtenderError(f"extender {url}: status {response.status_code}")
        return response.content

    def _decode(self, body: bytes, expected: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=expected)
        except msgspec.DecodeError as error:
            raise ExtenderError(f"extender {self.settings.url_prefix}: {error}") from error
