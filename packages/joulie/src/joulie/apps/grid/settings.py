"""Settings of the grid controller."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from joulie.apps.grid.kueue_settings import KueueSettings
from joulie.domain.grid.release import Limits
from joulie.program.grid_settings import GridSettings
from joulie.program.leadership import LeaderSettings
from joulie.program.settings import Kind, listed, setting


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
class ControllerSettings(KueueSettings, GridSettings, LeaderSettings):
    """Settings of `joulie grid controller`.

    Raises:
        ValueError: settings that contradict each other.
    """

    metrics_addr: str = setting("METRICS_ADDR", ":10259", kind=Kind.TEXT, help="Address of /metrics and probes.")
    metrics_tls: bool = setting(
        "METRICS_TLS",
        "true",
        kind=Kind.BOOLEAN,
        help="Serve them over HTTPS, with a certificate of the program's own where none is given.",
    )
    metrics_tls_cert_file: Path | None = setting(
        "METRICS_TLS_CERT_FILE", None, kind=Kind.PATH, help="Certificate chain of the server, PEM."
    )
    metrics_tls_key_file: Path | None = setting(
        "METRICS_TLS_KEY_FILE", None, kind=Kind.PATH, help="Its private key, PEM."
    )
    releases_per_s: float = setting(
        "RELEASES_PER_SECOND",
        "10",
        kind=Kind.NUMBER,
        minimum=0.01,
        help="How fast pods start that have been held together. Who has come to the latest start goes at once.",
    )
    release_burst: int = setting(
        "RELEASE_BURST", "50", kind=Kind.INTEGER, minimum=1, help="How many of them start at once after a pause."
    )
    dry_run_enabled: bool = setting(
        "DRY_RUN_ENABLED", "false", kind=Kind.BOOLEAN, help="Hold nothing; only say what would have been held."
    )
    dry_run_mode: str = setting(
        "DRY_RUN_MODE",
        DryRunMode.METRICS.value,
        kind=Kind.CHOICE,
        choices=tuple(DryRunMode),
        help="Where that is said: in metrics, or in annotations on the pods, too.",
    )
    dry_run_filter_mode: str = setting(
        "DRY_RUN_FILTER_MODE",
        DryRunFilter.SCHEDULER_NAME.value,
        kind=Kind.CHOICE,
        choices=tuple(DryRunFilter),
        help="Of which pods: those that ask to wait, or all of the watched namespaces.",
    )
    dry_run_watch_namespaces: str = setting(
        "DRY_RUN_WATCH_NAMESPACES",
        "",
        kind=Kind.TEXT,
        help="Namespaces that a dry run looks at, separated by commas; all of them where empty.",
    )
    dry_run_watts_per_core: float = setting(
        "DRY_RUN_WATTS_PER_CORE",
        "5",
        kind=Kind.NUMBER,
        minimum=0,
        unit="W",
        help="Power that a dry run assumes for each CPU core requested.",
    )
    dry_run_watts_per_gib: float = setting(
        "DRY_RUN_WATTS_PER_GIB",
        "0.375",
        kind=Kind.NUMBER,
        minimum=0,
        unit="W",
        help="The same for each GiB of memory requested.",
    )
    dry_run_watts_per_gpu: float = setting(
        "DRY_RUN_WATTS_PER_GPU",
        "250",
        kind=Kind.NUMBER,
        minimum=0,
        unit="W",
        help="The same for each GPU requested.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.metrics_tls_cert_file is None) != (self.metrics_tls_key_file is None):
            raise ValueError("METRICS_TLS_CERT_FILE and METRICS_TLS_KEY_FILE go together")

    @property
    def release_limits(self) -> Limits:
        """How fast pods start that have been held together."""
        return Limits(self.releases_per_s, self.release_burst)

    @property
    def dry_run_namespaces(self) -> frozenset[str]:
        """The namespaces that a dry run looks at; empty for all."""
        return frozenset(listed(self.dry_run_watch_namespaces))
