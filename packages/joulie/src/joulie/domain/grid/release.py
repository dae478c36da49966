"""Release of held pods: their order, and a rate limit.

When intensity falls below a threshold, thousands of pods may run at the same moment. A token bucket spreads them, so
that neither the scheduler nor the site's power sees a step. A pod at its latest start is released at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from joulie.domain.quantities import finite_number, positive_number


@dataclass(frozen=True, slots=True)
class Due:
    """A pod that may be released.

    Attributes:
        name: namespace and name, unique.
        priority: of the pod.
        created_s: when it was created, s since the epoch.
        urgent: its latest start is reached, or no signal can hold it; it is never delayed.
    """

    name: str
    priority: int
    created_s: float
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Rate limit of releases.

    Attributes:
        rate_per_s: pods a second over a longer time.
        burst: pods at once after a pause.
    """

    rate_per_s: float
    burst: int

    def __post_init__(self) -> None:
        positive_number("rate_per_s", self.rate_per_s)
        finite_number("burst", self.burst, minimum=1)


@dataclass(frozen=True, slots=True)
class Bucket:
    """How many pods could go at a moment: never more than the burst.

    Attributes:
        tokens: one for each pod.
        time_s: the moment, s since the epoch.
    """

    tokens: float
    time_s: float


class Releases(NamedTuple):
    """Pods to release now."""

    now: tuple[Due, ...]
    bucket: Bucket
    next_s: float | None
    """When the next one of those that wait can go, s since the epoch; None where nobody waits."""


def in_order(due: Iterable[Due], use_priorities: bool) -> list[Due]:
    """Urgent ones, then by priority where that counts, then the oldest; the name decides between equals."""
    return sorted(
        due, key=lambda pod: (not pod.urgent, -pod.priority if use_priorities else 0, pod.created_s, pod.name)
    )


def due_now(ordered: Sequence[Due], bucket: Bucket, now_s: float, limits: Limits) -> Releases:
    """The pods to release now.

    Args:
        ordered: as `in_order` gives them.
        bucket: as the last call left it. A clock that was set back refills nothing.
        now_s: time, s since the epoch.
        limits: how fast they may go.
    """
    passed_s = max(now_s - bucket.time_s, 0.0)
    tokens = min(bucket.tokens + passed_s * limits.rate_per_s, float(limits.burst))
    urgent = sum(pod.urgent for pod in ordered)
    # Who wakes at `next_s` finds a whole token but for the rounding.
    others = min(int(max(tokens - urgent, 0.0) + 1e-6), len(ordered) - urgent)
    going = tuple(ordered[: urgent + others])
    left = Bucket(max(tokens - len(going), 0.0), now_s)
    if len(going) == len(ordered):
        return Releases(going, left, None)
    return Releases(going, left, now_s + max(1.0 - left.tokens, 0.0) / limits.rate_per_s)
