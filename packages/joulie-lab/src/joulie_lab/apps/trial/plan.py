"""How long a trial must be to see a saving, from what a recorded past varied by without any treatment.

The past is evaluated as trials that treated nobody, under many draws. Their contrasts are the noise of the coming
trial: it is resampled with a saving added, and the power is how often the interval then lies above zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from joulie.domain.quantities import SECONDS_PER_HOUR
from joulie.domain.recording import PodRecord
from joulie.domain.trial.draw import TrialNode, all_pairs, draw
from joulie.domain.trial.estimate import evaluate, interval
from joulie.domain.trial.measure import Metered, measure
from joulie.domain.trial.protocol import MIN_PAIRS, Protocol
from joulie.domain.trial.washout import runtimes_s, still_running, washout_s
from joulie.domain.units import FloatArray

DRAWS = 40
"""Draws under which the past is evaluated."""
POWER = 0.8
_TRIALS = 200
_MAX_PAIRS = 120
_SEED = 1


@dataclass(frozen=True)
class Design:
    """Blocks of a trial: length and beginning that is not measured, s; None for what the pods' runtimes ask for."""

    block_s: float
    washout_s: float | None


@dataclass(frozen=True)
class TrialPlan:
    """What a trial of this design can see.

    Attributes:
        contrasts: number of contrasts of the past that it rests on.
        deviation: standard deviation of a contrast, as a ratio: 0.02 is 2 %.
        both_arms: share of the work by pods that would have run under both arms, which a trial cannot tell apart.
        power: by number of pairs, how often the interval lies above zero.
        pairs: pairs that reach a power of `POWER`; None if not even the most do.
        washout_s: beginning of a block that is not measured, s.
        still_running: share of the work running at a switch that still runs when that is over.
    """

    contrasts: int
    deviation: float
    both_arms: float
    power: tuple[tuple[int, float], ...]
    pairs: int | None
    washout_s: float
    still_running: float


def plan(metered: Metered, pods: Sequence[PodRecord], design: Design, saving: float) -> TrialPlan:
    """How many pairs of blocks a saving needs.

    Args:
        metered: measured power of a past without treatment.
        pods: its pods.
        design: blocks of the trial.
        saving: saving of energy per work that shall be seen, 0.05 is 5 %.

    Raises:
        ValueError: the past is too short, or has no measured power or completed work.
    """
    needed_s = 2 * all_pairs(MIN_PAIRS) * design.block_s
    recorded_s = metered.power_w.shape[1] * metered.step_s
    if recorded_s < needed_s:
        raise ValueError(
            f"the recording has {recorded_s / SECONDS_PER_HOUR:g} h; with these blocks"
            f" {needed_s / SECONDS_PER_HOUR:g} h are needed: record longer, or shorten them with --block"
        )
    runtimes = runtimes_s(pods)
    washed_s = washout_s(runtimes, design.block_s) if design.washout_s is None else design.washout_s
    contrasts: list[float] = []
    shares: list[float] = []
    for protocol in _draws(metered, design.block_s, washed_s):
        measured = measure(protocol, pods, metered)
        found = evaluate(protocol, measured.blocks, measured.joules_per_unit).contrasts
        contrasts += [one.log_ratio for one in found if one.log_ratio is not None and not one.whole]
        shares.append(measured.both_arms)
    if len(contrasts) < MIN_PAIRS:
        raise ValueError("the recording has no measured power, or no workload of which pods completed in both arms")
    noise = np.array(contrasts) - np.mean(contrasts)
    power = tuple(_powers(noise, saving))
    return TrialPlan(
        len(contrasts),
        float(np.std(noise, ddof=1)),
        float(np.mean(shares)),
        power,
        next((pairs for pairs, reached in power if reached >= POWER), None),
        washed_s,
        still_running(runtimes, washed_s),
    )


def _draws(metered: Metered, block_s: float, washout_s: float) -> Iterator[Protocol]:
    nodes = [
        TrialNode(one.node, f"{one.cpu_model}, {one.gpu_model}, {one.cores}, {one.gpus}", float(load_w))
        for one, load_w in zip(metered.nodes, metered.mean_w, strict=True)
    ]
    for seed in range(DRAWS):
        yield draw(
            nodes,
            start_s=metered.start_s,
            pairs=MIN_PAIRS,
            seed=seed,
            block_s=block_s,
            washout_s=washout_s,
        )


def _powers(noise: FloatArray, saving: float) -> Iterator[tuple[int, float]]:
    """Power by number of pairs, until it is reached."""
    rng = np.random.default_rng(_SEED)
    pairs = MIN_PAIRS
    while pairs <= _MAX_PAIRS:
        seen = 0
        for _ in range(_TRIALS):
            signs = rng.choice([-1.0, 1.0], pairs)
            bounds = interval(rng.choice(noise, pairs) * signs + math.log1p(-saving), rng)
            seen += bounds is not None and bounds[1] < 0.0
        yield pairs, seen / _TRIALS
        if seen / _TRIALS >= POWER:
            return
        pairs = math.ceil(pairs * 1.25)
