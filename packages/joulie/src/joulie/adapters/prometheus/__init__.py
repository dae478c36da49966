"""Prometheus: its HTTP API, /metrics texts, and what the exporters that it scrapes say of nodes, pods and GPUs.

Sums over a large cluster take a good part of a second, so they are worked out in threads: others on the event loop get
their turn meanwhile.
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
