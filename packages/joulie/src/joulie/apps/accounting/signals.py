"""Carbon intensity and price series up to now, as the ledger stores them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

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
        stated = carbon.provenance.basis if carbon.provenance else None
        found[zone] = ZoneSignals(
            intensity=_until(now_s, feed.history(Measure.CARBON, zone), carbon),
            basis=stated or basis,
            price=None if price is None else _until(now_s, feed.history(Measure.PRICE, zone), price),
        )
    return found


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
