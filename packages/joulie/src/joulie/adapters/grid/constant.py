"""The source static: one constant value, such as a contract's fixed price or the yearly mean of a grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from joulie.adapters.grid.source_context import SourceContext
from joulie.domain.grid.series import Series, constant
from joulie.domain.grid.signals import Basis, Measure, Observation, Provenance
from joulie.ports.grid import GridSourceError
from joulie.settings import number

_SETTLEMENT_S = 3600.0


_SETTINGS = {
    Measure.CARBON: number(
        "CARBON_STATIC_INTENSITY", None, "Carbon intensity of the source static.", minimum=0, unit="gCO2eq/kWh"
    ),
    Measure.PRICE: number("PRICE_STATIC", None, "Price of the source static.", unit="currency/kWh"),
}


def value_setting(measure: Measure) -> Any:
    """The setting of the source static."""
    return _SETTINGS[measure]


def static(value: float | None, context: SourceContext) -> Constant:
    """Create the source static.

    Raises:
        GridSourceError: the value is not set.
    """
    if value is None:
        variable = "CARBON_STATIC_INTENSITY" if context.measure is Measure.CARBON else "PRICE_STATIC"
        raise GridSourceError(f"no value: set {variable}")
    return Constant(value, context.measure, context.basis, context.now_s)


@dataclass
class Constant:
    """Source of a constant value.

    Attributes:
        value: the value, gCO2eq/kWh or currency/kWh.
        measure: carbon or price.
        basis: basis of a carbon intensity; None for prices.
        now_s: current time, s since the epoch.
    """

    value: float
    measure: Measure
    basis: Basis | None
    now_s: Callable[[], float]
    name: str = "static"

    async def latest(self, zone: str) -> Observation:
        """The value, for the current hour."""
        began_s = self.now_s() // _SETTLEMENT_S * _SETTLEMENT_S
        where = Provenance(self.name, zone, self.basis, estimated=True)
        return Observation(self.value, began_s, where, until_s=began_s + _SETTLEMENT_S)

    async def forecast(self, zone: str, horizon_s: float) -> Series | None:
        """The value over the whole horizon."""
        return constant(self.value, self.now_s(), self.now_s() + horizon_s)

    async def history(self, zone: str, from_s: float, until_s: float) -> Series | None:
        """The value over the whole period."""
        return constant(self.value, from_s, until_s)
