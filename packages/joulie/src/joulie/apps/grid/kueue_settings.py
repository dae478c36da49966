"""Settings of the AdmissionCheck controller."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from joulie.settings import choice, duration


class KueueMode(StrEnum):
    """Whether Joulie answers for AdmissionChecks."""

    AUTO = "auto"
    """Where the cluster has Kueue's API."""
    TRUE = "true"
    """As auto, but it is worth a warning where the cluster does not have it."""
    FALSE = "false"


@dataclass(frozen=True, kw_only=True)
class KueueSettings:
    """How Joulie works with Kueue."""

    kueue_enabled: KueueMode = choice(
        "KUEUE_ENABLED",
        KueueMode.AUTO,
        "Answer for Kueue's AdmissionChecks of controllerName joulie.io/grid; auto: where the cluster has Kueue.",
        KueueMode,
    )
    kueue_max_requeue_s: float = duration(
        "KUEUE_MAX_REQUEUE",
        "10m",
        "How long a workload is out of its queue at most before it is decided again. Kueue cannot be told to look "
        "earlier when the grid changes, and each look costs it an admission.",
        minimum=1.0,
        maximum=86400,
    )
