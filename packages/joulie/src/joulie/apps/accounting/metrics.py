"""Prometheus metrics of accounting: the energy metrics of the Compute Gardener Scheduler, and Joulie's own.

Its current releases have the prefix `compute_gardener_scheduler_`, with series of single pods; under the earlier prefix
`scheduler_compute_gardener_` nodes and namespaces are summed up.

Series of pods, nodes and namespaces are collected from the last cycle at each scrape, so those of deleted objects
disappear. The number of series of single pods is bounded by METRIC_PODS; sums by namespace include all pods.
"""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from joulie.adapters.program_api.energy import IDLE
from joulie.apps.accounting import gardener_metrics
from joulie.apps.accounting.energy_budgets import BudgetUse
from joulie.apps.accounting.sampler import NodeUse, Sampling
from joulie.domain.accounting.records import CompletedPod, CycleResult, Energy, OpenPod, SavingRow
from joulie.domain.grid.signals import Measure
from joulie.domain.quantities import joules_to_kwh
from joulie.domain.trial.holdout import NO_EVIDENCE, Evidence
from joulie.program.metrics import process_registry
from joulie.program.renamed import renamed

PREFIX = "scheduler_compute_gardener_"
_OWNER_KINDS = frozenset(
    {"Job", "CronJob", "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Pod", "Node", "Namespace"}
)
_OTHER = "other"
_SAVINGS = {Measure.CARBON: ("carbon", "grams_co2"), Measure.PRICE: ("cost", "dollars")}
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True)
class _Phases:
    """Resource use of a node: before the last pod started, now, and when a pod last ended."""

    baseline: NodeUse
    current: NodeUse
    final: NodeUse | None = None


@dataclass
class _Exported:
    """Values for the next scrape, updated by every cycle.

    Attributes:
        totals: energy since the start of the ledger, by namespace.
        namespaces: namespaces in the cluster.
        savings: savings since the start of the ledger, by measure, method and namespace.
        completed: recently completed pods by UID, oldest first.
        used: namespace, name and used share of the budget of pods with a budget.
        energy_budgets: use of EnergyBudgets.
        exceeded: number of exceeded budgets by namespace, kind of owner and action.
        nodes: resource use by node.
        pods: resource use of the pods that draw most, and of recently completed ones, by UID.
        counts: sizes of the ledger.
        accounted_until_s: until when energy is in the ledger, s since the epoch; None before the first cycle.
        samples: number of samples of the last cycle, by source and quality.
        up: whether each source answered.
    """

    totals: dict[str, Energy] = field(default_factory=dict)
    namespaces: frozenset[str] = frozenset()
    savings: dict[tuple[Measure, str, str], float] = field(default_factory=dict)
    completed: dict[str, CompletedPod] = field(default_factory=dict)
    used: list[tuple[str, str, float]] = field(default_factory=list)
    energy_budgets: list[BudgetUse] = field(default_factory=list)
    exceeded: Tally[tuple[str, str, str]] = field(default_factory=Tally)
    nodes: dict[str, _Phases] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    accounted_until_s: float | None = None
    pods: dict[str, gardener_metrics.PodPhases] = field(default_factory=dict)
    samples: Mapping[tuple[str, str], int] = field(default_factory=dict)
    up: Mapping[str, bool] = field(default_factory=dict)
    holdout: Evidence = NO_EVIDENCE


class AccountingMetrics:
    """All metrics of the program.

    Args:
        currency: currency of costs.
        max_pods: maximum number of pods with series of their own.
        retention_s: how long a completed pod is exported, s.

    Attributes:
        registry: registry served at /metrics.
        cycles: number of cycles by result, ok or error.
        cycle_seconds: duration of a cycle, s.
        corrections: number of corrections of the past.
    """

    def __init__(self, currency: str = "USD", max_pods: int = 1000, retention_s: float = 3600.0) -> None:
        self.registry = process_registry()
        self.cycles = Counter("joulie_accounting_cycles", "Accounting cycles.", ["result"], registry=self.registry)
        self.cycle_seconds = Histogram(
            "joulie_accounting_cycle_duration_seconds",
            "Duration of an accounting cycle, the ledger's transaction included, seconds.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.corrections = Counter(
            "joulie_ledger_corrections",
            "Corrections of accounts of the past, for signals that became known late or were revised.",
            registry=self.registry,
        )
        self._max_pods = max_pods
        self._retention_s = retention_s
        self._exported = _Exported()
        self.registry.register(_Accounts(lambda: self._exported, currency))

    def exceeded(self, namespace: str, owner_kind: str, action: str) -> None:
        """Count an exceeded budget."""
        self._exported.exceeded[namespace, owner_kind if owner_kind in _OWNER_KINDS else _OTHER, action] += 1

    def restore(self, totals: Mapping[str, Energy], savings: Iterable[SavingRow]) -> None:
        """Restore totals and savings from the ledger, so that counters continue across restarts and never decrease."""
        self._exported.totals = dict(totals)
        self._exported.savings = {}
        for row in savings:
            self._add_saving(row.measure, row.method.value, row.namespace, row.amount)

    def cycled(
        self,
        sampling: Sampling,
        accounts: Mapping[str, OpenPod],
        result: CycleResult,
        now_s: float,
        namespaces: Iterable[str],
    ) -> None:
        """Export the results of this cycle from now on.

        Args:
            sampling: samples of the cycle.
            accounts: running pods by UID.
            result: energy added to the ledger, and pods that ended.
            now_s: current time, s since the epoch.
            namespaces: namespaces in the cluster.
        """
        exported = self._exported
        exported.namespaces = frozenset(namespaces)
        exported.accounted_until_s = now_s
        exported.samples = Tally((one.source, one.quality.value) for one in sampling.samples)
        for namespace, energy in result.added.items():
            exported.totals[namespace] = exported.totals.get(namespace, Energy()) + energy
        for one in result.completed:
            if not one.pod.namespace:  # the idle account of a node, not a pod
                continue
            exported.completed[one.pod.uid] = one
            for measure, saved in ((Measure.CARBON, one.carbon), (Measure.PRICE, one.cost)):
                if saved is not None:
                    self._add_saving(measure, saved.method.value, one.pod.namespace, saved.amount)
        recent = [one for one in exported.completed.values() if one.until_s >= now_s - self._retention_s]
        exported.completed = {one.pod.uid: one for one in recent[-self._max_pods :]} if self._max_pods else {}
        exported.pods = gardener_metrics.pod_phases(exported.pods, sampling, exported.completed, self._max_pods)
        exported.nodes = _phases(exported.nodes, sampling, accounts, result)

    def holdout(self, evidence: Evidence) -> None:
        """Export what waiting saves by the holdout."""
        self._exported.holdout = evidence

    def show_status(self, counts: Mapping[str, int], up: Mapping[str, bool]) -> None:
        """Export the sizes of the ledger, and which sources answered."""
        self._exported.counts, self._exported.up = counts, dict(up)

    def budgets(
        self, used: Mapping[str, float], accounts: Mapping[str, OpenPod], energy_budgets: Iterable[BudgetUse]
    ) -> None:
        """Export the used share of budgets: the largest ones, up to the maximum number of pods.

        Args:
            used: used share of pods' budgets, by UID.
            accounts: running pods by UID.
            energy_budgets: use of the EnergyBudgets; unknown ones come first.
        """
        self._exported.energy_budgets = sorted(
            energy_budgets, key=lambda one: -(math.inf if one.used is None else one.used)
        )[: self._max_pods]
        known = [
            (accounts[uid].pod.namespace, accounts[uid].pod.name, share)
            for uid, share in used.items()
            if uid in accounts
        ]
        known.sort(key=lambda one: -one[2])
        self._exported.used = known[: self._max_pods]

    def _add_saving(self, measure: Measure, method: str, namespace: str, amount: float) -> None:
        key = measure, method, namespace
        self._exported.savings[key] = self._exported.savings.get(key, 0.0) + amount


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
    def __init__(self, exported: Callable[[], _Exported], currency: str) -> None:
        self._exported = exported
        self._currency = currency

    def describe(self) -> Iterable[Metric]:
        return [GaugeMetricFamily(f"{PREFIX}metrics_cache_size", "")]

    def collect(self) -> Iterator[Metric]:
        exported = self._exported()
        yield from _namespaces(exported, self._currency)
        yield from _savings(exported)
        yield from _holdout(exported)
        yield from _nodes(exported)
        for family in (*_completed(exported), *_ledger_sizes(exported)):
            yield family
            if family.name.startswith(PREFIX):
                yield renamed(family, PREFIX, gardener_metrics.PREFIX)
        yield from gardener_metrics.families(
            exported.pods,
            exported.completed,
            {node: phases.current for node, phases in exported.nodes.items()},
            {namespace: exported.totals[namespace] for namespace in exported.namespaces & exported.totals.keys()},
        )


def _namespaces(exported: _Exported, currency: str) -> Iterator[Metric]:
    for name, text, value in (
        ("energy_joules", "Energy of a namespace's pods with PUE, J; idle energy of nodes under __idle__.", "energy_j"),
        ("measured_energy_joules", "Energy of a namespace's pods from measured power, J.", "measured_j"),
        (
            "assumed_energy_joules",
            "Energy of a namespace's pods from power assumed from requests or over a gap, J.",
            "assumed_j",
        ),
        ("emissions_grams", "Emissions of a namespace's energy with known carbon intensity, gCO2eq.", "emissions_g"),
        (
            "energy_without_intensity_joules",
            "Energy of a namespace with unknown carbon intensity, J.",
            "energy_without_intensity_j",
        ),
        (
            "marginal_emissions_grams",
            "Marginal emissions of a namespace's energy, gCO2eq; for decisions, not for an inventory.",
            "marginal_g",
        ),
        ("cost", f"Cost of a namespace's energy with known price, {currency}.", "cost"),
        ("energy_without_price_joules", "Energy of a namespace with unknown price, J.", "energy_without_price_j"),
    ):
        # Prices can be negative, so a cost can decrease: it is a gauge.
        kind = GaugeMetricFamily if name == "cost" else CounterMetricFamily
        family = kind(f"joulie_namespace_{name}", text, labels=["namespace"])
        for namespace, energy in exported.totals.items():
            if not namespace or namespace in exported.namespaces:
                family.add_metric([namespace or IDLE], getattr(energy, value))
        yield family


def _completed(exported: _Exported) -> Iterator[Metric]:
    labels = ["pod", "namespace"]
    energy = GaugeMetricFamily(
        f"{PREFIX}job_energy_usage_kwh", "Energy of a recently completed pod, kWh.", labels=labels
    )
    emissions = GaugeMetricFamily(
        f"{PREFIX}job_carbon_emissions_grams", "Emissions of a recently completed pod, gCO2eq.", labels=labels
    )
    # Of several pods with the same name the last one is exported: a scrape must not contain a series twice.
    latest = {(one.pod.name, one.pod.namespace): one for one in exported.completed.values()}
    for names, one in latest.items():
        energy.add_metric(list(names), joules_to_kwh(one.energy.energy_j))
        if one.energy.energy_without_intensity_j <= 0.0:
            emissions.add_metric(list(names), one.energy.emissions_g)
    yield energy
    yield emissions
    used = GaugeMetricFamily(
        f"{PREFIX}energy_budget_usage_percent", "Used share of a pod's energy budget, percent.", labels=labels
    )
    for namespace, pod, share in exported.used:
        used.add_metric([pod, namespace], share * 100.0)
    yield used
    yield from _energy_budgets(exported.energy_budgets)
    exceeded = CounterMetricFamily(
        f"{PREFIX}energy_budget_exceeded",
        "Workloads that exceeded their energy budget.",
        labels=["namespace", "owner_kind", "action"],
    )
    for values, number in exported.exceeded.items():
        if values[0] in exported.namespaces:
            exceeded.add_metric(list(values), number)
    yield exceeded


def _savings(exported: _Exported) -> Iterator[Metric]:
    saved = GaugeMetricFamily(
        f"{PREFIX}estimated_savings",
        "Savings of completed pods by deferral, gCO2eq or currency; negative if deferral increased the amount.",
        labels=["type", "unit", "method", "namespace"],
    )
    for (measure, method, namespace), amount in exported.savings.items():
        if namespace in exported.namespaces:
            saved.add_metric([*_SAVINGS[measure], method, namespace], amount)
    yield saved
    efficiency = GaugeMetricFamily(
        f"{PREFIX}scheduling_efficiency",
        "Mean carbon intensity or price when recently completed pods were first held, minus that when they ran.",
        labels=["metric", "namespace"],
    )
    for (metric, namespace), deltas in _deltas(exported).items():
        efficiency.add_metric([metric, namespace], sum(deltas) / len(deltas))
    yield efficiency


def _holdout(exported: _Exported) -> Iterator[Metric]:
    evidence = exported.holdout
    workloads = GaugeMetricFamily(
        "joulie_accounting_holdout_workloads",
        "Workloads that asked to wait, behind joulie_accounting_holdout_saved_ratio, by whether they might (waits) or"
        " were left alone by chance (left-alone): of the latest months that say enough, over restarts.",
        labels=["arm"],
    )
    workloads.add_metric(["waits"], evidence.units - evidence.left_out)
    workloads.add_metric(["left-alone"], evidence.left_out)
    yield workloads
    saved = GaugeMetricFamily(
        "joulie_accounting_holdout_saved_ratio",
        "Emissions that waiting saves, as a share, by the holdout: saved, and the bounds low and high of an interval"
        " that holds at all looks together. Without too few workloads left alone.",
        labels=["bound"],
    )
    interval = evidence.interval
    for bound, value in ({} if interval is None else interval._asdict()).items():
        saved.add_metric([bound], value)
    yield saved


def _deltas(exported: _Exported) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    for one in exported.completed.values():
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


def _nodes(exported: _Exported) -> Iterator[Metric]:
    for name, text, value in (
        ("node_cpu_usage_cores", "CPU use of a node's pods, cores", "cpu_cores"),
        ("node_memory_usage_bytes", "Memory use of a node's pods, bytes", "memory_bytes"),
        ("node_gpu_usage", "Mean utilisation of a node's GPUs, percent", "gpu_pct"),
        ("node_power_estimate_watts", "Power of a node's pods and of its unreserved rest, W", "power_w"),
    ):
        family = GaugeMetricFamily(
            PREFIX + name,
            f"{text}: before the last pod started (baseline), now (current), when a pod last ended (final).",
            labels=["node", "phase"],
        )
        for node, phases in exported.nodes.items():
            for phase in ("baseline", "current", "final"):
                use: NodeUse | None = getattr(phases, phase)
                if use is not None and not math.isnan(getattr(use, value)):
                    family.add_metric([node, phase], getattr(use, value))
        yield family


def _ledger_sizes(exported: _Exported) -> Iterator[Metric]:
    for name, text, count in (
        (f"{PREFIX}metrics_samples_stored", "Number of pod samples in the ledger.", "samples"),
        (f"{PREFIX}metrics_cache_size", "Number of pods in the ledger.", "pods"),
        ("joulie_ledger_bytes", "Size of the ledger's file, bytes.", "bytes"),
    ):
        family = GaugeMetricFamily(name, text)
        if count in exported.counts:
            family.add_metric([], exported.counts[count])
        yield family
    until = GaugeMetricFamily(
        "joulie_ledger_accounted_until_timestamp_seconds", "Until when energy is in the ledger, s since the epoch."
    )
    if exported.accounted_until_s is not None:
        until.add_metric([], exported.accounted_until_s)
    yield until
    samples = GaugeMetricFamily(
        "joulie_accounting_samples",
        "Samples of the last cycle, by source and quality of the power.",
        labels=["source", "quality"],
    )
    for labels, number in exported.samples.items():
        samples.add_metric(list(labels), number)
    yield samples
    up = GaugeMetricFamily(
        "joulie_accounting_source_up", "1 if the last reading of a source succeeded.", labels=["source"]
    )
    for source, answered in exported.up.items():
        up.add_metric([source], float(answered))
    yield up


def _energy_budgets(budgets: Iterable[BudgetUse]) -> Iterator[Metric]:
    labels = ["namespace", "budget"]
    used = GaugeMetricFamily("joulie_energy_budget_used_ratio", "Largest used share of an EnergyBudget.", labels=labels)
    forecast = GaugeMetricFamily(
        "joulie_energy_budget_forecast_ratio",
        "Largest share of an EnergyBudget that is expected at the end of its period, at the present pace; "
        "absent until a 24th of it is measured.",
        labels=labels,
    )
    unknown = GaugeMetricFamily(
        "joulie_energy_budget_usage_unknown", "1 while the usage of an EnergyBudget is unknown.", labels=labels
    )
    for one in budgets:
        names = [one.namespace, one.name]
        unknown.add_metric(names, float(one.used is None))
        for family, share in ((used, one.used), (forecast, one.forecast)):
            if share is not None:
                family.add_metric(names, share)
    yield from (used, forecast, unknown)
