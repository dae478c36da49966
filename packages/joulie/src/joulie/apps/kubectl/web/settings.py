"""Settings of `joulie web`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from joulie.apps.kubectl.web.sign_in import ProxyHeaders
from joulie.program.http import TlsFiles, parse_address
from joulie.program.settings import ServerSettings
from joulie.settings import boolean, duration, integer, path, text


@dataclass(frozen=True, kw_only=True)
class WebSettings(ServerSettings):
    """Settings of `joulie web`.

    Raises:
        ValueError: settings that contradict each other.
    """

    addr: str = text("WEB_ADDR", ":8443", "Listen address of the pages and their API.")
    tls: bool = boolean(
        "WEB_TLS",
        True,
        "Serve over HTTPS; without files by a self-signed certificate. Cookies need HTTPS up to the user.",
    )
    cert_file: Path | None = path("WEB_TLS_CERT_FILE", None, "Certificate of the pages, PEM; a renewed one is loaded.")
    key_file: Path | None = path("WEB_TLS_KEY_FILE", None, "Private key of that certificate, PEM.")
    session_max_age_s: float = duration(
        "SESSION_MAX_AGE", "12h", "Maximum time that a reader stays signed in.", minimum=60.0
    )
    proxy_addr: str = text(
        "PROXY_ADDR",
        "",
        "Listen address for an OIDC proxy, whose headers say who reads; off if empty. Only clients with a certificate "
        "of PROXY_CLIENT_CA_FILE are accepted there.",
    )
    proxy_client_ca_file: Path | None = path(
        "PROXY_CLIENT_CA_FILE", None, "CA certificate, PEM, that signs for the proxy and for nobody else."
    )
    proxy_user_header: str = text("PROXY_USER_HEADER", "X-Forwarded-User", "Header with the user's name.")
    proxy_groups_header: str = text(
        "PROXY_GROUPS_HEADER", "X-Forwarded-Groups", "Header with the user's groups, separated by commas."
    )
    proxy_user_prefix: str = text(
        "PROXY_USER_PREFIX", "", "Prefix of these users in the cluster: the API server's --oidc-username-prefix."
    )
    proxy_groups_prefix: str = text(
        "PROXY_GROUPS_PREFIX", "", "Prefix of these groups in the cluster: the API server's --oidc-groups-prefix."
    )
    aggregated_api_addr: str = text(
        "AGGREGATED_API_ADDR",
        "",
        "Listen address of the aggregated API energy.joulie.io, for the API server alone; off if empty.",
    )
    service_name: str = text("WEB_SERVICE", "joulie-web", "Name of its Service, for the self-signed certificate.")
    metrics_addr: str = text("METRICS_ADDR", ":8081", "Listen address of /metrics, /healthz and /readyz.")
    namespace: str = text("POD_NAMESPACE", "joulie-system", "Namespace that Joulie runs in.")
    operator_port: int = integer("OPERATOR_PORT", "8081", "Metrics port of the operator.", minimum=1, maximum=65535)
    grid_port: int = integer("GRID_PORT", "10259", "HTTPS port of the grid controller.", minimum=1, maximum=65535)
    accounting_url: str = text("ACCOUNTING_URL", "", "URL of the accounting program; without it no energy is shown.")
    accounting_token_file: Path | None = path(
        "ACCOUNTING_TOKEN_FILE", None, "File with the token that the accounting program is asked with."
    )

    def __post_init__(self) -> None:
        parse_address(self.addr)
        parse_address(self.metrics_addr)
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("WEB_TLS_CERT_FILE and WEB_TLS_KEY_FILE go together")
        if self.accounting_url and self.accounting_token_file is None:
            # The pod's own token must not go to a server whose certificate is not verified.
            raise ValueError("ACCOUNTING_URL needs ACCOUNTING_TOKEN_FILE")
        if self.aggregated_api_addr:
            parse_address(self.aggregated_api_addr)
        if self.proxy_addr:
            parse_address(self.proxy_addr)
            if self.proxy_client_ca_file is None:
                raise ValueError("PROXY_ADDR needs PROXY_CLIENT_CA_FILE: everybody could pose as the proxy without it")

    @property
    def proxy_headers(self) -> ProxyHeaders:
        """Headers of the proxy."""
        return ProxyHeaders(
            self.proxy_user_header, self.proxy_groups_header, self.proxy_user_prefix, self.proxy_groups_prefix
        )

    def proxy_files(self, files: TlsFiles) -> TlsFiles:
        """TLS files of the server for the proxy, from those of the pages."""
        return TlsFiles(files.certificate, files.key, self.proxy_client_ca_file)
