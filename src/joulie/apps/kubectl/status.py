"""`kubectl joulie status`: lists once, or watches."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import click
import yaml
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from joulie.adapters.kubernetes.api.core import Node, Pod
from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin
from joulie.adapters.kubernetes.cache import Cache
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.pods import PodFacts, pod_facts
from joulie.adapters.kubernetes.resources import NODE_TWINS, NODES, PODS
from joulie.apps.kubectl.overview import (
    COLUMNS,
    NodeRow,
    document,
    node_rows,
    sorted_rows,
    summary,
    summary_lines,
)

_REFRESH_S = 1.0
_UNLIMITED_WIDTH = 500
_STYLES = {"performance": "green", "eco": "cyan", "draining": "yellow", "unknown": "dim"}


@dataclass(frozen=True)
class View:
    """What to show.

    Attributes:
        selector: label selector of the nodes.
        form: table, wide, json or yaml.
        sort_by: name of a column.
        reverse: the other way round.
    """

    selector: str
    form: str
    sort_by: str
    reverse: bool


async def show_status(client: KubeClient, view: View) -> None:
    """Print the state of now."""
    nodes = await client.list(NODES, label_selector=view.selector)
    twins = await client.list(NODE_TWINS)
    pods = await client.list(PODS, field_selector="spec.nodeName!=")
    rows = node_rows(nodes.items, twins.items, map(pod_facts, pods.items), time.time())
    rows = sorted_rows(rows, view.sort_by, reverse=view.reverse)
    if view.form == "json":
        click.echo(json.dumps(document(rows), indent=2))
    elif view.form == "yaml":
        click.echo(yaml.safe_dump(document(rows), sort_keys=False).rstrip())
    else:
        console = _console()
        console.print(_page(rows, view))


async def watch_status(client: KubeClient, view: View) -> None:
    """Show the state of now until interrupted."""
    nodes: Cache[Node, Node] = Cache(client, NODES, lambda node: node, label_selector=view.selector)
    twins: Cache[NodeTwin, NodeTwin] = Cache(client, NODE_TWINS, lambda twin: twin)
    pods: Cache[Pod, PodFacts] = Cache(client, PODS, pod_facts, field_selector="spec.nodeName!=")
    async with asyncio.TaskGroup() as tasks:
        for watching in (nodes.run, twins.run, pods.run):
            tasks.create_task(watching())
        for synced in (nodes.wait_synced, twins.wait_synced, pods.wait_synced):
            await synced()
        with Live(console=Console(), auto_refresh=False, screen=False) as live:
            while True:
                rows = node_rows(nodes.objects.values(), twins.objects.values(), pods.objects.values(), time.time())
                live.update(_page(sorted_rows(rows, view.sort_by, reverse=view.reverse), view), refresh=True)
                await asyncio.sleep(_REFRESH_S)


def _console() -> Console:
    """A console that never breaks the lines of what goes into a file or pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=_UNLIMITED_WIDTH)


def _page(rows: Sequence[NodeRow], view: View) -> Group:
    lines = [Text(line) for line in summary_lines(summary(rows))]
    columns = [column for column in COLUMNS.values() if view.form == "wide" or not column.wide]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.title, no_wrap=True)
    for row in rows:
        style = _STYLES.get(row.schedulable_class, "")
        cells = [Text(column.text(row), style=style if column.title == "CLASS" else "") for column in columns]
        table.add_row(*cells)
    notes = [Text(f"{row.name}: {row.note}", style="dim") for row in rows if row.note and view.form == "wide"]
    return Group(*lines, Text(), table, *([Text(), *notes] if notes else []))
