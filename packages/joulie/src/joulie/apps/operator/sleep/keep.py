"""What keeps a node awake."""

from __future__ import annotations

from collections.abc import Container
from enum import StrEnum

from joulie.adapters.kubernetes import names
from joulie.apps.operator.facts import NodeFacts
from joulie.apps.operator.settings import OperatorSettings
from joulie.apps.operator.settings.sleep import SleepMode

_CONTROL_PLANE_LABELS = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
_AUTOSCALER_TAINTS = frozenset(
    {
        "ToBeDeletedByClusterAutoscaler",
        "DeletionCandidateOfClusterAutoscaler",
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
    }
)
"""Of nodes that an autoscaler removes, or is about to. Source: Cluster Autoscaler, Karpenter v1 and v1beta1."""


class Keep(StrEnum):
    """Why a node must not sleep: part of events, and value of the metric's ``reason`` label."""

    UNMANAGED = "not managed"
    OFF = "sleep is off"
    OBSERVED = "observe mode"
    CONTROL_PLANE = "control plane"
    LABEL = "keep-awake label"
    RESERVED = "reserved"
    CORDONED = "cordoned"
    """By somebody else, who may be at work on it."""
    AUTOSCALER = "autoscaler"
    """Removes it, and can only do so while it sees it."""
    LOCAL_VOLUME = "local volume"
    VOLUMES_UNKNOWN = "volumes unknown"


RULES = tuple(keep for keep in Keep if keep not in {Keep.UNMANAGED, Keep.OFF, Keep.OBSERVED})
"""Those that `keep_rule` gives."""
CLOSED = frozenset({Keep.UNMANAGED, Keep.CONTROL_PLANE, Keep.RESERVED, Keep.CORDONED})
"""Of nodes that do not stand in for others of their hardware: pods of any kind cannot count on them."""


def acts_on(facts: NodeFacts, settings: OperatorSettings) -> bool:
    """Whether a node is put to sleep, not only reported."""
    return settings.sleep is SleepMode.ENFORCE and facts.managed and facts.enforced


def keep_released(facts: NodeFacts, settings: OperatorSettings) -> Keep:
    """Why a node that is not acted on stays awake, or wakes."""
    if not facts.managed:
        return Keep.UNMANAGED
    return Keep.OFF if settings.sleep is SleepMode.OFF else Keep.OBSERVED


def keep_rule(
    name: str, facts: NodeFacts, settings: OperatorSettings, volume_holders: Container[str] | None
) -> Keep | None:
    """The rule that keeps a node awake; None if it may sleep.

    Args:
        name: its name.
        facts: what is known of it.
        settings: operator settings.
        volume_holders: nodes with local volumes; None if these are not known.
    """
    labels = facts.labels
    rules = (
        (Keep.CONTROL_PLANE, any(label in labels for label in _CONTROL_PLANE_LABELS)),
        (Keep.LABEL, labels.get(names.KEEP_AWAKE_LABEL, "false") != "false"),
        (Keep.RESERVED, settings.reserved_label_key in labels),
        (Keep.CORDONED, facts.cordoned),
        (Keep.AUTOSCALER, _has_autoscaler(facts, settings)),
        (Keep.LOCAL_VOLUME, volume_holders is not None and name in volume_holders),
        # A new leader does not know them yet: that wakes nobody.
        (Keep.VOLUMES_UNKNOWN, volume_holders is None and not facts.sleep_mark),
    )
    return next((keep for keep, holds in rules if holds), None)


def _has_autoscaler(facts: NodeFacts, settings: OperatorSettings) -> bool:
    labelled = any(label in facts.labels for label in settings.sleep_autoscaler_labels)
    return labelled or any(taint.key in _AUTOSCALER_TAINTS for taint in facts.taints)
