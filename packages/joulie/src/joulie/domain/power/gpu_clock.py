"""Locked GPU clocks: their power and slowdown, and whether they suit a job better than a power limit.

Power over the clock is a linear part plus a nonlinear one above a transition frequency (arXiv 2607.00819, A40 to H200).
A power limit acts only while a job draws more than the limit: it slows the power-hungry phases only. A locked clock
saves in every phase, also where the draw never reaches any limit (memory-bound decoding).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from joulie.domain.hardware import CapRange
from joulie.domain.power.curves import cap_or_uncapped
from joulie.domain.units import FloatArray, InvalidQuantityError, finite, non_negative, positive

CANDIDATES = 121
"""Settings tried of each knob: steps below 1 % of its range."""


class Knob(StrEnum):
    """How the power of a GPU is reduced."""

    NONE = "none"
    POWER_LIMIT = "power_limit"
    LOCKED_CLOCK = "locked_clock"


@dataclass(frozen=True)
class ClockPower:
    """Power over the clock c, a share of the highest: ``base + linear c + nonlinear max(0, c - transition) ** 2``.

    Attributes:
        base_w: W, at a clock of zero.
        linear_w: W for the whole range of the clock.
        nonlinear_w: W per squared share above the transition.
        transition: clock where the nonlinear part begins, 0..1.
    """

    base_w: float
    linear_w: float
    nonlinear_w: float
    transition: float

    def __post_init__(self) -> None:
        non_negative("base_w", self.base_w)
        positive("linear_w", self.linear_w)
        non_negative("nonlinear_w", self.nonlinear_w)
        finite("transition", self.transition, minimum=0.0, maximum=1.0)

    def power_w(self, clock: npt.ArrayLike) -> FloatArray:
        """Draw at a clock of 0..1 of the highest, W."""
        share = finite("clock", clock, minimum=0.0, maximum=1.0)
        above = np.maximum(share - self.transition, 0.0)
        return np.asarray(self.base_w + self.linear_w * share + self.nonlinear_w * above**2)

    def clock_under(self, cap_w: npt.ArrayLike, floor: float) -> FloatArray:
        """The highest clock within floor..1 whose draw meets a cap, solved in closed form.

        Args:
            cap_w: power limit, W; inf where uncapped.
            floor: lowest clock; kept even where the cap is not met by it.
        """
        full_w = self.power_w(1.0)
        limit_w = np.minimum(cap_or_uncapped("cap_w", cap_w), full_w)
        linear = (limit_w - self.base_w) / self.linear_w
        # Above the transition: nonlinear x^2 + linear x = excess, x = c - transition, in the form that stays exact for
        # a vanishing nonlinear part.
        excess_w = np.maximum(limit_w - self.base_w - self.linear_w * self.transition, 0.0)
        root = np.sqrt(self.linear_w**2 + 4.0 * self.nonlinear_w * excess_w)
        curved = self.transition + 2.0 * excess_w / (self.linear_w + root)
        solved = np.where(linear <= self.transition, linear, curved)
        return np.clip(np.where(limit_w < full_w, solved, 1.0), floor, 1.0)


@dataclass(frozen=True)
class JobPhase:
    """A part of a job with a power and a sensitivity of its own, such as prefill and decode.

    Attributes:
        time_share: share of the job's time at full clock; normalised over the phases.
        power: draw over the clock.
        clock_sensitivity: share of that time which stretches as the clock falls: 1 compute-bound, 0 memory-bound.
    """

    time_share: float
    power: ClockPower
    clock_sensitivity: float

    def __post_init__(self) -> None:
        positive("time_share", self.time_share)
        finite("clock_sensitivity", self.clock_sensitivity, minimum=0.0, maximum=1.0)

    def stretch(self, clock: FloatArray) -> FloatArray:
        """Time at a clock over time at the highest clock."""
        return np.asarray(1.0 - self.clock_sensitivity + self.clock_sensitivity / clock)


class KnobChoice(NamedTuple):
    """The better knob for a job and what it does, both as shares of the job without either."""

    knob: Knob
    setting: float
    """Power limit in W, or clock as a share of the highest; 1.0 with no knob."""
    energy_ratio: float
    """Energy for the same work, at most 1."""
    slowdown: float
    """Time for the same work, at least 1."""


def better_knob(
    phases: Sequence[JobPhase], limits: CapRange, *, max_slowdown: float, clock_floor: float = 0.3
) -> KnobChoice:
    """The knob and setting with the minimum energy for the same work within a slowdown.

    A knob must save at least 0.1 % of the energy to be used, and the clock 0.1 % more than the limit to be preferred to
    it, since a limit also bounds the power.

    Args:
        phases: the job, in any order.
        limits: power limits that the device accepts.
        max_slowdown: largest allowed time for the same work over the time without a knob, at least 1.
        clock_floor: lowest clock as a share of the highest (assumed).

    Raises:
        InvalidQuantityError: no phases, or a bound out of range.
    """
    if not phases:
        raise InvalidQuantityError("phases", "must not be empty")
    finite("max_slowdown", max_slowdown, minimum=1.0)
    positive("clock_floor", finite("clock_floor", clock_floor, maximum=1.0))
    limits_w = np.linspace(limits.max_w, limits.min_w, CANDIDATES)
    clocks = np.linspace(1.0, clock_floor, CANDIDATES)
    capped = _best(
        Knob.POWER_LIMIT, limits_w, [p.power.clock_under(limits_w, clock_floor) for p in phases], phases, max_slowdown
    )
    locked = _best(Knob.LOCKED_CLOCK, clocks, [clocks] * len(phases), phases, max_slowdown)
    best = KnobChoice(Knob.NONE, 1.0, 1.0, 1.0)
    for choice in (capped, locked):
        if choice.energy_ratio < best.energy_ratio - 0.001:
            best = choice
    return best


def _best(
    knob: Knob,
    settings: FloatArray,
    phase_clocks: Sequence[FloatArray],
    phases: Sequence[JobPhase],
    max_slowdown: float,
) -> KnobChoice:
    """The setting of one knob with the minimum energy; `phase_clocks` holds each phase's clock at every setting."""
    time = np.zeros_like(settings)
    energy = np.zeros_like(settings)
    full_time = 0.0
    full_energy = 0.0
    for phase, clock in zip(phases, phase_clocks, strict=True):
        phase_time = phase.time_share * phase.stretch(clock)
        time += phase_time
        energy += phase_time * phase.power.power_w(clock)
        full_time += phase.time_share
        full_energy += phase.time_share * float(phase.power.power_w(1.0))
    slowdown = time / full_time
    ratio = np.where(slowdown <= max_slowdown * (1.0 + 1e-12), energy / full_energy, np.inf)
    index = int(np.argmin(ratio))
    return KnobChoice(knob, float(settings[index]), float(ratio[index]), float(slowdown[index]))
