"""Formats and parses Kubernetes timestamps (RFC 3339)."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from joulie.domain.resource_quantity import QuantityError

_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


def rfc3339(epoch_s: float) -> str:
    """Format a time as metav1.Time: UTC, whole seconds (``2026-03-13T12:00:00Z``).

    Args:
        epoch_s: time, s since the epoch; the fraction is truncated.
    """
    return datetime.fromtimestamp(math.floor(epoch_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(epoch_s: float) -> str:
    """Format a time as metav1.MicroTime, which Leases and Events use: UTC, always six decimals."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_rfc3339(text: str) -> float:
    """Parse an RFC 3339 time with any number of decimals and any offset, to s since the epoch.

    Raises:
        QuantityError: the text is not an RFC 3339 time.
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise QuantityError(f"invalid time {text!r}: not RFC 3339, such as 2026-03-13T12:00:00Z")
    whole, fraction, zone = match.groups()
    try:
        seconds = datetime.fromisoformat(whole + zone.replace("Z", "+00:00")).timestamp()
    except ValueError as error:
        raise QuantityError(f"invalid time {text!r}: not RFC 3339: {error}") from None
    return seconds + float(fraction or 0.0)


def time_or_none(text: str | None) -> float | None:
    """Parse an RFC 3339 time to s since the epoch; None if it is missing or invalid."""
    try:
        return parse_rfc3339(text or "")
    except QuantityError:
        return None
