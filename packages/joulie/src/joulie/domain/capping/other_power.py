"""What a node draws that no limit reaches (fans, memory, network cards, conversion), from its own readings.

Where a whole node is measured, and its CPUs and GPUs are too, the difference is what no limit reaches. The worst case
of the node takes the highest difference of its own history; where there is none, a stated share of the full power of
its CPUs and GPUs. Fans follow the load, so a node that was never seen busy has no history of what they draw then: the
stated share counts by as much as the node was not seen busy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulie.domain.units import FloatArray, IntArray

HALF_LIFE_S = 86_400.0
"""Half-life of the highest difference and of the highest load, s."""
SAMPLES = 5
"""Differences of which the median counts: both readings are not of the same moment, and load changes in between."""
MAX_SHARE = 1.0
"""Upper bound, as a share of the full power of CPUs and GPUs: more is a reading of something else."""
MIN_STATED = 0.25
"""Lower bound, as a share of what is counted without a history: no sensor takes a node's fans away."""


@dataclass(frozen=True, eq=False)
class OtherPower:
    """What is known of nodes; arrays have shape ``(n_nodes,)``.

    Attributes:
        high_w: the highest difference, W; 0 before there are enough readings.
        busy: the highest power of CPUs and GPUs, as a share of their full power, 0..1.
        recent_w: the latest differences, W, shape ``(n_nodes, SAMPLES)``; NaN where there are fewer.
        time_s: until when it is told, s since the epoch.
    """

    high_w: FloatArray
    busy: FloatArray
    recent_w: FloatArray
    time_s: float

    @classmethod
    def unknown(cls, n_nodes: int, time_s: float) -> OtherPower:
        """Before any reading."""
        return cls(np.zeros(n_nodes), np.zeros(n_nodes), np.full((n_nodes, SAMPLES), np.nan), time_s)

    def moved(self, places: IntArray) -> OtherPower:
        """The same of other nodes: those at `places`; -1 for a new one."""
        new = places < 0
        return OtherPower(
            np.where(new, 0.0, self.high_w[places]),
            np.where(new, 0.0, self.busy[places]),
            np.where(new[:, np.newaxis], np.nan, self.recent_w[places]),
            self.time_s,
        )

    def learned(self, whole_w: FloatArray, parts_w: FloatArray, full_w: FloatArray, now_s: float) -> OtherPower:
        """Take readings into account.

        Args:
            whole_w: power of whole nodes, W; NaN where it is not measured.
            parts_w: power of their CPUs and GPUs, W; NaN where it is not measured.
            full_w: full power of these, W.
            now_s: time, s since the epoch.
        """
        # A clock that went back forgets nothing.
        kept = 0.5 ** (max(now_s - self.time_s, 0.0) / HALF_LIFE_S)
        known = np.isfinite(whole_w) & np.isfinite(parts_w) & (parts_w >= 0.0) & (full_w > 0.0)
        # Where a whole node draws less than its parts, one of the readings is of something else.
        known &= np.greater_equal(whole_w, parts_w, where=known, out=np.zeros_like(known))
        difference_w = np.minimum(whole_w - parts_w, MAX_SHARE * full_w)
        shifted_w = np.column_stack([self.recent_w[:, 1:], difference_w])
        recent_w = np.where(known[:, np.newaxis], shifted_w, self.recent_w)
        settled = known & np.isfinite(recent_w).all(axis=1)
        median_w = np.where(settled, np.median(np.nan_to_num(recent_w), axis=1), 0.0)
        share = np.where(settled, np.clip(parts_w / np.maximum(full_w, 1.0), 0.0, 1.0), 0.0)
        return OtherPower(
            np.maximum(self.high_w * kept, median_w),
            np.maximum(self.busy * kept, share),
            recent_w,
            max(now_s, self.time_s),
        )

    def watts(self, stated_w: FloatArray) -> FloatArray:
        """What no limit reaches, W.

        Args:
            stated_w: what is counted without a history, W.
        """
        return np.maximum(self.high_w, stated_w * np.maximum(1.0 - self.busy, MIN_STATED))
