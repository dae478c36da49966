"""`kubectl joulie budget power`: PowerBudgets with what their nodes draw, could draw and give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import msgspec
from rich.console import Group
from rich.text import Text

from joulie.adapters.kubernetes.api.v1alpha1 import Condition, PowerBudget
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import POWER_BUDGETS
from joulie.apps.kubectl.columns import (
    Column,
    format_count,
    number_column,
    sorted_rows,
    table_lines,
    text_column,
)
from joulie.apps.kubectl.options import cluster_options, run_with_client, table_options
from joulie.apps.kubectl.table import console
from joulie.domain.mode import Mode
from joulie.program.documents import print_document


class PowerEventItem(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What an event that reduces a PowerBudget achieved, in the command and in the API of the web interface.

    Attributes:
        name: its name.
        limit_w: limit during it, W.
        mean_w: mean power so far, W.
        complied_s: time from its start until the nodes drew no more for good, s.
        shed_w: baseline less mean power, W.
    """

    name: str
    limit_w: float
    mean_w: float | None
    complied_s: float | None
    shed_w: float | None


@dataclass(frozen=True)
class PowerBudgetRow:
    """One PowerBudget; fields that are unknown are None.

    Attributes:
        name: name of the budget.
        nodes_of: labels of the nodes that it covers.
        mode: enforce or observe.
        limit_w: limit in force, W.
        limit_reason: what decides it: spec, schedule, signal or the name of an event.
        spec_w: limit without schedule, signal and events, W.
        measured_w: what the nodes draw, W.
        worst_case_w: what they could draw under the limits in force, W.
        headroom_w: limit less worst case, W.
        pod_headroom_w: what is left for pods that need full power, W; negative where limits are not enough.
        nodes: number of nodes.
        curtailed: number of nodes that may draw less than they could.
        enforced: whether it is kept.
        reason: why it is or is not, in one word.
        message: the same in a sentence.
        blind: nodes without a fresh reading, in words; None without any.
        events: what events that reduce it achieved.
    """

    name: str
    nodes_of: str
    mode: str
    limit_w: float
    limit_reason: str | None
    spec_w: float
    measured_w: float | None
    worst_case_w: float | None
    headroom_w: float | None
    pod_headroom_w: float | None
    nodes: int | None
    curtailed: int | None
    enforced: bool | None
    reason: str | None
    message: str | None
    blind: str | None
    events: tuple[PowerEventItem, ...] = ()


@dataclass(frozen=True)
class View:
    """Options of the command.

    Attributes:
        output: table, wide, json or yaml.
        sort_by: name of the column to sort by.
        reverse: whether to reverse the order.
    """

    output: str
    sort_by: str
    reverse: bool


COLUMNS: Mapping[str, Column[PowerBudgetRow]] = {
    "name": text_column("BUDGET", lambda row: row.name, min_width=12),
    "limit": number_column("LIMIT-W", lambda row: row.limit_w, "{:.0f}"),
    "measured": number_column("DRAWN-W", lambda row: row.measured_w, "{:.0f}"),
    "worst": number_column("WORST-W", lambda row: row.worst_case_w, "{:.0f}"),
    "headroom": number_column("FREE-W", lambda row: row.headroom_w, "{:.0f}", rank=2),
    "pods": number_column("PODS-W", lambda row: row.pod_headroom_w, "{:.0f}", wide=True),
    "nodes": number_column("NODES", lambda row: row.nodes, "{:.0f}", rank=1),
    "curtailed": number_column("CURTAILED", lambda row: row.curtailed, "{:.0f}"),
    "reason": text_column("STATE", lambda row: row.reason),
    "mode": text_column("MODE", lambda row: row.mode, wide=True),
    "by": text_column("LIMIT-BY", lambda row: row.limit_reason, wide=True),
    "for": text_column("FOR", lambda row: row.nodes_of, wide=True),
    "why": text_column("WHY", lambda row: "; ".join(one for one in (row.message, row.blind) if one), wide=True),
}


async def show_power_budgets(client: KubeClient, view: View) -> None:
    """Print the PowerBudgets.

    Raises:
        KubernetesError: they cannot be listed.
    """
    found = await client.list(POWER_BUDGETS)
    rows = sorted((power_budget_row(budget) for budget in found.items), key=lambda row: row.name)
    rows = sorted_rows(rows, COLUMNS[view.sort_by], reverse=view.reverse)
    if view.output in {"json", "yaml"}:
        items = [asdict(row) | {"events": [msgspec.structs.asdict(one) for one in row.events]} for row in rows]
        print_document({"powerBudgets": items}, view.output)
        return
    out = console()
    lines = table_lines(COLUMNS, rows, out.width, wide=view.output == "wide") if rows else []
    out.print(Group(Text(_summary(rows)), *([Text(), *lines] if lines else [])), crop=False)


def power_budget_row(budget: PowerBudget) -> PowerBudgetRow:
    """Row of a PowerBudget."""
    spec, status = budget.spec, budget.status
    conditions: Mapping[str, Condition] = {one.type: one for one in status.conditions}
    enforced, blind = conditions.get("Enforced"), conditions.get("Blind")
    return PowerBudgetRow(
        name=budget.metadata.name,
        nodes_of=",".join(f"{key}={value}" for key, value in sorted(spec.node_selector.items())) or "all nodes",
        mode=spec.mode or Mode.ENFORCE.value,
        limit_w=spec.watts if status.limit_watts is None else status.limit_watts,
        limit_reason=status.limit_reason,
        spec_w=spec.watts,
        measured_w=status.measured_watts,
        worst_case_w=status.worst_case_watts,
        headroom_w=status.headroom_watts,
        pod_headroom_w=status.pod_headroom_watts,
        nodes=status.nodes,
        curtailed=status.curtailed_nodes,
        enforced=None if enforced is None else enforced.status == "True",
        reason=None if enforced is None else enforced.reason,
        message=None if enforced is None else enforced.message,
        blind=blind.message if blind is not None and blind.status == "True" else None,
        events=tuple(
            PowerEventItem(
                name=one.name,
                limit_w=one.limit_watts,
                mean_w=one.mean_watts,
                complied_s=one.complied_seconds,
                shed_w=one.shed_watts,
            )
            for one in status.reductions
        ),
    )


def _summary(rows: Sequence[PowerBudgetRow]) -> str:
    if not rows:
        return "No PowerBudgets found."
    return f"{format_count(len(rows), 'power budget')}: {sum(bool(row.enforced) for row in rows)} kept"


@click.command("power")
@cluster_options
@table_options(COLUMNS, "name")
def power(kubeconfig: Path | None, context: str | None, output: str, sort_by: str, reverse: bool) -> None:
    """Show power budgets.

    One row per PowerBudget. DRAWN-W is what its nodes draw, WORST-W what they could draw under the limits in force,
    and CURTAILED how many may draw less than they could; - is unknown. STATE is the reason of the condition Enforced.
    -o wide adds the message, and how many nodes have no fresh reading.
    """
    view = View(output, sort_by, reverse)
    run_with_client(lambda client: show_power_budgets(client, view), kubeconfig=kubeconfig, context=context)
