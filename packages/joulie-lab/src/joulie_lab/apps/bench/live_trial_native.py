"""The trial of `joulie bench live-trial` in the native runtime: every joule is known, and so is what is to be found."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from joulie.domain.policies import StaticPartition
from joulie.domain.policy import PolicySettings
from joulie.domain.recording import Period
from joulie.domain.trial.measure import Metered
from joulie.domain.trial.protocol import Arm, Protocol
from joulie.domain.units import SECONDS_PER_HOUR, ZERO_CELSIUS_K, FloatArray
from joulie_lab.apps.trial.result import TrialReport, report
from joulie_lab.benchmarks.recorded_week import node_record, pod_record
from joulie_lab.simulation.experiment.outcome import Outcome
from joulie_lab.simulation.live.fleet import LiveFleet
from joulie_lab.simulation.native.control import Control
from joulie_lab.simulation.native.nodes import SimNode
from joulie_lab.simulation.native.runtime import Sample, Setup, run
from joulie_lab.simulation.schedulers import KUBE
from joulie_lab.simulation.trace import TraceJob

MAX_BOTH_ARMS = 0.25
"""Share of the work by pods that ran under both arms beyond which no saving is given."""
_ALL_ECO = StaticPartition(PolicySettings(static_hp_frac=0.0))
_STEP_S = 60.0
_AMBIENT_K = ZERO_CELSIUS_K + 22.0


@dataclass(frozen=True)
class Truth:
    """What enforcing all nodes does to the jobs, by the native runtime."""

    saved: float
    slowdown: float
    idle_share: float


def truth_of(nodes: Sequence[SimNode], jobs: Sequence[TraceJob]) -> Truth:
    """Run all jobs with no node and with all nodes enforced."""
    duration_s = jobs[-1].submit_s + SECONDS_PER_HOUR

    def played(control: Control | None) -> Outcome:
        return run(
            Setup(nodes=tuple(nodes), duration_s=duration_s, control=control, scheduler=KUBE, n_samples=100), jobs
        )

    free, capped = played(None), played(Control(_ALL_ECO))
    idle_w = float(LiveFleet([node.spec for node in nodes], ambient_k=_AMBIENT_K).wall_w.sum())
    return Truth(
        saved=1.0 - capped.it_j / free.it_j,
        slowdown=_mean_run_s(capped) / _mean_run_s(free),
        idle_share=idle_w * duration_s / free.it_j,
    )


def _mean_run_s(outcome: Outcome) -> float:
    return float(
        np.mean([one.end_s - one.start_s for one in outcome.jobs if one.end_s is not None and one.start_s is not None])
    )


def native_trial(nodes: Sequence[SimNode], jobs: Sequence[TraceJob], protocol: Protocol, late_s: float) -> TrialReport:
    """Run a trial as `joulie bench live-trial` does, and report it.

    Args:
        nodes: the nodes.
        jobs: what runs on them.
        protocol: the draw; times are s after the start of the run.
        late_s: time from the beginning of a block until its nodes are switched, s.
    """
    steps = int(protocol.end_s // _STEP_S) + 2
    node_j: list[FloatArray] = []

    def enforced(now_s: float) -> Collection[str]:
        arms = protocol.arms_at(now_s - late_s)
        return {name for name, arm in arms.items() if arm is Arm.TREATMENT}

    def keep(sample: Sample) -> None:
        node_j.append(sample.node_j.copy())

    setup = Setup(
        nodes=tuple(nodes),
        duration_s=steps * _STEP_S,
        control=Control(_ALL_ECO, enforced=enforced),
        scheduler=KUBE,
        n_samples=steps + 1,
    )
    outcome = run(setup, jobs, on_sample=keep)
    by_id = {job.job_id: job for job in jobs}
    period = Period(0.0, setup.duration_s)
    pods = [pod_record(one, by_id[one.job_id], period) for one in outcome.jobs if one.start_s is not None]
    power_w = np.diff(np.array(node_j).T, axis=1) / _STEP_S
    return report(
        "trial", protocol, pods, Metered([node_record(node) for node in nodes], 0.0, _STEP_S, power_w), MAX_BOTH_ARMS
    )
