"""The chart's Grafana dashboards ask only for series that the programs export."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from joulie.adapters.grid.metrics import GridMetrics
from joulie.apps.accounting.metrics import AccountingMetrics
from joulie.apps.grid.metrics import ControllerMetrics

DASHBOARDS = sorted((Path(__file__).parents[2] / "deploy/helm/joulie/files/dashboards").glob("*.json"))
OURS = re.compile(r"\b(?:scheduler_compute_gardener|compute_gardener|joulie)_[a-z0-9_]+")
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}


def exported() -> set[str]:
    feed = CollectorRegistry()
    GridMetrics(feed)
    names = set()
    for registry in (feed, ControllerMetrics().registry, AccountingMetrics().registry):
        for family in registry.collect():
            names |= {family.name + suffix for suffix in SUFFIXES.get(family.type, ("",))}
    return names


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def expressions(dashboard: dict[str, Any]) -> list[str]:
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return asked + [one["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]


def test_there_is_one_for_each_question() -> None:
    assert [path.stem for path in DASHBOARDS] == ["budgets", "carbon", "energy", "savings", "signals"]
    assert len({read(path)["uid"] for path in DASHBOARDS}) == len(DASHBOARDS)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_series_exists(path: Path) -> None:
    asked = {name for expression in expressions(read(path)) for name in OURS.findall(expression)}
    assert asked
    assert asked <= exported()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
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


def test_every_metric_of_the_gardener_is_shown() -> None:
    """But for how long a decision takes and how much the ledger keeps, which are the programs' own affairs."""
    shown = {name for path in DASHBOARDS for expression in expressions(read(path)) for name in OURS.findall(expression)}
    gardeners = {name for name in exported() if name.startswith("scheduler_compute_gardener_")}
    left_out = {name.removeprefix("scheduler_compute_gardener_") for name in gardeners - shown}
    assert left_out == {
        "pod_scheduling_duration_seconds_bucket",
        "pod_scheduling_duration_seconds_count",
        "pod_scheduling_duration_seconds_sum",
        "metrics_samples_stored",
        "metrics_cache_size",
    }
