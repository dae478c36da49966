"""Label and field selectors of list and watch requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from joulie.domain.scheduling.labels import LabelSelector, LabelSelectorError, Requirement
from joulie.domain.scheduling.node_rules import selector_requirements
from joulie_lab.fakes.kubernetes.errors import bad_request
from joulie_lab.fakes.kubernetes.kinds import Json, Kind

Predicate = Callable[[Json], bool]


def selection(kind: Kind, label_selector: str, field_selector: str) -> Predicate | None:
    """The predicate of a list or watch request's selectors; None if it selects all objects.

    Raises:
        StatusError: a selector is invalid, or names a field that the resource does not support.
    """
    labels = label_selection(label_selector)
    fields = _field_tests(kind, field_selector)
    if not labels.requirements and not fields:
        return None

    def chosen(obj: Json) -> bool:
        return labels.matches(obj["metadata"].get("labels") or {}) and all(test(obj) for test in fields)

    return chosen


def label_selection(selector: str) -> LabelSelector:
    """Parse the label selector of a query string.

    Raises:
        StatusError: the selector is invalid.
    """
    try:
        return LabelSelector.parse(selector)
    except LabelSelectorError as error:
        raise bad_request(f"unable to parse requirement: {error}") from error


def matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector object selects these labels; None selects nothing, an empty one everything."""
    if selector is None:
        return False
    stated = [
        Requirement(one["key"], one["operator"], tuple(one.get("values") or ()))
        for one in selector.get("matchExpressions", ())
    ]
    equal = selector_requirements(selector.get("matchLabels", {}))
    return LabelSelector((*equal, *stated)).matches(labels)


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
    """The text that selectors compare a field as: empty if absent, but "false" for booleans."""
    value: Any = obj
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if path[-1] in {"unschedulable", "hostNetwork"}:
        return "true" if value else "false"
    if path == ("source",):
        return str((value or {}).get("component", ""))
    return "" if value is None else str(value)
