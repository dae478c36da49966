"""The simulation put together with the adapters that the command line brings."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

from joulie.adapters.job_table import read_job_table
from joulie.ports import CoolingPlant
from joulie.simulation.runner import Runner, built_in_plant
from joulie.simulation.scenario import Scenario


def runner(scenario: Scenario) -> Runner:
    """A runner that reads job tables, runs FMUs and looks at the clock."""
    return Runner(scenario, clock=perf_counter, read_jobs=read_job_table, open_plant=open_plant)


def open_plant(scenario: Scenario) -> CoolingPlant | None:
    """The cooling plant of a run, whichever kind the scenario names.

    Raises:
        CoolingPlantError: the FMU cannot be used.
    """
    fmu = scenario.cooling.fmu
    if fmu is None:
        return built_in_plant(scenario)
    from joulie.adapters.fmu import FmuMapping, FmuPlant  # FMPy takes a while to import

    mapping = FmuMapping(**fmu.inputs.model_dump(), **fmu.outputs.model_dump())
    return FmuPlant(Path(fmu.file), mapping, fmu.parameters, fmu.step_s)
