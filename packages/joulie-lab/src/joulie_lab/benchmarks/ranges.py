"""Committed ranges: the allowed values of a benchmark's figures, with reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class RangesError(ValueError):
    """Invalid ranges file; the message says where and why."""


class Range(BaseModel):
    """Allowed range of one figure.

    Attributes:
        metric: path to the figure, joined by dots, such as ``figures.t10.mean_kw``.
        min: minimum allowed value.
        max: maximum allowed value.
        equals: expected value, instead of a range.
        within: allowed relative deviation from `equals`.
        why: origin of the range.
    """

    model_config = _STRICT

    metric: str
    min: float | None = None
    max: float | None = None
    equals: float | None = None
    within: float = 0.0
    why: str

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if (self.equals is None) == (self.min is None and self.max is None):
            raise ValueError("needs either equals, or min or max")
        return self

    def missed_by(self, measured: Mapping[str, Any]) -> str | None:
        """Message if the value is out of range, otherwise None."""
        value = _figure(measured, self.metric)
        if value is None:
            return f"{self.metric}: was not measured ({self.why})"
        if self.equals is not None:
            # Written so that NaN is out of range, too.
            if not abs(value - self.equals) <= self.within * abs(self.equals):
                return f"{self.metric}: {value!r} is not {self.equals!r} within {self.within:g} ({self.why})"
            return None
        if self.min is not None and not value >= self.min:
            return f"{self.metric}: {value:.6g} is below {self.min:g} ({self.why})"
        if self.max is not None and not value <= self.max:
            return f"{self.metric}: {value:.6g} is above {self.max:g} ({self.why})"
        return None


class _RangeFile(BaseModel):
    model_config = _STRICT

    full: tuple[Range, ...]
    small: tuple[Range, ...]


def load_ranges(path: Path, *, small: bool) -> tuple[Range, ...]:
    """Load the ranges of the full benchmark or of its small sample.

    Raises:
        RangesError: the file cannot be read or is invalid.
    """
    try:
        ranges = _RangeFile.model_validate(yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader))
    except OSError as error:
        raise RangesError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RangesError(f"{path}: is not YAML: not UTF-8 text") from error
    except yaml.YAMLError as error:
        raise RangesError(f"{path}: is not YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise RangesError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    return ranges.small if small else ranges.full


def misses(ranges: Sequence[Range], measured: Mapping[str, Any]) -> list[str]:
    """One message per range that the figures are out of."""
    return [line for entry in ranges if (line := entry.missed_by(measured)) is not None]


def _figure(measured: Any, path: str) -> float | None:
    for part in path.split("."):
        measured = measured.get(part) if isinstance(measured, Mapping) else None
    return None if measured is None else float(measured)
