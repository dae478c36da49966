"""The port for cooling plants: facility models that are co-simulated with a run."""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple, Protocol, Self


class CoolingOutput(NamedTuple):
    """Output of a cooling plant at the end of a step."""

    cooling_w: float
    """Electrical power of the plant, W."""
    room_k: float
    """Temperature of the room, K."""
    cop: float
    """Heat removed over electrical power, dimensionless."""


class CoolingPlantError(RuntimeError):
    """A plant cannot be used or failed while running; the message says why and what to do."""


class CoolingPlant(Protocol):
    """A cooling plant stepped through time (co-simulation).

    A plant carries state (the room's temperature), so one instance serves one run. `step` covers `dt_s` seconds with
    constant inputs and returns the outputs at the end of the step. It raises `CoolingPlantError`.
    """

    def step(self, it_w: float, outdoor_k: float, dt_s: float) -> CoolingOutput:
        """Advance by `dt_s` seconds under `it_w` watts of heat at an outdoor temperature of `outdoor_k` kelvin."""
        ...

    def __enter__(self) -> Self:
        """Start the plant at its initial state."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Release the plant's resources, even after a failure."""
        ...
