"""Metrics that every program exports of itself."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector


def process_registry() -> CollectorRegistry:
    """A registry with the metrics of this process."""
    registry = CollectorRegistry()
    for part in (ProcessCollector, PlatformCollector, GCCollector):
        part(registry=registry)
    return registry
