"""Telemetry that others measure, and databases of metrics. This module needs no numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from joulie.domain.signal import Reading


class SourceError(RuntimeError):
    """A source of telemetry that could not be read at all; the message says why."""


class MetricValue(Protocol):
    """The last value of a series, finite; without a time where none is stated."""

    @property
    def value(self) -> float:
        """In the unit of the query."""
        ...

    @property
    def time_s(self) -> float | None:
        """S since the epoch."""
        ...


class MetricHistory(Protocol):
    """The samples of a series, oldest first."""

    @property
    def samples(self) -> Sequence[Reading]:
        """Times in s since the epoch, and values."""
        ...


class MetricsDatabase(Protocol):
    """Answers PromQL. Every method raises `SourceError`; times are in s since the epoch."""

    async def query(self, promql: str) -> Sequence[MetricValue]:
        """All series of an expression now, which may be none."""
        ...

    async def query_range(self, promql: str, start_s: float, end_s: float, step_s: float) -> Sequence[MetricHistory]:
        """The values of an expression at every step."""
        ...
