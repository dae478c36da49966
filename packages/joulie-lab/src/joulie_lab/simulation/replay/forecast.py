"""What policies would have made of a recorded past: energy by the fitted model, savings with their uncertainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from joulie.domain.units import FloatArray, joules_to_kwh
from joulie_lab.simulation.experiment.compare import EQUAL_WORK_PCT
from joulie_lab.simulation.experiment.metrics import RunMetrics, metrics
from joulie_lab.simulation.experiment.outcome import Outcome
from joulie_lab.simulation.replay.fit import Line
from joulie_lab.simulation.sweep import estimate

_SHOWN = (
    *("slowdown_mean_performance", "slowdown_p95_performance", "slowdown_mean_standard", "slowdown_p95_standard"),
    *("wait_mean_s", "wait_p95_s", "completed", "unfinished", "performance_pods_on_eco"),
)
"""Metrics of a run that are shown beside its energy."""
_UNFITTED = Line(0.0, 1.0)


class Result(NamedTuple):
    """A run of the recorded jobs under a policy.

    Attributes:
        policy: name of the policy.
        seed: seed of the jobs' responses to limits and of the scheduler's ties.
        family_j: energy by the model before it is fitted, by family, J, shape ``(n_families,)``.
        duration_s: length of the run, s.
        figures: the run's metrics.
    """

    policy: str
    seed: int
    family_j: FloatArray
    duration_s: float
    figures: RunMetrics

    def fitted_j(self, lines: Sequence[Line | None], n_nodes: FloatArray) -> float:
        """Energy by the fitted model, J.

        Args:
            lines: fit of each family; one that was not fitted is taken as the model has it.
            n_nodes: number of nodes of each family.
        """
        known = [line or _UNFITTED for line in lines]
        base_w, factor = (np.array(values) for values in zip(*known, strict=True))
        return float((base_w * n_nodes * self.duration_s + factor * self.family_j).sum())


def result_of(outcome: Outcome, policy: str, seed: int, family_of: Mapping[str, int], n_families: int) -> Result:
    """Reduce a run to what the forecast needs.

    Args:
        outcome: the run.
        policy: its policy.
        seed: its seed.
        family_of: family by node.
        n_families: number of families.
    """
    places = [family_of[node.name] for node in outcome.nodes]
    energy_j = [node.energy_j for node in outcome.nodes]
    family_j = np.asarray(np.bincount(places, energy_j, n_families), dtype=np.float64)
    return Result(policy, seed, family_j, outcome.duration_s, metrics(outcome))


class Uncertainty(NamedTuple):
    """Half widths of a saving's 95 % interval by what it is uncertain for, as shares of the baseline's energy.

    Attributes:
        model: parameters of the fit, by resampling days and nodes.
        load: error of the fitted model that depends on the load of nodes, by its residuals where it was not fitted.
        runs: response of jobs to limits, and ties of the scheduler: for one more run, by the spread of those over the
            seeds; None with one seed.
    """

    model: float
    load: float
    runs: float | None

    @property
    def half_width(self) -> float:
        """Of all together; they are taken as independent."""
        return float(np.sqrt(sum((part or 0.0) ** 2 for part in self)))


@dataclass(frozen=True)
class PolicyForecast:
    """What a policy would have made of the past.

    Attributes:
        policy: its name.
        energy_kwh: energy of all nodes, kWh.
        saving: energy saved against the baseline, as a share; None for the baseline, and where the work differs.
        interval: 95 % interval of it.
        uncertainty: what the interval is made of.
        work_pct: maximum difference of work from the baseline, %.
        figures: slowdowns, waits and jobs, means over the seeds; None where not defined.
    """

    policy: str
    energy_kwh: float
    saving: float | None
    interval: tuple[float, float] | None
    uncertainty: Uncertainty | None
    work_pct: float
    figures: Mapping[str, float | None]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "uncertainty": self.uncertainty and self.uncertainty._asdict()}


@dataclass(frozen=True, eq=False)
class Model:
    """The fitted model as forecasts use it.

    Attributes:
        lines: fit of each family.
        draws: fits of resampled hours.
        load_error: see `joulie_lab.simulation.replay.fit.misfit`.
        n_nodes: number of nodes of each family.
    """

    lines: Sequence[Line | None]
    draws: Sequence[Sequence[Line | None]]
    load_error: float
    n_nodes: FloatArray


def forecast(results: Sequence[Result], model: Model) -> list[PolicyForecast]:
    """Compare policies with the first one, the baseline, on the same jobs and seeds."""
    by_policy: dict[str, dict[int, Result]] = {}
    for one in results:
        by_policy.setdefault(one.policy, {})[one.seed] = one
    baseline = next(iter(by_policy.values()))
    return [_forecast(policy, own, baseline, model) for policy, own in by_policy.items()]


_Runs = Mapping[int, Result]
"""Runs of a policy by seed."""


def _forecast(policy: str, own: _Runs, baseline: _Runs, model: Model) -> PolicyForecast:
    energy_j = float(np.mean([run.fitted_j(model.lines, model.n_nodes) for run in own.values()]))
    work = [
        abs(run.figures.work_kwh / baseline[seed].figures.work_kwh - 1.0) * 100.0
        for seed, run in own.items()
        if baseline[seed].figures.work_kwh
    ]
    work_pct = max(work, default=0.0)
    figures = {name: _mean([getattr(run.figures, name) for run in own.values()]) for name in _SHOWN}
    if own is baseline or work_pct > EQUAL_WORK_PCT:
        return PolicyForecast(policy, joules_to_kwh(energy_j), None, None, None, work_pct, figures)

    def saved(lines: Sequence[Line | None]) -> list[float]:
        """Saving of each seed."""
        energies_j = ([one[seed].fitted_j(lines, model.n_nodes) for one in (own, baseline)] for seed in own)
        return [1.0 - of_policy / of_baseline for of_policy, of_baseline in energies_j]

    by_seed = estimate(saved(model.lines))
    drawn = [float(np.mean(saved(lines))) for lines in model.draws]
    low, high = np.percentile(drawn, (2.5, 97.5)) if drawn else (0.0, 0.0)
    uncertainty = Uncertainty(
        model=float(high - low) / 2.0,
        load=model.load_error,
        # Of one more run, not of the mean: the cluster has one response, and its scheduler breaks each tie once.
        runs=None if by_seed.half_width is None else by_seed.half_width * float(np.sqrt(len(own) + 1.0)),
    )
    half_width = uncertainty.half_width
    interval = (by_seed.mean - half_width, by_seed.mean + half_width)
    return PolicyForecast(policy, joules_to_kwh(energy_j), by_seed.mean, interval, uncertainty, work_pct, figures)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None
