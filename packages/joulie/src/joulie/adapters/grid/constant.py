"""One number for ever: a contract at a fixed price, or the yearly mean of a grid that nobody publishes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from joulie.domain.grid.series import Series, constant
from joulie.domain.grid.signals import Basis, Measure, Observation, Provenance

_SETTLEMENT_S = 3600.0


@dataclass
class Constant:
    """A number, as a source.

    Attributes:
        value: gCO2eq/kWh or currency/kWh.
        measure: of it.
        basis: of a carbon intensity.
        now_s: s since the epoch.
    """

    value: float
    measure: Measure
    basis: Basis | None
    now_s: Callable[[], float]
    name: str = "static"

    async def latest(self, zone: str) -> Observation:
        """The number, since the last full hour."""
        began_s = self.now_s() // _SETTLEMENT_S * _SETTLEMENT_S
        where = Provenance(self.name, zone, self.basis, estimated=True)
        return Observation(self.value, began_s, where, until_s=began_s + _SETTLEMENT_S)

    async def forecast(self, zone: str, horizon_s: float) -> Series | None:
        """The number, from now on."""
        return constant(self.value, self.now_s(), self.now_s() + horizon_s)

    async def history(self, zone: str, from_s: float, until_s: float) -> Series | None:
        """The number, until now."""
        return constant(self.value, from_s, until_s)
