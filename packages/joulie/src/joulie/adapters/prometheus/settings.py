"""Settings of programs that ask a Prometheus server."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from joulie.adapters.prometheus.auth import PrometheusAuth
from joulie.adapters.prometheus.client import Prometheus, connect
from joulie.settings import duration, group, path, text


def _address(text: str) -> str:
    # An empty variable counts as unset, so that there has to be a word for it.
    return "" if text.lower() == "none" else text


@dataclass(frozen=True, kw_only=True)
class PrometheusSettings:
    """Which server, and who asks it."""

    prometheus_address: str = text(
        "PROMETHEUS_ADDRESS",
        "http://prometheus-operated.monitoring:9090",
        "Prometheus that scrapes agents, Kepler, node_exporter, DCGM and cAdvisor; none for none.",
        to=_address,
    )
    prometheus_timeout_s: float = duration("PROMETHEUS_TIMEOUT", "10s", "How long a query may take.", minimum=0.1)
    prometheus_window_s: float = duration(
        "PROMETHEUS_WINDOW",
        "2m",
        "Time that counters of power and CPU time are averaged over: at least two scrapes, better four.",
        minimum=2.0,
    )
    prometheus_auth: PrometheusAuth = group(
        PrometheusAuth,
        bearer_token_file=path(
            "PROMETHEUS_BEARER_TOKEN_FILE", None, "File with the token to send; read at each query."
        ),
        username=text("PROMETHEUS_USERNAME", None, "User of basic authentication."),
        password_file=path("PROMETHEUS_PASSWORD_FILE", None, "File with the password of that user."),
        ca_file=path("PROMETHEUS_CA_FILE", None, "Authorities that may sign the server's certificate."),
        client_cert_file=path("PROMETHEUS_CLIENT_CERT_FILE", None, "Certificate to show to the server."),
        client_key_file=path("PROMETHEUS_CLIENT_KEY_FILE", None, "Key of that certificate."),
    )

    def prometheus(self) -> AbstractAsyncContextManager[Prometheus | None]:
        """A client of the server of PROMETHEUS_ADDRESS; None where there is none."""
        if not self.prometheus_address:
            return nullcontext()
        return connect(self.prometheus_address, self.prometheus_auth, timeout_s=self.prometheus_timeout_s)
