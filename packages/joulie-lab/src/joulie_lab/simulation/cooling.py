"""The built-in cooling plants, and co-simulation of a plant with a run.

Built-in plants and FMUs are stepped through time behind the same port, `CoolingPlant`.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from types import TracebackType
from typing import Self

import numpy as np

from joulie.domain.cooling_stress import linear_cooling_stress
from joulie.domain.twin import estimated_pue
from joulie.domain.units import FloatArray, InvalidQuantityError, joules_to_kwh, non_negative, positive
from joulie_lab.simulation.cooling_plant import CoolingOutput, CoolingPlant
from joulie_lab.simulation.dx_plant import DxParameters, dx_flows, dx_room_after
from joulie_lab.simulation.results import CoolingSeries


class _BuiltInPlant:
    """Context manager of a plant without external resources."""

    def __enter__(self) -> Self:
        self.reset()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Nothing to release."""

    def reset(self) -> None:
        """Return to the initial state."""


class LinearPlant(_BuiltInPlant):
    """Stateless proxy: the twin's estimate for a facility without meters.

    Overhead grows linearly with cooling stress, from a PUE of 1.05 to 1.40 (see `joulie.domain.twin.estimated_pue`).
    It gives an order of magnitude, with provenance `assumed`; it models neither the room nor an economizer.
    """

    def __init__(self, rated_it_w: float, room_k: float = 298.15) -> None:
        """Size the plant.

        Args:
            rated_it_w: IT power at which the plant is fully stressed at 20 degC, W; a cluster's peak power.
            room_k: temperature reported for the room, K.

        Raises:
            InvalidQuantityError: an argument is not above zero.
        """
        self._rated_it_w = float(positive("rated_it_w", rated_it_w))
        self._room_k = float(positive("room_k", room_k))

    def step(self, it_w: float, outdoor_k: float, dt_s: float) -> CoolingOutput:
        """Output for these inputs; independent of the step length."""
        _check_inputs(it_w, outdoor_k, dt_s)
        overhead = float(self._overhead(np.float64(it_w), np.float64(outdoor_k)))
        return CoolingOutput(cooling_w=it_w * overhead, room_k=self._room_k, cop=1.0 / overhead)

    def series(self, it_w: FloatArray, outdoor_k: FloatArray) -> CoolingSeries:
        """The outputs of `CoSimulation` over these inputs, vectorised: the plant has no state to step through."""
        overhead = self._overhead(it_w, outdoor_k)
        lagged = np.concatenate(([0], np.arange(len(it_w) - 1)))
        return CoolingSeries(
            outdoor_k=outdoor_k,
            room_k=np.full(len(it_w), self._room_k),
            cooling_w=(it_w * overhead)[lagged],
            cop=(1.0 / overhead)[lagged],
        )

    def _overhead(self, it_w: FloatArray | np.float64, outdoor_k: FloatArray | np.float64) -> FloatArray:
        return np.asarray(estimated_pue(linear_cooling_stress(it_w, self._rated_it_w, outdoor_k)) - 1.0)


class DxPlant(_BuiltInPlant):
    """The published DX plant with airside economizer; see `joulie_lab.simulation.dx_plant`."""

    def __init__(self, parameters: DxParameters | None = None) -> None:
        self.parameters = parameters or DxParameters()
        self.reset()

    def reset(self) -> None:
        """Return the room to its start temperature."""
        self._room_k = self.parameters.start_k

    def step(self, it_w: float, outdoor_k: float, dt_s: float) -> CoolingOutput:
        """Advance the room by `dt_s` and report the plant at the end of the step.

        Raises:
            InvalidQuantityError: an input is not finite or out of range.
        """
        _check_inputs(it_w, outdoor_k, dt_s)
        self._room_k = float(dx_room_after(self.parameters, it_w, outdoor_k, self._room_k, dt_s))
        flows = dx_flows(self.parameters, it_w, outdoor_k, self._room_k)
        return CoolingOutput(float(flows.cooling_w), self._room_k, float(flows.cop))


class CoSimulation:
    """Co-simulation of a plant and a run: inputs and outputs are exchanged at the communication points.

    At the time of a step the plant has seen the inputs up to then: `exchange` returns for step k the output of the
    plant step that ended there, under the inputs of step k - 1. Step 0 shows the plant's first output. This convention
    reproduces the mean PUE, COP and cooling energy that the public plant gives for the published runs.
    """

    def __init__(self, plant: CoolingPlant, dt_s: float) -> None:
        self._plant = plant
        self._dt_s = dt_s
        self._latest: CoolingOutput | None = None

    def exchange(self, it_w: float, outdoor_k: float) -> CoolingOutput:
        """Pass the inputs of a step to the plant, advance it, and return the output valid in that step."""
        following = self._plant.step(it_w, outdoor_k, self._dt_s)
        current = self._latest or following
        self._latest = following
        return current


def run_plant(plant: CoolingPlant, it_w: FloatArray, outdoor_k: FloatArray, dt_s: float) -> CoolingSeries:
    """Compute the cooling of a finished run: `CoSimulation` over its series.

    Args:
        plant: a plant that is not running; it is started and released here, even after a failure.
        it_w: IT power of each step, W, shape ``(n_steps,)``.
        outdoor_k: outdoor temperature of each step, K, shape ``(n_steps,)``.
        dt_s: length of a step, s.

    Raises:
        InvalidQuantityError: an input is not finite or out of range, or the shapes differ.
        CoolingPlantError: the plant cannot be used, or failed during the run.
    """
    it_w, outdoor_k = non_negative("it_w", it_w), positive("outdoor_k", outdoor_k)
    positive("dt_s", dt_s)
    if it_w.ndim != 1 or it_w.shape != outdoor_k.shape:
        raise InvalidQuantityError("outdoor_k", f"must have one value per step, got {outdoor_k.shape} for {it_w.shape}")
    if isinstance(plant, LinearPlant):
        return plant.series(it_w, outdoor_k)
    return co_simulate(plant, it_w.tolist(), outdoor_k, dt_s)


def co_simulate(plant: CoolingPlant, it_w: Iterable[float], outdoor_k: FloatArray, dt_s: float) -> CoolingSeries:
    """Compute the cooling of a run while it is simulated: `CoSimulation` over a stream of IT power.

    Args:
        plant: a plant that is not running; it is started and released here, even after a failure.
        it_w: IT power of each step, W; iterated one step at a time, so that it may be computed lazily.
        outdoor_k: outdoor temperature of each step, K, shape ``(n_steps,)``.
        dt_s: length of a step, s.

    Raises:
        InvalidQuantityError: an input is not finite or out of range.
        CoolingPlantError: the plant cannot be used, or failed during the run.
    """
    with plant:
        exchange = CoSimulation(plant, dt_s).exchange
        rows = [exchange(power_w, air_k) for power_w, air_k in zip(it_w, outdoor_k.tolist(), strict=True)]
    cooling_w, room_k, cop = np.array(rows, dtype=np.float64).reshape(-1, 3).T.copy()
    return CoolingSeries(outdoor_k=outdoor_k, room_k=room_k, cooling_w=cooling_w, cop=cop)


def mean_pue(it_w: FloatArray, cooling_w: FloatArray) -> float:
    """Mean over the steps of (IT + cooling) / IT, the published definition: a mean of ratios, not a ratio of energies.

    Raises:
        InvalidQuantityError: a step without IT power, where PUE has no meaning.
    """
    return float(np.mean(1.0 + non_negative("cooling_w", cooling_w) / positive("it_w", it_w)))


def mean_cop(series: CoolingSeries) -> float | None:
    """Heat removed over electrical energy of the plant, both of the whole run; None without cooling energy.

    A ratio of sums: at low power a plant's COP of a step may reach hundreds, and a mean over steps would be of those.
    """
    total_w = float(np.sum(series.cooling_w))
    return float(np.sum(series.cop * series.cooling_w)) / total_w if total_w > 0.0 else None


def cooling_energy_kwh(series: CoolingSeries, dt_s: float) -> float:
    """Electrical energy of the plant over the run, kWh."""
    return joules_to_kwh(float(np.sum(series.cooling_w)) * dt_s)


def _check_inputs(it_w: float, outdoor_k: float, dt_s: float) -> None:
    """Raise for an invalid input. Plain comparisons come first, because every step runs this check."""
    if 0.0 <= it_w < inf and 0.0 < outdoor_k < inf and 0.0 < dt_s < inf:
        return
    non_negative("it_w", it_w)
    positive("outdoor_k", outdoor_k)
    positive("dt_s", dt_s)
