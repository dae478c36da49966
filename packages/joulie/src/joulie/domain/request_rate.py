"""A rate limit over a sliding window: a maximum number of requests in any minute, also in the first one."""

from __future__ import annotations

from collections.abc import Sequence

_MINUTE_S = 60.0


def next_request(sent_s: Sequence[float], now_s: float, per_minute: float) -> tuple[float, list[float]]:
    """When the next request may be sent.

    Args:
        sent_s: times of the latest requests, sent or reserved, s, in any order.
        now_s: current time, s.
        per_minute: maximum number of requests in any minute; below 1, of one in a longer time.

    Returns:
        The time, s, and the times to remember with it.
    """
    count = max(1, int(per_minute))
    window_s = _MINUTE_S * count / per_minute
    # A time far ahead was written by a clock that has been set back since.
    latest = sorted(time_s for time_s in sent_s if now_s - window_s < time_s <= now_s + window_s + _MINUTE_S)[-count:]
    at_s = max(now_s, latest[0] + window_s) if len(latest) == count else max([now_s, *latest[-1:]])
    return at_s, [*latest, at_s][-count:]
