"""Reads the mean use of pods from a recording, for a replay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import polars as pl

from joulie.adapters.recording_files import RecordingFiles
from joulie.domain.recording import PodRecord
from joulie.domain.units import SECONDS_PER_HOUR, FloatArray
from joulie_lab.simulation.replay.past import Use

_SUMS = ("cpu_cores", "gpu_pct")


def mean_use(files: RecordingFiles, pods: Sequence[PodRecord]) -> dict[str, Use]:
    """Mean measured use of pods by uid, read hour by hour.

    Of pods of one name, the use of an hour counts for the one that had started last by its end.

    Raises:
        RecordingError: a file is damaged.
    """
    named: defaultdict[tuple[str, str], list[PodRecord]] = defaultdict(list)
    for one in pods:
        named[one.namespace, one.name].append(one)
    totals: defaultdict[str, FloatArray] = defaultdict(lambda: np.zeros((2, 2)))
    for part in files.parts("use"):
        sums = [pl.col(name).sum().alias(f"{name}_sum") for name in _SUMS]
        counts = [pl.col(name).count().alias(f"{name}_count") for name in _SUMS]
        grouped = part.group_by("namespace", "pod").agg(pl.col("time_s").max(), *sums, *counts)
        for namespace, pod, time_s, *values in grouped.iter_rows():
            owner = _running(named.get((namespace, pod), ()), time_s)
            if owner is not None:
                totals[owner.uid] += np.array(values).reshape(2, 2)
    return {uid: Use(_quotient(total[:, 0]), _quotient(total[:, 1], 100.0)) for uid, total in totals.items()}


def _running(pods: Sequence[PodRecord], time_s: float) -> PodRecord | None:
    started = [one for one in pods if one.started_s is not None and one.started_s <= time_s]
    return max(started, key=lambda one: one.started_s or 0.0, default=None)


def _quotient(total: FloatArray, scale: float = 1.0) -> float | None:
    return float(total[0] / total[1] / scale) if total[1] else None


def steps_per_hour(files: RecordingFiles) -> int:
    """Number of steps in an hour."""
    return round(SECONDS_PER_HOUR / files.head.step_s)
