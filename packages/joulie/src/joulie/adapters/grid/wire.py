"""Decoding of provider responses: JSON bodies, timestamps and values, with errors that show what was received."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
import numpy as np

from joulie.domain.grid.series import Series, of_points
from joulie.domain.quantities import SECONDS_PER_HOUR, InvalidQuantityError
from joulie.ports.grid import GridSourceError

_T = TypeVar("_T")


def decoded(body: bytes, kind: type[_T], who: str) -> _T:
    """Decode a JSON body.

    Args:
        body: the response's body.
        kind: expected type.
        who: name of the source, for errors.

    Raises:
        GridSourceError: the body is not JSON, or not of the expected type.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GridSourceError(f"{who}: invalid response: {error}") from None


def instant_s(text: str, who: str) -> float:
    """Seconds since the epoch of an ISO 8601 time with a UTC offset.

    Raises:
        GridSourceError: the time is invalid, or has no offset.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise GridSourceError(f"{who}: invalid time {text[:40]!r}") from None
    if moment.tzinfo is None:
        raise GridSourceError(f"{who}: time {text[:40]!r} has no UTC offset")
    return moment.timestamp()


def iso(time_s: float) -> str:
    """Format a time as the providers expect it: ISO 8601, UTC, to the minute."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%MZ")


def series_of(points: Iterable[tuple[float, float | None]], who: str, step_s: float | None = None) -> Series | None:
    """Step function of times (s since the epoch) and values; None if there is no value at all.

    Args:
        points: times and values; those without a value are left out.
        who: name of the source, for errors.
        step_s: duration of the last value, s; the median of the others by default.

    Raises:
        GridSourceError: a value is not finite.
    """
    known = {time_s: value for time_s, value in points if value is not None}
    if not known:
        return None
    if step_s is None:
        steps_s = np.diff(sorted(known))
        step_s = float(np.median(steps_s)) if steps_s.size else SECONDS_PER_HOUR
    try:
        return of_points(list(known.items()), step_s)
    except InvalidQuantityError as error:
        raise GridSourceError(f"{who}: {error}") from None


def value_of(number: float | None, who: str) -> float:
    """Check that a value is present and finite.

    Raises:
        GridSourceError: it is missing or not finite.
    """
    if number is None or not math.isfinite(number):
        raise GridSourceError(f"{who}: no value")
    return number
