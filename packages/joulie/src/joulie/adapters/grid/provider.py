"""HTTP client of the providers of grid data: bounded in time, rate and size, and without leaking secrets.

A request has a deadline, waits for its turn under the rate limit, which all programs of an installation share, and is
retried with backoff and jitter; `Retry-After` is honoured. After three failures in a row a circuit breaker stops
sending for a while. Redirects are not followed, since they would send the key to another host. Keys are read at each
use, so that replacing a Secret takes effect without a restart, and no error or log line contains one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx2
import stamina

from joulie.domain.breaker import Breaker
from joulie.domain.request_rate import next_request
from joulie.http_client import RequestError, ResponseTooLargeError, fetch, is_overloaded, shown_url
from joulie.ports.grid import GridSourceError, RequestRate

_MAX_BYTES = 1 << 20
_SHOWN_CHARS = 120
_MAX_PAUSE_S = 10.0
"""Maximum time between two attempts; a longer Retry-After fails the request instead of being waited for."""
_MAX_TURN_WAIT_S = 60.0
_MAX_RETRY_AFTER_S = 3600.0
_ZONE_STATUSES = {400, 403, 404, 422}
"""Statuses by which providers refuse an unknown zone."""
_ZONE_RETRY_S = 600.0
"""Time before such a request is sent again, so that unknown zones do not use up the rate limit."""


class UnavailableError(GridSourceError):
    """The provider did not respond, or is overloaded."""


class RefusedError(GridSourceError):
    """The provider rejected the request with a status other than 429 and 5xx.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, retry_after_s=_ZONE_RETRY_S if status in _ZONE_STATUSES else None)
        self.status = status


@dataclass(frozen=True)
class RequestPolicy:
    """Timeout, retries and rate limit of requests to a provider.

    Attributes:
        timeout_s: timeout of one request, from connecting to the last byte, s.
        retries: maximum number of retries after the first attempt.
        first_pause_s: pause before the first retry, s; it doubles from there, with jitter.
        calls_per_minute: rate limit: maximum number of requests to a host in any minute.
    """

    timeout_s: float = 10.0
    retries: int = 3
    first_pause_s: float = 1.0
    calls_per_minute: float = 10.0


@dataclass(frozen=True)
class Secret:
    """A key or password, given directly or in a file; its repr does not contain it.

    Attributes:
        names: settings that it comes from, for the error message if it is missing.
        file: file that holds it, which may be replaced at any time; None if it is given directly.
    """

    names: str
    _value: str | None = None
    file: Path | None = None

    def __repr__(self) -> str:
        return f"Secret({self.names})"

    def read(self) -> str:
        """Read the current secret.

        Raises:
            GridSourceError: it is missing or invalid; the message names the settings.
        """
        text = self._value
        if self.file is not None:
            try:
                text = self.file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
                raise GridSourceError(f"{self.file} cannot be read: {reason}") from None
        text = (text or "").strip()
        if not text:
            raise GridSourceError(f"no key: set {self.names}")
        if not text.isprintable() or not text.isascii():
            raise GridSourceError(f"{self.names} must hold one line of ASCII text")
        return text


class Provider:
    """Client of one provider's HTTP API.

    Args:
        client: HTTP client shared by the providers; its owner closes it.
        policy: timeout, retries and rate limit.
        now_s: monotonic clock, s.
        rate: rate limit; None for one of this provider alone.
    """

    def __init__(
        self,
        client: httpx2.AsyncClient,
        policy: RequestPolicy,
        now_s: Callable[[], float] = time.monotonic,
        rate: RequestRate | None = None,
    ) -> None:
        self._client = client
        self._policy = policy
        self._now_s = now_s
        self._breaker = Breaker(now_s)
        self._retry = stamina.AsyncRetryingCaller(
            attempts=policy.retries + 1,
            timeout=None,
            wait_initial=policy.first_pause_s,
            wait_jitter=policy.first_pause_s,
            wait_max=max(_MAX_PAUSE_S, policy.first_pause_s),
        )
        self._rate = OwnRequestRate(now_s) if rate is None else rate
        self._quiet_until_s = 0.0

    async def get(
        self,
        url: str,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        hide: Sequence[str] = (),
    ) -> bytes:
        """Send a GET request and return the body of a successful response.

        Args:
            url: address, without secrets in its path; errors do not show its query.
            params: query parameters to add.
            headers: request headers; their values are redacted from errors.
            hide: other secrets to redact, which the response may repeat.

        Raises:
            RefusedError: the provider rejected the request.
            GridSourceError: the request failed, was not sent, or its response is too large.
        """
        try:
            full = str(httpx2.URL(url).copy_merge_params(dict(params or {})))
        except httpx2.InvalidURL as error:
            raise GridSourceError(f"invalid address: {error}") from None
        quiet_s = self._quiet_until_s - self._now_s()
        if quiet_s > 0.0:
            raise GridSourceError(
                f"request not sent: the provider asked for a pause; next try in {quiet_s:.0f} s", retry_after_s=quiet_s
            )
        with self._breaker.guarding(UnavailableError):
            return await self._retry(self._pause_after, self._send, full, dict(headers or {}), hide)

    def _pause_after(self, error: Exception) -> bool | float:
        """Whether to retry, or after how many seconds if the provider sent Retry-After."""
        if not isinstance(error, UnavailableError):
            return False
        if error.retry_after_s is None:
            return True
        return error.retry_after_s if error.retry_after_s <= _MAX_PAUSE_S else False

    async def _send(self, url: str, headers: dict[str, str], hide: Sequence[str]) -> bytes:
        await self._wait_turn(httpx2.URL(url).host)
        where = shown_url(url)
        secrets = [*hide, *(value.rpartition(" ")[2] for value in headers.values())]
        try:
            async with asyncio.timeout(self._policy.timeout_s):
                # No timeouts of the HTTP client: they are per read and shorter than the whole request's deadline.
                response, body = await fetch(
                    self._client,
                    "GET",
                    url,
                    max_bytes=_MAX_BYTES,
                    headers=headers,
                    follow_redirects=False,
                    timeout=None,
                )
        except TimeoutError:
            raise UnavailableError(f"{where}: no response in {self._policy.timeout_s:g} s") from None
        except ResponseTooLargeError as error:
            raise GridSourceError(f"{where}: {error}") from None
        except RequestError as error:
            raise UnavailableError(f"{where}: {_redact(secrets, str(error))}") from None
        if response.is_success:
            return body
        raise self._status_error(response, f"{where}: {response.status_code}: {_shown(body, secrets)}".rstrip(": "))

    async def _wait_turn(self, host: str) -> None:
        """Wait until the rate limit allows a request.

        Raises:
            UnavailableError: the wait would exceed 60 s.
        """
        wait_s = await self._rate.reserve(host, self._policy.calls_per_minute, _MAX_TURN_WAIT_S)
        if wait_s > _MAX_TURN_WAIT_S:
            raise UnavailableError(
                f"request not sent: over the rate limit; next try in {wait_s:.0f} s", retry_after_s=wait_s
            )
        if wait_s > 0.0:
            await asyncio.sleep(wait_s)

    def _status_error(self, response: httpx2.Response, problem: str) -> GridSourceError:
        """The error for a response whose status is not a success."""
        if is_overloaded(response):
            retry_after_s = _retry_after_s(response)
            if retry_after_s is not None and retry_after_s > _MAX_PAUSE_S:
                self._quiet_until_s = self._now_s() + retry_after_s
            return UnavailableError(problem, retry_after_s=retry_after_s)
        return RefusedError(problem, response.status_code)


class OwnRequestRate:
    """Rate limit of this program alone.

    Args:
        now_s: monotonic clock, s.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._sent_s: dict[str, list[float]] = {}

    async def reserve(self, host: str, per_minute: float, max_wait_s: float) -> float:
        """Reserve a request; see `RequestRate`."""
        now_s = self._now_s()
        at_s, remembered = next_request(self._sent_s.get(host, ()), now_s, per_minute)
        if at_s - now_s <= max_wait_s:
            self._sent_s[host] = remembered
        return at_s - now_s


def _retry_after_s(response: httpx2.Response) -> float | None:
    """`Retry-After` in s, at most an hour, given in s or as a date by the provider's own clock; None if absent."""
    text = response.headers.get("retry-after", "")
    try:
        if text.isascii() and text.isdigit():
            wait_s = float(text)
        else:
            date = response.headers.get("date", "")
            wait_s = (parsedate_to_datetime(text) - parsedate_to_datetime(date)).total_seconds()
    except (ValueError, TypeError):  # TypeError: only one of them has a time zone
        return None
    return min(max(wait_s, 0.0), _MAX_RETRY_AFTER_S)


def _shown(body: bytes, secrets: Sequence[str]) -> str:
    """The beginning of a body for an error message, without the key that some providers repeat."""
    return " ".join(_redact(secrets, body.decode(errors="replace"))[:_SHOWN_CHARS].split())


def _redact(secrets: Sequence[str], text: str) -> str:
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return text
