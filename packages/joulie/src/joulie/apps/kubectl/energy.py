"""`kubectl joulie energy`: energy, emissions and cost by pod, workload, namespace, node, day or label."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Group
from rich.text import Text

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.program_api.energy import ENERGY_PATH, LABEL_PREFIX, EnergyAnswer, EnergyItem
from joulie.apps.kubectl.accounting import AccountingEndpoint, query_accounting
from joulie.apps.kubectl.columns import (
    Column,
    format_age,
    format_count,
    number_column,
    sorted_rows,
    table_lines,
    text_column,
)
from joulie.apps.kubectl.options import (
    EnergyGroup,
    account_options,
    accounting_endpoint,
    limit_option,
    run_with_client,
    table_options,
)
from joulie.apps.kubectl.table import console
from joulie.domain.accounting.records import ENERGY_FIELDS
from joulie.domain.quantities import joules_to_kwh
from joulie.program.documents import print_document

_GROUP_NOUNS = {"pod": "pod", "job": "workload", "namespace": "namespace", "node": "node", "day": "day"}


@dataclass(frozen=True)
class Request:
    """Options of the command.

    Attributes:
        by: group to sum by: pod, job, namespace, node, day, or ``label:KEY``.
        namespace: namespace of the pods; empty for that of the context, None for all.
        since_s: length of the period up to now, s; None for all stored data.
        output: table, wide, json or yaml.
        sort_by: name of the column to sort by.
        reverse: whether to reverse the order.
        limit: maximum number of rows.
        endpoint: address of the accounting program.
    """

    by: str
    namespace: str | None
    since_s: float | None
    output: str
    sort_by: str
    reverse: bool
    limit: int
    endpoint: AccountingEndpoint


def format_energy(energy_j: float) -> str:
    """An energy in Wh, kWh or MWh."""
    kwh = joules_to_kwh(energy_j)
    for min_kwh, factor, unit in ((1000.0, 1e-3, "MWh"), (1.0, 1.0, "kWh")):
        if abs(kwh) >= min_kwh:
            return f"{kwh * factor:.2f}{unit}"
    return f"{kwh * 1000.0:.1f}Wh"


def format_mass(mass_g: float) -> str:
    """A mass in g, kg or t."""
    for unit_g, unit in ((1e6, "t"), (1e3, "kg")):
        if abs(mass_g) >= unit_g:
            return f"{mass_g / unit_g:.2f}{unit}"
    return f"{mass_g:.1f}g"


def share_pct(part_j: float, whole_j: float) -> float | None:
    """Share of a part in a whole, percent; None if the whole is 0."""
    return part_j / whole_j * 100.0 if whole_j > 0.0 else None


def _known(item: EnergyItem, value: float, unknown_j: float) -> float | None:
    """A sum; None if it is unknown for all of the item's energy, which is not zero."""
    return None if item.energy_j > 0.0 and unknown_j >= item.energy_j else value


def emissions_g(item: EnergyItem) -> float | None:
    """Emissions of the energy with a known carbon intensity, gCO2eq; None if it is unknown for all of the energy."""
    return _known(item, item.emissions_g, item.energy_without_intensity_j)


def cost(item: EnergyItem) -> float | None:
    """Cost of the energy with a known price; None if the price is unknown for all of the energy."""
    return _known(item, item.cost, item.energy_without_price_j)


def _energy_column(title: str, value: Callable[[EnergyItem], float], *, wide: bool = False) -> Column[EnergyItem]:
    return replace(number_column(title, value, wide=wide), text=lambda item: format_energy(value(item)))


def _percent_column(
    title: str, part: Callable[[EnergyItem], float], *, rank: int, wide: bool = False
) -> Column[EnergyItem]:
    return number_column(title, lambda item: share_pct(part(item), item.energy_j), "{:.0f}%", rank=rank, wide=wide)


def _emissions_text(item: EnergyItem) -> str:
    mass_g = emissions_g(item)
    return "-" if mass_g is None else format_mass(mass_g)


_SUMS: Mapping[str, Column[EnergyItem]] = {
    "energy": _energy_column("ENERGY", lambda item: item.energy_j),
    "cpu": _energy_column("CPU", lambda item: item.cpu_j, wide=True),
    "memory": _energy_column("MEMORY", lambda item: item.mem_j, wide=True),
    "gpu": _energy_column("GPU", lambda item: item.gpu_j, wide=True),
    "emissions": replace(number_column("CO2EQ", emissions_g), text=_emissions_text),
    "cost": number_column("COST", cost, "{:.4f}", rank=1),
    "measured": _percent_column("MEASURED", lambda item: item.measured_j, rank=2),
    "unknown": _percent_column("NO-CO2", lambda item: item.energy_without_intensity_j, rank=3),
    "unpriced": _percent_column("NO-PRICE", lambda item: item.energy_without_price_j, rank=4, wide=True),
    "assumed": _percent_column("ASSUMED", lambda item: item.assumed_j, rank=5),
}
ORDERS = ("name", *_SUMS)
"""Names of the columns that all tables have, for ``--sort-by``."""
_NAMESPACE: Column[EnergyItem] = text_column("NAMESPACE", lambda item: item.namespace, min_width=12)
COLUMNS: Mapping[str, Mapping[str, Column[EnergyItem]]] = {
    "pod": {
        "namespace": _NAMESPACE,
        "name": text_column("POD", lambda item: item.name, min_width=20),
        "node": text_column("NODE", lambda item: item.node, rank=6, min_width=12),
        **_SUMS,
    },
    "job": {
        "namespace": _NAMESPACE,
        "name": text_column(
            "WORKLOAD", lambda item: f"{item.kind}/{item.name}" if item.kind else item.name, min_width=20
        ),
        **_SUMS,
    },
    "namespace": {"name": text_column("NAMESPACE", lambda item: item.name, min_width=20), **_SUMS},
    "node": {"name": text_column("NODE", lambda item: item.name, min_width=20), **_SUMS},
    "day": {"name": text_column("DAY", lambda item: item.name), **_SUMS},
}


def columns_of(by: str) -> Mapping[str, Column[EnergyItem]]:
    """Columns of the table by a group."""
    if not by.startswith(LABEL_PREFIX):
        return COLUMNS[by]
    return {"name": text_column(by.removeprefix(LABEL_PREFIX).upper(), lambda item: item.name, min_width=20), **_SUMS}


async def show_energy(client: KubeClient, request: Request) -> None:
    """Print energy, emissions and cost by group.

    Raises:
        KubernetesError: the accounting program cannot be queried.
    """
    query = query_of(client, request.namespace, request.since_s) | {"by": request.by}
    answer = await query_accounting(client, request.endpoint, ENERGY_PATH, query, EnergyAnswer)
    columns = columns_of(request.by)
    rows = sorted_rows(answer.items, columns[request.sort_by], reverse=request.reverse)[: request.limit]
    if request.output in {"json", "yaml"}:
        document = {
            "by": answer.by,
            "since": rfc3339(answer.since),
            "until": rfc3339(answer.until),
            "currency": answer.currency,
            "total": msgspec.to_builtins(total(answer.items)),
            "items": msgspec.to_builtins(rows),
        }
        print_document(document, request.output)
        return
    print_rows(_lines(request, answer), columns, rows, len(answer.items), wide=request.output == "wide")


def query_of(client: KubeClient, namespace: str | None, since_s: float | None) -> dict[str, str]:
    """URL parameters common to all requests to the accounting program."""
    query = {} if since_s is None else {"since": f"{since_s:g}"}
    return query if namespace is None else query | {"namespace": namespace or client.connection.namespace}


def print_rows(
    lines: Sequence[str], columns: Mapping[str, Column[Any]], rows: Sequence[Any], found: int, *, wide: bool
) -> None:
    """Print summary lines and a table below them; `found` is the number of rows before the limit."""
    out = console()
    more = [Text(f"and {found - len(rows)} more (--limit)", style="dim")] if found > len(rows) else []
    table = table_lines(columns, rows, out.width, wide=wide)
    out.print(Group(*map(Text, lines), *([Text(), *table] if rows else []), *more), crop=False)


def total(items: Sequence[EnergyItem]) -> EnergyItem:
    """Sum of all items, by field."""
    return EnergyItem("total", **{field: sum(getattr(item, field) for item in items) for field in ENERGY_FIELDS})


def _lines(request: Request, answer: EnergyAnswer) -> list[str]:
    """Summary lines: the total, and the energy whose intensity or price is unknown."""
    span = format_age(answer.until - answer.since)
    if not answer.items:
        where = f" in namespace {request.namespace}" if request.namespace else ""
        return [f"No energy recorded{where} in the last {span}."]
    whole = total(answer.items)
    emitted_g, paid = emissions_g(whole), cost(whole)
    parts = [
        f"{format_count(len(answer.items), _GROUP_NOUNS.get(request.by, 'value'))}: {format_energy(whole.energy_j)}"
    ]
    parts += [] if emitted_g is None else [f"{format_mass(emitted_g)} CO2eq"]
    parts += [] if paid is None else [f"{paid:.2f} {answer.currency}"]
    lines = [", ".join(parts) + f" in the last {span}"]
    for part_j, unknown in (
        (whole.energy_without_intensity_j, "unknown carbon intensity; its emissions are not included"),
        (whole.energy_without_price_j, "unknown price; its cost is not included"),
    ):
        if part_j > 0.0:
            lines.append(f"{format_energy(part_j)} with {unknown}")
    return lines


@click.command("energy")
@account_options
@click.option(
    "--by",
    type=EnergyGroup(),
    default="job",
    show_default=True,
    help="Group to sum by; job stands for any workload, label:KEY for a label of pods that the accounting keeps.",
)
@table_options(ORDERS, "energy")
@limit_option
def energy(kubeconfig: Path | None, context: str | None, namespace: str, all_namespaces: bool, **options: Any) -> None:
    """Show energy, emissions and cost by pod, workload, namespace, node, day or label.

    ENERGY includes the PUE of the data centre. MEASURED is the share of the energy with measured power, ASSUMED the
    share estimated from requests alone; the rest is modelled from measured utilisation. NO-CO2 is the share with
    unknown carbon intensity, which is not part of CO2EQ. Only whole hours are counted. -o wide adds the devices.
    Without -n, namespaces, nodes and labels of the whole cluster are shown; __idle__ is the energy of nodes that
    belongs to no pod.
    """
    everywhere = all_namespaces or (options["by"] not in {"pod", "job", "day"} and not namespace)
    request = Request(
        options["by"],
        None if everywhere else namespace,
        options["since_s"],
        options["output"],
        options["sort_by"],
        options["reverse"],
        options["limit"],
        accounting_endpoint(options),
    )
    run_with_client(lambda client: show_energy(client, request), kubeconfig=kubeconfig, context=context)
