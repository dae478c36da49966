"""`kubectl joulie report`: a month's report of emissions, as tables; `joulie ledger report` prints it the same way."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import msgspec

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.program_api.report import (
    REPORT_PATH,
    AssetItem,
    LineItem,
    MixItem,
    ReportAnswer,
    SavingItem,
    largest,
    title_of,
)
from joulie.apps.kubectl.accounting import AccountingEndpoint, query_accounting
from joulie.apps.kubectl.energy import query_of
from joulie.apps.kubectl.options import (
    accounting_endpoint,
    accounting_options,
    cluster_options,
    namespace_options,
    run_with_client,
)
from joulie.domain.accounting.embodied import SECONDS_PER_YEAR, Spread
from joulie.domain.accounting.sci import NEGLIGIBLE
from joulie.program.documents import print_document
from joulie.program.tables import print_table

_COLUMNS = ("WORKLOAD", "KWH", "LOCATION", "MARKET", "EMBODIED", "(LOW..HIGH)", "UNITS", "SCI, G/UNIT", "MARGINAL")
_UNALLOCATED = "(unallocated)"
_EMPTY = "-"


@dataclass(frozen=True)
class Request:
    """Options of the command.

    Attributes:
        month: of UTC, ``2026-10``; None for the one that lasts.
        namespace: namespace of the workloads; empty for that of the context, None for all.
        output: table, json or yaml.
        endpoint: address of the accounting program.
    """

    month: str | None
    namespace: str | None
    output: str
    endpoint: AccountingEndpoint


async def show_report(client: KubeClient, request: Request) -> None:
    """Print the report of a month.

    Raises:
        KubernetesError: the accounting program cannot be queried.
    """
    query = query_of(client, request.namespace, None) | ({"month": request.month} if request.month else {})
    print_report(await query_accounting(client, request.endpoint, REPORT_PATH, query, ReportAnswer), request.output)


def print_report(report: ReportAnswer, output: str) -> None:
    """Print a report.

    Args:
        report: the report.
        output: table, json or yaml.
    """
    if output == "table":
        _print_tables(report)
    else:
        print_document(msgspec.to_builtins(report), output)


def _print_tables(report: ReportAnswer) -> None:
    where = f" in namespace {report.namespace}" if report.namespace else ""
    earlier = report.corrections_of_earlier_months
    if not (report.workloads or report.unallocated or earlier.energy_kwh or earlier.location_based_g):
        click.echo(f"Nothing is booked in {report.month}{where}.")
        return
    click.echo(f"{title_line(report)}\n{report.method}\n")
    for title, columns, rows in report_tables(report):
        print_table(title, columns, rows)
    for note in report.notes:
        click.echo(f"- {note}")


def title_line(report: ReportAnswer) -> str:
    """What a report is of, and whether it can still change."""
    where = f" in namespace {report.namespace}" if report.namespace else ""
    state = "closed" if report.closed else "open: figures can still change"
    return f"Emissions of {report.month}{where} ({state})"


def report_tables(report: ReportAnswer) -> list[tuple[str, Sequence[str], Sequence[Sequence[str]]]]:
    """Titles, headings and rows of a report's tables."""
    rows = [_cells(title_of(line), line) for line in report.workloads]
    rows += [_cells(_UNALLOCATED, report.unallocated_total)] if report.namespace is None else []
    rows.append(_cells("TOTAL", report.total))
    zones = [row for mix in report.market_based for row in _mix_cells(mix)]
    assets = [_asset_cells(one) for one in report.embodied]
    sources = [(one.hardware.name, one.hardware.source) for one in report.embodied if one.hardware is not None]
    pues = [(one.zone, f"{one.pue:g}", f"{one.gpu_pue:g}", one.source) for one in report.pue]
    savings = [_saving_cells(one) for one in report.savings]
    tables: list[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = [
        ("By workload, gCO2eq; marginal emissions are in no sum", _COLUMNS, rows),
        ("Market-based factors", ("ZONE", "COVERED BY", "KWH", "G/KWH", "SOURCE"), zones),
        ("Embodied emissions of nodes", ("HARDWARE", "NODE DAYS", "KG", "(LOW..HIGH)", "YEARS"), assets),
        ("", ("HARDWARE", "SOURCE"), sources),
        ("PUE", ("ZONE", "PUE", "GPU PUE", "SOURCE"), pues),
    ]
    tables += [("Savings", ("WHAT", "SAVED", "(LOW..HIGH)", "HOW IT IS KNOWN"), savings)] if savings else []
    return tables


def can_write_pdf() -> bool:
    """Whether the library that writes PDFs is installed."""
    return find_spec("typst") is not None


def written_pdf(
    report: ReportAnswer,
    document: Mapping[str, Any],
    time_s: int,
    lead: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> bytes:
    """A report as a PDF, with a document attached that has the same as JSON.

    Args:
        report: the report.
        document: what to attach.
        time_s: what the file names as the time of its creation, s since the epoch.
        lead: further paragraphs before the tables.
        notes: notes before those of the report.

    Raises:
        ModuleNotFoundError: the library that writes it is not installed.
    """
    from joulie.adapters.report_pdf import ReportPage, ReportTable, report_pdf

    figures = f"Figures since {report.complete_from}. Emissions are gCO2eq, energy is kWh with PUE."
    tables = [
        ReportTable(title or "Sources of hardware", columns, rows) for title, columns, rows in report_tables(report)
    ]
    page = ReportPage(title_line(report), [report.method, figures, *lead], tables, [*notes, *report.notes])
    return report_pdf(page, json.dumps(document, indent=2, ensure_ascii=False).encode(), time_s)


def _cells(title: str, line: LineItem) -> tuple[str, ...]:
    units = line.functional_units
    node_days = largest(line.unknown_node_days), largest(line.reserved_node_days)
    return (
        title,
        f"{line.energy_kwh:,.3f}",
        _known(f"{line.location_based_g:,.1f}", line.energy_without_intensity_kwh, line.energy_kwh),
        _known(f"{line.market_based_g:,.1f}", line.energy_without_market_factor_kwh, line.energy_kwh),
        _known(f"{line.embodied_g:,.1f}", *node_days),
        _known(f"{line.embodied_low_g:,.0f}..{line.embodied_high_g:,.0f}", *node_days),
        _EMPTY if units is None else f"{units.amount:,.0f} {units.unit}",
        _EMPTY if line.sci_g_per_unit is None else f"{line.sci_g_per_unit:.6g}",
        _known(f"{line.marginal_g:,.1f}", line.energy_without_marginal_kwh, line.energy_kwh),
    )


def _known(amount: str, unknown: float, whole: float) -> str:
    """An amount, with +? where a part is unknown; ? where all of it is."""
    if whole > 0.0 and unknown >= whole * (1.0 - NEGLIGIBLE):
        return "?"
    return amount + ("+?" if unknown > whole * NEGLIGIBLE else "")


def _mix_cells(mix: MixItem) -> Iterator[tuple[str, ...]]:
    for one in mix.instruments:
        yield mix.zone, one.kind, f"{one.covered_kwh:,.3f}", f"{one.g_per_kwh:g}", one.source
    rest = f"{mix.residual_kwh:,.3f}"
    if mix.residual_mix is None:
        yield mix.zone, "nothing", rest, "?", f"no residual mix of {mix.zone} in the inventory"
    elif mix.residual_kwh > 0.0:
        yield mix.zone, "residual mix", rest, f"{mix.residual_mix.g_per_kwh:g}", mix.residual_mix.source


def _asset_cells(item: AssetItem) -> tuple[str, ...]:
    asset, days = item.hardware, f"{item.node_days.cpu:,.2f}"
    if asset is None:
        return "unknown: give a factor in the inventory", days, "?", "?", "?"
    whole: Spread = asset.cpu + asset.memory + asset.gpu
    kg, low_kg, high_kg = (f"{amount_g / 1000:,.0f}" for amount_g in (whole.g, whole.low_g, whole.high_g))
    return asset.name, days, kg, f"{low_kg}..{high_kg}", f"{asset.lifespan_s / SECONDS_PER_YEAR:g}"


def _saving_cells(item: SavingItem) -> tuple[str, ...]:
    if item.amount_g is not None:
        return item.what, f"{item.amount_g:,.1f} g", _EMPTY, item.how_known
    known = f"{item.how_known} since {item.since}, {item.left_out:,} of {item.units:,} left alone"
    if item.saved_pct is None:
        return item.what, "?", "?", f"{known}: too few yet"
    return item.what, f"{item.saved_pct:.1f} %", f"{item.low_pct:.1f}..{item.high_pct:.1f} %", known


@click.command("report")
@click.argument("month", required=False)
@cluster_options
@namespace_options("workloads")
@accounting_options
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", help="Output format.")
def report(
    month: str | None,
    kubeconfig: Path | None,
    context: str | None,
    namespace: str,
    all_namespaces: bool,
    output: str,
    **options: Any,
) -> None:
    """Report the emissions of a MONTH (2026-10, UTC); without one, of the month that lasts.

    One row per workload: its SCI score (ISO/IEC 21031), and location- and market-based emissions (GHG Protocol). All
    namespaces (-A) also have what nodes used and kept for nobody. `joulie ledger report` prints the same.
    """
    request = Request(month, None if all_namespaces else namespace, output, accounting_endpoint(options))
    run_with_client(lambda client: show_report(client, request), kubeconfig=kubeconfig, context=context)
