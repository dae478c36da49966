"""Label selectors as they are written for kubectl: ``a=b, c!=d, e in (x, y), f notin (z), g, !h``.

The operator needs the rule itself, not only the list that an API server makes of it: a node that leaves the selection
must be told from one that was deleted, and given back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_EQUALITY = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s+\(([^()]*)\)")
_PRESENCE = re.compile(rf"(!?)\s*({_KEY})")
_COMMA = re.compile(r",(?![^()]*\))")


class LabelSelectorError(ValueError):
    """A text that is no label selector."""


class _Test(Enum):
    ONE_OF = auto()
    NONE_OF = auto()
    """Holds for an object without the label, too."""
    PRESENT = auto()
    ABSENT = auto()


@dataclass(frozen=True)
class _Requirement:
    key: str
    test: _Test
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        match self.test:
            case _Test.ONE_OF:
                return labels.get(self.key) in self.values
            case _Test.NONE_OF:
                return labels.get(self.key) not in self.values
            case _Test.PRESENT:
                return self.key in labels
            case _Test.ABSENT:
                return self.key not in labels


@dataclass(frozen=True)
class LabelSelector:
    """Requirements that must all hold; without any, everything is selected."""

    requirements: tuple[_Requirement, ...] = ()

    @classmethod
    def parse(cls, text: str) -> LabelSelector:
        """The selector that `text` states.

        Raises:
            LabelSelectorError: it states none.
        """
        if not text.strip():
            return cls()
        return cls(tuple(_parsed(part.strip(), text) for part in _COMMA.split(text)))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(requirement.holds(labels) for requirement in self.requirements)


def _parsed(part: str, whole: str) -> _Requirement:
    if found := _EQUALITY.fullmatch(part):
        key, operator, value = found.groups()
        return _Requirement(key, _Test.NONE_OF if operator == "!=" else _Test.ONE_OF, frozenset({value}))
    if found := _SET.fullmatch(part):
        key, operator, values = found.groups()
        test = _Test.ONE_OF if operator == "in" else _Test.NONE_OF
        return _Requirement(key, test, frozenset(value.strip() for value in values.split(",")))
    if found := _PRESENCE.fullmatch(part):
        return _Requirement(found[2], _Test.ABSENT if found[1] else _Test.PRESENT)
    raise LabelSelectorError(
        f"{part!r} in {whole!r} is no label requirement; write key=value, key in (a,b), key or !key"
    )
