"""`kubectl joulie status`: energy state of the nodes, printed once or updated continuously."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Group
from rich.live import Live
from rich.text import Text

from joulie.adapters.kubernetes.api.core import Node, Pod
from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.adapters.kubernetes.cache import Cache
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import NODE_TWINS, NODES, PODS
from joulie.apps.kubectl.agents import agent_nodes
from joulie.apps.kubectl.columns import sorted_rows, table_lines
from joulie.apps.kubectl.options import cluster_options, run_with_client, table_options
from joulie.apps.kubectl.overview import (
    COLUMNS,
    BoundPod,
    NodeRow,
    bound_pod,
    document,
    node_rows,
    planned_text,
    summary,
    summary_lines,
)
from joulie.apps.kubectl.table import console

_REFRESH_S = 1.0
_BOUND_PODS = "spec.nodeName!="


@dataclass(frozen=True)
class View:
    """Options of the command.

    Attributes:
        selector: label selector of the nodes.
        output: table, wide, json or yaml.
        sort_by: name of the column to sort by.
        reverse: whether to reverse the order.
    """

    selector: str
    output: str
    sort_by: str
    reverse: bool


async def show_status(client: KubeClient, view: View) -> None:
    """Print the current state of the nodes."""
    rows = await _rows(client, view)
    if view.output == "json":
        click.echo(json.dumps(document(rows), indent=2))
    elif view.output == "yaml":
        click.echo(yaml.safe_dump(json.loads(json.dumps(document(rows))), sort_keys=False).rstrip())
    else:
        out = console()
        out.print(_page(rows, view, out.width), crop=False)


async def watch_status(client: KubeClient, view: View) -> None:
    """Show the current state of the nodes until interrupted."""
    # List once first: errors that a cache retries forever (no permission, no CRDs) are reported immediately.
    await _rows(client, view)
    nodes: Cache[Node, Node] = Cache(client, NODES, lambda node: node, label_selector=view.selector)
    twins: Cache[NodeTwin, NodeTwin] = Cache(client, NODE_TWINS, lambda twin: twin)
    pods: Cache[Pod, BoundPod] = Cache(client, PODS, bound_pod, field_selector=_BOUND_PODS)
    caches: dict[str, Cache[Any, Any]] = {"nodes": nodes, "nodetwins": twins, "pods": pods}
    out = console()
    async with asyncio.TaskGroup() as tasks:
        for cache in caches.values():
            tasks.create_task(cache.run())
        for cache in caches.values():
            await cache.wait_synced()
        with Live(console=out, auto_refresh=False) as live:
            while True:
                rows = _rows_of(nodes.objects.values(), twins.objects.values(), list(pods.objects.values()))
                problems = [f"outdated: {name}: {cache.problem}" for name, cache in caches.items() if cache.problem]
                live.update(_page(_ordered(rows, view), view, out.width, problems), refresh=True)
                await asyncio.sleep(_REFRESH_S)


async def _rows(client: KubeClient, view: View) -> list[NodeRow]:
    nodes = await client.list(NODES, label_selector=view.selector)
    twins = await client.list(NODE_TWINS)
    pods = await client.list(PODS, field_selector=_BOUND_PODS)
    return _ordered(_rows_of(nodes.items, twins.items, [bound_pod(pod) for pod in pods.items]), view)


def _rows_of(nodes: Iterable[Node], twins: Iterable[NodeTwin], pods: Sequence[BoundPod]) -> list[NodeRow]:
    return node_rows(nodes, twins, pods, time.time(), agents=agent_nodes(pod.agent for pod in pods))


def _ordered(rows: Sequence[NodeRow], view: View) -> list[NodeRow]:
    return sorted_rows(rows, COLUMNS[view.sort_by], reverse=view.reverse)


def _page(rows: Sequence[NodeRow], view: View, width: int, problems: Sequence[str] = ()) -> Group:
    lines = [Text(line) for line in summary_lines(summary(rows))] + [Text(line, style="red") for line in problems]
    if not rows:
        return Group(*lines)
    wide = view.output == "wide"
    notes = [Text(f"{row.name}: {note}", style="dim") for row in rows for note in row.notes] if wide else []
    # Only nodes in observe mode have a plan that is not applied, and few clusters have nodes that sleep.
    used = {
        "planned": any(planned_text(row) is not None for row in rows),
        "sleep": any(row.sleep is not None for row in rows),
    }
    columns = {name: column for name, column in COLUMNS.items() if used.get(name, True)}
    return Group(*lines, Text(), *table_lines(columns, rows, width, wide=wide), *([Text(), *notes] if notes else []))


@click.command("status")
@cluster_options
@click.option("-l", "--selector", default="", help="Label selector of the nodes to show.")
@table_options(COLUMNS, "name")
@click.option("-W", "--watch", is_flag=True, help="Update the table continuously until interrupted.")
def status(
    kubeconfig: Path | None,
    context: str | None,
    selector: str,
    output: str,
    sort_by: str,
    reverse: bool,
    watch: bool,
) -> None:
    """Show the energy state of the nodes.

    Prints a summary and one row per node. HEADROOM is the power left below the caps and COOLING the share of cooling
    capacity in use, both 0 to 100. CPU%, MEM% and GPU% are requests relative to the node's allocatable resources; caps
    are per CPU package and per GPU. SOURCE is the source of the power measurement and AGE the age of the twin.
    """
    if watch and output not in {"table", "wide"}:
        raise click.UsageError("-W requires -o table or wide")
    view = View(selector=selector, output=output, sort_by=sort_by, reverse=reverse)
    run_with_client(
        lambda client: watch_status(client, view) if watch else show_status(client, view),
        kubeconfig=kubeconfig,
        context=context,
    )
