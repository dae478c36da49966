"""What a meter shows of a simulated GPU job over a span of time: steps, checkpoints, evaluations, drift and noise.

The plant computes with a job's mean power and rate; a controller measures windows, which depart from them. All times
and shares are assumed; noise is the scatter of the published sweeps, 2 to 4 % between runs (design record 0005).
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

NOISE = 0.02
"""Standard deviation of a window's power and progress, as a share."""
_DRIFT = 0.01
_DRIFT_S = 6.0 * 3600.0


class Seen(NamedTuple):
    """A window's power and progress, over the job's mean power and rate."""

    power: float
    progress: float


@dataclass(frozen=True)
class _Pause:
    """Work that recurs beside the steps: no step is made, and power is lower meanwhile."""

    every_s: float
    length_s: float
    power: float

    def share(self, from_s: float, until_s: float, offset_s: float) -> float:
        """Share of a span that it takes."""
        done_s = [self._until(at_s + offset_s) for at_s in (from_s, until_s)]
        return (done_s[1] - done_s[0]) / (until_s - from_s)

    def _until(self, at_s: float) -> float:
        whole, rest_s = divmod(at_s, self.every_s)
        return whole * self.length_s + min(rest_s, self.length_s)


_PAUSES = (_Pause(every_s=1800.0, length_s=30.0, power=0.4), _Pause(every_s=7200.0, length_s=240.0, power=0.8))
"""Checkpoints and evaluations."""


def seen(key: str, from_s: float, until_s: float) -> Seen:
    """What a meter shows of a job over a span; the same for the same job and span.

    Args:
        key: of the job.
        from_s: begin of the span, s.
        until_s: its end, s, after `from_s`.
    """
    at = zlib.crc32(key.encode())
    paused = [pause.share(from_s, until_s, at % pause.every_s) for pause in _PAUSES]
    usual = [pause.length_s / pause.every_s for pause in _PAUSES]
    drift = 1.0 + _DRIFT * math.sin(2.0 * math.pi * ((from_s + until_s) / 2.0 + at % _DRIFT_S) / _DRIFT_S)
    noise = np.exp(NOISE * np.random.default_rng([at, max(round(from_s), 0)]).standard_normal(2)).tolist()
    power = _power(paused) / _power(usual)
    progress = (1.0 - sum(paused)) / (1.0 - sum(usual))
    return Seen(power * noise[0], progress * drift * noise[1])


def _power(shares: list[float]) -> float:
    return 1.0 - sum(share * (1.0 - pause.power) for share, pause in zip(shares, _PAUSES, strict=True))
