"""Plan of an experiment: one run for every variant, seed and combination of physics assumptions."""

from __future__ import annotations

from typing import NamedTuple

from joulie_lab.simulation.experiment.scenario import Experiment, Physics, Throughput
from joulie_lab.simulation.job_response import IdleStates


class PhysicsChoice(NamedTuple):
    """Physics assumptions of a run.

    Attributes:
        idle_states: which nodes enter deep idle states.
        gpu_throughput: model of how GPU work slows under a power limit, ``measured`` or ``published``.
    """

    idle_states: IdleStates = IdleStates.ALL
    gpu_throughput: Throughput = "measured"

    def __str__(self) -> str:
        """In words, for titles."""
        return f"deep idle {self.idle_states}, GPU curves {self.gpu_throughput}"


class RunKey(NamedTuple):
    """Identifies a run of an experiment."""

    variant: str
    seed: int
    physics: PhysicsChoice

    @property
    def folder(self) -> str:
        """Name of the folder of its artefacts."""
        return f"{self.variant}-seed{self.seed}-{self.physics.idle_states}-{self.physics.gpu_throughput}"

    def __str__(self) -> str:
        """In words, for progress and errors."""
        return f"{self.variant}, seed {self.seed}, {self.physics}"


def choices(physics: Physics) -> list[PhysicsChoice]:
    """All combinations of the physics assumptions, in their order."""
    return [PhysicsChoice(idle, curve) for curve in physics.gpu_throughput for idle in physics.idle_states]


def run_keys(experiment: Experiment) -> list[RunKey]:
    """All runs, seed by seed, so that runs that are compared finish together."""
    return [
        RunKey(variant.name, seed, physics)
        for physics in choices(experiment.physics)
        for seed in experiment.seeds
        for variant in experiment.variants
    ]
