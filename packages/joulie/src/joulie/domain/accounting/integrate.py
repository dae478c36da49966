"""Energy, emissions and cost of intervals between two samples of power.

Between its samples power is a straight line, carbon intensity and price are steps. Stretches are cut where a step or an
hour begins; on each piece energy is the trapezoid, exactly, and emissions and cost are that energy times one number,
exactly too. Nothing is approximated but the straight line.

Source: spec, grid: "energy by the trapezoid rule; emissions = energy * intensity at the time; both times PUE".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulie.domain.accounting.factors import Steps
from joulie.domain.accounting.records import PowerQuality
from joulie.domain.units import JOULES_PER_KWH, SECONDS_PER_HOUR, BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Stretches:
    """Time between two samples of a pod each; arrays of shape ``(n,)`` and ``(n, 3)``.

    Attributes:
        from_s: start, s since the epoch.
        until_s: end, after the start.
        from_w: power of CPU, memory and GPUs at the start, IT, W.
        until_w: the same at the end, W.
        pue: what each of the three is multiplied by, at least 1, shape ``(n, 3)``.
        measured: power was measured at both ends.
        assumed: power was assumed at one end, or all of the time.
    """

    from_s: FloatArray
    until_s: FloatArray
    from_w: FloatArray
    until_w: FloatArray
    pue: FloatArray
    measured: BoolArray
    assumed: BoolArray

    def __len__(self) -> int:
        return len(self.from_s)

    def at(self, index: IntArray) -> Stretches:
        """Some of them."""
        return Stretches(
            self.from_s[index],
            self.until_s[index],
            self.from_w[index],
            self.until_w[index],
            self.pue[index],
            self.measured[index],
            self.assumed[index],
        )


@dataclass(frozen=True, eq=False)
class Pieces:
    """Energy between two cuts; arrays of shape ``(n,)``, in order of stretches, then time.

    Attributes:
        stretch: index of the stretch.
        low_s: start, s since the epoch.
        high_s: end, s since the epoch.
        step: index of the step of each signal, shape ``(n, 3)``.
        energy: shape ``(n, 12)``, columns in the order of `ENERGY_FIELDS`.
    """

    stretch: IntArray
    low_s: FloatArray
    high_s: FloatArray
    step: IntArray
    energy: FloatArray


@dataclass(frozen=True, eq=False)
class Buckets:
    """Energy by stretch and hour, or other span; arrays of shape ``(n,)``, in order of stretches, then spans.

    Attributes:
        stretch: index of the stretch.
        hour: whole hours, or other spans, since the epoch.
        energy: shape ``(n, 12)``, columns in the order of `ENERGY_FIELDS`.
    """

    stretch: IntArray
    hour: IntArray
    energy: FloatArray


def qualities(first: PowerQuality, second: PowerQuality, gap: bool) -> tuple[bool, bool]:
    """Whether the power between two samples counts as measured, and whether as assumed: it is as good as the worse."""
    ends = {first, second}
    return ends == {PowerQuality.MEASURED} and not gap, PowerQuality.ASSUMED in ends or gap


def integrate(
    stretches: Stretches, signals: Sequence[Steps], span_s: float = SECONDS_PER_HOUR, cuts_s: Sequence[float] = ()
) -> Pieces:
    """Energy of stretches of one zone, cut at hours, or other spans, and at the steps of its signals.

    Args:
        stretches: to integrate; at least one.
        signals: average and marginal carbon intensity, gCO2eq/kWh, and price, currency/kWh, over all of their time;
            NaN where unknown.
        span_s: length of a span, s.
        cuts_s: further times to cut at, s since the epoch.
    """
    stretch, low_s, high_s = _pieces(stretches, _edges(stretches, span_s, signals, cuts_s))
    it_j = _trapezoid(stretches, stretch, low_s, high_s)
    energy_j = (it_j * stretches.pue[stretch]).sum(axis=1)
    kwh = energy_j / JOULES_PER_KWH
    step = np.column_stack([np.searchsorted(one.starts_s, low_s, side="right") - 1 for one in signals])
    g_per_kwh, marginal_g_per_kwh, per_kwh = (one.values[step[:, place]] for place, one in enumerate(signals))
    energy = np.column_stack(
        (
            it_j,
            energy_j,
            np.where(stretches.measured[stretch], energy_j, 0.0),
            np.where(stretches.assumed[stretch], energy_j, 0.0),
            np.nan_to_num(kwh * g_per_kwh),
            np.where(np.isnan(g_per_kwh), energy_j, 0.0),
            np.nan_to_num(kwh * per_kwh),
            np.where(np.isnan(per_kwh), energy_j, 0.0),
            np.nan_to_num(kwh * marginal_g_per_kwh),
            np.where(np.isnan(marginal_g_per_kwh), energy_j, 0.0),
        )
    )
    return Pieces(stretch, low_s, high_s, step, energy)


def by_span(pieces: Pieces, span_s: float = SECONDS_PER_HOUR) -> Buckets:
    """The sums of pieces by stretch and hour, or other span that they were cut at."""
    hour = (pieces.low_s // span_s).astype(np.int64)
    first = np.flatnonzero(np.append(True, (np.diff(pieces.stretch) != 0) | (np.diff(hour) != 0)))
    return Buckets(pieces.stretch[first], hour[first], np.add.reduceat(pieces.energy, first, axis=0))


def _edges(stretches: Stretches, span_s: float, signals: Sequence[Steps], cuts_s: Sequence[float]) -> FloatArray:
    """Times at which a piece begins: whole spans, steps of the signals, and further cuts."""
    low_s, high_s = stretches.from_s.min(), stretches.until_s.max()
    spans = np.arange(low_s // span_s, high_s // span_s + 1.0) * span_s
    edges = np.unique(np.concatenate((spans, cuts_s, *(one.starts_s for one in signals))))
    within: FloatArray = edges[(edges >= spans[0]) & (edges <= high_s)]
    return within


def _pieces(stretches: Stretches, edges_s: FloatArray) -> tuple[IntArray, FloatArray, FloatArray]:
    """Cut at the edges: stretch, start and end of each piece, in order."""
    first = np.searchsorted(edges_s, stretches.from_s, side="right")
    count = np.searchsorted(edges_s, stretches.until_s, side="left") - first + 1
    stretch = np.repeat(np.arange(len(stretches)), count)
    ends = np.cumsum(count)
    place = np.arange(ends[-1]) - np.repeat(ends - count, count)
    edge = first[stretch] + place
    # What is taken beyond the ends is overwritten below.
    low_s = edges_s[np.maximum(edge - 1, 0)]
    high_s = edges_s[np.minimum(edge, len(edges_s) - 1)]
    low_s[ends - count] = stretches.from_s
    high_s[ends - 1] = stretches.until_s
    return stretch, low_s, high_s


def _trapezoid(stretches: Stretches, stretch: IntArray, low_s: FloatArray, high_s: FloatArray) -> FloatArray:
    """IT energy of pieces, J, shape ``(n, 3)``."""
    from_s, until_s = stretches.from_s[stretch], stretches.until_s[stretch]
    middle = ((low_s - from_s) + (high_s - from_s)) / (2.0 * (until_s - from_s))
    from_w, until_w = stretches.from_w[stretch], stretches.until_w[stretch]
    mean_w = from_w + (until_w - from_w) * middle[:, None]
    result: FloatArray = mean_w * (high_s - low_s)[:, None]
    return result
