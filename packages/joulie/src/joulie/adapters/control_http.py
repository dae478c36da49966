"""Telemetry and control of a node by HTTP: the simulator's interface, or a management controller's gateway.

GET telemetry answers ``{"packagePowerWatts": W}`` or ``{"cpu": {"packagePowerWatts": W}}``, and may add
``{"gpu": {"powerWattsTotal": W}}`` and ``{"ambientTemperatureCelsius": C}``. POST control takes ``{node, action, ts}``
with one of capWatts, throttlePct and capWattsPerGpu, and answers ``{result, message, state}``. `{node}` in an endpoint
stands for the node's name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from joulie.ports import ControlFailedError, SourceError

_MAX_BYTES = 1 << 20
_MAX_BYTES_OF_ALL = 256 << 20

T = TypeVar("T")
_Power = Annotated[float, msgspec.Meta(ge=0)]


class HttpControlError(ControlFailedError, SourceError):
    """An endpoint that did not answer, or not as agreed; the message says which, and what came."""


class ControlAction(StrEnum):
    """What can be asked of a node."""

    POWER_CAP = "rapl.set_power_cap_watts"
    THROTTLE = "dvfs.set_throttle_pct"
    GPU_POWER_CAP = "gpu.set_power_cap_watts"


class ControlResult(StrEnum):
    """What came of it."""

    APPLIED = "applied"
    BLOCKED = "blocked"
    ERROR = "error"


@dataclass(frozen=True)
class HostTelemetry:
    """A node's power; None where the endpoint does not tell.

    Attributes:
        package_power_w: of all CPU packages together.
        gpu_power_w: of all GPUs together.
        ambient_c: temperature of the air around it, degrees Celsius.
    """

    package_power_w: float | None
    gpu_power_w: float | None
    ambient_c: float | None = None


@dataclass(frozen=True)
class HttpResult:
    """Answer to a control request: `state` is what the endpoint tells of the node afterwards."""

    result: ControlResult
    message: str
    state: dict[str, Any] = field(default_factory=dict)


class _Cpu(msgspec.Struct, rename={"package_power_w": "packagePowerWatts"}):
    package_power_w: _Power | None = None


class _Gpu(msgspec.Struct, rename={"power_w": "powerWattsTotal"}):
    power_w: _Power | None = None


class _Telemetry(
    msgspec.Struct, rename={"package_power_w": "packagePowerWatts", "ambient_c": "ambientTemperatureCelsius"}
):
    package_power_w: _Power | None = None
    cpu: _Cpu | None = None
    gpu: _Gpu | None = None
    ambient_c: float | None = None


class _AllTelemetry(msgspec.Struct):
    nodes: dict[str, _Telemetry]


class _Answer(msgspec.Struct):
    result: ControlResult
    message: str | None = None
    state: dict[str, Any] | None = None


class HttpControl:
    """Client of the two endpoints.

    Args:
        telemetry_endpoint: URL to GET; None if there is none.
        control_endpoint: URL to POST to; None if there is none.
        client: shared by all nodes of a process; its owner closes it.
        timeout_s: how long connecting, and each wait for data, may take, s.
        now: time stamped on requests.
    """

    def __init__(
        self,
        telemetry_endpoint: str | None,
        control_endpoint: str | None,
        client: httpx2.AsyncClient,
        timeout_s: float = 5.0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._telemetry_endpoint = telemetry_endpoint
        self._control_endpoint = control_endpoint
        self._client = client
        self._timeout_s = timeout_s
        self._now = now

    async def telemetry(self, node: str) -> HostTelemetry:
        """Power of a node now.

        Raises:
            HttpControlError: there is no endpoint, no answer, or one that cannot be understood.
        """
        url = _url("telemetry", self._telemetry_endpoint, node)
        return _host_telemetry(_decode(_Telemetry, url, await self._request("GET", url)))

    async def all_telemetry(self) -> dict[str, HostTelemetry]:
        """Power of all nodes now, of an endpoint without ``{node}`` that answers ``{"nodes": {name: telemetry}}``.

        Raises:
            HttpControlError: there is no endpoint, no answer, or one that cannot be understood.
        """
        url = _url("telemetry", self._telemetry_endpoint, "")
        answer = _decode(_AllTelemetry, url, await self._request("GET", url, max_bytes=_MAX_BYTES_OF_ALL))
        return {node: _host_telemetry(telemetry) for node, telemetry in answer.nodes.items()}

    async def control(self, node: str, action: ControlAction, **fields: float | None) -> HttpResult:
        """Ask for a cap or a throttle.

        Args:
            node: the node's name.
            action: what to set.
            **fields: as on the wire: `capWatts`, `throttlePct` or `capWattsPerGpu`; a cap of None is none at all.

        Raises:
            HttpControlError: there is no endpoint, no answer, or one that cannot be understood.
        """
        url = _url("control", self._control_endpoint, node)
        body = {"node": node, "action": action, **fields, "ts": self._now()}
        answer = _decode(_Answer, url, await self._request("POST", url, msgspec.json.encode(body)))
        return HttpResult(answer.result, answer.message or "", answer.state or {})

    async def _request(self, method: str, url: str, body: bytes | None = None, *, max_bytes: int = _MAX_BYTES) -> bytes:
        headers = {"Accept": "application/json"} | ({"Content-Type": "application/json"} if body else {})
        content = bytearray()
        try:
            async with self._client.stream(
                method, url, content=body, headers=headers, timeout=self._timeout_s
            ) as response:
                async for chunk in response.aiter_bytes():
                    content += chunk
                    if len(content) > max_bytes:
                        raise HttpControlError(f"{method} {url}: answer of more than {max_bytes} bytes")
        except httpx2.HTTPError as error:
            raise HttpControlError(f"{method} {url}: {str(error) or type(error).__name__}") from error
        if not response.is_success:
            raise HttpControlError(f"{method} {url}: {response.status_code} {_start(content)}")
        return bytes(content)


def _host_telemetry(answer: _Telemetry) -> HostTelemetry:
    package_power_w = answer.package_power_w
    if package_power_w is None and answer.cpu is not None:
        package_power_w = answer.cpu.package_power_w
    return HostTelemetry(package_power_w, answer.gpu.power_w if answer.gpu else None, answer.ambient_c)


def _url(purpose: str, endpoint: str | None, node: str) -> str:
    if endpoint is None:
        raise HttpControlError(f"no {purpose} endpoint is configured for node {node}")
    return endpoint.replace("{node}", quote(node, safe=""))


def _decode(kind: type[T], url: str, content: bytes) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise HttpControlError(f"{url}: {error}: {_start(content)}") from error


def _start(content: bytes | bytearray) -> str:
    return bytes(content[:120]).decode(errors="replace")
