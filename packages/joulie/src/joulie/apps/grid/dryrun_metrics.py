"""Metrics of a dry run, by the names of the Compute Gardener Scheduler."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from joulie.apps.grid.bounded_label import BoundedLabel
from joulie.domain.quantities import SECONDS_PER_HOUR

MAX_NAMESPACES = 200
_PREFIX = "compute_gardener_dryrun_"
_HOURS = (0.1, 0.5, 1, 2, 4, 8, 12, 24, 48, 72)
_KWH = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 50, 100)


class DryRunMetrics:
    """What a dry run counts, by namespace; the namespaces after the first 200 are counted as ``other``.

    Args:
        registry: to register with.

    Attributes:
        not_followed: pods that were not evaluated, since too many are followed already.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(_PREFIX + name, text, ["namespace", *labels], registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(_PREFIX + name, text, ["namespace"], registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(_PREFIX + name, text, ["namespace"], buckets=buckets, registry=registry)

        self._namespaces = BoundedLabel(MAX_NAMESPACES)
        self._evaluated = counter("pods_evaluated", "Pods that the dry run decided about.")
        self._would_delay = counter("pods_would_delay", "Pods that would have been held.", "delay_type")
        self._completed = counter("pods_completed", "Pods that ended.")
        # A wait can cost as well as save, so these sums may fall, and a counter may not.
        self._estimated_g = gauge(
            "estimated_carbon_savings_gco2eq_total", "Expected when pods came: by forecast, else by threshold, gCO2eq."
        )
        self._estimated_cost = gauge(
            "estimated_cost_savings_usd_total", "Expected when pods came: by forecast, else by threshold, currency."
        )
        self._actual_g = gauge(
            "actual_carbon_savings_gco2eq_total", "By real runtimes and intensities, once they are known, gCO2eq."
        )
        self._actual_cost = gauge(
            "actual_cost_savings_usd_total", "By real runtimes and prices, once they are known, currency."
        )
        self._runtime_h = histogram("pod_runtime_hours", "How long pods ran, h.", _HOURS)
        self._energy_kwh = histogram("pod_energy_consumption_kwh", "Energy of pods by their requests, kWh.", _KWH)
        self._carbon = gauge(
            "current_carbon_intensity_gco2eq_per_kwh", "Carbon intensity when a pod was last decided about, gCO2eq/kWh."
        )
        self._price = gauge(
            "current_electricity_price_usd_per_kwh", "Price when a pod was last decided about, currency/kWh."
        )
        self._unknown = Counter(
            "joulie_grid_dryrun_unknown_savings",
            "Pods that would have been held and whose savings nobody can say, by measure.",
            ["measure"],
            registry=registry,
        )
        self.not_followed = Counter(
            "joulie_grid_dryrun_pods_not_followed", "Pods not evaluated: too many are followed.", registry=registry
        )

    def evaluated(self, namespace: str, carbon_g_per_kwh: float | None, price_per_kwh: float | None) -> None:
        """A pod was decided about."""
        label = self._namespaces.of(namespace)
        self._evaluated.labels(label).inc()
        if carbon_g_per_kwh is not None:
            self._carbon.labels(label).set(carbon_g_per_kwh)
        if price_per_kwh is not None:
            self._price.labels(label).set(price_per_kwh)

    def would_delay(self, namespace: str, delay_type: str, saved_g: float | None, saved_cost: float | None) -> None:
        """A pod would have been held, which is expected to save so much."""
        label = self._namespaces.of(namespace)
        self._would_delay.labels(label, delay_type).inc()
        if saved_g is not None:
            self._estimated_g.labels(label).inc(saved_g)
        if saved_cost is not None:
            self._estimated_cost.labels(label).inc(saved_cost)

    def completed(self, namespace: str, runtime_s: float, energy_kwh: float) -> None:
        """A pod ended."""
        label = self._namespaces.of(namespace)
        self._completed.labels(label).inc()
        self._runtime_h.labels(label).observe(runtime_s / SECONDS_PER_HOUR)
        self._energy_kwh.labels(label).observe(energy_kwh)

    def saved(self, namespace: str, saved_g: float | None, saved_cost: float | None) -> None:
        """A pod would have saved so much, gCO2eq and currency; None where that is not known."""
        label = self._namespaces.of(namespace)
        if saved_g is None:
            self._unknown.labels("carbon").inc()
        else:
            self._actual_g.labels(label).inc(saved_g)
        if saved_cost is not None:
            self._actual_cost.labels(label).inc(saved_cost)
