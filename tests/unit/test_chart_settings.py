"""R10: the chart knows every setting of every program, and rejects others."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/chart_settings.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chart_settings", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def committed(script: ModuleType) -> str:
    return str(script.SCHEMA.read_text(encoding="utf-8"))


def test_r10_the_schema_has_the_settings_of_today(script: ModuleType, committed: str) -> None:
    assert committed == script.schema(), "run: .venv/bin/python scripts/chart_settings.py"


def test_r10_a_misspelt_signal_is_no_setting(script: ModuleType, committed: str) -> None:
    names = json.loads(committed)["$defs"]["signalSettings"]["propertyNames"]["enum"]
    assert {"CARBON_SOURCES", "CARBON_FILE"} & set(names)
    assert "CARBON_SOURCE" not in names
    assert not script.CHART_SETS & set(names)


def test_r10_every_object_of_the_chart_says_what_it_takes(committed: str) -> None:
    """Objects of Kubernetes are left to the API server."""
    free = re.compile(r"affinity|tolerations|items|valueFrom|metricsFrom|schedules|global")

    def unchecked(part: object, path: str) -> list[str]:
        if isinstance(part, list):
            return [found for one in part for found in unchecked(one, path)]
        if not isinstance(part, dict):
            return []
        found = [one for name, inner in part.items() for one in unchecked(inner, f"{path}/{name}")]
        is_open = part.get("type") == "object" and "additionalProperties" not in part
        return [*found, path] if is_open and not free.search(path) else found

    assert unchecked(json.loads(committed), "") == []
