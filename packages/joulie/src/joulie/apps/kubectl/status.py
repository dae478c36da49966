"""`kubectl joulie status`: energy state of the nodes, printed once or updated continuously."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
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
from joulie.adapters.kubernetes.pods import PodFacts, pod_facts
from joulie.adapters.kubernetes.resources import NODE_TWINS, NODES, PODS
from joulie.apps.kubectl.columns import sorted_rows, table_lines
from joulie.apps.kubectl.overview import COLUMNS, NodeRow, document, node_rows, summary, summary_lines
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
    pods: Cache[Pod, PodFacts] = Cache(client, PODS, pod_facts, field_selector=_BOUND_PODS)
    caches: dict[str, Cache[Any, Any]] = {"nodes": nodes, "nodetwins": twins, "pods": pods}
    out = console()
    async with asyncio.TaskGroup() as tasks:
        for cache in caches.values():
            tasks.create_task(cache.run())
        for cache in caches.values():
            await cache.wait_synced()
        with Live(console=out, auto_refresh=False) as live:
            while True:
                rows = node_rows(nodes.objects.values(), twins.objects.values(), pods.objects.values(), time.time())
                problems = [f"outdated: {name}: {cache.problem}" for name, cache in caches.items() if cache.problem]
                live.update(_page(_ordered(rows, view), view, out.width, problems), refresh=True)
                await asyncio.sleep(_REFRESH_S)


async def _rows(client: KubeClient, view: View) -> list[NodeRow]:
    nodes = await client.list(NODES, label_selector=view.selector)
    twins = await client.list(NODE_TWINS)
    pods = await client.list(PODS, field_selector=_BOUND_PODS)
    return _ordered(node_rows(nodes.items, twins.items, map(pod_facts, pods.items), time.time()), view)


def _ordered(rows: Sequence[NodeRow], view: View) -> list[NodeRow]:
    return sorted_rows(rows, COLUMNS[view.sort_by], reverse=view.reverse)


def _page(rows: Sequence[NodeRow], view: View, width: int, problems: Sequence[str] = ()) -> Group:
    lines = [Text(line) for line in summary_lines(summary(rows))] + [Text(line, style="red") for line in problems]
    if not rows:
        return Group(*lines)
    wide = view.output == "wide"
    notes = [Text(f"{row.name}: {note}", style="dim") for row in rows for note in row.notes] if wide else []
    return Group(*lines, Text(), *table_lines(COLUMNS, rows, width, wide=wide), *([Text(), *notes] if notes else []))
