"""Selects the TelemetryProfile of a node, in the same way for the agent and the operator. Does not import numpy."""

from __future__ import annotations

from collections.abc import Mapping

from joulie.adapters.kubernetes.api.v1alpha1 import Target, TargetScope

_BY_NAME = 1000
"""Specificity of a target by node name: above the maximum number of labels of a selector."""


def specificity(target: Target, node_name: str, labels: Mapping[str, str]) -> int | None:
    """How specifically a target matches a node; None if it does not match.

    A node name outranks a label selector, which ranks by its number of labels, and a cluster-wide target comes last.
    The profile with the highest specificity applies to the node; ties go to the first profile by name.

    Args:
        target: target of a TelemetryProfile.
        node_name: node name.
        labels: labels of the node.
    """
    if target.node_name is not None:
        return _BY_NAME if target.node_name == node_name else None
    if target.node_selector is not None:
        return len(target.node_selector) if target.node_selector.items() <= labels.items() else None
    return 0 if target.scope == TargetScope.CLUSTER else None
