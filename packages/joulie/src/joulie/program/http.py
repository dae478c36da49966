"""HTTP server of the daemons for ASGI applications, and the endpoints /healthz, /readyz and /metrics."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs

import msgspec
import uvicorn
from prometheus_client import CollectorRegistry, make_asgi_app
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from joulie.waiting import set_within

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

ALL_INTERFACES = "::"
"""Listens on all interfaces, for IPv6 and IPv4; for IPv4 alone where the machine has no IPv6."""
_IPV4_INTERFACES = "0.0.0.0"  # noqa: S104 - pods listen on their only interface
_CERTIFICATE_CHECK_S = 60.0
_GRACE_S = 10
_TICK_S = 1.0
_POLL_S = 0.01
_ACCEPT_AGAIN_S = 1.0
_CLOSE = (b"connection", b"close")

_log = logging.getLogger(__name__)


class AddressError(ValueError):
    """Invalid listen address."""


def parse_address(text: str) -> tuple[str, int]:
    """Parse a listen address such as ``:8080`` (all interfaces, IPv4 and IPv6), ``127.0.0.1:8080`` or ``[::1]:8080``.

    Raises:
        AddressError: invalid address.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise AddressError(f"invalid address {text!r}: expected a form such as :8080 or 127.0.0.1:8080")
    return host.strip("[]") or ALL_INTERFACES, int(port)


class Probes:
    """Named checks of a health or readiness endpoint, which must all pass."""

    def __init__(self) -> None:
        self._checks: dict[str, Callable[[], str | None]] = {}

    def add(self, name: str, why_not: Callable[[], str | None]) -> None:
        """Add a check that returns why it fails, or None if it passes."""
        self._checks[name] = why_not

    def failures(self) -> dict[str, str]:
        """Reasons of failing checks, by check."""
        found = {name: why_not() for name, why_not in self._checks.items()}
        return {name: reason for name, reason in found.items() if reason is not None}


def observability_app(ready: Probes, registry: CollectorRegistry, *, alive: Probes | None = None) -> AsgiApp:
    """ASGI application with /healthz, /readyz and /metrics.

    Args:
        ready: checks of /readyz, which returns 503 with the reasons while one fails.
        registry: metrics of /metrics.
        alive: checks of /healthz, limited to failures that a restart would fix; None for no checks.
    """
    metrics: AsgiApp = make_asgi_app(registry)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        match scope["path"]:
            case "/healthz":
                await _send_probe(alive or Probes(), send)
            case "/readyz":
                await _send_probe(ready, send)
            case "/metrics":
                await metrics(scope, receive, send)
            case _:
                await respond(send, 404, b"not found; available: /healthz, /readyz and /metrics\n")

    return app


async def _send_probe(probes: Probes, send: Send) -> None:
    failures = probes.failures()
    lines = [f"{name}: {reason}" for name, reason in failures.items()] or ["ok"]
    await respond(send, 503 if failures else 200, "\n".join([*lines, ""]).encode())


async def respond(send: Send, status: int, body: bytes, content_type: bytes = b"text/plain; charset=utf-8") -> None:
    """Send a complete response."""
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def json_body(value: Any) -> bytes:
    """JSON of an answer: NaN is null, and numbers that computations leave as NumPy scalars are plain numbers."""
    return msgspec.json.encode(value, enc_hook=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def answering(path: str, answer: Callable[[Mapping[str, list[str]]], tuple[int, Any]], app: AsgiApp) -> AsgiApp:
    """ASGI application that serves one path in JSON, and passes all other paths to `app`.

    Args:
        path: path to serve, such as ``/debug/power``.
        answer: returns status and body for the query parameters.
        app: application for all other paths.
    """

    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != path:
            await app(scope, receive, send)
            return
        status, body = answer(parse_qs(scope.get("query_string", b"").decode(errors="replace")))
        await respond(send, status, json_body(body), b"application/json")

    return endpoint


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of a server; a rotated certificate is reloaded without a restart.

    Attributes:
        certificate: certificate chain of the server.
        key: private key of the server.
        client_ca: CA certificates for client authentication (mutual TLS); None accepts all clients.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def stamp(self) -> tuple[float, float]:
        """Modification times of certificate and key, s since the epoch."""
        return self.certificate.stat().st_mtime, self.key.stat().st_mtime


async def lame_duck(stop: asyncio.Event, ready: Probes, delay_s: float) -> None:
    """Wait for `stop`, then let the caller serve on for a while: not ready, until no endpoint leads here any more.

    A pod that is deleted keeps getting connections until every node has seen that it left its Service.

    Args:
        stop: set to request the shutdown.
        ready: probes of /readyz, which fail once `stop` is set.
        delay_s: how long to serve on, s.
    """
    ready.add("shutdown", lambda: "shutting down" if stop.is_set() else None)
    await stop.wait()
    _log.info("no longer ready, serving until endpoints have followed", extra={"seconds": delay_s})
    await asyncio.sleep(delay_s)


def _closing(app: AsgiApp, stop: asyncio.Event) -> AsgiApp:
    """`app`, whose responses close their connections once `stop` is set."""

    async def closing(scope: Scope, receive: Receive, send: Send) -> None:
        async def last(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), _CLOSE]}
            await send(message)

        await app(scope, receive, last if stop.is_set() else send)

    return closing


def _listening(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        OSError: the address is in use or not local.
    """
    if host == ALL_INTERFACES and not socket.has_dualstack_ipv6():
        host = _IPV4_INTERFACES
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == ALL_INTERFACES
    return socket.create_server((host, port), family=family, dualstack_ipv6=both)


class _ClientCertificates(HttpToolsProtocol):
    """Tells applications the client's certificate, as ASGI's extension for TLS does; uvicorn does not."""

    _certificates: list[str]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        session = transport.get_extra_info("ssl_object")
        certificate = None if session is None else session.getpeercert(binary_form=True)
        self._certificates = [] if certificate is None else [ssl.DER_cert_to_PEM_cert(certificate)]

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {"tls": {"client_cert_chain": self._certificates}}


class EmbeddedServer(uvicorn.Server):
    """uvicorn in an event loop that is not its own, and without its signal handlers.

    It accepts connections itself: servers of asyncio do not close those that are just being accepted, nor those in a
    TLS handshake, and tell nobody of them.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopping = asyncio.Event()
        self._greeting: set[asyncio.Task[None]] = set()
        """For connections that were accepted and which their protocols do not know yet."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not handle signals: the program does, and stops its servers in order."""
        yield

    async def main_loop(self) -> None:
        """Tick once a second, for the Date header, until told to stop.

        uvicorn's own loop ticks ten times a second: more than a thousandth of a core, on every node.
        """
        while not await self.on_tick(0):
            await set_within(self._stopping, _TICK_S)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        for listener in sockets or ():
            listener.listen(self.config.backlog)
            listener.setblocking(False)
            # Of its connections, too: Nagle's algorithm would delay a response by 40 ms.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._listen(listener)
        self.started = True

    def _listen(self, listener: socket.socket) -> None:
        if not self.should_exit:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # the client has left again
        except OSError as error:
            _log.warning(
                "no connection accepted, trying again", extra={"error": str(error), "seconds": _ACCEPT_AGAIN_S}
            )
            loop.remove_reader(listener)
            loop.call_later(_ACCEPT_AGAIN_S, self._listen, listener)
            return
        task = loop.create_task(self._greet(connection))
        self._greeting.add(task)
        task.add_done_callback(self._greeting.discard)

    async def _greet(self, connection: socket.socket) -> None:
        with suppress(OSError):  # that a handshake failed, clients report
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection, ssl=self.config.ssl)

    def _protocol(self) -> asyncio.Protocol:
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state={})

    async def _accept_no_more(self, listeners: Iterable[socket.socket]) -> None:
        for listener in listeners:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        await asyncio.sleep(0)  # a task that has not begun would leave its connection open
        greeting = list(self._greeting)
        if self.config.ssl is not None:  # a handshake may take a minute
            for task in greeting:
                task.cancel()
        await asyncio.gather(*greeting, return_exceptions=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Complete pending requests, then close all connections."""
        await self._accept_no_more(sockets or ())
        connections, requests = self.server_state.connections, self.server_state.tasks
        for connection in list(connections):
            if not connection.transport.is_closing():  # asyncio could not abort what was closed twice, with TLS
                connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while connections or requests:
                    await asyncio.sleep(_POLL_S)
        for request in requests:
            _log.warning("request broken off: it took too long after the shutdown began")
            request.cancel()
        for connection in list(connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # what was aborted is closed in the loop's next round

    async def begin(self, listener: socket.socket) -> asyncio.Task[None]:
        """Serve on a listening socket; gives the task that ends with the server.

        Raises:
            OSError: a file of its certificate cannot be read, or is none.
        """
        serving = asyncio.create_task(self.serve(sockets=[listener]))
        while not self.started:
            if serving.done():
                serving.result()
            await asyncio.sleep(0)
        return serving

    def stop(self) -> None:
        """Complete pending requests, then close."""
        self.should_exit = True
        self._stopping.set()


class Server:
    """HTTP server that runs within an ``async with`` block.

    Attributes:
        port: listening port; the port assigned by the system if port 0 was requested.
    """

    def __init__(
        self,
        app: AsgiApp,
        address: tuple[str, int],
        *,
        tls: TlsFiles | None = None,
        stop: asyncio.Event | None = None,
    ) -> None:
        """Bind the address.

        Args:
            app: ASGI application.
            address: host and port; `ALL_INTERFACES` listens for IPv4 too.
            tls: serves HTTPS; None for HTTP.
            stop: once set, each response closes its connection, so that clients connect to another replica.

        Raises:
            OSError: the address is in use or not local.
        """
        self._socket = _listening(*address)
        self.port: int = self._socket.getsockname()[1]
        self._tls = tls
        self._config = uvicorn.Config(
            app if stop is None else _closing(app, stop),
            http=_ClientCertificates if tls and tls.client_ca else "httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_GRACE_S,
            ssl_certfile=tls.certificate if tls else None,
            ssl_keyfile=tls.key if tls else None,
            ssl_ca_certs=str(tls.client_ca) if tls and tls.client_ca else None,
            ssl_cert_reqs=ssl.CERT_REQUIRED if tls and tls.client_ca else ssl.CERT_NONE,
        )
        self._server = EmbeddedServer(self._config)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks.append(await self._server.begin(self._socket))
        if self._tls is not None:
            self._tasks.append(asyncio.create_task(self._renew_certificate(self._tls)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Complete pending requests, then close."""
        self._server.stop()
        serving, *others = self._tasks
        for task in others:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await serving
        self._socket.close()

    async def _renew_certificate(self, tls: TlsFiles) -> None:
        known = tls.stamp()
        while True:
            await asyncio.sleep(_CERTIFICATE_CHECK_S)
            try:
                stamp = tls.stamp()
                if stamp != known and self._config.ssl is not None:
                    self._config.ssl.load_cert_chain(tls.certificate, tls.key)
                    known = stamp
                    _log.info("certificate reloaded", extra={"file": str(tls.certificate)})
            except (OSError, ssl.SSLError) as error:
                # Probably a rotation in progress: the old certificate stays in use, and the next check retries.
                _log.warning("certificate not reloaded", extra={"file": str(tls.certificate), "error": str(error)})
