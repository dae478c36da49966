"""Label and field selectors as they stand in query strings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from joulie_lab.fakes.kubernetes.errors import bad_request
from joulie_lab.fakes.kubernetes.kinds import Json, Kind

Predicate = Callable[[Json], bool]
_LabelTest = Callable[[Mapping[str, str]], bool]

_KEY = r"[A-Za-z0-9._/-]+"
_VALUE = r"[A-Za-z0-9._-]*"
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^)]*)\)")
_EQUAL = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_EXISTS = re.compile(rf"(!?)\s*({_KEY})")
_COMPARE = re.compile(rf"({_KEY})\s*([<>])\s*(-?\d+)")


def selection(kind: Kind, label_selector: str, field_selector: str) -> Predicate | None:
    """What a list or watch asks for; None where it asks for all.

    Raises:
        StatusError: the selector cannot be read, or names a field that the resource does not offer.
    """
    labels = label_tests(label_selector)
    fields = _field_tests(kind, field_selector)
    if not labels and not fields:
        return None

    def chosen(obj: Json) -> bool:
        found = obj["metadata"].get("labels") or {}
        return all(test(found) for test in labels) and all(test(obj) for test in fields)

    return chosen


def label_tests(selector: str) -> list[_LabelTest]:
    """The terms of a label selector, all of which must hold.

    Raises:
        StatusError: it cannot be read.
    """
    return [_label_test(term.strip()) for term in _split(selector)]


def matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector object selects these labels; None selects nothing, an empty one everything."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(requirement(term)(labels) for term in selector.get("matchExpressions", ()))


def _split(selector: str) -> list[str]:
    """Terms at the commas outside parentheses."""
    return [term for term in re.split(r",(?![^(]*\))", selector) if term.strip()]


def _label_test(term: str) -> _LabelTest:
    if found := _SET.fullmatch(term):
        values = [value.strip() for value in found[3].split(",")]
        return requirement({"key": found[1], "operator": {"in": "In", "notin": "NotIn"}[found[2]], "values": values})
    if found := _EQUAL.fullmatch(term):
        return requirement({"key": found[1], "operator": "NotIn" if found[2] == "!=" else "In", "values": [found[3]]})
    if found := _COMPARE.fullmatch(term):
        return requirement({"key": found[1], "operator": {"<": "Lt", ">": "Gt"}[found[2]], "values": [found[3]]})
    if found := _EXISTS.fullmatch(term):
        return requirement({"key": found[2], "operator": "DoesNotExist" if found[1] else "Exists"})
    raise bad_request(f"unable to parse requirement: {term!r}")


def requirement(term: Mapping[str, Any]) -> _LabelTest:
    """A requirement of labels, as selectors and node affinity state it."""
    key, operator, values = term["key"], term["operator"], frozenset(term.get("values") or ())
    tests: dict[str, _LabelTest] = {
        "In": lambda labels: labels.get(key) in values,
        "NotIn": lambda labels: key not in labels or labels[key] not in values,
        "Exists": lambda labels: key in labels,
        "DoesNotExist": lambda labels: key not in labels,
        "Lt": lambda labels: _number(labels.get(key)) < _number(*values),
        "Gt": lambda labels: _number(labels.get(key)) > _number(*values),
    }
    if operator not in tests:
        raise bad_request(f"{operator!r} is not a valid label selector operator")
    return tests[operator]


def _number(text: str | None) -> float:
    """A whole number; NaN, which compares false to all, where it is none."""
    return float(text) if text is not None and re.fullmatch(r"-?\d+", text) else float("nan")


def _field_tests(kind: Kind, selector: str) -> list[Predicate]:
    return [_field_test(kind, term.strip()) for term in selector.split(",") if term.strip()]


def _field_test(kind: Kind, term: str) -> Predicate:
    found = re.fullmatch(r"([^=!]+)(==|=|!=)(.*)", term)
    if not found:
        raise bad_request(f"invalid selector: {term!r}; can't understand {term!r}")
    name, equal, value = found[1], found[2] != "!=", found[3]
    if name not in kind.selectable:
        raise bad_request(f"field label not supported: {name}")
    path = kind.selectable[name]
    return lambda obj: (_text(obj, path) == value) is equal


def _text(obj: Json, path: tuple[str, ...]) -> str:
    """A field as selectors compare it: absent is empty, but for booleans, which are false."""
    value: Any = obj
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if path[-1] in {"unschedulable", "hostNetwork"}:
        return "true" if value else "false"
    if path == ("source",):
        return str((value or {}).get("component", ""))
    return "" if value is None else str(value)
