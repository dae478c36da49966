"""Telemetry and control by HTTP: real requests and answers through httpx2's mock transport."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from joulie.adapters.control_http import (
    ControlAction,
    ControlResult,
    HostTelemetry,
    HttpControl,
    HttpControlError,
    HttpResult,
)
from joulie.ports.devices import ControlFailedError

Answer = Callable[[httpx2.Request], httpx2.Response]
APPLIED = b'{"result": "applied"}'


def call(answer: Answer, run: Callable[[HttpControl], Any], **endpoints: str | None) -> Any:
    urls: dict[str, str | None] = {
        "telemetry_endpoint": "http://sim:8080/telemetry/{node}",
        "control_endpoint": "http://sim:8080/control/{node}",
    }

    async def main() -> Any:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
            now = datetime(2026, 2, 27, tzinfo=UTC)
            return await run(HttpControl(client=client, now=lambda: now, **(urls | endpoints)))  # type: ignore[arg-type]

    return asyncio.run(main())


def telemetry(body: bytes, status: int = 200) -> HostTelemetry:
    answer: HostTelemetry = call(
        lambda _request: httpx2.Response(status, content=body), lambda control: control.telemetry("node-1")
    )
    return answer


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"packagePowerWatts": 245.3}', HostTelemetry(245.3, None)),
        (b'{"cpu": {"packagePowerWatts": 245}}', HostTelemetry(245.0, None)),
        (
            b'{"packagePowerWatts": 0, "cpu": {"packagePowerWatts": 9}, "gpu": {"powerWattsTotal": 700.5}, "pods": 3}',
            HostTelemetry(0.0, 700.5),
        ),
        (b'{"cpu": {}, "gpu": {"devices": []}}', HostTelemetry(None, None)),
        (b'{"packagePowerWatts": null}', HostTelemetry(None, None)),
    ],
)
def test_telemetry(body: bytes, expected: HostTelemetry) -> None:
    """Missing is never zero."""
    assert telemetry(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"packagePowerWatts": NaN}',
        b'{"packagePowerWatts": -1}',
        b'{"packagePowerWatts": "245"}',
        b'{"cpu": {"packagePowerWatts": 1e999}}',
    ],
)
def test_telemetry_that_cannot_be_understood(body: bytes) -> None:
    with pytest.raises(HttpControlError, match="http://sim:8080/telemetry/node-1: "):
        telemetry(body)


def test_a_cap_is_asked_for() -> None:
    requests: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        return httpx2.Response(200, json={"result": "applied", "message": "ok", "state": {"capWatts": 120}})

    result = call(answer, lambda control: control.control("node-1", ControlAction.POWER_CAP, capWatts=120.0))
    assert result == HttpResult(ControlResult.APPLIED, "ok", {"capWatts": 120})
    (request,) = requests
    assert (request.method, str(request.url)) == ("POST", "http://sim:8080/control/node-1")
    assert request.headers["content-type"] == "application/json"
    assert json.loads(request.content) == {
        "node": "node-1",
        "action": "rapl.set_power_cap_watts",
        "capWatts": 120.0,
        "ts": "2026-02-27T00:00:00Z",
    }


def test_node_names_cannot_leave_their_place_in_the_url() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.url.raw_path == b"/telemetry/a%2F..%2Fb%3Fc"
        return httpx2.Response(200, json={})

    call(answer, lambda control: control.telemetry("a/../b?c"))


@pytest.mark.parametrize("body", [b'{"result": "blocked", "message": "no GPU"}', b'{"result": "error"}', APPLIED])
def test_results(body: bytes) -> None:
    result = call(
        lambda _request: httpx2.Response(200, content=body),
        lambda control: control.control("node-1", ControlAction.THROTTLE, throttlePct=20.0),
    )
    assert result.result in ("blocked", "error", "applied")
    assert result.message == ("no GPU" if result.result == "blocked" else "")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"result": "done"}', b'{"result": "applied", "state": 5}'])
def test_an_answer_without_a_result_is_no_success(body: bytes) -> None:
    with pytest.raises(HttpControlError):
        call(
            lambda _request: httpx2.Response(200, content=body),
            lambda control: control.control("node-1", ControlAction.GPU_POWER_CAP, capWattsPerGpu=300.0),
        )


def test_statuses_that_are_no_success() -> None:
    with pytest.raises(HttpControlError, match="GET http://sim:8080/telemetry/node-1: 404 no such node"):
        telemetry(b"no such node", status=404)
    with pytest.raises(HttpControlError, match="302"):
        telemetry(APPLIED, status=302)


@pytest.mark.parametrize("error", [httpx2.ConnectError("refused"), httpx2.ReadTimeout("")])
def test_no_answer(error: Exception) -> None:
    def answer(_request: httpx2.Request) -> httpx2.Response:
        raise error

    with pytest.raises(HttpControlError, match=r"GET http://sim:8080/telemetry/node-1: (refused|ReadTimeout)"):
        call(answer, lambda control: control.telemetry("node-1"))
    assert issubclass(HttpControlError, ControlFailedError)


def test_answers_are_bounded() -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b" " * 65536

    with pytest.raises(HttpControlError, match="more than 1048576 bytes"):
        call(lambda _request: httpx2.Response(200, content=endless()), lambda control: control.telemetry("node-1"))
    assert sent < 20


@pytest.mark.parametrize("missing", ["telemetry_endpoint", "control_endpoint"])
def test_no_endpoint(missing: str) -> None:
    async def both(control: HttpControl) -> None:
        await control.telemetry("node-1")
        await control.control("node-1", ControlAction.POWER_CAP, capWatts=1.0)

    with pytest.raises(HttpControlError, match=f"no {missing.removesuffix('_endpoint')} endpoint is configured"):
        call(lambda _request: httpx2.Response(200, content=APPLIED), both, **{missing: None})
