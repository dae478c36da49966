"""Telemetry and control of a node over HTTP: the API of the simulator, or of a management controller's gateway.

GET telemetry returns ``{"packagePowerWatts": W}`` or ``{"cpu": {"packagePowerWatts": W}}``, and optionally
``{"gpu": {"powerWattsTotal": W}}`` and ``{"ambientTemperatureCelsius": C}``. POST control takes ``{node, action, ts}``
with one of capWatts, throttlePct and capWattsPerGpu, and returns ``{result, message, state}``, where the state is like
telemetry. `{node}` in an endpoint is the placeholder of the node name.

An endpoint that limits GPUs one by one tells so in its telemetry: ``{"gpu": {"devices": [{"uuid": ID, "limitWatts": W,
"defaultLimitWatts": W, "minLimitWatts": W}]}}``, and takes ``capWattsByGpu``, limits by UUID, beside capWattsPerGpu.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from joulie.http_client import RequestError, fetch, shown_body
from joulie.ports.devices import ControlFailedError
from joulie.ports.telemetry import SourceError

_MAX_BYTES = 1 << 20
_MAX_BYTES_OF_ALL = 256 << 20

T = TypeVar("T")
_Power = Annotated[float, msgspec.Meta(ge=0)]


class HttpControlError(ControlFailedError, SourceError):
    """An endpoint that failed or sent an invalid response; the message names it and shows the response."""


class ControlAction(StrEnum):
    """A control action of the HTTP interface."""

    POWER_CAP = "rapl.set_power_cap_watts"
    THROTTLE = "dvfs.set_throttle_pct"
    GPU_POWER_CAP = "gpu.set_power_cap_watts"


class ControlResult(StrEnum):
    """Outcome of a control request."""

    APPLIED = "applied"
    BLOCKED = "blocked"
    ERROR = "error"


@dataclass(frozen=True)
class HostTelemetry:
    """A node's power and ambient temperature; None where the endpoint does not report it.

    Attributes:
        package_power_w: power of all CPU packages together, W.
        gpu_power_w: power of all GPUs together, W.
        ambient_c: temperature of the air around the node, degrees Celsius.
    """

    package_power_w: float | None
    gpu_power_w: float | None
    ambient_c: float | None = None


class HttpGpu(msgspec.Struct, frozen=True, rename="camel"):
    """A GPU that an endpoint limits by itself.

    Attributes:
        uuid: its UUID.
        limit_watts: power limit in force, W.
        default_limit_watts: limit that it has where nobody sets one, W.
        min_limit_watts: smallest limit that it accepts, W.
    """

    uuid: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    limit_watts: _Power
    default_limit_watts: _Power
    min_limit_watts: _Power


@dataclass(frozen=True)
class HttpResult:
    """Response to a control request.

    Attributes:
        result: outcome of the request.
        message: why.
        state: the node's state afterwards, as the endpoint reports it.
        gpus: GPUs by that state; empty where the endpoint does not limit them one by one.
    """

    result: ControlResult
    message: str
    state: dict[str, Any] = field(default_factory=dict)
    gpus: tuple[HttpGpu, ...] = ()


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


class _ControlResponse(msgspec.Struct):
    result: ControlResult
    message: str | None = None
    state: dict[str, Any] | None = None


class HttpControl:
    """Client of a telemetry and a control endpoint.

    Args:
        telemetry_endpoint: URL to GET telemetry from; None if not configured.
        control_endpoint: URL to POST control requests to; None if not configured.
        client: HTTP client, shared by all nodes of a process; its owner closes it.
        timeout_s: timeout of connecting and of each read, s.
        now: clock for the timestamp of requests.
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
        """Read the current power of a node.

        Raises:
            HttpControlError: no endpoint is configured, the request failed, or the response is invalid.
        """
        url = _url("telemetry", self._telemetry_endpoint, node)
        return _host_telemetry(_decode(_Telemetry, url, await self._request("GET", url)))

    async def all_telemetry(self) -> dict[str, HostTelemetry]:
        """Read the current power of all nodes.

        The endpoint has no ``{node}`` and answers ``{"nodes": {name: telemetry}}``.

        Raises:
            HttpControlError: no endpoint is configured, the request failed, or the response is invalid.
        """
        url = _url("telemetry", self._telemetry_endpoint, "")
        answer = _decode(_AllTelemetry, url, await self._request("GET", url, max_bytes=_MAX_BYTES_OF_ALL))
        return {node: _host_telemetry(telemetry) for node, telemetry in answer.nodes.items()}

    async def control(
        self, node: str, action: ControlAction, **fields: float | Mapping[str, float] | None
    ) -> HttpResult:
        """Set a power cap or a throttle.

        Args:
            node: the node's name.
            action: what to set.
            **fields: fields of the request: `capWatts`, `throttlePct`, or `capWattsPerGpu` with `capWattsByGpu`; a cap
                of None removes it.

        Raises:
            HttpControlError: no endpoint is configured, the request failed, or the response is invalid.
        """
        url = _url("control", self._control_endpoint, node)
        body = {"node": node, "action": action, **fields, "ts": self._now()}
        answer = _decode(_ControlResponse, url, await self._request("POST", url, msgspec.json.encode(body)))
        state = answer.state or {}
        return HttpResult(answer.result, answer.message or "", state, _gpus(state))

    async def _request(self, method: str, url: str, body: bytes | None = None, *, max_bytes: int = _MAX_BYTES) -> bytes:
        headers = {"Accept": "application/json"} | ({"Content-Type": "application/json"} if body else {})
        try:
            response, content = await fetch(
                self._client, method, url, max_bytes=max_bytes, content=body, headers=headers, timeout=self._timeout_s
            )
        except RequestError as error:
            raise HttpControlError(f"{method} {url}: {error}") from error
        if not response.is_success:
            raise HttpControlError(f"{method} {url}: {response.status_code} {shown_body(content)}")
        return content


def _host_telemetry(answer: _Telemetry) -> HostTelemetry:
    package_power_w = answer.package_power_w
    if package_power_w is None and answer.cpu is not None:
        package_power_w = answer.cpu.package_power_w
    return HostTelemetry(package_power_w, answer.gpu.power_w if answer.gpu else None, answer.ambient_c)


def _gpus(state: Mapping[str, Any]) -> tuple[HttpGpu, ...]:
    """GPUs of a state; none where it does not tell of each what an `HttpGpu` has."""
    try:
        return msgspec.convert(state["gpu"]["devices"], tuple[HttpGpu, ...])
    except (KeyError, TypeError, msgspec.ValidationError):
        return ()


def _url(purpose: str, endpoint: str | None, node: str) -> str:
    if endpoint is None:
        raise HttpControlError(f"no {purpose} endpoint is configured for node {node}")
    return endpoint.replace("{node}", quote(node, safe=""))


def _decode(kind: type[T], url: str, content: bytes) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise HttpControlError(f"{url}: {error}: {shown_body(content)}") from error
