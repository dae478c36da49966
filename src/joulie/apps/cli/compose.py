"""The simulation put together with the adapters that the command line brings."""

from __future__ import annotations

from time import perf_counter

from joulie.adapters.job_table import read_job_table
from joulie.apps.experiment.surroundings import open_plant
from joulie.simulation.runner import Runner
from joulie.simulation.scenario import Scenario


def runner(scenario: Scenario) -> Runner:
    """A runner that reads job tables, runs FMUs and looks at the clock."""
    return Runner(scenario, clock=perf_counter, read_jobs=read_job_table, open_plant=open_plant)
