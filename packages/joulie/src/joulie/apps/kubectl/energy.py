"""`kubectl joulie energy`: who has used how much energy, and what it emitted and cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from rich.console import Group
from rich.text import Text

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.program_api.energy import ENERGY_PATH, EnergyAnswer, EnergyItem
from joulie.apps.kubectl.accounting import AccountingAt, ask_accounting
from joulie.apps.kubectl.columns import Column, age, count, laid_out, measured, named, sorted_rows
from joulie.apps.kubectl.table import console
from joulie.domain.quantities import joules_to_kwh
from joulie.program.documents import print_document

_THINGS = {"pod": "pod", "job": "workload", "namespace": "namespace", "node": "node", "day": "day"}


@dataclass(frozen=True)
class Question:
    """What to show.

    Attributes:
        by: pod, job, namespace, node or day.
        namespace: of the pods; empty for the context's, None for all.
        since_s: how far back to look, s; None for all that is kept.
        form: table, wide, json or yaml.
        sort_by: name of a column.
        reverse: the other way round.
        limit: rows at most.
        where: the accounting program.
    """

    by: str
    namespace: str | None
    since_s: float | None
    form: str
    sort_by: str
    reverse: bool
    limit: int
    where: AccountingAt


def energy_text(energy_j: float) -> str:
    """An energy in the unit that suits it."""
    kwh = joules_to_kwh(energy_j)
    for least, factor, unit in ((1000.0, 1e-3, "MWh"), (1.0, 1.0, "kWh")):
        if abs(kwh) >= least:
            return f"{kwh * factor:.2f}{unit}"
    return f"{kwh * 1000.0:.1f}Wh"


def mass_text(mass_g: float) -> str:
    """A mass in the unit that suits it."""
    for least, unit in ((1e6, "t"), (1e3, "kg")):
        if abs(mass_g) >= least:
            return f"{mass_g / least:.2f}{unit}"
    return f"{mass_g:.1f}g"


def share_pct(part_j: float, whole_j: float) -> float | None:
    """What a part is of a whole, percent; None of nothing."""
    return part_j / whole_j * 100.0 if whole_j > 0.0 else None


def _known(item: EnergyItem, value: float, unknown_j: float) -> float | None:
    """A sum, unless nothing of it is known: then it is not zero."""
    return None if item.energy_j > 0.0 and unknown_j >= item.energy_j else value


def emissions_g(item: EnergyItem) -> float | None:
    """Emissions of the energy whose intensity is known, gCO2eq; None where that is none of it."""
    return _known(item, item.emissions_g, item.energy_without_intensity_j)


def cost(item: EnergyItem) -> float | None:
    """Cost of the energy whose price is known; None where that is none of it."""
    return _known(item, item.cost, item.energy_without_price_j)


def _joules(title: str, value: Callable[[EnergyItem], float], *, wide: bool = False) -> Column[EnergyItem]:
    return replace(measured(title, value, wide=wide), text=lambda item: energy_text(value(item)))


def _percent(title: str, part: Callable[[EnergyItem], float], *, rank: int, wide: bool = False) -> Column[EnergyItem]:
    return measured(title, lambda item: share_pct(part(item), item.energy_j), "{:.0f}%", rank=rank, wide=wide)


def _emissions_text(item: EnergyItem) -> str:
    mass_g = emissions_g(item)
    return "-" if mass_g is None else mass_text(mass_g)


_SUMS: Mapping[str, Column[EnergyItem]] = {
    "energy": _joules("ENERGY", lambda item: item.energy_j),
    "cpu": _joules("CPU", lambda item: item.cpu_j, wide=True),
    "memory": _joules("MEMORY", lambda item: item.mem_j, wide=True),
    "gpu": _joules("GPU", lambda item: item.gpu_j, wide=True),
    "emissions": replace(measured("CO2EQ", emissions_g), text=_emissions_text),
    "cost": measured("COST", cost, "{:.4f}", rank=1),
    "measured": _percent("MEASURED", lambda item: item.measured_j, rank=2),
    "unknown": _percent("NO-CO2", lambda item: item.energy_without_intensity_j, rank=3),
    "unpriced": _percent("NO-PRICE", lambda item: item.energy_without_price_j, rank=4, wide=True),
    "assumed": _percent("ASSUMED", lambda item: item.assumed_j, rank=5),
}
ORDERS = ("name", *_SUMS)
"""Columns that all tables have."""
_NAMESPACE: Column[EnergyItem] = named("NAMESPACE", lambda item: item.namespace, least=12)
COLUMNS: Mapping[str, Mapping[str, Column[EnergyItem]]] = {
    "pod": {
        "namespace": _NAMESPACE,
        "name": named("POD", lambda item: item.name, least=20),
        "node": named("NODE", lambda item: item.node, rank=6, least=12),
        **_SUMS,
    },
    "job": {
        "namespace": _NAMESPACE,
        "name": named("WORKLOAD", lambda item: f"{item.kind}/{item.name}" if item.kind else item.name, least=20),
        **_SUMS,
    },
    "namespace": {"name": named("NAMESPACE", lambda item: item.name, least=20), **_SUMS},
    "node": {"name": named("NODE", lambda item: item.name, least=20), **_SUMS},
    "day": {"name": named("DAY", lambda item: item.name), **_SUMS},
}


async def show_energy(client: KubeClient, question: Question) -> None:
    """Print who has used how much.

    Raises:
        KubernetesError: the accounting program cannot be asked.
    """
    query = query_of(client, question.namespace, question.since_s) | {"by": question.by}
    answer = await ask_accounting(client, question.where, ENERGY_PATH, query, EnergyAnswer)
    columns = COLUMNS[question.by]
    rows = sorted_rows(answer.items, columns[question.sort_by], reverse=question.reverse)[: question.limit]
    if question.form in {"json", "yaml"}:
        document = {
            "by": answer.by,
            "since": rfc3339(answer.since),
            "until": rfc3339(answer.until),
            "currency": answer.currency,
            "total": msgspec.to_builtins(total(answer.items)),
            "items": msgspec.to_builtins(rows),
        }
        print_document(document, question.form)
        return
    print_rows(_lines(question, answer), columns, rows, len(answer.items), wide=question.form == "wide")


def query_of(client: KubeClient, namespace: str | None, since_s: float | None) -> dict[str, str]:
    """The parameters that all questions have."""
    query = {} if since_s is None else {"since": f"{since_s:g}"}
    return query if namespace is None else query | {"namespace": namespace or client.connection.namespace}


def print_rows(
    lines: Sequence[str], columns: Mapping[str, Column[Any]], rows: Sequence[Any], found: int, *, wide: bool
) -> None:
    """Print sentences and a table below them."""
    out = console()
    more = [Text(f"and {found - len(rows)} more (--limit)", style="dim")] if found > len(rows) else []
    table = laid_out(columns, rows, out.width, wide=wide)
    out.print(Group(*map(Text, lines), *([Text(), *table] if rows else []), *more), crop=False)


def total(items: Sequence[EnergyItem]) -> EnergyItem:
    """The sum of all items."""
    sums = {
        field: sum(getattr(item, field) for item in items)
        for field in EnergyItem.__struct_fields__
        if field not in {"name", "namespace", "kind", "node"}
    }
    return EnergyItem("total", **sums)


def _lines(question: Question, answer: EnergyAnswer) -> list[str]:
    """The total, for people."""
    span = age(answer.until - answer.since)
    if not answer.items:
        where = f" in namespace {question.namespace}" if question.namespace else ""
        return [f"No energy has been counted{where} in the last {span}."]
    whole = total(answer.items)
    emitted_g, paid = emissions_g(whole), cost(whole)
    parts = [f"{count(len(answer.items), _THINGS[question.by])}: {energy_text(whole.energy_j)}"]
    parts += [] if emitted_g is None else [f"{mass_text(emitted_g)} CO2eq"]
    parts += [] if paid is None else [f"{paid:.2f} {answer.currency}"]
    lines = [", ".join(parts) + f" in the last {span}"]
    for part_j, unknown in (
        (whole.energy_without_intensity_j, "carbon intensity is not known, its emissions are not in the sum"),
        (whole.energy_without_price_j, "price is not known, its cost is not in the sum"),
    ):
        if part_j > 0.0:
            lines.append(f"of {energy_text(part_j)} the {unknown}")
    return lines
