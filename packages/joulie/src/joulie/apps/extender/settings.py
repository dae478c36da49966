"""Settings of the extender."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from joulie.domain.scoring.marginal_energy import ScoringAim
from joulie.program.http import TlsFiles
from joulie.program.settings import Kind, ProgramSettings, setting


@dataclass(frozen=True, kw_only=True)
class ExtenderSettings(ProgramSettings):
    """Settings of `joulie extender`.

    Raises:
        ValueError: some but not all of the files that TLS needs are named.
    """

    port: int = setting(
        "PORT", "9876", kind=Kind.INTEGER, minimum=0, maximum=65535, help="Port that kube-scheduler calls."
    )
    metrics_addr: str = setting(
        "METRICS_ADDR", ":9877", kind=Kind.TEXT, help="Address of /metrics, probes and /debug, always without TLS."
    )
    cache_ttl_s: float = setting(
        "CACHE_TTL",
        "30s",
        kind=Kind.DURATION,
        minimum=1.0,
        help="Silence of a watch after which it is opened anew, which shows whether anything was missed.",
    )
    twin_staleness_s: float = setting(
        "TWIN_STALENESS_THRESHOLD",
        "5m",
        kind=Kind.DURATION,
        minimum=1.0,
        help="Age from which a NodeTwin no longer counts and its node scores neutral.",
    )
    scoring: str = setting(
        "SCORING",
        ScoringAim.HEADROOM.value,
        kind=Kind.CHOICE,
        choices=tuple(ScoringAim),
        help="What makes a node good: headroom under its limit, or energy, the least power that the pod adds.",
    )
    min_confidence: float = setting(
        "CLASSIFY_MIN_CONFIDENCE",
        "0.5",
        kind=Kind.NUMBER,
        minimum=0.0,
        maximum=1.0,
        help="Confidence that a WorkloadProfile's cap sensitivities need to count.",
    )
    hardware_catalog: Path | None = setting(
        "HARDWARE_CATALOG_PATH", None, kind=Kind.PATH, help="YAML file of hardware models beside the built-in ones."
    )
    tls_certificate: Path | None = setting(
        "TLS_CERT_FILE", None, kind=Kind.PATH, help="Certificate chain (PEM): serve HTTPS; reloaded when it changes."
    )
    tls_key: Path | None = setting("TLS_KEY_FILE", None, kind=Kind.PATH, help="Private key of the certificate (PEM).")
    tls_client_ca: Path | None = setting(
        "TLS_CLIENT_CA_FILE",
        None,
        kind=Kind.PATH,
        help="Authorities (PEM): let in only clients with a certificate of theirs (mutual TLS).",
    )

    def __post_init__(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("TLS_CERT_FILE and TLS_KEY_FILE go together: give both or neither")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("TLS_CLIENT_CA_FILE needs TLS_CERT_FILE and TLS_KEY_FILE")

    @property
    def tls(self) -> TlsFiles | None:
        """The files of TLS, None without."""
        if self.tls_certificate is None or self.tls_key is None:
            return None
        return TlsFiles(self.tls_certificate, self.tls_key, self.tls_client_ca)
