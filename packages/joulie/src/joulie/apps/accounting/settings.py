"""Settings of the accounting program; the first names are those of the Compute Gardener Scheduler."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from joulie.adapters.grid.settings import GridSettings
from joulie.adapters.prometheus.settings import PrometheusSettings
from joulie.domain.accounting.identity import PowerRange, parse_power_range
from joulie.domain.accounting.thinning import Strategy
from joulie.program.settings import ModeSettings, ProgramSettings
from joulie.settings import boolean, choice, duration, integer, listed, number, path, text

NODE_POWER_PREFIX = "NODE_POWER_CONFIG_"
MAX_LABELS = 5
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""Source: Kubernetes documentation, Labels and Selectors, Syntax and character set."""


@dataclass(frozen=True, kw_only=True)
class AccountingSettings(ModeSettings, GridSettings, PrometheusSettings, ProgramSettings):
    """Settings of `joulie accounting`.

    Raises:
        ValueError: settings that contradict each other.
    """

    sampling_interval_s: float = duration(
        "METRICS_SAMPLING_INTERVAL",
        "30s",
        "Time between two samples of the power of pods.",
        minimum=1.0,
        maximum=3600.0,
    )
    max_samples_per_pod: int = integer(
        "MAX_SAMPLES_PER_POD",
        "500",
        "Samples kept of a pod, for the counterfactual of its savings; sums of energy never depend on them.",
        minimum=4,
    )
    completed_pod_retention_s: float = duration(
        "COMPLETED_POD_RETENTION",
        "1h",
        "How long the samples of a completed pod are kept, and its own metrics.",
        minimum=0.0,
    )
    downsampling_strategy: Strategy = choice(
        "DOWNSAMPLING_STRATEGY", Strategy.TIME_BASED, "Which samples are kept of a pod that has too many.", Strategy
    )
    node_default_idle_w: float = number(
        "NODE_DEFAULT_IDLE_POWER",
        "100",
        "Idle power of a node of whose hardware nobody knows anything.",
        minimum=0,
        unit="W",
    )
    node_default_max_w: float = number(
        "NODE_DEFAULT_MAX_POWER",
        "400",
        "Power under full load of such a node. NODE_POWER_CONFIG_<node>=idle:50,max:300 says it of one node.",
        minimum=1,
        unit="W",
    )
    hardware_profiles: Path | None = path("HARDWARE_PROFILES_PATH", None, "YAML file of hardware power profiles.")
    inventory: Path | None = path(
        "INVENTORY_PATH",
        None,
        "YAML file of embodied emissions, PUE, contracts, residual mixes and functional units.",
    )
    ledger_url: str = text(
        "LEDGER_URL",
        "sqlite:////var/lib/joulie/ledger.db",
        "Where accounts are kept: a SQLite file, or postgresql+psycopg://user@host/database (extra postgres).",
        secret=True,
    )
    ledger_url_file: Path | None = path(
        "LEDGER_URL_FILE", None, "File with that address, for one that holds a password."
    )
    ledger_hours_s: float = duration(
        "LEDGER_HOURS_RETENTION",
        "2d",
        "How long energy is kept by pod and hour; then it is folded into days of workloads.",
        minimum=7200.0,
    )
    ledger_days_s: float = duration(
        "LEDGER_DAYS_RETENTION",
        "400d",
        "How long energy is kept by workload and day, and savings; a month at least, for budgets of months.",
        minimum=31 * 86400.0,
    )
    ledger_corrections_s: float = duration(
        "LEDGER_CORRECTION_WINDOW",
        "45d",
        "How far back corrections reach: how long energy is kept by hour and by what it was multiplied by.",
        minimum=2 * 86400.0,
    )
    ledger_close_after_s: float = duration(
        "LEDGER_CLOSE_AFTER",
        "10d",
        "How long after its end a month is closed for good, if there is a signing key.",
        minimum=0.0,
    )
    ledger_signing_key_file: Path | None = path(
        "LEDGER_SIGNING_KEY_FILE",
        None,
        "PEM file with the Ed25519 key that signs closed months; without it no month is closed by itself.",
    )
    ledger_heads_config_map: str = text(
        "LEDGER_HEADS_CONFIG_MAP", "", "ConfigMap that the journal's head is published in, one key a closed month."
    )
    energy_labels: str = text(
        "ENERGY_LABELS",
        "",
        f"Labels of pods that energy can be summed by, with commas between, at most {MAX_LABELS}: team,cost-centre.",
    )
    namespace: str = text("POD_NAMESPACE", "joulie-system", "Namespace that Joulie runs in.")
    currency: str = text("CURRENCY", "USD", "Currency of the prices.")
    metric_pods: int = integer(
        "METRIC_PODS",
        "1000",
        "Pods that have series of their own at most; sums of namespaces have all of them.",
        minimum=0,
    )
    metrics_addr: str = text("METRICS_ADDR", ":10259", "Address of /metrics, of probes and of the API.")
    api_authorization: bool = boolean(
        "API_AUTHORIZATION", True, "Answer the API only to users of the cluster that may get energy.joulie.io."
    )
    metrics_tls: bool = boolean("METRICS_TLS", True, "Serve over HTTPS; without files by a self-made certificate.")
    metrics_cert_file: Path | None = path(
        "METRICS_TLS_CERT_FILE", None, "Certificate to serve with; a new one is taken up."
    )
    metrics_key_file: Path | None = path("METRICS_TLS_KEY_FILE", None, "Key of that certificate.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.node_default_idle_w > self.node_default_max_w:
            raise ValueError(
                f"NODE_DEFAULT_IDLE_POWER ({self.node_default_idle_w:g} W) must be at most "
                f"NODE_DEFAULT_MAX_POWER ({self.node_default_max_w:g} W)"
            )
        if len(self.label_keys) > MAX_LABELS:
            raise ValueError(f"ENERGY_LABELS has {len(self.label_keys)} labels: {MAX_LABELS} are allowed")
        if wrong := [key for key in self.label_keys if not _LABEL_KEY.fullmatch(key)]:
            raise ValueError(f"ENERGY_LABELS: invalid label key {wrong[0]!r}")
        if (self.metrics_cert_file is None) != (self.metrics_key_file is None):
            raise ValueError("METRICS_TLS_CERT_FILE and METRICS_TLS_KEY_FILE go together")

    @property
    def label_keys(self) -> tuple[str, ...]:
        """Labels of pods that energy can be summed by."""
        return tuple(sorted(listed(self.energy_labels)))

    def ledger_address(self) -> str:
        """Where accounts are kept.

        Raises:
            OSError: LEDGER_URL_FILE cannot be read.
        """
        if self.ledger_url_file is None:
            return self.ledger_url
        return self.ledger_url_file.read_text(encoding="utf-8").strip()


def node_power_ranges(environment: Mapping[str, str]) -> dict[str, PowerRange]:
    """Power by node, of the variables NODE_POWER_CONFIG_<node>=idle:50,max:300.

    Raises:
        ValueError: one of them is written otherwise.
    """
    found = {}
    for variable, value in environment.items():
        if variable.startswith(NODE_POWER_PREFIX):
            try:
                found[variable.removeprefix(NODE_POWER_PREFIX)] = parse_power_range(value)
            except ValueError as error:
                raise ValueError(f"{variable}: {error}") from error
    return found
