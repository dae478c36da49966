"""A recording as a folder of Parquet files; the layout is described in docs/reference/recording.md.

Every file is complete or absent: it is written beside its place and then renamed. An interrupted recording is resumed
by writing what is absent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from joulie.domain.quantities import JOULES_PER_KWH, SECONDS_PER_HOUR
from joulie.domain.recording import FORMAT, NodeRecord, Period, PodRecord, merge_pods
from joulie.domain.trial.progress import Course
from joulie.domain.trial.workload_measure import Accounted, Used
from joulie.domain.units import FloatArray
from joulie.domain.usage import PodKey

_HEAD = "recording.json"
_ONCE = "once"
SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "use": {"time_s": pl.Float64, "namespace": pl.String, "pod": pl.String, "cpu_cores": pl.Float64,
            "gpu_pct": pl.Float64},
    "progress": {"time_s": pl.Float64, "namespace": pl.String, "pod": pl.String, "increase": pl.Float64},
    "power": {"time_s": pl.Float64, "node": pl.String, "power_w": pl.Float64},
    "energy": {"uid": pl.String, "namespace": pl.String, "pod": pl.String, "node": pl.String, "zone": pl.String,
               "from_s": pl.Float64, "until_s": pl.Float64, "cpu_j": pl.Float64, "mem_j": pl.Float64,
               "gpu_j": pl.Float64, "energy_j": pl.Float64, "measured_j": pl.Float64},
    "signals": {"zone": pl.String, "from_s": pl.Float64, "until_s": pl.Float64, "intensity_g_per_kwh": pl.Float64,
                "price_per_kwh": pl.Float64},
}  # fmt: skip
"""Columns of the tables that are no dataclass of `joulie.domain.recording`."""
_RECORDS = {"pods": PodRecord, "nodes": NodeRecord}
_TYPES = {
    "str": pl.String,
    "str | None": pl.String,
    "float | None": pl.Float64,
    "int | None": pl.Int64,
    "int": pl.Int64,
}
TABLES = (*_RECORDS, *SCHEMAS)


class RecordingError(ValueError):
    """A folder that is no recording, or cannot be written; the message says why and what to do."""


@dataclass(frozen=True)
class Head:
    """What a recording is of.

    Attributes:
        period: hours that it covers.
        step_s: time between two samples of use and power, s.
        anonymised: whether names are replaced.
        format: version of the layout.
    """

    period: Period
    step_s: float
    anonymised: bool
    format: int = FORMAT


class RecordingFiles:
    """The files of one recording.

    Attributes:
        folder: where they are.
        head: what it is of.
    """

    def __init__(self, folder: Path, head: Head) -> None:
        self.folder = folder
        self.head = head

    @classmethod
    def open(cls, folder: Path) -> RecordingFiles:
        """Open a recording, complete or not.

        Raises:
            RecordingError: the folder holds none, or one of another version.
        """
        try:
            stored = json.loads((folder / _HEAD).read_text(encoding="utf-8"))
            head = Head(**{**stored, "period": Period(**stored["period"])})
        except FileNotFoundError:
            raise RecordingError(
                f"{folder}: not a recording: {_HEAD} is missing; make one with joulie record"
            ) from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RecordingError(f"{folder / _HEAD}: cannot be read: {error}") from error
        if head.format != FORMAT:
            raise RecordingError(f"{folder}: format {head.format}; this program reads format {FORMAT}")
        return cls(folder, head)

    @classmethod
    def create(cls, folder: Path, head: Head) -> RecordingFiles:
        """Create a recording, or open the one that is there to resume it; then that one's head counts.

        Raises:
            RecordingError: the folder cannot be written, holds something else, or has other settings.
        """
        if (folder / _HEAD).exists():
            there = cls.open(folder)
            if (there.head.step_s, there.head.anonymised) != (head.step_s, head.anonymised):
                raise RecordingError(
                    f"{folder}: was begun with another --step or --anonymise; use the same, or another folder"
                )
            return there
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise RecordingError(f"{folder}: is not empty and not a recording; name another folder with --out")
            for table in TABLES:
                (folder / table).mkdir()
            _replace(folder / _HEAD, json.dumps(asdict(head), indent=2).encode())
        except OSError as error:
            raise RecordingError(f"{folder}: cannot be written: {error.strerror}") from error
        return cls(folder, head)

    def has(self, table: str, hour: Period | None = None) -> bool:
        """Whether the part of a table was written: that of an hour, or the one that no hour has."""
        return self._path(table, hour).exists()

    def write(self, table: str, rows: Sequence[Mapping[str, object]], hour: Period | None = None) -> None:
        """Write a part of a table.

        Raises:
            RecordingError: it cannot be written.
        """
        path = self._path(table, hour)
        beside = path.with_suffix(".part")
        try:
            path.parent.mkdir(exist_ok=True)  # a table that was added since the recording began
            pl.DataFrame(rows, schema=dict(_schema(table)), orient="row").write_parquet(beside)
            beside.replace(path)
        except OSError as error:
            raise RecordingError(f"{path}: cannot be written: {error.strerror or error}") from error

    def parts(self, table: str) -> Iterator[pl.DataFrame]:
        """The parts of a table, hour by hour; the one that no hour has comes last.

        Raises:
            RecordingError: a file is damaged.
        """
        for path in sorted((self.folder / table).glob("*.parquet")):
            try:
                yield pl.read_parquet(path, schema=dict(_schema(table)), missing_columns="insert")
            except (OSError, pl.exceptions.PolarsError) as error:
                reason = str(error).splitlines()[0]
                raise RecordingError(f"{path}: {reason}; delete it and record again") from error

    def table(self, table: str) -> pl.DataFrame:
        """A whole table."""
        return pl.concat([pl.DataFrame(schema=dict(_schema(table))), *self.parts(table)])

    def pods(self) -> list[PodRecord]:
        """The pods, each once, in order of arrival."""
        return merge_pods(PodRecord(**row) for part in self.parts("pods") for row in part.to_dicts())

    def nodes(self) -> list[NodeRecord]:
        """The nodes, ordered by name."""
        return [NodeRecord(**row) for row in self.table("nodes").sort("node").to_dicts()]

    def measured_w(self, names: Sequence[str]) -> tuple[FloatArray, FloatArray]:
        """Ends of the steps, s after the start, and measured power of nodes, W, shape ``(n_nodes, n_steps)``.

        Power is NaN where it was not measured.

        Raises:
            RecordingError: a file is damaged.
        """
        head = self.head
        steps = round((head.period.until_s - head.period.from_s) / head.step_s)
        power_w = np.full((len(names), steps), np.nan)
        index = {name: place for place, name in enumerate(names)}
        for part in self.parts("power"):
            own = part.filter(pl.col("node").is_in(list(index)))
            rows = np.array([index[name] for name in own["node"]], dtype=np.int64)
            place = np.rint((own["time_s"].to_numpy() - head.period.from_s) / head.step_s).astype(np.int64) - 1
            inside = (place >= 0) & (place < steps)
            power_w[rows[inside], place[inside]] = own["power_w"].to_numpy()[inside]
        return np.arange(1, steps + 1, dtype=np.float64) * head.step_s, power_w

    def progress(self) -> dict[PodKey, Course]:
        """By how much the progress metric of each pod that names one grew in each step of which that is known.

        Raises:
            RecordingError: a file is damaged.
        """
        head = self.head
        number = ((pl.col("time_s") - head.period.from_s) / head.step_s).round().cast(pl.Int64) - 1
        rows = self.table("progress").with_columns(number.alias("step")).filter(pl.col("step") >= 0)
        by_pod = rows.unique(["namespace", "pod", "step"]).sort("step").partition_by("namespace", "pod", as_dict=True)
        return {
            (str(key[0]), str(key[1])): Course(own["step"].to_numpy(), own["increase"].to_numpy())
            for key, own in by_pod.items()
        }

    def accounted(self) -> Accounted:
        """What the ledger knew of each pod, and the signals by hour, over zones by the energy of the whole recording.

        The mean over zones is the same for every pod, wherever it ran.

        Raises:
            RecordingError: a file is damaged.
        """
        hour = (pl.col("from_s") / SECONDS_PER_HOUR).floor().cast(pl.Int64).alias("hour")
        energy = self.table("energy").with_columns(hour, kwh=pl.col("energy_j") / JOULES_PER_KWH)
        signals = self.table("signals").with_columns(hour)
        joined = energy.join(signals.drop("from_s", "until_s"), on=["zone", "hour"], how="left", maintain_order="left")
        # A sum with an unknown part is unknown.
        pods = joined.group_by("uid", maintain_order=True).agg(
            pl.col("kwh").sum(),
            carbon=(pl.col("kwh") * pl.col("intensity_g_per_kwh").fill_null(math.nan)).sum(),
            cost=(pl.col("kwh") * pl.col("price_per_kwh").fill_null(math.nan)).sum(),
            covered_s=(pl.col("until_s") - pl.col("from_s")).sum(),
        )
        used = {uid: Used(*rest) for uid, *rest in pods.iter_rows()}
        weights = energy.group_by("zone").agg(weight=pl.col("kwh").sum())
        weighted = signals.join(weights, on="zone")
        return Accounted(used, _by_hour(weighted, "intensity_g_per_kwh"), _by_hour(weighted, "price_per_kwh"))

    def missing_hours(self, table: str) -> list[Period]:
        """Hours of which a table has no part."""
        return [hour for hour in self.head.period.hours if not self.has(table, hour)]

    def _path(self, table: str, hour: Period | None) -> Path:
        name = _ONCE if hour is None else f"{datetime.fromtimestamp(hour.from_s, UTC):%Y-%m-%dT%H}"
        return self.folder / table / f"{name}.parquet"


def _schema(table: str) -> Mapping[str, Any]:
    record = _RECORDS.get(table)
    return SCHEMAS[table] if record is None else {one.name: _TYPES[str(one.type)] for one in fields(record)}


def _by_hour(weighted: pl.DataFrame, column: str) -> dict[int, float]:
    """Mean of a signal over zones by their weight, by hour."""
    known = weighted.filter(pl.col(column).is_not_null() & (pl.col("weight") > 0.0))
    found = known.group_by("hour").agg((pl.col(column) * pl.col("weight")).sum() / pl.col("weight").sum())
    return {int(hour): float(value) for hour, value in found.iter_rows()}


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_suffix(".part")
    beside.write_bytes(content)
    beside.replace(path)
