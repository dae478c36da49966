import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx2
import numpy as np
import pytest
import uvloop
from prometheus_client import CollectorRegistry, Counter

from joulie.program import http
from joulie.program.certificates import self_signed, write_files
from joulie.program.http import AddressError, Probes, Server, json_body, lame_duck, observability_app, parse_address
from joulie.program.run import every
from support.virtual_time import run_virtually

Loop = Callable[[], asyncio.AbstractEventLoop]
LOOPS = [pytest.param(asyncio.new_event_loop, id="asyncio"), pytest.param(uvloop.new_event_loop, id="uvloop")]


def ask(probes: Probes, path: str) -> httpx2.Response:
    registry = CollectorRegistry()
    Counter("joulie_example", "An example.", registry=registry).inc()

    async def talk() -> httpx2.Response:
        async with (
            Server(observability_app(probes, registry), ("127.0.0.1", 0)) as server,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client,
        ):
            return await client.get(path)

    return asyncio.run(talk())


def test_metrics_are_served() -> None:
    answer = ask(Probes(), "/metrics")
    assert answer.status_code == 200
    assert "joulie_example_total 1.0" in answer.text


def test_not_ready_says_why_and_stays_alive() -> None:
    probes = Probes()
    probes.add("caches", lambda: "nodes: not listed yet")
    answer = ask(probes, "/readyz")
    assert (answer.status_code, answer.text) == (503, "caches: nodes: not listed yet\n")
    assert ask(probes, "/healthz").status_code == 200


def test_ready_without_failures() -> None:
    probes = Probes()
    probes.add("caches", lambda: None)
    assert ask(probes, "/readyz").status_code == 200


def test_unknown_path() -> None:
    assert ask(Probes(), "/nothing").status_code == 404


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":8080", ("::", 8080)),
        ("0.0.0.0:8080", ("0.0.0.0", 8080)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:9877", ("::1", 9877)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["8080", "host", "host:", "host:x", ":70000"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(AddressError, match="expected a form such as :8080"):
        parse_address(text)


async def reached(host: str, port: int) -> bool:
    try:
        async with httpx2.AsyncClient(trust_env=False) as client:
            return (await client.get(f"http://{host}:{port}/healthz")).status_code == 200
    except httpx2.ConnectError:
        return False


@pytest.mark.parametrize(
    ("address", "ipv4", "ipv6"), [(":0", True, True), ("0.0.0.0:0", True, False), ("[::1]:0", False, True)]
)
def test_l13_an_address_without_a_host_is_for_ipv4_and_ipv6(address: str, ipv4: bool, ipv6: bool) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")

    async def talk() -> tuple[bool, bool]:
        async with Server(observability_app(Probes(), CollectorRegistry()), parse_address(address)) as server:
            return await reached("127.0.0.1", server.port), await reached("[::1]", server.port)

    assert asyncio.run(talk()) == (ipv4, ipv6)


def test_l13_without_ipv6_it_is_for_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)

    async def talk() -> bool:
        async with Server(observability_app(Probes(), CollectorRegistry()), parse_address(":0")) as server:
            return await reached("127.0.0.1", server.port)

    assert asyncio.run(talk())


def test_l2_a_lame_duck_is_not_ready_and_serves_until_endpoints_have_followed() -> None:
    async def body() -> tuple[dict[str, str], dict[str, str], float]:
        stop, ready = asyncio.Event(), Probes()
        duck = asyncio.create_task(lame_duck(stop, ready, 5.0))
        await asyncio.sleep(1.0)
        before = ready.failures()
        stop.set()
        await duck
        return before, ready.failures(), asyncio.get_running_loop().time()

    assert run_virtually(body()) == ({}, {"shutdown": "shutting down"}, 6.0)


def test_l2_a_lame_duck_sends_its_clients_to_other_replicas() -> None:
    async def talk() -> list[str | None]:
        stop = asyncio.Event()
        app = observability_app(Probes(), CollectorRegistry())
        async with (
            Server(app, ("127.0.0.1", 0), stop=stop) as server,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client,
        ):
            before = await client.get("/healthz")
            stop.set()
            after = await client.get("/healthz")
            return [answer.headers.get("connection") for answer in (before, after)]

    assert asyncio.run(talk()) == [None, "close"]


def test_a_server_that_hardly_ticks_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_TICK_S", 3600.0)

    async def main() -> None:
        async with asyncio.timeout(60), Server(observability_app(Probes(), CollectorRegistry()), ("127.0.0.1", 0)):
            pass

    asyncio.run(main())


@pytest.mark.parametrize("loop", LOOPS)
def test_connections_that_are_just_being_accepted_are_closed_with_the_server(loop: Loop) -> None:
    """A client would otherwise wait for an answer until it loses patience, and the server for the client's request."""

    async def connected(port: int) -> None:
        with contextlib.suppress(ConnectionError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await reader.read()
            writer.close()
            await writer.wait_closed()

    async def stopped_after(rounds: int) -> None:
        app = observability_app(Probes(), CollectorRegistry())
        async with asyncio.timeout(5.0), Server(app, ("127.0.0.1", 0)) as server:
            clients = [asyncio.create_task(connected(server.port)) for _ in range(3)]
            for _ in range(rounds):
                await asyncio.sleep(0)
        async with asyncio.timeout(5.0):
            await asyncio.gather(*clients)

    for rounds in range(25):
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(stopped_after(rounds))


@pytest.mark.parametrize("loop", LOOPS)
def test_connections_that_say_nothing_are_closed_with_a_server_of_tls(tmp_path: Path, loop: Loop) -> None:
    """Browsers open some ahead of need, and a client may go no further than half of the handshake."""
    tls = write_files(tmp_path, self_signed(["127.0.0.1"], 1.77e9))

    async def main() -> None:
        app = observability_app(Probes(), CollectorRegistry())
        async with asyncio.timeout(5.0), Server(app, ("127.0.0.1", 0), tls=tls) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            for _ in range(10):
                await asyncio.sleep(0)
        async with asyncio.timeout(5.0):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_of_tls_that_does_not_confirm_the_end_is_left_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: Loop
) -> None:
    """asyncio forgets a connection's TLS when its transport is closed twice, and then aborts nothing."""
    monkeypatch.setattr(http, "_GRACE_S", 0.1)
    tls = write_files(tmp_path, self_signed(["127.0.0.1"], 1.77e9))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it ends a year after this test was written

    def answered(port: int) -> socket.socket:
        with socket.create_connection(("127.0.0.1", port), timeout=5.0) as connection:
            client = context.wrap_socket(connection)
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n")
        assert client.recv(5) == b"HTTP/"
        return socket.socket(fileno=client.detach())

    async def main() -> socket.socket:
        app = observability_app(Probes(), CollectorRegistry())
        async with asyncio.timeout(5.0), Server(app, ("127.0.0.1", 0), tls=tls) as server:
            return await asyncio.to_thread(answered, server.port)

    with asyncio.Runner(loop_factory=loop) as runner, runner.run(main()) as client:
        client.settimeout(5.0)
        with contextlib.suppress(ConnectionResetError):
            while client.recv(1 << 16):
                pass


def test_a_server_out_of_descriptors_serves_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http, "_ACCEPT_AGAIN_S", 0.01)
    accept = socket.socket.accept
    refusals = iter(range(3))

    def exhausted(listener: socket.socket) -> tuple[socket.socket, object]:
        if next(refusals, None) is not None:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", exhausted)
    assert ask(Probes(), "/readyz").status_code == 200
    said = [record for record in caplog.records if record.message == "no connection accepted, trying again"]
    assert len(said) == 3
    assert "Too many open files" in said[0].error  # type: ignore[attr-defined]


def test_answers_carry_the_date() -> None:
    assert parsedate_to_datetime(ask(Probes(), "/healthz").headers["date"]).tzinfo is not None


def in_loop(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(body())  # type: ignore[arg-type]


def test_every_ends_when_told_to() -> None:
    async def body() -> None:
        stop = asyncio.Event()
        rounds = 0
        async for _ in every(0.0, stop):
            rounds += 1
            if rounds == 3:
                stop.set()
        assert rounds == 3

    in_loop(body)


RETRIES = """
import asyncio
from joulie.program.logs import configure
import stamina

class Refused(Exception):
    pass

async def send(secret):
    raise Refused("503 from prometheus")

configure("info", "json")
caller = stamina.AsyncRetryingCaller(attempts=2, timeout=None, wait_initial=0.0, wait_jitter=0.0)
try:
    asyncio.run(caller(Refused, send, "s3cret"))
except Refused:
    pass
"""


@pytest.mark.slow
def test_r9_a_retry_says_in_plain_text_what_failed() -> None:
    done = subprocess.run([sys.executable, "-c", RETRIES], capture_output=True, check=True, text=True)
    (line,) = done.stderr.splitlines()
    said = json.loads(line)
    assert (said["msg"], said["problem"]) == ("request failed, retrying", "Refused: 503 from prometheus")
    assert "s3cret" not in line


DAEMON = """
import asyncio, sys
from joulie.program.logs import configure
from joulie.program.run import run

async def main(stop):
    print("up", flush=True)
    await stop.wait()
    print("restored", flush=True)

async def broken(stop):
    raise ValueError("no such policy")

configure("info", "json")
run(broken if "broken" in sys.argv else main)
"""


@pytest.mark.slow
def test_sigterm_stops_gracefully() -> None:
    with subprocess.Popen([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"up\n"
        os.kill(daemon.pid, signal.SIGTERM)
        out, err = daemon.communicate(timeout=20)
    assert (daemon.returncode, out) == (0, b"restored\n")
    assert b'"msg": "stopping"' in err
    assert b'"signal": "SIGTERM"' in err


@pytest.mark.slow
def test_a_failure_is_logged_and_ends_with_1() -> None:
    done = subprocess.run([sys.executable, "-c", DAEMON, "broken"], capture_output=True, check=False)
    assert done.returncode == 1
    assert b"no such policy" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_g12_numbers_of_computations_are_plain_numbers_in_json() -> None:
    answer = {"value": np.float64(1.5), "count": np.int64(3), "unknown": np.float64("nan"), "items": [np.float32(0.5)]}
    assert json.loads(json_body(answer)) == {"value": 1.5, "count": 3, "unknown": None, "items": [0.5]}
    with pytest.raises(TypeError, match="has no JSON form"):
        json_body({"what": object()})
