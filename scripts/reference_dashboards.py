"""Generates the reference page of the chart's dashboards: each metric with its panels and alerts, or the reason."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[1] / "deploy/helm/joulie"
NOT_SHOWN: Mapping[str, str] = {
    "compute_gardener_scheduler_": "for dashboards of the Compute Gardener Scheduler; ours show the same figures",
    "joulie_web_": "of the pages, which the chart does not install by default",
    "joulie_sim_": "of the simulator, which no cluster of machines runs",
    "datacenter_": "of the simulator, which no cluster of machines runs",
    "DCGM_FI_": "of the simulator, as DCGM names it",
}
"""Why no panel shows the metrics with a prefix."""
_GENERATED = "<!-- Written by scripts/generate_reference.py: change the code, then run it again. -->"
_METRIC = re.compile(r"^\| `(\w+)` \| (\w+) \|", re.MULTILINE)
_PARTS = {"histogram": ("_bucket", "_count", "_sum")}


def dashboards() -> dict[str, dict[str, Any]]:
    """The chart's dashboards by the name of their file."""
    files = sorted((CHART / "files/dashboards").glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


def rules() -> list[dict[str, Any]]:
    """The chart's alerts."""
    groups = yaml.safe_load((CHART / "files/rules/joulie.yaml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions(dashboard: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The queries of a dashboard, each with the title of its panel."""
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def unexplained(metrics_page: str) -> list[str]:
    """Metrics of the reference that no panel shows and no reason excuses."""
    return [name for name, panels, _ in _rows(metrics_page) if not panels]


def dashboards_page(metrics_page: str) -> str:
    """Every metric of the reference with the panels that show it and the alerts that use it."""
    rows = [f"| `{name}` | {panels} | {alerts} |" for name, panels, alerts in _rows(metrics_page)]
    return (
        "\n\n".join(
            [
                "# Panels of each metric",
                _GENERATED,
                "What shows each metric of the [reference](metrics.md): panels of the chart's dashboards, and alerts."
                " How to switch them on: [dashboards and alerts](../howto/alerts.md).",
                "\n".join(["| metric | dashboard: panels | alerts |", "|---|---|---|", *rows]),
            ]
        )
        + "\n"
    )


def _rows(metrics_page: str) -> Iterator[tuple[str, str, str]]:
    shown = [(f"{name}: {title}", query) for name, one in dashboards().items() for title, query in expressions(one)]
    alerts = [(rule["alert"], rule["expr"]) for rule in rules()]
    for name, kind in sorted(set(_METRIC.findall(metrics_page))):
        names = "|".join((name, *(name + part for part in _PARTS.get(kind, ()))))
        used = re.compile(rf"\b(?:{names})\b")
        panels = [title for title, query in shown if used.search(query)]
        reason = next((why for prefix, why in NOT_SHOWN.items() if name.startswith(prefix)), "")
        yield (
            name,
            "; ".join(dict.fromkeys(panels)) or reason,
            ", ".join(one for one, query in alerts if used.search(query)),
        )
