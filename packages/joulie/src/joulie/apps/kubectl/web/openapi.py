"""The API's description in OpenAPI 3.1, made from the types of its answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from joulie import __version__

_REF = "#/components/schemas/{name}"


@dataclass(frozen=True)
class Operation:
    """One path of the API.

    Attributes:
        path: path, with parameters in braces.
        summary: what it answers.
        answer: type of the answer.
        parameters: query parameters, with what they mean.
        media_type: what is answered; of an export, an answer is one line.
    """

    path: str
    summary: str
    answer: type
    parameters: Mapping[str, str]
    media_type: str = "application/json"


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    """The OpenAPI document of the operations."""
    listed = list(operations)
    schemas, components = msgspec.json.schema_components([one.answer for one in listed], ref_template=_REF)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Joulie", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": {one.path: {"get": _get(one, schema)} for one, schema in zip(listed, schemas, strict=True)},
        "components": {"schemas": components},
    }


def _get(operation: Operation, schema: Mapping[str, Any]) -> dict[str, Any]:
    in_path = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    return {
        "summary": operation.summary,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in in_path),
            *(
                {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
                for name, text in operation.parameters.items()
            ),
        ],
        "responses": {"200": {"description": "OK", "content": {operation.media_type: {"schema": schema}}}},
    }
