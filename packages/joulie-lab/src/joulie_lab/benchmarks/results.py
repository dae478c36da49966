"""Typed results of benchmarks, which are written as JSON and shown in tables, figures and pages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from joulie_lab.simulation import sweep

_ENVELOPE = ("benchmark", "small", "missed")
"""Fields of a report beside the result."""


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base class of result types; a field with a default is omitted from the JSON if it was not measured."""


class Estimate(Figures, frozen=True):
    """A mean over seeds and half the width of its 95 % confidence interval; None for a single seed."""

    mean: float
    half_width: float | None

    def text(self, digits: int, scale: float = 1.0, sign: str = "") -> str:
        """The mean and its interval, as tables show them."""
        interval = "" if self.half_width is None else f" ±{scale * self.half_width:,.{digits}f}"
        return f"{scale * self.mean:{sign},.{digits}f}{interval}"


class Spread(Figures, frozen=True):
    """A mean over seeds, half of its 95 % confidence interval (Student's t), and the largest value."""

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
    mean, half_width = sweep.estimate(values)
    return Spread(mean, half_width or 0.0, float(np.max(values)))


Result = TypeVar("Result", bound=Figures)


def plain(result: Figures) -> dict[str, Any]:
    """A result as plain JSON values."""
    values: dict[str, Any] = msgspec.to_builtins(result)
    return values


def of_values(values: Mapping[str, Any], kind: type[Result]) -> Result:
    """Parse a result from its JSON values, or from a whole report."""
    return msgspec.convert({key: value for key, value in values.items() if key not in _ENVELOPE}, kind)


def read_result(path: Path, kind: type[Result]) -> Result:
    """Read the result of a committed report."""
    return of_values(msgspec.json.decode(path.read_bytes()), kind)
