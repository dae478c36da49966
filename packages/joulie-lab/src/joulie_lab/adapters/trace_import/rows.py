"""Reads rows of published tables: CSV with or without a header, compressed or not, and Parquet."""

from __future__ import annotations

import csv
import gzip
import io
import math
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from joulie_lab.adapters.trace_import.source_jobs import ImportProblem, LeftOut, Parsed, SourceJob, TraceSourceError

_UNKNOWN = frozenset({"", "nan", "none", "null"})
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table.

    Attributes:
        place: file and line.
        cells: cells by column.
    """

    place: str
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """A cell; empty if it is missing or unknown."""
        text = self.cells.get(column, "").strip()
        return "" if text.lower() in _UNKNOWN else text

    def number(self, column: str) -> float:
        """A cell that must be a finite number.

        Raises:
            ValueError: it is not.
        """
        number = self.known_number(column)
        if number is None:
            raise ValueError(f"{column} is missing")
        return number

    def known_number(self, column: str) -> float | None:
        """A cell as a number; None if unknown.

        Raises:
            ValueError: it is not a finite number.
        """
        text = self.cells.get(column, "")
        try:
            number = float(text)
        except ValueError:
            if not self.text(column):
                return None
            raise ValueError(f"{column} is {text!r}, which is not a number") from None
        if math.isinf(number):
            raise ValueError(f"{column} is {text!r}, it must be finite")
        if math.isnan(number):
            return None
        return number


def parsed(rows: Iterable[Row | ImportProblem], parse: Callable[[Row], SourceJob | LeftOut]) -> Iterator[Parsed]:
    """Parse each row; a row for which `parse` raises ValueError becomes an `ImportProblem`."""
    for row in rows:
        if isinstance(row, ImportProblem):
            yield row
            continue
        try:
            yield parse(row)
        except ValueError as error:
            yield ImportProblem(row.place, str(error))


def read_rows(path: Path, needed: Sequence[str], columns: Sequence[str] | None = None) -> Iterator[Row | ImportProblem]:
    """Iterate over the rows of a table; a line with too few or too many cells becomes an `ImportProblem`.

    Args:
        path: ``.parquet``, otherwise CSV, which may be compressed: ``.gz``, or a ``.tar.gz`` with one file.
        needed: required columns.
        columns: column names of a CSV file without a header; a header is still allowed.

    Raises:
        TraceSourceError: the file cannot be read, or a column is missing.
    """
    rows = _parquet_rows(path, needed) if path.suffix == ".parquet" else _csv_rows(path, needed, columns)
    yield from rows


def header_of(path: Path) -> tuple[str, ...]:
    """The cells of the first line of a CSV file.

    Raises:
        TraceSourceError: the file cannot be read.
    """
    with open_text(path) as lines:
        return tuple(cell.strip() for cell in next(csv.reader(lines), ()))


@contextmanager
def open_text(path: Path, member: str = "") -> Iterator[IO[str]]:
    """Open a text file, compressed or not; invalid UTF-8 is shown as escapes.

    Args:
        path: ``.gz`` is decompressed; from a ``.tar.gz`` one file is read.
        member: suffix of that file's name.

    Raises:
        TraceSourceError: the file cannot be read, or is damaged.
    """
    try:
        if path.name.endswith((".tar.gz", ".tgz")):
            with tarfile.open(path, "r:gz", bufsize=_BUFFER_BYTES) as archive:
                yield _text(_member(archive, path, member))
        elif path.suffix == ".gz":
            with gzip.open(path, "rb") as packed:
                yield _text(cast("IO[bytes]", packed))
        else:
            with path.open("rb") as plain:
                yield _text(plain)
    except OSError as error:
        raise TraceSourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error, tarfile.TarError) as error:
        raise TraceSourceError(f"{path}: is damaged: {error}") from error


def _text(binary: IO[bytes]) -> IO[str]:
    return io.TextIOWrapper(binary, encoding="utf-8-sig", errors="backslashreplace", newline="")


def _member(archive: tarfile.TarFile, path: Path, ending: str) -> IO[bytes]:
    for info in archive:
        if info.isfile() and info.name.endswith(ending):
            found = archive.extractfile(info)
            assert found is not None
            return found
    raise TraceSourceError(f"{path}: has no file {ending or 'at all'} in it")


def _csv_rows(path: Path, needed: Sequence[str], columns: Sequence[str] | None) -> Iterator[Row | ImportProblem]:
    with open_text(path) as lines:
        header = tuple(columns or ())
        for number, line in enumerate(lines, start=1):
            place = f"{path}:{number}"
            if not line.strip():
                continue
            try:
                # Line by line, so that an unclosed quote does not swallow the following lines.
                cells = next(csv.reader((line,), strict=True))
            except csv.Error as error:
                yield ImportProblem(place, str(error))
                continue
            if not header or (number == 1 and tuple(cells) == header):
                header = tuple(cell.strip() for cell in cells)
                _require(path, header, needed)
            elif len(cells) != len(header):
                yield ImportProblem(place, f"has {len(cells)} cells, the table has {len(header)} columns")
            else:
                yield Row(place, dict(zip(header, cells, strict=True)))
        if not header:
            raise TraceSourceError(f"{path}: is empty")


def _parquet_rows(path: Path, needed: Sequence[str]) -> Iterator[Row]:
    import polars as pl

    try:
        _require(path, tuple(pl.read_parquet_schema(path)), needed)
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise TraceSourceError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from error
    for number, cells in enumerate(frame.iter_rows(named=True), start=1):
        texts = {name: "" if value is None else str(value) for name, value in cells.items()}
        yield Row(f"{path}: row {number}", texts)


def _require(path: Path, header: Sequence[str], needed: Sequence[str]) -> None:
    missing = [name for name in needed if name not in header]
    if missing:
        raise TraceSourceError(f"{path}: no column {missing[0]!r}; its columns are {', '.join(header)}")
