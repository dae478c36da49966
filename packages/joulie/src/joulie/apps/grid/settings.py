"""Settings of the grid controller."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from joulie.adapters.grid.settings import GridSettings
from joulie.adapters.kubernetes.requests import Requests
from joulie.adapters.prometheus.settings import PrometheusSettings
from joulie.apps.grid.kueue_settings import KueueSettings
from joulie.domain.accounting.budget import WhenUnknown
from joulie.domain.grid.release import Limits
from joulie.program.leadership import LeaderSettings
from joulie.program.settings import ModeSettings
from joulie.settings import boolean, choice, duration, group, integer, listed, number, path, text


class DryRunMode(StrEnum):
    """Where a dry run reports what would have been held."""

    METRICS = "metrics"
    ANNOTATE = "annotate"
    """In metrics and in annotations on the pods."""


class DryRunFilter(StrEnum):
    """Which pods a dry run evaluates."""

    SCHEDULER_NAME = "schedulerName"
    """Pods that request deferral."""
    NAMESPACE = "namespace"
    """All pods of the watched namespaces, as if they requested deferral."""


@dataclass(frozen=True, kw_only=True)
class ControllerSettings(ModeSettings, KueueSettings, GridSettings, PrometheusSettings, LeaderSettings):
    """Settings of `joulie grid controller`.

    Raises:
        ValueError: settings contradict each other.
    """

    metrics_addr: str = text("METRICS_ADDR", ":10259", "Listen address of /metrics and probes.")
    metrics_tls: bool = boolean(
        "METRICS_TLS", True, "Serve /metrics and probes over HTTPS; without a certificate, a self-signed one is used."
    )
    metrics_tls_cert_file: Path | None = path(
        "METRICS_TLS_CERT_FILE", None, "Certificate chain of the metrics server, PEM."
    )
    metrics_tls_key_file: Path | None = path("METRICS_TLS_KEY_FILE", None, "Private key of that certificate, PEM.")
    accounting_url: str = text(
        "ACCOUNTING_URL",
        "",
        "Base URL of the accounting program, whose ledger knows how long earlier runs took. Empty: workloads that "
        "state no runtime get GRID_DEFAULT_RUNTIME.",
    )
    accounting_ca_file: Path | None = path(
        "ACCOUNTING_CA_FILE",
        None,
        "Authorities that the accounting program's certificate is verified by, PEM; without, any is accepted, such as "
        "its self-signed one.",
    )
    accounting_token_file: Path | None = path(
        "ACCOUNTING_TOKEN_FILE",
        None,
        "Token that the accounting program is asked with; its user must be allowed to get energy.joulie.io in all "
        "namespaces.",
    )
    holdout_share: float = number(
        "GRID_HOLDOUT",
        "0",
        "Share of the workloads that ask to wait that are let go at once, by chance, so that what waiting saves goes "
        "on being measured; 0.05 is 5 %, 0 is off.",
        minimum=0,
        maximum=0.5,
    )
    runtime_quantile: float = number(
        "GRID_RUNTIME_QUANTILE",
        "0.9",
        "Share of a workload's earlier runs that took no longer than the runtime it is expected to have.",
        minimum=0.01,
        maximum=1,
    )
    release_limits: Limits = group(
        Limits,
        rate_per_s=number(
            "RELEASES_PER_SECOND",
            "10",
            "Maximum rate at which held pods are released together. Pods at their latest start are released at once.",
            minimum=0.01,
        ),
        burst=integer("RELEASE_BURST", "50", "Maximum number of pods released at once after a pause.", minimum=1),
    )
    budget_when_unknown: WhenUnknown = choice(
        "BUDGET_WHEN_UNKNOWN",
        WhenUnknown.OPEN,
        "While the usage of an EnergyBudget is unknown, new pods start (open) or wait (closed); the budget's own "
        "whenUnknown takes precedence.",
        WhenUnknown,
    )
    budget_stale_after_s: float = duration(
        "BUDGET_STALE_AFTER",
        "5m",
        "Age at which the measured usage of an EnergyBudget counts as unknown.",
        minimum=1.0,
    )
    replica_ceilings_enabled: bool = boolean(
        "REPLICA_CEILINGS_ENABLED",
        False,
        "Lower the maximum of HorizontalPodAutoscalers and KEDA's ScaledObjects that ask for it while power is dirty "
        "or expensive.",
    )
    dry_run_enabled: bool = boolean("DRY_RUN_ENABLED", False, "Hold nothing; only report what would have been held.")
    dry_run_mode: DryRunMode = choice(
        "DRY_RUN_MODE",
        DryRunMode.METRICS,
        "Where a dry run reports: in metrics only, or also in annotations on the pods.",
        DryRunMode,
    )
    dry_run_filter_mode: DryRunFilter = choice(
        "DRY_RUN_FILTER_MODE",
        DryRunFilter.SCHEDULER_NAME,
        "Which pods a dry run evaluates: those that request deferral, or all of the watched namespaces.",
        DryRunFilter,
    )
    dry_run_namespaces: frozenset[str] = text(
        "DRY_RUN_WATCH_NAMESPACES",
        "",
        "Namespaces that a dry run watches, separated by commas; empty for all.",
        to=lambda names: frozenset(listed(names)),
    )
    dry_run_watts_per_core: float = number(
        "DRY_RUN_WATTS_PER_CORE",
        "5",
        "Power per requested CPU core that estimates of a dry run and of replica ceilings assume.",
        minimum=0,
        unit="W",
    )
    dry_run_watts_per_gib: float = number(
        "DRY_RUN_WATTS_PER_GIB",
        "0.375",
        "Power per requested GiB of memory that these estimates assume.",
        minimum=0,
        unit="W",
    )
    dry_run_watts_per_gpu: float = number(
        "DRY_RUN_WATTS_PER_GPU", "250", "Power per requested GPU that these estimates assume.", minimum=0, unit="W"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.metrics_tls_cert_file is None) != (self.metrics_tls_key_file is None):
            raise ValueError("METRICS_TLS_CERT_FILE and METRICS_TLS_KEY_FILE go together")

    def assumed_power_w(self, requests: Requests) -> float:
        """Assumed power of a pod, W: per requested core, GiB and GPU."""
        return (
            requests.cpu_cores * self.dry_run_watts_per_core
            + requests.memory_gib * self.dry_run_watts_per_gib
            + requests.gpus * self.dry_run_watts_per_gpu
        )
