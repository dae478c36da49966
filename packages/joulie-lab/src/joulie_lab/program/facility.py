"""Facility of a run: opens its cooling plant, and reads carbon intensity and price."""

from __future__ import annotations

import asyncio
from math import inf
from pathlib import Path

from joulie.adapters.grid.files import FileOptions, TableFile
from joulie.domain.grid.series import Series, constant
from joulie.domain.grid.signals import Measure
from joulie.domain.units import SECONDS_PER_HOUR
from joulie.ports.grid import GridSourceError
from joulie_lab.simulation.cooling_plant import CoolingPlant
from joulie_lab.simulation.experiment.scenario import Experiment
from joulie_lab.simulation.runner import built_in_plant
from joulie_lab.simulation.scenario import Cooling

_ANY_ZONE = ""


class GridFileError(ValueError):
    """A grid file of an experiment cannot be used; the message says why."""


def open_plant(cooling: Cooling, peak_w: float) -> CoolingPlant | None:
    """Open the cooling plant of a run, of the kind that the scenario names.

    Args:
        cooling: cooling section of the scenario.
        peak_w: power of all nodes at full load, W.

    Raises:
        CoolingPlantError: the FMU cannot be used.
    """
    fmu = cooling.fmu
    if fmu is None:
        return built_in_plant(cooling, peak_w)
    from joulie_lab.adapters.fmu import FmuMapping, FmuPlant  # FMPy takes a while to import

    mapping = FmuMapping(**fmu.inputs.model_dump(), **fmu.outputs.model_dump())
    return FmuPlant(Path(fmu.file), mapping, fmu.parameters, fmu.step_s)


def intensity_g_per_kwh(experiment: Experiment) -> Series | None:
    """Carbon intensity over the run from 0 s on, gCO2eq/kWh; None if the experiment names none.

    Raises:
        GridFileError: the file cannot be used, or ends before the run does.
    """
    grid, length_s = experiment.grid, _length_s(experiment)
    if grid.intensity_file is None:
        return None if grid.intensity_g_per_kwh is None else constant(grid.intensity_g_per_kwh, 0.0, length_s)
    file = TableFile(Path(grid.intensity_file), FileOptions(), Measure.CARBON, None, _ANY_ZONE, lambda: inf)
    try:
        found = asyncio.run(file.history(_ANY_ZONE, -inf, inf))
    except GridSourceError as error:
        raise GridFileError(f"grid.intensity_file: {error}") from error
    assert found is not None
    series = Series(found.starts_s - found.start_s, found.values, found.end_s - found.start_s)
    if not series.covers(0.0, length_s):
        raise GridFileError(
            f"grid.intensity_file: {grid.intensity_file} covers {series.end_s / SECONDS_PER_HOUR:g} h of a run of"
            f" {length_s / SECONDS_PER_HOUR:g} h"
        )
    return series


def price_per_kwh(experiment: Experiment) -> Series | None:
    """Price over the run, currency/kWh; None if the experiment names none."""
    price = experiment.grid.price_per_kwh
    return None if price is None else constant(price, 0.0, _length_s(experiment))


def _length_s(experiment: Experiment) -> float:
    return (experiment.hours + experiment.drain_hours) * SECONDS_PER_HOUR
