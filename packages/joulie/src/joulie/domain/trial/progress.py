"""Work of workloads whose pods count it themselves: by how much the counter that they name grew in each block.

It is the workload's own claim, in its own unit, and counts where it was made: also of pods that run under both arms,
that have no end, or that failed. A workload counts by it only if all of its pods in the trial do, under both arms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from joulie.domain.trial.protocol import Arm
from joulie.domain.units import FloatArray, IntArray

MIN_COVERED = 0.95
"""Least share of the pods' time, in each arm, of which progress must be known."""
_LONG_STEPS = 2.0
"""In a pod's stay of this many steps, what is not known is more than its first and last moments."""
_MOST = 0.5
"""Share of a stay that must be known to infer the rest of it."""


class Course(NamedTuple):
    """By how much a counter grew.

    Attributes:
        steps: numbers of the recording's steps of which that is known, ascending, shape ``(n_known,)``.
        increases: in them, in the counter's own unit, shape ``(n_known,)``.
    """

    steps: IntArray
    increases: FloatArray

    def between(self, first: int, last: int) -> Course:
        """The part within steps `first` to `last`, the latter not included."""
        place = slice(*np.searchsorted(self.steps, (first, last)))
        return Course(self.steps[place], self.increases[place])

    def over(self, from_step: float, until_step: float) -> tuple[float, float]:
        """Growth over a span, and how much of it is known, steps; the ends of the span may lie within steps."""
        own = self.between(math.floor(from_step), math.ceil(until_step))
        known = np.minimum(own.steps + 1.0, until_step) - np.maximum(own.steps, from_step)
        return float(own.increases.sum()), float(known.sum())


@dataclass(frozen=True)
class Stay:
    """A pod in the measured time of a block.

    Attributes:
        node: that it ran on.
        block: index of the block.
        arm: of the node in the block.
        metric: that the pod names; empty without one.
        steps: how long it ran there, steps.
        known_steps: the part of which progress is known, steps.
        grown: by how much its counter grew in that.
        energy_j: its part of its node's mean power over the stay, J.
    """

    node: str
    block: int
    arm: Arm
    metric: str
    steps: float
    known_steps: float
    grown: float
    energy_j: float

    @property
    def units(self) -> float:
        """Work, in the counter's unit: the part of the stay that is not known counts like the rest."""
        return self.grown * self.steps / self.known_steps if self.mostly_known else self.grown

    @property
    def mostly_known(self) -> bool:
        """Whether enough is known to infer the whole stay."""
        return self.known_steps >= _MOST * self.steps > 0.0


@dataclass(frozen=True)
class Unit:
    """What a workload's work is counted by.

    Attributes:
        metric: its pods' progress metric; empty for completed pods.
        why_not: why not by the metric that pods of it name; empty if none does, or it is counted by it.
    """

    metric: str = ""
    why_not: str = ""


def unit_of(stays: Iterable[Stay]) -> Unit:
    """What the work of a workload is counted by, from the stays of all of its pods."""
    seen = list(stays)
    metrics = {one.metric for one in seen}
    metric = next(iter(metrics), "")
    if len(metrics) > 1:
        return Unit(why_not="not all of its pods name the same metric")
    if not metric:
        return Unit()
    if any(one.steps >= _LONG_STEPS and not one.mostly_known for one in seen):
        return Unit(why_not=f"{metric} is not known of all of its pods")
    for own in ([one for one in seen if one.arm is arm] for arm in Arm):
        steps, known = math.fsum(one.steps for one in own), math.fsum(one.known_steps for one in own)
        if known < MIN_COVERED * steps:
            return Unit(why_not=f"{metric} is known of {known / steps:.0%} of its time, {MIN_COVERED:.0%} are needed")
        if not any(one.units > 0.0 for one in own):
            return Unit(why_not=f"{metric} did not grow under both arms")
    return Unit(metric)


def joules_per_unit(stays: Sequence[Stay]) -> float:
    """Energy of a unit of a workload's progress over the whole trial, J: the same for both arms."""
    return math.fsum(one.energy_j for one in stays) / math.fsum(one.units for one in stays)
