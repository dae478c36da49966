"""Which nodes a pod may use at all: by its node selector and affinity, and by the class rule of Joulie's extender."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulie.domain.policy import Profile
from joulie.domain.scheduling.node_rules import NodeRules
from joulie.domain.scoring.extender import NodeClass, PodView, may_run
from joulie.domain.units import BoolArray, IntArray
from joulie_lab.simulation.gangs import PodKind
from joulie_lab.simulation.native.nodes import SimNode

_PROFILE_LABEL = "joulie.io/power-profile"
_DRAINING_LABEL = "joulie.io/draining"
_PROFILES = {NodeClass.PERFORMANCE: Profile.PERFORMANCE, NodeClass.DRAINING: Profile.PERFORMANCE}


class Admission:
    """Filters nodes by their current labels, those that the operator sets included.

    Args:
        nodes: nodes of the cluster.
        class_rule: whether performance pods are kept off eco and draining nodes.
    """

    def __init__(self, nodes: Sequence[SimNode], *, class_rule: bool) -> None:
        self._names = [node.name for node in nodes]
        self._labels = [dict(node.labels) for node in nodes]
        self._class_rule = class_rule
        self._classes: IntArray = np.full(len(nodes), NodeClass.UNKNOWN, dtype=np.int64)
        self._by_rules: dict[NodeRules, BoolArray] = {}
        self._by_kind: dict[PodKind, BoolArray] = {}

    def set_classes(self, classes: IntArray) -> None:
        """Set the nodes' schedulable classes (values of `NodeClass`) and the labels that follow from them."""
        for node in np.flatnonzero(classes != self._classes).tolist():
            labels, node_class = self._labels[node], NodeClass(int(classes[node]))
            labels[_PROFILE_LABEL] = _PROFILES.get(node_class, Profile.ECO).value
            if node_class is NodeClass.DRAINING:
                labels[_DRAINING_LABEL] = "true"
            else:
                labels.pop(_DRAINING_LABEL, None)
        self._classes = classes.copy()
        self._by_kind.clear()
        for rules in [one for one in self._by_rules if _depends_on_class(one)]:
            del self._by_rules[rules]

    def allowed_nodes(self, kind: PodKind) -> BoolArray:
        """Nodes that pods of a kind may use, shape ``(n_nodes,)``."""
        found = self._by_kind.get(kind)
        if found is None:
            found = self._matching(kind.rules)
            if self._class_rule and kind.performance:
                found = found & may_run(_PERFORMANCE_POD, self._classes)
            self._by_kind[kind] = found
        return found

    def _matching(self, rules: NodeRules) -> BoolArray:
        found = self._by_rules.get(rules)
        if found is None:
            admits = (rules.admits(one, name) for one, name in zip(self._labels, self._names, strict=True))
            found = self._by_rules[rules] = np.fromiter(admits, np.bool_, len(self._names))
        return found


_PERFORMANCE_POD = PodView(performance=True)


def _depends_on_class(rules: NodeRules) -> bool:
    required = [*rules.selector, *(one for term in rules.terms or () for one in term.labels)]
    return any(one.key in {_PROFILE_LABEL, _DRAINING_LABEL} for one in required)
