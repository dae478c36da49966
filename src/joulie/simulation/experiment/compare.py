"""Variants of an experiment side by side: at equal completed work, seed by seed, with confidence intervals.

Every figure of a variant is compared to the first variant's under the same seed and the same physics. Where the two did
not do the same work, energy alone says nothing and is not compared; energy per unit of work still is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from joulie.domain.power.cpu import IdleStates
from joulie.simulation.experiment.metrics import RunMetrics
from joulie.simulation.experiment.plan import PhysicsChoice, RunKey
from joulie.simulation.experiment.scenario import Experiment
from joulie.simulation.sweep import Estimate, estimate

EQUAL_WORK_PCT = 1.0
"""Work that may differ between two runs that are said to have done the same, %."""
PER_WORK = "it_kwh_per_work"
"""The figure that savings are told of."""


class Column(NamedTuple):
    """A figure that people read of a variant.

    Attributes:
        key: of `RunMetrics`.
        label: with its unit.
        digits: after the point.
        saved: whether it is also told how much less of it than the first variant's there was, %.
        needs_equal_work: whether that means something only where the same work was done.
    """

    key: str
    label: str
    digits: int
    saved: bool = False
    needs_equal_work: bool = False


COLUMNS = (
    Column("it_kwh", "IT energy, kWh", 0, saved=True, needs_equal_work=True),
    Column(PER_WORK, "IT energy per work", 3, saved=True),
    Column("facility_kwh_per_work", "facility energy per work", 3, saved=True),
    Column("peak_kw", "peak, kW", 1, saved=True),
    Column("p99_ramp_kw", "P99 ramp, kW/min", 1),
    Column("slowdown_mean_performance", "slowdown of performance jobs, mean", 3),
    Column("slowdown_p95_performance", "P95", 3),
    Column("slowdown_mean_standard", "slowdown of standard jobs, mean", 3),
    Column("slowdown_p95_standard", "P95", 3),
    Column("wait_mean_s", "wait, mean, s", 0),
    Column("wait_p95_s", "P95, s", 0),
    Column("unfinished", "unfinished", 1),
    Column("performance_pods_on_eco", "performance pods on eco", 0),
)


class Record(NamedTuple):
    """A finished run and its figures."""

    key: RunKey
    metrics: RunMetrics


@dataclass(frozen=True)
class VariantResult:
    """One variant under one physics.

    Attributes:
        variant: its name.
        physics: the assumptions.
        seeds: runs, those whose seed the first variant has, too.
        values: mean over the seeds by key of the column; None where a figure has no meaning.
        saved_pct: how much less than the first variant, %, by key of the column; None where it cannot be told.
        work_pct: the largest difference of work done of any seed, by absolute value, %.
    """

    variant: str
    physics: PhysicsChoice
    seeds: int
    values: Mapping[str, Estimate | None]
    saved_pct: Mapping[str, Estimate | None]
    work_pct: float

    @property
    def equal_work(self) -> bool:
        """Whether it did the work of the first variant."""
        return self.work_pct <= EQUAL_WORK_PCT

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "variant": self.variant,
            **self.physics._asdict(),
            "seeds": self.seeds,
            "equal_work": self.equal_work,
            "work_pct": self.work_pct,
            "values": {key: value and value._asdict() for key, value in self.values.items()},
            "saved_pct": {key: value and value._asdict() for key, value in self.saved_pct.items()},
        }


Part = Literal["placement", "caps", "idle"]


@dataclass(frozen=True)
class SavingParts:
    """Where a variant's saving of energy per work comes from, percentage points of the first variant's.

    Attributes:
        variant: its name.
        physics: the assumptions.
        total: all of it.
        placement: what the variant saves without its caps: classes of nodes and scores; None without such a twin.
        caps: what caps add to that.
        idle: what the saving would be more if only managed nodes had deep idle states; None where that was not run.
    """

    variant: str
    physics: PhysicsChoice
    total: Estimate
    placement: Estimate | None
    caps: Estimate | None
    idle: Estimate | None

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        parts = {name: getattr(self, name) for name in ("total", "placement", "caps", "idle")}
        return {
            "variant": self.variant,
            **self.physics._asdict(),
            **{name: value and value._asdict() for name, value in parts.items()},
        }


@dataclass(frozen=True)
class Comparison:
    """All variants of an experiment.

    Attributes:
        baseline: name of the variant that the others are compared to.
        results: by physics, then in the order of the variants, the baseline first.
        parts: where savings come from, in the same order.
    """

    baseline: str
    results: tuple[VariantResult, ...]
    parts: tuple[SavingParts, ...]

    @property
    def physics(self) -> list[PhysicsChoice]:
        """The assumptions that something was run under."""
        return list(dict.fromkeys(result.physics for result in self.results))

    def under(self, physics: PhysicsChoice) -> list[VariantResult]:
        """The variants under these assumptions, the baseline first."""
        return [result for result in self.results if result.physics == physics]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "baseline": self.baseline,
            "results": [result.as_dict() for result in self.results],
            "parts": [part.as_dict() for part in self.parts],
        }


class IncomparableError(ValueError):
    """There is nothing to compare to; the message says what is missing."""


def compare(experiment: Experiment, records: Iterable[Record]) -> Comparison:
    """Every variant against the experiment's first one.

    Args:
        experiment: names the variants.
        records: finished runs, in any order; a seed that either side lacks is left out.

    Raises:
        IncomparableError: no run of the first variant is among them.
    """
    baseline = experiment.variants[0].name
    by_key = {record.key: record.metrics for record in records}
    known = dict.fromkeys(key.physics for key in by_key)
    if not any(key.variant == baseline for key in by_key):
        raise IncomparableError(f"no run of {baseline}, the first variant, is finished: there is nothing to compare to")
    results, parts = [], []
    for physics in known:
        for variant in experiment.variants:
            seeds = _seeds(by_key, physics, variant.name, baseline)
            if not seeds:
                continue
            results.append(_result(by_key, physics, variant.name, baseline, seeds))
            if variant.name != baseline and variant.without_caps is None:
                parts.append(_parts(experiment, by_key, physics, variant.name, baseline))
    return Comparison(baseline, tuple(results), tuple(part for part in parts if part is not None))


_Runs = Mapping[RunKey, RunMetrics]


def _seeds(runs: _Runs, physics: PhysicsChoice, *variants: str) -> list[int]:
    """Seeds that all these variants have under these assumptions."""
    of_variant = [{key.seed for key in runs if (key.variant, key.physics) == (name, physics)} for name in variants]
    return sorted(set.intersection(*of_variant))


def _result(runs: _Runs, physics: PhysicsChoice, variant: str, baseline: str, seeds: Sequence[int]) -> VariantResult:
    ours = [runs[RunKey(variant, seed, physics)] for seed in seeds]
    base = [runs[RunKey(baseline, seed, physics)] for seed in seeds]
    work_pct = max(abs(_saved_pct("work_kwh", run, other) or 0.0) for run, other in zip(ours, base, strict=True))
    told = [column for column in COLUMNS if column.saved]
    saved = {
        column.key: None
        if column.needs_equal_work and work_pct > EQUAL_WORK_PCT
        else _estimate([_saved_pct(column.key, run, other) for run, other in zip(ours, base, strict=True)])
        for column in told
    }
    values = {column.key: _estimate([getattr(run, column.key) for run in ours]) for column in COLUMNS}
    return VariantResult(variant, physics, len(seeds), values, saved, work_pct)


def _parts(
    experiment: Experiment, runs: _Runs, physics: PhysicsChoice, variant: str, baseline: str
) -> SavingParts | None:
    def saved(name: str, under: PhysicsChoice) -> dict[int, float]:
        per_seed = {
            seed: _saved_pct(PER_WORK, runs[RunKey(name, seed, under)], runs[RunKey(baseline, seed, under)])
            for seed in _seeds(runs, under, name, baseline)
        }
        return {seed: value for seed, value in per_seed.items() if value is not None}

    total = saved(variant, physics)
    if not total:
        return None
    twin = next((other.name for other in experiment.variants if other.without_caps == variant), None)
    placement = saved(twin, physics) if twin is not None else {}
    managed = {}
    if physics.idle_states is IdleStates.ALL:
        managed = saved(variant, physics._replace(idle_states=IdleStates.MANAGED))
    return SavingParts(
        variant,
        physics,
        estimate(list(total.values())),
        estimate(list(placement.values())) if placement else None,
        _difference(total, placement),
        _difference(managed, total),
    )


def _difference(more: Mapping[int, float], less: Mapping[int, float]) -> Estimate | None:
    """Of the seeds that both have."""
    both = [more[seed] - less[seed] for seed in more if seed in less]
    return estimate(both) if both else None


def _saved_pct(key: str, run: RunMetrics, base: RunMetrics) -> float | None:
    value, reference = getattr(run, key), getattr(base, key)
    if value is None or not reference:
        return None
    return float(1.0 - value / reference) * 100.0


def _estimate(samples: Sequence[float | None]) -> Estimate | None:
    known = [value for value in samples if value is not None]
    return estimate(known) if len(known) == len(samples) else None


def format_estimate(value: Estimate | None, digits: int, sign: str = "") -> str:
    """Mean and half width of the confidence interval; a dash for what does not apply."""
    if value is None:
        return "–"
    spread = "" if value.half_width is None else f" ±{value.half_width:,.{digits}f}"
    return f"{value.mean:{sign},.{digits}f}{spread}"
