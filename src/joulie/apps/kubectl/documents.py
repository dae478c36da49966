"""What commands print for programs."""

from __future__ import annotations

import json
from typing import Any

import click
import yaml

FORMS = ("table", "wide", "json", "yaml")


def print_document(document: Any, form: str) -> None:
    """Print a value of plain JSON types as ``json`` or ``yaml``."""
    if form == "json":
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo(yaml.safe_dump(document, sort_keys=False).rstrip())
