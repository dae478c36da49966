"""Resource quantities as Kubernetes writes them ("100m", "2Gi"), as numbers."""

from __future__ import annotations

import math
import re
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


class QuantityError(ValueError):
    """A text that is not a valid quantity."""


@lru_cache(maxsize=4096)
def parse_quantity(text: str | int | float) -> float:
    """The number that a quantity stands for: cores, bytes, or a count.

    Args:
        text: as the API writes it, ``100m``, ``2Gi``, ``1e3``, ``0.5``; plain numbers are taken as they are.

    Raises:
        QuantityError: it is not valid, or not finite.
    """
    if isinstance(text, int | float):
        number = float(text)
    else:
        match = _QUANTITY.fullmatch(text)
        if match is None:
            raise QuantityError(f"invalid quantity {text!r}: write it like 500m, 2 or 1.5Gi")
        digits, exponent, suffix = match.groups()
        number = float(digits + exponent) if exponent else float(digits) * _SUFFIXES[suffix or ""]
    if not math.isfinite(number):
        raise QuantityError(f"invalid quantity {text!r}: must be finite")
    return number
