"""Settings of the accounting program; the first names are those of the Compute Gardener Scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from joulie.domain.accounting.identity import PowerRange, parse_power_range
from joulie.domain.accounting.thinning import Strategy
from joulie.program.grid_settings import GridSettings
from joulie.program.settings import Kind, setting

NODE_POWER_PREFIX = "NODE_POWER_CONFIG_"


@dataclass(frozen=True, kw_only=True)
class AccountingSettings(GridSettings):
    """Settings of `joulie accounting`.

    Raises:
        ValueError: settings that contradict each other.
    """

    sampling_interval_s: float = setting(
        "METRICS_SAMPLING_INTERVAL",
        "30s",
        kind=Kind.DURATION,
        minimum=1.0,
        maximum=3600.0,
        help="Time between two samples of the power of pods.",
    )
    max_samples_per_pod: int = setting(
        "MAX_SAMPLES_PER_POD",
        "500",
        kind=Kind.INTEGER,
        minimum=4,
        help="Samples kept of a pod, for the counterfactual of its savings; sums of energy never depend on them.",
    )
    completed_pod_retention_s: float = setting(
        "COMPLETED_POD_RETENTION",
        "1h",
        kind=Kind.DURATION,
        minimum=0.0,
        help="How long the samples of a completed pod are kept, and its own metrics.",
    )
    downsampling_strategy: str = setting(
        "DOWNSAMPLING_STRATEGY",
        Strategy.TIME_BASED.value,
        kind=Kind.CHOICE,
        choices=tuple(Strategy),
        help="Which samples are kept of a pod that has too many.",
    )
    node_default_idle_w: float = setting(
        "NODE_DEFAULT_IDLE_POWER",
        "100",
        kind=Kind.NUMBER,
        minimum=0,
        unit="W",
        help="Idle power of a node of whose hardware nobody knows anything.",
    )
    node_default_max_w: float = setting(
        "NODE_DEFAULT_MAX_POWER",
        "400",
        kind=Kind.NUMBER,
        minimum=1,
        unit="W",
        help="Power under full load of such a node. NODE_POWER_CONFIG_<node>=idle:50,max:300 says it of one node.",
    )
    hardware_profiles: Path | None = setting(
        "HARDWARE_PROFILES_PATH", None, kind=Kind.PATH, help="YAML file of hardware power profiles."
    )
    ledger_url: str = setting(
        "LEDGER_URL",
        "sqlite:////var/lib/joulie/ledger.db",
        kind=Kind.TEXT,
        secret=True,
        help="Where accounts are kept: a SQLite file, or postgresql+psycopg://user@host/database (extra postgres).",
    )
    ledger_url_file: Path | None = setting(
        "LEDGER_URL_FILE", None, kind=Kind.PATH, help="File with that address, for one that holds a password."
    )
    ledger_hours_s: float = setting(
        "LEDGER_HOURS_RETENTION",
        "2d",
        kind=Kind.DURATION,
        minimum=7200.0,
        help="How long energy is kept by pod and hour; then it is folded into days of workloads.",
    )
    ledger_days_s: float = setting(
        "LEDGER_DAYS_RETENTION",
        "400d",
        kind=Kind.DURATION,
        minimum=31 * 86400.0,
        help="How long energy is kept by workload and day, and savings; a month at least, for budgets of months.",
    )
    currency: str = setting("CURRENCY", "USD", kind=Kind.TEXT, help="Currency of the prices.")
    metric_pods: int = setting(
        "METRIC_PODS",
        "1000",
        kind=Kind.INTEGER,
        minimum=0,
        help="Pods that have series of their own at most; sums of namespaces have all of them.",
    )
    metrics_addr: str = setting(
        "METRICS_ADDR", ":10259", kind=Kind.TEXT, help="Address of /metrics, of probes and of the API."
    )
    metrics_tls: bool = setting(
        "METRICS_TLS", "true", kind=Kind.BOOLEAN, help="Serve over HTTPS; without files by a self-made certificate."
    )
    metrics_cert_file: Path | None = setting(
        "METRICS_TLS_CERT_FILE", None, kind=Kind.PATH, help="Certificate to serve with; a new one is taken up."
    )
    metrics_key_file: Path | None = setting(
        "METRICS_TLS_KEY_FILE", None, kind=Kind.PATH, help="Key of that certificate."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.node_default_idle_w > self.node_default_max_w:
            raise ValueError(
                f"NODE_DEFAULT_IDLE_POWER ({self.node_default_idle_w:g} W) must be at most "
                f"NODE_DEFAULT_MAX_POWER ({self.node_default_max_w:g} W)"
            )
        if (self.metrics_cert_file is None) != (self.metrics_key_file is None):
            raise ValueError("METRICS_TLS_CERT_FILE and METRICS_TLS_KEY_FILE go together")

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
    for variable, text in environment.items():
        if variable.startswith(NODE_POWER_PREFIX):
            try:
                found[variable.removeprefix(NODE_POWER_PREFIX)] = parse_power_range(text)
            except ValueError as error:
                raise ValueError(f"{variable}: {error}") from error
    return found
