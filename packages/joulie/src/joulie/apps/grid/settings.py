"""Settings of the grid controller."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from joulie.adapters.grid.settings import GridSettings
from joulie.adapters.prometheus.settings import PrometheusSettings
from joulie.apps.grid.kueue_settings import KueueSettings
from joulie.domain.grid.release import Limits
from joulie.program.leadership import LeaderSettings
from joulie.settings import boolean, choice, group, integer, listed, number, path, text


class DryRunMode(StrEnum):
    """Where a dry run says what it would have done."""

    METRICS = "metrics"
    ANNOTATE = "annotate"
    """In metrics, and in annotations on the pods."""


class DryRunFilter(StrEnum):
    """Which pods a dry run looks at."""

    SCHEDULER_NAME = "schedulerName"
    """Those that ask to wait."""
    NAMESPACE = "namespace"
    """All of the watched namespaces, as if they asked to wait."""


@dataclass(frozen=True, kw_only=True)
class ControllerSettings(KueueSettings, GridSettings, PrometheusSettings, LeaderSettings):
    """Settings of `joulie grid controller`.

    Raises:
        ValueError: settings that contradict each other.
    """

    metrics_addr: str = text("METRICS_ADDR", ":10259", "Address of /metrics and probes.")
    metrics_tls: bool = boolean(
        "METRICS_TLS", True, "Serve them over HTTPS, with a certificate of the program's own where none is given."
    )
    metrics_tls_cert_file: Path | None = path("METRICS_TLS_CERT_FILE", None, "Certificate chain of the server, PEM.")
    metrics_tls_key_file: Path | None = path("METRICS_TLS_KEY_FILE", None, "Its private key, PEM.")
    release_limits: Limits = group(
        Limits,
        rate_per_s=number(
            "RELEASES_PER_SECOND",
            "10",
            "How fast pods start that have been held together. Pods at their latest start go at once.",
            minimum=0.01,
        ),
        burst=integer("RELEASE_BURST", "50", "How many of them start at once after a pause.", minimum=1),
    )
    dry_run_enabled: bool = boolean("DRY_RUN_ENABLED", False, "Hold nothing; only say what would have been held.")
    dry_run_mode: DryRunMode = choice(
        "DRY_RUN_MODE",
        DryRunMode.METRICS,
        "Where that is said: in metrics, or in annotations on the pods, too.",
        DryRunMode,
    )
    dry_run_filter_mode: DryRunFilter = choice(
        "DRY_RUN_FILTER_MODE",
        DryRunFilter.SCHEDULER_NAME,
        "Of which pods: those that ask to wait, or all of the watched namespaces.",
        DryRunFilter,
    )
    dry_run_namespaces: frozenset[str] = text(
        "DRY_RUN_WATCH_NAMESPACES",
        "",
        "Namespaces that a dry run looks at, separated by commas; all of them where empty.",
        to=lambda names: frozenset(listed(names)),
    )
    dry_run_watts_per_core: float = number(
        "DRY_RUN_WATTS_PER_CORE", "5", "Power that a dry run assumes for each CPU core requested.", minimum=0, unit="W"
    )
    dry_run_watts_per_gib: float = number(
        "DRY_RUN_WATTS_PER_GIB", "0.375", "The same for each GiB of memory requested.", minimum=0, unit="W"
    )
    dry_run_watts_per_gpu: float = number(
        "DRY_RUN_WATTS_PER_GPU", "250", "The same for each GPU requested.", minimum=0, unit="W"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.metrics_tls_cert_file is None) != (self.metrics_tls_key_file is None):
            raise ValueError("METRICS_TLS_CERT_FILE and METRICS_TLS_KEY_FILE go together")
