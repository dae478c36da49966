"""`kubectl joulie budget`: EnergyBudgets with what is used and expected, and what waits for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Group
from rich.text import Text

from joulie.adapters.kubernetes.api.v1alpha1 import BudgetAmounts, BudgetHeld, EnergyBudget
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.energy_budgets import HOLDING, USAGE_KNOWN, condition_of
from joulie.adapters.kubernetes.resources import ENERGY_BUDGETS
from joulie.apps.kubectl.columns import (
    Column,
    format_count,
    number_column,
    sorted_rows,
    table_lines,
    text_column,
)
from joulie.apps.kubectl.options import cluster_options, namespace_options, run_with_client, table_options
from joulie.apps.kubectl.power_budget import power
from joulie.apps.kubectl.table import console
from joulie.domain.accounting.budget import BudgetResponse, WindowKind
from joulie.program.documents import print_document

_UNITS = {"energyKWh": "kWh", "emissionsG": "gCO2eq", "cost": "cost"}
_YES_NO = {True: "yes", False: "no", None: None}


@dataclass(frozen=True)
class BudgetRow:
    """One EnergyBudget; fields that are unknown are None.

    Attributes:
        namespace: namespace of the budget.
        name: name of the budget.
        target: pods that it is for.
        period: period, with its window or time zone.
        action: what happens once it is exhausted.
        limits: energyKWh, emissionsG and cost that may be used.
        used: the same that were used.
        forecast: the same that are expected at the end of the period; empty while too little of it was measured.
        forecast_from: when there will be a forecast; None if there is one, or if nothing is measured.
        used_pct: largest used share of a limit, %.
        forecast_pct: largest expected share of a limit, %.
        holding: whether new pods wait.
        reason: why they do or do not.
        pods: number of pods that wait.
        jobs: number of Jobs that wait.
        period_end: when the period turns.
        problem: why the usage is unknown; None if it is known.
    """

    namespace: str
    name: str
    target: str
    period: str
    action: str
    limits: dict[str, float]
    used: dict[str, float]
    forecast: dict[str, float]
    forecast_from: str | None
    used_pct: float | None
    forecast_pct: float | None
    holding: bool | None
    reason: str | None
    pods: int | None
    jobs: int | None
    period_end: str | None
    problem: str | None


@dataclass(frozen=True)
class View:
    """Options of the command.

    Attributes:
        namespace: namespace of the budgets; empty for that of the context, None for all.
        output: table, wide, json or yaml.
        sort_by: name of the column to sort by.
        reverse: whether to reverse the order.
    """

    namespace: str | None
    output: str
    sort_by: str
    reverse: bool


COLUMNS: Mapping[str, Column[BudgetRow]] = {
    "namespace": text_column("NAMESPACE", lambda row: row.namespace, min_width=10),
    "name": text_column("BUDGET", lambda row: row.name, min_width=12),
    "limit": text_column("LIMIT", lambda row: _amounts_text(row.limits)),
    "period": text_column("PERIOD", lambda row: row.period),
    "used": number_column("USED", lambda row: row.used_pct, "{:.0f}%"),
    "forecast": number_column("FORECAST", lambda row: row.forecast_pct, "{:.0f}%"),
    "action": text_column("ACTION", lambda row: row.action, rank=1),
    "holding": text_column("HOLDING", lambda row: _YES_NO[row.holding]),
    "pods": number_column("PODS", lambda row: row.pods, "{:.0f}", rank=2),
    "jobs": number_column("JOBS", lambda row: row.jobs, "{:.0f}", rank=2),
    "ends": text_column("ENDS", lambda row: row.period_end, rank=3),
    "forecast-from": text_column("FORECAST-FROM", lambda row: row.forecast_from, wide=True),
    "target": text_column("FOR", lambda row: row.target, wide=True),
    "reason": text_column("REASON", lambda row: row.problem or row.reason, wide=True),
}


async def show_budgets(client: KubeClient, view: View) -> None:
    """Print the budgets.

    Raises:
        KubernetesError: the budgets cannot be listed.
    """
    namespace = view.namespace if view.namespace != "" else client.connection.namespace
    found = await client.list(ENERGY_BUDGETS, namespace=namespace)
    rows = sorted((budget_row(budget) for budget in found.items), key=lambda row: (row.namespace, row.name))
    rows = sorted_rows(rows, COLUMNS[view.sort_by], reverse=view.reverse)
    if view.output in {"json", "yaml"}:
        print_document({"budgets": [asdict(row) for row in rows]}, view.output)
        return
    out = console()
    shown = {name: column for name, column in COLUMNS.items() if name != "namespace" or namespace is None}
    lines = table_lines(shown, rows, out.width, wide=view.output == "wide") if rows else []
    out.print(Group(Text(_summary(rows, namespace)), *([Text(), *lines] if lines else [])), crop=False)


def budget_row(budget: EnergyBudget) -> BudgetRow:
    """Row of a budget."""
    spec, status = budget.spec, budget.status
    held, holding, known = status.held or BudgetHeld(), condition_of(budget, HOLDING), condition_of(budget, USAGE_KNOWN)
    target = [] if spec.target.owner is None else [f"{spec.target.owner.kind}/{spec.target.owner.name}"]
    target += [f"{key}={value}" for key, value in sorted(spec.target.match_labels.items())]
    return BudgetRow(
        namespace=budget.metadata.namespace,
        name=budget.metadata.name,
        target=",".join(target) or "all pods",
        period=f"rolling {spec.period}" if spec.window == WindowKind.ROLLING else spec.period,
        action=spec.action or BudgetResponse.REPORT.value,
        limits=_amounts(spec.limits.energy_kwh, spec.limits.emissions_g, spec.limits.cost),
        used=_of_status(status.used),
        forecast=_of_status(status.forecast),
        forecast_from=status.forecast_from,
        used_pct=status.used_pct,
        forecast_pct=status.forecast_pct,
        holding=None if holding is None else holding.status == "True",
        reason=None if holding is None else holding.message,
        pods=held.pods,
        jobs=held.jobs,
        period_end=status.period_end,
        problem=known.message if known is not None and known.status == "False" else None,
    )


def _of_status(amounts: BudgetAmounts | None) -> dict[str, float]:
    return {} if amounts is None else _amounts(amounts.energy_kwh, amounts.emissions_g, amounts.cost)


def _amounts(*values: float | None) -> dict[str, float]:
    return {key: value for key, value in zip(_UNITS, values, strict=True) if value is not None}


def _amounts_text(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{value:.4g} {_UNITS[key]}" for key, value in amounts.items())


def _summary(rows: Sequence[BudgetRow], namespace: str | None) -> str:
    if not rows:
        where = "" if namespace is None else f" in namespace {namespace} (-A for all)"
        return f"No EnergyBudgets found{where}."
    parts = [f"{sum(bool(row.holding) for row in rows)} holding"]
    unknown = sum(row.problem is not None for row in rows)
    parts += [f"{unknown} of unknown usage"] if unknown else []
    early = sum(row.forecast_from is not None for row in rows)
    parts += [f"{early} without a forecast until a 24th of the period is measured"] if early else []
    return f"{format_count(len(rows), 'budget')}: {', '.join(parts)}"


@click.group("budget", invoke_without_command=True)
@cluster_options
@namespace_options("budgets")
@table_options(COLUMNS, "name")
@click.pass_context
def budget(
    called: click.Context,
    kubeconfig: Path | None,
    context: str | None,
    namespace: str,
    all_namespaces: bool,
    output: str,
    sort_by: str,
    reverse: bool,
) -> None:
    """Show energy, emissions and cost budgets.

    One row per EnergyBudget. USED is the largest used share of a limit, and FORECAST the share expected at the end of
    the period at the present pace; - is unknown. HOLDING says whether new pods wait, PODS and JOBS how many do, and
    ENDS when the period turns. -o wide adds the reasons, -o json and -o yaml the amounts.
    """
    if called.invoked_subcommand is not None:
        return
    view = View(None if all_namespaces else namespace, output, sort_by, reverse)
    run_with_client(lambda client: show_budgets(client, view), kubeconfig=kubeconfig, context=context)


budget.add_command(power)
