"""The life of a node that may sleep.

A node that nobody needs is cordoned first, with a taint of Joulie's own, because a pod may be on its way to it. Only
when no pod has come is it put to sleep. It is woken for pods that wait, for the forecast, or because a pod is bound to
it after all, and becomes awake when its kubelet is ready. One that does not come back is told again, then given up for
a while, and others are woken in its place. A node whose few pods may be moved is emptied first, where that pays.

    Awake --pays to empty--> Emptying --its pods have gone--> Cordoned
      ^                         +--given up--> Awake
      |
    Awake --nobody needs it--> Cordoned --quiet--> Asleep --needed--> Waking --ready--> Awake
      ^                           |                  |                 |  ^
      +-------- needed -----------+                  |      told again +--+   too often: Failed --later--> Waking
      +-------- came up by itself -------------------+------------------------------+

The states are types with the legal transitions only: nothing goes to `Asleep` but through `Cordoned`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

ANY_BOOT = "?"
"""Of a mark that nobody can read: the node may be on its way down."""


@dataclass(frozen=True)
class Awake:
    """On, and open to pods.

    Attributes:
        empty_since_s: since when no pod but those of DaemonSets is on it, s since the epoch; None while there is one.
        given_up_s: when it was tried in vain to empty it, s since the epoch.
    """

    empty_since_s: float | None = None
    given_up_s: float = -math.inf

    def seen(self, *, empty: bool, now_s: float) -> Awake:
        """The state after a look; a clock that went back starts the time anew."""
        if not empty:
            return replace(self, empty_since_s=None)
        since_s = self.empty_since_s
        return replace(self, empty_since_s=now_s if since_s is None or since_s > now_s else since_s)

    def emptying(self, now_s: float) -> Emptying:
        """It pays to move its pods: keep others off it."""
        return Emptying(now_s)

    def cordoned(self, now_s: float) -> Cordoned:
        """Nobody needs it: keep pods off it."""
        return Cordoned(now_s)


@dataclass(frozen=True)
class Emptying:
    """On and closed to pods; those on it are moved to other nodes.

    Attributes:
        since_s: since when, s since the epoch.
        quiet_looks: looks of this process at which it was empty and no pod waited that it has room for.
        held_looks: looks of this process in a row at which such a pod waited.
    """

    since_s: float
    quiet_looks: int = 0
    held_looks: int = 0

    def seen(self, *, empty: bool, held: bool, now_s: float) -> Emptying:
        """The state after a look; a clock that went back starts the time anew."""
        return Emptying(
            min(self.since_s, now_s),
            self.quiet_looks + 1 if empty and not held else 0,
            self.held_looks + 1 if held else 0,
        )

    def given_up(self, now_s: float) -> Awake:
        """Its pods cannot go, or it is needed: open it, and leave it alone for a while."""
        return Awake(given_up_s=now_s)

    def cordoned(self, now_s: float) -> Cordoned:
        """Its pods have gone and run elsewhere."""
        return Cordoned(now_s)


@dataclass(frozen=True)
class Cordoned:
    """On and empty, closed to pods; one may still be on its way.

    Attributes:
        since_s: since when, s since the epoch.
        quiet_looks: looks of this process at which it was cordoned and empty, whatever the clock says.
    """

    since_s: float
    quiet_looks: int = 0

    def quiet(self) -> Cordoned:
        """Another look without a pod."""
        return replace(self, quiet_looks=self.quiet_looks + 1)

    def awake(self) -> Awake:
        """It is needed after all, or a pod came."""
        return Awake()

    def asleep(self, now_s: float, boot: str = "") -> Asleep:
        """No pod came: switch it off."""
        return Asleep(now_s, boot)


@dataclass(frozen=True)
class Asleep:
    """Told to switch off.

    Attributes:
        since_s: since when, s since the epoch.
        boot: id of the boot that it ends; empty where nothing is switched.
        looks: looks of this process at which it was on still, whatever the clock says.
    """

    since_s: float
    boot: str = ""
    looks: int = 0

    def still_on(self) -> Asleep:
        """Another look at which it is on."""
        return replace(self, looks=self.looks + 1)

    def waking(self, now_s: float) -> Waking:
        """It is needed: switch it on."""
        return Waking(now_s, 1, self.boot)

    def awake(self) -> Awake:
        """It came up by itself: after a loss of mains power, or by somebody's hand."""
        return Awake()


@dataclass(frozen=True)
class Waking:
    """Told to switch on; its kubelet is not ready yet.

    Attributes:
        since_s: when it was told last, s since the epoch.
        attempt: how often it was told.
        boot: id of the boot that sleep ended: while it goes on, the node is on its way down. `ANY_BOOT` if it may be
            any, empty where nothing is switched.
        looks: looks of this process at which that boot went on, whatever the clock says.
    """

    since_s: float
    attempt: int
    boot: str = ""
    looks: int = 0

    def still_on(self) -> Waking:
        """Another look at which it is on its way down."""
        return replace(self, looks=self.looks + 1)

    def awake(self) -> Awake:
        """It is ready."""
        return Awake()

    def told_again(self, now_s: float) -> Waking:
        """It did not become ready in time."""
        return replace(self, since_s=now_s, attempt=self.attempt + 1)

    def failed(self, now_s: float) -> Failed:
        """It was told often enough."""
        return Failed(now_s)


@dataclass(frozen=True)
class Failed:
    """Given up: nothing waits for it.

    Attributes:
        since_s: since when, s since the epoch.
    """

    since_s: float

    def awake(self) -> Awake:
        """It is ready after all."""
        return Awake()

    def waking(self, now_s: float) -> Waking:
        """It was given up long ago, and is needed still."""
        return Waking(now_s, 1)


_PLAIN: Mapping[str, Callable[[float], Emptying | Cordoned | Failed]] = {
    "emptying": Emptying,
    "cordoned": Cordoned,
    "failed": Failed,
}
"""Those whose marks say since when, and no more."""
SleepState = Awake | Emptying | Cordoned | Asleep | Waking | Failed


def mark_of(state: SleepState) -> str:
    """The text of the node's annotation that keeps its state over a restart; empty for `Awake`."""
    match state:
        case Awake():
            return ""
        case Waking():
            return f"waking since {state.since_s:.0f} attempt {state.attempt}{_boot_of(state)}"
        case Asleep():
            return f"asleep since {state.since_s:.0f}{_boot_of(state)}"
        case Emptying() | Cordoned() | Failed():
            return f"{type(state).__name__.lower()} since {state.since_s:.0f}"


def _boot_of(state: Asleep | Waking) -> str:
    return f" boot {state.boot}" if state.boot else ""


def state_of(mark: str, *, tainted: bool, now_s: float) -> SleepState:
    """The state that a node's annotation keeps.

    A node with Joulie's taint and a text that nobody can read may be off and may have pods on their way to it: it is
    taken for one that was told to wake now.

    Args:
        mark: text of the annotation; empty without one.
        tainted: whether the node has Joulie's taint.
        now_s: s since the epoch.
    """
    if not tainted and not mark:
        return Awake()
    words = mark.split()
    boot = words.pop() if len(words) > 3 and words[-2] == "boot" else ""
    match words[:-1] if boot else words:
        case ["waking", "since", since, "attempt", attempt] if since.isdecimal() and attempt.isdecimal():
            return Waking(float(since), max(1, int(attempt)), boot)
        case ["asleep", "since", since] if since.isdecimal():
            return Asleep(float(since), boot)
        case [word, "since", since] if word in _PLAIN and since.isdecimal() and not boot:
            return _PLAIN[word](float(since))
        case _:
            return Waking(now_s, 1, ANY_BOOT)
