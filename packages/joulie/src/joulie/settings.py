"""How a setting is declared: name, default, bounds and help in one place, as the default of a dataclass field.

A program's settings are a frozen dataclass. Each of its fields is declared by the function of its kind (`duration`,
`number`, `choice`, ...), or is a `group`: settings that are passed by name to one of the domain's values.
`joulie.program.settings` makes the options of a command from it, and reads environment and file.

This stands below the adapters, so that an adapter declares its own settings. It needs the standard library only: the
agent runs on every node, where pydantic would add 11 MB.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from joulie.domain.durations import duration_s

_KEY = "joulie.setting"


class Kind(StrEnum):
    """What a setting's text means."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    DURATION = "duration"
    """Text such as 20s, 1m30s, 500ms; in the program a float of seconds."""
    CHOICE = "choice"
    PATH = "path"
    JSON = "json"
    """A JSON object; in the program a dict."""


@dataclass(frozen=True)
class Setting:
    """One setting as users see it.

    Attributes:
        name: the environment variable, which is also its key in a file.
        kind: what its text means.
        default: as users would write it; None where there is none.
        help: what it is for, one sentence.
        unit: of its value, empty where it has none.
        minimum: smallest value allowed; durations in s.
        maximum: largest value allowed; durations in s.
        choices: allowed values of a choice.
        secret: its value is left out of what the settings print as.
        to: makes what the program keeps from a checked value; refuses one by ValueError.
    """

    name: str
    kind: Kind
    default: str | None
    help: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False
    to: Callable[[Any], Any] | None = None

    @property
    def flag(self) -> str:
        """The command-line option."""
        return "--" + self.name.lower().replace("_", "-")

    @property
    def allowed(self) -> str:
        """The allowed values in words, empty where everything of the kind is."""
        if self.choices:
            return " | ".join(self.choices)
        unit = " s" if self.kind is Kind.DURATION else ""
        match (self.minimum, self.maximum):
            case (None, None):
                return ""
            case (low, None):
                return f"at least {low:g}{unit}"
            case (None, high):
                return f"at most {high:g}{unit}"
            case (low, high):
                return f"{low:g}..{high:g}{unit}"

    def parse(self, text: str) -> Any:
        """The checked value of a text.

        Raises:
            ValueError: it is not allowed; the message does not name the setting.
        """
        match self.kind:
            case Kind.INTEGER | Kind.NUMBER:
                return self._bounded(self._number(text), text)
            case Kind.DURATION:
                return self._bounded(duration_s(text), text)
            case Kind.BOOLEAN:
                return text == "true"
            case Kind.PATH:
                return Path(text)
            case Kind.JSON:
                return _json_object(text)
            case _:
                return text

    def value(self, checked: Mapping[str, Any]) -> Any:
        """What the program keeps, from checked values by name of setting; the default where it is not among them.

        Raises:
            ValueError: its `to` refuses the value; the message names the setting.
        """
        value = checked[self.name] if self.name in checked else self.default and self.parse(self.default)
        if self.to is None or value is None:
            return value
        try:
            return self.to(value)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error

    def _number(self, text: str) -> float:
        whole = self.kind is Kind.INTEGER
        try:
            return int(text) if whole else float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not {'a whole number' if whole else 'a number'}") from None

    def _bounded(self, number: float, text: str) -> float:
        low = -math.inf if self.minimum is None else self.minimum
        high = math.inf if self.maximum is None else self.maximum
        if not math.isfinite(number) or not low <= number <= high:
            raise ValueError(f"{text} is not allowed; {self.allowed or 'a finite number is expected'}")
        return number


@dataclass(frozen=True)
class Group:
    """Settings that make one value: a dataclass, or what a function returns.

    Attributes:
        make: gets the members' values by keyword.
        members: by that keyword.
    """

    make: Callable[..., Any]
    members: Mapping[str, Setting | Group]

    def value(self, checked: Mapping[str, Any]) -> Any:
        """The value, from checked values by name of setting; see `Setting.value`."""
        return self.make(**{name: member.value(checked) for name, member in self.members.items()})

    def settings(self, prefix: str = "") -> Iterator[tuple[str, Setting]]:
        """Each setting with the path of its field, such as ``policy.queue_hp_min``."""
        for name, member in self.members.items():
            if isinstance(member, Group):
                yield from member.settings(f"{prefix}{name}.")
            else:
                yield prefix + name, member


def group_of(settings: type[Any]) -> Group:
    """The settings that a settings class declares, in order."""
    fields = dataclasses.fields(settings)
    return Group(settings, {field.name: field.metadata[_KEY] for field in fields if _KEY in field.metadata})


def group(make: Callable[..., Any], /, **members: Any) -> Any:
    """A field that holds what `make` returns for its members; those of a settings class where none are named."""
    if not members and isinstance(make, type):
        return _field(group_of(make))
    return _field(Group(make, {name: field.metadata[_KEY] for name, field in members.items()}))


def text(name: str, default: str | None, help: str, **more: Any) -> Any:
    """A field of text; for `more` see `Setting`, here as below."""
    return _field(Setting(name, Kind.TEXT, default, help, **more))


def integer(name: str, default: str | None, help: str, **more: Any) -> Any:
    """A field of a whole number."""
    return _field(Setting(name, Kind.INTEGER, default, help, **more))


def number(name: str, default: str | None, help: str, **more: Any) -> Any:
    """A field of a finite number."""
    return _field(Setting(name, Kind.NUMBER, default, help, **more))


def percentage(name: str, default: str, help: str, *, minimum: float = 0, **more: Any) -> Any:
    """A field of a number up to 100, in percent."""
    return _field(Setting(name, Kind.NUMBER, default, help, "%", minimum, 100, **more))


def boolean(name: str, default: bool, help: str) -> Any:
    """A field of true or false."""
    return _field(Setting(name, Kind.BOOLEAN, "true" if default else "false", help))


def duration(name: str, default: str, help: str, **more: Any) -> Any:
    """A field of seconds, written as text such as 1m30s."""
    return _field(Setting(name, Kind.DURATION, default, help, **more))


def choice(name: str, default: str, help: str, choices: type[StrEnum] | Iterable[str]) -> Any:
    """A field of one of some texts, or of a member of an enumeration."""
    to = choices if isinstance(choices, type) else None
    return _field(Setting(name, Kind.CHOICE, str(default), help, choices=tuple(str(item) for item in choices), to=to))


def path(name: str, default: str | None, help: str, **more: Any) -> Any:
    """A field of a path, None where there is no default and none is given."""
    return _field(Setting(name, Kind.PATH, default, help, **more))


def json_object(name: str, help: str, **more: Any) -> Any:
    """A field of a JSON object, empty by default."""
    return _field(Setting(name, Kind.JSON, "{}", help, **more))


def listed(text: str) -> tuple[str, ...]:
    """The items of a text such as ``a, b``, each once; empty ones are left out."""
    return tuple(dict.fromkeys(part for part in (item.strip() for item in text.split(",")) if part))


def _field(declared: Setting | Group) -> Any:
    shown = isinstance(declared, Group) or not declared.secret
    return dataclasses.field(default_factory=lambda: declared.value({}), repr=shown, metadata={_KEY: declared})


def _json_object(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"a JSON object is expected, got {text!r}")  # noqa: TRY004 (a value of the user, not a type)
    return content
