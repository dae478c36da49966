"""Simulated time as the wall clock drives it."""

from __future__ import annotations

import math
from collections.abc import Callable


class SimulatedClock:
    """Simulated seconds since the start of a run: nothing before it begins, and no more than it is long.

    It follows the wall clock and no count of ticks, as the programs around it do: a tick that comes late is a longer
    one, not lost time.
    """

    def __init__(self, time_scale: float, monotonic: Callable[[], float], *, duration_s: float = math.inf) -> None:
        """A clock that stands at 0.

        Args:
            time_scale: simulated seconds a second.
            monotonic: the wall clock, s.
            duration_s: where it stops, s of simulated time.
        """
        self.duration_s = duration_s
        self._time_scale = time_scale
        self._monotonic = monotonic
        self._began_s: float | None = None
        self._skipped_s = 0.0

    @property
    def started(self) -> bool:
        """Whether time passes, or did."""
        return self._began_s is not None

    @property
    def now_s(self) -> float:
        """Simulated time, s."""
        if self._began_s is None:
            return 0.0
        passed_s = (self._monotonic() - self._began_s) * self._time_scale + self._skipped_s
        return min(passed_s, self.duration_s)

    def start(self) -> None:
        """Let time pass from now on; nothing if it does already."""
        if self._began_s is None:
            self._began_s = self._monotonic()

    def skip_to_end(self) -> None:
        """Be at the end at once."""
        self._skipped_s = self.duration_s
