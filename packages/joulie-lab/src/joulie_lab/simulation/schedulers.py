"""Every scheduler name in one registry: what it means to `joulie simulate` and what to experiments.

One name has two meanings, since results are published under both: `joulie` is the published formula t25-adap to
`joulie simulate`, whose engine places jobs on its own, and kube-scheduler with Joulie's extender to experiments, whose
native runtime and control planes run what a cluster runs. There the formula is called t25-adap.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from joulie.domain.scoring import formulas
from joulie.domain.scoring.marginal_energy import ScoringAim
from joulie_lab.simulation import placement, published
from joulie_lab.simulation.placement import Scorer

# How the engine finds the node.
BY_CLASS, AT_RANDOM, BY_HEADROOM, BY_LEGACY, BY_KEY, BY_ENERGY = range(6)
# How a trend becomes points.
TREND_NONE, TREND_TDP, TREND_ADAPTIVE, TREND_STEADY = range(4)


class UnknownSchedulerError(ValueError):
    """A scheduler name that does not exist; the message lists those that do."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        super().__init__(f"unknown scheduler {name!r}{hint} (known: {', '.join(known)})")


@dataclass(frozen=True)
class EngineRules:
    """How the engine finds a scheduler's node.

    Attributes:
        family: one of ``BY_*`` or ``AT_RANDOM``.
        trend: how a power trend becomes points.
        trend_low: lower limit of the trend's points.
        trend_high: upper limit of the trend's points.
        gpu_penalty: whether jobs without GPUs lose points on nodes with GPUs.
        packs_by_power: family BY_KEY packs by power instead of by allocation.
        governed: family BY_ENERGY with the ramp governor, which needs a queue to hold jobs in.
        oracle: family BY_ENERGY knows durations instead of learning them: a yardstick, not a policy.
    """

    family: int
    trend: int = TREND_NONE
    trend_low: float = 0.0
    trend_high: float = 0.0
    gpu_penalty: bool = False
    packs_by_power: bool = False
    governed: bool = False
    oracle: bool = False


@dataclass(frozen=True)
class Scheduler:
    """What a name means.

    Attributes:
        engine: to `joulie simulate`; None where its engine does not have it.
        scorer: the published formula as a pure function: what the engine's rules compute, and what the native runtime
            plays unless `is_kube`; None for those that do not score.
        is_kube: whether it is kube-scheduler to experiments.
        extender: what Joulie's extender aims at beside kube-scheduler; None without the extender.
    """

    engine: EngineRules | None = None
    scorer: Scorer | None = None
    is_kube: bool = False
    extender: ScoringAim | None = None

    @property
    def is_random(self) -> bool:
        """Whether it draws a node."""
        return self.engine is not None and self.engine.family == AT_RANDOM

    @property
    def is_native(self) -> bool:
        """Whether experiments have it."""
        return self.is_kube or self.is_random or self.scorer is not None

    @property
    def looks_at_power(self) -> bool:
        """Whether it asks the twins in an experiment."""
        return self.extender is not None if self.is_kube else self.scorer is not None


def _by_class(scorer: Scorer) -> Scheduler:
    return Scheduler(EngineRules(BY_CLASS), scorer)


def _by_trend(
    family: int, trend: int, scorer: Scorer, *, gpu_penalty: bool = False, packs_by_power: bool = False
) -> Scheduler:
    rules = EngineRules(family, trend, *published.LEGACY_TREND_LIMITS, gpu_penalty, packs_by_power)
    return Scheduler(rules, scorer)


def _headroom(
    cap_points: float,
    *,
    adaptive: bool = False,
    gpu_penalty: bool = False,
    is_kube: bool = False,
    extender: ScoringAim | None = None,
) -> Scheduler:
    trend = TREND_ADAPTIVE if adaptive else TREND_TDP
    return Scheduler(
        EngineRules(BY_HEADROOM, trend, -cap_points, cap_points, gpu_penalty),
        placement.headroom_scorer(cap_points, adaptive=adaptive, gpu_penalty=gpu_penalty),
        is_kube,
        extender,
    )


KUBE = "kube"
"""kube-scheduler alone, to experiments."""
JOULIE = "joulie"
_REGISTRY: Mapping[str, Scheduler] = {
    KUBE: Scheduler(is_kube=True),
    "joulie-energy": Scheduler(is_kube=True, extender=ScoringAim.ENERGY),
    "most-allocated": _by_class(placement.most_allocated),
    "least-allocated": _by_class(placement.least_allocated),
    "random": Scheduler(EngineRules(AT_RANDOM)),
    "pwr": _by_class(placement.pwr),
    "joulie-legacy": _by_trend(BY_LEGACY, TREND_ADAPTIVE, placement.legacy, gpu_penalty=True),
    JOULIE: _headroom(formulas.TREND_CAP_POINTS, adaptive=True, is_kube=True, extender=ScoringAim.HEADROOM),
    "t10": _headroom(10.0),
    "t15": _headroom(15.0),
    "t20": _headroom(20.0),
    "t25": _headroom(25.0),
    "t30": _headroom(30.0),
    "t20-gpu": _headroom(20.0, gpu_penalty=True),
    "t20-adap": _headroom(20.0, adaptive=True),
    "t25-adap": _headroom(formulas.TREND_CAP_POINTS, adaptive=True),
    "gpu-most-allocated": _by_class(placement.gpu_most_allocated),
    "marginal-energy": Scheduler(EngineRules(BY_ENERGY)),
    "marginal-energy-ramp": Scheduler(EngineRules(BY_ENERGY, governed=True)),
    "marginal-energy-ramp-oracle": Scheduler(EngineRules(BY_ENERGY, governed=True, oracle=True)),
    "gpu-avoid": _by_class(placement.gpu_avoid),
    "power-pack": _by_trend(BY_KEY, TREND_STEADY, placement.power_pack, packs_by_power=True),
    "most-allocated-trend": _by_trend(BY_KEY, TREND_STEADY, placement.most_allocated_trend),
    "combined": _by_trend(BY_KEY, TREND_STEADY, placement.combined, gpu_penalty=True, packs_by_power=True),
}

SCHEDULERS = tuple(name for name, one in _REGISTRY.items() if one.engine is not None)
"""Names that `joulie simulate` has."""
NATIVE_SCHEDULERS = tuple(name for name, one in _REGISTRY.items() if one.is_native)
"""Names that experiments have."""
KUBE_SCHEDULERS = tuple(name for name, one in _REGISTRY.items() if one.is_kube)
"""Names that experiments have on a control plane, too."""
SCORERS: Mapping[str, Scorer] = {name: one.scorer for name, one in _REGISTRY.items() if one.scorer is not None}
"""Published formulas by name."""


def engine_rules(name: str) -> EngineRules:
    """How the engine finds the node of a scheduler.

    Raises:
        UnknownSchedulerError: `joulie simulate` does not have it.
    """
    found = _REGISTRY.get(name)
    if found is None or found.engine is None:
        raise UnknownSchedulerError(name, SCHEDULERS)
    return found.engine


def native_scheduler(name: str) -> Scheduler:
    """What a name means to experiments.

    Raises:
        UnknownSchedulerError: they do not have it.
    """
    if name not in NATIVE_SCHEDULERS:
        raise UnknownSchedulerError(name, NATIVE_SCHEDULERS)
    return _REGISTRY[name]


def extender_aim(name: str) -> ScoringAim | None:
    """What Joulie's extender aims at in an experiment; None for a scheduler that does not ask it, or is unknown."""
    found = _REGISTRY.get(name)
    return None if found is None else found.extender
