"""Which nodes a pod may run on: its node selector and required node affinity.

Source: Kubernetes documentation, Assigning Pods to Nodes, and API reference, NodeSelectorRequirement. This module
needs no numpy.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_NAME_FIELD = "metadata.name"
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
"""What fits into 64 bits, and then some."""


class NodeAffinityError(ValueError):
    """A node selector or affinity that Kubernetes would not take."""


def label_meets(value: str | None, operator: str, values: Sequence[str]) -> bool:
    """Whether a label is what a requirement wants.

    Args:
        value: of the label; None where there is none.
        operator: In, NotIn, Exists, DoesNotExist, Gt or Lt. One of a newer Kubernetes is met by nothing.
        values: of the requirement; of Gt and Lt one whole number.
    """
    match operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists" | "DoesNotExist":
            return (value is not None) == (operator == "Exists")
        case "Gt" | "Lt":
            return _compares(value or "", operator, values)
    return False


def _compares(value: str, operator: str, values: Sequence[str]) -> bool:
    if len(values) != 1 or not all(_WHOLE.fullmatch(number) for number in (value, *values)):
        return False
    return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])


@dataclass(frozen=True)
class Requirement:
    """What a label, or the name of a node, must be."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels meets it."""
        return label_meets(labels.get(self.key), self.operator, self.values)


@dataclass(frozen=True)
class Term:
    """Requirements that must all hold; a term without any holds nowhere."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


@dataclass(frozen=True)
class NodeRules:
    """Which nodes a pod may run on.

    Attributes:
        selector: labels that a node must have.
        terms: of which one must hold; None where there is no required affinity.
    """

    selector: tuple[Requirement, ...] = ()
    terms: tuple[Term, ...] | None = None

    @property
    def free(self) -> bool:
        """Whether every node will do."""
        return not self.selector and self.terms is None

    def admits(self, labels: Mapping[str, str], name: str = "", *, ignoring: Collection[str] = ()) -> bool:
        """Whether a node will do.

        Args:
            labels: of the node.
            name: of the node.
            ignoring: labels that may become anything; what is required of them is taken to hold.
        """

        def holds(requirements: tuple[Requirement, ...]) -> bool:
            return all(one.key in ignoring or one.holds(labels) for one in requirements)

        if not holds(self.selector):
            return False
        return self.terms is None or any(
            (term.labels or term.fields)
            and holds(term.labels)
            and all(one.holds({_NAME_FIELD: name}) for one in term.fields)
            for term in self.terms
        )

    @classmethod
    def parse(cls, node_selector: Mapping[str, str], affinity: Mapping[str, Any] | None) -> NodeRules:
        """The rules of a pod; preferences and rules between pods are none and passed over.

        Args:
            node_selector: as in the pod's spec.
            affinity: likewise.

        Raises:
            NodeAffinityError: Kubernetes would not take it.
        """
        selector = tuple(Requirement(key, "In", (value,)) for key, value in sorted(node_selector.items()))
        node = _mapping("nodeAffinity", (affinity or {}).get("nodeAffinity"))
        if node.get(_REQUIRED) is None:
            return cls(selector)
        required = _mapping(_REQUIRED, node[_REQUIRED])
        terms = tuple(_term(one) for one in _sequence("nodeSelectorTerms", required.get("nodeSelectorTerms")))
        if not terms:
            raise NodeAffinityError("affinity: nodeSelectorTerms: is empty")
        return cls(selector, terms)


def _term(value: Any) -> Term:
    term = _mapping("nodeSelectorTerms", value)
    labels = tuple(_requirement(one) for one in _sequence("matchExpressions", term.get("matchExpressions")))
    fields = tuple(_requirement(one) for one in _sequence("matchFields", term.get("matchFields")))
    for one in fields:
        if one.key != _NAME_FIELD or one.operator not in ("In", "NotIn") or len(one.values) != 1:
            raise NodeAffinityError(f"affinity: matchFields: only {_NAME_FIELD} In or NotIn one name, got {one.key!r}")
    return Term(labels, fields)


def _requirement(value: Any) -> Requirement:
    said = _mapping("matchExpressions", value)
    key, operator, values = said.get("key"), said.get("operator"), _sequence("values", said.get("values"))
    if not isinstance(key, str) or not key:
        raise NodeAffinityError("affinity: a requirement without a key")
    if operator not in get_args(Operator):
        raise NodeAffinityError(f"affinity: {key}: operator {operator!r} is none of {', '.join(get_args(Operator))}")
    if not all(isinstance(one, str) for one in values):
        raise NodeAffinityError(f"affinity: {key}: values must be text")
    if (operator in ("In", "NotIn") and not values) or (operator in ("Exists", "DoesNotExist") and values):
        raise NodeAffinityError(f"affinity: {key}: {operator} with {len(values)} values")
    if operator in ("Gt", "Lt") and not (len(values) == 1 and _WHOLE.fullmatch(values[0])):
        raise NodeAffinityError(f"affinity: {key}: {operator} needs one whole number")
    return Requirement(key, cast("Operator", operator), tuple(values))


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
