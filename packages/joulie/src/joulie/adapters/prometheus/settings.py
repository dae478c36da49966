"""Settings of programs that query a Prometheus server."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from joulie.adapters.prometheus.auth import PrometheusAuth
from joulie.adapters.prometheus.client import Prometheus, connect
from joulie.settings import duration, group, path, text


def _address(text: str) -> str:
    # An empty environment variable counts as unset, so that "none" stands for no server.
    return "" if text.lower() == "none" else text


@dataclass(frozen=True, kw_only=True)
class PrometheusSettings:
    """Address, limits and credentials of the Prometheus server."""

    prometheus_address: str = text(
        "PROMETHEUS_ADDRESS",
        "http://prometheus-operated.monitoring:9090",
        "URL of the Prometheus that scrapes agents, Kepler, node_exporter, DCGM and cAdvisor; none to use none. "
        "PROMETHEUS_URL, its name in the Compute Gardener Scheduler, is read where it is not set.",
        to=_address,
        aliases=("PROMETHEUS_URL",),
    )
    prometheus_timeout_s: float = duration("PROMETHEUS_TIMEOUT", "10s", "Timeout of a query.", minimum=0.1)
    prometheus_window_s: float = duration(
        "PROMETHEUS_WINDOW",
        "2m",
        "Window over which counters of energy and CPU time are averaged: at least two scrapes, better four.",
        minimum=2.0,
    )
    prometheus_auth: PrometheusAuth = group(
        PrometheusAuth,
        bearer_token_file=path(
            "PROMETHEUS_BEARER_TOKEN_FILE", None, "File with the bearer token to send; read at each query."
        ),
        username=text("PROMETHEUS_USERNAME", None, "User name for basic authentication."),
        password_file=path("PROMETHEUS_PASSWORD_FILE", None, "File with the password of that user."),
        ca_file=path(
            "PROMETHEUS_CA_FILE", None, "PEM file of the authorities trusted to sign the server's certificate."
        ),
        client_cert_file=path("PROMETHEUS_CLIENT_CERT_FILE", None, "Client certificate to present to the server, PEM."),
        client_key_file=path("PROMETHEUS_CLIENT_KEY_FILE", None, "Private key of that certificate, PEM."),
    )

    def prometheus(self) -> AbstractAsyncContextManager[Prometheus | None]:
        """Open a client of PROMETHEUS_ADDRESS; None if it is set to none."""
        if not self.prometheus_address:
            return nullcontext()
        return connect(self.prometheus_address, self.prometheus_auth, timeout_s=self.prometheus_timeout_s)
