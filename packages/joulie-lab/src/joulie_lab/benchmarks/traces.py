"""Benchmark traces: energy savings of caps and policies in the shipped experiments, on held-out seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from joulie_lab.benchmarks.results import Estimate, Figures
from joulie_lab.simulation.experiment.compare import PER_WORK, Record, compare
from joulie_lab.simulation.experiment.files import load_experiment
from joulie_lab.simulation.experiment.plan import PhysicsChoice, RunKey, choices, run_keys
from joulie_lab.simulation.experiment.scenario import Experiment, Physics
from joulie_lab.simulation.model_files import Setting


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        names: shipped experiments.
        sets: overrides of each.
        frontier: the one of them whose D is also run with other bounds of slowdown.
    """

    names: tuple[str, ...]
    sets: tuple[str, ...] = ()
    frontier: str = "hetero-41"

    def experiments(self, seeds: tuple[int, ...] | None = None) -> list[Experiment]:
        """The experiments, with other seeds where they are given."""
        settings = [] if seeds is None else [Setting(("seeds",), list(seeds), "--seeds")]
        return [load_experiment(name, self.sets, settings) for name in self.names]


FULL = Plan(("hetero-41", "h100-41", "cpu-only-40"))
SMALL = Plan(("quick",), ("hours=0.25", "drain_hours=0.5", "physics.idle_states=[all, managed]"))


BOUNDS = (1.02, 1.05, 1.1, 1.15, 1.25)
"""Bounds of the slowdown of standard jobs that D is run with."""
_BOUND = "ENERGY_SLOWDOWN_BOUND_STANDARD"
BOUNDED = "D"
_FRONTIER_SEEDS = 2


def bounded(experiment: Experiment) -> Experiment:
    """The first variant, and D with each bound, under the first assumption, with the first seeds."""
    ours = next(variant for variant in experiment.variants if variant.name == BOUNDED)
    variants = [
        ours.model_copy(update={"name": bounded_name(bound), "operator": {**ours.operator, _BOUND: f"{bound:g}"}})
        for bound in BOUNDS
    ]
    return experiment.model_copy(
        update={
            "name": f"{experiment.name}-bounds",
            "variants": (experiment.variants[0], *variants),
            "physics": Physics(),
            "seeds": experiment.seeds[:_FRONTIER_SEEDS],
        }
    )


def bounded_name(bound: float) -> str:
    """The name of D with a bound, by how much longer it lets jobs run, %; ranges cannot name what has a dot in it."""
    return f"{BOUNDED}-{round((bound - 1.0) * 100.0)}"


def reported_runs(experiment: Experiment) -> list[RunKey]:
    """The runs that the tables show: each other assumption by itself, and twins without caps under the first alone."""
    first = choices(experiment.physics)[0]
    twins = {variant.name for variant in experiment.variants if variant.without_caps is not None}

    def shown(key: RunKey) -> bool:
        others = sum(ours != usual for ours, usual in zip(key.physics, first, strict=True))
        return others == 0 or (others == 1 and key.variant not in twins)

    return [key for key in run_keys(experiment) if shown(key)]


class PartFigures(Figures, frozen=True):
    """Savings of a variant by cause, percentage points of the baseline's energy per unit of work."""

    variant: str
    idle_states: str
    gpu_throughput: str
    seeds: int
    total: Estimate | None
    placement: Estimate | None
    caps: Estimate | None
    idle: Estimate | None


class VariantFigures(Figures, frozen=True):
    """A variant under one assumption, over the seeds."""

    variant: str
    idle_states: str
    gpu_throughput: str
    seeds: int
    equal_work: bool
    work_pct: float | None
    values: Mapping[str, Estimate | None]
    saved_pct: Mapping[str, Estimate | None]
    parts: PartFigures | None

    @property
    def saved(self) -> Estimate | None:
        """Energy per unit of work, saved against the baseline, %."""
        return self.saved_pct[PER_WORK]


class ExperimentFigures(Figures, frozen=True):
    """One experiment, by physics and variant."""

    baseline: str
    figures: Mapping[str, Mapping[str, VariantFigures]]


class TracesResult(Figures, frozen=True):
    """The result, by experiment; the frontier has D with other bounds of slowdown."""

    experiments: Mapping[str, ExperimentFigures]
    frontier: ExperimentFigures | None = None


def summarise(experiment: Experiment, records: Iterable[Record]) -> ExperimentFigures:
    """The figures of one experiment, by physics and variant, so that ranges can name them.

    Args:
        experiment: that was run.
        records: its finished runs.
    """
    comparison = compare(experiment, records)
    parts = {(part.variant, part.physics): part.as_dict() for part in comparison.parts}
    figures: dict[str, dict[str, VariantFigures]] = {}
    for result in comparison.results:
        found = result.as_dict() | {"parts": parts.get((result.variant, result.physics))}
        of_physics = figures.setdefault(physics_name(result.physics), {})
        of_physics[result.variant] = msgspec.convert(msgspec.to_builtins(found), VariantFigures)
    return ExperimentFigures(comparison.baseline, figures)


def physics_name(physics: PhysicsChoice) -> str:
    """How figures are found: ``all-measured``."""
    return f"{physics.idle_states}-{physics.gpu_throughput}"
