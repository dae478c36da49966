"""Reads experiments from YAML, shipped ones by name and others by path; each error names its line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path as FilePath
from typing import Any

from joulie_lab.simulation.experiment.scenario import Experiment
from joulie_lab.simulation.model_files import ModelFiles, Setting, read_yaml, with_overrides
from joulie_lab.simulation.positions import Document, Path, ScenarioError, parse_document

_FILES = ModelFiles(
    Experiment,
    files("joulie_lab.simulation") / "experiment" / "scenarios",
    "experiment",
    (("cluster", "file"), ("workload", "trace"), ("cooling", "fmu", "file"), ("grid", "intensity_file")),
)
_CLUSTER = ("cluster",)


def experiment_names() -> list[str]:
    """Names of the shipped experiments."""
    return _FILES.names()


def experiment_text(source: str) -> str:
    """The YAML of a shipped experiment or of a file.

    Raises:
        ScenarioError: there is no such experiment or file.
    """
    return _FILES.text(source)


def load_experiment(source: str, sets: Sequence[str] = (), settings: Iterable[Setting] = ()) -> Experiment:
    """Read and check an experiment, and the cluster file that it may name.

    Args:
        source: a shipped name, or the path of a YAML file.
        sets: overrides ``key.path=value``, checked like the file.
        settings: values given by other options; `sets` override them.

    Raises:
        ScenarioError: the experiment is invalid; one line for each error.
    """
    document = _with_cluster(_FILES.document(source))
    if "schedulers" in document.data and "variants" not in document.data:
        place = document.location(("schedulers",))
        raise ScenarioError(f"{place}: schedulers are of a scenario: joulie simulate {source}")
    return _FILES.check(_with_cluster(with_overrides(document, sets, settings)))


def named_files(experiment: Experiment) -> dict[Path, str]:
    """Files that an experiment refers to, by the path of the key that names them."""
    named: dict[Path, str] = {}
    for path in _FILES.file_paths:
        value: Any = experiment
        for part in path:
            value = getattr(value, str(part), None)
        if value is not None:
            named[path] = value
    return named


def experiment_schema() -> dict[str, Any]:
    """JSON Schema of an experiment, for editors."""
    return _FILES.schema()


def _with_cluster(document: Document) -> Document:
    """The document with the contents of its cluster file, if it names one."""
    cluster = document.data.get("cluster")
    file = cluster.get("file") if isinstance(cluster, dict) else None
    if not isinstance(file, str):
        return document
    place = document.location((*_CLUSTER, "file"))
    try:
        own = parse_document(read_yaml(FilePath(file)), file)
    except ScenarioError as error:
        raise ScenarioError(*(f"{place}: cluster.file: {problem}" for problem in error.problems)) from error
    if "groups" not in own.data or "file" in own.data:
        raise ScenarioError(f"{own.location(())}: a cluster file is a mapping with groups, a list of groups of nodes")
    return document.with_document(_CLUSTER, own)
