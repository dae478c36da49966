"""Generates the reference page of job traces and of their generator from the types."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml
from msgspec import to_builtins

from joulie_lab.adapters.job_trace import line_schema
from joulie_lab.simulation.workloads.settings import Arrivals, Durations, Episodes, Family, GeneratorSettings, Range

_JOB_PARTS = ("Job", "PodTemplate", "Work", "Sensitivity", "WorkloadClass", "WorkloadProfile")


def workload_page(generated: str, attributes: Callable[[str], dict[str, str]]) -> Iterator[str]:
    """The blocks of the page.

    Args:
        generated: comment which says that the page is generated.
        attributes: the meanings of a docstring's attributes, by their names.
    """
    yield "# Job traces"
    yield generated
    yield (
        "A trace is a text file, compressed by gzip or not, with one JSON object per line. Each line of `type` `job` is"
        " a job with one pod; lines of type `workload` describe jobs and may contain anything. Unknown keys are"
        " ignored. `joulie workload schema` prints the JSON Schema, `joulie workload validate FILE` checks a file."
    )
    schema = line_schema()
    for name in _JOB_PARTS:
        yield f"## {name}"
        yield from _part(schema["$defs"][name], schema["$defs"])
    yield "## Settings of the generator"
    yield (
        "The keys of `joulie workload generate --settings FILE.yaml`, of `--set KEY=VALUE` and of the key"
        " `workload.generate` of an experiment. Omitted keys have their defaults."
    )
    for kind in (GeneratorSettings, Arrivals, Episodes, Family, Durations, Range):
        summary, _, rest = inspect.cleandoc(kind.__doc__ or "").partition("\n\nAttributes:\n")
        yield f"### {kind.__name__}"
        yield summary
        yield "\n".join(
            ["| key | meaning |", "|---|---|", *(f"| `{key}` | {text} |" for key, text in attributes(rest).items())]
        )
    yield "### Defaults"
    defaults = yaml.safe_dump(to_builtins(GeneratorSettings()), sort_keys=False, default_flow_style=None)
    yield f"```yaml\n{defaults.rstrip()}\n```"


def _part(part: Mapping[str, Any], parts: Mapping[str, Any]) -> Iterator[str]:
    yield part["description"]
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key, value in part["properties"].items():
        default = "required" if key in part.get("required", ()) else _default(value)
        rows.append(f"| `{key}` | {_type(value, parts)} | {default} | {value.get('description', '')} |")
    yield "\n".join(rows)


def _type(value: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """A type in words."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        target = parts[name]
        return _type(target, parts) if "enum" in target else f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        named = [_type(option, parts) for option in value["anyOf"] if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(named))
    if "enum" in value:
        return ", ".join(f"`{item}`" for item in value["enum"])
    if value["type"] == "object":
        inside = value.get("additionalProperties")
        return f"mapping to {_type(inside, parts)}" if inside else "mapping"
    words = {"string": "text", "integer": "number", "number": "number", "boolean": "true or false"}
    return words[value["type"]] + _bounds(value)


def _bounds(value: Mapping[str, Any]) -> str:
    if "maximum" in value:
        return f", {value['minimum']:g} to {value['maximum']:g}"
    return f" from {value['minimum']:g}" if "minimum" in value else ""


def _default(value: Mapping[str, Any]) -> str:
    default = value.get("default")
    if default is None or default in ("", {}):
        return ""
    return re.sub(r"^False$|^True$", lambda found: found[0].lower(), str(default)).join("``")
