"""Kubernetes' quantities ("100m", "2Gi") and times (RFC 3339), as numbers and back."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from functools import lru_cache

_SUFFIXES = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "": 1.0,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
} | {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", start=1)}
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([eE][+-]?[0-9]+)|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


class QuantityError(ValueError):
    """A text that is no quantity or no time."""


@lru_cache(maxsize=4096)
def parse_quantity(text: str | int | float) -> float:
    """The number that a quantity stands for: cores, bytes, or a count.

    Args:
        text: as the API writes it, ``100m``, ``2Gi``, ``1e3``, ``0.5``; plain numbers are taken as they are.

    Raises:
        QuantityError: it is none, or is not finite.
    """
    if isinstance(text, int | float):
        number = float(text)
    else:
        match = _QUANTITY.fullmatch(text)
        if match is None:
            raise QuantityError(f"{text!r} is no Kubernetes quantity; write it like 500m, 2 or 1.5Gi")
        digits, exponent, suffix = match.groups()
        number = float(digits + exponent) if exponent else float(digits) * _SUFFIXES[suffix or ""]
    if not math.isfinite(number):
        raise QuantityError(f"{text!r} is no Kubernetes quantity: it must be finite")
    return number


def rfc3339(epoch_s: float) -> str:
    """A time as metav1.Time writes it: UTC, whole seconds (``2026-03-13T12:00:00Z``).

    Args:
        epoch_s: seconds since the epoch; the fraction is cut off.
    """
    return datetime.fromtimestamp(math.floor(epoch_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(epoch_s: float) -> str:
    """A time as metav1.MicroTime must be written, for Leases and Events: UTC, always six decimals."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_rfc3339(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 time, with any number of decimals and any offset.

    Raises:
        QuantityError: it is no such time.
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise QuantityError(f"{text!r} is no RFC 3339 time; write it like 2026-03-13T12:00:00Z")
    whole, fraction, zone = match.groups()
    try:
        seconds = datetime.fromisoformat(whole + zone.replace("Z", "+00:00")).timestamp()
    except ValueError as error:
        raise QuantityError(f"{text!r} is no RFC 3339 time: {error}") from None
    return seconds + float(fraction or 0.0)
