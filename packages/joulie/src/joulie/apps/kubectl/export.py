"""`kubectl joulie export`: writes the stored energy rows as CSV, Parquet or OpenCost allocations."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

import click
import msgspec

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.program_api.energy import EXPORT_PATH, ExportItem
from joulie.apps.kubectl.accounting import AccountingEndpoint, fetch_accounting
from joulie.apps.kubectl.energy import query_of
from joulie.apps.kubectl.options import account_options, accounting_endpoint, run_with_client
from joulie.output_files import STANDARD_STREAM, output_file

FORMATS = ("csv", "parquet", "opencost")
_SECONDS_PER_MINUTE = 60.0
_TYPES: Mapping[str, type] = {
    field.name: field.type if field.type in (str, bool) else float for field in msgspec.structs.fields(ExportItem)
}


@dataclass(frozen=True)
class Request:
    """Options of the command.

    Attributes:
        format: csv, parquet or opencost.
        file: output file; None for standard output.
        namespace: namespace of the pods; empty for that of the context, None for all.
        since_s: length of the period up to now, s; None for all stored data.
        endpoint: address of the accounting program.
    """

    format: str
    file: Path | None
    namespace: str | None
    since_s: float | None
    endpoint: AccountingEndpoint


async def write_export(client: KubeClient, request: Request) -> None:
    """Write the rows in the requested format.

    Raises:
        KubernetesError: the accounting program cannot be queried.
        click.ClickException: the file cannot be written, or a library for its format is missing.
    """
    query = query_of(client, request.namespace, request.since_s)
    body = await fetch_accounting(client, request.endpoint, EXPORT_PATH, query)
    try:
        rows = msgspec.json.Decoder(ExportItem).decode_lines(body)
    except msgspec.DecodeError as error:
        raise KubernetesError(f"{EXPORT_PATH}: unexpected response from the accounting program: {error}") from error
    try:
        _write(request, rows)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise click.ClickException(f"--file {request.file}: cannot be written: {error.strerror or error}") from error


def _write(request: Request, rows: Sequence[ExportItem]) -> None:
    if request.format == "parquet" and request.file is None:
        raise click.UsageError("--format parquet needs a file: --file energy.parquet")
    with output_file(request.file or STANDARD_STREAM) as part:
        if request.format == "parquet":
            _write_parquet(part, rows)
        else:
            with part.open("w", encoding="utf-8", newline="") as file:
                _write_text(request.format, rows, file)


def _write_parquet(file: Path, rows: Sequence[ExportItem]) -> None:
    try:
        from joulie.adapters.parquet_files import write_rows
    except ModuleNotFoundError as error:
        raise click.ClickException(f"Parquet needs {error.name}: pip install 'joulie[parquet]'") from error
    write_rows(file, [msgspec.structs.asdict(row) for row in rows])


def _write_text(file_format: str, rows: Sequence[ExportItem], file: TextIO) -> None:
    if file_format == "csv":
        table = csv.writer(file)
        table.writerow(ExportItem.__struct_fields__)
        table.writerows(msgspec.structs.astuple(row) for row in rows)
    else:
        json.dump({"code": 200, "data": [allocations(rows)]}, file, indent=2)
        file.write("\n")


async def csv_of(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Parts of an export as parts of a CSV file, line by line: the whole may not fit into memory.

    Raises:
        KubernetesError: a line is not one of an export.
    """
    decoder = msgspec.json.Decoder(ExportItem)
    rest = b""
    yield _csv_lines([ExportItem.__struct_fields__])
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        yield _csv_lines(_csv_row(decoder, line) for line in lines if line)
    if rest:
        yield _csv_lines([_csv_row(decoder, rest)])


def can_write_parquet() -> bool:
    """Whether the library that writes Parquet is installed."""
    return find_spec("polars") is not None


async def write_parquet(parts: AsyncIterator[bytes], file: Path) -> None:
    """Write parts of an export as a Parquet file, its lines first to a file beside it: they may not fit into memory.

    Raises:
        KubernetesError: a line is not one of an export.
        OSError: a file cannot be written.
    """
    from joulie.adapters.parquet_files import convert_lines

    decoder, lines = msgspec.json.Decoder(ExportItem), file.with_suffix(".ndjson")
    with lines.open("wb") as written:
        async for line in _lines(parts):
            written.write(msgspec.json.encode(_decoded(decoder, line)) + b"\n")
    await asyncio.to_thread(convert_lines, lines, file, _TYPES)
    lines.unlink()


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line:
                yield line
    if rest:
        yield rest


def _decoded(decoder: msgspec.json.Decoder[ExportItem], line: bytes) -> ExportItem:
    try:
        return decoder.decode(line)
    except msgspec.DecodeError as error:
        raise KubernetesError(f"{EXPORT_PATH}: unexpected response from the accounting program: {error}") from error


def _csv_row(decoder: msgspec.json.Decoder[ExportItem], line: bytes) -> Sequence[Any]:
    return msgspec.structs.astuple(_decoded(decoder, line))


def _csv_lines(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def allocations(rows: Iterable[ExportItem]) -> dict[str, Any]:
    """Rows summed by pod in the format of OpenCost's /allocation; costs are those of energy.

    Fields that OpenCost does not have are under ``joulie``. Source: OpenCost's API documentation.
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
            "labels": dict(text.partition("=")[::2] for text in first.labels.split(",") if text),
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
    """Cost by device, in proportion to the device's energy, PUE included."""
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


@click.command("export")
@account_options
@click.option("--format", "form", type=click.Choice(FORMATS), default="csv", show_default=True, help="File format.")
@click.option(
    "-f",
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Output file.  [default: standard output]",
)
def export(kubeconfig: Path | None, context: str | None, namespace: str, all_namespaces: bool, **options: Any) -> None:
    """Export the stored energy rows.

    One row per pod and hour, or per workload and day for older data: energy by device, PUE, carbon intensity,
    emissions, price and cost. The format opencost sums them by pod, as OpenCost allocations.
    """
    selected = None if all_namespaces else namespace
    request = Request(options["form"], options["file"], selected, options["since_s"], accounting_endpoint(options))
    run_with_client(lambda client: write_export(client, request), kubeconfig=kubeconfig, context=context)
