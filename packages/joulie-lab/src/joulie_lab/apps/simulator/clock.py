"""Simulated time, driven by the wall clock."""

from __future__ import annotations

import math
from collections.abc import Callable


class SimulatedClock:
    """Simulated time since the start of a run: 0 before the start, and at most the run's duration.

    It follows the wall clock, like the programs around it, rather than a count of ticks: a late tick is a longer tick,
    not lost time.
    """

    def __init__(self, time_scale: float, monotonic: Callable[[], float], *, duration_s: float = math.inf) -> None:
        """Create a stopped clock at time 0.

        Args:
            time_scale: simulated seconds per second of wall time.
            monotonic: monotonic wall clock, s.
            duration_s: simulated time at which it stops, s.
        """
        self.duration_s = duration_s
        self._time_scale = time_scale
        self._monotonic = monotonic
        self._began_s: float | None = None
        self._skipped_s = 0.0

    @property
    def started(self) -> bool:
        """Whether the clock has been started."""
        return self._began_s is not None

    @property
    def now_s(self) -> float:
        """Simulated time, s."""
        if self._began_s is None:
            return 0.0
        passed_s = (self._monotonic() - self._began_s) * self._time_scale + self._skipped_s
        return min(passed_s, self.duration_s)

    def start(self) -> None:
        """Start the clock; no effect if it is already started."""
        if self._began_s is None:
            self._began_s = self._monotonic()

    def skip_to_end(self) -> None:
        """Advance to the end of the run at once."""
        self._skipped_s = self.duration_s

    def wall_s(self, simulated_s: float) -> float:
        """Wall time that a simulated time takes, s."""
        return simulated_s / self._time_scale
