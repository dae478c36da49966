"""Benchmark profiles: accuracy of the learned trees against the rules, also on a shifted distribution of workloads.

Training, selection of leaves and reporting use separate seeds. Further contenders are trees that only see means, which
show the effect of better thresholds without time series features, and the most frequent level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulie.domain.profiles.learned import features, refined, verdict_of
from joulie.domain.profiles.profile import Classification, Hints
from joulie.domain.profiles.rules import classify
from joulie.domain.profiles.tree import Target, Tree
from joulie.domain.profiles.trees import TREES
from joulie_lab.benchmarks.parity import OnStage
from joulie_lab.benchmarks.profile_levels import LEVELS, cost, is_idle, said_of
from joulie_lab.benchmarks.profile_traces import KNOWN, SHIFTED, Family, Observed, Traces, World
from joulie_lab.benchmarks.results import Estimate, Figures, estimate

WORLDS: Mapping[str, World] = {"known": KNOWN, "shifted": SHIFTED}
RULES = "rules"
LEARNED = "learned"
"""The classifier's option: the rules, refined by the trees that are kept."""
TREES_OF_ALL = "all_trees"
"""The same with the trees that are not kept."""
MEANS = "means"
"""Trees that see what the rules see."""
COMMONEST = "commonest"
"""Always the level that is the most frequent."""
CONTENDERS = (COMMONEST, RULES, MEANS, TREES_OF_ALL, LEARNED)


@dataclass(frozen=True)
class ProfilesPlan:
    """How much is measured.

    Attributes:
        seeds: to report.
        workloads: of each seed, family and world.
    """

    seeds: tuple[int, ...]
    workloads: int


@dataclass(frozen=True)
class TrainingPlan:
    """What the trees are trained on, all of it of the known world.

    Attributes:
        seed: of the workloads that trees are grown on.
        checks_seed: of those that leaves are chosen by.
        workloads: of each family, to grow on; half as many to choose by.
    """

    seed: int
    checks_seed: int
    workloads: int


FULL = ProfilesPlan(seeds=tuple(range(1, 11)), workloads=200)
SMALL = ProfilesPlan(seeds=(1, 2, 3), workloads=30)
TRAINING = TrainingPlan(seed=1001, checks_seed=1002, workloads=3000)


def drawn(world: World, seed: int, workloads: int) -> list[Observed]:
    """Workloads of a world, this many of each family."""
    traces = Traces(world, np.random.default_rng(seed))
    return [traces.draw(family) for family in Family for _ in range(workloads)]


@dataclass(frozen=True)
class Trained:
    """What training made.

    Attributes:
        trees: for the classifier.
        means: trees that see the means alone.
        commonest: the most frequent level of the workloads that they were grown on.
    """

    trees: Mapping[Target, Tree]
    means: Mapping[Target, Tree]
    commonest: Mapping[Target, int]


def trained(plan: TrainingPlan, on_stage: OnStage) -> Trained:
    """Train on simulated workloads. Needs the extra ``learn``."""
    from joulie_lab.benchmarks.profile_training import MEAN_FEATURES, train

    on_stage(f"{plan.workloads * len(Family) * 3 // 2:,} workloads to train on")
    grown = drawn(KNOWN, plan.seed, plan.workloads)
    checks = drawn(KNOWN, plan.checks_seed, plan.workloads // 2)
    on_stage("training")
    frequent = {
        target: Counter(LEVELS.index(one.truth[target]) for one in grown if target in one.truth).most_common(1)[0][0]
        for target in Target
    }
    return Trained(train(grown, checks), train(grown, checks, of=MEAN_FEATURES), frequent)


def module_of(trees: Mapping[Target, Tree]) -> str:
    """The module that the classifier imports, `joulie.domain.profiles.trees`, as text."""
    from joulie_lab.benchmarks.profile_training import module_of

    return module_of(trees)


class LevelFigures(Figures, frozen=True):
    """How often a contender's levels are right, %, and what wrong ones cost."""

    right_pct: Estimate
    cost: Estimate


class GainEstimate(Figures, frozen=True):
    """A gain over the seeds; the low end of its interval is what is sure."""

    mean: float
    half_width: float | None
    low: float


class GainFigures(Figures, frozen=True):
    """How much better the trees are than the rules on the same workloads."""

    right_points: GainEstimate
    cost: GainEstimate


class TargetFigures(Figures, frozen=True):
    """What is said of one target, by contender; those that training makes only where it was run."""

    rules: LevelFigures
    learned: LevelFigures
    gain: GainFigures
    all_trees: LevelFigures | None = None
    means: LevelFigures | None = None
    commonest: LevelFigures | None = None

    def of(self, contender: str) -> LevelFigures | None:
        """What one contender says."""
        found: LevelFigures | None = getattr(self, contender)
        return found


class ProfilesResult(Figures, frozen=True):
    """The result, by world, group of workloads and target."""

    seeds: Sequence[int]
    workloads: int
    worlds: Mapping[str, Mapping[str, Mapping[str, TargetFigures]]]
    committed_trees_differ: int | None = None


def measure(plan: ProfilesPlan, found: Trained | None, on_stage: OnStage) -> ProfilesResult:
    """All figures of the benchmark.

    Args:
        plan: `FULL` or `SMALL`.
        found: what training made, to compare with; None compares the rules with the committed trees alone.
        on_stage: told what is measured next.
    """
    worlds = {}
    for name, world in WORLDS.items():
        by_seed = []
        for seed in plan.seeds:
            on_stage(f"profiles, {name} workloads, seed {seed}")
            by_seed.append(_judged(drawn(world, seed, plan.workloads), found))
        worlds[name] = _summary(by_seed)
    differ = None if found is None else sum(found.trees[target] != tree for target, tree in TREES.items())
    return ProfilesResult(list(plan.seeds), plan.workloads * len(Family), worlds, differ)


Judged = dict[str, dict[str, dict[str, list[tuple[int, int]]]]]
"""True and said level, as places in `LEVELS`, by group, target and contender."""


def _judged(workloads: Iterable[Observed], found: Trained | None) -> Judged:
    judged: Judged = {}
    for one in workloads:
        for contender, said in _contenders(one, found):
            for target, truth in one.truth.items():
                pair = (LEVELS.index(truth), said[target])
                for group in ("all", one.family.value):
                    judged.setdefault(group, {}).setdefault(target, {}).setdefault(contender, []).append(pair)
    return judged


def _contenders(one: Observed, found: Trained | None) -> Iterable[tuple[str, Mapping[Target, int]]]:
    by_rules = classify(Hints(), one.use)
    yield RULES, _levels(one, by_rules)
    yield LEARNED, _levels(one, refined(by_rules, Hints(), one.use, one.course))
    if found is not None:
        yield TREES_OF_ALL, _by_trees(one, by_rules, found.trees)
        yield MEANS, _by_trees(one, by_rules, found.means)
        yield COMMONEST, found.commonest


def _by_trees(one: Observed, by_rules: Classification, trees: Mapping[Target, Tree]) -> dict[Target, int]:
    known, levels = features(one.use, one.course), _levels(one, by_rules)
    for target in one.truth:
        verdict = None if is_idle(target, one) else verdict_of(trees[target], known)
        if verdict is not None:
            levels[target] = LEVELS.index(verdict.level)
    return levels


def _levels(one: Observed, classification: Classification) -> dict[Target, int]:
    return {target: LEVELS.index(said_of(target, classification)) for target in one.truth}


def _summary(by_seed: Sequence[Judged]) -> dict[str, dict[str, TargetFigures]]:
    """Accuracy and cost by group, target and contender, and by how much the trees are better, over the seeds."""
    return {
        group: {
            target: TargetFigures(
                **{
                    contender: _figures([judged[group][target][contender] for judged in by_seed])
                    for contender in contenders
                },
                gain=_gain([judged[group][target] for judged in by_seed]),
            )
            for target, contenders in targets.items()
        }
        for group, targets in by_seed[0].items()
    }


def _figures(by_seed: Sequence[Sequence[tuple[int, int]]]) -> LevelFigures:
    return LevelFigures(
        estimate([_right_pct(pairs) for pairs in by_seed]), estimate([_cost(pairs) for pairs in by_seed])
    )


def _gain(by_seed: Sequence[Mapping[str, Sequence[tuple[int, int]]]]) -> GainFigures:
    """How much better the trees are than the rules on the same workloads: the lower end is what is sure."""
    right = [_right_pct(pairs[LEARNED]) - _right_pct(pairs[RULES]) for pairs in by_seed]
    saved = [_cost(pairs[RULES]) - _cost(pairs[LEARNED]) for pairs in by_seed]
    return GainFigures(_with_low(right), _with_low(saved))


def _with_low(values: Sequence[float]) -> GainEstimate:
    found = estimate(values)
    return GainEstimate(found.mean, found.half_width, found.mean - (found.half_width or 0.0))


def _right_pct(pairs: Sequence[tuple[int, int]]) -> float:
    return 100.0 * float(np.mean([truth == said for truth, said in pairs]))


def _cost(pairs: Sequence[tuple[int, int]]) -> float:
    truth, said = np.array(pairs).T
    return float(cost(truth, said).mean())
