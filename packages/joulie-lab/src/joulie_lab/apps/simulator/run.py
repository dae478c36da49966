"""One run of the simulator: advances the world with the clock, completes jobs and records samples."""

from __future__ import annotations

import math
from enum import StrEnum

from joulie_lab.apps.simulator.clock import SimulatedClock
from joulie_lab.apps.simulator.recorder import Recorder
from joulie_lab.apps.simulator.trace_player import TracePlayer
from joulie_lab.apps.simulator.world import Finished, World


class RunState(StrEnum):
    """State of a run."""

    WAITING = "waiting"
    """Not started: simulated time is 0."""
    RUNNING = "running"
    OVER = "over"
    """The duration is over; nothing changes any more."""


class Run:
    """Advances a world with the clock.

    Attributes:
        world: simulated world.
        player: jobs of the trace; None without a trace.
        recorder: recorder of the run; None for a service without a duration.

    Args:
        world: world without pods.
        clock: clock that has not been started.
        player: jobs of the trace; None without a trace.
        recorder: recorder to advance with the world; None for none.
        resolution_s: changes that are no further apart than this, s of simulated time, are treated as simultaneous: a
            step of the world costs as much for a tenth of a second as for a minute.
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
        """State of the run."""
        if not self._clock.started:
            return RunState.WAITING
        return RunState.OVER if self.world.time_s >= self._clock.duration_s else RunState.RUNNING

    @property
    def duration_s(self) -> float | None:
        """Duration of the run, s of simulated time; None if unlimited."""
        return self._clock.duration_s if math.isfinite(self._clock.duration_s) else None

    def start(self) -> None:
        """Start the run; no effect if it is already started."""
        if not self._clock.started:
            self._clock.start()
            if self.recorder is not None:
                self.recorder.begin()

    def finish(self) -> None:
        """Simulate the rest of the run at once, with the running pods and the caps in force.

        Raises:
            ValueError: the run has no duration.
        """
        if self.duration_s is None:
            raise ValueError("cannot finish a run without a duration: set SIM_DURATION")
        self.start()
        self._clock.skip_to_end()

    def catch_up(self) -> None:
        """Advance the world to the present; called before every change of it and at every tick."""
        if not self._clock.started:
            return
        now_s = self._clock.now_s
        if now_s - self.world.time_s < self._resolution_s and now_s < self._clock.duration_s:
            return
        while self.recorder is not None and self.recorder.next_s <= now_s:
            self._advance_to(self.recorder.next_s)
            self.recorder.sample()
        self._advance_to(now_s)

    @property
    def lag_s(self) -> float:
        """Wall time since the moment that the world's state is of, s."""
        return self._clock.wall_s(self._clock.now_s - self.world.time_s)

    def take_finished(self) -> list[Finished]:
        """The pods whose jobs were completed since the last call, to be reported to the cluster."""
        finished, self._finished = self._finished, []
        return finished

    def _advance_to(self, time_s: float) -> None:
        if time_s > self.world.time_s:
            for finished in self.world.step(time_s - self.world.time_s):
                self._finished.append(finished)
                if self.player is not None:
                    self.player.completed(finished.key, finished.time_s)
