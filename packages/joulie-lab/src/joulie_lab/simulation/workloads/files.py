"""Settings of the generator, and clusters, from YAML; every problem is named by its line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from joulie_lab.simulation.experiment.files import load_experiment

# Their module holds the generator's dataclasses to the strict rules of its models.
from joulie_lab.simulation.experiment.scenario import Hardware
from joulie_lab.simulation.model_files import Setting, changed, is_path, read_yaml, validated
from joulie_lab.simulation.native.nodes import SimNode, UnknownHardwareError, sim_nodes
from joulie_lab.simulation.positions import Document, ScenarioError, parse_document
from joulie_lab.simulation.workloads.settings import GeneratorSettings


def generator_settings(
    file: Path | None, sets: Sequence[str] = (), settings: Iterable[Setting] = ()
) -> GeneratorSettings:
    """What is to be generated.

    Args:
        file: YAML of it; the defaults where there is none.
        sets: overrides ``key.path=value``, checked like the file.
        settings: values given by other means; `sets` are laid over them.

    Raises:
        ScenarioError: every problem, a line each.
    """
    document = Document({}, {(): "settings"}) if file is None else parse_document(read_yaml(file), str(file))
    return validated(changed(document, sets, settings), TypeAdapter(GeneratorSettings))


def generator_schema() -> dict[str, Any]:
    """JSON Schema of the generator's settings, for editors."""
    schema = TypeAdapter(GeneratorSettings).json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def cluster_nodes(source: str) -> tuple[SimNode, ...]:
    """The nodes of a cluster file (YAML with `groups`), or of an experiment, shipped or in a file.

    Raises:
        ScenarioError: there is none, or it cannot be used.
    """
    try:
        if is_path(source):
            document = parse_document(read_yaml(Path(source)), source)
            if "groups" in document.data:
                return sim_nodes(validated(document, TypeAdapter(Hardware)).groups)
        return sim_nodes(load_experiment(source).cluster.groups)
    except UnknownHardwareError as error:
        raise ScenarioError(f"{source}: {error}") from error
