"""Fallback chain of the sources of one measure, with timeouts, metrics and validation of every answer."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from joulie.adapters.grid.zone import end_of
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import Basis, Measure, Observation
from joulie.domain.quantities import InvalidQuantityError, finite_number
from joulie.ports.grid import GridSource, GridSourceError

_VALUE_TIMEOUT_S = 300.0
"""Timeout of a source's value: the built-in sources need less, but a plug-in may hang."""
_SERIES_TIMEOUT_S = 900.0
"""Timeout of a history or forecast: months may be a dozen requests, each of which waits for the rate limit."""
_MAX_CLOCK_SKEW_S = 900.0

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class SourceChain:
    """Sources of one measure and basis, in order of preference.

    Args:
        measure: carbon or price.
        sources: the sources, at least one.
        max_age_s: age from which a value is rejected, s.
        now_s: current time, s since the epoch.
        fetched: called after every request with the source and ``ok`` or ``error``.

    Raises:
        ValueError: a source has another measure, or the bases of the sources differ.
    """

    def __init__(
        self,
        measure: Measure,
        sources: Sequence[GridSource],
        *,
        max_age_s: float,
        now_s: Callable[[], float],
        fetched: Callable[[str, str], None],
    ) -> None:
        self._measure = measure
        self._sources = tuple(sources)
        self.basis = _basis_of(measure, self._sources)
        self._max_age_s = max_age_s
        self._now_s = now_s
        self._fetched = fetched

    def __iter__(self) -> Iterator[GridSource]:
        return iter(self._sources)

    async def latest(self, source: GridSource, zone: str) -> Observation:
        """Current value of a zone from a source.

        Raises:
            GridSourceError: the source failed, or its value is invalid.
        """
        return self._checked(await self._call(source, source.latest(zone), _VALUE_TIMEOUT_S))

    async def forecast(self, source: GridSource, zone: str, horizon_s: float) -> Series | None:
        """Forecast of a source; None if it has none.

        Raises:
            GridSourceError: the source failed, or its forecast is invalid.
        """
        return await self._series(source, source.forecast(zone, horizon_s))

    async def history(self, source: GridSource, zone: str, from_s: float, until_s: float) -> Series | None:
        """History of a zone from a source; None if it has none.

        Raises:
            GridSourceError: the source failed, or its history is invalid.
        """
        return await self._series(source, source.history(zone, from_s, until_s))

    async def _series(self, source: GridSource, call: Awaitable[Series | None]) -> Series | None:
        series = await self._call(source, call, _SERIES_TIMEOUT_S)
        if self._measure is Measure.CARBON and series is not None and float(series.values.min()) < 0.0:
            raise GridSourceError("negative carbon intensity")
        return series

    async def _call(self, source: GridSource, call: Awaitable[_T], timeout_s: float) -> _T:
        """Await a source's answer and count it; any exception of a source becomes a `GridSourceError`."""
        result = "error"
        try:
            async with asyncio.timeout(timeout_s):
                answer = await call
            result = "ok"
        except GridSourceError:
            raise
        except TimeoutError:
            raise GridSourceError(f"no response in {timeout_s:g} s") from None
        except Exception as error:
            _log.exception("grid source is broken", extra={"source": source.name})
            raise GridSourceError(f"broken: {type(error).__name__}") from error
        finally:
            self._fetched(source.name, result)
        return answer

    def _checked(self, seen: Observation) -> Observation:
        """The observation with plain floats; rejected if of another basis, invalid, in the future or too old."""
        if seen.provenance.basis is not self.basis:
            raise GridSourceError(f"{seen.provenance.basis} intensity where {self.basis} is used")
        try:
            time_s = finite_number("time_s", seen.time_s)
            until_s = None if seen.until_s is None else finite_number("until_s", seen.until_s)
            minimum = 0.0 if self._measure is Measure.CARBON else -math.inf
            value = None if seen.value is None else finite_number("value", seen.value, minimum=minimum)
        except InvalidQuantityError as error:
            raise GridSourceError(str(error)) from error
        if value is None and seen.period is None:
            raise GridSourceError("invalid answer: neither a value nor a period")
        if until_s is not None and until_s <= time_s:
            raise GridSourceError("invalid answer: its value ends before it begins, until_s must be after time_s")
        now_s = self._now_s()
        if time_s > now_s + _MAX_CLOCK_SKEW_S:
            raise GridSourceError(f"the time of its value, {_clock(time_s)}, is in the future")
        if end_of(seen) < now_s - self._max_age_s:
            raise GridSourceError(f"the time of its last value, {_clock(time_s)}, is too old")
        return replace(seen, value=value, time_s=time_s, until_s=until_s)


def _basis_of(measure: Measure, sources: Sequence[GridSource]) -> Basis | None:
    """The common basis of all sources of a measure."""
    first = sources[0]
    for source in sources:
        if source.measure is not measure:
            raise ValueError(f"source {source.name} does not provide {measure}")
        if source.basis is not first.basis:
            raise ValueError(
                f"{first.name} has {first.basis} carbon intensity and {source.name} {source.basis}; the two are never "
                "mixed: name sources of one kind"
            )
    return first.basis


def _clock(time_s: float) -> str:
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return f"{time_s:g} s since 1970"
