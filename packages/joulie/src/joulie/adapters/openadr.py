"""OpenADR 3 (3.0 and 3.1): a virtual end node that reads the events of a programme from a VTN, and reports on them.

Only what is needed: the token by client credentials, ``GET /events`` page by page, and ``POST /reports``. An event has
intervals, each with a period (its own, or the event's) and payloads; units are in the event's payload descriptors.
A VTN is not trusted with more than its events: what it answers is bounded in size, number and time, redirects are not
followed, and an event that cannot be read costs no other. Source: the OpenAPI document of OpenADR 3.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import urlencode

import httpx2
import msgspec

from joulie.domain.capping.grid_events import GHG, IMPORT_CAPACITY_LIMIT, PRICE, SIGNALS, SIMPLE, GridEvent
from joulie.http_client import RequestError, fetch

_T = TypeVar("_T")

PAGE = 50
"""Events a page, the most that a VTN must return."""
MAX_PAGES = 20
MAX_INTERVALS = 10_000
"""Intervals of all events, five weeks of five minutes: each is looked at in each decision."""
FOREVER_S = 10 * 365 * 86400.0
"""Durations are at most this, s: P9999Y means without an end."""
_MAX_BYTES = 1 << 20
_TIMEOUT_S = 10.0
"""Of connecting, and between two parts of an answer."""
READ_S = 60.0
"""In which all events have to be read."""
_TOKEN_MARGIN_S = 60.0
_OK, _CREATED, _UNAUTHORIZED, _CONFLICT = 200, 201, 401, 409
_NOW = ("0000", "0001")
"""Years of a start that mean now."""
_DURATION = re.compile(
    r"P(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.ASCII
)
_SECONDS = (365 * 86400.0, 30 * 86400.0, 7 * 86400.0, 86400.0, 3600.0, 60.0, 1.0)
_UNITS = {
    SIMPLE: (1.0, {}),
    IMPORT_CAPACITY_LIMIT: (1000.0, {"KW": 1000.0, "W": 1.0, "MW": 1e6}),
    PRICE: (1.0, {"KWH": 1.0, "MWH": 1e-3}),
    GHG: (1.0, {}),
}
"""Payloads that count: factor of a value without a unit, and of the units that are known. SIMPLE is a level, and GHG
always in g/kWh."""


DEMAND, USAGE, BASELINE = "DEMAND", "USAGE", "BASELINE"
_REPORTED = {DEMAND: ("MEAN", "KW"), USAGE: ("SUMMED", "KWH"), BASELINE: ("ESTIMATED", "KW")}
"""Payloads of reports: kind of reading, and unit."""
_ID_CHARS = re.compile(r"[^a-zA-Z0-9_-]")
_log = logging.getLogger(__name__)


class ReportRequest(NamedTuple):
    """What a VTN wants to know of an interval.

    Attributes:
        event_id: the event.
        program_id: its programme.
        interval: id of the interval.
        payloads: those of DEMAND, USAGE and BASELINE that are asked for, in order.
    """

    event_id: str
    program_id: str
    interval: int
    payloads: tuple[str, ...]


class OpenAdrError(Exception):
    """The VTN did not answer, refused, or answered something else than the specification says."""


class _Period(msgspec.Struct, rename="camel"):
    start: str = ""
    duration: str = ""
    randomize_start: str | None = None


class _Payload(msgspec.Struct):
    type: str
    values: list[float | str | bool | dict[str, float] | None] = []


class _Interval(msgspec.Struct, rename="camel"):
    id: int = 0
    interval_period: _Period | None = None
    payloads: list[_Payload] = []


class _Descriptor(msgspec.Struct, rename="camel"):
    payload_type: str = ""
    units: str | None = None


class _Event(msgspec.Struct, rename="camel"):
    id: str = ""
    program_id: str = msgspec.field(default="", name="programID")
    intervals: list[_Interval] = []
    interval_period: _Period | None = None
    payload_descriptors: list[_Descriptor] | None = None
    report_descriptors: list[_Descriptor] | None = None


class _Token(msgspec.Struct):
    access_token: str
    expires_in: float = 3600.0


@dataclass
class OpenAdr:
    """Client of a VTN.

    Attributes:
        url: base URL of its API.
        program_id: programme whose events count; empty for all that this client may see.
        http: HTTP client.
        now_s: current time, s since the epoch.
        token_url: where tokens are asked for; empty for `url`/auth/token.
        client_id: of this VEN; empty for a VTN without authentication.
        secret_file: file with its secret, read at each login.
        requests: reports that the events read last ask for, by name of the `GridEvent`.
    """

    url: str
    program_id: str
    http: httpx2.AsyncClient
    now_s: Callable[[], float]
    token_url: str = ""
    client_id: str = ""
    secret_file: Path | None = None
    requests: Mapping[str, ReportRequest] = field(default_factory=dict)
    _token: str = field(default="", repr=False)
    _token_until_s: float = 0.0
    _first_read_s: Mapping[str, float] = field(default_factory=dict, repr=False)

    async def events(self) -> list[GridEvent]:
        """All events of the programme; intervals of other payloads and ones that cannot be read are left out.

        Raises:
            OpenAdrError: the VTN cannot be read.
        """
        try:
            async with asyncio.timeout(READ_S):
                events = await self._all_events()
        except TimeoutError:
            raise OpenAdrError(f"events not read within {READ_S:.0f} s") from None
        if sum(len(event.intervals) for event in events) > MAX_INTERVALS:
            raise OpenAdrError(f"events of more than {MAX_INTERVALS} intervals")
        # An event that starts now started when it was first read, or it would never end.
        now_s = self.now_s()
        self._first_read_s = {event.id: self._first_read_s.get(event.id, now_s) for event in events}
        found: list[GridEvent] = []
        requests: dict[str, ReportRequest] = {}
        for event in events:
            asked = {one.payload_type for one in event.report_descriptors or ()}
            payloads = tuple(kind for kind in _REPORTED if kind in asked)
            for interval, one in self._intervals(event):
                found.append(one)
                if payloads:
                    requests[one.name] = ReportRequest(event.id, event.program_id, interval, payloads)
        self.requests = requests
        return found

    async def _all_events(self) -> list[_Event]:
        found: list[_Event] = []
        for page in range(MAX_PAGES):
            query = {"skip": str(page * PAGE), "limit": str(PAGE)}
            if self.program_id:
                query["programID"] = self.program_id
            answer = self._decoded(await self._get(f"/events?{urlencode(query)}"), list[msgspec.Raw])
            for one in answer:
                try:
                    found.append(self._decoded(one, _Event))
                except OpenAdrError as error:
                    _log.warning("event of the VTN left out", extra={"error": str(error)})
            if len(answer) < PAGE:
                return found
        raise OpenAdrError(f"more than {MAX_PAGES * PAGE} events")

    async def report(
        self, request: ReportRequest, start_s: float, end_s: float, values: Mapping[str, Mapping[str, float]]
    ) -> None:
        """Report on an interval that is over; one that the VTN has already is done.

        Args:
            request: what was asked for.
            start_s: start of the interval, s since the epoch.
            end_s: its end.
            values: by resource, then by payload: kW, or kWh of `USAGE`.

        Raises:
            OpenAdrError: the VTN did not take it.
        """
        period = {
            "start": datetime.fromtimestamp(start_s, UTC).isoformat().replace("+00:00", "Z"),
            "duration": f"PT{end_s - start_s:.0f}S",
        }
        body = {
            "objectType": "REPORT",
            "programID": request.program_id,
            "eventID": request.event_id,
            "clientName": self.client_id or "joulie",
            "reportName": f"joulie-{request.event_id[:100]}-{request.interval}",
            "payloadDescriptors": [
                {"objectType": "REPORT_PAYLOAD_DESCRIPTOR", "payloadType": kind, "readingType": reading, "units": unit}
                for kind, (reading, unit) in _REPORTED.items()
                if kind in request.payloads
            ],
            "resources": [
                {
                    "resourceName": resource,
                    "intervalPeriod": period,
                    "intervals": [{"id": request.interval, "payloads": _payloads(told)}],
                }
                for resource, told in values.items()
            ],
        }
        status = await self._post("/reports", msgspec.json.encode(body))
        if status not in (_OK, _CREATED, _CONFLICT):
            raise OpenAdrError(f"/reports: HTTP status {status}")

    def _intervals(self, event: _Event) -> Iterator[tuple[int, GridEvent]]:
        units = {one.payload_type: (one.units or "").upper() for one in event.payload_descriptors or ()}
        after_s: float | None = None
        for interval in event.intervals:
            period = interval.interval_period or event.interval_period
            if period is None:
                continue
            try:
                start_s = _start_s(period.start, self._first_read_s[event.id])
                length_s = duration_s(period.duration) if period.duration else FOREVER_S
            except ValueError:
                continue
            if interval.interval_period is None and after_s is not None:
                start_s = after_s  # intervals without a period of their own follow one another
            after_s = start_s + length_s
            delay_s = self._delay_s(event.id, period)
            for payload in interval.payloads:
                value = _value(payload, units.get(payload.type, ""))
                if value is not None and length_s > 0.0:
                    name = f"openadr-{_ID_CHARS.sub('_', event.id[:128])}-{interval.id}"
                    # A price is what it is at its time; what is delayed is what this VEN does.
                    late_s = 0.0 if payload.type in SIGNALS else delay_s
                    yield interval.id, GridEvent(name, start_s + late_s, after_s + late_s, payload.type, value)

    def _delay_s(self, event_id: str, period: _Period) -> float:
        """By how much this VEN starts and ends later, s: within ``randomizeStart``, and the same at each reading.

        One that starts now starts now.
        """
        if not period.randomize_start or period.start.startswith(_NOW):
            return 0.0
        try:
            window_s = duration_s(period.randomize_start)
        except ValueError:
            return 0.0
        drawn = hashlib.sha256(f"{self.client_id or self.url}/{event_id}".encode()).digest()
        return window_s * int.from_bytes(drawn[:4]) / 2**32

    async def _get(self, path: str) -> bytes:
        status, body = await self._authorized("GET", path)
        if status != _OK:
            raise OpenAdrError(f"{path.partition('?')[0]}: HTTP status {status}")
        return body

    async def _post(self, path: str, content: bytes) -> int:
        try:
            async with asyncio.timeout(READ_S):
                return (await self._authorized("POST", path, content))[0]
        except TimeoutError:
            raise OpenAdrError(f"{path}: no answer within {READ_S:.0f} s") from None

    async def _authorized(self, method: str, path: str, content: bytes | None = None) -> tuple[int, bytes]:
        url, more = self.url.rstrip("/") + path, {} if content is None else {"content-type": "application/json"}
        status, body = await self._request(method, url, more | await self._headers(), content)
        if status == _UNAUTHORIZED and self.client_id:
            self._token_until_s = 0.0  # it expired early: log in again, once
            status, body = await self._request(method, url, more | await self._headers(), content)
        return status, body

    async def _headers(self) -> dict[str, str]:
        if not self.client_id:
            return {}
        if self.now_s() >= self._token_until_s:
            try:
                secret = "" if self.secret_file is None else self.secret_file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise OpenAdrError(f"secret: {error}") from error
            form = {"grant_type": "client_credentials", "client_id": self.client_id, "client_secret": secret}
            url = self.token_url or f"{self.url.rstrip('/')}/auth/token"
            headers = {"content-type": "application/x-www-form-urlencoded"}
            status, body = await self._request("POST", url, headers, urlencode(form).encode())
            if status != _OK:
                raise OpenAdrError(f"login: HTTP status {status}")
            token = self._decoded(body, _Token)
            if not (token.access_token.isascii() and token.access_token.isprintable()):
                raise OpenAdrError("login: unexpected answer: the token is no header")
            self._token, self._token_until_s = token.access_token, self.now_s() + token.expires_in - _TOKEN_MARGIN_S
        return {"authorization": f"Bearer {self._token}"}

    async def _request(
        self, method: str, url: str, headers: dict[str, str], content: bytes | None = None
    ) -> tuple[int, bytes]:
        try:
            response, body = await fetch(
                self.http, method, url, max_bytes=_MAX_BYTES, headers=headers, content=content, timeout=_TIMEOUT_S
            )
        except RequestError as error:
            raise OpenAdrError(str(error)) from error
        return response.status_code, body

    @staticmethod
    def _decoded(body: bytes | msgspec.Raw, kind: type[_T]) -> _T:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise OpenAdrError(f"unexpected answer: {error}") from error


def _payloads(values: Mapping[str, float]) -> Sequence[Mapping[str, object]]:
    return [{"type": kind, "values": [round(value, 3)]} for kind, value in values.items()]


def _value(payload: _Payload, unit: str) -> float | None:
    """The value of a payload in the units of `GridEvent`; None where it does not count, or cannot be understood."""
    value = payload.values[0] if payload.values else None
    if payload.type not in _UNITS or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Prices may be negative.
    if not math.isfinite(value) or (value < 0.0 and payload.type not in SIGNALS):
        return None
    usual, known = _UNITS[payload.type]
    scale = usual if not unit or not known else known.get(unit)
    return None if scale is None else float(value) * scale


def duration_s(text: str) -> float:
    """An ISO 8601 duration, s, at most `FOREVER_S`; a year has 365 days, a month 30.

    Raises:
        ValueError: it is none.
    """
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r} is no ISO 8601 duration")
    total_s = sum(float(part) * seconds for part, seconds in zip(match.groups(), _SECONDS, strict=True) if part)
    return min(total_s, FOREVER_S)


def _start_s(text: str, now_s: float) -> float:
    """A start, s since the epoch; "0000-00-00" and 0001-01-01 mean now.

    Raises:
        ValueError: it is no time.
    """
    if text.startswith(_NOW):
        return now_s
    time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
