"""Metrics of the grid controller; those about decisions have the names of the Compute Gardener Scheduler."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from joulie.apps.grid.bounded_label import BoundedLabel
from joulie.apps.grid.dryrun_metrics import MAX_NAMESPACES, DryRunMetrics
from joulie.apps.grid.multikueue import NominationResult
from joulie.apps.grid.pending import PendingQueue
from joulie.domain.grid.deferral import Hold, HoldReason, ReleaseReason
from joulie.domain.grid.signals import GridSignal, Measure
from joulie.program.metrics import process_registry
from joulie.program.renamed import Renamed

_SEED = "scheduler_compute_gardener_"
_GARDENER = "compute_gardener_scheduler_"
"""Prefix of its current releases."""
_SECONDS = (0.0001, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)
_DELAY_SECONDS = (1.0, 60.0, 600.0, 3600.0, 3 * 3600.0, 6 * 3600.0, 12 * 3600.0, 24 * 3600.0, 48 * 3600.0)
_RESULTS = {
    HoldReason.CARBON: "carbon_delay",
    HoldReason.PRICE: "price_delay",
    HoldReason.BOTH: "carbon_and_price_delay",
    HoldReason.WINDOW: "window_delay",
    ReleaseReason.DEADLINE: "max_delay_exceeded",
    ReleaseReason.SKIP: "skipped",
    ReleaseReason.NOT_ASKED: "skipped",
    ReleaseReason.REPLACEMENT: "skipped",
    ReleaseReason.HOLDOUT: "skipped",
    ReleaseReason.TRIAL: "skipped",
    ReleaseReason.MISSING: "signal_missing",
}
_SUCCESS = "success"
MAX_ZONE_LABELS = 64


class ControllerMetrics:
    """All metrics of the program.

    Attributes:
        registry: what /metrics shows.
        leading: 1 while this replica leads.
        attempts: decisions for pods by result: the first one for each pod, and the one that released it.
        decide_seconds: duration of the decisions of one step, by result.
        carbon_delays: pods that began to wait for carbon intensity, by zone.
        price_delays: pods that began to wait for the price, by the tariff's period.
        releases: pods released, by reason.
        delay_seconds: how long released pods had been held.
        late_seconds: how long after their latest start pods were released.
        writes: writes to the API server, by kind.
        write_errors: those that failed, by kind.
        mistakes: pods with malformed annotations.
        learned_runtimes: workloads with a learned runtime.
        learned_runtimes_up: whether the accounting program answers.
        budgets: number of EnergyBudgets, by what is decided.
        budget_held: number of pods and Jobs that wait for an EnergyBudget.
        replica_ceilings: number of autoscalers that ask for a ceiling, by what is decided.
        next_ceiling_change_s: when a ceiling is expected to change next, s since the epoch.
        withheld_replicas: number of replicas that ceilings withhold.
        nominations: nominations of worker clusters for workloads, by result.
        dry_run: what a dry run counts.
    """

    def __init__(self) -> None:
        self.registry = process_registry()
        self.leading = Gauge("joulie_grid_leader", "1 while this replica leads.", registry=self.registry)
        self.attempts = self._counter(_SEED + "scheduling_attempt", "Decisions for pods, by result.", "result")
        self.decide_seconds = Histogram(
            _SEED + "pod_scheduling_duration_seconds",
            "Duration of the decisions of one step, in s.",
            ["result"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.carbon_delays = self._counter(
            _SEED + "carbon_delay", "Pods that began to wait for carbon intensity.", "region"
        )
        self.price_delays = self._counter(_SEED + "price_delay", "Pods that began to wait for the price.", "period")
        self.releases = self._counter("joulie_grid_releases", "Pods released, by reason.", "reason")
        self.delay_seconds = Histogram(
            "joulie_grid_delay_seconds",
            "How long released pods had been held, in s.",
            buckets=_DELAY_SECONDS,
            registry=self.registry,
        )
        self.late_seconds = Histogram(
            "joulie_grid_late_seconds",
            "How long after their latest start pods were released, in s.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.writes = self._counter("joulie_grid_writes", "Writes to the API server.", "kind")
        self.write_errors = self._counter("joulie_grid_write_errors", "Writes that failed.", "kind")
        self.mistakes = Counter(
            "joulie_grid_invalid_annotations",
            "Pods with malformed annotations.",
            registry=self.registry,
        )
        self.learned_runtimes = Gauge(
            "joulie_grid_learned_runtimes",
            "Workloads with a runtime learned from earlier runs; others are expected to take GRID_DEFAULT_RUNTIME.",
            registry=self.registry,
        )
        self.learned_runtimes_up = Gauge(
            "joulie_grid_learned_runtimes_up",
            "1 if the accounting program answered the last request for learned runtimes.",
            registry=self.registry,
        )
        self.budgets = Gauge(
            "joulie_grid_energy_budgets", "EnergyBudgets, by what is decided.", ["decision"], registry=self.registry
        )
        self.budget_held = Gauge(
            "joulie_grid_budget_held", "What waits for an EnergyBudget: pods, jobs.", ["kind"], registry=self.registry
        )
        self.replica_ceilings = Gauge(
            "joulie_grid_replica_ceilings",
            "Autoscalers that ask for a ceiling on their replicas, by what is decided.",
            ["decision"],
            registry=self.registry,
        )
        self.next_ceiling_change_s = Gauge(
            "joulie_grid_ceiling_next_change_timestamp_seconds",
            "When the maximum of an autoscaler is expected to change next, by forecasts and schedules; 0 if unknown.",
            registry=self.registry,
        )
        self.withheld_replicas = Gauge(
            "joulie_grid_ceiling_withheld_replicas",
            "Replicas that autoscalers would run by their metrics, were it not for a ceiling.",
            registry=self.registry,
        )
        self._withheld_hours = self._counter(
            "joulie_grid_ceiling_withheld_replica_hours", "Hours of replicas withheld by ceilings.", "namespace"
        )
        self._withheld_kwh = self._counter(
            "joulie_grid_ceiling_withheld_kwh",
            "Energy of the replicas withheld by ceilings, by their requests, in kWh. Most of it is used later.",
            "namespace",
        )
        # What runs later may emit or cost more, so these sums may fall, and a counter may not.
        self._ceiling_saved_g = Gauge(
            "joulie_grid_ceiling_estimated_savings_gco2eq",
            "Emissions saved by ceilings, if all that they withheld ran when they were lifted, in gCO2eq.",
            ["namespace"],
            registry=self.registry,
        )
        self._ceiling_saved_cost = Gauge(
            "joulie_grid_ceiling_estimated_savings_currency",
            "Cost saved by ceilings, if all that they withheld ran when they were lifted, in currency.",
            ["namespace"],
            registry=self.registry,
        )
        self._namespaces = BoundedLabel(MAX_NAMESPACES)
        self.nominations = self._counter(
            "joulie_grid_nominations", "Nominations of MultiKueue's worker clusters for workloads, by result.", "result"
        )
        self.dry_run = DryRunMetrics(self.registry)
        self._zones = BoundedLabel(MAX_ZONE_LABELS)
        self._waiting = _Waiting()
        self.registry.register(self._waiting)
        self._signals = _Signals()
        self.registry.register(self._signals)
        decisions = (self.attempts, self.decide_seconds, self.carbon_delays, self.price_delays)
        self.registry.register(Renamed((*decisions, self._signals), _SEED, _GARDENER))

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(name, text, [label], registry=self.registry)

    def show(self, signals: Callable[[], Iterable[GridSignal]]) -> None:
        """Export these signals."""
        self._signals.now = signals

    def lead(self, pending: PendingQueue) -> None:
        """Export the queue of a replica that starts to lead."""
        self.leading.set(1)
        self._waiting.pending = pending

    def stood_down(self) -> None:
        """Stop exporting the queue: another replica leads."""
        self.leading.set(0)
        self._waiting.pending = None

    def runtimes_asked(self, answered: bool, known: int) -> None:
        """Export the result of a request for learned runtimes, and the number of workloads that have one."""
        self.learned_runtimes_up.set(answered)
        self.learned_runtimes.set(known)

    def decided(self, reason: HoldReason | ReleaseReason) -> None:
        """Count a decision for a pod."""
        self.attempts.labels(_RESULTS.get(reason, _SUCCESS)).inc()

    def withheld(self, namespace: str, replica_hours: float, energy_kwh: float) -> None:
        """Count what a ceiling has withheld."""
        label = self._namespaces.of(namespace)
        self._withheld_hours.labels(label).inc(replica_hours)
        self._withheld_kwh.labels(label).inc(energy_kwh)

    def ceiling_saved(self, namespace: str, saved_g: float | None, saved_cost: float | None) -> None:
        """Count what a ceiling that ended has saved; None where it is unknown."""
        label = self._namespaces.of(namespace)
        if saved_g is not None:
            self._ceiling_saved_g.labels(label).inc(saved_g)
        if saved_cost is not None:
            self._ceiling_saved_cost.labels(label).inc(saved_cost)

    def nominated(self, result: NominationResult) -> None:
        """Count a nomination of worker clusters."""
        self.nominations.labels(result).inc()

    def held_for_carbon(self, zone: str) -> None:
        """Count a pod that begins to wait for carbon intensity."""
        self.carbon_delays.labels(self._zones.of(zone)).inc()

    def held_for_price(self, period: str) -> None:
        """Count a pod that begins to wait for the price, in a tariff's period; empty without one."""
        self.price_delays.labels(period).inc()


class _Waiting(Collector):
    """Deferred pods by reason, read at each scrape."""

    def __init__(self) -> None:
        self.pending: PendingQueue | None = None

    def describe(self) -> Iterable[Metric]:
        return [self._family()]

    def collect(self) -> Iterator[Metric]:
        family = self._family()
        if self.pending is not None:
            for reason, count in waiting_by_reason(self.pending).items():
                family.add_metric([reason], count)
        yield family

    @staticmethod
    def _family() -> GaugeMetricFamily:
        return GaugeMetricFamily("joulie_grid_waiting_pods", "Pods that have the gate, by reason.", labels=["reason"])


def waiting_by_reason(pending: PendingQueue) -> dict[str, int]:
    """Number of deferred pods by hold reason; ``release`` if released, ``decision`` if not decided yet."""
    counts = Counts({reason.value: 0 for reason in HoldReason})
    for group in pending.groups:
        match group.decision:
            case Hold(reason=reason):
                counts[reason.value] += len(group.pods)
            case None:
                counts["decision"] += len(group.pods)
            case _:
                counts["release"] += len(group.pods)
    return dict(counts)


class _Signals(Collector):
    """Carbon intensity and price of all zones in use; a missing signal has no sample."""

    def __init__(self) -> None:
        self.now: Callable[[], Iterable[GridSignal]] = list

    def describe(self) -> Iterable[Metric]:
        return self._families()

    def collect(self) -> Iterator[Metric]:
        carbon, price = self._families()
        for signal in self.now():
            if signal.value is None:
                continue
            if signal.measure is Measure.CARBON:
                estimated = signal.provenance is not None and signal.provenance.estimated
                carbon.add_metric([signal.zone, "estimated" if estimated else "real"], signal.value)
            else:
                price.add_metric([signal.zone, "" if signal.period is None else signal.period.value], signal.value)
        yield carbon
        yield price

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        return (
            GaugeMetricFamily(
                _SEED + "carbon_intensity", "Carbon intensity, gCO2eq/kWh.", labels=["region", "data_status"]
            ),
            GaugeMetricFamily(
                _SEED + "electricity_rate", "Price of electricity, currency/kWh.", labels=["location", "period"]
            ),
        )
