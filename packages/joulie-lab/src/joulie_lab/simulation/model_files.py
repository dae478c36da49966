"""YAML files validated by a model: shipped files by name, others by path, every problem reported with its line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources.abc import Traversable
from pathlib import Path as FilePath
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from joulie_lab.simulation.positions import Document, Path, ScenarioError, parse_document, show_path

ModelT = TypeVar("ModelT", bound=BaseModel)
T = TypeVar("T")

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)
"""Configuration of every model, and of the simulation's own dataclasses that are part of one."""


class Setting(NamedTuple):
    """A value set outside the file, for example by a command line option."""

    path: Path
    value: Any
    location: str


@dataclass(frozen=True)
class ModelFiles(Generic[ModelT]):
    """Loader for the YAML files of one model.

    Attributes:
        model: the model that validates a file.
        shipped: folder of the files that ship with Joulie.
        noun: name of such a file in messages.
        file_paths: keys whose values name files; they are relative to the YAML file if set there, else to the working
            directory.
    """

    model: type[ModelT]
    shipped: Traversable
    noun: str
    file_paths: tuple[Path, ...] = ()

    def names(self) -> list[str]:
        """Names of the shipped files."""
        return sorted(entry.name.removesuffix(".yaml") for entry in self.shipped.iterdir() if _is_yaml(entry.name))

    def text(self, source: str) -> str:
        """The YAML of a shipped name or of a file.

        Raises:
            ScenarioError: no such name or file.
        """
        if is_path(source):
            return read_yaml(FilePath(source))
        names = self.names()
        if source not in names:
            raise ScenarioError(
                f"no {self.noun} {source!r}{did_you_mean(source, names)};"
                f" shipped are {', '.join(names)}; a file is given by its path, as ./{source}.yaml"
            )
        return (self.shipped / f"{source}.yaml").read_text(encoding="utf-8")

    def document(self, source: str) -> Document:
        """The document of a shipped name or of a file, with file names resolved relative to the YAML file.

        A shipped file lies inside the package, which holds no data: its file names are relative to the working
        directory.

        Raises:
            ScenarioError: no such name or file, or its content is not a YAML mapping.
        """
        document = parse_document(self.text(source), source if is_path(source) else f"{source}.yaml")
        if not is_path(source):
            return document
        for path in self.file_paths:
            value: Any = document.data
            for part in path:
                value = value.get(part) if isinstance(value, dict) else None
            if isinstance(value, str):
                document = document.with_value(path, str(FilePath(source).parent / value), document.location(path))
        return document

    def check(self, document: Document) -> ModelT:
        """Validate a document.

        Raises:
            ScenarioError: every problem of the document, one line each.
        """
        return validated(document, TypeAdapter(self.model))

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the model, for editors."""
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **self.model.model_json_schema()}


def validated(document: Document, adapter: TypeAdapter[T]) -> T:
    """Validate a document against a model or dataclass.

    Args:
        document: plain values with their source locations.
        adapter: pydantic adapter of the model or dataclass.

    Raises:
        ScenarioError: every problem of the document, one line each.
    """
    try:
        # Validated as JSON: checks are strict, yet a list may become a tuple and a mapping a dataclass.
        return adapter.validate_json(json.dumps(document.data))
    except ValidationError as error:
        raise ScenarioError(*_problems(error, document, adapter.json_schema())) from error


def with_overrides(document: Document, sets: Sequence[str], settings: Iterable[Setting]) -> Document:
    """Apply settings and then ``key.path=value`` overrides to a document.

    Raises:
        ScenarioError: one of them cannot be applied.
    """
    for setting in settings:
        document = document.with_value(*setting)
    for assignment in sets:
        document = document.with_override(assignment)
    return document


def is_path(source: str) -> bool:
    """Whether a source is a file path rather than a shipped name."""
    return _is_yaml(source) or "/" in source or "\\" in source


def read_yaml(file: FilePath) -> str:
    """Read the text of a file.

    Raises:
        ScenarioError: the file cannot be read.
    """
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ScenarioError(f"{file}: {reason or error}") from error


def did_you_mean(word: str, allowed: Sequence[str]) -> str:
    """A suggestion to append to a message; empty if there is no close match."""
    close = get_close_matches(word, allowed, n=1)
    return f", did you mean {close[0]}?" if close else ""


def _is_yaml(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def _problems(error: ValidationError, document: Document, schema: dict[str, Any]) -> list[str]:
    lines = []
    items = error.errors(include_url=False)
    for item in items:
        path: Path = item["loc"]
        if item["type"] == "too_short" and any(path == other["loc"][: len(path)] != other["loc"] for other in items):
            continue  # too short only because of its invalid elements, which are reported themselves
        cause = item.get("ctx", {}).get("error")
        if quantity := getattr(cause, "quantity", None):
            path = (*path, *(int(part) if part.isdecimal() else part for part in str(quantity).split(".")))
        if path[-1:] == ("[key]",):
            path = path[:-1]
        lines.append(f"{document.location(path)}: {_subject(path)}{_message(dict(item), path, schema)}")
    return sorted(set(lines), key=_line_number)


def _line_number(problem: str) -> tuple[int, str]:
    number = problem.split(": ", 1)[0].rpartition(":")[2]
    return (int(number) if number.isdecimal() else 0, problem)


def _subject(path: Path) -> str:
    return f"{show_path(path)}: " if path else ""


def _message(item: dict[str, Any], path: Path, schema: dict[str, Any]) -> str:
    """The message for one problem: what is wrong, and what is allowed."""
    kind, value = item["type"], item["input"]
    if kind == "missing":
        return f"missing; {_expected(_part(schema, path, schema))}"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        allowed = sorted(_part(schema, path[:-1], schema).get("properties", {}))
        return f"unknown key{did_you_mean(str(path[-1]), allowed)}; allowed are {', '.join(allowed)}"
    if kind == "too_short":
        return "is empty; name at least one"
    if kind == "value_error":
        cause = item["ctx"]["error"]
        quantity = getattr(cause, "quantity", None)
        return str(cause).removeprefix(f"{quantity}: ")
    wanted = item["msg"].removeprefix("Input should be ")
    suggestion = ""
    if kind == "literal_error" and isinstance(value, str):
        suggestion = did_you_mean(value, item["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", "))
    shown = "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else f"{value!r}"
    return f"must be {wanted}, got {shown}{suggestion}"


def _expected(part: dict[str, Any]) -> str:
    """Description of a missing value, derived from its schema."""
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
    """The schema of the value at `path`; empty if unconstrained."""
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
