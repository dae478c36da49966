"""Metrics of the grid signals; those of zones are read from the feed at each scrape, and end with the zone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from joulie.domain.grid.signals import GridSignal


class GridMetrics(Collector):
    """Grid metrics of programs that run a feed.

    Args:
        registry: registry to register with.
        signals: returns the signals to export; none before the feed is open.
        now_s: current time, s since the epoch.
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
        """Count a request to a source."""
        self._fetches.labels(source, result).inc()

    def collect(self) -> Iterator[Metric]:
        """Collect the current signals."""
        value = GaugeMetricFamily(
            "joulie_grid_signal",
            "Carbon intensity in gCO2eq/kWh, or price in currency/kWh, of a grid zone; absent while missing.",
            labels=["measure", "zone", "quality"],
        )
        missing = GaugeMetricFamily(
            "joulie_grid_signal_missing",
            "1 while a signal is missing, which then holds no pod; else 0.",
            labels=["measure", "zone"],
        )
        age = GaugeMetricFamily(
            "joulie_grid_signal_age_seconds",
            "Age of the value: time since the start of its period.",
            labels=["measure", "zone"],
        )
        now_s = self._now_s()
        for signal in self.signals():
            missing.add_metric([signal.measure, signal.zone], float(not signal.known))
            if signal.value is not None:
                value.add_metric([signal.measure, signal.zone, signal.quality], signal.value)
            if signal.time_s is not None:
                age.add_metric([signal.measure, signal.zone], now_s - signal.time_s)
        yield from (value, missing, age)
