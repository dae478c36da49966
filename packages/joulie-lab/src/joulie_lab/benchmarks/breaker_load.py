"""Synthetic power demand of servers on one feed, in steps of a second, designed to stress a breaker.

Shapes follow what is published of LLM clusters (Patel et al., ASPLOS'24): inference follows its users, so all servers
rise together and in surges; training swings between computing and communicating, all servers of a job in phase.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from joulie.domain.units import BoolArray, FloatArray

SURGE_S = (60.0, 300.0)
RAMP_S = (5.0, 20.0)
STORM_S = 900.0
"""Duration of the storm with full demand of all servers, s."""
STORM_RAMP_S = 5.0
QUIET = 0.45
"""Demand before and after a storm."""


def inference(critical: BoolArray, n_steps: int, rng: np.random.Generator) -> FloatArray:
    """Demand of inference servers, 0..1, shape ``(n_steps, n)``; a step is a second.

    Slow waves and sudden surges are common to all servers, fast noise is each one's own.
    """
    time_s = np.arange(n_steps)
    wave = 0.58 + 0.12 * np.sin(2.0 * np.pi * (time_s / 3600.0 + rng.uniform()))
    common = wave + _noise(n_steps, 1, 0.05, 120.0, rng)[:, 0] + _surges(n_steps, rng)
    own = _noise(n_steps, critical.size, 0.10, 20.0, rng)
    return np.asarray(np.clip(common[:, np.newaxis] + own, 0.0, 1.0))


def training(critical: BoolArray, n_steps: int, rng: np.random.Generator) -> FloatArray:
    """Like `inference` on critical servers; the standard ones train in three jobs, each in phase."""
    demand = inference(critical, n_steps, rng)
    time_s = np.arange(n_steps)
    for members in np.array_split(np.flatnonzero(~critical), 3):
        period_s, computing = rng.uniform(6.0, 25.0), rng.uniform(0.6, 0.85)
        phase = ((time_s + rng.uniform(0.0, period_s)) % period_s) / period_s
        # Every ten minutes a checkpoint, in which GPUs wait for storage.
        saving = (time_s + rng.uniform(0.0, 600.0)) % 600.0 < 25.0
        level = np.where(saving, 0.10, np.where(phase < computing, 0.97, 0.35))
        demand[:, members] = level[:, np.newaxis]
    return demand


def storm(critical: BoolArray, n_steps: int, rng: np.random.Generator) -> FloatArray:
    """Half-busy servers with simultaneous full demand for a quarter of an hour: the worst case."""
    time_s = np.arange(n_steps)
    start_s = rng.uniform(0.3, 0.6) * n_steps
    rising = np.clip((time_s - start_s) / STORM_RAMP_S, 0.0, 1.0) * (time_s < start_s + STORM_S)
    demand = QUIET + (1.0 - QUIET) * rising[:, np.newaxis] + _noise(n_steps, critical.size, 0.05, 20.0, rng)
    return np.asarray(np.clip(demand, 0.0, 1.0))


Load = Callable[[BoolArray, int, np.random.Generator], FloatArray]
LOADS: Mapping[str, Load] = {"inference": inference, "training": training, "storm": storm}


def _noise(n_steps: int, n: int, deviation: float, tau_s: float, rng: np.random.Generator) -> FloatArray:
    """Noise with a memory of `tau_s` (Ornstein-Uhlenbeck), shape ``(n_steps, n)``."""
    kept = np.exp(-1.0 / tau_s)
    shocks = rng.standard_normal((n_steps, n)) * deviation
    shocks[1:] *= np.sqrt(1.0 - kept**2)
    noise = np.empty_like(shocks)
    noise[0] = shocks[0]
    for step in range(1, n_steps):
        noise[step] = kept * noise[step - 1] + shocks[step]
    return noise


def _surges(n_steps: int, rng: np.random.Generator) -> FloatArray:
    """Sudden rises of demand, six an hour on average, shape ``(n_steps,)``."""
    time_s = np.arange(n_steps)
    total = np.zeros(n_steps)
    for _ in range(rng.poisson(6.0 * n_steps / 3600.0)):
        start_s, length_s, ramp_s = rng.uniform(0.0, n_steps), rng.uniform(*SURGE_S), rng.uniform(*RAMP_S)
        rise = np.clip((time_s - start_s) / ramp_s, 0.0, 1.0)
        fall = np.clip((start_s + ramp_s + length_s - time_s) / ramp_s, 0.0, 1.0)
        total = np.maximum(total, rng.uniform(0.15, 0.40) * np.minimum(rise, fall))
    return total
