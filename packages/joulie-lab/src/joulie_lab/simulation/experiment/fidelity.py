"""Fidelity of native runs: how well a native run and one on a control plane with the same jobs agree.

The same functions decide in both, so the runs differ in timing: a real scheduler needs time to bind a pod, programs
poll, and pods are observed one after the other. The comparison shows how much that matters, and where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from joulie.domain.units import FloatArray, IntArray, joules_to_kwh
from joulie_lab.simulation.experiment.outcome import JobEnd, JobOutcome, Outcome, OutcomeSeries

ENERGY_TARGET_PCT = 3.0
WORK_TARGET_PCT = 1.0
_SAMPLES = 2000
_SAME_START_S = 60.0


class DifferentJobsError(ValueError):
    """The two runs have different jobs, nodes or lengths, so that they cannot be compared."""


class Row(NamedTuple):
    """A figure of both runs.

    Attributes:
        what: name of the figure, with its unit.
        native: value in the first run.
        other: value in the second run.
    """

    what: str
    native: float
    other: float

    @property
    def difference_pct(self) -> float | None:
        """Difference of the second from the first, %; None if the first is zero."""
        return None if self.native == 0.0 else (self.other / self.native - 1.0) * 100.0


@dataclass(frozen=True)
class StartDifferences:
    """Differences of job start times between the second and the first run; None if no job ran in both.

    Attributes:
        jobs: number of jobs that ran in both runs.
        only_native: number of jobs that ran only in the first run.
        only_other: number of jobs that ran only in the second run.
        median_s: median difference, s; positive if jobs started later in the second run.
        p95_abs_s: 95th percentile of the absolute differences, s.
        within_a_minute: share of the jobs whose start times differ by at most a minute.
        same_node: share of the jobs that ran on the same node.
        same_family: share of the jobs that ran on a node of the same family.
    """

    jobs: int
    only_native: int
    only_other: int
    median_s: float | None
    p95_abs_s: float | None
    within_a_minute: float | None
    same_node: float | None
    same_family: float | None


@dataclass(frozen=True)
class Fidelity:
    """Differences of the second run from the first, both with the same jobs.

    Attributes:
        energy_pct: difference of the energy of all nodes, %.
        cpu_work_pct: difference of the CPU work done, %; None if the first run did none.
        gpu_work_pct: difference of the GPU work done, %; None if the first run did none.
        node_correlation: Pearson's r of the energy of nodes; None if all are equal.
        node_correlation_in_family: Pearson's r of each node's deviation from the mean of its family, which hardware
            alone does not cause.
        node_error_pct: mean absolute difference of the energy of a node, %.
        power_error_pct: mean absolute difference of the cluster's power over time, % of its mean.
        starts: differences of job start times.
        families: energy by node family, kWh.
        explanation: figures that may explain the differences.
    """

    energy_pct: float
    cpu_work_pct: float | None
    gpu_work_pct: float | None
    node_correlation: float | None
    node_correlation_in_family: float | None
    node_error_pct: float
    power_error_pct: float
    starts: StartDifferences
    families: tuple[Row, ...]
    explanation: tuple[Row, ...]

    @property
    def work_pct(self) -> float:
        """Maximum absolute difference of CPU and GPU work, %."""
        return max((abs(pct) for pct in (self.cpu_work_pct, self.gpu_work_pct) if pct is not None), default=0.0)

    @property
    def holds(self) -> bool:
        """Whether both targets are met."""
        return abs(self.energy_pct) <= ENERGY_TARGET_PCT and self.work_pct <= WORK_TARGET_PCT

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        rows = {
            name: [{**row._asdict(), "difference_pct": row.difference_pct} for row in getattr(self, name)]
            for name in ("families", "explanation")
        }
        return {**asdict(self), **rows, "work_pct": self.work_pct, "holds": self.holds}


def fidelity(native: Outcome, other: Outcome) -> Fidelity:
    """Compare two runs of the same jobs on the same nodes.

    Args:
        native: native run, the reference.
        other: run on the control plane.

    Raises:
        DifferentJobsError: the runs have different jobs, nodes or lengths.
    """
    pairs = _same_jobs(native, other)
    ours, theirs = _node_energies(native, other)
    families = [node.family for node in native.nodes]
    return Fidelity(
        energy_pct=_pct(native.it_j, other.it_j) or 0.0,
        cpu_work_pct=_pct(*(sum(job.cpu_units_done for job in run.jobs) for run in (native, other))),
        gpu_work_pct=_pct(*(sum(job.gpu_units_done for job in run.jobs) for run in (native, other))),
        node_correlation=_correlation(ours, theirs),
        node_correlation_in_family=_correlation(_beyond_family(ours, families), _beyond_family(theirs, families)),
        node_error_pct=float(np.mean(np.abs(theirs / ours - 1.0))) * 100.0,
        power_error_pct=_power_error_pct(native, other),
        starts=_starts(pairs, {node.name: node.family for node in native.nodes}),
        families=tuple(_families(ours, theirs, families)),
        explanation=tuple(_explanation(native, other)),
    )


def _same_jobs(native: Outcome, other: Outcome) -> list[tuple[JobOutcome, JobOutcome]]:
    theirs = {job.job_id: job for job in other.jobs}
    if theirs.keys() != {job.job_id for job in native.jobs}:
        raise DifferentJobsError(f"the runs have different jobs: {len(native.jobs):,} and {len(other.jobs):,}")
    if [node.name for node in native.nodes] != [node.name for node in other.nodes]:
        raise DifferentJobsError("the runs have different nodes")
    if native.duration_s != other.duration_s:
        raise DifferentJobsError(f"the runs lasted {native.duration_s:g} s and {other.duration_s:g} s")
    return [(job, theirs[job.job_id]) for job in native.jobs]


def _node_energies(native: Outcome, other: Outcome) -> tuple[FloatArray, FloatArray]:
    return np.array([node.energy_j for node in native.nodes]), np.array([node.energy_j for node in other.nodes])


def _correlation(first: FloatArray, second: FloatArray) -> float | None:
    if len(first) < 2 or np.ptp(first) == 0.0 or np.ptp(second) == 0.0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def _beyond_family(energy_j: FloatArray, families: Sequence[str]) -> FloatArray:
    names, index = np.unique(families, return_inverse=True)
    means = np.bincount(index, weights=energy_j) / np.bincount(index, minlength=len(names))
    beyond: FloatArray = energy_j / means[index] - 1.0
    return beyond


def _power_error_pct(native: Outcome, other: Outcome) -> float:
    """Difference of power on a common time grid, since the runs are sampled at different times."""
    time_s = np.linspace(0.0, native.duration_s, _SAMPLES)
    ours, theirs = (np.interp(time_s, run.series.time_s, run.series.it_w) for run in (native, other))
    return float(np.mean(np.abs(theirs - ours)) / np.mean(ours)) * 100.0


def _starts(pairs: Sequence[tuple[JobOutcome, JobOutcome]], families: dict[str, str]) -> StartDifferences:
    both = [(ours, theirs) for ours, theirs in pairs if ours.start_s is not None and theirs.start_s is not None]
    later_s = np.array([(theirs.start_s or 0.0) - (ours.start_s or 0.0) for ours, theirs in both])
    started = (sum(job.start_s is not None for job in side) for side in zip(*pairs, strict=True)) if pairs else (0, 0)
    only_native, only_other = (count - len(both) for count in started)
    if not both:
        return StartDifferences(0, only_native, only_other, None, None, None, None, None)
    return StartDifferences(
        jobs=len(both),
        only_native=only_native,
        only_other=only_other,
        median_s=float(np.median(later_s)),
        p95_abs_s=float(np.percentile(np.abs(later_s), 95)),
        within_a_minute=float(np.mean(np.abs(later_s) <= _SAME_START_S)),
        same_node=sum(ours.node == theirs.node for ours, theirs in both) / len(both),
        same_family=sum(families.get(ours.node) == families.get(theirs.node) for ours, theirs in both) / len(both),
    )


def _families(ours_j: FloatArray, theirs_j: FloatArray, families: Sequence[str]) -> list[Row]:
    names, index = np.unique(families, return_inverse=True)
    ours, theirs = (np.bincount(index, weights=energy_j) for energy_j in (ours_j, theirs_j))
    return [
        Row(str(name), joules_to_kwh(float(first)), joules_to_kwh(float(second)))
        for name, first, second in zip(names, ours, theirs, strict=True)
    ]


def _explanation(native: Outcome, other: Outcome) -> list[Row]:
    """Figures that may explain the differences between two runs."""
    runs = (native, other)

    def row(what: str, *values: float) -> Row:
        return Row(what, *values)

    def over_time(what: str, column: str) -> Row:
        return row(what, *(_mean_over_time(run.series, getattr(run.series, column)) for run in runs))

    return [
        row("IT energy, kWh", *(joules_to_kwh(run.it_j) for run in runs)),
        row("cooling energy, kWh", *(joules_to_kwh(run.cooling_j or 0.0) for run in runs)),
        row("CPU work done, core-h", *(sum(job.cpu_units_done for job in run.jobs) / 3600.0 for run in runs)),
        row("GPU work done, GPU-h", *(sum(job.gpu_units_done for job in run.jobs) / 3600.0 for run in runs)),
        row("jobs completed", *(float(_completed(run)) for run in runs)),
        row(
            "mean wait, s",
            *(_mean([job.start_s - job.submit_s for job in run.jobs if job.start_s is not None]) for run in runs),
        ),
        row("mean time of a job from first run to end, s", *(_mean(_run_times(run)) for run in runs)),
        over_time("pods running, mean", "running"),
        over_time("pods waiting, mean", "waiting"),
        over_time("eco nodes, mean", "eco_nodes"),
        over_time("draining nodes, mean", "draining_nodes"),
        over_time("nodes at their cap, mean", "capped_nodes"),
        over_time("throttled nodes, mean", "throttled_nodes"),
        row("drains", *(float(len(run.drains)) for run in runs)),
        row(
            "mean length of a drain, s",
            *(_mean([drain.end_s - drain.start_s for drain in run.drains if drain.end_s is not None]) for run in runs),
        ),
    ]


def _completed(run: Outcome) -> int:
    return sum(job.end is JobEnd.COMPLETED for job in run.jobs)


def _run_times(run: Outcome) -> list[float]:
    return [job.end_s - job.start_s for job in run.jobs if job.start_s is not None and job.end_s is not None]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _mean_over_time(series: OutcomeSeries, values: FloatArray | IntArray) -> float:
    length_s = float(series.time_s[-1] - series.time_s[0])
    if length_s == 0.0:
        return float(values[0])
    return float(np.trapezoid(values, series.time_s)) / length_s


def _pct(ours: float, theirs: float) -> float | None:
    return None if ours == 0.0 else (theirs / ours - 1.0) * 100.0
