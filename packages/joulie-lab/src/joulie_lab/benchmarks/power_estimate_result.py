"""Result types of benchmark power-estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from joulie_lab.benchmarks.results import Figures


class TableData(Figures, frozen=True):
    """What is used of the published table, and what is left out or corrected, by reason."""

    rows: int
    used: int
    left_out: Mapping[str, int]
    corrected: Mapping[str, int]
    vendors: int
    cpus: int
    with_tdp: int
    first_year: int
    last_year: int


class EndFigures(Figures, frozen=True):
    """Power of a size, W and exponent, and the factors that bound it."""

    scale_w: float
    exponent: float
    low: float
    high: float


class SplitFigures(Figures, frozen=True):
    """Share of what was left out that lies within its interval: in all splits together, in each, in the worst one.

    `factor_for_each` is how much wider both ends would have to be for the promise to hold in each split.
    """

    covered: float
    observations: int
    of_splits: Mapping[str, float]
    worst: float
    worst_is: str
    worst_observations: int
    factor_for_each: float


class CatalogueFigures(Figures, frozen=True):
    """Servers whose CPUs have a measured curve in the catalogue, by that curve."""

    servers: int
    covered: float
    median_measured_to_curve: float


class BetweenFigures(Figures, frozen=True):
    """Points of whole curves between idle and full load, and the share of them within the interval."""

    curves: int
    points: int
    covered: float


class BandFigures(Figures, frozen=True):
    """An interval and the power in it that is expected, W, by load."""

    low: Sequence[float]
    expected: Sequence[float]
    high: Sequence[float]


class ExampleServer(Figures, frozen=True):
    """One server: measured power, W, and the intervals by basis."""

    name: str
    loads: Sequence[float]
    measured_w: Sequence[float]
    ranges_w: Mapping[str, BandFigures]


class RestOfServer(Figures, frozen=True):
    """What of a server's power goes with its TDP, with its memory and with neither."""

    w_per_w_of_tdp: float
    w_per_gib: float
    w_per_server: float
    median_share: float
    assumed_least_share: float


ByLoad = Mapping[str, Mapping[str, SplitFigures]]


class PowerEstimateResult(Figures, frozen=True):
    """The result; by basis and load, held out by how it was calibrated first."""

    coverage: float
    data: TableData
    calibrated: Mapping[str, Mapping[str, EndFigures]]
    held_out: Mapping[str, Mapping[str, ByLoad]]
    catalogue: Mapping[str, CatalogueFigures]
    shipped: Mapping[str, Mapping[str, float]]
    between: BetweenFigures
    example: ExampleServer
    errors: Mapping[str, Mapping[str, float]]
    rest_of_server: Mapping[str, RestOfServer]
