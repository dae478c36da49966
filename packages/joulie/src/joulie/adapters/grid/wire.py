"""Answers of providers as values, with errors that say what came."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
import numpy as np

from joulie.domain.grid.series import Series, of_points
from joulie.domain.quantities import SECONDS_PER_HOUR, InvalidQuantityError
from joulie.ports import GridSourceError

_T = TypeVar("_T")


def decoded(body: bytes, kind: type[_T], who: str) -> _T:
    """The JSON of a body.

    Raises:
        GridSourceError: it is none, or not as agreed.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GridSourceError(f"{who}: an answer that cannot be read: {error}") from None


def instant_s(text: str, who: str) -> float:
    """Seconds since the epoch of an ISO 8601 time, which must say its offset.

    Raises:
        GridSourceError: it is none.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise GridSourceError(f"{who}: {text[:40]!r} is no time") from None
    if moment.tzinfo is None:
        raise GridSourceError(f"{who}: {text[:40]!r} has no time zone")
    return moment.timestamp()


def iso(time_s: float) -> str:
    """A time as the providers take it, to the minute, UTC."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%MZ")


def series_of(points: Iterable[tuple[float, float | None]], who: str, step_s: float | None = None) -> Series | None:
    """The step function of times (s since the epoch) and values; None where there is no value at all.

    Args:
        points: those without a value are left out.
        who: says so, for errors.
        step_s: how long the last value holds, s; as long as the usual one by default.

    Raises:
        GridSourceError: a value that is no finite number.
    """
    known = {time_s: value for time_s, value in points if value is not None}
    if not known:
        return None
    if step_s is None:
        apart_s = np.diff(sorted(known))
        step_s = float(np.median(apart_s)) if apart_s.size else SECONDS_PER_HOUR
    try:
        return of_points(list(known.items()), step_s)
    except InvalidQuantityError as error:
        raise GridSourceError(f"{who}: {error}") from None


def value_of(number: float | None, who: str) -> float:
    """A number that is there.

    Raises:
        GridSourceError: it is not, or is not finite.
    """
    if number is None or not math.isfinite(number):
        raise GridSourceError(f"{who}: no value")
    return number
