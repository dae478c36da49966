"""Prometheus: client of its HTTP API, scraping of /metrics, and readings of nodes, pods and GPUs from exporters.

Sums over a large cluster take a good part of a second, so they are computed in threads to keep the event loop free.
"""

from joulie.adapters.prometheus.answers import History, PrometheusError, PrometheusUnavailableError, Series
from joulie.adapters.prometheus.auth import PrometheusAuth
from joulie.adapters.prometheus.client import Prometheus, connect
from joulie.adapters.prometheus.exposition import scrape

__all__ = [
    "History",
    "Prometheus",
    "PrometheusAuth",
    "PrometheusError",
    "PrometheusUnavailableError",
    "Series",
    "connect",
    "scrape",
]
