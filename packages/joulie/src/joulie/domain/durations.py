"""Durations as people and Go programs write them. This module needs no numpy."""

from __future__ import annotations

import re

_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h|d)")
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration_s(text: str) -> float:
    """Seconds of a duration such as ``20s``, ``1m30s``, ``500ms``, ``1.5h`` or ``0``.

    Raises:
        ValueError: the text is not a duration.
    """
    stripped = text.strip()
    if stripped == "0":
        return 0.0
    parts = _PART.findall(stripped)
    if not parts or "".join(number + unit for number, unit in parts) != stripped:
        raise ValueError(f"{text!r} is not a duration; write 20s, 1m30s or 500ms")
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)
