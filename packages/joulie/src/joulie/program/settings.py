"""Settings as options of commands, in the order command line, environment variable, file, default."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from joulie.domain.mode import Mode
from joulie.settings import Kind, Setting, choice, duration, group_of, path, text

_SettingsT = TypeVar("_SettingsT")


@dataclass(frozen=True, kw_only=True)
class ProgramSettings:
    """Settings that all daemons share."""

    kubeconfig: Path | None = path(
        "KUBECONFIG", None, "Path of the kubeconfig file; without one the pod's service account is used."
    )
    context: str | None = text("KUBE_CONTEXT", None, "Context of the kubeconfig file; its current context by default.")
    log_level: str = choice("LOG_LEVEL", "info", "Minimum log level.", ("debug", "info", "warning", "error"))
    log_format: str = choice("LOG_FORMAT", "json", "Format of log lines: JSON objects or text.", ("json", "text"))


def mode_setting() -> Any:
    """Declaration of the setting MODE."""
    return choice(
        "MODE",
        "enforce",
        "Whether plans are applied: observe changes nothing and reports what would be done; the label joulie.io/mode "
        "of a node or namespace takes precedence.",
        Mode,
    )


@dataclass(frozen=True, kw_only=True)
class ModeSettings:
    """The mode that a program runs in, where no label joulie.io/mode says otherwise."""

    mode: Mode = mode_setting()


@dataclass(frozen=True, kw_only=True)
class ServerSettings(ProgramSettings):
    """Settings of daemons with replicas behind a Service, whose clients must not notice that one stops."""

    shutdown_delay_s: float = duration(
        "SHUTDOWN_DELAY",
        "5s",
        "How long requests are served after a stop was requested and /readyz fails, until endpoints have followed.",
        minimum=0,
    )


def all_settings(settings: type[Any]) -> dict[str, Setting]:
    """The settings of a settings class by name; a setting shared by several groups occurs once."""
    return {spec.name: spec for _, spec in group_of(settings).settings()}


def settings_from(settings: type[_SettingsT], environment: Mapping[str, str]) -> _SettingsT:
    """Read the settings of a program from environment variables only.

    Raises:
        click.UsageError: a value is invalid; the message names the variable.
        ValueError: values contradict each other.
    """
    return _validated(
        settings,
        {
            name: _parameter_type(spec).convert(environment[variable], None, None)
            for name, spec in all_settings(settings).items()
            for variable in spec.variables[::-1]
            if variable in environment
        },
    )


def settings_options(settings: type[_SettingsT]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of a settings class to a click command, which receives the validated ``settings``.

    A settings class may check combinations of values in ``__post_init__`` and raise ValueError.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        specs = all_settings(settings)

        @functools.wraps(command)
        def with_settings(**values: Any) -> None:
            context = click.get_current_context(silent=True)
            if context is not None and context.invoked_subcommand is not None:
                return  # a group that runs by itself: the sub-command has options of its own
            given = {name: values.pop(name.lower()) for name in specs}
            try:
                checked = _validated(settings, given)
            except ValueError as error:
                raise click.UsageError(str(error)) from error
            command(settings=checked, **values)

        wrapped: Callable[..., None] = with_settings
        for spec in reversed(specs.values()):
            wrapped = _option(spec)(wrapped)
        return _config_option(specs)(wrapped)

    return decorate


def _validated(settings: type[_SettingsT], checked: Mapping[str, Any]) -> _SettingsT:
    made: _SettingsT = group_of(settings).value(checked)
    return made


def _option(spec: Setting) -> Callable[[Callable[..., None]], Callable[..., None]]:
    declaration = spec.flag
    if spec.kind is Kind.BOOLEAN:
        declaration += f"/--no-{spec.flag.removeprefix('--')}"
    note = "" if spec.kind is Kind.CHOICE or not spec.allowed else f" [{spec.allowed}]"
    return click.option(
        declaration,
        spec.name.lower(),
        type=_parameter_type(spec),
        default=spec.default == "true" if spec.kind is Kind.BOOLEAN else spec.default,
        envvar=spec.variables,
        show_envvar=True,
        show_default=spec.default is not None,
        metavar=None if spec.kind in {Kind.CHOICE, Kind.BOOLEAN} else spec.kind.upper(),
        help=spec.help + note,
    )


def _config_option(known: Mapping[str, Setting]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def load(ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
        if path is not None:
            ctx.default_map = {name.lower(): value for name, value in _read_file(path, known).items()}

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


def _read_file(path: Path, known: Mapping[str, Setting]) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise click.UsageError(f"{path}: expected a mapping of settings, got {type(content).__name__}")
    for key in content:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(known))}"
            raise click.UsageError(f"{path}: unknown setting {key}{hint}")
    # As text, like environment variables, so that values from any origin are validated the same way.
    return {key: _as_text(value) for key, value in content.items() if value is not None}


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


class _Parsed(click.ParamType[Any]):
    """Click parameter type that parses a text by `Setting.parse`."""

    def __init__(self, spec: Setting) -> None:
        self.name = spec.kind.value
        self._spec = spec

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a text; other values are returned unchanged."""
        if not isinstance(value, str):
            return value
        try:
            return self._spec.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _parameter_type(spec: Setting) -> click.ParamType[Any]:
    match spec.kind:
        case Kind.BOOLEAN:
            return click.BOOL
        case Kind.CHOICE:
            return click.Choice(spec.choices)
        case _:
            return _Parsed(spec)
