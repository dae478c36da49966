"""The source tou: prices of a time-of-use tariff, which holds for every zone, in the past and the future."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from joulie.adapters.grid.price_schedules import PriceSchedulesError, load_price_schedules
from joulie.adapters.grid.source_context import SourceContext
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import Basis, Measure, Observation, Provenance
from joulie.domain.grid.tou import TouTariff
from joulie.ports.grid import GridSourceError
from joulie.settings import path

_NO_CHANGE_S = 86400.0
"""Assumed duration of a period if the tariff does not change within its look-ahead."""


PATH_SETTING = path("PRICING_SCHEDULES_PATH", None, "YAML file of time-of-use schedules.")

_log = logging.getLogger(__name__)


def time_of_use(path: Path | None, context: SourceContext) -> TimeOfUse:
    """Create the source tou.

    Raises:
        GridSourceError: the path is not set.
    """
    if path is None:
        raise GridSourceError("no schedules: set PRICING_SCHEDULES_PATH")
    return TimeOfUse(ScheduleFile(path).tariff, context.now_s)


@dataclass
class TimeOfUse:
    """Source of a time-of-use tariff.

    Attributes:
        tariff: returns the current tariff; raises `GridSourceError` if there is none.
        now_s: current time, s since the epoch.
    """

    tariff: Callable[[], TouTariff]
    now_s: Callable[[], float]
    name: str = "tou"
    measure: Measure = Measure.PRICE
    basis: Basis | None = None
    _last_tariff: TouTariff | None = None
    """Tariff of the period below, to notice a new file."""
    _since_s: float = 0.0
    """Start of the current period, as far back as it was observed."""
    _until_s: float = 0.0
    """End of the current period."""

    async def latest(self, zone: str) -> Observation:
        """Current period and rate."""
        now_s, tariff = self.now_s(), self.tariff()
        if tariff is not self._last_tariff or not self._since_s <= now_s < self._until_s:
            self._last_tariff, self._since_s = tariff, now_s
            self._until_s = tariff.next_change_s(now_s) or now_s + _NO_CHANGE_S
        where = Provenance(self.name, zone)
        return Observation(tariff.rate(now_s), self._since_s, where, tariff.period(now_s), self._until_s)

    async def forecast(self, zone: str, horizon_s: float) -> Series | None:
        """Future rates; None if one of them is not known."""
        return self.tariff().series(self.now_s(), self.now_s() + horizon_s)

    async def history(self, zone: str, from_s: float, until_s: float) -> Series | None:
        """Past rates under today's tariff; None if one of them is not known."""
        return self.tariff().series(from_s, until_s)


@dataclass
class ScheduleFile:
    """File of price schedules, read again when it has changed."""

    path: Path
    _version: tuple[int, int] = (0, 0)
    _tariff: TouTariff | None = None
    _problem: str = ""

    def tariff(self) -> TouTariff:
        """The tariff of the last valid version of the file.

        Raises:
            GridSourceError: the file has not been valid yet.
        """
        version = self._version_now()
        if version != self._version:
            self._version = version
            self._read()
        if self._tariff is None:
            raise GridSourceError(self._problem)
        return self._tariff

    def _version_now(self) -> tuple[int, int]:
        try:
            status = self.path.stat()
        except OSError:
            return (-1, -1)
        return status.st_mtime_ns, status.st_size

    def _read(self) -> None:
        try:
            self._tariff = load_price_schedules(self.path)
        except PriceSchedulesError as error:
            self._problem = str(error)
            _log.warning("price schedules cannot be read", extra={"problem": self._problem})
