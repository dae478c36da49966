"""Benchmark trials: whether a trial's interval holds the truth, on a process of node-blocks fitted to native runs.

Work of a node in a block has a gamma distribution around the node's level and the block's, correlated from block to
block; energy is a base and a part for each unit of work, by hardware, with noise. These are fitted to native runs of
some seeds; trials over native runs of other seeds must vary as much, and hold the truth as often. Effects and what
disturbs a trial are put on top, so that the truth is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import stats

from joulie.domain.recording import Period
from joulie.domain.trial.draw import TrialNode, all_pairs, draw
from joulie.domain.trial.estimate import NodeBlock, Saving, TrialResult, evaluate
from joulie.domain.trial.measure import Metered, measure
from joulie.domain.trial.protocol import MIN_PAIRS, Arm, Protocol
from joulie.domain.units import SECONDS_PER_HOUR, FloatArray
from joulie_lab.benchmarks import recorded_week
from joulie_lab.benchmarks.coverage import Coverage, Interval, coverage, false_savings_pct
from joulie_lab.benchmarks.results import Figures

EFFECTS = (0.0, 0.02, 0.05, 0.10)
_BLOCK_S, _WASHOUT_S = 6.0 * SECONDS_PER_HOUR, SECONDS_PER_HOUR
_BLOCKS = 2 * all_pairs(MIN_PAIRS)
_HOURS = round(_BLOCKS * _BLOCK_S / SECONDS_PER_HOUR)
_OWNER = "work"


@dataclass(frozen=True)
class Plan:
    """Size of the benchmark: trials of each setting, native runs fitted to and judged by, nodes of a native run."""

    trials: int
    fitted: int
    native: int
    nodes: int


FULL = Plan(trials=1000, fitted=8, native=40, nodes=40)
SMALL = Plan(trials=40, fitted=1, native=2, nodes=20)


class TrialsResult(Figures, frozen=True):
    """Coverage by setting; the same of native runs by effect; how much a pair varies there and in the process.

    Each also of the saving at equal work.
    """

    settings: Mapping[str, Coverage]
    settings_equal_work: Mapping[str, Coverage]
    native: Mapping[str, Coverage]
    native_equal_work: Mapping[str, Coverage]
    native_deviation: float
    process_deviation: float

    @property
    def false_savings_pct(self) -> float:
        """Largest share of trials without an effect whose lower bound is above zero, %."""
        return false_savings_pct(self.settings)

    @property
    def false_savings_at_equal_work_pct(self) -> float:
        """The same of the saving at equal work, %."""
        return false_savings_pct(self.settings_equal_work)


# ---- native runs


@dataclass(frozen=True, eq=False)
class Blocks:
    """Energy and work of nodes by block.

    Attributes:
        family: hardware of each node.
        energy_j: energy, J, shape ``(n_nodes, n_blocks)``; NaN where a meter was silent.
        work: work in any unit, of the same shape.
    """

    family: Sequence[str]
    energy_j: FloatArray
    work: FloatArray

    def trial(self, protocol: Protocol, effect: float) -> TrialResult:
        """Evaluate a trial in which treated nodes need less energy by the share `effect`."""
        treated = [protocol.arms_at(block.start_s) for block in protocol.blocks()]
        factor = 1.0 - effect
        measured = [
            NodeBlock(
                name,
                block,
                None if math.isnan(energy) else energy * (factor if arms[name] is Arm.TREATMENT else 1.0),
                {_OWNER: work},
            )
            for name, energies, works in zip(names_of(self), self.energy_j.tolist(), self.work.tolist(), strict=True)
            for block, (energy, work, arms) in enumerate(zip(energies, works, treated, strict=True))
            if name in arms
        ]
        return evaluate(protocol, measured, {_OWNER: 1.0})


def names_of(blocks: Blocks) -> list[str]:
    """Names of the nodes."""
    return [f"node-{place:03}" for place in range(len(blocks.family))]


def drawn(blocks: Blocks, seed: int) -> Protocol:
    """The draw of a trial over these nodes, matched by hardware and mean energy."""
    load = np.nanmean(blocks.energy_j, axis=1).tolist()
    nodes = [TrialNode(*one) for one in zip(names_of(blocks), blocks.family, load, strict=True)]
    return draw(nodes, start_s=0.0, pairs=MIN_PAIRS, seed=seed, block_s=_BLOCK_S, washout_s=_WASHOUT_S)


def native_blocks(n_nodes: int, seed: int) -> Blocks:
    """A native run without power management, behind meters, as a trial measures it."""
    plan = recorded_week.Plan(nodes=n_nodes, hours=_HOURS, drain_hours=24.0, workloads_per_hour=0.3 * n_nodes, seeds=1)
    plant = recorded_week.Plant(plan, seed)
    outcome, power_w = plant.play(None, "kube")
    start_s, step_s = recorded_week.START_S, recorded_week.STEP_S
    jobs = {job.job_id: job for job in plant.jobs}
    period = Period(start_s, start_s + (_HOURS + plan.drain_hours) * SECONDS_PER_HOUR)
    ran = [one for one in outcome.jobs if one.start_s is not None]
    pods = [recorded_week.pod_record(one, jobs[one.job_id], period) for one in ran]
    records = [recorded_week.node_record(node) for node in plant.nodes]
    nodes = [TrialNode(one.node, "", 1.0) for one in records]
    protocol = draw(nodes, start_s=start_s, pairs=MIN_PAIRS, seed=seed, block_s=_BLOCK_S, washout_s=_WASHOUT_S)
    found = measure(protocol, pods, Metered(records, start_s, step_s, power_w))
    place = {one.node: row for row, one in enumerate(records)}
    energy_j = np.full((len(records), _BLOCKS), np.nan)
    work = np.zeros((len(records), _BLOCKS))
    for one in found.blocks:
        energy_j[place[one.node], one.block] = np.nan if one.energy_j is None else one.energy_j
        weights = found.joules_per_unit
        work[place[one.node], one.block] = sum(weights.get(owner, 0.0) * done for owner, done in one.work.items())
    return Blocks([node.family for node in plant.nodes], energy_j, work)


class NativeRun(NamedTuple):
    """A native run, for a worker."""

    nodes: int
    seed: int


def native_run(work: NativeRun) -> tuple[int, Blocks]:
    """The run, with its seed."""
    return work.seed, native_blocks(work.nodes, work.seed)


# ---- the process


@dataclass(frozen=True)
class Family:
    """Nodes of one hardware.

    Attributes:
        nodes: number of them.
        base_j: energy of a block without work, J.
        per_work: energy of a unit of work, J.
        noise_j: standard deviation of a block's energy at the same work, J.
        work: mean work of a block.
        shape: shape of the gamma distribution of work.
        persistence: correlation of work from block to block.
    """

    nodes: int
    base_j: float
    per_work: float
    noise_j: float
    work: float
    shape: float
    persistence: float


@dataclass(frozen=True)
class Process:
    """Families by name, and the standard deviation of the logarithm of a block's load, the same for all nodes."""

    families: Mapping[str, Family]
    load: float


def fitted(runs: Sequence[Blocks]) -> Process:
    """The process that native runs were drawn from, by moments and least squares."""
    families = {name: _family(name, runs) for name in sorted(set(runs[0].family))}
    loads = [np.log(run.work.sum(axis=0) / run.work.sum(axis=0).mean()) for run in runs]
    own = sum(one.work**2 * one.nodes / one.shape for one in families.values())
    by_chance = own / sum(one.work * one.nodes for one in families.values()) ** 2
    return Process(families, math.sqrt(max(float(np.var(np.concatenate(loads))) - by_chance, 0.0)))


def _family(name: str, runs: Sequence[Blocks]) -> Family:
    own = [_rows(run, name) for run in runs]
    energy_j = [run.energy_j[rows] for run, rows in zip(runs, own, strict=True)]
    work = [run.work[rows] for run, rows in zip(runs, own, strict=True)]
    per_work, base_j = np.polyfit(np.concatenate(work).ravel(), np.concatenate(energy_j).ravel(), 1).tolist()
    rest_j = [_alone(e - base_j - per_work * w) for e, w in zip(energy_j, work, strict=True)]
    # Of work, nodes of a family differ by chance alone: only what is common to a block is not the node's own.
    scatter = np.concatenate([w - w.mean(axis=0) for w in work])
    mean = float(np.mean(work))
    persistence = float(np.mean([np.mean(a * b) for a, b in pairwise(scatter.T)]) / np.var(scatter))
    return Family(
        nodes=len(own[0]),
        base_j=base_j,
        per_work=per_work,
        noise_j=float(np.std(rest_j)),
        work=mean,
        shape=mean**2 / float(np.var(scatter)),
        persistence=max(persistence, 0.0),
    )


def _alone(values: FloatArray) -> FloatArray:
    """What is neither common to a block nor to a node: both cancel in a trial."""
    centred = values - values.mean(axis=0)
    return np.asarray(centred - centred.mean(axis=1, keepdims=True))


def _rows(run: Blocks, name: str) -> list[int]:
    return [row for row, family in enumerate(run.family) if family == name]


Disturb = Callable[["Course", np.random.Generator], None]


@dataclass(eq=False)
class Course:
    """A trial's course while it is being made; arrays of shape ``(n_nodes, n_blocks)``.

    Attributes:
        work: factor of each node-block's mean work.
        energy: factor of its energy per work.
        idle: node-blocks that do no work and draw the base.
        silent: node-blocks without measured energy.
    """

    work: FloatArray
    energy: FloatArray
    idle: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    silent: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


def _drift(course: Course, rng: np.random.Generator) -> None:
    """The mix of jobs changes: all need up to 30 % more or less energy per work by the end, each node differently."""
    n_nodes, n_blocks = course.work.shape
    trend = np.linspace(0.0, rng.uniform(-0.3, 0.3), n_blocks)
    course.energy *= np.exp(trend + np.cumsum(rng.normal(0.0, 0.02, (n_nodes, n_blocks)), axis=1))


def _imbalance(course: Course, rng: np.random.Generator) -> None:
    """Nodes differ by far in their load, whatever they were matched by."""
    course.work *= rng.lognormal(0.0, 0.7, (len(course.work), 1))


def _failures(course: Course, rng: np.random.Generator) -> None:
    """A sixth of the nodes fail for up to two days: some are off, some hang and draw their base."""
    n_nodes, n_blocks = course.work.shape
    for node in np.flatnonzero(rng.random(n_nodes) < 1.0 / 6.0):
        first = rng.integers(n_blocks)
        out = slice(first, first + rng.integers(1, 9))
        course.idle[node, out] = True
        course.silent[node, out] |= bool(rng.integers(2))


def _dropouts(course: Course, rng: np.random.Generator) -> None:
    """Meters are silent in 5 % of the node-blocks, and one is broken for a quarter of the time."""
    course.silent |= rng.random(course.silent.shape) < 0.05
    quarter = course.silent.shape[1] // 4
    course.silent[rng.integers(len(course.silent)), rng.integers(4) * quarter :][:quarter] = True


def _bursts(course: Course, rng: np.random.Generator) -> None:
    """Load comes in heavy-tailed bursts that last for a few blocks."""
    n_blocks = course.work.shape[1]
    jumps = np.clip(0.3 * rng.standard_t(3, n_blocks), -1.5, 1.5)
    course.work *= np.exp(np.convolve(jumps, [1.0, 0.5, 0.25])[:n_blocks])


DISTURBANCES: Mapping[str, Disturb] = {
    "drifting job mix": _drift,
    "imbalanced nodes": _imbalance,
    "failing nodes": _failures,
    "silent meters": _dropouts,
    "bursts of load": _bursts,
}


def played(process: Process, disturbances: Sequence[Disturb], rng: np.random.Generator) -> Blocks:
    """Draw a trial's time from the process."""
    family = [name for name, one in process.families.items() for _ in range(one.nodes)]
    own = [process.families[name] for name in family]
    shape = (len(own), _BLOCKS)
    course = Course(np.ones(shape), np.ones(shape), np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_))
    for disturb in disturbances:
        disturb(course, rng)

    def column(name: str) -> FloatArray:
        return np.array([[getattr(one, name)] for one in own])

    persistence, gamma = column("persistence"), column("shape")
    normal = rng.standard_normal(shape)
    for block in range(1, _BLOCKS):
        fresh = np.sqrt(1.0 - persistence[:, 0] ** 2) * normal[:, block]
        normal[:, block] = persistence[:, 0] * normal[:, block - 1] + fresh
    load = np.exp(rng.normal(0.0, process.load, _BLOCKS) - process.load**2 / 2.0)
    spread = stats.gamma.ppf(stats.norm.cdf(normal), gamma) / gamma
    work = np.where(course.idle, 0.0, column("work") * spread * load * course.work)
    energy_j = column("base_j") + column("per_work") * work * course.energy
    energy_j = np.maximum(energy_j + column("noise_j") * rng.standard_normal(shape), 0.2 * column("base_j"))
    return Blocks(family, np.where(course.silent, np.nan, energy_j), work)


# ---- the benchmark


def settings() -> Mapping[str, tuple[float, Sequence[Disturb]]]:
    """Effect and disturbances of each setting."""
    every = tuple(DISTURBANCES.values())
    known = {f"{effect:.0%}, all disturbances": (effect, every) for effect in EFFECTS}
    return known | {f"0%, {name}": (0.0, (one,)) for name, one in DISTURBANCES.items()}


def process_trials(process: Process, effect: float, disturbances: Sequence[Disturb], trials: int, seed: int) -> Judged:
    """Coverage of trials drawn from the process."""
    runs = (played(process, disturbances, np.random.default_rng([seed, number])) for number in range(trials))
    return judged(runs, effect)


class SettingRun(NamedTuple):
    """Trials of one setting, for a worker."""

    process: Process
    name: str
    trials: int
    seed: int


def setting_run(work: SettingRun) -> tuple[str, Judged]:
    """Their coverage, with the name of the setting."""
    return work.name, process_trials(work.process, *settings()[work.name], work.trials, work.seed)


class Judged(NamedTuple):
    """Coverage of the saving per work, and of that at equal work."""

    per_work: Coverage
    at_equal_work: Coverage


def judged(runs: Iterable[Blocks], effect: float) -> Judged:
    """Coverage of a trial over each run, with an effect put on it."""
    found = [run.trial(drawn(run, number), effect) for number, run in enumerate(runs)]
    return Judged(covered([one.saving for one in found], effect), covered([one.equal_work for one in found], effect))


def covered(savings: Sequence[Saving | None], effect: float) -> Coverage:
    """How often the intervals hold the effect."""
    given = [
        Interval(one.low, one.high, effect)
        for one in savings
        if one is not None and one.low is not None and one.high is not None
    ]
    return coverage(given, len(savings))


def deviation(runs: Sequence[Blocks]) -> float:
    """Standard deviation of a pair's contrast without an effect."""
    contrasts = [
        one.log_ratio
        for number, run in enumerate(runs)
        for one in run.trial(drawn(run, number), 0.0).contrasts
        if one.log_ratio is not None and not one.whole
    ]
    return float(np.std(contrasts, ddof=1))
