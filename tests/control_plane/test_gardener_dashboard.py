"""The dashboard of the Compute Gardener Scheduler, unchanged, over a real Prometheus that scrapes Joulie's metrics."""

import math
from collections import Counter
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from joulie.apps.accounting.metrics import AccountingMetrics
from joulie.apps.accounting.sampler import NodeUse, PodUse, Sampling
from joulie.apps.extender.metrics import ExtenderMetrics
from joulie.apps.grid.metrics import ControllerMetrics
from joulie.domain.accounting.records import (
    CompletedPod,
    CycleResult,
    Energy,
    Held,
    Method,
    OpenPod,
    PodMeta,
    PowerQuality,
    Sample,
    Saving,
)
from joulie.domain.grid.deferral import HoldReason, ReleaseReason
from joulie.domain.grid.signals import Basis, GridSignal, Measure, Period, Provenance
from joulie.domain.signal import Quality
from joulie_lab.control_plane import wait_for
from support.gardener_dashboard import QUERIES
from support.prometheus_server import PrometheusServer

MONITOR = Path(__file__).parents[2] / "deploy/helm/joulie/templates/grid-metrics.yaml"
NOW_S = 1_800_000_000.0
TARGET = {"pod": "joulie-accounting-0", "namespace": "joulie-system"}


def meta(name: str, held: Held | None = None) -> PodMeta:
    return PodMeta(f"uid-{name}", "ml", name, "Job", name, "gpu-1", "DE", NOW_S - 900.0, held=held)


def accounting() -> AccountingMetrics:
    """The metrics after two cycles: one pod runs, two that had waited have ended."""
    metrics = AccountingMetrics()
    held = Held(NOW_S - 3600.0, NOW_S - 3600.0, 400.0, 0.3, 150.0, 0.1)
    running = meta("train")
    ended = [meta(name, held) for name in ("by-series", "by-sum")]
    node = NodeUse(12.0, 4e9, 80.0, 900.0, 1.1, 0.05)

    def sampling(pods: list[PodMeta]) -> Sampling:
        samples = [Sample(pod, 200.0, 20.0, 500.0, PowerQuality.MEASURED, "kepler") for pod in pods]
        use = {pod.uid: PodUse(6.0, 2e9, 500.0, 720.0) for pod in pods}
        return Sampling(samples, nodes={"gpu-1": node}, new=frozenset(use), pods=use)

    energy = Energy(7.2e6, 0.4e6, 3.6e6, 12e6, 12e6, 0.0, 500.0, 0.0, 0.4, 0.0)
    open_pods = {pod.uid: OpenPod(pod, NOW_S, energy, 720.0, "kepler") for pod in (running, *ended)}
    metrics.cycled(sampling([running, *ended]), open_pods, CycleResult({"ml": energy}), NOW_S, ["ml"])
    completed = [
        CompletedPod(pod, NOW_S - 900.0, NOW_S, energy, Saving(700.0, method), Saving(0.6, Method.SIMPLE))
        for pod, method in zip(ended, Method, strict=True)
    ]
    result = CycleResult({"ml": energy}, completed)
    metrics.cycled(sampling([running]), {running.uid: open_pods[running.uid]}, result, NOW_S + 30.0, ["ml"])
    metrics.show_status({"samples": 42, "pods": 3, "bytes": 4096}, {"kepler": True})
    metrics.budgets({running.uid: 0.8}, {running.uid: open_pods[running.uid]}, ())
    metrics.exceeded("ml", "Job", "notify")
    return metrics


def controller() -> ControllerMetrics:
    metrics = ControllerMetrics()
    real, estimated = (Provenance("test", "DE", Basis.AVERAGE, estimated=flag) for flag in (False, True))
    metrics.show(
        lambda: [
            GridSignal(Measure.CARBON, "DE", Quality.FRESH, 300.0, NOW_S, real),
            GridSignal(Measure.CARBON, "FR", Quality.FRESH, 50.0, NOW_S, estimated),
            GridSignal(Measure.PRICE, "DE", Quality.FRESH, 0.2, NOW_S, Provenance("tou", "DE"), Period.PEAK),
        ]
    )
    for reason in (HoldReason.CARBON, ReleaseReason.DEADLINE):
        metrics.decided(reason)
    metrics.held_for_carbon("DE")
    metrics.held_for_price("peak")
    return metrics


def kube_state() -> CollectorRegistry:
    """The three metrics of kube-state-metrics that the dashboard joins."""
    registry = CollectorRegistry()
    phase = Gauge("kube_pod_status_phase", "Phase.", ["pod", "namespace", "phase"], registry=registry)
    info = Gauge("kube_pod_info", "Pod.", ["pod", "namespace", "scheduler_name"], registry=registry)
    for one in ("Pending", "Running", "Succeeded", "Failed"):
        phase.labels(one.lower(), "ml", one).set(1)
        info.labels(one.lower(), "ml", "compute-gardener-scheduler").set(1)
    scheduled = Gauge("kube_pod_status_scheduled", "Scheduled.", ["pod", "namespace", "condition"], registry=registry)
    scheduled.labels("pending", "ml", "false").set(1)
    return registry


def chart_relabelings() -> list[dict[str, object]]:
    """The relabelings of the chart's ServiceMonitor, as Prometheus writes them."""
    text = MONITOR.read_text(encoding="utf-8")
    part = text.partition("metricRelabelings:\n")[2].partition("{{- end }}")[0]
    template = "\n".join(line for line in part.splitlines() if "{{- range" not in line)
    return [
        {
            "source_labels": rule["sourceLabels"],
            "regex": rule["regex"],
            "target_label": rule["targetLabel"],
        }
        for label in ("pod", "namespace")
        for rule in yaml.safe_load(template.replace("{{ . }}", label))
    ]


@pytest.mark.parametrize("monitor", ["gardener", "chart"])
def test_g13_every_panel_of_the_gardeners_dashboard_fills(prometheus: PrometheusServer, monitor: str) -> None:
    grid, books, extender = controller(), accounting(), CollectorRegistry()
    ExtenderMetrics(extender).refused_by_power(Counter({"max_power": 2}))
    registries = grid.registry, books.registry, extender, kube_state()
    started = [start_http_server(0, "127.0.0.1", one) for one in registries]
    try:
        targets = [f"127.0.0.1:{server.server_port}" for server, _ in started]
        ours = {"honor_labels": True, "metric_relabel_configs": chart_relabelings()} if monitor == "chart" else {}
        prometheus.start(
            [
                {"job_name": "joulie", "static_configs": [{"targets": targets[:3], "labels": TARGET}], **ours},
                {"job_name": "kube-state", "static_configs": [{"targets": targets[3:], "labels": TARGET}]},
            ]
        )
        for _ in range(4):
            grid.decide_seconds.labels("total").observe(0.01)
            prometheus.wait_for_samples("compute_gardener_scheduler_metrics_cache_size", 2)
        prometheus.wait_for_samples("compute_gardener_scheduler_pod_scheduling_duration_seconds_count", 3)
        for query in QUERIES:
            wait_for(lambda query=query: bool(prometheus.query(query)), 60.0, query)
        saved = prometheus.query(QUERIES[3])
        assert {(one["metric"]["exported_namespace"], one["metric"]["exported_pod"]) for one in saved} == {
            ("ml", "by-series")
        }
        power = prometheus.query(next(query for query in QUERIES if "node_power_estimate" in query))
        assert [(one["metric"]["node"], one["metric"]["exported_pod"]) for one in power] == [("gpu-1", "train")]
        assert not any(math.isinf(float(one["value"][1])) for query in QUERIES for one in prometheus.query(query))
    finally:
        for server, thread in started:
            server.shutdown()
            thread.join()
            server.server_close()
