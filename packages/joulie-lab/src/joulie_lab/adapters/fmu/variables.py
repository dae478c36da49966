"""Maps the plant's inputs and outputs to variables of an FMU, with unit conversion."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

from joulie_lab.simulation.cooling_plant import CoolingPlantError


@dataclass(frozen=True)
class FmuMapping:
    """Names of an FMU's variables; the defaults are the published plant's.

    A variable whose declared unit measures the same quantity (kW for W, degC for K) is converted. A variable without a
    unit is assumed to be in the unit given here. Any other unit is rejected.

    Attributes:
        it_w: input: heat of the IT equipment, W.
        outdoor_k: input: outdoor temperature, K.
        cooling_w: output: electrical power of the plant, W.
        room_k: output: temperature of the room, K.
        cop: output: heat removed over electrical power.
    """

    it_w: str = "Q_IT"
    outdoor_k: str = "T_outdoor"
    cooling_w: str = "P_cooling"
    room_k: str = "T_indoor"
    cop: str = "COP"


class Channel(NamedTuple):
    """One mapped variable: value in Joulie's unit = factor * value in the FMU + offset."""

    name: str
    reference: int
    factor: float
    offset: float
    discrete: bool

    def to_fmu(self, value: float) -> float:
        """Convert a value in Joulie's unit to the FMU's unit."""
        return (value - self.offset) / self.factor

    def from_fmu(self, value: float) -> float:
        """Convert a value in the FMU's unit to Joulie's unit."""
        return self.factor * value + self.offset


class Channels(NamedTuple):
    """The plant's variables in the FMU."""

    inputs: tuple[Channel, Channel]
    outputs: tuple[Channel, Channel, Channel]
    notes: tuple[str, ...]
    """Assumed and converted units, one line each, to be shown to the user."""


class _Quantity(NamedTuple):
    unit: str
    exponents: dict[str, int]
    known: dict[str, tuple[float, float]]
    """Units that an FMU may use without defining them, with factor and offset to `unit`."""


_POWER = _Quantity("W", {"kg": 1, "m": 2, "s": -3}, {"W": (1.0, 0.0), "kW": (1e3, 0.0), "MW": (1e6, 0.0)})
_TEMPERATURE = _Quantity("K", {"K": 1}, {"K": (1.0, 0.0), "degC": (1.0, 273.15)})
_RATIO = _Quantity("1", {}, {"1": (1.0, 0.0), "-": (1.0, 0.0)})
_BASE_UNITS = ("kg", "m", "s", "A", "K", "mol", "cd", "rad")


def resolve(path: object, description: Any, mapping: FmuMapping) -> Channels:
    """Find the mapped variables in an FMU.

    Args:
        path: path of the FMU, for errors.
        description: FMPy's ``ModelDescription``.
        mapping: the variable names.

    Raises:
        CoolingPlantError: a variable is missing, not a scalar real, not settable, or has a unit of another quantity.
    """
    notes: list[str] = []

    def channel(name: str, quantity: _Quantity, *, is_input: bool) -> Channel:
        variable = find_variable(path, description, name)
        if is_input != (variable.causality == "input"):
            wanted = "an input" if is_input else "an output"
            raise CoolingPlantError(f"{path}: variable {name} is {variable.causality}, but {wanted} is needed")
        factor, offset, note = _conversion(path, description, variable, quantity)
        notes.extend([note] if note else [])
        return Channel(name, variable.valueReference, factor, offset, variable.variability == "discrete")

    return Channels(
        inputs=(
            channel(mapping.it_w, _POWER, is_input=True),
            channel(mapping.outdoor_k, _TEMPERATURE, is_input=True),
        ),
        outputs=(
            channel(mapping.cooling_w, _POWER, is_input=False),
            channel(mapping.room_k, _TEMPERATURE, is_input=False),
            channel(mapping.cop, _RATIO, is_input=False),
        ),
        notes=tuple(notes),
    )


def find_variable(path: object, description: Any, name: str) -> Any:
    """The scalar real variable called `name`.

    Raises:
        CoolingPlantError: no such variable; the message lists similar names, or else all inputs and outputs.
    """
    variables = {variable.name: variable for variable in description.modelVariables}
    if name not in variables:
        near = get_close_matches(name, variables, n=3)
        ports = [v.name for v in variables.values() if v.causality in {"input", "output"}]
        hint = f"close: {', '.join(near)}" if near else f"inputs and outputs: {', '.join(ports) or 'none'}"
        raise CoolingPlantError(f"{path}: no variable {name} ({hint})")
    variable = variables[name]
    if variable.type not in {"Real", "Float64"} or variable.dimensions:
        raise CoolingPlantError(f"{path}: variable {name} is not a scalar Real or Float64, but {variable.type}")
    return variable


def declared_unit(variable: Any) -> str | None:
    """The unit of a variable, its own or its type's."""
    unit = variable.unit or (variable.declaredType.unit if variable.declaredType else None)
    return str(unit) if unit else None


def _conversion(path: object, description: Any, variable: Any, quantity: _Quantity) -> tuple[float, float, str | None]:
    """Factor and offset to the quantity's unit, with a note if a unit was assumed or converted."""
    unit = declared_unit(variable)
    if unit is None:
        return 1.0, 0.0, f"{variable.name} declares no unit: taken as {quantity.unit}"
    base = next((item.baseUnit for item in description.unitDefinitions if item.name == unit), None)
    if base is None and unit in quantity.known:
        factor, offset = quantity.known[unit]
    elif base is not None and _exponents(base) == quantity.exponents:
        factor, offset = float(base.factor), float(base.offset)
    else:
        raise CoolingPlantError(
            f"{path}: variable {variable.name} has unit {unit}, which cannot be converted to {quantity.unit}"
        )
    note = (
        None if (factor, offset) == (1.0, 0.0) else f"{variable.name} is converted between {unit} and {quantity.unit}"
    )
    return factor, offset, note


def _exponents(base: Any) -> dict[str, int]:
    return {name: int(getattr(base, name)) for name in _BASE_UNITS if int(getattr(base, name)) != 0}
