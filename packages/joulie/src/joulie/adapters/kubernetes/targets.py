"""Which TelemetryProfile counts for a node. The agent and the operator must agree. This module needs no numpy."""

from __future__ import annotations

from collections.abc import Mapping

from joulie.adapters.kubernetes.api.v1alpha1 import Target, TargetScope

_NAMED = 1000
"""Above any number of labels that a selector may have."""


def specificity(target: Target, node_name: str, labels: Mapping[str, str]) -> int | None:
    """How specifically a target means a node, None where it does not: by name, by how many labels, or as one of all.

    The highest counts; of equals, the first profile by name.

    Args:
        target: of a TelemetryProfile.
        node_name: the node.
        labels: its labels.
    """
    if target.node_name is not None:
        return _NAMED if target.node_name == node_name else None
    if target.node_selector is not None:
        return len(target.node_selector) if target.node_selector.items() <= labels.items() else None
    return 0 if target.scope == TargetScope.CLUSTER else None
