"""Queries to a Prometheus server over its HTTP API. Source: Prometheus documentation, "HTTP API".

A server that does not answer costs its callers little: a request is repeated once, and after some failures in a row
all requests fail at once for a while, until one that is let through succeeds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

import httpx2
import msgspec
import stamina

from joulie.adapters.prometheus.answers import (
    Answer,
    Data,
    History,
    PrometheusError,
    PrometheusUnavailableError,
    Series,
    matrix_of,
    read_answer,
    start_of,
    vector_of,
)
from joulie.adapters.prometheus.auth import PrometheusAuth
from joulie.domain.breaker import Breaker

_ATTEMPTS = 2
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 0.5
_QUERIES_AT_ONCE = 8
"""Of Prometheus' 20 by default: others want to ask, too."""
_REMEMBERED_WARNINGS = 100
_SHOWN_CHARS = 200
"""Of a query in an error, which may end in a condition."""
_LARGE_BYTES = 1 << 20
"""Answers from this size on are read in a thread: it takes long enough for others to notice."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Prometheus:
    """Queries to one server.

    Args:
        address: such as ``http://prometheus:9090``, with a path where the API is not at the root.
        client: shared; its owner closes it.
        auth: who asks; nobody in particular by default.
        timeout_s: of one request, s.
        now_s: a clock that only goes forward, s.
    """

    def __init__(
        self,
        address: str,
        client: httpx2.AsyncClient,
        *,
        auth: PrometheusAuth | None = None,
        timeout_s: float = 10.0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address.rstrip("/")
        self._client = client
        self._auth = auth or PrometheusAuth()
        self._timeout_s = timeout_s
        self._breaker = Breaker(now_s)
        self._places = asyncio.Semaphore(_QUERIES_AT_ONCE)
        self._warned: set[str] = set()

    @property
    def problem(self) -> str | None:
        """Why requests fail at once now, without being sent; None while they are sent."""
        return self._breaker.problem

    async def query(self, promql: str) -> list[Series]:
        """All series of an instant query, which may be none.

        Raises:
            PrometheusUnavailableError: the server did not answer, or cannot now.
            PrometheusError: the query failed, or gave something other than a vector or a scalar.
        """
        return await self._ask("query", {"query": promql}, vector_of)

    async def query_samples(self, promql: str) -> list[History]:
        """The samples themselves of a range selector such as ``metric[5m]``, at the times they were scraped at.

        Raises:
            PrometheusUnavailableError: the server did not answer, or cannot now.
            PrometheusError: the query failed, or gave something other than samples over time.
        """
        return await self._ask("query", {"query": promql}, matrix_of)

    async def query_range(self, promql: str, start_s: float, end_s: float, step_s: float) -> list[History]:
        """The values of an expression at every step from `start_s` to `end_s`, both included.

        Args:
            promql: the expression.
            start_s: s since the epoch.
            end_s: s since the epoch.
            step_s: s; servers refuse more than 11,000 steps.

        Raises:
            PrometheusUnavailableError: the server did not answer, or cannot now.
            PrometheusError: the query failed, or gave something other than samples over time.
        """
        times = {"start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
        return await self._ask("query_range", {"query": promql, **times}, matrix_of)

    async def _ask(self, api: str, form: Mapping[str, str], read: Callable[[Data], T]) -> T:
        where = f"{_shown(self._address)}/api/v1/{api}: {form['query'][:_SHOWN_CHARS]!r}"
        body = await self._guarded(api, form, where)

        def understood() -> tuple[T, list[str]]:
            answer = msgspec.json.decode(body, type=Answer)
            if answer.status != "success" or answer.data is None:
                raise PrometheusError(f"{where}: {answer.error or answer.status}")
            return read(answer.data), answer.warnings

        try:
            large = len(body) > _LARGE_BYTES
            found, warnings = await asyncio.to_thread(understood) if large else understood()
        except (msgspec.DecodeError, ValueError) as error:
            raise PrometheusError(f"{where}: {error}: {start_of(body)}") from error
        self._warn(warnings)
        return found

    async def _guarded(self, api: str, form: Mapping[str, str], where: str) -> bytes:
        async with self._places:
            with self._breaker.guarding(PrometheusUnavailableError):
                return await self._repeated(api, form, where)

    async def _repeated(self, api: str, form: Mapping[str, str], where: str) -> bytes:
        async for attempt in stamina.retry_context(
            _worth_repeating,
            attempts=_ATTEMPTS,
            timeout=self._timeout_s,
            wait_initial=_FIRST_WAIT_S,
            wait_jitter=_FIRST_WAIT_S,
            wait_max=_LONGEST_WAIT_S,
        ):
            with attempt:
                return await self._post(api, form, where)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _post(self, api: str, form: Mapping[str, str], where: str) -> bytes:
        try:
            async with self._client.stream(
                "POST",  # queries are longer than some proxies let URLs be
                f"{self._address}/api/v1/{api}",
                data={**form, "timeout": f"{self._timeout_s:g}"},
                headers=self._auth.headers(),
                timeout=self._timeout_s,
            ) as response:
                try:
                    return await read_answer(response, where)
                except PrometheusError as error:
                    if response.is_server_error or response.status_code == httpx2.codes.TOO_MANY_REQUESTS:
                        raise PrometheusUnavailableError(str(error)) from None
                    raise
        except (httpx2.HTTPError, OSError) as error:  # a TLS alert after the handshake is an OSError
            raise PrometheusUnavailableError(f"{where}: {str(error) or type(error).__name__}") from error

    def _warn(self, warnings: list[str]) -> None:
        """Say each warning of the server once."""
        for warning in warnings:
            if warning not in self._warned and len(self._warned) < _REMEMBERED_WARNINGS:
                self._warned.add(warning)
                _log.warning("Prometheus warns", extra={"warning": warning})


@asynccontextmanager
async def connect(
    address: str,
    auth: PrometheusAuth | None = None,
    *,
    timeout_s: float = 10.0,
    now_s: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Prometheus]:
    """A client of the server at `address`, with a connection pool of its own.

    Args:
        address: such as ``http://prometheus:9090``.
        auth: who asks, and whom to trust.
        timeout_s: of one request, s.
        now_s: a clock that only goes forward, s.

    Raises:
        PrometheusError: a certificate or key cannot be read.
    """
    auth = auth or PrometheusAuth()
    async with httpx2.AsyncClient(verify=auth.tls_context()) as client:
        yield Prometheus(address, client, auth=auth, timeout_s=timeout_s, now_s=now_s)


def _worth_repeating(error: Exception) -> bool:
    """Whether the same request may well succeed now. One that ran out of time has had its time."""
    return isinstance(error, PrometheusUnavailableError) and not isinstance(error.__cause__, httpx2.TimeoutException)


def _shown(address: str) -> str:
    """The address without the password that it may hold."""
    return str(httpx2.URL(address).copy_with(username=None, password=None)).rstrip("/")
