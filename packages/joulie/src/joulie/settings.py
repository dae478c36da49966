"""Declaration of settings: name, default, bounds and help in one place, as the default of a dataclass field.

A program's settings are a frozen dataclass. Each of its fields is declared by the function of its kind (`duration`,
`number`, `choice`, ...), or is a `group`: settings that are passed by name to the constructor of a domain value.
`joulie.program.settings` turns the declarations into command-line options, and reads the environment and a file.

The module is below the adapters, so that an adapter declares its own settings. It uses the standard library only: the
agent runs on every node, where pydantic would add 11 MB of memory.
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
    """Type of a setting's value, which determines how its text is parsed."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    DURATION = "duration"
    """Text such as 20s, 1m30s, 500ms; parsed to a float, s."""
    CHOICE = "choice"
    PATH = "path"
    JSON = "json"
    """A JSON object; parsed to a dict."""


@dataclass(frozen=True)
class Setting:
    """Declaration of one setting.

    Attributes:
        name: environment variable, which is also the setting's key in a file.
        kind: type of the value.
        default: default as users would write it; None for no default.
        help: help text of the option.
        unit: unit of the value; empty for none.
        minimum: smallest allowed value, durations in s; None for no bound.
        maximum: largest allowed value, durations in s; None for no bound.
        choices: allowed values of a choice.
        aliases: other environment variables that are read where `name` is not set.
        secret: whether the value is left out of the repr of the settings.
        to: converts the parsed value to the field's value, and raises ValueError for an invalid one; None for no
            conversion.
    """

    name: str
    kind: Kind
    default: str | None
    help: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    secret: bool = False
    to: Callable[[Any], Any] | None = None

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables, best first."""
        return (self.name, *self.aliases)

    @property
    def flag(self) -> str:
        """The command-line option."""
        return "--" + self.name.lower().replace("_", "-")

    @property
    def allowed(self) -> str:
        """Description of the allowed values; empty if there are no restrictions."""
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
        """Parse and check a text.

        Raises:
            ValueError: the value is invalid; the message does not name the setting.
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

    def value(self, parsed: Mapping[str, Any]) -> Any:
        """The field's value, from parsed values by setting name; the default if the setting is not among them.

        Raises:
            ValueError: `to` rejects the value; the message names the setting.
        """
        value = parsed[self.name] if self.name in parsed else self.default and self.parse(self.default)
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
            raise ValueError(f"{text} is out of range: expected {self.allowed or 'a finite number'}")
        return number


@dataclass(frozen=True)
class Group:
    """Settings that are combined to one value, such as a dataclass of the domain.

    Attributes:
        make: class or function that is called with the members' values as keyword arguments.
        members: settings and groups by keyword.
    """

    make: Callable[..., Any]
    members: Mapping[str, Setting | Group]

    def value(self, parsed: Mapping[str, Any]) -> Any:
        """The combined value, from parsed values by setting name; see `Setting.value`."""
        return self.make(**{name: member.value(parsed) for name, member in self.members.items()})

    def settings(self, prefix: str = "") -> Iterator[tuple[str, Setting]]:
        """All settings with the paths of their fields, such as ``policy.queue_hp_min``."""
        for name, member in self.members.items():
            if isinstance(member, Group):
                yield from member.settings(f"{prefix}{name}.")
            else:
                yield prefix + name, member


def group_of(settings: type[Any]) -> Group:
    """The settings declared by a settings class, in order."""
    fields = dataclasses.fields(settings)
    return Group(settings, {field.name: field.metadata[_KEY] for field in fields if _KEY in field.metadata})


def group(make: Callable[..., Any], /, **members: Any) -> Any:
    """Declare a field with the result of `make` for its members; without members, those of the class `make`."""
    if not members and isinstance(make, type):
        return _field(group_of(make))
    return _field(Group(make, {name: field.metadata[_KEY] for name, field in members.items()}))


def text(name: str, default: str | None, help: str, **more: Any) -> Any:
    """Declare a text; for `more` see `Setting`, here as below."""
    return _field(Setting(name, Kind.TEXT, default, help, **more))


def integer(name: str, default: str | None, help: str, **more: Any) -> Any:
    """Declare a whole number."""
    return _field(Setting(name, Kind.INTEGER, default, help, **more))


def number(name: str, default: str | None, help: str, **more: Any) -> Any:
    """Declare a finite number."""
    return _field(Setting(name, Kind.NUMBER, default, help, **more))


def percentage(name: str, default: str, help: str, *, minimum: float = 0, **more: Any) -> Any:
    """Declare a percentage, at most 100 %."""
    return _field(Setting(name, Kind.NUMBER, default, help, "%", minimum, 100, **more))


def boolean(name: str, default: bool, help: str) -> Any:
    """Declare a boolean."""
    return _field(Setting(name, Kind.BOOLEAN, "true" if default else "false", help))


def duration(name: str, default: str, help: str, **more: Any) -> Any:
    """Declare a duration, written as text such as 1m30s, with a value in s."""
    return _field(Setting(name, Kind.DURATION, default, help, **more))


def choice(name: str, default: str, help: str, choices: type[StrEnum] | Iterable[str]) -> Any:
    """Declare a choice from some texts or from the members of an enumeration."""
    to = choices if isinstance(choices, type) else None
    return _field(Setting(name, Kind.CHOICE, str(default), help, choices=tuple(str(item) for item in choices), to=to))


def path(name: str, default: str | None, help: str, **more: Any) -> Any:
    """Declare a path; None without a default and a value."""
    return _field(Setting(name, Kind.PATH, default, help, **more))


def json_object(name: str, help: str, **more: Any) -> Any:
    """Declare a JSON object, empty by default."""
    return _field(Setting(name, Kind.JSON, "{}", help, **more))


def listed(text: str) -> tuple[str, ...]:
    """Split a text such as ``a, b`` into its items, without empty and repeated ones."""
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
        raise ValueError(f"expected a JSON object, got {text!r}")  # noqa: TRY004 (a value of the user, not a type)
    return content
