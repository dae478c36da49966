"""Status endpoint of the grid controller: ``GET /debug/grid``, with ``?pod=NAMESPACE/NAME`` for one pod."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from joulie.adapters.grid.feed import GridFeed
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.program_api.grid import (
    GRID_PATH,
    MAX_CEILINGS,
    MAX_DEFERRALS,
    DeferralItem,
    GridAnswer,
    SignalItem,
)
from joulie.apps.grid.controller import Controller
from joulie.apps.grid.metrics import waiting_by_reason
from joulie.apps.grid.pending import Group
from joulie.domain.grid.deferral import Hold
from joulie.domain.grid.signals import GridSignal
from joulie.program.http import AsgiApp, answering


class GridStatus:
    """Serves ``GET /debug/grid`` while this replica leads.

    Args:
        feed: signals of the grid.

    Attributes:
        controller: the running controller; None while another replica leads.
    """

    def __init__(self, feed: GridFeed) -> None:
        self.controller: Controller | None = None
        self._feed = feed

    def mounted(self, app: AsgiApp, now_s: Callable[[], float]) -> AsgiApp:
        """Wrap an ASGI application: serve the endpoint, pass every other path on to `app`."""
        return answering(GRID_PATH, lambda query: self.answer(query, now_s()), app)

    def answer(self, query: Mapping[str, list[str]], now_s: float) -> tuple[int, Any]:
        """HTTP status and body for a query."""
        if self.controller is None:
            return 503, GridAnswer(leader=False)
        pending = self.controller.pending
        pod = query.get("pod", [])
        if pod:
            namespace, _, name = pod[-1].partition("/")
            group = pending.of(Key(namespace, name))
            groups = [] if group is None else [group]
        else:
            groups = sorted(pending.groups, key=lambda group: (-len(group.pods), group.deferral.waiting.latest_start_s))
        ceilings = self.controller.ceilings.items() if self.controller.ceilings is not None and not pod else []
        return 200, GridAnswer(
            leader=True,
            now=now_s,
            dry_run=self.controller.dry_run,
            signals=[signal_item(signal, now_s) for signal in sorted(self._feed.signals(), key=_place)],
            waiting=waiting_by_reason(pending),
            next_look_in_s=_until(self.controller.next_s, now_s),
            cases=[_deferral_item(group, now_s) for group in groups[:MAX_DEFERRALS]],
            cases_left_out=max(0, len(groups) - MAX_DEFERRALS),
            ceilings=ceilings[:MAX_CEILINGS],
            ceilings_left_out=max(0, len(ceilings) - MAX_CEILINGS),
        )


def _place(signal: GridSignal) -> tuple[str, str]:
    return signal.zone, signal.measure


def signal_item(signal: GridSignal, now_s: float) -> SignalItem:
    """A grid signal in its JSON form."""
    origin, ahead = signal.provenance, signal.forecast
    lowest = None if ahead is None else int(ahead.values.argmin())
    return SignalItem(
        measure=signal.measure,
        zone=signal.zone,
        quality=signal.quality,
        value=signal.value,
        period=signal.period,
        source=None if origin is None else origin.source,
        basis=None if origin is None else origin.basis,
        estimated=origin is not None and origin.estimated,
        age_s=None if signal.time_s is None else round(now_s - signal.time_s, 1),
        forecast_source=signal.forecast_source or None,
        forecast_until_s=None if ahead is None else round(ahead.end_s - now_s, 1),
        lowest=None if ahead is None or lowest is None else float(ahead.values[lowest]),
        lowest_in_s=None if ahead is None or lowest is None else max(0.0, round(ahead.starts_s[lowest] - now_s, 1)),
        problem=signal.problem or None,
    )


def _deferral_item(group: Group, now_s: float) -> DeferralItem:
    deferral, decision = group.deferral, group.decision
    request = deferral.waiting.request
    return DeferralItem(
        zone=deferral.zone,
        pods=len(group.pods),
        example=str(next(iter(group.pods))),
        decision="undecided" if decision is None else "hold" if isinstance(decision, Hold) else "release",
        reason=None if decision is None else decision.reason,
        text=None if decision is None else decision.text,
        mode=request.mode,
        asked_by=request.asked_by,
        runtime_s=request.runtime_s,
        runtime_basis=request.runtime_basis,
        runtime_quantile=None if request.learned is None else request.learned.quantile,
        runtime_runs=None if request.learned is None else request.learned.runs,
        waiting_s=round(now_s - deferral.waiting.held_since_s, 1),
        latest_start_in_s=_until(deferral.waiting.latest_start_s, now_s),
        looked_at_in_s=_until(group.wake_s, now_s),
    )


def _until(time_s: float, now_s: float) -> float | None:
    return round(max(0.0, time_s - now_s), 1) if math.isfinite(time_s) else None
