"""Jobs of a run: the same for every variant of a seed, natively and on a control plane."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from joulie.domain.units import SECONDS_PER_HOUR
from joulie_lab.adapters.job_trace import load_jobs
from joulie_lab.simulation.experiment.scenario import Experiment
from joulie_lab.simulation.native.nodes import sim_nodes
from joulie_lab.simulation.native.pinning import pinned
from joulie_lab.simulation.trace import TraceJob
from joulie_lab.simulation.workloads.generator import generate
from joulie_lab.simulation.workloads.recurrence import recurring

_DIGEST_DIGITS = 16


@dataclass(frozen=True)
class Jobs:
    """Jobs of a run.

    Attributes:
        jobs: jobs submitted within the experiment's hours, in order of submission.
        notes: notes on what was left out, and why.
        digest: checksum of the jobs.
    """

    jobs: tuple[TraceJob, ...]
    notes: tuple[str, ...]
    digest: str


def trace_jobs(experiment: Experiment, seed: int) -> Jobs:
    """Read or generate the jobs of an experiment with one seed.

    Raises:
        JobTraceError: the trace cannot be read, or has invalid lines that are not to be skipped.
    """
    workload = experiment.workload
    if workload.trace is None:
        assert workload.generate is not None
        return _jobs(_placed(generate(workload.generate, seed, experiment.hours), experiment, seed), experiment, ())
    loaded = load_jobs(Path(workload.trace), skip_bad_lines=workload.skip_bad_lines)
    notes = tuple(f"left out: {problem}" for problem in loaded.problems)
    ordered = sorted(loaded.jobs, key=lambda job: job.submit_s)
    return _jobs(_placed(ordered, experiment, seed), experiment, notes)


def _placed(jobs: Iterable[TraceJob], experiment: Experiment, seed: int) -> list[TraceJob]:
    """The jobs, with runs of earlier ones among them and bound to GPU models where the experiment says so."""
    placed = list(jobs)
    if experiment.workload.repeats > 0.0:
        placed = recurring(placed, experiment.workload.repeats, seed)
    return pinned(placed, sim_nodes(experiment.cluster.groups), seed) if experiment.gpu_work == "pinned" else placed


def _jobs(jobs: list[TraceJob], experiment: Experiment, notes: tuple[str, ...]) -> Jobs:
    in_time = tuple(job for job in jobs if job.submit_s < experiment.hours * SECONDS_PER_HOUR)
    if late := len(jobs) - len(in_time):
        notes = (*notes, f"{late:,} jobs are submitted after the first {experiment.hours:g} h and were not played")
    digest = hashlib.sha256()
    for job in in_time:
        digest.update(repr(job).encode())
    return Jobs(in_time, notes, digest.hexdigest()[:_DIGEST_DIGITS])
