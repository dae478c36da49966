"""Results of a run: its record, its time series and the waiting times of its jobs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from joulie.domain.units import FloatArray, IntArray


@dataclass(frozen=True)
class RunRecord:
    """Summary figures of one run, as written by ``joulie simulate --json``. Figures that do not apply are None.

    Attributes:
        jobs: jobs of the workload (after thinning).
        arrived: jobs that arrived before the last step.
        std_kw: sample standard deviation of IT power; in mode queue over hours 2-24.
        std_after_2h_kw: the same without the first two hours.
        p99_ramp_kw: 99th percentile of the absolute difference of successive steps; in mode queue over hours 2-24.
        core_hours: cores x duration of the jobs that started, to their end.
        useful_work_kwh: utilisation-weighted work within the run, see docs/experiments/honest-metrics.md.
        seconds: wall time of the run including job generation, without compilation.
    """

    scenario: str
    scheduler: str
    seed: int
    hours: float
    jobs: int
    arrived: int
    dropped: int
    mean_kw: float
    peak_kw: float
    std_kw: float
    std_after_2h_kw: float | None
    p99_ramp_kw: float
    it_kwh: float
    cooling_kwh: float | None
    facility_kwh: float | None
    mean_pue: float | None
    mean_cop: float | None
    core_hours: float
    gpu_hours: float
    kwh_per_job: float | None
    useful_work_kwh: float
    mean_wait_min: float | None
    p99_wait_min: float | None
    wakes: int | None
    unfinished: int | None
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """The record as plain JSON values, in field order."""
        return asdict(self)


@dataclass(frozen=True)
class RunSeries:
    """IT-side time series of a run, one row per step, each of shape ``(n_steps,)``."""

    time_s: FloatArray
    it_w: FloatArray
    arrived: IntArray
    dropped: IntArray
    running: IntArray
    """Number of jobs holding resources at the end of the step."""
    waiting: IntArray
    """Number of jobs in the queue at the end of the step; zero in mode drop."""
    awake_nodes: IntArray
    """Number of nodes neither asleep nor off; all nodes in mode drop."""


@dataclass(frozen=True)
class CoolingSeries:
    """Facility-side time series of a run, one row per step, each of shape ``(n_steps,)``."""

    outdoor_k: FloatArray
    room_k: FloatArray
    cooling_w: FloatArray
    cop: FloatArray


@dataclass(frozen=True)
class Run:
    """A finished run: its record, its series, and the waiting time of each started job in minutes (mode queue)."""

    record: RunRecord
    series: RunSeries
    cooling: CoolingSeries | None = None
    wait_min: FloatArray | None = field(default=None, repr=False)
