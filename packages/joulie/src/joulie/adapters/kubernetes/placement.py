"""Which nodes a pod's own words admit: node selector, required node affinity and tolerations.

As kube-scheduler's plugins NodeAffinity and TaintToleration filter. What depends on other pods (affinity to them,
spreading, volumes) is left to kube-scheduler. Source: k8s.io/component-helpers/scheduling/corev1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from joulie.adapters.kubernetes.api.core import NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration
from joulie.domain.node_affinity import label_meets

_KEEPS_PODS_OUT = frozenset({"NoSchedule", "NoExecute"})
_NAME_FIELD = "metadata.name"


class Placement(msgspec.Struct, frozen=True):
    """What a pod says of its nodes.

    Attributes:
        selector: labels that the node must have.
        terms: of its required node affinity, one of which must match; None where it requires nothing.
        tolerations: of taints that keep pods out.
    """

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[NodeSelectorTerm, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()

    def admits(self, node: str, labels: Mapping[str, str], taints: Iterable[Taint]) -> bool:
        """Whether the pod may run on a node.

        Args:
            node: its name.
            labels: of the node.
            taints: of the node.
        """
        return (
            all(labels.get(key) == value for key, value in self.selector)
            and (self.terms is None or any(_term_matches(term, node, labels) for term in self.terms))
            and all(self._tolerates(taint) for taint in taints if taint.effect in _KEEPS_PODS_OUT)
        )

    def _tolerates(self, taint: Taint) -> bool:
        return any(_tolerates(toleration, taint) for toleration in self.tolerations)


ANYWHERE = Placement()
"""Of a pod that says nothing."""


def placement(spec: PodSpec) -> Placement:
    """What a pod says of its nodes; the same value for pods that say the same."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required if affinity else None
    # Every pod tolerates a node that is lost, for a while: that opens no node to it.
    tolerations = tuple(one for one in spec.tolerations if one.toleration_seconds is None)
    if not spec.node_selector and required is None and not tolerations:
        return ANYWHERE
    terms = None if required is None else required.node_selector_terms
    return _shared(Placement(tuple(sorted(spec.node_selector.items())), terms, tolerations))


@lru_cache(maxsize=8192)
def _shared(found: Placement) -> Placement:
    """One value for all pods of a template: a hundred thousand of them are kept in memory."""
    return found


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    """An empty effect is every effect; an empty key with Exists is every taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return toleration.key in {"", taint.key}
    return toleration.key == taint.key and toleration.value == taint.value


def _term_matches(term: NodeSelectorTerm, node: str, labels: Mapping[str, str]) -> bool:
    """A term without requirements matches no node."""
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {_NAME_FIELD: node}
    return all(_holds(one, labels) for one in term.match_expressions) and all(
        _holds(one, fields) for one in term.match_fields
    )


def _holds(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    return label_meets(labels.get(requirement.key), requirement.operator, requirement.values)
