"""Reads published carbon intensities of zones over a year, and makes synthetic zones for samples.

The files are those of github.com/dos-group/lets-wait-awhile (``data/``; no licence stated) and of
github.com/umassos/decarbonization-potential (``downloaded_carbon_data/``; Electricity Maps, ODbL). They are not part of
Joulie and must be fetched to run the benchmark.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from joulie.domain.grid.series import Series, of_points
from joulie.domain.units import FloatArray
from joulie_lab.adapters.published.errors import PublishedDataError

HOUR_S = 3600.0
VALUE_COLUMNS = ("Carbon Intensity", "Carbon Intensity gCO₂eq/kWh (LCA)")
"""Value columns of the two sources: life-cycle intensities, as in Electricity Maps' API."""


class Zone(NamedTuple):
    """Carbon intensity of one zone."""

    series: Series
    """Carbon intensity by step, gCO2eq/kWh."""
    step_s: float
    """Step of decisions, s; shorter published steps are averaged."""


class PublishedZone(NamedTuple):
    """Source of one published year."""

    file: str
    step_s: float
    home: str


_WAIT = "github.com/dos-group/lets-wait-awhile"
_POTENTIAL = "github.com/umassos/decarbonization-potential"
PUBLISHED: Mapping[str, PublishedZone] = MappingProxyType(
    {
        "DE": PublishedZone("ger_ci.csv", HOUR_S / 2.0, _WAIT),
        "GB": PublishedZone("gb_ci.csv", HOUR_S / 2.0, _WAIT),
        "CISO-2021": PublishedZone("US-CAL-CISO_2021_hourly.csv", HOUR_S, _POTENTIAL),
        "CISO-2022": PublishedZone("US-CAL-CISO_2022_hourly.csv", HOUR_S, _POTENTIAL),
        "ES-2021": PublishedZone("ES_2021_hourly.csv", HOUR_S, _POTENTIAL),
    }
)


def read_intensity(lines: Iterable[str]) -> Series:
    """Read carbon intensity in gCO2eq/kWh from a file of either source; times are in UTC.

    Missing steps repeat the previous value: both sources have gaps.

    Raises:
        PublishedDataError: the file is not from one of the sources.
    """
    rows = csv.DictReader(lines)
    column = next((name for name in VALUE_COLUMNS if name in (rows.fieldnames or ())), None)
    if column is None:
        raise PublishedDataError(f"has no column {' or '.join(map(repr, VALUE_COLUMNS))}")
    time_column = (rows.fieldnames or [""])[0]
    try:
        points = [
            (datetime.fromisoformat(row[time_column]).replace(tzinfo=UTC).timestamp(), float(row[column]))
            for row in rows
            if row[column]
        ]
    except (ValueError, TypeError) as error:
        raise PublishedDataError(f"line {rows.line_num}: {error}") from error
    if len(points) < 2:
        raise PublishedDataError("has no values")
    return of_points(points, _usual_step_s(points))


def synthetic_zones(seed: int, days: int = 60) -> dict[str, Zone]:
    """Two synthetic zones in hourly steps: one with a high share of solar power, one with wind power."""
    rng = np.random.default_rng(seed)
    hours = np.arange(24 * days)
    daytime = 2.0 * np.pi * hours / 24.0
    weekend = np.where(hours // 24 % 7 < 2, -25.0, 0.0)
    evening = -20.0 * np.cos(daytime - 1.2)
    sun = np.maximum(0.0, -np.cos(daytime)) * np.repeat(rng.uniform(0.6, 1.0, days), 24)
    return {
        "sunny": _hourly(260.0 - 150.0 * sun + evening + weekend + _lasting(rng, hours.size, 6.0, 5.0)),
        "windy": _hourly(300.0 - 60.0 * sun + evening + weekend + _lasting(rng, hours.size, 24.0, 12.0)),
    }


def _hourly(values: FloatArray) -> Zone:
    start_s = datetime(2024, 1, 6, tzinfo=UTC).timestamp()
    edges_s = start_s + HOUR_S * np.arange(values.size + 1)
    return Zone(Series(edges_s[:-1], np.maximum(values, 20.0), edges_s[-1]), HOUR_S)


def _lasting(rng: np.random.Generator, count: int, memory_h: float, shock: float) -> FloatArray:
    """Smooth noise with a correlation time of about `memory_h` hours, like weather."""
    kernel = np.exp(-np.arange(8.0 * memory_h) / memory_h)
    smooth = np.convolve(kernel, np.full(3, 1.0 / 3.0))
    noise: FloatArray = np.convolve(rng.normal(0.0, shock, count + smooth.size - 1), smooth, mode="valid")
    return noise


def _usual_step_s(points: list[tuple[float, float]]) -> float:
    return float(np.median(np.diff(np.unique([time_s for time_s, _value in points]))))
