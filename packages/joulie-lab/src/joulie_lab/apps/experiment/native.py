"""Native runs of an experiment: builds the runtime's setup from a variant, and executes it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from time import perf_counter
from typing import NamedTuple

from joulie import __version__
from joulie.domain.units import SECONDS_PER_HOUR
from joulie_lab.adapters.executors import ExecutorError
from joulie_lab.apps.experiment.artefacts import FinishedRun, Provenance
from joulie_lab.apps.experiment.jobs import Jobs, trace_jobs
from joulie_lab.apps.experiment.settings import build_control, build_limits
from joulie_lab.program.facility import intensity_g_per_kwh, open_plant, price_per_kwh
from joulie_lab.simulation.experiment.outcome import Outcome
from joulie_lab.simulation.experiment.plan import PhysicsChoice, RunKey
from joulie_lab.simulation.experiment.scenario import Experiment, Variant
from joulie_lab.simulation.native.nodes import sim_nodes
from joulie_lab.simulation.native.runtime import OnProgress, Setup, run


class NativeWork(NamedTuple):
    """A run, serialised for a worker."""

    experiment_json: str
    key: RunKey
    version: str = __version__


def play(work: NativeWork) -> FinishedRun:
    """Execute a run in this process.

    Raises:
        ExecutorError: the worker has another version of Joulie than the caller.
        ValueError: the run failed; the message says why.
    """
    if work.version != __version__:
        raise ExecutorError(f"a worker has joulie {__version__}, this is {work.version}; install the same on both")
    experiment = _experiment(work.experiment_json)
    variants = {variant.name: variant for variant in experiment.variants}
    jobs = _jobs(work.experiment_json, work.key.seed)
    started = perf_counter()
    outcome = run_native(experiment, variants[work.key.variant], work.key.seed, work.key.physics, jobs=jobs)
    return FinishedRun(work.key, outcome, Provenance("native", jobs.digest, perf_counter() - started))


def run_native(
    experiment: Experiment,
    variant: Variant,
    seed: int,
    physics: PhysicsChoice,
    *,
    jobs: Jobs | None = None,
    on_progress: OnProgress | None = None,
) -> Outcome:
    """Run one variant of an experiment natively.

    Args:
        experiment: the experiment.
        variant: the variant to run.
        seed: seed of generated jobs, of the weather and of the scheduler's ties.
        physics: physics assumptions.
        jobs: jobs of the seed; None to read or generate them.
        on_progress: called with (simulated seconds done, simulated seconds in total).

    Raises:
        ValueError: the run failed; the message says why.
        CoolingPlantError: the plant cannot be used, or failed during the run.
    """
    jobs = jobs or trace_jobs(experiment, seed)
    arrivals_s = experiment.hours * SECONDS_PER_HOUR
    setup = Setup(
        nodes=sim_nodes(experiment.cluster.groups),
        duration_s=arrivals_s + experiment.drain_hours * SECONDS_PER_HOUR,
        arrivals_s=arrivals_s,
        control=build_control(variant, experiment.control) if variant.joulie else None,
        scheduler=variant.scheduler,
        times=experiment.control,
        idle_states=physics.idle_states,
        gpu_throughput=physics.gpu_throughput,
        gpu_limits=build_limits(variant, experiment.control) if variant.joulie else None,
        gpu_limit_pct=variant.gpu_limit_pct,
        gpu_scheme=variant.gpu_scheme,
        gpu_speeds=experiment.gpu_work == "speeds",
        climate=experiment.climate,
        plant=partial(open_plant, experiment.cooling),
        seed=seed,
        intensity_g_per_kwh=intensity_g_per_kwh(experiment),
        price_per_kwh=price_per_kwh(experiment),
    )
    outcome = run(setup, jobs.jobs, on_progress)
    return replace(outcome, notes=(*jobs.notes, *outcome.notes))


@lru_cache(maxsize=1)
def _experiment(text: str) -> Experiment:
    return Experiment.model_validate_json(text)


@lru_cache(maxsize=1)
def _jobs(text: str, seed: int) -> Jobs:
    """Jobs of a seed, cached: runs are ordered by seed, so a worker builds most jobs only once."""
    return trace_jobs(_experiment(text), seed)
