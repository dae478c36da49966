"""Job tables from files: which columns to read, and the columns once read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from joulie.domain.units import FloatArray, IntArray


class JobTableError(ValueError):
    """Invalid job table; the message says where, what is wrong and what to do."""


@dataclass(frozen=True)
class ColumnRef:
    """Reference to a column of a file.

    Attributes:
        name: header of the column.
        factor: conversion from the column's unit to SI (3600 for hours); 1 for counts and fractions.
    """

    name: str
    factor: float = 1.0


@dataclass(frozen=True)
class JobTableSpec:
    """A job table file, and how to read it.

    Attributes:
        path: the file.
        format: its file format.
        columns: the column of each given field of `JobColumns` (``arrival``, ``duration``, ``cores``, ``gpus``,
            ``cpu_util``, ``gpu_util``, ``class``).
        defaults: value of each field without a column, for every job.
    """

    path: Path
    format: Literal["csv", "parquet"]
    columns: Mapping[str, ColumnRef]
    defaults: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class JobColumns:
    """Jobs in the order of the file; every array has shape ``(n_jobs,)``.

    Attributes:
        place: source location of a job up to its number: ``jobs.csv:`` or ``jobs.parquet: row ``.
        line: number of each job's line (CSV) or row (Parquet), from 1.
        arrival_s: arrival, s, not negative.
        duration_s: run time, s, above zero.
        cores: CPU cores, at least 1.
        gpus: GPUs, at least 0.
        cpu_util: mean utilisation of the cores, 0..1.
        gpu_util: mean utilisation of the GPUs, 0..1.
        job_class: index into `class_names`.
        class_names: classes in the order of their first appearance.
    """

    place: str
    line: IntArray
    arrival_s: FloatArray
    duration_s: FloatArray
    cores: IntArray
    gpus: IntArray
    cpu_util: FloatArray
    gpu_util: FloatArray
    job_class: IntArray
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.arrival_s)
