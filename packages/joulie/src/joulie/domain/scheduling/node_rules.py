"""Which nodes a pod may run on: its node selector, required node affinity and tolerations.

As kube-scheduler's plugins NodeAffinity and TaintToleration filter. What depends on other pods (affinity to them,
spreading, volumes) is left to kube-scheduler. Source: Kubernetes documentation, Assigning Pods to Nodes, and
k8s.io/component-helpers/scheduling/corev1. This module needs no numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from joulie.domain.scheduling.labels import OPERATORS, Requirement, is_whole_number

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_NAME_FIELD = "metadata.name"
_KEEPS_PODS_OUT = frozenset({"NoSchedule", "NoExecute"})


class NodeAffinityError(ValueError):
    """A node selector or affinity that Kubernetes would not take."""


class Taint(Protocol):
    """A taint of a node, as in the Kubernetes API."""

    @property
    def key(self) -> str:
        """Its name."""
        ...

    @property
    def value(self) -> str:
        """Its value; empty without one."""
        ...

    @property
    def effect(self) -> str:
        """What it does; of a toleration, empty is every effect."""
        ...


class Toleration(Taint, Protocol):
    """A toleration of a pod, as in the Kubernetes API."""

    @property
    def operator(self) -> str:
        """Exists; anything else is Equal."""
        ...


def _none(_key: str) -> bool:
    return False


class Term(NamedTuple):
    """A node selector term: requirements that must all hold; a term without any matches no node."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str], name: str, ignoring: Callable[[str], bool] = _none) -> bool:
        """Whether a node with these labels and this name is selected; see `NodeRules.admits`."""
        if not self.labels and not self.fields:
            return False
        return _hold(self.labels, labels, ignoring) and _hold(self.fields, {_NAME_FIELD: name}, ignoring)

    @classmethod
    def parse(cls, value: Any) -> Term:
        """A term as Kubernetes writes it.

        Raises:
            NodeAffinityError: Kubernetes would not take it.
        """
        term = _mapping("nodeSelectorTerms", value)
        labels = tuple(_requirement(one) for one in _sequence("matchExpressions", term.get("matchExpressions")))
        fields = tuple(_requirement(one) for one in _sequence("matchFields", term.get("matchFields")))
        for one in fields:
            if one.key != _NAME_FIELD or one.operator not in ("In", "NotIn") or len(one.values) != 1:
                raise NodeAffinityError(
                    f"affinity: matchFields: only {_NAME_FIELD} In or NotIn one name, got {one.key!r}"
                )
        return cls(labels, fields)


class NodeRules(NamedTuple):
    """Which nodes a pod may run on.

    Attributes:
        selector: what the labels of the node must be.
        terms: of the required node affinity, of which one must match; None where nothing is required.
        tolerations: of taints that keep pods out.
    """

    selector: tuple[Requirement, ...] = ()
    terms: tuple[Term, ...] | None = None
    tolerations: tuple[Toleration, ...] = ()

    @property
    def unrestricted(self) -> bool:
        """Whether every node without taints will do."""
        return not self.selector and self.terms is None

    def admits(
        self,
        labels: Mapping[str, str],
        name: str = "",
        taints: Iterable[Taint] = (),
        *,
        ignoring: Callable[[str], bool] = _none,
    ) -> bool:
        """Whether the pod may run on a node.

        Args:
            labels: of the node.
            name: of the node.
            taints: of the node.
            ignoring: tells keys of labels whose requirements are taken to hold.
        """
        return (
            _hold(self.selector, labels, ignoring)
            and (self.terms is None or any(term.matches(labels, name, ignoring) for term in self.terms))
            and self.tolerates(taints)
        )

    def tolerates(self, taints: Iterable[Taint]) -> bool:
        """Whether none of these taints keeps the pod out."""
        return all(
            any(_tolerates(toleration, taint) for toleration in self.tolerations)
            for taint in taints
            if taint.effect in _KEEPS_PODS_OUT
        )

    @classmethod
    def parse(cls, node_selector: Mapping[str, str], affinity: Mapping[str, Any] | None) -> NodeRules:
        """The rules of a pod; preferred affinity and inter-pod rules are ignored.

        Args:
            node_selector: as in the pod's spec.
            affinity: likewise.

        Raises:
            NodeAffinityError: Kubernetes would not take it.
        """
        selector = selector_requirements(node_selector)
        node = _mapping("nodeAffinity", (affinity or {}).get("nodeAffinity"))
        if node.get(_REQUIRED) is None:
            return cls(selector)
        required = _mapping(_REQUIRED, node[_REQUIRED])
        terms = tuple(Term.parse(one) for one in _sequence("nodeSelectorTerms", required.get("nodeSelectorTerms")))
        if not terms:
            raise NodeAffinityError("affinity: nodeSelectorTerms: is empty")
        return cls(selector, terms)


ANYWHERE = NodeRules()
"""Of a pod without a node selector, affinity and tolerations."""


def selector_requirements(node_selector: Mapping[str, str]) -> tuple[Requirement, ...]:
    """A node selector as requirements, in the order of their keys."""
    return tuple(Requirement(key, "In", (value,)) for key, value in sorted(node_selector.items()))


def _hold(requirements: tuple[Requirement, ...], labels: Mapping[str, str], ignoring: Callable[[str], bool]) -> bool:
    return all(one.holds(labels) or ignoring(one.key) for one in requirements)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    """An empty key with Exists is every taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return toleration.key in {"", taint.key}
    return toleration.key == taint.key and toleration.value == taint.value


def _requirement(value: Any) -> Requirement:
    stated = _mapping("matchExpressions", value)
    key, operator, values = stated.get("key"), stated.get("operator"), _sequence("values", stated.get("values"))
    if not isinstance(key, str) or not key:
        raise NodeAffinityError("affinity: a requirement without a key")
    if operator not in OPERATORS:
        raise NodeAffinityError(
            f"affinity: {key}: invalid operator {operator!r}; must be one of {', '.join(OPERATORS)}"
        )
    if not all(isinstance(one, str) for one in values):
        raise NodeAffinityError(f"affinity: {key}: values must be text")
    if (operator in ("In", "NotIn") and not values) or (operator in ("Exists", "DoesNotExist") and values):
        raise NodeAffinityError(f"affinity: {key}: {operator} with {len(values)} values")
    if operator in ("Gt", "Lt") and not (len(values) == 1 and is_whole_number(values[0])):
        raise NodeAffinityError(f"affinity: {key}: {operator} needs one whole number")
    return Requirement(key, str(operator), tuple(values))


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise NodeAffinityError(f"affinity: {name}: must be a mapping, got {value!r}")
    return value


def _sequence(name: str, value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise NodeAffinityError(f"affinity: {name}: must be a list, got {value!r}")
    return value
