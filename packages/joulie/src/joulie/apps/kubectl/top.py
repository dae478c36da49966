"""`kubectl joulie top`: who draws how much, as the operator knows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from rich.console import Group
from rich.text import Text

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.program_api.power import MOST_ITEMS, POWER_PATH, Item
from joulie.apps.kubectl.columns import Column, age, aged, count, laid_out, measured, named, sorted_rows, watts
from joulie.apps.kubectl.leader import Whereabouts, ask_leader
from joulie.apps.kubectl.table import console
from joulie.domain.quantities import joules_to_kwh
from joulie.program.documents import print_document

_WH_PER_KWH = 1000.0
_QUALITY_STYLES = {"stale": "yellow", "missing": "red"}


class Row(Item, frozen=True, omit_defaults=True, rename="camel"):
    """A line of the operator's answer, and what follows from it.

    Attributes:
        share_pct: of the power of all that are listed, percent.
        energy_kwh: since the operator leads, kWh.
    """

    share_pct: float | None = None
    energy_kwh: float | None = None


class Answer(msgspec.Struct, frozen=True):
    """The operator's answer.

    Attributes:
        items: largest power first.
        since: when energy began to be counted, s since the epoch; None before the first poll.
    """

    items: list[Row] = []
    since: float | None = None


@dataclass(frozen=True)
class Question:
    """What to show.

    Attributes:
        kind: nodes, pods or namespaces.
        namespace: of pods; empty for the context's, None for all.
        form: table, wide, json or yaml.
        sort_by: name of a column.
        reverse: the other way round.
        limit: rows at most.
        where: the operator.
    """

    kind: str
    namespace: str | None
    form: str
    sort_by: str
    reverse: bool
    limit: int
    where: Whereabouts


def _range(row: Row) -> str | None:
    return None if row.low_w is None or row.high_w is None else f"{row.low_w:.0f}-{row.high_w:.0f}W"


def _energy(energy_kwh: float | None) -> str:
    """An energy in the unit that suits it."""
    if energy_kwh is None:
        return "-"
    return f"{energy_kwh * _WH_PER_KWH:.1f} Wh" if energy_kwh < 1.0 else f"{energy_kwh:.2f} kWh"


def _quality_style(row: Row) -> str:
    return _QUALITY_STYLES.get(row.quality or "", "")


def _watts(title: str, value: Callable[[Row], float | None], *, rank: int = 0, wide: bool = False) -> Column[Row]:
    return measured(title, value, "{:.0f}W", rank=rank, wide=wide)


_POWER = _watts("POWER", lambda row: row.power_w)
_SHARE: Column[Row] = measured("SHARE", lambda row: row.share_pct, "{:.0f}%", rank=3)
_ENERGY: Column[Row] = replace(
    measured("ENERGY", lambda row: row.energy_kwh), text=lambda row: _energy(row.energy_kwh).replace(" ", "")
)
_PROVENANCE: Mapping[str, Column[Row]] = {
    "range": named("RANGE", _range, rank=2),
    "cpu": _watts("CPU", lambda row: row.cpu_w, rank=5),
    "gpu": _watts("GPU", lambda row: row.gpu_w, rank=4),
    "energy": _ENERGY,
    "share": _SHARE,
    "source": named("SOURCE", lambda row: row.source, rank=1),
    "quality": replace(named("QUALITY", lambda row: row.quality), style=_quality_style),
    "weights": named("SHARED BY", lambda row: row.weight_source, wide=True),
    "age": aged("AGE", lambda row: row.age_s, rank=6),
}
COLUMNS: Mapping[str, Mapping[str, Column[Row]]] = {
    "nodes": {
        "name": named("NODE", lambda row: row.name, least=20),
        "power": _POWER,
        "idle": _watts("IDLE", lambda row: row.idle_w, wide=True),
        "system": _watts("SYSTEM", lambda row: row.system_w, wide=True),
        **_PROVENANCE,
    },
    "pods": {
        "namespace": named("NAMESPACE", lambda row: row.namespace, least=12),
        "name": named("POD", lambda row: row.name, least=20),
        "node": named("NODE", lambda row: row.node, rank=7, least=12),
        "power": _POWER,
        **_PROVENANCE,
    },
    "namespaces": {
        "name": named("NAMESPACE", lambda row: row.name, least=20),
        "pods": measured("PODS", lambda row: row.pods),
        "unknown": measured("UNKNOWN", lambda row: row.unknown_pods, rank=1),
        "power": _POWER,
        "energy": _ENERGY,
        "share": _SHARE,
    },
}


async def show_top(client: KubeClient, question: Question) -> None:
    """Print who draws how much.

    Raises:
        KubernetesError: the operator cannot be asked.
    """
    query = {"kind": question.kind, "limit": str(MOST_ITEMS)}
    namespace = question.namespace
    if question.kind == "pods" and namespace is not None:
        namespace = query["namespace"] = namespace or client.connection.namespace
    try:
        answer = msgspec.convert(await ask_leader(client, question.where, POWER_PATH, query), Answer)
    except msgspec.ValidationError as error:
        raise KubernetesError(f"{POWER_PATH}: the operator's answer is not as expected: {error}") from error
    items = _with_shares(answer.items)
    rows = sorted_rows(items, COLUMNS[question.kind][question.sort_by], reverse=question.reverse)[: question.limit]
    if question.form in {"json", "yaml"}:
        document = {"kind": question.kind, "total": _total(items, answer.since), "items": msgspec.to_builtins(rows)}
        print_document(document, question.form)
        return
    out = console()
    lines = _lines(question.kind, namespace, items, answer.since)
    more = [Text(f"and {len(items) - len(rows)} more (--limit)", style="dim")] if len(items) > len(rows) else []
    wide = question.form == "wide"
    # Without estimates there are no intervals, and of one namespace nobody needs the name in every row.
    told = wide or any(item.low_w is not None for item in items)
    hidden = set() if told else {"range"}
    hidden |= {"namespace"} if question.kind == "pods" and namespace is not None else set()
    columns = {name: column for name, column in COLUMNS[question.kind].items() if name not in hidden}
    table = laid_out(columns, rows, out.width, wide=wide)
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
    """Sums over everything that is listed; missing is not zero."""
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
    """The total, for people."""
    if since_s is None:
        return ["The operator has not measured anything yet: try again in half a minute."]
    if not items:
        where = f" in namespace {namespace}" if kind == "pods" and namespace is not None else ""
        return [f"The operator knows of no {'running ' if kind == 'pods' else ''}{kind}{where}."]
    total = _total(items, since_s)
    known = "unknown power" if total["powerW"] is None else watts(total["powerW"])
    energy = "" if total["energyKwh"] is None else f", {_energy(total['energyKwh'])}"
    lines = [
        f"{count(len(items), kind.removesuffix('s'))}: {known}{energy} in {age(time.time() - since_s)}"
        " since the operator leads"
    ]
    if total["unknown"]:
        lines.append(f"power not known of {total['unknown']}")
    if len(items) == MOST_ITEMS:
        lines.append(f"these are the {MOST_ITEMS} that draw most")
    return lines
