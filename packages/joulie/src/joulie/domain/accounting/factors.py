"""What energy is multiplied by: PUE, carbon intensity on both bases, and price, each with the time that it holds for.

A figure of the ledger is ``amounts`` of the IT energy that was booked on its factors. A factor that becomes known late,
or that turns out to be wrong, changes all figures that rest on it; nothing else does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from joulie.domain.accounting.records import Energy, PowerQuality
from joulie.domain.grid.series import Series
from joulie.domain.units import JOULES_PER_KWH, FloatArray

OUTAGE_SLOT_S = 300.0
"""Length of the slots that energy is booked in while a signal is missing, s: the shortest period of published signals,
so that a later backfill is exact."""
UNKNOWN_SLOT_S = 3600.0
"""The same for signals that were never known, s: nobody may ever provide them, and hours cost a twelfth."""
_TOLERANCE = 1e-12


class FactorKind(StrEnum):
    """What a factor says."""

    INTENSITY = "intensity"
    """Average carbon intensity, gCO2eq/kWh: what an inventory is made of."""
    MARGINAL = "marginal-intensity"
    """Marginal carbon intensity, gCO2eq/kWh: what one more kWh causes. It never enters an inventory."""
    PRICE = "price"
    """Price of electricity, currency/kWh."""
    PUE = "pue"
    """Power usage effectiveness of the data centre, for CPU and memory."""
    GPU_PUE = "gpu-pue"
    """The same for GPUs, power conversion included."""


FACTOR_KINDS = tuple(FactorKind)
SIGNAL_KINDS = (FactorKind.INTENSITY, FactorKind.MARGINAL, FactorKind.PRICE)
"""Factors that are signals of the grid, and can be unknown."""


@dataclass(frozen=True, slots=True)
class Factors:
    """All factors of some energy; None where nobody knows.

    Attributes:
        intensity: average carbon intensity, gCO2eq/kWh.
        marginal: marginal carbon intensity, gCO2eq/kWh.
        price: currency/kWh.
        pue: of CPU and memory.
        gpu_pue: of GPUs.
    """

    intensity: float | None
    marginal: float | None
    price: float | None
    pue: float
    gpu_pue: float


def amounts(cpu_j: float, mem_j: float, gpu_j: float, quality: PowerQuality, factors: Factors) -> Energy:
    """Energy, emissions and cost of IT energy on its factors."""
    energy_j = (cpu_j + mem_j) * factors.pue + gpu_j * factors.gpu_pue
    kwh = energy_j / JOULES_PER_KWH
    return Energy(
        cpu_j=cpu_j,
        mem_j=mem_j,
        gpu_j=gpu_j,
        energy_j=energy_j,
        measured_j=energy_j if quality is PowerQuality.MEASURED else 0.0,
        assumed_j=energy_j if quality is PowerQuality.ASSUMED else 0.0,
        emissions_g=kwh * (factors.intensity or 0.0),
        energy_without_intensity_j=energy_j if factors.intensity is None else 0.0,
        cost=kwh * (factors.price or 0.0),
        energy_without_price_j=energy_j if factors.price is None else 0.0,
        marginal_g=kwh * (factors.marginal or 0.0),
        energy_without_marginal_j=energy_j if factors.marginal is None else 0.0,
    )


@dataclass(frozen=True, eq=False)
class Steps:
    """A signal over a time without gaps: where it is unknown, its value is NaN, by slots.

    Attributes:
        starts_s: (n,), s since the epoch, increasing; the first may lie before the time that was asked for.
        values: (n,), each until the next start.
    """

    starts_s: FloatArray
    values: FloatArray


def steps_between(series: Series | None, from_s: float, until_s: float, slot_s: float) -> Steps:
    """The steps of a signal that touch a time, filled with slots where it is unknown.

    Args:
        series: the signal; None: unknown.
        from_s: start, s since the epoch.
        until_s: end, after the start.
        slot_s: length of the slots, s; they begin at whole multiples of it.
    """
    if series is None or series.end_s <= from_s or series.start_s >= until_s:
        starts_s = _slots(from_s, until_s, slot_s)
        if series is not None and series.end_s <= from_s:
            starts_s[0] = max(starts_s[0], series.end_s)
        return Steps(starts_s, np.full(len(starts_s), np.nan))
    before_s = _slots(from_s, series.start_s, slot_s)
    after_s = _slots(series.end_s, until_s, slot_s)
    first = max(0, int(np.searchsorted(series.starts_s, from_s, side="right")) - 1)
    last = int(np.searchsorted(series.starts_s, until_s, side="left"))
    if len(after_s):
        after_s[0] = series.end_s
    return Steps(
        np.concatenate((before_s, series.starts_s[first:last], after_s)),
        np.concatenate((np.full(len(before_s), np.nan), series.values[first:last], np.full(len(after_s), np.nan))),
    )


def value_over(series: Series, from_s: float, until_s: float) -> float | None:
    """The value of a signal over a time, exactly that of a single step; None unless all of it is known."""
    if not series.covers(from_s, until_s):
        return None
    first = int(np.searchsorted(series.starts_s, from_s, side="right")) - 1
    last = max(first + 1, int(np.searchsorted(series.starts_s, until_s, side="left")))
    values = series.values[first:last]
    if (values == values[0]).all():
        return float(values[0])
    return series.mean(from_s, until_s)


def differs(one: float | None, other: float | None) -> bool:
    """Whether two values of a factor are different by more than rounding."""
    if one is None or other is None:
        return one is not other
    return not math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=0.0)


def _slots(from_s: float, until_s: float, slot_s: float) -> FloatArray:
    """Starts of the slots that touch a time; none where it has no length."""
    if until_s <= from_s:
        return np.zeros(0)
    return np.arange(from_s // slot_s, math.ceil(until_s / slot_s)) * slot_s
