"""Compares the variants of an experiment at equal completed work, paired by seed, with confidence intervals.

Each figure of a variant is compared to that of the first variant (the baseline) under the same seed and physics. All
variants of a comparison have the same seeds: a seed that one of them lacks is left out, and reported. If two variants
did not do the same work, their energy is not comparable and not compared; energy per unit of work still is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from joulie_lab.simulation.experiment.metrics import RunMetrics
from joulie_lab.simulation.experiment.plan import PhysicsChoice, RunKey
from joulie_lab.simulation.experiment.scenario import Experiment
from joulie_lab.simulation.job_response import IdleStates
from joulie_lab.simulation.sweep import Estimate, estimate

EQUAL_WORK_PCT = 1.0
"""Maximum difference of work between two runs that count as having done equal work, %."""
PER_WORK = "it_kwh_per_work"
"""Key of the figure for which savings are reported."""


class Column(NamedTuple):
    """A reported figure of a variant.

    Attributes:
        key: field of `RunMetrics`.
        label: label with unit.
        digits: number of decimals.
        saved: whether the saving against the baseline is reported too, %.
        needs_equal_work: whether the saving is meaningful only at equal work.
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
    Column("slowdown_n_performance", "jobs", 0),
    Column("slowdown_mean_standard", "slowdown of standard jobs, mean", 3),
    Column("slowdown_p95_standard", "P95", 3),
    Column("slowdown_n_standard", "jobs", 0),
    Column("wait_mean_s", "wait, mean, s", 0),
    Column("wait_p95_s", "P95, s", 0),
    Column("wait_n", "jobs", 0),
    Column("unfinished", "unfinished", 1),
    Column("performance_pods_on_eco", "performance pods on eco", 0),
)


class Record(NamedTuple):
    """A finished run and its metrics."""

    key: RunKey
    metrics: RunMetrics


@dataclass(frozen=True)
class VariantResult:
    """Results of one variant under one physics.

    Attributes:
        variant: name of the variant.
        physics: assumptions of the runs.
        seeds: number of seeds, the same seeds for every variant under this physics.
        values: mean over the seeds by column key; None if the figure is not defined.
        saved_pct: saving against the baseline by column key, %; None if it is not defined.
        work_pct: maximum absolute difference of work from the baseline over the seeds, %; None without baseline runs.
    """

    variant: str
    physics: PhysicsChoice
    seeds: int
    values: Mapping[str, Estimate | None]
    saved_pct: Mapping[str, Estimate | None]
    work_pct: float | None

    @property
    def equal_work(self) -> bool:
        """Whether it did the same work as the baseline."""
        return self.work_pct is not None and self.work_pct <= EQUAL_WORK_PCT

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
    """Parts of a variant's saving of energy per work, in percentage points of the baseline's energy per work.

    Attributes:
        variant: name of the variant.
        physics: assumptions of the runs.
        seeds: number of seeds, the same seeds for every part.
        total: whole saving.
        placement: saving of the same variant without caps, by node classes and scores; None if not run.
        caps: additional saving by caps; None likewise.
        idle: additional saving if only managed nodes had deep idle states; None if that was not run.
    """

    variant: str
    physics: PhysicsChoice
    seeds: int
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
            "seeds": self.seeds,
            **{name: value and value._asdict() for name, value in parts.items()},
        }


@dataclass(frozen=True)
class Comparison:
    """Comparison of all variants of an experiment.

    Attributes:
        baseline: name of the variant that the others are compared to.
        results: results by physics, then in the order of the variants, the baseline first.
        parts: parts of the savings, in the same order.
        left_out: sentences about runs that are not compared.
    """

    baseline: str
    results: tuple[VariantResult, ...]
    parts: tuple[SavingParts, ...]
    left_out: tuple[str, ...] = ()

    @property
    def physics(self) -> list[PhysicsChoice]:
        """Physics under which there are runs."""
        return list(dict.fromkeys(result.physics for result in self.results))

    def under(self, physics: PhysicsChoice) -> list[VariantResult]:
        """Results under this physics, the baseline first."""
        return [result for result in self.results if result.physics == physics]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "baseline": self.baseline,
            "results": [result.as_dict() for result in self.results],
            "parts": [part.as_dict() for part in self.parts],
            "left_out": list(self.left_out),
        }


def compare(experiment: Experiment, records: Iterable[Record]) -> Comparison:
    """Compare every variant of an experiment to its first one, the baseline.

    Args:
        experiment: the experiment.
        records: finished runs, in any order.
    """
    baseline = experiment.variants[0].name
    runs = {record.key: record.metrics for record in records}
    results: list[VariantResult] = []
    parts: list[SavingParts | None] = []
    left_out: list[str] = []
    for physics in dict.fromkeys(key.physics for key in runs):
        group = _group(experiment, runs, physics)
        left_out.extend(_left_out(group, runs, physics, baseline))
        against = baseline if baseline in group.variants else None
        results.extend(_result(runs, physics, name, against, group.seeds) for name in group.variants)
        if against is not None:
            split = [each.name for each in experiment.variants[1:] if each.without_caps is None]
            parts.extend(_parts(experiment, runs, physics, name, against) for name in split if name in group.variants)
    known_parts = tuple(part for part in parts if part is not None)
    return Comparison(baseline, tuple(results), known_parts, tuple(left_out))


_Runs = Mapping[RunKey, RunMetrics]


class _Group(NamedTuple):
    """The variants that are compared under one physics, and the seeds that all of them have."""

    variants: list[str]
    seeds: list[int]


def _group(experiment: Experiment, runs: _Runs, physics: PhysicsChoice) -> _Group:
    """Select variants in their order; a variant that shares no seed with the earlier ones is left out."""
    names: list[str] = []
    shared: set[int] = set()
    for variant in experiment.variants:
        own = _seeds(runs, variant.name, physics)
        together = shared & own if names else own
        if together:
            names.append(variant.name)
            shared = together
    return _Group(names, sorted(shared))


def _left_out(group: _Group, runs: _Runs, physics: PhysicsChoice, baseline: str) -> Iterator[str]:
    if baseline not in group.variants:
        yield f"{physics}: nothing is compared, since no run of {baseline}, the first variant, is finished"
    there = dict.fromkeys(key.variant for key in runs if key.physics == physics)
    for name in there:
        own = _seeds(runs, name, physics)
        if name not in group.variants:
            yield f"{physics}: {name} is left out: the others have none of its seeds ({_listed(own)})"
        elif rest := own - set(group.seeds):
            yield f"{physics}: of {name}, what another variant lacks is left out: seeds {_listed(rest)}"


def _listed(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(seeds)))


def _seeds(runs: _Runs, variant: str, physics: PhysicsChoice) -> set[int]:
    return {key.seed for key in runs if (key.variant, key.physics) == (variant, physics)}


def _result(
    runs: _Runs, physics: PhysicsChoice, variant: str, baseline: str | None, seeds: Sequence[int]
) -> VariantResult:
    ours = [runs[RunKey(variant, seed, physics)] for seed in seeds]
    values = {column.key: _estimate([getattr(run, column.key) for run in ours]) for column in COLUMNS}
    with_saving = [column for column in COLUMNS if column.saved]
    if baseline is None:
        unknown = dict.fromkeys(column.key for column in with_saving)
        return VariantResult(variant, physics, len(seeds), values, unknown, None)
    pairs = [(run, runs[RunKey(baseline, seed, physics)]) for run, seed in zip(ours, seeds, strict=True)]
    work_pct = max(abs(_saved_pct("work_kwh", run, base) or 0.0) for run, base in pairs)
    saved = {
        column.key: None
        if column.needs_equal_work and work_pct > EQUAL_WORK_PCT
        else _estimate([_saved_pct(column.key, run, base) for run, base in pairs])
        for column in with_saving
    }
    return VariantResult(variant, physics, len(seeds), values, saved, work_pct)


def _parts(
    experiment: Experiment, runs: _Runs, physics: PhysicsChoice, variant: str, baseline: str
) -> SavingParts | None:
    """Split a saving into parts over the seeds that all parts have; a part that has none of them is None."""

    def saved(name: str | None, under: PhysicsChoice) -> dict[int, float]:
        if name is None:
            return {}
        per_seed = {
            seed: _saved_pct(PER_WORK, runs[RunKey(name, seed, under)], runs[RunKey(baseline, seed, under)])
            for seed in _seeds(runs, name, under) & _seeds(runs, baseline, under)
        }
        return {seed: value for seed, value in per_seed.items() if value is not None}

    total = saved(variant, physics)
    twin = next((other.name for other in experiment.variants if other.without_caps == variant), None)
    placement = saved(twin, physics)
    both_idle = physics.idle_states is IdleStates.ALL
    managed = saved(variant, physics._replace(idle_states=IdleStates.MANAGED)) if both_idle else {}
    seeds = set(total)
    for part in (placement, managed):
        seeds = seeds & part.keys() or seeds

    def part_estimate(value: Callable[[int], float], *of: Mapping[int, float]) -> Estimate | None:
        known = all(seeds <= part.keys() for part in of)
        return estimate([value(seed) for seed in sorted(seeds)]) if seeds and known else None

    whole = part_estimate(lambda seed: total[seed])
    if whole is None:
        return None
    return SavingParts(
        variant,
        physics,
        len(seeds),
        whole,
        part_estimate(lambda seed: placement[seed], placement),
        part_estimate(lambda seed: total[seed] - placement[seed], placement),
        part_estimate(lambda seed: managed[seed] - total[seed], managed),
    )


def _saved_pct(key: str, run: RunMetrics, base: RunMetrics) -> float | None:
    value, reference = getattr(run, key), getattr(base, key)
    if value is None or not reference:
        return None
    return float(1.0 - value / reference) * 100.0


def _estimate(samples: Sequence[float | None]) -> Estimate | None:
    known = [value for value in samples if value is not None]
    return estimate(known) if len(known) == len(samples) else None


def format_estimate(value: Estimate | None, digits: int, sign: str = "") -> str:
    """Format mean and half width of the confidence interval; a dash for None."""
    if value is None:
        return "–"
    spread = "" if value.half_width is None else f" ±{value.half_width:,.{digits}f}"
    return f"{value.mean:{sign},.{digits}f}{spread}"
