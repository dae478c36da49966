"""Jobs on simulated GPUs that respond to power limits as a job of a sweep did, with noise and phases.

A job does steps at the rate and power of its sweep, interpolated between the limits that were measured. Now and then it
writes a checkpoint or evaluates: no steps then, and another power. The controller sees counters and power only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from joulie.domain.capping.measurements import Sweep
from joulie.domain.units import non_negative, positive


@dataclass(frozen=True)
class Phase:
    """A part of a job without steps, which comes again and again; all of them assumed.

    Attributes:
        name: what the job does.
        every_s: time from one to the next, s.
        length_s: length, s.
        power: power over that of steps.
    """

    name: str
    every_s: float
    length_s: float
    power: float

    def __post_init__(self) -> None:
        positive("length_s", self.length_s)
        positive("every_s - length_s", self.every_s - self.length_s)
        positive("power", self.power)


PHASES = (Phase("evaluation", 7200.0, 120.0, 0.8), Phase("checkpoint", 1800.0, 20.0, 0.4))
"""Assumed phases; where two coincide, the first counts."""
STEPS = "steps"


@dataclass(frozen=True)
class Noise:
    """Random variation of a job, independent from one block of time to the next; assumed.

    Attributes:
        deviation: standard deviation of the logarithm of the mean rate, and of power, over `over_s`.
        over_s: averaging time of that deviation, s.
        block_s: time for which a value holds, s.
    """

    deviation: float = 0.01
    over_s: float = 180.0
    block_s: float = 15.0

    def __post_init__(self) -> None:
        non_negative("deviation", self.deviation)
        positive("over_s", self.over_s)
        positive("block_s", self.block_s)

    @property
    def block_deviation(self) -> float:
        """Standard deviation in a block."""
        return self.deviation * math.sqrt(self.over_s / self.block_s)


@dataclass
class Account:
    """What a job did since its start, and what the same would have taken without a limit.

    Attributes:
        time_s: time, s.
        energy_j: energy of its GPU, J.
        free_time_s: time that its steps, checkpoints and evaluations would have taken without a limit, s.
        free_energy_j: energy that they would have taken, J.
        work: steps, in seconds of undisturbed steps without a limit.
    """

    time_s: float = 0.0
    energy_j: float = 0.0
    free_time_s: float = 0.0
    free_energy_j: float = 0.0
    work: float = 0.0


@dataclass(eq=False)
class MeasuredJob:
    """A running job whose truth is a sweep.

    Attributes:
        name: name of the job in the sweeps.
        sweep: its power and time by limit, on the GPU that it runs on.
        seed: of its noise and of the moments of its phases.
        noise: its random variation.
        account: what it did.
        phase: what it does now.
    """

    name: str
    sweep: Sweep
    seed: int
    noise: Noise = field(default_factory=Noise)
    account: Account = field(default_factory=Account)
    phase: str = STEPS

    def __post_init__(self) -> None:
        self._log_limits_w = np.log(self.sweep.limits_w[::-1])
        self._log_rate = -np.log(self.sweep.slowdown[::-1])
        self._log_power_w = np.log(self.sweep.power_w[::-1])
        self._offsets_s = np.random.default_rng(self.seed).uniform(0.0, [phase.every_s for phase in PHASES])
        self._block = -1
        self._rate = self._power = 1.0
        self.at(0.0)

    def at(self, age_s: float) -> None:
        """Enter the phase and the block of noise of an age, s."""
        block = int(age_s // self.noise.block_s)
        if block != self._block:
            self._block = block
            # One generator a block: what a job does at an age does not depend on when it was looked at.
            draws = np.random.default_rng((self.seed, block)).standard_normal(2)
            self._rate, self._power = np.exp(self.noise.block_deviation * draws).tolist()
        running = (
            phase
            for phase, offset_s in zip(PHASES, self._offsets_s, strict=True)
            if (age_s + offset_s) % phase.every_s < phase.length_s
        )
        now = next(running, None)
        self.phase = STEPS if now is None else now.name
        self._phase_power = 1.0 if now is None else now.power

    def response(self, limit_w: float) -> tuple[float, float]:
        """Power, W, and rate over that without a limit, of undisturbed steps under a limit."""
        at = math.log(limit_w)
        power_w = math.exp(float(np.interp(at, self._log_limits_w, self._log_power_w)))
        return power_w, math.exp(float(np.interp(at, self._log_limits_w, self._log_rate)))

    def operate(self, limit_w: float) -> tuple[float, float]:
        """Power of the GPU now, W, and the rate of steps over that of undisturbed ones without a limit."""
        power_w, rate = self.response(limit_w)
        power_w *= self._power * self._phase_power
        return min(power_w, limit_w), rate * self._rate if self.phase == STEPS else 0.0

    def did(self, dt_s: float, power_w: float, throughput: float) -> None:
        """Account for a step of time.

        Args:
            dt_s: its length, s.
            power_w: mean power of the GPU, W.
            throughput: mean rate, as of `operate`.
        """
        account, free_w = self.account, self.operate(float(self.sweep.limits_w[0]))[0]
        free_s = throughput / self._rate * dt_s if self.phase == STEPS else dt_s
        account.time_s += dt_s
        account.energy_j += power_w * dt_s
        account.free_time_s += free_s
        account.free_energy_j += free_w * free_s
        account.work += throughput * dt_s
