"""Workloads that are run again and again, as most of a cluster's are.

In Alibaba's PAI trace some 65 % of tasks belong to groups that ran at least five times in two months (Weng et al.,
NSDI'22).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from joulie_lab.simulation.trace import JobProfile, TraceJob


def recurring(jobs: Iterable[TraceJob], share: float, seed: int) -> list[TraceJob]:
    """The jobs, some workloads with GPUs made into another run of an earlier one.

    Such a run has the owner of the earlier one, uses its resources as that one did and so responds to power limits as
    that one does; its duration stays its own. The earlier one is drawn among those of the same family and size.

    Args:
        jobs: in order of submission.
        share: of the workloads that have an earlier one, 0..1.
        seed: of the draws.
    """
    workloads: defaultdict[str, list[TraceJob]] = defaultdict(list)
    for job in jobs:
        workloads[job.workload_id].append(job)
    rng = np.random.default_rng([seed, 17])
    known: defaultdict[tuple[object, ...], list[TraceJob]] = defaultdict(list)
    found: list[TraceJob] = []
    for drawn in workloads.values():
        pods = drawn
        first = next((pod for pod in pods if pod.shape.gpus), None)
        if first is not None:
            earlier = known[first.workload_type, first.shape.gpus, len(pods), first.is_performance]
            if earlier and rng.random() < share:
                before = earlier[int(rng.integers(len(earlier)))]
                pods = [_run_of(pod, before.owner or before.workload_id, before.profile) for pod in pods]
            else:
                earlier.append(first)
        found += pods
    return sorted(found, key=lambda job: job.submit_s)


def _run_of(job: TraceJob, owner: str, profile: JobProfile) -> TraceJob:
    """A job that uses its resources as another profile says, for as long as it would have run."""

    def scaled(units: float, new: float, old: float) -> float:
        return units * new / old if old > 0.0 else units

    return replace(
        job,
        owner=owner,
        profile=profile,
        cpu_units=scaled(job.cpu_units, profile.cpu_utilization, job.profile.cpu_utilization),
        gpu_units=scaled(job.gpu_units, profile.gpu_utilization, job.profile.gpu_utilization),
    )
