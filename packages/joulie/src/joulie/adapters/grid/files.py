"""The source file: carbon intensity or prices from a CSV or Parquet file, such as a provider's export.

Columns are recognised by the names that Electricity Maps' hourly history (``Datetime (UTC)``, ``Zone Id``,
``Carbon Intensity gCO₂eq/kWh (LCA)``), published data sets (``Time``, ``Carbon Intensity``) and ENTSO-E's price tables
(``MTU (CET/CEST)``, ``Day-ahead Price [EUR/MWh]``) use; other names are given in the options. An invalid line is
reported by its number and left out: it is never read as zero.
"""

from __future__ import annotations

import asyncio
import csv
import logging
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
import numpy as np

from joulie.adapters.grid.source_context import SourceContext, options
from joulie.domain.grid.series import Series, of_points
from joulie.domain.grid.signals import Basis, Measure, Observation, Provenance
from joulie.domain.quantities import SECONDS_PER_HOUR
from joulie.ports.grid import GridSourceError
from joulie.settings import group, json_object, path

_MAX_BYTES = 64 << 20
_SHOWN_LINES = 5
_SHOWN_ZONES = 5
_FORMATS = ("%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d/%m/%Y %H:%M", "%d/%m/%Y %H:%M:%S")
"""Time formats of ENTSO-E, accepted beside ISO 8601."""
_EPOCH = re.compile(r"\d{9,10}(\.\d+)?", re.ASCII)
"""Seconds since the epoch. Eight digits are a date."""
_TIME_NAMES = ("datetime", "timestamp", "time", "mtu", "start", "date")
_VALUE_NAMES = {
    Measure.CARBON: ("carbon intensity", "carbon_intensity", "carbonintensity", "intensity"),
    Measure.PRICE: ("price", "rate"),
}
_LIFE_CYCLE = ("lca", "life cycle", "lifecycle")
_ZONE_NAMES = ("zone id", "zone_id", "zone")
_ESTIMATED_NAMES = ("data estimated",)
_GRAMS = {"lb": 453.59237, "lbs": 453.59237, "kg": 1e3, "t": 1e6, "tonne": 1e6, "tonnes": 1e6, "ton": 1e6, "tons": 1e6}
_CENTRAL_EUROPE = "Europe/Brussels"

_log = logging.getLogger(__name__)


class FileOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How to read a file; columns without a name here are recognised by their header.

    Attributes:
        time: column of the start of each step.
        value: column of the values.
        zone: column of the zones; without such a column all values are of the default zone.
        time_zone: IANA time zone of times without an offset; UTC by default, Brussels if the header says CET.
        factor: factor that values are multiplied by; None for that of the unit in the header, 1 without one.
        forecast: whether values in the future are used as a forecast.
    """

    time: str = ""
    value: str = ""
    zone: str = ""
    time_zone: str = ""
    factor: float | None = None
    forecast: bool = False


@dataclass(frozen=True)
class FileSettings:
    """Path and format of the source file."""

    path: Path | None
    options: FileOptions


def file_settings(measure: Measure) -> Any:
    """Declare the settings of the source file."""
    return group(
        FileSettings,
        path=path(f"{measure.name}_FILE_PATH", None, "CSV or Parquet file of the source file."),
        options=json_object(
            f"{measure.name}_FILE_OPTIONS",
            "Format of that file: columns time, value and zone, time_zone, factor, step (s), forecast.",
            to=options(FileOptions),
        ),
    )


def table_file(settings: FileSettings, context: SourceContext) -> TableFile:
    """Create the source file.

    Raises:
        GridSourceError: the path is not set.
    """
    if settings.path is None:
        raise GridSourceError(f"no file: set {context.measure.name}_FILE_PATH")
    return TableFile(settings.path, settings.options, context.measure, context.basis, context.zone, context.now_s)


@dataclass(frozen=True)
class ZoneTable:
    """Values of one zone in a file.

    Attributes:
        series: gCO2eq/kWh or currency/kWh; where steps are missing the value before them holds.
        step_s: usual length of a step, s.
        estimated_s: starts of the steps whose value is estimated, s since the epoch.
    """

    series: Series
    step_s: float
    estimated_s: frozenset[float]


@dataclass(frozen=True)
class FileTable:
    """What a file says.

    Attributes:
        zones: by name in lower case; an empty name for a file without a zone column that was read without a default.
        column: header of the values.
        invalid_lines: what is wrong with the lines that were left out.
        repeated: number of lines that repeat the time of an earlier one, which they replace.
    """

    zones: Mapping[str, ZoneTable]
    column: str
    invalid_lines: Sequence[str]
    repeated: int


def read_table(path: Path, options: FileOptions, measure: Measure, default_zone: str = "") -> FileTable:
    """Read a file, whole.

    Args:
        path: the file, Parquet if it ends with ``.parquet``, else CSV.
        options: format of the file.
        measure: carbon or price.
        default_zone: zone of a file without a zone column.

    Raises:
        GridSourceError: the file cannot be read, lacks a column, or has no valid line.
    """
    try:
        header, rows = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise GridSourceError(f"{path}: {error}") from None
    columns = _Columns.from_header(header, options, measure, default_zone, path.name)
    points: dict[str, dict[float, float]] = defaultdict(dict)
    estimated: dict[str, set[float]] = defaultdict(set)
    invalid_lines = []
    repeated = 0
    for line, row in rows:
        try:
            zone, time_s, value, is_estimated = columns.read(row, points)
        except (ValueError, IndexError, KeyError) as error:
            invalid_lines.append(f"line {line}: {error}")
            continue
        repeated += time_s in points[zone]
        points[zone][time_s] = value
        if is_estimated:
            estimated[zone].add(time_s)
    if not points:
        raise GridSourceError(f"{path}: no valid line" + (f"; {invalid_lines[0]}" if invalid_lines else ""))
    zones = {zone: _zone_table(found, frozenset(estimated[zone])) for zone, found in points.items()}
    return FileTable(zones, header[columns.value].strip(), invalid_lines, repeated)


@dataclass
class TableFile:
    """Source that reads a file, and reads it again when it has changed.

    Attributes:
        path: the file, Parquet if it ends with ``.parquet``, else CSV.
        options: format of the file.
        measure: carbon or price.
        basis: basis of carbon intensities; None for prices.
        default_zone: zone of a file without a zone column.
        now_s: current time, s since the epoch.
    """

    path: Path
    options: FileOptions
    measure: Measure
    basis: Basis | None
    default_zone: str
    now_s: Callable[[], float]
    name: str = "file"
    _version: tuple[int, int] = (0, 0)
    _zones: Mapping[str, ZoneTable] = field(default_factory=dict)

    async def latest(self, zone: str) -> Observation:
        """Value of the last step that has begun."""
        content = await self._content(zone)
        now_s = self.now_s()
        index = int(np.searchsorted(content.series.starts_s, now_s, side="right")) - 1
        if index < 0:
            raise GridSourceError(f"{self.path.name} begins in the future")
        start_s = float(content.series.starts_s[index])
        # Before a gap in the file the value ends after the usual step, not at the next line.
        until_s = min(start_s + content.step_s, content.series.next_change_s(start_s) or math.inf)
        where = Provenance(self.name, zone, self.basis, estimated=start_s in content.estimated_s)
        return Observation(float(content.series.values[index]), start_s, where, until_s=until_s)

    async def forecast(self, zone: str, horizon_s: float) -> Series | None:
        """Future values of the file; None unless the options enable them as a forecast."""
        if not self.options.forecast:
            return None
        return (await self._content(zone)).series.between(self.now_s(), self.now_s() + horizon_s)

    async def history(self, zone: str, from_s: float, until_s: float) -> Series | None:
        """Past values of the file."""
        return (await self._content(zone)).series.between(from_s, min(until_s, self.now_s()))

    async def _content(self, zone: str) -> ZoneTable:
        try:
            status = self.path.stat()
        except OSError as error:
            raise GridSourceError(f"{self.path}: {error.strerror}") from None
        version = (status.st_mtime_ns, status.st_size)
        if version != self._version:
            if status.st_size > _MAX_BYTES:
                raise GridSourceError(f"{self.path}: larger than the maximum of {_MAX_BYTES >> 20} MiB")
            self._zones = await asyncio.to_thread(self._read)
            self._version = version
        found = self._zones.get(zone.casefold())
        if found is None:
            known = ", ".join(sorted(self._zones)[:_SHOWN_ZONES])
            raise GridSourceError(f"{self.path.name} has no values of zone {zone}, but of {known}")
        return found

    def _read(self) -> Mapping[str, ZoneTable]:
        table = read_table(self.path, self.options, self.measure, self.default_zone)
        self._log_invalid(table.invalid_lines)
        return table.zones

    def _log_invalid(self, lines: Sequence[str]) -> None:
        if lines:
            _log.warning(
                "invalid lines of a grid file are left out",
                extra={"file": str(self.path), "lines": len(lines), "first": "; ".join(lines[:_SHOWN_LINES])},
            )


@dataclass(frozen=True)
class _Columns:
    """Indices of a file's columns, None if it has no such column, and how to convert their values."""

    time: int
    value: int
    zone: int | None
    estimated: int | None
    time_zone: ZoneInfo
    factor: float
    carbon: bool
    default_zone: str

    @classmethod
    def from_header(
        cls, header: Sequence[str], options: FileOptions, measure: Measure, default_zone: str, file: str
    ) -> _Columns:
        """Find the columns in a header.

        Raises:
            GridSourceError: a column is missing; the message lists those of the header.
        """
        names = [name.strip().replace("₂", "2").casefold() for name in header]
        time = _place(names, options.time, _TIME_NAMES)
        value = _place(names, options.value, _VALUE_NAMES[measure])
        if time is None or value is None:
            what = "time" if time is None else measure.value
            raise GridSourceError(f"{file}: no {what} column among {', '.join(header)[:200]}; name it in the options")
        factor = _unit_factor(names[value], measure) if options.factor is None else options.factor
        return cls(
            time,
            value,
            _place(names, options.zone, _ZONE_NAMES),
            _place(names, "", _ESTIMATED_NAMES),
            _zone_info(options.time_zone or (_CENTRAL_EUROPE if "cet" in names[time] else "UTC"), file),
            factor,
            measure is Measure.CARBON,
            default_zone.casefold(),
        )

    def read(self, row: Sequence[Any], known: dict[str, dict[float, float]]) -> tuple[str, float, float, bool]:
        """Zone in lower case, time, value, and whether the value is estimated.

        Raises:
            ValueError: the row is invalid.
        """
        zone = self.default_zone if self.zone is None else str(row[self.zone]).strip().casefold()
        value = _number(row[self.value]) * self.factor
        if self.carbon and value < 0.0:
            raise ValueError(f"negative carbon intensity {value:g}")
        time_s = _instant_s(row[self.time], self.time_zone)
        if time_s in known.get(zone, ()):
            # The hour that occurs twice when daylight saving time ends.
            time_s = _instant_s(row[self.time], self.time_zone, fold=1)
        is_estimated = self.estimated is not None and str(row[self.estimated]).strip().casefold() == "true"
        return zone, time_s, value, is_estimated


def _place(names: Sequence[str], wanted: str, known: Sequence[str]) -> int | None:
    """Index of the wanted column, or if none is given of the first one with a known name."""
    if wanted:
        wanted = wanted.strip().replace("₂", "2").casefold()
        return names.index(wanted) if wanted in names else None
    found = [index for name in known for index, text in enumerate(names) if text.startswith(name) or f" {name}" in text]
    life_cycle = [index for index in found if any(word in names[index] for word in _LIFE_CYCLE)]
    return next(iter(life_cycle or found), None)


def _unit_factor(name: str, measure: Measure) -> float:
    """Factor of the unit that a column's name states, to gCO2eq/kWh or currency/kWh; 1 where it states none."""
    energy = 0.001 if re.search(r"(/|per) *mwh", name) else 1.0
    if measure is Measure.PRICE:
        return energy
    mass = re.search(r"\b(lbs?|kg|t|tonnes?|tons?) *(co2(-?eq?)?)? *(/|per) *[km]wh", name)
    return energy * (_GRAMS[mass[1]] if mass else 1.0)


def _csv(path: Path) -> tuple[list[str], Iterable[tuple[int, Sequence[Any]]]]:
    text = path.read_text(encoding="utf-8-sig")
    first = text.partition("\n")[0]
    reader = csv.reader(text.splitlines(), delimiter=";" if first.count(";") > first.count(",") else ",")
    header = next(reader, [])
    return header, ((reader.line_num, row) for row in reader if row)


def _parquet(path: Path) -> tuple[list[str], Iterator[tuple[int, Sequence[Any]]]]:
    try:
        import polars as pl
    except ImportError:
        raise GridSourceError(f"{path}: Parquet needs polars; install joulie[parquet], or give a CSV file") from None
    try:
        table = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise GridSourceError(f"{path}: {error}") from None
    return table.columns, enumerate(table.iter_rows(), start=1)


def _zone_table(points: dict[float, float], estimated_s: frozenset[float]) -> ZoneTable:
    steps_s = np.diff(sorted(points))
    step_s = float(np.median(steps_s)) if steps_s.size else SECONDS_PER_HOUR
    return ZoneTable(of_points(list(points.items()), step_s), step_s, estimated_s)


def _number(found: Any) -> float:
    if found is None or found == "":
        raise ValueError("no value")
    value = float(found if isinstance(found, int | float) else str(found).strip())
    if not math.isfinite(value):
        raise ValueError(f"invalid value {found}: expected a finite number")
    return value


def _instant_s(found: Any, zone: ZoneInfo, fold: int = 0) -> float:
    """Seconds since the epoch of a time, or of the start of a period (``01.01.2024 00:00 - 01.01.2024 01:00``)."""
    moment = found if isinstance(found, datetime) else _moment(str(found).split(" - ")[0].strip())
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone, fold=fold)
    return moment.astimezone(UTC).timestamp()


def _moment(text: str) -> datetime:
    if _EPOCH.fullmatch(text):
        return datetime.fromtimestamp(float(text), UTC)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        for form in _FORMATS:
            try:
                return datetime.strptime(text, form)  # noqa: DTZ007 - the zone comes from the options
            except ValueError:
                continue
    raise ValueError(f"invalid time {text[:40]!r}")


def _zone_info(name: str, file: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise GridSourceError(f"{file}: unknown time zone {name!r}") from None
