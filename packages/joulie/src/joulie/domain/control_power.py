"""Measured power of many nodes: the best source that has a fresh sample for each, and its recent past.

Sources are ordered by trust. A sample is fresh, stale or missing; stale and missing ones give way to the next source,
and which source was left out stays visible. Missing is never zero. Source: spec, control loop, digital twin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from joulie.domain.twin import power_trend_w_per_min
from joulie.domain.units import BoolArray, FloatArray, IntArray, finite, non_negative

NO_SOURCE = -1
HISTORY_SAMPLES = 10
"""Maximum number of samples that a trend is fitted to."""


class PowerQuality(StrEnum):
    """Quality of the power sample of a node."""

    FRESH = "fresh"
    DEGRADED = "degraded"
    """Fresh, but a better source has gone stale."""
    STALE = "stale"
    """Sources are known, but none is fresh."""
    MISSING = "missing"
    """No source has ever reported."""


@dataclass(frozen=True, eq=False)
class SourceReadings:
    """Readings of one source for many nodes; all arrays have shape ``(n_nodes,)``.

    Attributes:
        source: its name, as NodeTwin's powerMeasurement.source has it.
        time_s: time of each sample, s since the epoch.
        power_w: power of the whole node, W.
        known: whether there is a sample; other entries may hold any finite number.
    """

    source: str
    time_s: FloatArray
    power_w: FloatArray
    known: BoolArray

    def __post_init__(self) -> None:
        finite(f"time_s of {self.source}", self.time_s)
        non_negative(f"power_w of {self.source}", self.power_w)

    @classmethod
    def of(cls, source: str, nodes: Sequence[str], samples: Mapping[str, tuple[float, float]]) -> SourceReadings:
        """Readings in the order of `nodes`, from time and power by node name.

        Raises:
            InvalidQuantityError: power is NaN or negative, or a time NaN.
        """
        nothing = (0.0, -1.0)
        rows = np.array([samples.get(node, nothing) for node in nodes], dtype=np.float64).reshape(-1, 2)
        known = np.array([node in samples for node in nodes], dtype=np.bool_)
        return cls(source, rows[:, 0], np.where(known, rows[:, 1], 0.0), known)


@dataclass(frozen=True, eq=False)
class PowerChoice:
    """The sample chosen for each node; arrays of shape ``(n_nodes,)``.

    Attributes:
        sources: names, best first.
        source: index into them, `NO_SOURCE` where no sample is fresh.
        silent: index of the best source whose sample is stale, if better than `source`; else `NO_SOURCE`.
        time_s: time of the sample, s since the epoch.
        power_w: power, W; 0 where there is no sample, which `known` tells from a node that draws nothing.
        latest_s: time from which samples are from the future, s since the epoch.
    """

    sources: tuple[str, ...]
    source: IntArray
    silent: IntArray
    time_s: FloatArray
    power_w: FloatArray
    latest_s: float

    @property
    def known(self) -> BoolArray:
        """Whether there is a fresh sample."""
        return np.asarray(self.source != NO_SOURCE)

    def source_of(self, node: int) -> str | None:
        """Name of the source chosen for the node with this index."""
        index = int(self.source[node])
        return None if index == NO_SOURCE else self.sources[index]

    def silent_source_of(self, node: int) -> str | None:
        """Name of the better source that has gone stale, if any."""
        index = int(self.silent[node])
        return None if index == NO_SOURCE else self.sources[index]


def quality_of(source: str | None, silent: str | None) -> PowerQuality:
    """Quality of a node's sample, by the source chosen for it and the better one that has gone stale."""
    if source is not None:
        return PowerQuality.FRESH if silent is None else PowerQuality.DEGRADED
    return PowerQuality.MISSING if silent is None else PowerQuality.STALE


def choose_power(readings: Sequence[SourceReadings], n_nodes: int, now_s: float, stale_after_s: float) -> PowerChoice:
    """The best fresh sample of each node.

    Args:
        readings: all sources, best first, over the same nodes.
        n_nodes: number of nodes.
        now_s: time, s since the epoch.
        stale_after_s: age from which a sample is stale, s. A sample from the future by more than that is
            stale, too: clocks differ.

    Raises:
        InvalidQuantityError: a time is NaN, or the age negative.
    """
    finite("now_s", now_s)
    non_negative("stale_after_s", stale_after_s)
    source = np.full(n_nodes, NO_SOURCE, dtype=np.int64)
    silent = source.copy()
    time_s, power_w = np.zeros(n_nodes), np.zeros(n_nodes)
    for index, reading in enumerate(readings):
        fresh = reading.known & (np.abs(now_s - reading.time_s) <= stale_after_s)
        undecided = source == NO_SOURCE
        silent[undecided & reading.known & ~fresh & (silent == NO_SOURCE)] = index
        taken = undecided & fresh
        source[taken] = index
        time_s[taken] = reading.time_s[taken]
        power_w[taken] = reading.power_w[taken]
    sources = tuple(reading.source for reading in readings)
    return PowerChoice(sources, source, silent, time_s, power_w, now_s + stale_after_s)


@dataclass(frozen=True, eq=False)
class PowerHistory:
    """Recent samples of many nodes, oldest first. A value: `extended` returns a new one.

    Attributes:
        nodes: names, by row.
        source: name of the source of each row's samples; empty where there are none.
        time_s: times, s since the epoch, shape ``(n_nodes, HISTORY_SAMPLES)``.
        power_w: power, W, same shape.
        valid: which entries are samples, same shape.
    """

    nodes: tuple[str, ...] = ()
    source: tuple[str | None, ...] = ()
    time_s: FloatArray = field(default_factory=lambda: np.zeros((0, HISTORY_SAMPLES)))
    power_w: FloatArray = field(default_factory=lambda: np.zeros((0, HISTORY_SAMPLES)))
    valid: BoolArray = field(default_factory=lambda: np.zeros((0, HISTORY_SAMPLES), dtype=np.bool_))

    def extended(self, nodes: tuple[str, ...], choice: PowerChoice) -> PowerHistory:
        """The history of these nodes with one more sample each, where there is a new one.

        A node whose source changed starts anew: the step from an estimate to a measurement is not a trend. So does one
        whose last sample is from the future: the clock was set back.
        """
        old = self if nodes == self.nodes else self._reordered(nodes)
        names = [*choice.sources, None]
        source = tuple(names[index] for index in choice.source.tolist())
        same = np.array([was == now for was, now in zip(old.source, source, strict=True)], dtype=np.bool_)
        goes_on = (same | ~choice.known) & (old.time_s[:, -1] <= choice.latest_s)
        valid = old.valid & goes_on[:, np.newaxis]
        newer = choice.known & ((choice.time_s > old.time_s[:, -1]) | ~valid[:, -1])
        shifted = newer[:, np.newaxis]
        return PowerHistory(
            nodes,
            tuple(now or was for was, now in zip(old.source, source, strict=True)),
            np.where(shifted, np.column_stack([old.time_s[:, 1:], choice.time_s]), old.time_s),
            np.where(shifted, np.column_stack([old.power_w[:, 1:], choice.power_w]), old.power_w),
            np.where(shifted, np.column_stack([valid[:, 1:], choice.known]), valid),
        )

    def without(self, nodes: frozenset[str]) -> PowerHistory:
        """This history without some nodes."""
        return self._reordered(tuple(name for name in self.nodes if name not in nodes))

    def recent(self, now_s: float, window_s: float) -> BoolArray:
        """Which entries are samples of the last `window_s` seconds."""
        return self.valid & (self.time_s >= now_s - window_s)

    def trend_w_per_min(self, now_s: float, window_s: float) -> FloatArray:
        """Slope of each node's power over the last `window_s` seconds, W/min; see `power_trend_w_per_min`."""
        return power_trend_w_per_min(self.time_s, self.power_w, self.recent(now_s, window_s))

    def _reordered(self, nodes: tuple[str, ...]) -> PowerHistory:
        row_of = {node: row for row, node in enumerate(self.nodes)}
        # The row after the last stands for nodes without a past.
        rows = np.array([row_of.get(node, len(self.nodes)) for node in nodes], dtype=np.int64)
        blank = np.zeros((1, HISTORY_SAMPLES))
        sources = (*self.source, None)
        return PowerHistory(
            nodes,
            tuple(sources[row] for row in rows.tolist()),
            np.vstack([self.time_s, blank])[rows],
            np.vstack([self.power_w, blank])[rows],
            np.vstack([self.valid, blank.astype(np.bool_)])[rows],
        )
