"""A direct-expansion (DX) cooling plant with an airside economizer, as pure formulas.

Source: spec of the published 2,500-node experiment, "Outdoor temperature and cooling", after the Modelica example
DXCooledAirsideEconomizer of the Buildings library. Two properties of that plant are kept, because its figures are to
be reproduced:

- It has no thermostat and no heater: the room never gets warmer than it started, it only drifts towards the outdoor
  air where the economizer alone removes more than the IT heat.
- Below `economizer_open_k` the compressor is off, yet heat that the economizer cannot carry still counts as removed.
  At loads above the economizer's capacity its cooling power is then a lower bound.

Every function takes floats or arrays that broadcast together (many rooms at once) and returns the same kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from joulie.domain.units import FloatLike, InvalidQuantityError, finite

AIR_HEAT_CAPACITY_J_PER_KG_K = 1006.0


def _parameter(
    default: float, unit: str, description: str, *, may_be_zero: bool = False, maximum: float = math.inf
) -> Any:
    """A field of `DxParameters`, with its allowed range and its description in an exported FMU."""
    metadata = {"unit": unit, "description": description, "may_be_zero": may_be_zero, "maximum": maximum}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class DxParameters:
    """The plant's parameters; the defaults are the published plant's. Units are in the names, or 1.

    Raises:
        InvalidQuantityError: a parameter is not finite, out of its range, or contradicts another.
    """

    room_length_m: float = _parameter(50.0, "m", "Length of the room")
    room_width_m: float = _parameter(40.0, "m", "Width of the room")
    room_height_m: float = _parameter(3.0, "m", "Height of the room")
    thermal_mass_factor: float = _parameter(5.0, "1", "Heat capacity of the room over that of its air")
    start_k: float = _parameter(298.15, "K", "Temperature of the room at the start")
    air_density_kg_per_m3: float = _parameter(1.2, "kg/m3", "Density of air")
    rated_cop: float = _parameter(3.0, "1", "Coefficient of performance at rated_outdoor_k and below, full load")
    rated_outdoor_k: float = _parameter(308.15, "K", "Outdoor temperature above which the COP falls")
    cop_slope_per_k: float = _parameter(
        0.025, "1/K", "Share of the rated COP lost per kelvin above rated_outdoor_k", may_be_zero=True
    )
    part_load_gain: float = _parameter(0.1, "1", "Relative gain of COP from full load to no load", may_be_zero=True)
    minimum_cop: float = _parameter(1.0, "1", "Smallest coefficient of performance")
    coil_capacity_w: float = _parameter(1.0e6, "W", "Rated cooling capacity of the coil")
    air_flow_kg_per_s: float = _parameter(82.84, "kg/s", "Mass flow of air")
    fan_pressure_pa: float = _parameter(500.0, "Pa", "Pressure rise of the fan")
    fan_efficiency: float = _parameter(0.7, "1", "Efficiency of the fan", maximum=1.0)
    minimum_fan_speed: float = _parameter(0.2, "1", "Smallest fan speed, relative", maximum=1.0)
    economizer_open_k: float = _parameter(286.15, "K", "Outdoor temperature below which the economizer is fully open")
    economizer_closed_k: float = _parameter(291.13, "K", "Outdoor temperature above which it is closed")
    minimum_outdoor_air: float = _parameter(
        0.05, "1", "Smallest share of outdoor air in the supply air", may_be_zero=True, maximum=1.0
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            finite(item.name, value, minimum=0.0, maximum=item.metadata["maximum"])
            if value == 0.0 and not item.metadata["may_be_zero"]:
                raise InvalidQuantityError(item.name, "must be above zero")
        if self.economizer_closed_k <= self.economizer_open_k:
            raise InvalidQuantityError("economizer_closed_k", "must be above economizer_open_k")

    @property
    def room_capacity_j_per_k(self) -> float:
        """Heat that warms the room by one kelvin, J/K."""
        volume_m3 = self.room_length_m * self.room_width_m * self.room_height_m
        return self.air_density_kg_per_m3 * volume_m3 * AIR_HEAT_CAPACITY_J_PER_KG_K * self.thermal_mass_factor

    @property
    def full_fan_w(self) -> float:
        """Power of the fan at full speed, W."""
        return self.air_flow_kg_per_s / self.air_density_kg_per_m3 * self.fan_pressure_pa / self.fan_efficiency


class DxFlows(NamedTuple):
    """Heat and power at one instant, each a float or an array."""

    free_w: FloatLike
    """Heat that the economizer removes, W."""
    mechanical_w: FloatLike
    """Heat that the coil removes, W."""
    fan_w: FloatLike
    compressor_w: FloatLike

    @property
    def cooling_w(self) -> FloatLike:
        """Electrical power of the plant, W; never zero, the fan has a minimum speed."""
        return self.fan_w + self.compressor_w

    @property
    def cop(self) -> FloatLike:
        """Heat removed over electrical power."""
        return (self.free_w + self.mechanical_w) / self.cooling_w


class _Operators(NamedTuple):
    """Functions that differ between floats and arrays: the formulas serve both, and floats stay fast."""

    low: Callable[[Any, Any], Any]
    high: Callable[[Any, Any], Any]
    expm1: Callable[[Any], Any]


_FLOATS = _Operators(min, max, math.expm1)
_ARRAYS = _Operators(np.minimum, np.maximum, np.expm1)


def _operators(*values: FloatLike) -> _Operators:
    return _ARRAYS if any(isinstance(value, np.ndarray) for value in values) else _FLOATS


def outdoor_air_share(parameters: DxParameters, outdoor_k: FloatLike) -> FloatLike:
    """Share of outdoor air in the supply air: 1 when cold, falling linearly to the minimum when warm."""
    op = _operators(outdoor_k)
    span_k = parameters.economizer_closed_k - parameters.economizer_open_k
    opening = (parameters.economizer_closed_k - outdoor_k) / span_k
    share: FloatLike = op.high(parameters.minimum_outdoor_air, op.low(1.0, opening))
    return share


def dx_flows(parameters: DxParameters, it_w: FloatLike, outdoor_k: FloatLike, room_k: FloatLike) -> DxFlows:
    """Heat flows and powers of the plant at one instant.

    Args:
        parameters: the plant.
        it_w: heat of the IT equipment, W, not negative.
        outdoor_k: outdoor temperature, K.
        room_k: room temperature, K.
    """
    op = _operators(it_w, outdoor_k, room_k)
    # The mixed air is cooler than the room by this share of the difference to the outdoor air.
    drop_k = op.high(0.0, outdoor_air_share(parameters, outdoor_k) * (room_k - outdoor_k))
    free_w = parameters.air_flow_kg_per_s * AIR_HEAT_CAPACITY_J_PER_KG_K * drop_k
    mechanical_w = op.high(0.0, it_w - free_w)

    loss = parameters.cop_slope_per_k * op.high(0.0, outdoor_k - parameters.rated_outdoor_k)
    part_load = op.low(1.0, mechanical_w / parameters.coil_capacity_w)
    gain = 1.0 + parameters.part_load_gain * (1.0 - part_load)
    cop = op.high(parameters.minimum_cop, parameters.rated_cop * (1.0 - loss) * gain)
    compressor_on = outdoor_k >= parameters.economizer_open_k

    speed = op.low(1.0, op.high(parameters.minimum_fan_speed, it_w / parameters.coil_capacity_w))
    return DxFlows(free_w, mechanical_w, parameters.full_fan_w * speed**3, compressor_on * mechanical_w / cop)


def dx_room_after(
    parameters: DxParameters, it_w: FloatLike, outdoor_k: FloatLike, room_k: FloatLike, dt_s: float
) -> FloatLike:
    """Room temperature after `dt_s` seconds of constant inputs, K; exact, so a step may be of any length.

    The coil balances the heat that the economizer cannot remove, so the room temperature changes only where the
    economizer alone removes more than the IT heat. The system is then linear: the temperature falls exponentially to
    the equilibrium of the two, from above, and the coil stays off.
    """
    op = _operators(it_w, outdoor_k, room_k)
    conductance_w_per_k = (
        parameters.air_flow_kg_per_s * AIR_HEAT_CAPACITY_J_PER_KG_K * outdoor_air_share(parameters, outdoor_k)
    )
    # Without outdoor air nothing couples the room to the outside: the limit of a vanishing conductance.
    conductance_w_per_k = op.high(conductance_w_per_k, 1e-9)
    equilibrium_k = outdoor_k + it_w / conductance_w_per_k
    way = -op.expm1(-conductance_w_per_k * dt_s / parameters.room_capacity_j_per_k)
    after_k: FloatLike = op.low(room_k, room_k + (equilibrium_k - room_k) * way)
    return after_k
