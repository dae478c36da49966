"""Queries to a Prometheus server over its HTTP API. Source: Prometheus documentation, "HTTP API".

A server that is down costs its callers little time: a failed request is repeated once, and after three failures in a
row a circuit breaker fails all requests at once for a while, until a trial request succeeds.
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
    MAX_BYTES,
    Answer,
    Data,
    History,
    PrometheusError,
    PrometheusUnavailableError,
    Series,
    matrix_of,
    vector_of,
)
from joulie.adapters.prometheus.auth import PrometheusAuth
from joulie.domain.breaker import Breaker
from joulie.http_client import RequestError, ResponseTooLargeError, fetch, is_overloaded, shown_body, shown_url

_ATTEMPTS = 2
_FIRST_WAIT_S = 0.1
_MAX_WAIT_S = 0.5
_MAX_CONCURRENT_QUERIES = 8
"""Prometheus allows 20 by default; the rest is left to other clients."""
_MAX_WARNINGS = 100
"""Maximum number of distinct warnings that are logged."""
_SHOWN_CHARS = 200
"""Maximum length of a query in an error message, which may become a condition of an object."""
_LARGE_BYTES = 1 << 20
"""Larger responses are parsed in a thread, so that the event loop is not blocked."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Prometheus:
    """Client of one Prometheus server.

    Args:
        address: base URL such as ``http://prometheus:9090``, with a path where the API is not at the root.
        client: HTTP client; its owner closes it.
        auth: credentials and trusted authorities; none by default.
        timeout_s: timeout of one request, s.
        now_s: monotonic clock, s.
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
        self._retry = stamina.AsyncRetryingCaller(
            attempts=_ATTEMPTS,
            timeout=timeout_s,
            wait_initial=_FIRST_WAIT_S,
            wait_jitter=_FIRST_WAIT_S,
            wait_max=_MAX_WAIT_S,
        )
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_QUERIES)
        self._warned: set[str] = set()

    @property
    def problem(self) -> str | None:
        """Why the circuit breaker is open and requests fail without being sent; None while it is closed."""
        return self._breaker.problem

    async def query(self, promql: str) -> list[Series]:
        """Run an instant query and return its series, possibly none.

        Raises:
            PrometheusUnavailableError: the server did not respond, or is overloaded.
            PrometheusError: the query failed, or its result is neither a vector nor a scalar.
        """
        return await self._ask("query", {"query": promql}, vector_of)

    async def query_samples(self, promql: str) -> list[History]:
        """Return the raw samples of a range selector such as ``metric[5m]``, with the times of their scrapes.

        Raises:
            PrometheusUnavailableError: the server did not respond, or is overloaded.
            PrometheusError: the query failed, or its result is not a matrix.
        """
        return await self._ask("query", {"query": promql}, matrix_of)

    async def query_range(self, promql: str, start_s: float, end_s: float, step_s: float) -> list[History]:
        """Return the values of an expression at every step from `start_s` to `end_s`, both included.

        Args:
            promql: expression to evaluate.
            start_s: first time, s since the epoch.
            end_s: last time, s since the epoch.
            step_s: time between two values, s; servers refuse more than 11,000 steps.

        Raises:
            PrometheusUnavailableError: the server did not respond, or is overloaded.
            PrometheusError: the query failed, or its result is not a matrix.
        """
        times = {"start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
        return await self._ask("query_range", {"query": promql, **times}, matrix_of)

    async def _ask(self, api: str, form: Mapping[str, str], read: Callable[[Data], T]) -> T:
        where = f"{shown_url(self._address).rstrip('/')}/api/v1/{api}: {form['query'][:_SHOWN_CHARS]!r}"
        async with self._slots:
            with self._breaker.guarding(PrometheusUnavailableError):
                body = await self._retry(_is_repeatable, self._post, api, form, where)

        def parse() -> tuple[T, list[str]]:
            answer = msgspec.json.decode(body, type=Answer)
            if answer.status != "success" or answer.data is None:
                raise PrometheusError(f"{where}: {answer.error or answer.status}")
            return read(answer.data), answer.warnings

        try:
            large = len(body) > _LARGE_BYTES
            found, warnings = await asyncio.to_thread(parse) if large else parse()
        except (msgspec.DecodeError, ValueError) as error:
            raise PrometheusError(f"{where}: {error}: {shown_body(body)}") from error
        self._warn(warnings)
        return found

    async def _post(self, api: str, form: Mapping[str, str], where: str) -> bytes:
        try:
            response, body = await fetch(
                self._client,
                "POST",  # queries are longer than some proxies let URLs be
                f"{self._address}/api/v1/{api}",
                max_bytes=MAX_BYTES,
                data={**form, "timeout": f"{self._timeout_s:g}"},
                headers=self._auth.headers(),
                timeout=self._timeout_s,
            )
        except ResponseTooLargeError as error:
            raise PrometheusError(f"{where}: {error}") from None
        except RequestError as error:
            raise PrometheusUnavailableError(f"{where}: {error}") from error.__cause__
        if response.is_success:
            return body
        kind = PrometheusUnavailableError if is_overloaded(response) else PrometheusError
        raise kind(f"{where}: {response.status_code}: {shown_body(body)}")

    def _warn(self, warnings: list[str]) -> None:
        """Log each distinct warning of the server once."""
        for warning in warnings:
            if warning not in self._warned and len(self._warned) < _MAX_WARNINGS:
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
    """Open a client of the server at `address`, with a connection pool of its own.

    Args:
        address: base URL such as ``http://prometheus:9090``.
        auth: credentials and trusted authorities; none by default.
        timeout_s: timeout of one request, s.
        now_s: monotonic clock, s.

    Raises:
        PrometheusError: a certificate or key cannot be read.
    """
    auth = auth or PrometheusAuth()
    async with httpx2.AsyncClient(verify=auth.tls_context()) as client:
        yield Prometheus(address, client, auth=auth, timeout_s=timeout_s, now_s=now_s)


def _is_repeatable(error: Exception) -> bool:
    """Whether to repeat a failed request. One that timed out has used up its caller's time."""
    return isinstance(error, PrometheusUnavailableError) and not isinstance(error.__cause__, httpx2.TimeoutException)
