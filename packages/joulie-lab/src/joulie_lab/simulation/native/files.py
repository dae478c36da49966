"""Reads the nodes of a cluster from a file, or from an experiment."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter

from joulie_lab.simulation.experiment.files import load_experiment
from joulie_lab.simulation.experiment.scenario import Hardware
from joulie_lab.simulation.model_files import is_path, read_yaml, validated
from joulie_lab.simulation.native.nodes import SimNode, UnknownHardwareError, sim_nodes
from joulie_lab.simulation.positions import ScenarioError, parse_document


def cluster_nodes(source: str) -> tuple[SimNode, ...]:
    """Read the nodes of a cluster file (YAML with `groups`), or of an experiment, shipped or in a file.

    Raises:
        ScenarioError: the file or experiment does not exist, or is invalid.
    """
    try:
        if is_path(source):
            document = parse_document(read_yaml(Path(source)), source)
            if "groups" in document.data:
                return sim_nodes(validated(document, TypeAdapter(Hardware)).groups)
        return sim_nodes(load_experiment(source).cluster.groups)
    except UnknownHardwareError as error:
        raise ScenarioError(f"{source}: {error}") from error
