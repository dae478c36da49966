"""Requirements on labels, and label selectors: ``a=b, c!=d, e in (x, y), f notin (z), g, !h, i>3`` as kubectl has it.

The operator needs the rule itself, not only the list that an API server makes of it: a node that leaves the selection
must be told from one that was deleted, and given back. Source: Kubernetes documentation, Labels and Selectors, and API
reference, NodeSelectorRequirement. This module needs no numpy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_EQUALITY = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_COMPARISON = re.compile(rf"({_KEY})\s*([<>])\s*([+-]?[0-9]{{1,19}})")
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")
_PRESENCE = re.compile(rf"(!?)\s*({_KEY})")
_COMMA = re.compile(r",(?![^()]*\))")
_OPERATOR_OF = {"=": "In", "==": "In", "!=": "NotIn", "in": "In", "notin": "NotIn", ">": "Gt", "<": "Lt"}
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
"""What fits into 64 bits, and then some."""


class LabelSelectorError(ValueError):
    """A text that is not a valid label selector."""


class Requirement(NamedTuple):
    """What a label, or the name of a node, must be.

    Attributes:
        key: of the label.
        operator: one of `OPERATORS`. One of a newer Kubernetes is never met.
        values: of the operator; of Gt and Lt one whole number.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels meets it."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists" | "DoesNotExist":
                return (value is not None) == (self.operator == "Exists")
            case "Gt" | "Lt":
                return self._compares(value or "")
        return False

    def _compares(self, value: str) -> bool:
        if len(self.values) != 1 or not is_whole_number(value) or not is_whole_number(self.values[0]):
            return False
        limit = int(self.values[0])
        return int(value) > limit if self.operator == "Gt" else int(value) < limit


def is_whole_number(text: str) -> bool:
    """Whether Gt and Lt can compare a text."""
    return _WHOLE.fullmatch(text) is not None


@dataclass(frozen=True)
class LabelSelector:
    """Requirements that must all hold; without any, everything is selected."""

    requirements: tuple[Requirement, ...] = ()

    @classmethod
    def parse(cls, text: str) -> LabelSelector:
        """The selector that `text` states.

        Raises:
            LabelSelectorError: it is not a valid one; the message quotes the invalid part.
        """
        if not text.strip():
            return cls()
        return cls(tuple(_parsed(part.strip(), text) for part in _COMMA.split(text)))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(requirement.holds(labels) for requirement in self.requirements)


def _parsed(part: str, whole: str) -> Requirement:
    if found := _EQUALITY.fullmatch(part) or _COMPARISON.fullmatch(part):
        key, operator, value = found.groups()
        return Requirement(key, _OPERATOR_OF[operator], (value,))
    if found := _SET.fullmatch(part):
        key, operator, values = found.groups()
        return Requirement(key, _OPERATOR_OF[operator], tuple(value.strip() for value in values.split(",")))
    if found := _PRESENCE.fullmatch(part):
        return Requirement(found[2], "DoesNotExist" if found[1] else "Exists")
    raise LabelSelectorError(
        f"invalid label requirement {part!r} in {whole!r}; write key=value, key in (a,b), key>1, key or !key"
    )
