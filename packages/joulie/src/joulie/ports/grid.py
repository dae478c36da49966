"""Carbon intensity and prices of the grid."""

from __future__ import annotations

from typing import Protocol

from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import Basis, Measure, Observation


class GridSourceError(RuntimeError):
    """No usable answer from a source of grid signals; the message says what to do, and holds no secret.

    Attributes:
        retry_after_s: time after which the source may be asked again, s; None where it states none.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestRate(Protocol):
    """Rate limit of requests to the hosts of grid sources."""

    async def reserve(self, host: str, per_minute: float, max_wait_s: float) -> float:
        """Reserve the next request to a host.

        Args:
            host: host of the source.
            per_minute: maximum number of requests in any minute.
            max_wait_s: time beyond which nothing is reserved, s.

        Returns:
            Time until the request may be sent, s; above `max_wait_s` if it is not reserved.

        Raises:
            GridSourceError: the limit is not known; the request must not be sent.
        """
        ...


class GridSource(Protocol):
    """Carbon intensity or prices of zones of the grid.

    Values are in gCO2eq/kWh or currency/kWh. Every method raises `GridSourceError`; an answer is never for another
    zone, measure or basis than asked for.
    """

    name: str
    """As provenance, metrics and settings name it: electricity-maps, watttime, uk, file, prometheus, json, tou."""
    measure: Measure
    basis: Basis | None
    """Of carbon intensity; None for prices."""

    async def latest(self, zone: str) -> Observation:
        """The value in force now."""
        ...

    async def forecast(self, zone: str, horizon_s: float) -> Series | None:
        """What the source expects from now on; None where it does not forecast."""
        ...

    async def history(self, zone: str, from_s: float, until_s: float) -> Series | None:
        """Past values; None where the source keeps none. The series may be shorter than asked for."""
        ...
