"""Samples the state of the cluster over time, at a fixed number of times."""

from __future__ import annotations

import math

import numpy as np

from joulie.domain.units import BoolArray
from joulie_lab.simulation.experiment.outcome import OutcomeSeries
from joulie_lab.simulation.live.fleet import LiveFleet


class Recorder:
    """Takes samples at even intervals over a run, its end included."""

    def __init__(self, duration_s: float, n_samples: int) -> None:
        self._times_s = np.linspace(0.0, duration_s, n_samples)
        self._watts_and_kelvins = np.zeros((3, n_samples))
        self._counts = np.zeros((7, n_samples), dtype=np.int64)
        self._taken = 0
        self._max_on_eco = 0

    @property
    def next_s(self) -> float:
        """Time at which the next sample is due, s; inf after the last one."""
        return float(self._times_s[self._taken]) if self._taken < len(self._times_s) else math.inf

    def observe(self, performance_pods_on_eco: int) -> None:
        """Note the number of performance pods on eco nodes: a sample holds the maximum since the previous sample."""
        self._max_on_eco = max(self._max_on_eco, performance_pods_on_eco)

    def sample(
        self,
        fleet: LiveFleet,
        *,
        cooling_w: float,
        outdoor_k: float,
        running: int,
        waiting: int,
        eco: BoolArray,
        draining: BoolArray,
    ) -> None:
        """Take the sample that is due."""
        index = self._taken
        self._watts_and_kelvins[:, index] = float(fleet.wall_w.sum()), cooling_w, outdoor_k
        nodes = [int(np.count_nonzero(selected)) for selected in (eco, draining, fleet.at_cap, fleet.throttled)]
        self._counts[:, index] = running, waiting, *nodes, self._max_on_eco
        self._taken += 1
        self._max_on_eco = 0

    def series(self) -> OutcomeSeries:
        """All samples."""
        return OutcomeSeries(self._times_s, *self._watts_and_kelvins, *self._counts)
