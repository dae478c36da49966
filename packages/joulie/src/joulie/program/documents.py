"""JSON and YAML output of commands."""

from __future__ import annotations

import json
from typing import Any

import click

FORMS = ("table", "wide", "json", "yaml")
"""Values of ``-o``."""


def render_document(value: Any, form: str) -> str:
    """Render a value of plain JSON types as ``json`` or ``yaml``.

    Raises:
        ValueError: the value contains NaN or infinity, which JSON does not support.
    """
    if form == "yaml":
        import yaml

        return yaml.safe_dump(value, sort_keys=False, allow_unicode=True).rstrip()
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)


def print_document(value: Any, form: str) -> None:
    """Print a value as ``json`` or ``yaml``."""
    click.echo(render_document(value, form))
