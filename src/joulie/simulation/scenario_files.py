"""Scenarios from YAML: shipped ones by name, others by path, with every problem named by its line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path as FilePath
from typing import Any, NamedTuple

from pydantic import ValidationError

from joulie.simulation.positions import Document, Path, ScenarioError, parse_document, show_path
from joulie.simulation.scenario import Scenario

_SHIPPED = files("joulie.simulation") / "scenarios"
_FILE_PATHS: tuple[Path, ...] = (("workload", "csv"), ("workload", "parquet"), ("cooling", "fmu", "file"))
"""Values that name files: relative to the scenario file when said there, else to the working directory."""


class Setting(NamedTuple):
    """A value given outside the file, as by an option of the command line."""

    path: Path
    value: Any
    place: str


def shipped_names() -> list[str]:
    """Names of the scenarios that come with Joulie."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _SHIPPED.iterdir() if entry.name.endswith(".yaml"))


def scenario_text(source: str) -> str:
    """The YAML of a shipped scenario or of a file.

    Raises:
        ScenarioError: there is no such scenario or file.
    """
    if _is_path(source):
        try:
            return FilePath(source).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ScenarioError(f"{source}: {reason or error}") from error
    if source not in shipped_names():
        raise ScenarioError(
            f"no scenario {source!r}{_did_you_mean(source, shipped_names())};"
            f" shipped are {', '.join(shipped_names())}; a file is given by its path, as ./{source}.yaml"
        )
    return (_SHIPPED / f"{source}.yaml").read_text(encoding="utf-8")


def load_scenario(source: str, sets: Sequence[str] = (), settings: Iterable[Setting] = ()) -> Scenario:
    """Read and check a scenario.

    Args:
        source: a shipped name, or the path of a YAML file.
        sets: overrides ``key.path=value``, checked like the file.
        settings: values given by other means; `sets` are laid over them.

    Raises:
        ScenarioError: every problem of the scenario, one line each.
    """
    document = parse_document(scenario_text(source), source if _is_path(source) else f"{source}.yaml")
    document = _anchor_files(document, source)
    for setting in settings:
        document = document.with_value(*setting)
    for assignment in sets:
        document = document.with_override(assignment)
    return check(document)


def check(document: Document) -> Scenario:
    """The scenario that a document describes.

    Raises:
        ScenarioError: every problem of the document, one line each.
    """
    try:
        # JSON in between: strict checks, yet a list may become a tuple and a mapping a dataclass.
        return Scenario.model_validate_json(json.dumps(document.data))
    except ValidationError as error:
        raise ScenarioError(*_problems(error, document)) from error


def json_schema() -> dict[str, Any]:
    """JSON Schema of a scenario, for editors."""
    schema = Scenario.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _is_path(source: str) -> bool:
    return source.endswith((".yaml", ".yml")) or "/" in source or "\\" in source


def _anchor_files(document: Document, source: str) -> Document:
    """The document with its file names relative to where it stands.

    A shipped scenario lies inside the package, where no data belongs: its names are relative to the working directory.
    """
    if not _is_path(source):
        return document
    for path in _FILE_PATHS:
        value: Any = document.data
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, str):
            document = document.with_value(path, str(FilePath(source).parent / value), document.place(path))
    return document


def _problems(error: ValidationError, document: Document) -> list[str]:
    schema = Scenario.model_json_schema()
    lines = []
    items = error.errors(include_url=False)
    for item in items:
        path: Path = item["loc"]
        if item["type"] == "too_short" and any(path == other["loc"][: len(path)] != other["loc"] for other in items):
            continue  # short only because of its wrong elements, which are told by themselves
        cause = item.get("ctx", {}).get("error")
        if quantity := getattr(cause, "quantity", None):
            path = (*path, *str(quantity).split("."))
        if path[-1:] == ("[key]",):
            path = path[:-1]
        lines.append(f"{document.place(path)}: {_subject(path)}{_message(dict(item), path, schema)}")
    return sorted(set(lines), key=_line_number)


def _line_number(problem: str) -> tuple[int, str]:
    number = problem.split(": ", 1)[0].rpartition(":")[2]
    return (int(number) if number.isdecimal() else 0, problem)


def _subject(path: Path) -> str:
    return f"{show_path(path)}: " if path else ""


def _message(item: dict[str, Any], path: Path, schema: dict[str, Any]) -> str:
    """One problem in words: what is wrong, and what is allowed."""
    kind, value = item["type"], item["input"]
    if kind == "missing":
        return f"missing; {_expected(_part(schema, path, schema))}"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        allowed = sorted(_part(schema, path[:-1], schema).get("properties", {}))
        return f"unknown key{_did_you_mean(str(path[-1]), allowed)}; allowed are {', '.join(allowed)}"
    if kind == "too_short":
        return "is empty; name at least one"
    if kind == "value_error":
        cause = item["ctx"]["error"]
        quantity = getattr(cause, "quantity", None)
        return str(cause).removeprefix(f"{quantity}: ")
    wanted = item["msg"].removeprefix("Input should be ")
    suggestion = ""
    if kind == "literal_error" and isinstance(value, str):
        suggestion = _did_you_mean(value, item["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", "))
    shown = "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else f"{value!r}"
    return f"must be {wanted}, got {shown}{suggestion}"


def _did_you_mean(word: str, allowed: Sequence[str]) -> str:
    close = get_close_matches(word, allowed, n=1)
    return f", did you mean {close[0]}?" if close else ""


def _expected(part: dict[str, Any]) -> str:
    """What a missing value should have been, by its schema."""
    words = {
        "integer": "a whole number",
        "number": "a number",
        "string": "text",
        "array": "a list",
        "object": "a mapping",
    }
    required = part.get("required", [])
    inside = f" with {', '.join(required)}" if required else ""
    return f"give {words.get(part.get('type', ''), 'a value')}{inside}"


def _part(schema: dict[str, Any], path: Path, root: dict[str, Any]) -> dict[str, Any]:
    """The schema of the value at `path`; empty where it is free."""
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    for option in schema.get("anyOf", ()):
        resolved = _part(option, (), root)
        if resolved.get("type") == "object":
            return _part(resolved, path, root)
    if not path:
        return schema
    if isinstance(path[0], int):
        return _part(schema.get("items", {}), path[1:], root)
    return _part(schema.get("properties", {}).get(path[0], {}), path[1:], root)
