"""Loads scenarios from YAML: shipped scenarios by name, others by path; every problem is reported with its line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from joulie_lab.simulation.model_files import ModelFiles, Setting, is_path, with_overrides
from joulie_lab.simulation.positions import Document, ScenarioError
from joulie_lab.simulation.scenario import Scenario

__all__ = ["Setting", "json_schema", "load_scenario", "scenario_text", "shipped_names"]

_FILES = ModelFiles(
    Scenario,
    files("joulie_lab.simulation") / "scenarios",
    "scenario",
    (("workload", "csv"), ("workload", "parquet"), ("cooling", "fmu", "file")),
)


def shipped_names() -> list[str]:
    """Names of the scenarios that ship with Joulie."""
    return _FILES.names()


def scenario_text(source: str) -> str:
    """The YAML of a shipped scenario or of a file.

    Raises:
        ScenarioError: no such scenario or file.
    """
    _refuse_experiment_name(source)
    return _FILES.text(source)


def load_scenario(source: str, sets: Sequence[str] = (), settings: Iterable[Setting] = ()) -> Scenario:
    """Read and check a scenario.

    Args:
        source: a shipped name, or the path of a YAML file.
        sets: overrides ``key.path=value``, checked like the file.
        settings: values set outside the file; `sets` take precedence.

    Raises:
        ScenarioError: every problem of the scenario, one line each.
    """
    _refuse_experiment_name(source)
    document = _FILES.document(source)
    _refuse_experiment(document, source)
    return _FILES.check(with_overrides(document, sets, settings))


def json_schema() -> dict[str, Any]:
    """JSON Schema of a scenario, for editors."""
    return _FILES.schema()


def _refuse_experiment_name(source: str) -> None:
    if is_path(source) or source in _FILES.names():
        return
    from joulie_lab.simulation.experiment.files import experiment_names

    if source in experiment_names():
        raise ScenarioError(f"{source} is an experiment; use: joulie experiment run {source}")


def _refuse_experiment(document: Document, source: str) -> None:
    """Reject an experiment file with a hint at the right command: only an experiment has variants."""
    if "variants" in document.data:
        place = document.location(("variants",))
        raise ScenarioError(f"{place}: variants belong to an experiment; use: joulie experiment run {source}")
