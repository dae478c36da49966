"""What the ledger needs of the grid: what has been, until now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from joulie.domain.accounting.records import ZoneSignals
from joulie.domain.grid.series import Series, constant
from joulie.domain.grid.signals import Basis, GridSignal, Measure


class Feed(Protocol):
    """What is asked of a GridFeed."""

    def want(self, zone: str) -> bool:
        """Watch a zone."""
        ...

    def asked(self, zone: str) -> bool:
        """Whether there is nothing to wait for: all of the zone is known, or its sources fail."""
        ...

    def carbon(self, zone: str) -> GridSignal:
        """Carbon intensity now."""
        ...

    def price(self, zone: str) -> GridSignal | None:
        """Price now; None where prices are not watched."""
        ...

    def history(self, measure: Measure, zone: str) -> Series | None:
        """What has been; None where nothing is known."""
        ...


def zone_signals(feed: Feed, zones: Iterable[str], basis: Basis, now_s: float) -> dict[str, ZoneSignals]:
    """Carbon intensity and price of zones until now, as far back as the feed knows; what is not known is left out.

    Args:
        feed: of the grid.
        zones: where pods run.
        basis: of carbon intensity, where the signal does not say.
        now_s: s since the epoch.
    """
    found = {}
    for zone in zones:
        feed.want(zone)
        carbon, price = feed.carbon(zone), feed.price(zone)
        said = carbon.provenance.basis if carbon.provenance else None
        found[zone] = ZoneSignals(
            intensity=_until(now_s, feed.history(Measure.CARBON, zone), carbon),
            basis=said or basis,
            price=None if price is None else _until(now_s, feed.history(Measure.PRICE, zone), price),
        )
    return found


def _until(now_s: float, history: Series | None, signal: GridSignal) -> Series | None:
    """The past, and the signal in force until now, for as long as it counts as known."""
    past = None if history is None else history.between(history.start_s, now_s)
    if not signal.known or signal.value is None or signal.time_s is None:
        return past
    start_s = signal.time_s if past is None else max(signal.time_s, past.end_s)
    if start_s >= now_s:
        return past
    in_force = constant(signal.value, start_s, now_s)
    # A time between the two of which nobody knows would be filled: the past is left out then.
    return in_force if past is None or start_s > past.end_s else past.then(in_force)
