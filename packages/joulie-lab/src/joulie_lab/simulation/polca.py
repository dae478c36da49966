"""POLCA's rule of power oversubscription: two thresholds and a brake, low priority first (Patel et al., ASPLOS'24).

From 80 % of the rating standard work runs at 1,275 MHz, from 89 % at 1,110 MHz and critical work at 1,305 MHz, of 1,410
MHz (A100); at 100 % the brake takes all to 288 MHz. A threshold is left 5 % below it. Quoted without access to the
paper.
"""

from __future__ import annotations

_THRESHOLDS = (0.80, 0.89, 1.00)
_BACK = 0.05
_FULL_MHZ = 1410.0
_STANDARD_MHZ = (_FULL_MHZ, 1275.0, 1110.0, 288.0)
_CRITICAL_MHZ = (_FULL_MHZ, _FULL_MHZ, 1305.0, 288.0)


def next_stage(load: float, stage: int) -> int:
    """The stage, 0 to 3, after power of `load` times the rating was read in `stage`."""
    reached = sum(load > threshold for threshold in _THRESHOLDS)
    held = sum(load > threshold - _BACK for threshold in _THRESHOLDS)
    return max(reached, min(stage, held))


def power_share(stage: int, *, critical: bool) -> float:
    """Limit in a stage as a share of full power: a clock is told as the power of a fully loaded device at it.

    Assumed: 40 % of it is in proportion to the clock, 60 % to its cube.
    """
    clock = (_CRITICAL_MHZ if critical else _STANDARD_MHZ)[stage] / _FULL_MHZ
    return 0.4 * clock + 0.6 * clock**3
