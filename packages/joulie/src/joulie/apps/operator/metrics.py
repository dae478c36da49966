"""Prometheus metrics of the operator.

Series of nodes are collected from the last decision at each scrape, so those of deleted nodes disappear.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from joulie.apps.operator.budgets.metrics import PowerBudgetMetrics
from joulie.apps.operator.classifier.metrics import ClassifierMetrics
from joulie.apps.operator.limits.metrics import GpuLimitMetrics
from joulie.apps.operator.power.columns import sources_of
from joulie.apps.operator.power.metrics import PowerMetrics
from joulie.apps.operator.rescheduler.metrics import ReschedulerMetrics
from joulie.apps.operator.sleep.metrics import SleepMetrics
from joulie.apps.operator.trial_metrics import TrialMetrics
from joulie.domain.control import Decision, Facility, NodeDecision, Transition
from joulie.domain.drain import ActiveEco, ActivePerformance, DrainingPerformance, SchedulableClass
from joulie.domain.policy import Profile
from joulie.domain.twin import FULL_DENSITY_CORES, FULL_DENSITY_GPUS, FleetTwin
from joulie.domain.units import FloatArray
from joulie.program.metrics import process_registry
from joulie.program.sources import SourceStates

_STATES = tuple(state.__name__ for state in (ActivePerformance, DrainingPerformance, ActiveEco))
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class OperatorMetrics:
    """All metrics of the operator.

    Attributes:
        registry: registry served at /metrics.
        leading: 1 while this replica leads.
        reconciles: number of cycles by result, success or error.
        reconcile_seconds: duration of a cycle, writes included, s.
        decide_seconds: duration from snapshot to decision, s.
        writes: number of writes to the API server by kind.
        write_errors: number of nodes whose writes failed in a cycle.
        plugin_failures: number of steps in which the policy or cooling model failed and the default was used.
        budgets: metrics of power budgets.
        sleep: metrics of nodes that sleep.
        trials: metrics of trials.
        classifier: metrics of the classifier.
        gpu_limits: metrics of the search for power limits.
        rescheduler: metrics of the rescheduler.
        power: metrics of measured power and of the power sources.
    """

    def __init__(self) -> None:
        self.registry = process_registry()
        self.leading = Gauge("joulie_operator_leader", "1 while this replica leads.", registry=self.registry)
        self.reconciles = Counter("joulie_operator_reconciles", "Control cycles.", ["result"], registry=self.registry)
        self.reconcile_seconds = Histogram(
            "joulie_operator_reconcile_duration_seconds",
            "Duration of a control cycle, writes included, seconds.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.decide_seconds = Histogram(
            "joulie_operator_decide_duration_seconds",
            "Duration from snapshot to decision, seconds.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.writes = Counter("joulie_operator_writes", "Writes to the API server.", ["kind"], registry=self.registry)
        self.write_errors = Counter(
            "joulie_operator_write_errors", "Nodes whose writes failed in a control cycle.", registry=self.registry
        )
        self.plugin_failures = Counter(
            "joulie_operator_plugin_failures",
            "Steps in which the policy or cooling model failed and the default was used.",
            ["plugin"],
            registry=self.registry,
        )
        self.budgets = PowerBudgetMetrics(self.registry)
        self.sleep = SleepMetrics(self.registry)
        self.trials = TrialMetrics(self.registry)
        self.classifier = ClassifierMetrics(self.registry)
        self.gpu_limits = GpuLimitMetrics(self.registry)
        self.rescheduler = ReschedulerMetrics()
        self.registry.register(self.rescheduler)
        self.power = PowerMetrics(self.registry)
        self._nodes = _Nodes()
        self.registry.register(self._nodes)

    def decided(self, decision: Decision) -> None:
        """Export this decision from now on, and count its transitions."""
        self._nodes.show(decision)

    def wrote(self, kind: str) -> None:
        """Count a write to the API server."""
        self.writes.labels(str(kind)).inc()

    def lead(self) -> None:
        """Mark this replica as the leader."""
        self.leading.set(1)
        self.power.reports.leading = True

    def stood_down(self) -> None:
        """Stop exporting series of nodes, since this replica no longer leads."""
        self.leading.set(0)
        self.power.reports.leading = False
        self.power.show(SourceStates(), Facility)
        self.trials.stood_down()
        self._nodes.show(None)


class _Nodes(Collector):
    def __init__(self) -> None:
        self._decision: Decision | None = None
        self._transitions: dict[tuple[str, str, str, str], int] = {}

    def show(self, decision: Decision | None) -> None:
        self._decision = decision
        if decision is None:
            self._transitions.clear()
            return
        for transition in decision.transitions:
            key = _labels(transition)
            self._transitions[key] = self._transitions.get(key, 0) + 1
        # Drop the series of deleted nodes.
        gone = {key for key in self._transitions if key[0] not in decision.memory.states}
        for key in gone:
            del self._transitions[key]

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        transitions = CounterMetricFamily(
            "joulie_operator_state_transitions",
            "Transitions of a node's state, by result: applied, or deferred by the drain guard.",
            labels=["node", "from_state", "to_state", "result"],
        )
        for key, count in self._transitions.items():
            transitions.add_metric(list(key), count)
        yield transitions
        decision = self._decision
        nodes = () if decision is None else decision.nodes
        yield from _states(nodes)
        yield from _caps(nodes)
        yield from _twins(decision)
        yield from _power_sources(decision)
        yield from _ramps(decision)


def _labels(transition: Transition) -> tuple[str, str, str, str]:
    return transition.node, transition.from_state, transition.to_state, transition.result.value


def _states(nodes: Sequence[NodeDecision]) -> Iterator[Metric]:
    classes = GaugeMetricFamily(
        "joulie_operator_nodes", "Number of nodes by what the scheduler may put on them.", labels=["class"]
    )
    states = GaugeMetricFamily(
        "joulie_operator_node_state", "1 for the node's current state.", labels=["node", "state"]
    )
    labels = GaugeMetricFamily(
        "joulie_operator_node_profile_label", "1 for the profile in the node's label.", labels=["node", "profile"]
    )
    blocking = GaugeMetricFamily(
        "joulie_operator_node_blocking_pods",
        "Pods that need full power on a node that drains or is capped.",
        labels=["node"],
    )
    density = GaugeMetricFamily(
        "joulie_operator_node_compute_density", "Compute capacity of a node, 0..100.", labels=["node", "component"]
    )
    counts = Counts(node.guarded.schedulable for node in nodes)
    if nodes:
        for schedulable in SchedulableClass:
            classes.add_metric([schedulable.value], counts[schedulable])
    for node in nodes:
        name, now = node.node.name, type(node.state).__name__
        for state in _STATES:
            states.add_metric([name, state], float(state == now))
        if not isinstance(node.state, ActivePerformance):
            blocking.add_metric([name], float(node.blocking))
        for profile in Profile:
            labels.add_metric([name, profile.value], float(profile is node.label))
        _cpu_w, _gpu_w, cores, gpus = node.node.limits
        density.add_metric([name, "cpu"], min(100.0, cores / FULL_DENSITY_CORES * 100.0))
        density.add_metric([name, "gpu"], min(100.0, gpus / FULL_DENSITY_GPUS * 100.0))
    yield from (classes, states, labels, blocking, density)


def _caps(nodes: Sequence[NodeDecision]) -> Iterator[Metric]:
    """Caps as they are planned and as agents confirm them; those of nodes without a plan have no samples."""
    labels = ["node", "subsystem"]
    wanted = GaugeMetricFamily(
        "joulie_operator_node_cap_wanted_percent", "Planned cap of a node's CPUs or GPUs, percent.", labels=labels
    )
    in_force = GaugeMetricFamily(
        "joulie_operator_node_cap_in_force_percent",
        "Cap of a node's CPUs or GPUs that its agent confirms, percent; 100 without one.",
        labels=labels,
    )
    for node in nodes:
        for family, caps in ((wanted, node.wanted), (in_force, node.caps)):
            if caps.cpu is not None:
                family.add_metric([node.node.name, "cpu"], caps.cpu_percent)
            if caps.gpu is not None:
                family.add_metric([node.node.name, "gpu"], caps.gpu_percent)
    yield from (wanted, in_force)


_TwinValues = Callable[[FleetTwin], FloatArray]
_OF_NODES: tuple[tuple[str, str, _TwinValues], ...] = (
    ("headroom_score", "Power headroom below the cap, 0..100.", lambda twin: twin.headroom),
    ("cooling_stress_score", "Cooling capacity in use, 0..100.", lambda twin: twin.cooling_stress),
    ("psu_stress_score", "Power capacity of the rack in use, 0..100.", lambda twin: twin.psu_stress),
    ("measured_power_watts", "Node power that the twin was computed from, W.", lambda twin: twin.measured_w),
    ("capped_power_watts", "Power under the caps in force, W.", lambda twin: twin.cpu_capped_w + twin.gpu_capped_w),
)
_OF_RACKS: tuple[tuple[str, str, _TwinValues], ...] = (
    ("power_watts", "Power of the nodes", lambda twin: twin.measured_w),
    ("power_ramp_watts_per_minute", "Change of the power of the nodes", lambda twin: twin.power_trend_w_per_min),
)


def _twins(decision: Decision | None) -> Iterator[Metric]:
    for metric, text, values_of in _OF_NODES:
        family = GaugeMetricFamily(f"joulie_operator_node_{metric}", text, labels=["node"])
        if decision is not None:
            listed = values_of(decision.twin).tolist()
            for index in np.flatnonzero(decision.twin.scored).tolist():
                family.add_metric([decision.nodes[index].node.name], listed[index])
        yield family


def _power_sources(decision: Decision | None) -> Iterator[Metric]:
    by_cpu: dict[str, int] = {}
    by_gpu: dict[str, int] = {}
    if decision is not None:
        counts = np.bincount(decision.power.source + 1, minlength=len(decision.power.sources) + 1).tolist()
        by_cpu["none"] = counts[0]
        for name, count in zip(decision.power.sources, counts[1:], strict=True):
            cpu, gpu = sources_of(name)
            by_cpu[cpu] = by_cpu.get(cpu, 0) + count
            if gpu != cpu:
                by_gpu[gpu] = by_gpu.get(gpu, 0) + count
    for name, text, by_source in (
        ("power_source_nodes", "Number of nodes by the source of their power.", by_cpu),
        (
            "gpu_power_source_nodes",
            "Number of nodes by the source of their GPU power, where it differs from the source of their CPU power.",
            by_gpu,
        ),
    ):
        family = GaugeMetricFamily(f"joulie_operator_{name}", text, labels=["source"])
        for source, count in by_source.items():
            family.add_metric([source], count)
        yield family


def _ramps(decision: Decision | None) -> Iterator[Metric]:
    """Power and power ramp of the cluster and of each rack, over nodes with a twin."""
    racks: dict[str, list[int]] = {}
    if decision is not None:
        for index in np.flatnonzero(decision.twin.scored).tolist():
            rack = decision.nodes[index].node.rack
            if rack is not None:
                racks.setdefault(rack, []).append(index)
    for name, text, values_of in _OF_RACKS:
        unit = "W/min" if "ramp" in name else "W"
        cluster = GaugeMetricFamily(f"joulie_operator_cluster_{name}", f"{text} that have a twin, {unit}.")
        by_rack = GaugeMetricFamily(
            f"joulie_operator_rack_{name}", f"{text} of a rack that have a twin, {unit}.", labels=["rack"]
        )
        if decision is not None:
            values = np.nan_to_num(values_of(decision.twin))
            cluster.add_metric([], float(values.sum()))
            for rack, indices in racks.items():
                by_rack.add_metric([rack], float(values[indices].sum()))
        yield from (cluster, by_rack)
