"""Whether another program sets a device's limit again and again while Joulie limits it.

Two programs that correct each other every few seconds help nobody, and nobody sees who is to blame. So Joulie yields:
after `RESETS` times it leaves the device to the other for `PAUSE_LOOKS` looks, says so, and tries once more then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from joulie.domain.limit_records import SameLimit

RESETS = 3
"""Times that Joulie's limit is replaced by a higher one before it yields."""
CALM_LOOKS = 30
"""Looks in a row that find Joulie's limit in force, after which earlier ones that did not are forgotten."""
PAUSE_LOOKS = 90
"""Looks for which a device is left to the other program: half an hour at the agent's default interval."""


@dataclass(frozen=True)
class Contest:
    """What is known of other writers of one device's limit, in the unit of the limit.

    Attributes:
        put: limit that Joulie put in force at the last look; None where it put none.
        found: higher limit that was found in its place last; None where that never happened.
        resets: times that it happened, without those long ago.
        total: all of them.
        calm: looks in a row that found Joulie's limit in force.
        pause: looks for which the device is still left alone.
    """

    put: float | None = None
    found: float | None = None
    resets: int = 0
    total: int = 0
    calm: int = 0
    pause: int = 0

    @property
    def yields(self) -> bool:
        """Whether the device is left to the other program now."""
        return self.pause > 0

    def looked(self, limit: float | None, same: SameLimit) -> Contest:
        """The state after another look, which found `limit` in force; None where it could not be read."""
        if self.pause:
            return replace(self, pause=self.pause - 1, resets=RESETS - 1)
        if self.put is None or limit is None:
            return self
        if limit > self.put and not same(limit, self.put):
            resets = self.resets + 1
            pause = PAUSE_LOOKS if resets >= RESETS else 0
            return Contest(None, limit, resets, self.total + 1, 0, pause)
        calm = self.calm + 1
        return replace(self, calm=calm, resets=0 if calm >= CALM_LOOKS else self.resets)
