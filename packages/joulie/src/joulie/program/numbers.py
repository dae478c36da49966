"""Finite numbers on the command line: comparisons with `nan` and `inf` always or never hold, so they are rejected."""

from __future__ import annotations

import math
from typing import Any

import click


class FiniteFloat(click.types.FloatParamType):
    """A finite number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert text to a number."""
        return _finite(self, super().convert(value, param, ctx), param, ctx)


class FiniteRange(click.FloatRange):
    """A finite number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert text to a number."""
        return _finite(self, super().convert(value, param, ctx), param, ctx)


def _finite(
    kind: click.ParamType[Any], number: float, param: click.Parameter | None, ctx: click.Context | None
) -> float:
    if not math.isfinite(number):
        kind.fail(f"{number} is not a finite number.", param, ctx)
    return number
