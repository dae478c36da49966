"""Generates the reference pages: commands, scenario, trace, Kubernetes API, settings, metrics, dashboards, hardware.

Run it after a change of one of these; a test compares the committed pages with the generated ones.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from reference_crds import crds_page
from reference_dashboards import dashboards_page
from reference_hardware import hardware_page
from reference_programs import metrics_page, settings_page
from reference_workload import workload_page

from joulie.apps.cli.main import cli
from joulie.apps.kubectl.main import kubectl_joulie
from joulie_lab.simulation.scenario_files import json_schema

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
_GENERATED = "<!-- Written by scripts/generate_reference.py: change the code, then run it again. -->"
_USAGE_WIDTH = 100


def pages() -> dict[str, str]:
    """The generated pages by file name."""
    metrics = metrics_page()
    return {
        "cli.md": cli_page(),
        "scenario.md": scenario_page(json_schema()),
        "kubernetes-api.md": crds_page(),
        "settings.md": settings_page(),
        "metrics.md": metrics,
        "dashboards.md": dashboards_page(metrics),
        "hardware.md": _joined([*hardware_page(_GENERATED)]),
        "job-trace.md": _joined([*workload_page(_GENERATED, _attributes)]),
    }


def cli_page() -> str:
    """All commands with their arguments and options."""
    intro = [
        "# Command line",
        _GENERATED,
        "Every command has `--help`. Tables, and JSON or YAML with `-o`, go to standard output; progress and notes to"
        " standard error. Each invalid input is reported in one line, with exit status 2. After an interruption the"
        " exit status is 130.",
    ]
    programs = {"joulie": cli, "kubectl joulie": kubectl_joulie}
    commands = [
        block
        for name, command in programs.items()
        for block in _command(command, click.Context(command, info_name=name, terminal_width=_USAGE_WIDTH), 2)
    ]
    return _joined([*intro, *commands])


def _command(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    """A command and its sub-commands, as blocks of Markdown."""
    if context.parent is not None:
        yield f"{'#' * level} {context.command_path}"
    yield f"```\n{command.get_usage(context)}\n```"
    if command.help:
        yield inspect.cleandoc(command.help)
    yield "\n".join(
        f"- `{names}`: {text}"
        for option in command.params
        if isinstance(option, click.Option)
        for names, text in [option.get_help_record(context) or ("", "")]
    )
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            below = click.Context(child, info_name=name, parent=context, terminal_width=_USAGE_WIDTH)
            yield from _command(child, below, level + (context.parent is not None))


def scenario_page(schema: Mapping[str, Any]) -> str:
    """Every key of a scenario with its type, default and meaning."""
    blocks = [
        "# Scenario",
        _GENERATED,
        "A scenario is a YAML file with the keys below; unknown keys are rejected. `joulie scenario schema` prints the"
        " JSON Schema for editors, `joulie scenario validate FILE` checks a file.",
        *_model(schema),
    ]
    for name, part in sorted(schema["$defs"].items()):
        blocks += [f"## {name}", *_model(part)]
    return _joined(blocks)


def _model(part: Mapping[str, Any]) -> Iterator[str]:
    """One model: its description, its short form if it has one, and its keys."""
    shorthands = [option for option in part.get("anyOf", ()) if option.get("type") != "object"]
    model = next((option for option in part.get("anyOf", ()) if option.get("type") == "object"), part)
    text, _, rest = inspect.cleandoc(model.get("description", "")).partition("\n\nAttributes:\n")
    yield text.partition("\n\nRaises:\n")[0].replace("``", "`")
    if shorthands:
        yield f"Instead of a mapping: {' or '.join(_type(option) for option in shorthands)}."
    meanings = _attributes(rest)
    required = model.get("required", ())
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key, value in model["properties"].items():
        default = "required" if key in required else _default(value)
        rows.append(f"| `{key}` | {_type(value)} | {default} | {value.get('description') or meanings.get(key, '')} |")
    yield "\n".join(rows)


def _attributes(text: str) -> dict[str, str]:
    """Meaning of each attribute of a docstring's section."""
    section = text.partition("\n\n")[0]
    return {match[1]: " ".join(match[2].split()) for match in re.finditer(r"^ +(\w+): ((?:.|\n {8})+)", section, re.M)}


def _type(value: Mapping[str, Any]) -> str:
    """A JSON Schema type in words."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        return " or ".join(_type(option) for option in value["anyOf"] if option.get("type") != "null")
    if "enum" in value:
        return ", ".join(f"`{item}`" for item in value["enum"])
    if value["type"] == "array":
        return f"list of {_type(value['items']).replace('number', 'numbers')}"
    if value["type"] == "object":
        names = value.get("propertyNames", {}).get("enum")
        keys = f" from {', '.join(f'`{name}`' for name in names)}" if names else ""
        return f"mapping{keys} to {_type(value['additionalProperties'])}"
    words = {"string": "text", "integer": "whole number", "number": "number"}
    return words[value["type"]] + _bounds(value)


def _bounds(value: Mapping[str, Any]) -> str:
    if "exclusiveMinimum" in value and "maximum" in value:
        return f" above {value['exclusiveMinimum']:g}, at most {value['maximum']:g}"
    if "maximum" in value:
        return f", {value['minimum']:g} to {value['maximum']:g}"
    if "exclusiveMinimum" in value:
        return f" above {value['exclusiveMinimum']:g}"
    return f" from {value['minimum']:g}" if "minimum" in value else ""


def _default(value: Mapping[str, Any]) -> str:
    """The default in YAML's notation; defaults of a nested model are listed with that model."""
    default = value.get("default")
    if default is None or isinstance(default, dict) or default == "":
        return ""
    return f"`{json.dumps(default, ensure_ascii=False)}`".replace('"', "")


def _joined(blocks: list[str]) -> str:
    return "\n\n".join(block for block in blocks if block) + "\n"


def main() -> None:
    """Write the pages."""
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
