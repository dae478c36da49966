"""Events of a grid operator's demand response: reductions of a budget, and signals that it may follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from joulie.domain.capping.watts_in_force import Reduction
from joulie.domain.quantities import InvalidQuantityError, finite_number

SIMPLE, IMPORT_CAPACITY_LIMIT = "SIMPLE", "IMPORT_CAPACITY_LIMIT"
"""OpenADR's payloads that reduce a budget: a level from 0 (normal) to 3, and a limit on what is drawn, here in W."""
LEAST_W = 1.0
"""What a limit of nothing counts as, W: nodes go to their lowest limits, and the budget says what is missing."""

PRICE, GHG = "PRICE", "GHG"
"""OpenADR's payloads that are signals: price of energy, currency/kWh, and marginal emissions, g/kWh."""
SIGNALS = (PRICE, GHG)


class GridEvent(NamedTuple):
    """An interval of an event.

    Attributes:
        name: unique name.
        start_s: start, s since the epoch.
        end_s: end, s since the epoch.
        payload: its type.
        value: level, W, or that of the signal.
    """

    name: str
    start_s: float
    end_s: float
    payload: str
    value: float


def reduction_of(event: GridEvent, base_w: float, simple_percent: Mapping[int, float]) -> Reduction | None:
    """The event as a reduction of a budget; None where it asks for none, or cannot be understood.

    Args:
        event: the event.
        base_w: watts of the budget.
        simple_percent: by how much each level of SIMPLE reduces it, %.
    """
    if event.payload not in (SIMPLE, IMPORT_CAPACITY_LIMIT):
        return None
    try:
        value = finite_number("value", event.value)
        left = 1.0 - simple_percent.get(round(value), 0.0) / 100.0
        limit_w = base_w * left if event.payload == SIMPLE else max(value, LEAST_W)
        return None if limit_w >= base_w else Reduction(event.name, event.start_s, event.end_s, limit_w)
    except InvalidQuantityError:
        return None


def signal_at(events: Sequence[GridEvent], payload: str, now_s: float) -> float | None:
    """The value of a signal at a time; of several intervals the highest, None without any.

    Args:
        events: in any order.
        payload: one of `SIGNALS`.
        now_s: time, s since the epoch.
    """
    values = [one.value for one in events if one.payload == payload and one.start_s <= now_s < one.end_s]
    return max(values, default=None)


def merged(known: Sequence[GridEvent], told: Sequence[GridEvent], now_s: float, ramp_s: float) -> list[GridEvent]:
    """The events that count after an answer: those in it, and those that are over but whose ramp is not.

    An event that holds and is no longer told was cancelled: it ends now, along its ramp. A signal has none.

    Args:
        known: events that counted before.
        told: events in the answer.
        now_s: time, s since the epoch.
        ramp_s: longest ramp, s.
    """
    names = {event.name for event in told}
    ended = [
        event._replace(end_s=min(event.end_s, now_s))
        for event in known
        if event.name not in names and event.start_s < now_s and min(event.end_s, now_s) > event.start_s
    ]
    return [event for event in (*told, *ended) if event.end_s + ramp_s > now_s]
