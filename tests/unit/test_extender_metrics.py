"""Metrics of the extender."""

from collections import Counter

from prometheus_client import CollectorRegistry

from joulie.apps.extender.limits import LIMIT_REFUSALS
from joulie.apps.extender.metrics import ExtenderMetrics


def test_every_reason_of_a_refusal_by_power_is_counted():
    registry = CollectorRegistry()
    ExtenderMetrics(registry).refused_by_power(Counter(list(LIMIT_REFUSALS)))
    for prefix in ("compute_gardener_scheduler", "scheduler_compute_gardener"):
        for reason in LIMIT_REFUSALS:
            name = f"{prefix}_power_filtered_nodes_total"
            assert registry.get_sample_value(name, {"reason": reason}) == 1.0
