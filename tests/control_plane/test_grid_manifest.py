"""The plain manifest: as the chart renders it now, and taken by a real API server."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from joulie_lab.control_plane import Binaries, LocalControlPlane

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

SCRIPT = Path(__file__).parents[2] / "scripts/render_manifest.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render_manifest", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_what_the_chart_renders(script: ModuleType, control_plane_binaries: Binaries) -> None:
    written = script.MANIFEST.read_text(encoding="utf-8")
    assert written == script.manifest(control_plane_binaries["helm"]), (
        "run: .venv/bin/python scripts/render_manifest.py"
    )


def test_an_api_server_takes_it(script: ModuleType, control_plane: LocalControlPlane) -> None:
    told = control_plane.kubectl("apply", "--server-side", "--dry-run=server", "-f", script.MANIFEST, "-o", "name")
    documents = [one for one in yaml.safe_load_all(script.MANIFEST.read_text(encoding="utf-8")) if one]
    assert len(told.splitlines()) == len(documents)


def test_it_has_what_the_gardeners_had(script: ModuleType) -> None:
    documents = [one for one in yaml.safe_load_all(script.MANIFEST.read_text(encoding="utf-8")) if one]
    assert documents[0]["stringData"] == {"api-key": script.KEY}
    assert {one["metadata"]["namespace"] for one in documents if "namespace" in one["metadata"]} == {"kube-system"}
    names = {f"{one['kind']}/{one['metadata']['name']}" for one in documents}
    assert {"Service/compute-gardener-scheduler-metrics", "CronJob/joulie-grid-guard"} <= names
    assert not any("helm.sh/hook" in one["metadata"].get("annotations", {}) for one in documents)
