"""How providers of grid data are asked, in one place: bounded in time, rate and size, and without a secret leaking.

A request has a deadline, is repeated with backoff and jitter, waits for its turn under the provider's rate limit, and
honours `Retry-After`. After some failures in a row nothing is sent for a while. Redirects are not followed, since they
would take the key elsewhere. Keys are read when they are needed, so that replacing a Secret is enough, and no error or
log line holds one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx2
import stamina

from joulie.domain.breaker import Breaker
from joulie.ports import GridSourceError

_MAX_BYTES = 1 << 20
_SHOWN_CHARS = 120
_LONGEST_PAUSE_S = 10.0
"""Between two attempts; a provider that asks for more by Retry-After gets its way by an error."""
_LONGEST_TURN_S = 60.0
_LONGEST_RETRY_AFTER_S = 3600.0
_REFUSED_ZONE = {400, 403, 404, 422}
_REFUSED_ZONE_S = 600.0
"""Before such a request is sent again, so that zones that do not exist leave the turns to those that do."""


class UnavailableError(GridSourceError):
    """The provider did not answer, or said that it cannot now."""


class RefusedError(GridSourceError):
    """The provider has understood, and says no.

    Attributes:
        status: of HTTP.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, retry_after_s=_REFUSED_ZONE_S if status in _REFUSED_ZONE else None)
        self.status = status


@dataclass(frozen=True)
class RequestPolicy:
    """How a provider is asked.

    Attributes:
        timeout_s: of one request, from connecting to the last byte, s.
        retries: after the first attempt.
        first_pause_s: before the first repetition, s; it doubles from there, with jitter.
        calls_per_minute: the rate that is never exceeded for long.
    """

    timeout_s: float = 10.0
    retries: int = 3
    first_pause_s: float = 1.0
    calls_per_minute: float = 10.0


@dataclass(frozen=True)
class Secret:
    """A key or password, from a file or as it is; never part of what is printed.

    Attributes:
        names: the settings that it comes from, for the error that says what is missing.
        file: holds it, and may be replaced at any time.
    """

    names: str
    _value: str | None = None
    file: Path | None = None

    def __repr__(self) -> str:
        return f"Secret({self.names})"

    def read(self) -> str:
        """The secret as it is now.

        Raises:
            GridSourceError: there is none; the message names the settings.
        """
        text = self._value
        if self.file is not None:
            try:
                text = self.file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "no text"
                raise GridSourceError(f"{self.file} cannot be read: {reason}") from None
        text = (text or "").strip()
        if not text:
            raise GridSourceError(f"no key: set {self.names}")
        if not text.isprintable() or not text.isascii():
            raise GridSourceError(f"{self.names} must hold one line of ASCII text")
        return text


class Provider:
    """One provider's HTTP API.

    Args:
        client: shared; its owner closes it. It must not follow redirects.
        policy: how it is asked.
        now_s: a clock that only goes forward, s.
    """

    def __init__(
        self, client: httpx2.AsyncClient, policy: RequestPolicy, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._policy = policy
        self._now_s = now_s
        self._breaker = Breaker(now_s)
        self._turns = _TokenBucket(policy.calls_per_minute, now_s)
        self._quiet_until_s = 0.0

    async def get(
        self,
        url: str,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        hide: Sequence[str] = (),
    ) -> bytes:
        """The body of a successful answer.

        Args:
            url: without secrets in its path; its query is not shown.
            params: to add to its query.
            headers: may hold secrets.
            hide: more secrets, which the answer may repeat.

        Raises:
            RefusedError: the provider has understood, and says no.
            GridSourceError: it did not answer, or not well.
        """
        try:
            full = str(httpx2.URL(url).copy_merge_params(dict(params or {})))
        except httpx2.InvalidURL as error:
            raise GridSourceError(f"no address: {error}") from None
        quiet_s = self._quiet_until_s - self._now_s()
        if quiet_s > 0.0:
            raise GridSourceError(f"not asked: it wants to be left alone for {quiet_s:.0f} s", retry_after_s=quiet_s)
        with self._breaker.guarding(UnavailableError):
            return await self._repeated(full, dict(headers or {}), hide)

    async def _repeated(self, url: str, headers: dict[str, str], hide: Sequence[str]) -> bytes:
        rules = self._policy
        async for attempt in stamina.retry_context(
            self._pause_after,
            attempts=rules.retries + 1,
            timeout=None,
            wait_initial=rules.first_pause_s,
            wait_jitter=rules.first_pause_s,
            wait_max=max(_LONGEST_PAUSE_S, rules.first_pause_s),
        ):
            with attempt:
                await self._turns.take()
                return await self._once(url, headers, hide)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _pause_after(self, error: Exception) -> bool | float:
        """Whether to try again, and if the provider says so, after how many seconds."""
        if not isinstance(error, UnavailableError):
            return False
        if error.retry_after_s is None:
            return True
        return error.retry_after_s if error.retry_after_s <= _LONGEST_PAUSE_S else False

    async def _once(self, url: str, headers: dict[str, str], hide: Sequence[str]) -> bytes:
        where = _shown(url)
        secrets = [*hide, *(value.rpartition(" ")[2] for value in headers.values())]
        try:
            async with asyncio.timeout(self._policy.timeout_s):
                async with self._asked(url, headers) as response:
                    body = await _bounded(response, where)
        except TimeoutError:
            raise UnavailableError(f"{where}: no answer in {self._policy.timeout_s:g} s") from None
        except (httpx2.HTTPError, OSError) as error:  # a TLS alert after the handshake is an OSError
            raise UnavailableError(f"{where}: {_without(secrets, str(error)) or type(error).__name__}") from None
        if response.is_success:
            return body
        raise self._refusal(response, f"{where}: {response.status_code}: {_start(body, secrets)}".rstrip(": "))

    def _asked(self, url: str, headers: dict[str, str]) -> AbstractAsyncContextManager[httpx2.Response]:
        # Without limits of the client's own, which are shorter: the deadline is that of the whole request.
        return self._client.stream("GET", url, headers=headers, follow_redirects=False, timeout=None)

    def _refusal(self, response: httpx2.Response, problem: str) -> GridSourceError:
        """The error that an answer other than success amounts to."""
        if response.status_code == httpx2.codes.TOO_MANY_REQUESTS or response.is_server_error:
            retry_after_s = _retry_after_s(response)
            if retry_after_s is not None and retry_after_s > _LONGEST_PAUSE_S:
                self._quiet_until_s = self._now_s() + retry_after_s
            return UnavailableError(problem, retry_after_s=retry_after_s)
        return RefusedError(problem, response.status_code)


class _TokenBucket:
    """A token bucket: a burst of a minute's calls, then one after the other at the rate."""

    def __init__(self, per_minute: float, now_s: Callable[[], float]) -> None:
        self._rate_per_s = per_minute / 60.0
        self._most = max(1.0, per_minute)
        self._left = self._most
        self._now_s = now_s
        self._at_s = now_s()

    async def take(self) -> None:
        """Wait for a turn.

        Raises:
            UnavailableError: it would take too long.
        """
        now_s = self._now_s()
        self._left = min(self._most, self._left + (now_s - self._at_s) * self._rate_per_s)
        self._at_s = now_s
        wait_s = max(0.0, (1.0 - self._left) / self._rate_per_s)
        if wait_s > _LONGEST_TURN_S:
            raise UnavailableError(f"not asked: over the rate limit for {wait_s:.0f} s", retry_after_s=wait_s)
        self._left -= 1.0
        if wait_s > 0.0:
            await asyncio.sleep(wait_s)


async def _bounded(response: httpx2.Response, where: str) -> bytes:
    content = bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > _MAX_BYTES:
            raise GridSourceError(f"{where}: answer of more than {_MAX_BYTES} bytes")
    return bytes(content)


def _retry_after_s(response: httpx2.Response) -> float | None:
    """What `Retry-After` says, in s or as a date by the provider's own clock; None where it does not. Bounded."""
    text = response.headers.get("retry-after", "")
    try:
        if text.isascii() and text.isdigit():
            wait_s = float(text)
        else:
            date = response.headers.get("date", "")
            wait_s = (parsedate_to_datetime(text) - parsedate_to_datetime(date)).total_seconds()
    except (ValueError, TypeError):  # TypeError: only one of them has a time zone
        return None
    return min(max(wait_s, 0.0), _LONGEST_RETRY_AFTER_S)


def _shown(url: str) -> str:
    """An address without its query and its user, which may hold secrets."""
    return str(httpx2.URL(url).copy_with(username=None, password=None, query=None, fragment=None))


def _start(body: bytes, secrets: Sequence[str]) -> str:
    """As much of a body as an error shows, without the key that some providers repeat."""
    return " ".join(_without(secrets, body.decode(errors="replace"))[:_SHOWN_CHARS].split())


def _without(secrets: Sequence[str], text: str) -> str:
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return text
