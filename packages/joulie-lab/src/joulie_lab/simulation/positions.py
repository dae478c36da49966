"""YAML documents that keep the source location of every value, so that an error can name the line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]
"""Keys and list indices from the root of a document to a value."""


class ScenarioError(ValueError):
    """Invalid scenario.

    Attributes:
        problems: one line per problem: where, what is wrong, what is allowed.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class Document:
    """Plain values with their source locations.

    Attributes:
        data: nested dicts, lists and scalars.
        locations: ``FILE:LINE`` or ``--set KEY=VALUE`` by path.
    """

    data: dict[str, Any]
    locations: Mapping[Path, str] = field(default_factory=dict)

    def location(self, path: Path) -> str:
        """Source location of the value at `path`, or of the closest parent that has one."""
        while path and path not in self.locations:
            path = path[:-1]
        return self.locations[path]

    def with_override(self, assignment: str) -> Document:
        """A copy of the document with ``key.path=value`` applied; the value is parsed as YAML.

        Raises:
            ScenarioError: not an assignment, the value is not valid YAML, or the path runs through something that is
                not a mapping or list.
        """
        location = f"--set {assignment}"
        key, separator, text = assignment.partition("=")
        path = _parse_path(key.strip())
        if not (separator and path):
            raise ScenarioError(f"{location}: not of the form key.path=value")
        value = _Builder(location, by_line=False).build(text, path)
        return self.with_value(path, value.data, location)

    def with_document(self, path: Path, other: Document) -> Document:
        """A copy of the document with another document at `path`, whose values keep their locations."""
        merged = self.with_value(path, other.data, other.location(()))
        inside = {(*path, *inner): location for inner, location in other.locations.items()}
        return Document(merged.data, {**merged.locations, **inside})

    def with_value(self, path: Path, value: Any, location: str) -> Document:
        """A copy of the document with `value` at `path` and `location` as its location.

        Raises:
            ScenarioError: the path runs through something that is not a mapping or list.
        """
        locations = {known: location for known, location in self.locations.items() if known[: len(path)] != path}
        for length in range(len(path)):  # parents that this value creates get its location too
            locations.setdefault(path[:length], location)
        return Document(_assigned(self.data, path, value, location), {**locations, path: location})


def show_path(path: Path) -> str:
    """A path as users write it: ``cluster.pools[0].cores``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def parse_document(text: str, file: str) -> Document:
    """Parse a YAML mapping.

    Args:
        text: the YAML.
        file: name of the file in locations.

    Raises:
        ScenarioError: not YAML, a duplicate key, an alias, or no mapping at the top level.
    """
    value = _Builder(file, by_line=True).build(text, ())
    if not isinstance(value.data, dict):
        raise ScenarioError(f"{file}:1: a scenario is a mapping of keys to values")
    return Document(value.data, value.locations)


@dataclass(frozen=True)
class _Value:
    data: Any
    locations: dict[Path, str]


class _Loader(yaml.SafeLoader):
    """YAML loader with stricter scalars: 1e6 is a number, 2026-01-01 is text, and aliases are rejected."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            parser: Any = self  # the stubs leave its methods untyped
            mark = parser.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "aliases are not supported: repeat the value", mark)
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


class _Builder:
    """Builds values and their source locations from YAML text."""

    def __init__(self, source: str, *, by_line: bool) -> None:
        self._source = source
        self._by_line = by_line
        self._locations: dict[Path, str] = {}

    def build(self, text: str, root: Path) -> _Value:
        """The value of `text`, with locations for paths below `root`."""
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            data = None if node is None else self._value(loader, node, root)
        except ScenarioError:
            raise
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise ScenarioError(f"{self._at(mark)}: not valid YAML: {error.problem or error.context}") from error
        except (yaml.YAMLError, ValueError) as error:
            raise ScenarioError(f"{self._at(None)}: not valid YAML: {str(error).splitlines()[0]}") from error
        finally:
            loader.dispose()
        self._locations.setdefault(root, self._at(None))
        return _Value(data, self._locations)

    def _at(self, mark: yaml.Mark | None) -> str:
        return f"{self._source}:{mark.line + 1 if mark else 1}" if self._by_line else self._source

    def _value(self, loader: _Loader, node: yaml.Node, path: Path) -> Any:
        self._locations.setdefault(path, self._at(node.start_mark))
        if isinstance(node, yaml.SequenceNode):
            return [self._value(loader, item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(loader, node, path)
        return loader.construct_object(node)

    def _mapping(self, loader: _Loader, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
            if key in values:
                at = self._at(key_node.start_mark)
                raise ScenarioError(f"{at}: {show_path((*path, key))}: duplicate key; keep one of them")
            self._locations[(*path, key)] = self._at(key_node.start_mark)
            values[key] = self._value(loader, value_node, (*path, key))
        return values


def _parse_path(text: str) -> Path:
    """``cluster.pools[0].cores`` or ``cluster.pools.0.cores`` as a path; empty if the text is neither."""
    parts = re.sub(r"\[(\d+)\]", r".\1", text).split(".")
    if not all(re.fullmatch(r"[\w-]+", part) for part in parts):
        return ()
    return tuple(int(part) if part.isdecimal() else part for part in parts)


def _assigned(data: Any, path: Path, value: Any, location: str, done: Path = ()) -> Any:
    """A copy of `data` with `value` at `path`; missing mappings on the way are created."""
    if not path:
        return value
    head, rest = path[0], path[1:]
    here = (*done, head)
    if isinstance(data, list):
        if not (isinstance(head, int) and head < len(data)):
            raise ScenarioError(f"{location}: {show_path(here)}: no such element, the list has {len(data)}")
        return [_assigned(item, rest, value, location, here) if i == head else item for i, item in enumerate(data)]
    if isinstance(data, str) and data == head:
        data = {data: {}}  # a string that is shorthand for the mapping with that key, as in `cooling: dx`
    if not (data is None or isinstance(data, dict)):
        raise ScenarioError(f"{location}: {show_path(done)} is {data!r}, which has no keys to set")
    inside = data or {}
    return {**inside, str(head): _assigned(inside.get(str(head)), rest, value, location, here)}
