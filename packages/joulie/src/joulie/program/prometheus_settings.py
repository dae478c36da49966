"""Settings of programs that ask a Prometheus server."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from joulie.adapters.prometheus import Prometheus, PrometheusAuth, connect
from joulie.program.settings import Kind, setting

_NONE = "none"


@dataclass(frozen=True, kw_only=True)
class PrometheusSettings:
    """Which server, and who asks it."""

    prometheus_address: str = setting(
        "PROMETHEUS_ADDRESS",
        "http://prometheus-operated.monitoring:9090",
        kind=Kind.TEXT,
        help="Prometheus that scrapes agents, Kepler, node_exporter, DCGM and cAdvisor; none for none.",
    )
    prometheus_timeout_s: float = setting(
        "PROMETHEUS_TIMEOUT", "10s", kind=Kind.DURATION, minimum=0.1, help="How long a query may take."
    )
    prometheus_window_s: float = setting(
        "PROMETHEUS_WINDOW",
        "2m",
        kind=Kind.DURATION,
        minimum=2.0,
        help="Time that counters of power and CPU time are averaged over: at least two scrapes, better four.",
    )
    prometheus_bearer_token_file: Path | None = setting(
        "PROMETHEUS_BEARER_TOKEN_FILE", None, kind=Kind.PATH, help="File with the token to send; read at each query."
    )
    prometheus_username: str | None = setting(
        "PROMETHEUS_USERNAME", None, kind=Kind.TEXT, help="User of basic authentication."
    )
    prometheus_password_file: Path | None = setting(
        "PROMETHEUS_PASSWORD_FILE", None, kind=Kind.PATH, help="File with the password of that user."
    )
    prometheus_ca_file: Path | None = setting(
        "PROMETHEUS_CA_FILE", None, kind=Kind.PATH, help="Authorities that may sign the server's certificate."
    )
    prometheus_client_cert_file: Path | None = setting(
        "PROMETHEUS_CLIENT_CERT_FILE", None, kind=Kind.PATH, help="Certificate to show to the server."
    )
    prometheus_client_key_file: Path | None = setting(
        "PROMETHEUS_CLIENT_KEY_FILE", None, kind=Kind.PATH, help="Key of that certificate."
    )

    def __post_init__(self) -> None:
        if self.prometheus_address.lower() == _NONE:
            # An empty variable counts as unset, so that there has to be a word for it.
            object.__setattr__(self, "prometheus_address", "")

    @property
    def prometheus_auth(self) -> PrometheusAuth:
        """Who asks, and whom to trust.

        Raises:
            ValueError: settings that contradict each other.
        """
        return PrometheusAuth(
            bearer_token_file=self.prometheus_bearer_token_file,
            username=self.prometheus_username,
            password_file=self.prometheus_password_file,
            ca_file=self.prometheus_ca_file,
            client_cert_file=self.prometheus_client_cert_file,
            client_key_file=self.prometheus_client_key_file,
        )

    def prometheus(self) -> AbstractAsyncContextManager[Prometheus | None]:
        """A client of the server of PROMETHEUS_ADDRESS; None where there is none.

        Raises:
            ValueError: settings that contradict each other.
        """
        if not self.prometheus_address:
            return nullcontext()
        return connect(self.prometheus_address, self.prometheus_auth, timeout_s=self.prometheus_timeout_s)
