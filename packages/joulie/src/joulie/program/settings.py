"""Settings of the programs: one typed definition each, from which options, checks and the reference page are made.

A program's settings are a frozen dataclass whose fields are made by `setting`. `settings_options` turns them into
click options; the order of precedence is command line, environment variable, file (``--config``), default.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import click

from joulie.domain.durations import duration_s

_SPEC = "joulie.setting"
_SettingsT = TypeVar("_SettingsT")


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
    """

    name: str
    kind: Kind
    default: Any
    help: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()

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


def setting(
    name: str,
    default: Any,
    *,
    kind: Kind,
    help: str,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] = (),
    secret: bool = False,
) -> Any:
    """A field of a settings dataclass; see `Setting`. The default is written as users write it (``"20s"``).

    The value of a secret is left out of what the dataclass prints as.
    """
    spec = Setting(name, kind, default, help, unit, minimum, maximum, tuple(str(choice) for choice in choices))
    value = None if default is None else _parameter_type(spec).convert(default, None, None)
    if isinstance(value, dict):
        return dataclasses.field(default_factory=lambda: dict(value), metadata={_SPEC: spec})
    return dataclasses.field(default=value, repr=not secret, metadata={_SPEC: spec})


def listed(text: str) -> tuple[str, ...]:
    """The items of a text such as ``a, b``, each once; empty ones are left out."""
    return tuple(dict.fromkeys(part for part in (item.strip() for item in text.split(",")) if part))


def all_settings(settings: type[Any]) -> Iterator[tuple[str, Setting]]:
    """Field name and setting of each field of a settings class, in order."""
    for field in dataclasses.fields(settings):
        spec = field.metadata.get(_SPEC)
        if isinstance(spec, Setting):
            yield field.name, spec


def settings_from(settings: type[_SettingsT], environment: Mapping[str, str]) -> _SettingsT:
    """Settings of a program as it would take them from these environment variables, and nothing else.

    Raises:
        click.UsageError: a value that the program would refuse; the message names the variable.
    """
    values = {
        name: _parameter_type(spec).convert(environment[spec.name], None, None)
        for name, spec in all_settings(settings)
        if spec.name in environment
    }
    return settings(**values)


def settings_options(settings: type[_SettingsT]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a click command the options of a settings class; the command gets ``settings``, checked.

    A dataclass that refuses a combination of values in ``__post_init__`` does so by ValueError.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        names = dict(all_settings(settings))

        @functools.wraps(command)
        def with_settings(**values: Any) -> None:
            own = {name: values.pop(name) for name in names}
            try:
                checked = settings(**own)
            except ValueError as error:
                raise click.UsageError(str(error)) from error
            command(settings=checked, **values)

        wrapped: Callable[..., None] = with_settings
        for name, spec in reversed(names.items()):
            wrapped = _option(name, spec)(wrapped)
        return _config_option(names)(wrapped)

    return decorate


def _option(name: str, spec: Setting) -> Callable[[Callable[..., None]], Callable[..., None]]:
    declaration = spec.flag
    if spec.kind is Kind.BOOLEAN:
        declaration += f"/--no-{spec.flag.removeprefix('--')}"
    note = "" if spec.kind is Kind.CHOICE or not spec.allowed else f" [{spec.allowed}]"
    return click.option(
        declaration,
        name,
        type=_parameter_type(spec),
        default=spec.default == "true" if spec.kind is Kind.BOOLEAN else spec.default,
        envvar=spec.name,
        show_envvar=True,
        show_default=spec.default is not None,
        metavar=None if spec.kind in {Kind.CHOICE, Kind.BOOLEAN} else spec.kind.upper(),
        help=spec.help + note,
    )


def _config_option(names: dict[str, Setting]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    by_key = {spec.name: name for name, spec in names.items()}

    def load(ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
        if path is not None:
            ctx.default_map = {by_key[key]: value for key, value in _read_file(path, by_key).items()}

    return click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=load,
        envvar="JOULIE_CONFIG",
        show_envvar=True,
        help="YAML file of settings; its keys are the names of the environment variables.",
    )


def _read_file(path: Path, known: dict[str, str]) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise click.UsageError(f"{path}: a mapping of settings is expected, got {type(content).__name__}")
    for key in content:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(known))}"
            raise click.UsageError(f"{path}: unknown setting {key}{hint}")
    # Texts, as the environment would give them, so that a value is checked in one way wherever it comes from.
    return {key: _as_text(value) for key, value in content.items() if value is not None}


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


class _Number(click.ParamType[float]):
    """A finite number, whole or not, within a range."""

    name = "number"

    def __init__(self, spec: Setting) -> None:
        self._spec = spec

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number of a text."""
        whole = self._spec.kind is Kind.INTEGER
        try:
            number = int(value) if whole else float(value)
        except ValueError:
            self.fail(f"{value!r} is not {'a whole number' if whole else 'a number'}", param, ctx)
        return _within(self, self._spec, number, value, param, ctx)


class _Duration(click.ParamType[float]):
    """A duration in seconds, within a range."""

    name = "duration"

    def __init__(self, spec: Setting) -> None:
        self._spec = spec

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds of a text."""
        if isinstance(value, float):
            return value
        try:
            seconds = duration_s(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return _within(self, self._spec, seconds, value, param, ctx)


class _JsonObject(click.ParamType[dict[str, Any]]):
    """A JSON object."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """The object of a text."""
        if isinstance(value, dict):
            return value
        try:
            content = json.loads(value)
        except ValueError as error:
            self.fail(f"not valid JSON: {error}", param, ctx)
        if not isinstance(content, dict):
            self.fail(f"a JSON object is expected, got {value!r}", param, ctx)
        return content


def _within(
    kind: click.ParamType[Any],
    spec: Setting,
    number: float,
    raw: Any,
    param: click.Parameter | None,
    ctx: click.Context | None,
) -> float:
    low = -math.inf if spec.minimum is None else spec.minimum
    high = math.inf if spec.maximum is None else spec.maximum
    if not math.isfinite(number) or not low <= number <= high:
        kind.fail(f"{raw} is not allowed; {spec.allowed or 'a finite number is expected'}", param, ctx)
    return number


def _parameter_type(spec: Setting) -> click.ParamType[Any]:
    makers: dict[Kind, Callable[[], click.ParamType[Any]]] = {
        Kind.TEXT: lambda: click.STRING,
        Kind.INTEGER: lambda: _Number(spec),
        Kind.NUMBER: lambda: _Number(spec),
        Kind.BOOLEAN: lambda: click.BOOL,
        Kind.DURATION: lambda: _Duration(spec),
        Kind.CHOICE: lambda: click.Choice(spec.choices),
        Kind.PATH: lambda: click.Path(path_type=Path),
        Kind.JSON: _JsonObject,
    }
    return makers[spec.kind]()


@dataclass(frozen=True, kw_only=True)
class ProgramSettings:
    """Settings that every daemon has."""

    kubeconfig: Path | None = setting(
        "KUBECONFIG", None, kind=Kind.PATH, help="Kubeconfig file; without it the pod's service account is used."
    )
    context: str | None = setting("KUBE_CONTEXT", None, kind=Kind.TEXT, help="Context of the kubeconfig file.")
    log_level: str = setting(
        "LOG_LEVEL", "info", kind=Kind.CHOICE, choices=("debug", "info", "warning", "error"), help="Least level logged."
    )
    log_format: str = setting(
        "LOG_FORMAT", "json", kind=Kind.CHOICE, choices=("json", "text"), help="Log lines as JSON objects or as text."
    )
