"""One run of the simulator: a world that follows the clock, what is done in it, and what is recorded."""

from __future__ import annotations

import math
from enum import StrEnum

from joulie_lab.apps.simulator.clock import SimulatedClock
from joulie_lab.apps.simulator.recorder import Recorder
from joulie_lab.apps.simulator.trace_player import TracePlayer
from joulie_lab.apps.simulator.world import Finished, World


class RunState(StrEnum):
    """Where a run is."""

    WAITING = "waiting"
    """Time stands at 0 until it is told to begin."""
    RUNNING = "running"
    OVER = "over"
    """Its time is over; nothing changes any more."""


class Run:
    """Keeps a world up to the present.

    Attributes:
        world: it.
        player: the jobs of the trace, if there is one.
        recorder: of its course; None for a service without an end.

    Args:
        world: without pods.
        clock: that has not begun.
        player: the jobs.
        recorder: to keep up too.
        resolution_s: changes that are no further apart, s of simulated time, count as one moment: a step of the world
            costs as much for a tenth of a second as for a minute.
    """

    def __init__(
        self,
        world: World,
        clock: SimulatedClock,
        player: TracePlayer | None,
        recorder: Recorder | None,
        *,
        resolution_s: float = 0.0,
    ) -> None:
        self.world = world
        self.player = player
        self.recorder = recorder
        self._clock = clock
        self._resolution_s = resolution_s
        self._finished: list[Finished] = []

    @property
    def state(self) -> RunState:
        """Where it is."""
        if not self._clock.started:
            return RunState.WAITING
        return RunState.OVER if self.world.time_s >= self._clock.duration_s else RunState.RUNNING

    @property
    def duration_s(self) -> float | None:
        """How long it lasts, s of simulated time; None for one without an end."""
        return self._clock.duration_s if math.isfinite(self._clock.duration_s) else None

    def start(self) -> None:
        """Let time begin; nothing if it has."""
        if not self._clock.started:
            self._clock.start()
            if self.recorder is not None:
                self.recorder.begin()

    def finish(self) -> None:
        """Work out the rest at once, with what runs and the caps that are in force.

        Raises:
            ValueError: it has no end.
        """
        if self.duration_s is None:
            raise ValueError("a run without SIM_DURATION has no end")
        self.start()
        self._clock.skip_to_end()

    def catch_up(self) -> None:
        """Bring the world to the present: before anything in it changes, and at every tick."""
        if not self._clock.started:
            return
        now_s = self._clock.now_s
        if now_s - self.world.time_s < self._resolution_s and now_s < self._clock.duration_s:
            return
        while self.recorder is not None and self.recorder.next_s <= now_s:
            self._advance_to(self.recorder.next_s)
            self.recorder.sample()
        self._advance_to(now_s)

    def take_finished(self) -> list[Finished]:
        """The pods whose jobs are done, since the last call: the cluster does not know yet."""
        finished, self._finished = self._finished, []
        return finished

    def _advance_to(self, time_s: float) -> None:
        if time_s > self.world.time_s:
            for finished in self.world.step(time_s - self.world.time_s):
                self._finished.append(finished)
                if self.player is not None:
                    self.player.completed(finished.key, finished.time_s)
