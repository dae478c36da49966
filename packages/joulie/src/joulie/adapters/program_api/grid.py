"""What the grid controller says at `GRID_PATH`, and `kubectl joulie grid` and `explain` read there."""

from __future__ import annotations

import msgspec

GRID_PATH = "/debug/grid"
MOST_CASES = 200
"""Cases in an answer at most."""


class SignalItem(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A signal of a zone; what is not known is left out.

    Attributes:
        measure: carbon or price.
        zone: of the grid.
        quality: fresh, stale or missing.
        value: gCO2eq/kWh or currency/kWh.
        period: of a tariff.
        source: who says so.
        basis: average or marginal.
        estimated: modelled, not measured.
        age_s: since when the value is true, s ago.
        forecast_source: who forecasts.
        forecast_until_s: how far ahead, s from now.
        lowest: smallest value that is forecast.
        lowest_in_s: when that begins, s from now.
        problem: why it is stale or missing.
    """

    measure: str
    zone: str
    quality: str
    value: float | None = None
    period: str | None = None
    source: str | None = None
    basis: str | None = None
    estimated: bool = False
    age_s: float | None = None
    forecast_source: str | None = None
    forecast_until_s: float | None = None
    lowest: float | None = None
    lowest_in_s: float | None = None
    problem: str | None = None


class CaseItem(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Pods that wait alike, or one pod that was asked for.

    Attributes:
        zone: of the grid.
        pods: how many.
        example: namespace and name of one of them.
        decision: hold, release or undecided.
        reason: of the decision.
        text: the same in words.
        mode: threshold, optimal or interruptible.
        asked_by: pod or namespace.
        waiting_s: since their delay counts, s.
        latest_start_in_s: until they start at the latest, s from now.
        looked_at_in_s: when the decision is made again at the latest, s from now.
    """

    zone: str
    pods: int
    example: str
    decision: str
    reason: str | None = None
    text: str | None = None
    mode: str | None = None
    asked_by: str | None = None
    waiting_s: float | None = None
    latest_start_in_s: float | None = None
    looked_at_in_s: float | None = None


class GridAnswer(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """All of it.

    Attributes:
        leader: whether who answers leads.
        now: s since the epoch.
        dry_run: whether nothing is held.
        signals: by zone.
        waiting: pods by reason.
        next_look_in_s: when something is decided again, s from now.
        cases: those with most pods first.
        cases_left_out: how many more there are.
    """

    leader: bool
    now: float = 0.0
    dry_run: bool = False
    signals: list[SignalItem] = []
    waiting: dict[str, int] = {}
    next_look_in_s: float | None = None
    cases: list[CaseItem] = []
    cases_left_out: int = 0
