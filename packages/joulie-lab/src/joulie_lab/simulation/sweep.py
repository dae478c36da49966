"""Sweeps over schedulers and seeds: the runs of a sweep, and their table of differences to a baseline.

The table of the published scoring experiment is the mean, over seeds, of each seed's difference to its own baseline.
Here every mean has a confidence interval, and the published columns are followed by the useful work and the energy per
unit of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from joulie.domain.units import InvalidQuantityError, finite
from joulie_lab.simulation.results import RunRecord

SWEEP_SEEDS = (42, 123, 456, 789, 1337, 2024, 9999, 31415)
"""Seeds of the published sweep."""

PUBLISHED_BASELINE = "most-allocated"
PUBLISHED_LABELS: Mapping[str, str] = {
    "joulie-legacy": "JOULIE-legacy",
    "t10": "JOULIE (+/-10 TDP)",
    "t15": "HYBRID-t15",
    "t20": "HYBRID-t20",
    "t25": "HYBRID-t25",
    "t30": "HYBRID-t30",
    "t20-gpu": "HYBRID-t20-gpu",
    "t20-adap": "HYBRID-t20-adap",
    "t25-adap": "HYBRID-t25-adap",
}
"""Published names of the variants, by scheduler, in the order of the published table."""

CONFIDENCE = 0.95


class Task(NamedTuple):
    """One run of a sweep."""

    scheduler: str
    seed: int


def plan(schedulers: Iterable[str], seeds: Iterable[int], done: Iterable[Task] = ()) -> list[Task]:
    """The runs that remain, seed by seed, so that the schedulers of a seed share its jobs."""
    finished = set(done)
    names = tuple(schedulers)
    return [task for seed in seeds for name in names if (task := Task(name, seed)) not in finished]


class Estimate(NamedTuple):
    """A mean over seeds and half the width of its 95 % confidence interval; None for a single seed."""

    mean: float
    half_width: float | None


def estimate(samples: npt.ArrayLike) -> Estimate:
    """Mean and Student-t confidence interval of independent samples, one per seed.

    Raises:
        InvalidQuantityError: no samples, or one is not finite.
    """
    values = finite("samples", samples)
    n = len(values)
    if n == 0:
        raise InvalidQuantityError("samples", "needs at least one sample")
    mean = float(values.mean())
    if n == 1:
        return Estimate(mean, None)
    quantile = float(stdtrit(n - 1, 0.5 + CONFIDENCE / 2.0))
    return Estimate(mean, quantile * float(np.std(values, ddof=1)) / float(np.sqrt(n)))


Value = Callable[[RunRecord], float | int | None]


class Column(NamedTuple):
    """A column of the table: a metric of each run, compared to the baseline with the same seed."""

    key: str
    label: str
    of: Value
    kind: Literal["percent", "difference"] = "percent"
    digits: int = 2


def _per_useful_kwh(run: RunRecord) -> float | None:
    return run.it_kwh / run.useful_work_kwh if run.useful_work_kwh > 0.0 else None


PUBLISHED_COLUMNS = (
    Column("it_kwh", "IT kWh%", lambda run: run.it_kwh),
    Column("peak_kw", "Peak%", lambda run: run.peak_kw),
    Column("std_kw", "Std%", lambda run: run.std_kw),
    Column("dropped", "Drops", lambda run: run.dropped, "difference", 0),
    Column("kwh_per_job", "kWh/j%", lambda run: run.kwh_per_job),
    Column("p99_ramp_kw", "P99%", lambda run: run.p99_ramp_kw),
)
HONEST_COLUMNS = (
    Column("core_hours", "core-hours %", lambda run: run.core_hours),
    Column("gpu_hours", "GPU-hours %", lambda run: run.gpu_hours),
    Column("useful_work_kwh", "useful work %", lambda run: run.useful_work_kwh),
    Column("kwh_per_useful_kwh", "kWh/useful work %", _per_useful_kwh),
    Column("std_after_2h_kw", "std after 2 h %", lambda run: run.std_after_2h_kw),
    Column("mean_wait_min", "mean wait, min", lambda run: run.mean_wait_min, "difference"),
    Column("p99_wait_min", "P99 wait, min", lambda run: run.p99_wait_min, "difference"),
    Column("wakes", "wakes %", lambda run: run.wakes),
    Column("unfinished", "unfinished", lambda run: run.unfinished, "difference", 0),
)


@dataclass(frozen=True)
class Variant:
    """A row of the table.

    Attributes:
        scheduler: name of the scheduler.
        label: its name in the published table; the scheduler's name if it is not in there.
        columns: estimate by key of the column; None if the metric does not apply.
        energy_wins: number of seeds on which it used less IT energy than the baseline.
        seeds: number of seeds.
    """

    scheduler: str
    label: str
    columns: Mapping[str, Estimate | None]
    energy_wins: int
    seeds: int

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        columns = {key: value and value._asdict() for key, value in self.columns.items()}
        return {
            "scheduler": self.scheduler,
            "label": self.label,
            **columns,
            "energy_wins": self.energy_wins,
            "seeds": self.seeds,
        }


def compare(records: Iterable[RunRecord], baseline: str) -> list[Variant]:
    """Compare every scheduler with the baseline, in the order of first appearance.

    Args:
        records: records of a complete sweep: the same seeds for every scheduler.
        baseline: name of the baseline scheduler; the comparison is by seed.

    Raises:
        ValueError: a run is missing.
    """
    runs = list(records)
    names = [name for name in dict.fromkeys(run.scheduler for run in runs) if name != baseline]
    return [_variant(name, _pairs(runs, name, baseline)) for name in names]


def samples(column: Column, records: Iterable[RunRecord], scheduler: str, baseline: str) -> list[float]:
    """The samples behind a column of `compare`, one per seed; empty if the metric does not apply.

    Raises:
        ValueError: a run is missing.
    """
    return _samples(column, _pairs(records, scheduler, baseline))


Pairs = Sequence[tuple[RunRecord, RunRecord]]
"""A run, and the baseline run with the same seed."""


def _pairs(records: Iterable[RunRecord], scheduler: str, baseline: str) -> Pairs:
    runs: dict[int, RunRecord] = {}
    base: dict[int, RunRecord] = {}
    for record in records:
        if record.scheduler == scheduler:
            runs[record.seed] = record
        elif record.scheduler == baseline:
            base[record.seed] = record
    if runs.keys() != base.keys():
        raise ValueError(f"{scheduler} and {baseline} were not run with the same seeds; the sweep is not complete")
    return [(runs[seed], base[seed]) for seed in base]


def _variant(name: str, pairs: Pairs) -> Variant:
    columns = {column.key: _samples(column, pairs) for column in (*PUBLISHED_COLUMNS, *HONEST_COLUMNS)}
    return Variant(
        scheduler=name,
        label=PUBLISHED_LABELS.get(name, name),
        columns={key: estimate(values) if values else None for key, values in columns.items()},
        energy_wins=sum(run.it_kwh < base.it_kwh for run, base in pairs),
        seeds=len(pairs),
    )


def _samples(column: Column, pairs: Pairs) -> list[float]:
    """One value per seed; empty if the metric does not apply to one of them."""
    values = [_against(column, run, base) for run, base in pairs]
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []


def _against(column: Column, run: RunRecord, base: RunRecord) -> float | None:
    value, reference = column.of(run), column.of(base)
    if value is None or reference is None:
        return None
    if column.kind == "difference":
        return float(value - reference)
    return (value / reference - 1.0) * 100.0 if reference != 0 else None


def format_estimate(column: Column, value: Estimate | None) -> tuple[str, str]:
    """The mean with the published digits and sign, and its half width; a dash if the metric does not apply."""
    if value is None:
        return "–", ""
    sign = "%" if column.kind == "percent" else ""
    mean = f"{value.mean:+,.{column.digits}f}{sign}"
    return mean, "" if value.half_width is None else f"±{value.half_width:,.{column.digits}f}"
