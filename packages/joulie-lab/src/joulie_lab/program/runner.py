"""Builds the simulation runner with the adapters of the command line."""

from __future__ import annotations

from time import perf_counter

from joulie_lab.adapters.job_table import read_job_table
from joulie_lab.program.facility import open_plant
from joulie_lab.simulation.runner import Runner
from joulie_lab.simulation.scenario import Scenario


def runner(scenario: Scenario) -> Runner:
    """Build a runner that can read job tables, run FMUs and measure wall time."""
    return Runner(scenario, clock=perf_counter, read_jobs=read_job_table, open_plant=open_plant)
