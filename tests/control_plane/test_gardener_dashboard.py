"""The dashboard of the Compute Gardener Scheduler, unchanged, over a real Prometheus that scrapes Joulie's metrics."""

import math
from collections import Counter
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from joulie.apps.extender.metrics import ExtenderMetrics
from joulie_lab.control_plane import wait_for
from support.gardener_dashboard import QUERIES
from support.grid_accounts import accounting, controller
from support.prometheus_server import PrometheusServer

MONITOR = Path(__file__).parents[2] / "deploy/helm/joulie/templates/grid-metrics.yaml"
TARGET = {"pod": "joulie-accounting-0", "namespace": "joulie-system"}


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
