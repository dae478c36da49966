"""`kubectl joulie top`: power and energy of nodes, pods and namespaces, from the operator."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Group
from rich.text import Text

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.program_api.power import MAX_ITEMS, POWER_PATH, Item
from joulie.apps.kubectl.columns import (
    Column,
    age_column,
    format_age,
    format_count,
    format_power,
    number_column,
    sorted_rows,
    table_lines,
    text_column,
)
from joulie.apps.kubectl.leader import LeaderEndpoint, query_leader
from joulie.apps.kubectl.options import (
    Command,
    Decorator,
    cluster_options,
    limit_option,
    namespace_options,
    operator_endpoint,
    operator_options,
    run_with_client,
    table_options,
)
from joulie.apps.kubectl.table import console
from joulie.domain.quantities import joules_to_kwh
from joulie.program.documents import print_document

_WH_PER_KWH = 1000.0
_QUALITY_STYLES = {"stale": "yellow", "missing": "red"}


class Row(Item, frozen=True, omit_defaults=True, rename="camel"):
    """An item of the operator's response, with derived values.

    Attributes:
        share_pct: share of the total power of all items, percent; None if the power is unknown.
        energy_kwh: energy since the operator became leader, kWh; None if unknown.
    """

    share_pct: float | None = None
    energy_kwh: float | None = None


class Answer(msgspec.Struct, frozen=True):
    """Response of the operator.

    Attributes:
        items: nodes, pods or namespaces, largest power first.
        since: start of energy counting, s since the epoch; None before the first poll.
    """

    items: list[Row] = []
    since: float | None = None


@dataclass(frozen=True)
class Request:
    """Options of the command.

    Attributes:
        kind: nodes, pods or namespaces.
        namespace: namespace of pods; empty for that of the context, None for all.
        output: table, wide, json or yaml.
        sort_by: name of the column to sort by.
        reverse: whether to reverse the order.
        limit: maximum number of rows.
        endpoint: address of the operator.
    """

    kind: str
    namespace: str | None
    output: str
    sort_by: str
    reverse: bool
    limit: int
    endpoint: LeaderEndpoint


def _range(row: Row) -> str | None:
    return None if row.low_w is None or row.high_w is None else f"{row.low_w:.0f}-{row.high_w:.0f}W"


def _energy(energy_kwh: float | None) -> str:
    """An energy in Wh or kWh; "-" for None."""
    if energy_kwh is None:
        return "-"
    return f"{energy_kwh * _WH_PER_KWH:.1f} Wh" if energy_kwh < 1.0 else f"{energy_kwh:.2f} kWh"


def _quality_style(row: Row) -> str:
    return _QUALITY_STYLES.get(row.quality or "", "")


def _power_column(
    title: str, value: Callable[[Row], float | None], *, rank: int = 0, wide: bool = False
) -> Column[Row]:
    return number_column(title, value, "{:.0f}W", rank=rank, wide=wide)


_POWER = _power_column("POWER", lambda row: row.power_w)
_SHARE: Column[Row] = number_column("SHARE", lambda row: row.share_pct, "{:.0f}%", rank=3)
_ENERGY: Column[Row] = replace(
    number_column("ENERGY", lambda row: row.energy_kwh), text=lambda row: _energy(row.energy_kwh).replace(" ", "")
)
_PROVENANCE: Mapping[str, Column[Row]] = {
    "range": text_column("RANGE", _range, rank=2),
    "cpu": _power_column("CPU", lambda row: row.cpu_w, rank=5),
    "gpu": _power_column("GPU", lambda row: row.gpu_w, rank=4),
    "energy": _ENERGY,
    "share": _SHARE,
    "source": text_column("SOURCE", lambda row: row.source, rank=1),
    "quality": replace(text_column("QUALITY", lambda row: row.quality), style=_quality_style),
    "weights": text_column("SHARED BY", lambda row: row.weight_source, wide=True),
    "age": age_column("AGE", lambda row: row.age_s, rank=6),
}
COLUMNS: Mapping[str, Mapping[str, Column[Row]]] = {
    "nodes": {
        "name": text_column("NODE", lambda row: row.name, min_width=20),
        "power": _POWER,
        "idle": _power_column("IDLE", lambda row: row.idle_w, wide=True),
        "system": _power_column("SYSTEM", lambda row: row.system_w, wide=True),
        **_PROVENANCE,
    },
    "pods": {
        "namespace": text_column("NAMESPACE", lambda row: row.namespace, min_width=12),
        "name": text_column("POD", lambda row: row.name, min_width=20),
        "node": text_column("NODE", lambda row: row.node, rank=7, min_width=12),
        "power": _POWER,
        **_PROVENANCE,
    },
    "namespaces": {
        "name": text_column("NAMESPACE", lambda row: row.name, min_width=20),
        "pods": number_column("PODS", lambda row: row.pods),
        "unknown": number_column("UNKNOWN", lambda row: row.unknown_pods, rank=1),
        "power": _POWER,
        "energy": _ENERGY,
        "share": _SHARE,
    },
}


async def show_top(client: KubeClient, request: Request) -> None:
    """Print power and energy by node, pod or namespace.

    Raises:
        KubernetesError: the operator cannot be queried.
    """
    query = {"kind": request.kind, "limit": str(MAX_ITEMS)}
    namespace = request.namespace
    if request.kind == "pods" and namespace is not None:
        namespace = query["namespace"] = namespace or client.connection.namespace
    try:
        answer = msgspec.convert(await query_leader(client, request.endpoint, POWER_PATH, query), Answer)
    except msgspec.ValidationError as error:
        raise KubernetesError(f"{POWER_PATH}: unexpected response from the operator: {error}") from error
    items = _with_shares(answer.items)
    rows = sorted_rows(items, COLUMNS[request.kind][request.sort_by], reverse=request.reverse)[: request.limit]
    if request.output in {"json", "yaml"}:
        document = {"kind": request.kind, "total": _total(items, answer.since), "items": msgspec.to_builtins(rows)}
        print_document(document, request.output)
        return
    out = console()
    lines = _lines(request.kind, namespace, items, answer.since)
    more = [Text(f"and {len(items) - len(rows)} more (--limit)", style="dim")] if len(items) > len(rows) else []
    wide = request.output == "wide"
    # Measured values have no range; with a single namespace its name is the same in every row.
    has_range = wide or any(item.low_w is not None for item in items)
    hidden = set() if has_range else {"range"}
    hidden |= {"namespace"} if request.kind == "pods" and namespace is not None else set()
    columns = {name: column for name, column in COLUMNS[request.kind].items() if name not in hidden}
    table = table_lines(columns, rows, out.width, wide=wide)
    out.print(Group(*map(Text, lines), *([Text(), *table] if rows else []), *more), crop=False)


def _with_shares(items: Sequence[Row]) -> list[Row]:
    total_w = sum(item.power_w for item in items if item.power_w is not None)
    return [
        msgspec.structs.replace(
            item,
            share_pct=None if item.power_w is None or total_w <= 0.0 else item.power_w / total_w * 100.0,
            energy_kwh=None if item.energy_j is None else joules_to_kwh(item.energy_j),
        )
        for item in items
    ]


def _total(items: Sequence[Row], since_s: float | None) -> dict[str, Any]:
    """Sums over all items; None if no item has a value, which is not zero."""
    power = [item.power_w for item in items if item.power_w is not None]
    energy = [item.energy_kwh for item in items if item.energy_kwh is not None]
    return {
        "count": len(items),
        "powerW": sum(power) if power else None,
        "energyKwh": sum(energy) if energy else None,
        "unknown": len(items) - len(power),
        "since": None if since_s is None else rfc3339(since_s),
    }


def _lines(kind: str, namespace: str | None, items: Sequence[Row], since_s: float | None) -> list[str]:
    """Summary lines: the total, and how many items have no known power."""
    if since_s is None:
        return ["The operator has no measurement yet: try again in half a minute."]
    if not items:
        where = f" in namespace {namespace}" if kind == "pods" and namespace is not None else ""
        return [f"No {'running ' if kind == 'pods' else ''}{kind} found{where}."]
    total = _total(items, since_s)
    known = "unknown power" if total["powerW"] is None else format_power(total["powerW"])
    energy = "" if total["energyKwh"] is None else f", {_energy(total['energyKwh'])}"
    lines = [
        f"{format_count(len(items), kind.removesuffix('s'))}: {known}{energy} in {format_age(time.time() - since_s)}"
        " since the operator became leader"
    ]
    if total["unknown"]:
        lines.append(f"power unknown for {total['unknown']}")
    if len(items) == MAX_ITEMS:
        lines.append(f"only the {MAX_ITEMS} with the highest power are listed")
    return lines


@click.group("top")
def top() -> None:
    """Show power and energy of nodes, pods or namespaces."""


def _top_options(kind: str) -> Decorator:
    """Options of all `top` commands."""

    def decorate(command: Command) -> Command:
        table = table_options(COLUMNS[kind], "power")
        return cluster_options(table(limit_option(operator_options(command))))

    return decorate


def _show_top(
    kind: str, namespace: str | None, *, kubeconfig: Path | None, context: str | None, **options: Any
) -> None:
    request = Request(
        kind,
        namespace,
        options["output"],
        options["sort_by"],
        options["reverse"],
        options["limit"],
        operator_endpoint(options),
    )
    run_with_client(lambda client: show_top(client, request), kubeconfig=kubeconfig, context=context)


@top.command("nodes")
@_top_options("nodes")
def top_nodes(**options: Any) -> None:
    """Show the power of nodes, highest first.

    Prints the total and one row per node. RANGE is the 90 % interval of the power where it is estimated and not
    measured. SHARE is the share of the total. ENERGY is counted since the operator became leader. SOURCE is the source
    of the measurement, and QUALITY says whether the sample is fresh, stale or missing. -o wide adds the idle power of
    the node and the power that no pod accounts for.
    """
    _show_top("nodes", None, **options)


@top.command("pods")
@_top_options("pods")
@namespace_options()
def top_pods(namespace: str, all_namespaces: bool, **options: Any) -> None:
    """Show the power of pods, highest first.

    A pod's power is its share of the node's power above idle, plus the power of the GPUs that it holds. An unknown
    power is shown as -, which is not zero. The columns are those of `top nodes`; -o wide adds the measurement by which
    the node's power is divided among pods.
    """
    _show_top("pods", None if all_namespaces else namespace, **options)


@top.command("namespaces")
@_top_options("namespaces")
def top_namespaces(**options: Any) -> None:
    """Show the power of namespaces, highest first.

    POWER is the sum over the pods with known power; UNKNOWN is the number of the others.
    """
    _show_top("namespaces", None, **options)
