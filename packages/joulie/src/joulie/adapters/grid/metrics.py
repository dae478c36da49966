"""Metrics of the grid's signals; those of zones are read from the feed at each scrape, and go with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from joulie.domain.grid.signals import GridSignal


class GridMetrics(Collector):
    """What programs that watch the grid say of it.

    Args:
        registry: to register with.
        signals: of the zones that are shown; none before there is a feed.
        now_s: s since the epoch.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        signals: Callable[[], Iterable[GridSignal]] = lambda: (),
        now_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.signals = signals
        self._now_s = now_s
        self._fetches = Counter(
            "joulie_grid_fetches", "Requests to sources of grid signals.", ["source", "result"], registry=registry
        )
        registry.register(self)

    def fetched(self, source: str, result: str) -> None:
        """A source was asked."""
        self._fetches.labels(source, result).inc()

    def collect(self) -> Iterator[Metric]:
        """The signals of this moment."""
        value = GaugeMetricFamily(
            "joulie_grid_signal",
            "Carbon intensity in gCO2eq/kWh, or price in currency/kWh, of a zone of the grid; absent where missing.",
            labels=["measure", "zone", "quality"],
        )
        missing = GaugeMetricFamily(
            "joulie_grid_signal_missing",
            "1 while a signal is missing, so that it holds no pod; else 0.",
            labels=["measure", "zone"],
        )
        age = GaugeMetricFamily(
            "joulie_grid_signal_age_seconds", "Since when the value is true.", labels=["measure", "zone"]
        )
        now_s = self._now_s()
        for signal in self.signals():
            missing.add_metric([signal.measure, signal.zone], float(not signal.known))
            if signal.value is not None:
                value.add_metric([signal.measure, signal.zone, signal.quality], signal.value)
            if signal.time_s is not None:
                age.add_metric([signal.measure, signal.zone], now_s - signal.time_s)
        yield from (value, missing, age)
