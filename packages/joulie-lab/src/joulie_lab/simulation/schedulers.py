"""Registry of all scheduler names, for `joulie simulate` and for experiments.

One name has two meanings, because results are published under both. In `joulie simulate`, whose engine places jobs
itself, `joulie` is the published formula t25-adap. In experiments, whose native runtime and control planes run what a
cluster runs, it is kube-scheduler with Joulie's extender; there the formula is called t25-adap.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from joulie.domain.scoring import formulas
from joulie.domain.scoring.marginal_energy import ScoringAim
from joulie_lab.simulation import placement, published
from joulie_lab.simulation.placement import Scorer

# How the engine chooses the node.
BY_CLASS, AT_RANDOM, BY_HEADROOM, BY_LEGACY, BY_KEY, BY_ENERGY = range(6)
# How a power trend becomes score points.
TREND_NONE, TREND_TDP, TREND_ADAPTIVE, TREND_STEADY = range(4)


class UnknownSchedulerError(ValueError):
    """No scheduler has that name; the message lists those that exist."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        super().__init__(f"unknown scheduler {name!r}{hint} (known: {', '.join(known)})")


@dataclass(frozen=True)
class EngineRules:
    """How the engine chooses a node under a scheduler.

    Attributes:
        family: one of ``BY_*`` or ``AT_RANDOM``.
        trend: how a power trend becomes score points, one of ``TREND_*``.
        trend_low: minimum points of the trend.
        trend_high: maximum points of the trend.
        gpu_penalty: whether jobs without GPUs lose points on nodes with GPUs.
        packs_by_power: family BY_KEY packs by power instead of by allocation.
        governed: family BY_ENERGY with the ramp governor, which needs a queue to hold jobs in.
        oracle: family BY_ENERGY knows durations instead of learning them: an upper bound, not a policy.
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
    """A scheduler in `joulie simulate` and in experiments.

    Attributes:
        engine: rules of the engine of `joulie simulate`; None if only experiments have the scheduler.
        scorer: the published formula as a pure function: it equals the engine's rules, and the native runtime uses it
            unless `is_kube`; None for schedulers that do not score.
        is_kube: whether it is kube-scheduler in experiments.
        extender: scoring aim of Joulie's extender next to kube-scheduler; None without the extender.
    """

    engine: EngineRules | None = None
    scorer: Scorer | None = None
    is_kube: bool = False
    extender: ScoringAim | None = None

    @property
    def is_random(self) -> bool:
        """Whether it chooses nodes at random."""
        return self.engine is not None and self.engine.family == AT_RANDOM

    @property
    def is_native(self) -> bool:
        """Whether experiments support it."""
        return self.is_kube or self.is_random or self.scorer is not None

    @property
    def looks_at_power(self) -> bool:
        """Whether it uses the twins in an experiment."""
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
"""kube-scheduler alone, in experiments."""
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
"""Names that `joulie simulate` supports."""
NATIVE_SCHEDULERS = tuple(name for name, one in _REGISTRY.items() if one.is_native)
"""Names that experiments support."""
KUBE_SCHEDULERS = tuple(name for name, one in _REGISTRY.items() if one.is_kube)
"""Names that experiments also support on a control plane."""
SCORERS: Mapping[str, Scorer] = {name: one.scorer for name, one in _REGISTRY.items() if one.scorer is not None}
"""Published formulas by name."""


def engine_rules(name: str) -> EngineRules:
    """Rules by which the engine chooses nodes under a scheduler.

    Raises:
        UnknownSchedulerError: `joulie simulate` has no scheduler of that name.
    """
    found = _REGISTRY.get(name)
    if found is None or found.engine is None:
        raise UnknownSchedulerError(name, SCHEDULERS)
    return found.engine


def native_scheduler(name: str) -> Scheduler:
    """Look up a scheduler of experiments by name.

    Raises:
        UnknownSchedulerError: experiments have no scheduler of that name.
    """
    if name not in NATIVE_SCHEDULERS:
        raise UnknownSchedulerError(name, NATIVE_SCHEDULERS)
    return _REGISTRY[name]


def extender_aim(name: str) -> ScoringAim | None:
    """Scoring aim of Joulie's extender in an experiment; None without the extender or for an unknown name."""
    found = _REGISTRY.get(name)
    return None if found is None else found.extender
