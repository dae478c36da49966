"""Settings of the integration with Kueue."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from joulie.settings import boolean, choice, duration


class KueueMode(StrEnum):
    """Whether Joulie decides about Kueue's workloads."""

    AUTO = "auto"
    """If the cluster serves Kueue's API."""
    TRUE = "true"
    """Like auto, with a warning if the cluster does not serve it."""
    FALSE = "false"


@dataclass(frozen=True, kw_only=True)
class KueueSettings:
    """Settings of the integration with Kueue."""

    kueue_enabled: KueueMode = choice(
        "KUEUE_ENABLED",
        KueueMode.AUTO,
        "Whether to lift Kueue's admission gates named joulie.io/grid and to answer its AdmissionChecks with that "
        "controllerName; auto: if the cluster has Kueue.",
        KueueMode,
    )
    kueue_max_requeue_s: float = duration(
        "KUEUE_MAX_REQUEUE",
        "10m",
        "Maximum delay before a held workload returns to its queue and is decided again. Kueue cannot be told to "
        "requeue earlier when the grid changes, and each decision costs an admission.",
        minimum=1.0,
        maximum=86400,
    )
    multikueue_dispatcher: bool = boolean(
        "MULTIKUEUE_DISPATCHER",
        False,
        "Whether to nominate MultiKueue's worker clusters for workloads, by the intensity of their zones. Kueue's "
        "configuration names the dispatcher joulie.io/grid then.",
    )
    multikueue_round_s: float = duration(
        "MULTIKUEUE_ROUND",
        "5m",
        "Time that nominated worker clusters have to admit a workload before those of the next zone are nominated too.",
        minimum=1.0,
        maximum=86400,
    )
