"""Typed results of benchmarks: what they write as JSON, and what tables, figures and pages are made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from joulie_lab.simulation import sweep

_ENVELOPE = ("benchmark", "small", "missed")
"""What a report has beside the result."""


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Figures that go together; a field with a default is left out of the JSON where it was not measured."""


class Estimate(Figures, frozen=True):
    """A mean over seeds and half of its 95 % confidence interval, None for a single seed."""

    mean: float
    half_width: float | None

    def text(self, digits: int, scale: float = 1.0, sign: str = "") -> str:
        """The mean and its interval, as tables show them."""
        interval = "" if self.half_width is None else f" ±{scale * self.half_width:,.{digits}f}"
        return f"{scale * self.mean:{sign},.{digits}f}{interval}"


class Spread(Figures, frozen=True):
    """A mean over seeds, half of its 95 % confidence interval (normal approximation), and the largest value."""

    mean: float
    half_width: float
    worst: float

    def text(self, digits: int, scale: float = 1.0) -> str:
        """The mean and its interval, as tables show them."""
        return f"{scale * self.mean:.{digits}f} ± {scale * self.half_width:.{digits}f}"


def estimate(values: npt.ArrayLike) -> Estimate:
    """Mean and Student-t confidence interval of independent samples, one a seed."""
    return Estimate(*sweep.estimate(values))


def spread(values: npt.ArrayLike) -> Spread:
    """Mean, confidence interval and largest value of independent samples, one a seed."""
    samples = np.asarray(values, dtype=np.float64)
    half_width = 1.96 * float(samples.std(ddof=1)) / float(np.sqrt(samples.size)) if samples.size > 1 else 0.0
    return Spread(float(samples.mean()), half_width, float(samples.max()))


Result = TypeVar("Result", bound=Figures)


def plain(result: Figures) -> dict[str, Any]:
    """The JSON values of a result."""
    values: dict[str, Any] = msgspec.to_builtins(result)
    return values


def of_values(values: Mapping[str, Any], kind: type[Result]) -> Result:
    """The result of its JSON values, or of the whole report that has them."""
    return msgspec.convert({key: value for key, value in values.items() if key not in _ENVELOPE}, kind)


def read_result(path: Path, kind: type[Result]) -> Result:
    """The result in a committed report."""
    return of_values(msgspec.json.decode(path.read_bytes()), kind)
