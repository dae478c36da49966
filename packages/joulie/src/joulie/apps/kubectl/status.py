"""`kubectl joulie status`: lists once, or watches."""

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
from joulie.apps.kubectl.columns import laid_out, sorted_rows
from joulie.apps.kubectl.overview import COLUMNS, NodeRow, document, node_rows, summary, summary_lines
from joulie.apps.kubectl.table import console

_REFRESH_S = 1.0
_ON_NODES = "spec.nodeName!="


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
    rows = await _rows(client, view)
    if view.form == "json":
        click.echo(json.dumps(document(rows), indent=2))
    elif view.form == "yaml":
        click.echo(yaml.safe_dump(json.loads(json.dumps(document(rows))), sort_keys=False).rstrip())
    else:
        out = console()
        out.print(_page(rows, view, out.width), crop=False)


async def watch_status(client: KubeClient, view: View) -> None:
    """Show the state of now until interrupted."""
    # What a cache would try again for ever (no rights, no CRDs) shall be said at once.
    await _rows(client, view)
    nodes: Cache[Node, Node] = Cache(client, NODES, lambda node: node, label_selector=view.selector)
    twins: Cache[NodeTwin, NodeTwin] = Cache(client, NODE_TWINS, lambda twin: twin)
    pods: Cache[Pod, PodFacts] = Cache(client, PODS, pod_facts, field_selector=_ON_NODES)
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
                problems = [f"not current: {name}: {cache.problem}" for name, cache in caches.items() if cache.problem]
                live.update(_page(_ordered(rows, view), view, out.width, problems), refresh=True)
                await asyncio.sleep(_REFRESH_S)


async def _rows(client: KubeClient, view: View) -> list[NodeRow]:
    nodes = await client.list(NODES, label_selector=view.selector)
    twins = await client.list(NODE_TWINS)
    pods = await client.list(PODS, field_selector=_ON_NODES)
    return _ordered(node_rows(nodes.items, twins.items, map(pod_facts, pods.items), time.time()), view)


def _ordered(rows: Sequence[NodeRow], view: View) -> list[NodeRow]:
    return sorted_rows(rows, COLUMNS[view.sort_by], reverse=view.reverse)


def _page(rows: Sequence[NodeRow], view: View, width: int, problems: Sequence[str] = ()) -> Group:
    lines = [Text(line) for line in summary_lines(summary(rows))] + [Text(line, style="red") for line in problems]
    if not rows:
        return Group(*lines)
    wide = view.form == "wide"
    notes = [Text(f"{row.name}: {note}", style="dim") for row in rows for note in row.notes] if wide else []
    return Group(*lines, Text(), *laid_out(COLUMNS, rows, width, wide=wide), *([Text(), *notes] if notes else []))
