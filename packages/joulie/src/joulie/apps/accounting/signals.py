"""Carbon intensity and price series up to now, as the ledger stores them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from joulie.domain.accounting.factors import FactorKind
from joulie.domain.accounting.records import ZoneSignals
from joulie.domain.grid.series import Series, constant
from joulie.domain.grid.signals import Basis, GridSignal, Measure


class Feed(Protocol):
    """The methods of GridFeed that accounting uses."""

    def want(self, zone: str) -> bool:
        """Start watching a zone."""
        ...

    def asked(self, zone: str) -> bool:
        """Whether the first reading of a zone is complete: all signals are known, or their sources failed."""
        ...

    def carbon(self, zone: str) -> GridSignal:
        """Current carbon intensity."""
        ...

    def price(self, zone: str) -> GridSignal | None:
        """Current price; None if prices are not watched."""
        ...

    def history(self, measure: Measure, zone: str) -> Series | None:
        """Past values; None if unknown."""
        ...

    def gaps(self, measure: Measure, zone: str) -> Sequence[tuple[float, float]]:
        """Starts and ends of the parts of the history that no source has given, s since the epoch."""
        ...


def zone_signals(feed: Feed, zones: Iterable[str], basis: Basis, now_s: float) -> dict[str, ZoneSignals]:
    """Carbon intensity and price of zones up to now, as far back as the feed has them.

    Args:
        feed: feed of grid signals.
        zones: zones of the nodes.
        basis: basis of the carbon intensity for signals without one.
        now_s: current time, s since the epoch.
    """
    found = {}
    for zone in zones:
        feed.want(zone)
        carbon, price = feed.carbon(zone), feed.price(zone)
        kind = _carbon_kind(carbon, basis)
        intensity = _until(now_s, feed.history(Measure.CARBON, zone), carbon)
        found[zone] = ZoneSignals(
            intensity=intensity if kind is FactorKind.INTENSITY else None,
            marginal=intensity if kind is FactorKind.MARGINAL else None,
            price=None if price is None else _until(now_s, feed.history(Measure.PRICE, zone), price),
        )
    return found


def published(
    feed: Feed, zones: Iterable[str], basis: Basis, now_s: float
) -> dict[tuple[str, FactorKind], list[Series]]:
    """What sources have published up to now, by zone and kind, in parts without gaps: what the past is corrected by.

    Args:
        feed: feed of grid signals.
        zones: zones of the nodes.
        basis: basis of the carbon intensity for signals without one.
        now_s: current time, s since the epoch.
    """
    found = {}
    for zone in zones:
        kinds = {Measure.CARBON: _carbon_kind(feed.carbon(zone), basis), Measure.PRICE: FactorKind.PRICE}
        for measure, kind in kinds.items():
            history = feed.history(measure, zone)
            if history is not None:
                found[zone, kind] = list(_without(history, feed.gaps(measure, zone), now_s))
    return found


def _carbon_kind(carbon: GridSignal, basis: Basis) -> FactorKind:
    """Which factor a carbon intensity is; `basis` where its source does not say."""
    stated = carbon.provenance.basis if carbon.provenance else None
    return FactorKind.MARGINAL if (stated or basis) is Basis.MARGINAL else FactorKind.INTENSITY


def _without(history: Series, gaps: Sequence[tuple[float, float]], now_s: float) -> Iterator[Series]:
    """The parts of a history up to now that lie between gaps."""
    from_s = history.start_s
    for gap_from_s, gap_until_s in (*sorted(gaps), (now_s, now_s)):
        part = history.between(from_s, min(gap_from_s, now_s))
        if part is not None:
            yield part
        from_s = gap_until_s


def _until(now_s: float, history: Series | None, signal: GridSignal) -> Series | None:
    """Past values, extended to now by the current signal if that is known; None without either."""
    past = None if history is None else history.between(history.start_s, now_s)
    if not signal.known or signal.value is None or signal.time_s is None:
        return past
    start_s = signal.time_s if past is None else max(signal.time_s, past.end_s)
    if start_s >= now_s:
        return past
    in_force = constant(signal.value, start_s, now_s)
    # With a gap between the two, joining them would invent values for it, so only the current signal is used.
    return in_force if past is None or start_s > past.end_s else past.then(in_force)
