"""`kubectl joulie export`: the rows that sums of energy are made of, for others to calculate with."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import click
import msgspec

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.program_api.energy import EXPORT_PATH, ExportItem
from joulie.apps.kubectl.accounting import AccountingAt, fetch_accounting
from joulie.apps.kubectl.energy import query_of

FORMATS = ("csv", "parquet", "opencost")
_SECONDS_PER_MINUTE = 60.0


@dataclass(frozen=True)
class Question:
    """What to export.

    Attributes:
        format: csv, parquet or opencost.
        file: to write; None for standard output.
        namespace: of the pods; empty for the context's, None for all.
        since_s: how far back, s; None for all that is kept.
        where: the accounting program.
    """

    format: str
    file: Path | None
    namespace: str | None
    since_s: float | None
    where: AccountingAt


async def export(client: KubeClient, question: Question) -> None:
    """Write what was asked for.

    Raises:
        KubernetesError: the accounting program cannot be asked.
        click.ClickException: the file cannot be written, or a library for its format is missing.
    """
    query = query_of(client, question.namespace, question.since_s)
    body = await fetch_accounting(client, question.where, EXPORT_PATH, query)
    try:
        rows = msgspec.json.Decoder(ExportItem).decode_lines(body)
    except msgspec.DecodeError as error:
        raise KubernetesError(f"{EXPORT_PATH}: the answer is not the accounting program's: {error}") from error
    try:
        _write(question, rows)
    except OSError as error:
        raise click.ClickException(str(error)) from error


def _write(question: Question, rows: Sequence[ExportItem]) -> None:
    if question.format == "parquet":
        _write_parquet(question.file, rows)
    elif question.file is None:
        _write_text(question.format, rows, sys.stdout)
    else:
        with question.file.open("w", encoding="utf-8", newline="") as file:
            _write_text(question.format, rows, file)


def _write_parquet(file: Path | None, rows: Sequence[ExportItem]) -> None:
    if file is None:
        raise click.UsageError("--format parquet needs a file: --file energy.parquet")
    try:
        from joulie.adapters.parquet_files import write_rows
    except ModuleNotFoundError as error:
        raise click.ClickException(f"Parquet needs {error.name}: pip install 'joulie[parquet]'") from error
    write_rows(file, [msgspec.structs.asdict(row) for row in rows])


def _write_text(form: str, rows: Sequence[ExportItem], file: TextIO) -> None:
    if form == "csv":
        table = csv.writer(file)
        table.writerow(ExportItem.__struct_fields__)
        table.writerows(msgspec.structs.astuple(row) for row in rows)
    else:
        json.dump({"code": 200, "data": [allocations(rows)]}, file, indent=2)
        file.write("\n")


def allocations(rows: Iterable[ExportItem]) -> dict[str, Any]:
    """Rows summed by pod, in the shape of OpenCost's /allocation: costs are those of energy.

    What OpenCost does not know stands under ``joulie``. Source: OpenCost's API documentation.
    """
    by_name: dict[str, list[ExportItem]] = {}
    for row in rows:
        by_name.setdefault("/".join((row.namespace, row.pod or row.owner_name, row.uid)), []).append(row)
    return {name: _allocation(name, found) for name, found in by_name.items()}


def _allocation(name: str, rows: Sequence[ExportItem]) -> Mapping[str, Any]:
    first = rows[0]
    window = {
        "start": rfc3339(min(row.from_s for row in rows)),
        "end": rfc3339(max(row.until_s for row in rows)),
    }
    total = sum(row.cost for row in rows)
    return {
        "name": name,
        "properties": {
            "node": first.node,
            "namespace": first.namespace,
            "controller": first.owner_name,
            "controllerKind": first.owner_kind.lower(),
            "pod": first.pod,
            "providerID": first.uid,
        },
        "window": window,
        **window,
        "minutes": sum(row.until_s - row.from_s for row in rows) / _SECONDS_PER_MINUTE,
        **_costs(rows),
        "totalCost": total,
        "joulie": {
            "energyJ": sum(row.energy_j for row in rows),
            "emissionsG": sum(row.emissions_g for row in rows),
            "energyWithoutIntensityJ": sum(row.energy_without_intensity_j for row in rows),
            "energyWithoutPriceJ": sum(row.energy_without_price_j for row in rows),
            "currency": first.currency,
        },
    }


def _costs(rows: Sequence[ExportItem]) -> dict[str, float]:
    """The cost by device: each has the share of it that it has of the energy, PUE included."""
    costs = {"cpuCost": 0.0, "ramCost": 0.0, "gpuCost": 0.0}
    for row in rows:
        parts_j = (
            row.cpu_j * (row.pue or 1.0),
            row.mem_j * (row.pue or 1.0),
            row.gpu_j * (row.gpu_pue or 1.0),
        )
        whole_j = sum(parts_j)
        for key, part_j in zip(costs, parts_j, strict=True):
            costs[key] += row.cost * part_j / whole_j if whole_j > 0.0 else 0.0
    return costs
