"""Benchmark openb: placement of pods that share GPUs, by final GPU allocation and by power.

Pods of the Alibaba GPU 2023 trace arrive until they have requested 130 % of the cluster's GPUs; none ends. The
published figures of FGD's authors are reproduced first. Joulie's score was tuned on the first five of their seeds; the
other five, five more and other traces are held out for reporting. All policies of a seed see the same pods in the same
order. Powers are compared at 20 to 80 % arrived, where on the published trace all but Random still place every pod: at
equal work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from joulie.domain.units import WATTS_PER_KW, FloatArray
from joulie_lab.adapters.published.openb import MODELS, Nodes, Pods
from joulie_lab.benchmarks.gpu_sharing.arrivals import sample, with_named_models, with_shared_part
from joulie_lab.benchmarks.gpu_sharing.play import GRID_PCT, Run, Setup, play
from joulie_lab.benchmarks.gpu_sharing.policies import (
    BASELINES,
    POLICIES,
    POWER_WEIGHTS_MILLI_PER_W,
    PWR_WEIGHTS,
    Policy,
    frugal,
    pwr_fgd,
)
from joulie_lab.benchmarks.results import Estimate, Figures, estimate

LOADS = slice(20, 81)
"""Grid points at which powers are compared: 20 to 80 % of the cluster's GPU arrived."""
SHOWN_LOADS_PCT = (20, 50, 80)
MOST_LOAD_PCT = SHOWN_LOADS_PCT[-1]
FINAL = -1
"""Grid point at which allocations are compared: 130 % arrived."""
TIED = ("FGD", "GpuPacking", "GpuClustering")
"""Policies whose scores tie often."""
VARIANT_SEED = 1


class Cases(NamedTuple):
    """Seeds of runs that are reported together."""

    tuned: tuple[int, ...]
    reported: tuple[int, ...]
    other: tuple[int, ...]


@dataclass(frozen=True)
class Settings:
    """How much is run.

    Attributes:
        cases: the seeds.
        shared_parts: traces in which shared GPUs are asked for so much of all GPU.
        named_parts: traces in which this many of the pods with GPUs name a model.
    """

    cases: Cases
    shared_parts: tuple[float, ...]
    named_parts: tuple[float, ...]


FULL = Settings(Cases((42, 43, 44, 45, 46), (47, 48, 49, 50, 51), (1001, 1002, 1003, 1004, 1005)), (0.4, 0.6), (0.33,))
SMALL = Settings(Cases((42,), (47, 48), (1001,)), (0.6,), (0.33,))


@dataclass
class _Runs:
    """Runs of one trace, each made once."""

    setup: Setup
    made: dict[tuple[Policy, int], Run] = field(default_factory=dict)

    def of(self, policy: Policy, seed: int) -> Run:
        """The run, made if need be."""
        if (policy, seed) not in self.made:
            self.made[policy, seed] = play(self.setup, policy, seed)
        return self.made[policy, seed]

    def all(self, policy: Policy, seeds: Iterable[int]) -> list[Run]:
        """One a seed."""
        return [self.of(policy, seed) for seed in seeds]


class TraceData(Figures, frozen=True):
    """The trace in numbers."""

    nodes: int
    gpus: int
    gpus_by_model: Mapping[str, int]
    pods: int
    without_gpu: int
    sharing: int
    demand_pct: float
    shared_demand_pct: float
    typical_pods: int


class Repeated(Figures, frozen=True):
    """A policy beside what is published of it: GPU allocation at 130 % arrived, percent, and differences."""

    published_pct: float | None
    allocation_pct: Estimate
    off_points: float | None
    curve_off_points: float | None
    at_random_pct: float | None


class Compared(Figures, frozen=True):
    """A policy beside FGD on the same pods."""

    allocation_pct: Estimate
    lost_points: Estimate
    power_pct: Estimate
    worst_power_pct: float
    power_pct_at: Mapping[str, float]
    given_at_most_load_pct: float
    all_placed_until_pct: float


class WeightPoint(Figures, frozen=True):
    """What a weight of power gives."""

    weight: float
    allocation_pct: float
    power_pct: float
    worst_power_pct: float


class Curve(Figures, frozen=True):
    """Means of the runs, by percent of GPU arrived."""

    arrived_pct: Sequence[float]
    allocation_pct: Sequence[float]
    power_kw: Sequence[float]


class RunTimes(Figures, frozen=True):
    """What the runs cost, s of CPU."""

    runs: int
    seconds: float
    seconds_per_run: float


class OpenbResult(Figures, frozen=True):
    """The result, by policy; `cases` by the seeds, `variants` by how the trace was changed."""

    data: TraceData
    seeds: Mapping[str, Sequence[int]]
    published: Mapping[str, Repeated]
    cases: Mapping[str, Mapping[str, Compared]]
    variants: Mapping[str, Mapping[str, Compared]]
    frontier: Mapping[str, Sequence[WeightPoint]]
    curves: Mapping[str, Curve]
    speed: RunTimes


def measure(
    nodes: Nodes,
    pods: Pods,
    reference: Mapping[str, FloatArray] | None,
    settings: Settings,
    clock: Callable[[], float],
    on_stage: Callable[[str], None],
) -> OpenbResult:
    """All figures of the benchmark.

    Args:
        nodes: the cluster.
        pods: the trace.
        reference: published curves by policy, as far as they are there; None for another trace than the published one.
        settings: how much is run.
        clock: s of CPU, for how long the runs take.
        on_stage: told what is run next.
    """
    cases = settings.cases
    runs = _Runs(Setup.of(nodes, pods))
    on_stage("compiling")
    play(Setup.of(*sample(0)), BASELINES["FGD"], 0)
    started = clock()
    for name, policy in POLICIES.items():
        on_stage(f"{name}, {sum(map(len, cases))} seeds")
        runs.all(policy, (seed for seeds in cases for seed in seeds))
    seconds = clock() - started
    speed = RunTimes(len(runs.made), seconds, seconds / len(runs.made))
    on_stage("the published figures, and equals decided at random")
    published = _published(runs, (*cases.tuned, *cases.reported), reference)
    on_stage("weights of power")
    frontier = _frontier(runs, cases.reported)
    variants = {}
    for name, made in _variants(nodes, pods, settings):
        on_stage(f"a trace with {name}")
        variants[name] = _compared(_Runs(Setup.of(nodes, made)), cases.reported)
    return OpenbResult(
        data=_data(runs.setup),
        seeds={name: list(seeds) for name, seeds in cases._asdict().items()},
        published=published,
        cases={name: _compared(runs, seeds) for name, seeds in cases._asdict().items()},
        variants=variants,
        frontier=frontier,
        curves={name: _curve(runs.all(policy, cases.reported)) for name, policy in POLICIES.items()},
        speed=speed,
    )


def _variants(nodes: Nodes, pods: Pods, settings: Settings) -> Iterator[tuple[str, Pods]]:
    for part in settings.shared_parts:
        yield f"{part * 100.0:g} % of GPU shared", with_shared_part(pods, part, VARIANT_SEED)
    for part in settings.named_parts:
        yield f"{part * 100.0:g} % naming a model", with_named_models(pods, nodes, part, VARIANT_SEED)


def _data(setup: Setup) -> TraceData:
    nodes, pods = setup.nodes, setup.pods
    demand = pods.demand_milli
    shared = (pods.gpus == 1) & (pods.gpu_milli < 1000)
    gpus = np.bincount(nodes.model, weights=nodes.gpus, minlength=len(MODELS))
    return TraceData(
        nodes=len(nodes.gpus),
        gpus=int(nodes.gpus.sum()),
        gpus_by_model={model: int(count) for model, count in zip(MODELS, gpus, strict=True) if count},
        pods=len(pods.gpus),
        without_gpu=int(np.count_nonzero(pods.gpus == 0)),
        sharing=int(np.count_nonzero(shared)),
        demand_pct=float(100.0 * demand.sum() / nodes.gpu_milli),
        shared_demand_pct=float(100.0 * demand[shared].sum() / demand.sum()),
        typical_pods=len(setup.typical.share),
    )


def _published(runs: _Runs, seeds: Sequence[int], reference: Mapping[str, FloatArray] | None) -> dict[str, Repeated]:
    """Every baseline beside what is published of it."""
    out = {}
    for name, policy in BASELINES.items():
        curves = [run.allocation_pct for run in runs.all(policy, seeds)]
        final = estimate([curve[FINAL] for curve in curves])
        published_pct = None if reference is None else policy.published_pct
        out[name] = Repeated(
            published_pct=published_pct,
            allocation_pct=final,
            off_points=None if published_pct is None else final.mean - published_pct,
            curve_off_points=None
            if reference is None or name not in reference
            else float(np.max(np.abs(np.mean(curves, axis=0) - reference[name]))),
            at_random_pct=_at_random_pct(runs, policy, seeds) if name in TIED else None,
        )
    return out


def _at_random_pct(runs: _Runs, policy: Policy, seeds: Sequence[int]) -> float:
    """Allocation if equals are drawn from, as kube-scheduler does it."""
    drawn = runs.all(replace(policy, order="random"), seeds)
    return float(np.mean([run.allocation_pct[FINAL] for run in drawn]))


def _compared(runs: _Runs, seeds: Sequence[int]) -> dict[str, Compared]:
    """Every policy beside FGD."""
    base = runs.all(POLICIES["FGD"], seeds)
    return {name: _against(runs.all(policy, seeds), base) for name, policy in POLICIES.items()}


def _against(own: Sequence[Run], base: Sequence[Run]) -> Compared:
    ratios = np.array([run.power_w[LOADS] / other.power_w[LOADS] * 100.0 for run, other in zip(own, base, strict=True)])
    lost = [other.allocation_pct[FINAL] - run.allocation_pct[FINAL] for run, other in zip(own, base, strict=True)]
    by_load = ratios.mean(axis=0)
    return Compared(
        allocation_pct=estimate([run.allocation_pct[FINAL] for run in own]),
        lost_points=estimate(lost),
        power_pct=estimate(ratios.mean(axis=1)),
        worst_power_pct=float(by_load.max()),
        power_pct_at={str(load): float(by_load[load - SHOWN_LOADS_PCT[0]]) for load in SHOWN_LOADS_PCT},
        given_at_most_load_pct=float(np.mean([run.allocation_pct[MOST_LOAD_PCT] for run in own])),
        all_placed_until_pct=min(run.all_placed_until_pct for run in own),
    )


def _frontier(runs: _Runs, seeds: Sequence[int]) -> dict[str, list[WeightPoint]]:
    """Allocation and power by the weight of power."""
    base = runs.all(POLICIES["FGD"], seeds)

    def points(weights: Iterable[float], policy_of: Callable[[float], Policy]) -> list[WeightPoint]:
        found = []
        for weight in weights:
            figures = _against(runs.all(policy_of(weight), seeds), base)
            found.append(
                WeightPoint(weight, figures.allocation_pct.mean, figures.power_pct.mean, figures.worst_power_pct)
            )
        return found

    return {"PWR+FGD": points(PWR_WEIGHTS, pwr_fgd), "joulie": points(POWER_WEIGHTS_MILLI_PER_W, frugal)}


def _curve(own: Sequence[Run]) -> Curve:
    return Curve(
        arrived_pct=GRID_PCT.tolist(),
        allocation_pct=np.array([run.allocation_pct for run in own]).mean(axis=0).round(3).tolist(),
        power_kw=(np.array([run.power_w for run in own]).mean(axis=0) / WATTS_PER_KW).round(3).tolist(),
    )
