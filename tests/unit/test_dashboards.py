"""The chart's dashboards and alerts: they are Grafana's and Prometheus', and ask only for series that exist."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

ROOT = Path(__file__).parents[2]
DASHBOARDS = sorted((ROOT / "deploy/helm/joulie/files/dashboards").glob("*.json"))
GRID = {"budgets", "carbon", "energy", "savings", "signals"}
LOOP = {"agents", "extender", "fleet", "node", "operator"}
OURS = re.compile(r"\b(?:scheduler_compute_gardener|compute_gardener|joulie)_[a-z0-9_]+")
SUFFIXES = {"histogram": ("_bucket", "_count", "_sum")}
of_each = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def reference() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "scripts"))
    import reference_dashboards

    yield reference_dashboards
    sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture(scope="module")
def metrics_page() -> str:
    """Held to the code by test_reference_docs."""
    return (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def exported(metrics_page: str) -> set[str]:
    found = re.findall(r"^\| `(\w+)` \| (\w+) \|", metrics_page, re.MULTILINE)
    return {name + suffix for name, kind in found for suffix in SUFFIXES.get(kind, ("",))}


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def expressions(dashboard: Mapping[str, Any]) -> list[str]:
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return asked + [one["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]


def unknown_to_grafana(mine: object, grafanas: object, place: str = "") -> list[str]:
    """Parts of a document that are not in the same document as Grafana's types read and write it."""
    if isinstance(mine, dict):
        if not isinstance(grafanas, dict):
            return [place]
        return [gone for key in mine for gone in unknown_to_grafana(mine[key], grafanas.get(key), f"{place}.{key}")]
    if isinstance(mine, list):
        if not isinstance(grafanas, list) or len(mine) != len(grafanas):
            return [place]
        pairs = enumerate(zip(mine, grafanas, strict=True))
        return [gone for index, (one, other) in pairs for gone in unknown_to_grafana(one, other, f"{place}[{index}]")]
    return [] if mine == grafanas else [place]


def test_u11_the_loop_has_dashboards_beside_the_grids() -> None:
    assert {path.stem for path in DASHBOARDS} == GRID | LOOP
    assert len({read(path)["uid"] for path in DASHBOARDS}) == len(DASHBOARDS)


def test_u11_every_metric_of_the_reference_is_shown_or_says_why_not(reference: ModuleType, metrics_page: str) -> None:
    assert reference.unexplained(metrics_page) == []


def test_u11_series_of_class_headroom_stress_caps_and_transitions_are_shown() -> None:
    shown = {name for path in DASHBOARDS for query in expressions(read(path)) for name in OURS.findall(query)}
    wanted = (
        "joulie_operator_nodes",
        "joulie_operator_node_headroom_score",
        "joulie_operator_node_cooling_stress_score",
        "joulie_operator_node_psu_stress_score",
        "joulie_operator_node_cap_wanted_percent",
        "joulie_operator_node_cap_in_force_percent",
        "joulie_operator_state_transitions_total",
    )
    assert set(wanted) <= shown


@of_each
def test_every_series_exists(path: Path, exported: set[str]) -> None:
    asked = {name for expression in expressions(read(path)) for name in OURS.findall(expression)}
    assert asked
    assert asked <= exported


@of_each
def test_grafanas_schema_knows_every_part(path: Path) -> None:
    document = read(path)
    as_grafana_writes_it = json.loads(JSONEncoder().encode(Dashboard.from_json(document)))
    assert unknown_to_grafana(document, as_grafana_writes_it) == []


def test_a_part_that_grafana_does_not_know_is_found() -> None:
    document = read(DASHBOARDS[0])
    document["panels"][0]["gridPosition"] = document["panels"][0].pop("gridPos")
    as_grafana_writes_it = json.loads(JSONEncoder().encode(Dashboard.from_json(document)))
    assert unknown_to_grafana(document, as_grafana_writes_it) == [".panels[0].gridPosition"]


@of_each
def test_panels_lie_side_by_side(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in read(path)["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_u11_each_alert_asks_for_series_that_exist_and_has_a_runbook(reference: ModuleType, exported: set[str]) -> None:
    runbooks = (ROOT / "docs/howto/alerts.md").read_text(encoding="utf-8")
    headings = set(re.findall(r"^### (\w+)$", runbooks, re.MULTILINE))
    rules = {rule["alert"]: rule for rule in reference.rules()}
    assert headings == set(rules)
    for name, rule in rules.items():
        assert set(OURS.findall(rule["expr"])) <= exported
        assert rule["annotations"]["runbook_url"].endswith(f"/howto/alerts.html#{name.lower()}")
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
