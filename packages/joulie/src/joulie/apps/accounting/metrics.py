"""Metrics of the accounting program: the names of the Compute Gardener Scheduler about energy, and Joulie's own.

What is true of pods, nodes and namespaces is read at each scrape from the last cycle, and goes with them. Series of
single pods are bounded by METRIC_PODS; sums of namespaces have all of them.
"""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from joulie.adapters.program_api.energy import IDLE
from joulie.apps.accounting.sampler import NodeUse, Sampling
from joulie.domain.accounting.records import CompletedPod, CycleResult, Energy, OpenPod, SavingRow
from joulie.domain.grid.signals import Measure
from joulie.domain.quantities import joules_to_kwh

PREFIX = "scheduler_compute_gardener_"
_OWNER_KINDS = frozenset(
    {"Job", "CronJob", "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Pod", "Node", "Namespace"}
)
_OTHER = "other"
_SAVINGS = {Measure.CARBON: ("carbon", "grams_co2"), Measure.PRICE: ("cost", "dollars")}
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True)
class _Phases:
    """Use of a node: before the pod that came last, now, and when a pod ended last."""

    baseline: NodeUse
    current: NodeUse
    final: NodeUse | None = None


@dataclass
class _Shown:
    """What a scrape shows; replaced or added to by cycles.

    Attributes:
        totals: energy since ever by namespace.
        namespaces: that are in the cluster.
        savings: since ever by measure, method and namespace.
        completed: pods that ended lately, oldest first.
        used: share of its budget that a pod has used, and the pod's name and namespace.
        exceeded: budgets that were crossed, by namespace, kind of owner and action.
        nodes: use of nodes.
        counts: of what the ledger keeps.
        samples: of the last cycle, by source and quality.
        up: whether sources answered.
    """

    totals: dict[str, Energy] = field(default_factory=dict)
    namespaces: frozenset[str] = frozenset()
    savings: dict[tuple[Measure, str, str], float] = field(default_factory=dict)
    completed: dict[str, CompletedPod] = field(default_factory=dict)
    used: list[tuple[str, str, float]] = field(default_factory=list)
    exceeded: Tally[tuple[str, str, str]] = field(default_factory=Tally)
    nodes: dict[str, _Phases] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    samples: Mapping[tuple[str, str], int] = field(default_factory=dict)
    up: Mapping[str, bool] = field(default_factory=dict)


class AccountingMetrics:
    """All metrics of the program.

    Args:
        currency: of costs.
        most_pods: that have series of their own.
        retention_s: how long a completed pod is shown, s.

    Attributes:
        registry: what /metrics shows.
        cycles: cycles by result, ok or error.
        cycle_seconds: how long they take.
    """

    def __init__(self, currency: str = "USD", most_pods: int = 1000, retention_s: float = 3600.0) -> None:
        self.registry = CollectorRegistry()
        for process_part in (ProcessCollector, PlatformCollector, GCCollector):
            process_part(registry=self.registry)
        self.cycles = Counter("joulie_accounting_cycles", "Rounds of sampling.", ["result"], registry=self.registry)
        self.cycle_seconds = Histogram(
            "joulie_accounting_cycle_duration_seconds",
            "A round of sampling, the ledger's transaction included.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._most_pods = most_pods
        self._retention_s = retention_s
        self._shown = _Shown()
        self.registry.register(_Accounts(lambda: self._shown, currency))

    def exceeded(self, namespace: str, owner_kind: str, action: str) -> None:
        """Count a crossed budget."""
        self._shown.exceeded[namespace, owner_kind if owner_kind in _OWNER_KINDS else _OTHER, action] += 1

    def begin(self, totals: Mapping[str, Energy], savings: Iterable[SavingRow]) -> None:
        """Go on from what the ledger has: counters outlive the program, and are never the least bit lower."""
        self._shown.totals = dict(totals)
        self._shown.savings = {}
        for row in savings:
            self._save(row.measure, row.method.value, row.namespace, row.amount)

    def cycled(
        self,
        sampling: Sampling,
        accounts: Mapping[str, OpenPod],
        result: CycleResult,
        now_s: float,
        namespaces: Iterable[str],
    ) -> None:
        """Show this cycle from now on.

        Args:
            sampling: what was found.
            accounts: pods that run, by uid.
            result: what it added to the ledger.
            now_s: s since the epoch.
            namespaces: that are in the cluster.
        """
        shown = self._shown
        shown.namespaces = frozenset(namespaces)
        shown.samples = Tally((one.source, one.quality.value) for one in sampling.samples)
        for namespace, energy in result.added.items():
            shown.totals[namespace] = shown.totals.get(namespace, Energy()) + energy
        for one in result.completed:
            if not one.pod.namespace:  # a node, not a pod
                continue
            shown.completed[one.pod.uid] = one
            for measure, saved in ((Measure.CARBON, one.carbon), (Measure.PRICE, one.cost)):
                if saved is not None:
                    self._save(measure, saved.method.value, one.pod.namespace, saved.amount)
        recent = [one for one in shown.completed.values() if one.until_s >= now_s - self._retention_s]
        shown.completed = {one.pod.uid: one for one in recent[-self._most_pods :]} if self._most_pods else {}
        shown.nodes = _phases(shown.nodes, sampling, accounts, result)

    def tell(self, counts: Mapping[str, int], up: Mapping[str, bool]) -> None:
        """Show how much the ledger keeps, and which sources answered."""
        self._shown.counts, self._shown.up = counts, dict(up)

    def budgets(self, used: Mapping[str, float], accounts: Mapping[str, OpenPod]) -> None:
        """Show how much of their budgets running pods have used: most first, where there are too many."""
        known = [
            (accounts[uid].pod.namespace, accounts[uid].pod.name, share)
            for uid, share in used.items()
            if uid in accounts
        ]
        known.sort(key=lambda one: -one[2])
        self._shown.used = known[: self._most_pods]

    def _save(self, measure: Measure, method: str, namespace: str, amount: float) -> None:
        key = measure, method, namespace
        self._shown.savings[key] = self._shown.savings.get(key, 0.0) + amount


def _phases(
    before: Mapping[str, _Phases], sampling: Sampling, accounts: Mapping[str, OpenPod], result: CycleResult
) -> dict[str, _Phases]:
    ended_on = {one.pod.node for one in result.completed}
    came_to = {one.pod.node for one in accounts.values() if one.pod.uid in sampling.new}
    found = {}
    for name, use in sampling.nodes.items():
        old = before.get(name)
        if old is None:
            found[name] = _Phases(use, use)
            continue
        found[name] = _Phases(
            old.current if name in came_to else old.baseline, use, use if name in ended_on else old.final
        )
    return found


class _Accounts(Collector):
    def __init__(self, shown: Callable[[], _Shown], currency: str) -> None:
        self._shown = shown
        self._currency = currency

    def describe(self) -> Iterable[Metric]:
        return [GaugeMetricFamily(f"{PREFIX}metrics_cache_size", "")]

    def collect(self) -> Iterator[Metric]:
        shown = self._shown()
        yield from _namespaces(shown, self._currency)
        yield from _completed(shown)
        yield from _savings(shown)
        yield from _nodes(shown)
        yield from _kept(shown)


def _namespaces(shown: _Shown, currency: str) -> Iterator[Metric]:
    for name, text, value in (
        ("energy_joules", "Energy of a namespace's pods with PUE, J; of idle nodes under __idle__.", "energy_j"),
        ("measured_energy_joules", "The part of it whose power was measured, J.", "measured_j"),
        (
            "assumed_energy_joules",
            "The part of it whose power was assumed from requests or over a gap, J.",
            "assumed_j",
        ),
        ("emissions_grams", "Emissions of a namespace's pods where the intensity was known, gCO2eq.", "emissions_g"),
        (
            "energy_without_intensity_joules",
            "Energy of a namespace whose emissions nobody knows, J.",
            "energy_without_intensity_j",
        ),
        ("cost", f"Cost of a namespace's energy where the price was known, {currency}.", "cost"),
        ("energy_without_price_joules", "Energy of a namespace whose cost nobody knows, J.", "energy_without_price_j"),
    ):
        # Prices can be below zero, so that a cost can fall.
        kind = GaugeMetricFamily if name == "cost" else CounterMetricFamily
        family = kind(f"joulie_namespace_{name}", text, labels=["namespace"])
        for namespace, energy in shown.totals.items():
            if not namespace or namespace in shown.namespaces:
                family.add_metric([namespace or IDLE], getattr(energy, value))
        yield family


def _completed(shown: _Shown) -> Iterator[Metric]:
    labels = ["pod", "namespace"]
    energy = GaugeMetricFamily(
        f"{PREFIX}job_energy_usage_kwh", "Energy of a pod that completed lately, kWh.", labels=labels
    )
    emissions = GaugeMetricFamily(
        f"{PREFIX}job_carbon_emissions_grams", "Emissions of a pod that completed lately, gCO2eq.", labels=labels
    )
    # Of two pods that had one name, the last one is shown: a scrape must not hold a series twice.
    latest = {(one.pod.name, one.pod.namespace): one for one in shown.completed.values()}
    for names, one in latest.items():
        energy.add_metric(list(names), joules_to_kwh(one.energy.energy_j))
        if one.energy.energy_without_intensity_j <= 0.0:
            emissions.add_metric(list(names), one.energy.emissions_g)
    yield energy
    yield emissions
    used = GaugeMetricFamily(
        f"{PREFIX}energy_budget_usage_percent", "Energy budget that a pod has used, percent.", labels=labels
    )
    for namespace, pod, share in shown.used:
        used.add_metric([pod, namespace], share * 100.0)
    yield used
    exceeded = CounterMetricFamily(
        f"{PREFIX}energy_budget_exceeded",
        "Workloads that exceeded their energy budget.",
        labels=["namespace", "owner_kind", "action"],
    )
    for values, number in shown.exceeded.items():
        if values[0] in shown.namespaces:
            exceeded.add_metric(list(values), number)
    yield exceeded


def _savings(shown: _Shown) -> Iterator[Metric]:
    saved = GaugeMetricFamily(
        f"{PREFIX}estimated_savings",
        "Saved by waiting, by pods that completed: gCO2eq or currency; below zero where waiting made it worse.",
        labels=["type", "unit", "method", "namespace"],
    )
    for (measure, method, namespace), amount in shown.savings.items():
        if namespace in shown.namespaces:
            saved.add_metric([*_SAVINGS[measure], method, namespace], amount)
    yield saved
    efficiency = GaugeMetricFamily(
        f"{PREFIX}scheduling_efficiency",
        "Carbon intensity or price when pods that completed lately were first held, minus that when they ran: means.",
        labels=["metric", "namespace"],
    )
    for (metric, namespace), deltas in _deltas(shown).items():
        efficiency.add_metric([metric, namespace], sum(deltas) / len(deltas))
    yield efficiency


def _deltas(shown: _Shown) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    for one in shown.completed.values():
        held = one.pod.held
        if held is None:
            continue
        for metric, initial, bind in (
            ("carbon_intensity_delta", held.initial_g_per_kwh, held.bind_g_per_kwh),
            ("electricity_rate_delta", held.initial_per_kwh, held.bind_per_kwh),
        ):
            if initial is not None and bind is not None:
                found.setdefault((metric, one.pod.namespace), []).append(initial - bind)
    return found


def _nodes(shown: _Shown) -> Iterator[Metric]:
    for name, text, value in (
        ("node_cpu_usage_cores", "CPU that a node's pods use, cores", "cpu_cores"),
        ("node_memory_usage_bytes", "Memory that a node's pods use, bytes", "memory_bytes"),
        ("node_gpu_usage", "Utilisation of a node's GPUs, mean, percent", "gpu_pct"),
        ("node_power_estimate_watts", "Power of a node's pods and of its idle rest, W", "power_w"),
    ):
        family = GaugeMetricFamily(
            PREFIX + name,
            f"{text}: before the pod that came last (baseline), now (current), when a pod last ended (final).",
            labels=["node", "phase"],
        )
        for node, phases in shown.nodes.items():
            for phase in ("baseline", "current", "final"):
                use: NodeUse | None = getattr(phases, phase)
                if use is not None and not math.isnan(getattr(use, value)):
                    family.add_metric([node, phase], getattr(use, value))
        yield family


def _kept(shown: _Shown) -> Iterator[Metric]:
    for name, text, count in (
        (f"{PREFIX}metrics_samples_stored", "Samples of pods that the ledger keeps.", "samples"),
        (f"{PREFIX}metrics_cache_size", "Pods that the ledger keeps.", "pods"),
        ("joulie_ledger_bytes", "Size of the ledger's file.", "bytes"),
    ):
        family = GaugeMetricFamily(name, text)
        if count in shown.counts:
            family.add_metric([], shown.counts[count])
        yield family
    samples = GaugeMetricFamily(
        "joulie_accounting_samples",
        "Samples of the last round, by who says so and by how the power is known.",
        labels=["source", "quality"],
    )
    for labels, number in shown.samples.items():
        samples.add_metric(list(labels), number)
    yield samples
    up = GaugeMetricFamily("joulie_accounting_source_up", "Whether a source answered the last time.", labels=["source"])
    for source, answered in shown.up.items():
        up.add_metric([source], float(answered))
    yield up
