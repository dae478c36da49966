"""Reads the generator's settings from YAML; each error names its line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from joulie_lab.simulation.model_files import Setting, read_yaml, validated, with_overrides
from joulie_lab.simulation.positions import Document, parse_document
from joulie_lab.simulation.workloads.settings import GeneratorSettings


def generator_settings(
    file: Path | None, sets: Sequence[str] = (), settings: Iterable[Setting] = ()
) -> GeneratorSettings:
    """Read and check the settings of the generator.

    Args:
        file: YAML file; None for the defaults.
        sets: overrides ``key.path=value``, checked like the file.
        settings: values given by other options; `sets` override them.

    Raises:
        ScenarioError: the settings are invalid; one line for each error.
    """
    document = Document({}, {(): "settings"}) if file is None else parse_document(read_yaml(file), str(file))
    return validated(with_overrides(document, sets, settings), TypeAdapter(GeneratorSettings))


def generator_schema() -> dict[str, Any]:
    """JSON Schema of the generator's settings, for editors."""
    schema = TypeAdapter(GeneratorSettings).json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
