"""Prometheus metrics of power: of nodes and namespaces, of the power sources, and of the facility.

They are collected from the last poll at each scrape, so series of deleted objects disappear. There are none per pod,
since a cluster has too many pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from joulie.apps.operator.power.report import PowerReport, PowerReports
from joulie.domain.control import ControlledNode, Facility
from joulie.domain.quantities import ZERO_CELSIUS_K
from joulie.domain.units import FloatArray
from joulie.program.sources import SourceStates

SHOWN_NAMESPACES = 200
"""Maximum number of namespaces with a series of their own, by power; the rest is summed as `OTHER`."""
OTHER = "other"


class PowerMetrics(Collector):
    """Exports power measurements while this replica leads.

    Attributes:
        reports: holder of the latest power report.
        source_errors: number of failed readings of power sources and facility metrics.

    Args:
        registry: registry served at /metrics.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.source_errors = Counter(
            "joulie_operator_source_errors", "Failed reads of a source.", ["source"], registry=registry
        )
        self.reports = PowerReports()
        self._states = SourceStates()
        self._facility: Callable[[], Facility] = Facility
        self._rejected: dict[str, Mapping[str, int]] = {}
        registry.register(self)

    def show(self, states: SourceStates, facility: Callable[[], Facility]) -> None:
        """Export these sources and facility measurements from now on."""
        self._states, self._facility = states, facility
        self._rejected.clear()
        self.reports.latest = None

    def rejected(self, source: str, series: Mapping[str, int]) -> None:
        """Record the number of series that the last reading of a source ignored, by reason."""
        self._rejected[source] = series

    def collect(self) -> Iterator[Metric]:
        """All metric families; those with unknown values have no samples."""
        yield from self._sources()
        yield from _facility(self._facility())
        yield from _nodes(self.reports.latest)
        yield _namespaces(self.reports.latest)

    def describe(self) -> Iterable[Metric]:
        """The same families as `collect`."""
        return self.collect()

    def _sources(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            "joulie_operator_source_up", "1 if the last reading of a source succeeded.", labels=["source"]
        )
        told_of = GaugeMetricFamily(
            "joulie_operator_source_told_of",
            "Number of nodes, or pods, in the last reading of a source.",
            labels=["source"],
        )
        rejected = GaugeMetricFamily(
            "joulie_operator_source_rejected_series",
            "Number of series that the last reading of a source ignored, by reason.",
            labels=["source", "reason"],
        )
        for source, is_up in self._states.up.items():
            up.add_metric([source], float(is_up))
            told_of.add_metric([source], self._states.told_of.get(source, 0))
        for source, counts in self._rejected.items():
            for reason, count in counts.items():
                rejected.add_metric([source, reason], count)
        yield from (up, told_of, rejected)


def _facility(facility: Facility) -> Iterator[Metric]:
    for name, text, value in (
        ("ambient_celsius", "Ambient temperature, degrees Celsius.", _celsius(facility.ambient_k)),
        ("it_power_watts", "Power of IT, W.", facility.it_power_w),
        ("cooling_power_watts", "Power of cooling, W.", facility.cooling_power_w),
        ("pue", "Power of IT and cooling divided by the power of IT.", facility.pue),
        ("it_power_ramp_watts_per_minute", "Ramp of the power of IT, W/min.", facility.it_ramp_w_per_min),
    ):
        family = GaugeMetricFamily(f"joulie_operator_facility_{name}", text)
        if value is not None:
            family.add_metric([], value)
        yield family
    zones = GaugeMetricFamily(
        "joulie_operator_facility_zone_ambient_celsius",
        "Ambient temperature of a cooling zone, degrees Celsius.",
        labels=["zone"],
    )
    for zone, temperature_k in facility.zone_ambient_k.items():
        zones.add_metric([zone], temperature_k - ZERO_CELSIUS_K)
    yield zones
    for name, text, by_rack in (
        ("rack_power_watts", "Measured power of a rack, W.", facility.rack_power_w),
        (
            "rack_power_ramp_watts_per_minute",
            "Ramp of the measured power of a rack, W/min.",
            facility.rack_ramp_w_per_min,
        ),
    ):
        racks = GaugeMetricFamily(f"joulie_operator_facility_{name}", text, labels=["rack"])
        for rack, rack_value in by_rack.items():
            racks.add_metric([rack], rack_value)
        yield racks


def _celsius(temperature_k: float | None) -> float | None:
    return None if temperature_k is None else temperature_k - ZERO_CELSIUS_K


def _nodes(report: PowerReport | None) -> Iterator[Metric]:
    by_part = GaugeMetricFamily(
        "joulie_operator_node_power_watts",
        "Power of a node by part: its pods, its system, or idle, W.",
        labels=["node", "part"],
    )
    by_device = GaugeMetricFamily(
        "joulie_operator_node_device_power_watts",
        "Power of a node's CPU packages (cpu) and of its GPUs (gpu), W.",
        labels=["node", "device"],
    )
    if report is not None:
        shares, power = report.shares, report.shares.power
        has_gpus = np.array([node.hardware.gpu is not None for node in power.nodes], dtype=np.bool_)
        _fill(by_part, power.nodes, shares.idle_w, "idle")
        _fill(by_part, power.nodes, shares.system_w, "system")
        _fill(by_part, power.nodes, np.maximum(power.total_w - shares.idle_w - shares.system_w, 0.0), "pods")
        _fill(by_device, power.nodes, power.cpu_w, "cpu")
        _fill(by_device, power.nodes, np.where(has_gpus, power.gpu_w, np.nan), "gpu")
    yield from (by_part, by_device)


def _fill(family: GaugeMetricFamily, nodes: Iterable[ControlledNode], values: FloatArray, label: str) -> None:
    """Add the known values: a missing value is not zero."""
    for node, value, known in zip(nodes, values.tolist(), (~np.isnan(values)).tolist(), strict=True):
        if known:
            family.add_metric([node.name, label], value)


def _namespaces(report: PowerReport | None) -> Metric:
    family = GaugeMetricFamily(
        "joulie_operator_namespace_power_watts", "Power of the pods of a namespace, W.", labels=["namespace"]
    )
    by_namespace = {} if report is None else report.by_namespace()[0]
    ordered = sorted(by_namespace.items(), key=lambda one: (-one[1], one[0]))
    for name, power_w in ordered[:SHOWN_NAMESPACES]:
        family.add_metric([name], power_w)
    if len(ordered) > SHOWN_NAMESPACES:
        family.add_metric([OTHER], sum(power_w for _, power_w in ordered[SHOWN_NAMESPACES:]))
    return family
