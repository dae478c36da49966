"""Settings of the extender."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from joulie.adapters.kubernetes import names
from joulie.domain.scoring.marginal_energy import ScoringAim
from joulie.program.http import TlsFiles
from joulie.program.settings import ModeSettings, ServerSettings
from joulie.settings import boolean, choice, duration, integer, number, path, text


@dataclass(frozen=True, kw_only=True)
class ExtenderSettings(ModeSettings, ServerSettings):
    """Settings of `joulie extender`.

    Raises:
        ValueError: some but not all of the files that TLS needs are named.
    """

    port: int = integer("PORT", "9876", "Port that kube-scheduler calls.", minimum=0, maximum=65535)
    metrics_addr: str = text("METRICS_ADDR", ":9877", "Address of /metrics, probes and /debug, always without TLS.")
    cache_ttl_s: float = duration(
        "CACHE_TTL",
        "30s",
        "Silence of a watch after which it is opened anew, which shows whether anything was missed.",
        minimum=1.0,
    )
    power_profile_label: str = text(
        "POWER_PROFILE_LABEL",
        names.POWER_PROFILE_LABEL,
        "Node label of the operator's power profile, for nodes without a NodeTwin; the operator's setting.",
    )
    twin_staleness_s: float = duration(
        "TWIN_STALENESS_THRESHOLD",
        "5m",
        "Age from which a NodeTwin no longer counts and its node scores neutral.",
        minimum=1.0,
    )
    scoring: ScoringAim = choice(
        "SCORING",
        ScoringAim.HEADROOM,
        "What makes a node good: headroom under its limit; energy, the least power that the pod adds; marginal, the "
        "least energy over the pod's expected duration where empty nodes rest or leave; or frugal, the least free GPU "
        "made useless and the least power, for pods that share GPUs. The last two also watch pods.",
        ScoringAim,
    )
    intensity_weight: float = number(
        "INTENSITY_WEIGHT",
        "40",
        "Points of 100 that a node gains or loses by the carbon intensity of its zone, relative to the mean of all "
        "zones; 0 disregards it.",
        minimum=0.0,
        maximum=100.0,
    )
    intensity_namespace: str = text(
        "INTENSITY_NAMESPACE",
        "",
        "Namespace of the ConfigMap in which the grid controller publishes intensities; empty without a controller.",
    )
    pods_wait_for_power: bool = boolean(
        "PODS_WAIT_FOR_POWER",
        True,
        "Keep pods waiting where a PowerBudget has no watts left for them. Watches pods from the first PowerBudget on.",
    )
    time_scale: float = number(
        "SIM_TIME_SCALE",
        "1",
        "Simulated seconds a second, where nodes are simulated faster than in real time: the durations that marginal "
        "learns are then those of simulated time.",
        minimum=0.01,
        maximum=10_000.0,
    )
    min_confidence: float = number(
        "CLASSIFY_MIN_CONFIDENCE",
        "0.5",
        "Confidence that a WorkloadProfile's cap sensitivities need to count.",
        minimum=0.0,
        maximum=1.0,
    )
    hardware_catalog: Path | None = path(
        "HARDWARE_CATALOG_PATH", None, "YAML file of hardware models beside the built-in ones."
    )
    hardware_profiles: Path | None = path(
        "HARDWARE_PROFILES_PATH",
        None,
        "YAML file of hardware power profiles; limits of power count its defaultPUE and defaultGPUPUE.",
    )
    tls_certificate: Path | None = path(
        "TLS_CERT_FILE", None, "Certificate chain (PEM): serve HTTPS; reloaded when it changes."
    )
    tls_key: Path | None = path("TLS_KEY_FILE", None, "Private key of the certificate (PEM).")
    tls_client_ca: Path | None = path(
        "TLS_CLIENT_CA_FILE", None, "Authorities (PEM): let in only clients with a certificate of theirs (mutual TLS)."
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
