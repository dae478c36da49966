"""Benchmark power-estimate: coverage of the intervals of power estimates on held-out servers.

For each basis of `joulie.domain.power_estimate` the factors are calibrated without a held-out part of the servers, and
the share of held-out servers within the interval is measured. Two calibrations are compared. ``plain`` takes the
conformal quantiles of all servers together: they hold 90 % of new servers if these are drawn like the old ones.
``groups``, Joulie's, takes the widest 5 % and 95 % quantiles of any vendor's or year's servers, and a margin, for a new
server comes of a vendor and a year of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from joulie.domain.hardware import CpuModel, Provenance
from joulie.domain.hardware.builtin import BUILTIN_CATALOGUE
from joulie.domain.hardware.catalogue import Quality
from joulie.domain.hardware.models import CapRange
from joulie.domain.hardware.resolve import CpuDevices, ResolvedHardware
from joulie.domain.power.cpu import PLATFORM_SHARE, CpuPower
from joulie.domain.power_estimate import COVERAGE, LOADS, Band, Basis, End, Ends, estimate_server_power
from joulie.domain.units import BoolArray, FloatArray, IntArray
from joulie_lab.adapters.published.specpower import PUBLISHED_CURVES, TDP_W, System, Systems
from joulie_lab.benchmarks.power_estimate_result import (
    BandFigures,
    BetweenFigures,
    CatalogueFigures,
    EndFigures,
    ExampleServer,
    PowerEstimateResult,
    RestOfServer,
    SplitFigures,
    TableData,
)

SEEDS = tuple(range(20))
FIRST_LATER_YEAR = 2020
"""First year that is estimated from the years before it: five to learn from."""
LEAST_IN_GROUP = 8
"""Observations of a vendor or year that its quantiles are taken from; fewer say nothing about ends."""
MARGIN = 1.10
"""Factor beyond the widest ends. Chosen with the figures in view: with it, what the others say holds 90 % of the
servers of every single vendor, and of every single year."""
LEAST_SHOWN = 10
"""Observations of a group that is named as the worst one."""
EXAMPLE_CORES = 56
"""Of two Xeon Platinum 8180."""
TAIL = (1.0 - COVERAGE) / 2.0
LOAD_NAMES = Ends._fields


@dataclass(frozen=True, eq=False)
class Servers:
    """The servers as arrays of shape ``(n_servers,)``, and their power by load."""

    systems: tuple[System, ...]
    vendor: IntArray
    year: IntArray
    power_w: Mapping[str, FloatArray]
    vendors: tuple[str, ...]

    @classmethod
    def of(cls, systems: Sequence[System]) -> Servers:
        """From the rows of the table."""
        vendors = tuple(sorted({system.vendor for system in systems}))
        return cls(
            tuple(systems),
            np.array([vendors.index(system.vendor) for system in systems]),
            np.array([system.year for system in systems]),
            {
                "idle": np.array([system.idle_w for system in systems]),
                "full": np.array([system.full_w for system in systems]),
            },
            vendors,
        )


@dataclass(frozen=True, eq=False)
class Observations:
    """What estimates start from, and what was measured; arrays of shape ``(n,)``.

    Attributes:
        size: see `End`.
        power_w: measured, W.
        server: number of the server that is estimated.
        lender: of the one whose curve is used; the same one where none is.
    """

    size: FloatArray
    power_w: FloatArray
    server: IntArray
    lender: IntArray

    def where(self, chosen: BoolArray) -> Observations:
        """Those that are chosen."""
        return Observations(self.size[chosen], self.power_w[chosen], self.server[chosen], self.lender[chosen])


class Split(NamedTuple):
    """Servers that the calibration sees, and those that are estimated; shapes ``(n_servers,)``."""

    name: str
    known: BoolArray
    tested: BoolArray


Calibrate = Callable[[Observations], End]


def measure(table: Systems, on_stage: Callable[[str], None]) -> PowerEstimateResult:
    """All figures of the benchmark.

    Args:
        table: published results.
        on_stage: told what is measured next.
    """
    servers = Servers.of(table.kept)
    held_out: dict[str, dict[str, dict[str, dict[str, SplitFigures]]]] = {way: {} for way in WAYS}
    calibrated: dict[Basis, Ends] = {}
    for basis in Basis:
        on_stage(f"by {basis.value}")
        observed = {load: observations(servers, basis, load) for load in LOAD_NAMES}
        for way in WAYS:
            calibrate = calibration(servers, basis, way)
            held_out[way][basis.value] = {load: _held_out(servers, observed[load], calibrate) for load in LOAD_NAMES}
        calibrate = calibration(servers, basis, "groups")
        calibrated[basis] = Ends(*(calibrate(observed[load]) for load in LOAD_NAMES))
    on_stage("loads between the ends, other rules, the rest of the server")
    return PowerEstimateResult(
        coverage=COVERAGE,
        data=_data(table, servers),
        calibrated={
            basis.value: {load: EndFigures(**getattr(ends, load)._asdict()) for load in LOAD_NAMES}
            for basis, ends in calibrated.items()
        },
        held_out=held_out,
        catalogue={load: _catalogue(servers, load) for load in LOAD_NAMES},
        shipped={basis.value: _shipped(servers, basis) for basis in (Basis.TDP, Basis.CORES)},
        between=_between(calibrated),
        example=_example(calibrated),
        errors={load: _errors(servers, load) for load in LOAD_NAMES},
        rest_of_server={load: _rest(servers, load) for load in LOAD_NAMES},
    )


def observations(servers: Servers, basis: Basis, load: str) -> Observations:
    """What is known of each server on a basis.

    A curve is that of another vendor's server with the same CPUs, in proportion to the sockets; each such pair is one
    observation. Cores are physical ones, as nodes count them.
    """
    power_w, systems = servers.power_w[load], servers.systems
    sizes: list[tuple[float, int, int]]
    if basis is Basis.CURVE:
        sizes = [
            (power_w[lender] * systems[one].chips / systems[lender].chips, one, lender)
            for one, lender in permutations(range(len(systems)), 2)
            if systems[one].cpu == systems[lender].cpu and systems[one].vendor != systems[lender].vendor
        ]
    elif basis is Basis.TDP:
        tdps_w = [system.tdp_w for system in systems]
        sizes = [(tdp_w, one, one) for one, tdp_w in enumerate(tdps_w) if tdp_w is not None]
    else:
        sizes = [(its.cores, one, one) for one, its in enumerate(systems)]
    size, one, lender = (np.array(column) for column in zip(*sizes, strict=True))
    return Observations(size.astype(np.float64), power_w[one], one, lender)


def calibration(servers: Servers, basis: Basis, way: str) -> Calibrate:
    """How a basis is calibrated from observations, in one of `WAYS`."""
    bounds = WAYS[way]

    def calibrate(seen: Observations) -> End:
        exponent = 1.0
        if basis is Basis.CORES:
            exponent = float(np.polyfit(np.log(seen.size), np.log(seen.power_w), 1)[0])
        ratio = seen.power_w / seen.size**exponent
        # A curve is what is expected: it was measured.
        scale_w = 1.0 if basis is Basis.CURVE else float(np.median(ratio))
        return End(scale_w, exponent, *bounds(servers, seen, ratio / scale_w))

    return calibrate


def _plain(_: Servers, __: Observations, ratio: FloatArray) -> tuple[float, float]:
    """Split-conformal ends: order statistics with the correction for a finite sample."""
    ordered = np.sort(ratio)
    rank = int(TAIL * (len(ordered) + 1))
    return (float(ordered[rank - 1]), float(ordered[-rank])) if rank else (0.0, np.inf)


def _by_groups(servers: Servers, seen: Observations, ratio: FloatArray) -> tuple[float, float]:
    """The widest ends of any vendor's or year's observations, and `MARGIN`."""
    ends = []
    for group in (servers.vendor[seen.server], servers.year[seen.server]):
        for value in np.unique(group):
            own = ratio[group == value]
            if len(own) >= LEAST_IN_GROUP:
                ends.append(np.quantile(own, (TAIL, 1.0 - TAIL)))
    if not ends:
        return 0.0, np.inf
    lows, highs = np.transpose(ends)
    return float(lows.min() / MARGIN), float(highs.max() * MARGIN)


WAYS: Mapping[str, Callable[[Servers, Observations, FloatArray], tuple[float, float]]] = MappingProxyType(
    {"plain": _plain, "groups": _by_groups}
)


def _halves(servers: Servers) -> Iterator[Split]:
    for seed in SEEDS:
        known = np.random.default_rng(seed).permutation(len(servers.systems)) % 2 == 0
        yield Split(f"seed {seed}", known, ~known)


def _vendor_halves(servers: Servers) -> Iterator[Split]:
    for seed in SEEDS:
        known = (np.random.default_rng(seed).permutation(len(servers.vendors)) % 2 == 0)[servers.vendor]
        yield Split(f"seed {seed}", known, ~known)


def _each_vendor(servers: Servers) -> Iterator[Split]:
    for number, name in enumerate(servers.vendors):
        yield Split(name, servers.vendor != number, servers.vendor == number)


def _each_year(servers: Servers) -> Iterator[Split]:
    for year in np.unique(servers.year):
        yield Split(str(year), servers.year != year, servers.year == year)


def _later_years(servers: Servers) -> Iterator[Split]:
    for year in np.unique(servers.year[servers.year >= FIRST_LATER_YEAR]):
        yield Split(str(year), servers.year < year, servers.year == year)


SPLITS: Mapping[str, Callable[[Servers], Iterator[Split]]] = MappingProxyType(
    {
        "halves": _halves,
        "vendor_halves": _vendor_halves,
        "vendor": _each_vendor,
        "year": _each_year,
        "later_year": _later_years,
    }
)
"""Random halves of the servers, and of the vendors; each vendor, each year by all others; each year by those before."""
GROUPED_SPLITS = ("vendor", "year", "later_year")
"""Those that leave out a group with a name."""


def _held_out(servers: Servers, observed: Observations, calibrate: Calibrate) -> dict[str, SplitFigures]:
    return {name: _coverage(observed, calibrate, splits(servers)) for name, splits in SPLITS.items()}


def _coverage(observed: Observations, calibrate: Calibrate, splits: Iterator[Split]) -> SplitFigures:
    covered: list[BoolArray] = []
    shares, factors, sizes = {}, {}, {}
    for split in splits:
        seen = observed.where(split.known[observed.server] & split.known[observed.lender])
        in_reach = split.known | split.tested
        tested = observed.where(split.tested[observed.server] & in_reach[observed.lender])
        if not (len(seen.size) and len(tested.size)):
            continue
        factor = _factor(calibrate(seen), tested)
        covered.append(factor <= 1.0)
        if len(factor) >= LEAST_SHOWN:
            shares[split.name], sizes[split.name] = float(covered[-1].mean()), len(factor)
            factors[split.name] = float(np.quantile(factor, COVERAGE, method="higher"))
    every = np.concatenate(covered)
    worst = min(shares, key=lambda name: shares[name])
    return SplitFigures(
        covered=float(every.mean()),
        observations=len(every),
        of_splits=shares,
        worst=shares[worst],
        worst_is=worst,
        worst_observations=sizes[worst],
        factor_for_each=max(1.0, *factors.values()),
    )


def _factor(end: End, tested: Observations) -> FloatArray:
    """How much wider both ends would have to be to hold what was measured; up to 1 within the interval."""
    ratio = tested.power_w / end.expected_w(tested.size)
    return np.maximum(end.low / ratio, ratio / end.high)


def _data(table: Systems, servers: Servers) -> TableData:
    return TableData(
        rows=table.rows,
        used=len(servers.systems),
        left_out=dict(table.left_out),
        corrected=dict(table.corrected),
        vendors=len(servers.vendors),
        cpus=len({system.cpu for system in servers.systems}),
        with_tdp=sum(system.tdp_w is not None for system in servers.systems),
        first_year=int(servers.year.min()),
        last_year=int(servers.year.max()),
    )


def _measured_model(cpu: str) -> CpuModel | None:
    """The catalogue's model of a CPU, if its curve was measured."""
    model = BUILTIN_CATALOGUE.cpu(cpu).model
    return model if model and model.evidence["curve_w"].provenance is Provenance.MEASURED else None


def _catalogue(servers: Servers, load: str) -> CatalogueFigures:
    """Servers whose CPUs have a measured curve in the catalogue, by that curve; none of them is calibrated on."""
    models = [_measured_model(system.cpu) for system in servers.systems]
    known = np.array([model is None for model in models])
    observed = observations(servers, Basis.CURVE, load)
    end = calibration(servers, Basis.CURVE, "groups")(observed.where(known[observed.server]))
    util = float(load == "full")
    curve_w = np.array(
        [
            np.nan if model is None else float(CpuPower.of(model, system.chips).wall_w(util))
            for model, system in zip(models, servers.systems, strict=True)
        ]
    )
    numbers = np.flatnonzero(~known)
    tested = Observations(curve_w[numbers], servers.power_w[load][numbers], numbers, numbers)
    return CatalogueFigures(
        servers=len(numbers),
        covered=float(np.mean(_factor(end, tested) <= 1.0)),
        median_measured_to_curve=float(np.median(tested.power_w / tested.size)),
    )


def _shipped(servers: Servers, basis: Basis) -> dict[str, float]:
    """Share of all servers within the interval that Joulie gives a node by its TDP, or by its cores alone."""
    known = [(number, _node(system, basis)) for number, system in enumerate(servers.systems)]
    numbers = [number for number, node in known if node is not None]
    nodes = [node for _, node in known if node is not None]
    covered = {}
    for load in LOAD_NAMES:
        estimate = estimate_server_power(nodes, np.full(len(nodes), float(load == "full")), BUILTIN_CATALOGUE)
        power_w = servers.power_w[load][numbers]
        covered[load] = float(np.mean((power_w >= estimate.low_w) & (power_w <= estimate.high_w)))
    return covered


def _node(system: System, basis: Basis) -> ResolvedHardware | None:
    """A node of this kind whose CPU model nobody knows; None where its TDP should be known, and is not."""
    limits = None
    if basis is Basis.TDP:
        if system.tdp_w is None:
            return None
        of_socket_w = system.tdp_w / system.chips
        limits = CapRange(0.0, of_socket_w, of_socket_w)
    cpu = CpuDevices(None, None, system.chips, float(system.cores), limits, Quality.UNAVAILABLE)
    return ResolvedHardware(cpu, None, "allocatable")


class WholeCurve(NamedTuple):
    """A server of which the power at all of `LOADS` is at hand, W, and its TDP, W."""

    tdp_w: float
    curve_w: FloatArray


def whole_curves() -> list[WholeCurve]:
    """The measured curves of the catalogue, and `PUBLISHED_CURVES`."""
    catalogued = [
        WholeCurve(model.tdp_w * model.curve_sockets, np.array(model.curve_w))
        for model in BUILTIN_CATALOGUE.cpus
        if _measured_model(model.key) is not None
    ]
    return catalogued + [
        WholeCurve(TDP_W[one.cpu] * one.chips, np.array(one.curve_w, dtype=np.float64)) for one in PUBLISHED_CURVES
    ]


def shapes(curves: Iterable[WholeCurve]) -> Band:
    """Smallest, mean and largest share of the way from idle to full load."""
    shares = [(curve_w - curve_w[0]) / (curve_w[-1] - curve_w[0]) for _, curve_w in curves]
    return Band(np.min(shares, axis=0), np.mean(shares, axis=0), np.max(shares, axis=0))


def _between(calibrated: Mapping[Basis, Ends]) -> BetweenFigures:
    """Points between idle and full load, each curve estimated from its TDP by the shapes of the others."""
    curves = whole_curves()
    covered = []
    for number, (tdp_w, curve_w) in enumerate(curves):
        others = shapes(curves[:number] + curves[number + 1 :])
        range_w = calibrated[Basis.TDP].of_size_w(tdp_w, others)
        covered.append(((curve_w >= range_w.low) & (curve_w <= range_w.high))[1:-1])
    return BetweenFigures(len(curves), int(np.size(covered)), float(np.mean(covered)))


def _example(calibrated: Mapping[Basis, Ends]) -> ExampleServer:
    """The intervals of one server on each basis: its curve is that of another with the same CPUs."""
    lender, server = PUBLISHED_CURVES[:2]
    ranges_w = {
        Basis.CURVE: calibrated[Basis.CURVE].around_w(np.array(lender.curve_w)),
        Basis.TDP: calibrated[Basis.TDP].of_size_w(server.chips * TDP_W[server.cpu]),
        Basis.CORES: calibrated[Basis.CORES].of_size_w(EXAMPLE_CORES),
    }
    return ExampleServer(
        name=f"{server.name}, two Xeon Platinum 8180",
        loads=LOADS.tolist(),
        measured_w=list(server.curve_w),
        ranges_w={
            basis.value: BandFigures(**{name: getattr(range_w, name).tolist() for name in Band._fields})
            for basis, range_w in ranges_w.items()
        },
    )


def _errors(servers: Servers, load: str) -> dict[str, float]:
    """Median relative error, percent: of what each basis expects of a vendor left out, and of simpler rules."""
    errors = {}
    for basis in Basis:
        observed, calibrate = observations(servers, basis, load), calibration(servers, basis, "plain")
        of_splits = []
        for split in _each_vendor(servers):
            tested = observed.where(split.tested[observed.server])
            seen = observed.where(split.known[observed.server] & split.known[observed.lender])
            of_splits.append(calibrate(seen).expected_w(tested.size) / tested.power_w - 1.0)
        errors[basis.value] = _median_percent(np.concatenate(of_splits))
    by_tdp, by_cores = observations(servers, Basis.TDP, load), observations(servers, Basis.CORES, load)
    # What is spent at no utilisation is nothing by the first rule, and unknown to the others.
    errors["tdp_x_utilisation"] = _median_percent(by_tdp.size * float(load == "full") / by_tdp.power_w - 1.0)
    mean_w_per_core = np.mean(by_cores.power_w / by_cores.size)
    errors["mean_w_per_core"] = _median_percent(mean_w_per_core * by_cores.size / by_cores.power_w - 1.0)
    return errors


def _median_percent(error: FloatArray) -> float:
    return float(100.0 * np.median(np.abs(error)))


def _rest(servers: Servers, load: str) -> RestOfServer:
    """What of a server's power goes with its TDP, with its memory and with neither, by least relative squares.

    Beside the share of what does not go with the TDP stands the least one that `CpuPower` takes off.
    """
    rows = [
        (system.tdp_w, system.memory_gib, 1.0, power_w)
        for system, power_w in zip(servers.systems, servers.power_w[load], strict=True)
        if system.tdp_w is not None
    ]
    *terms, power_w = np.transpose(rows)
    weighted = np.transpose(terms) / power_w[:, np.newaxis]
    per_tdp_w, w_per_gib, w_per_server = np.linalg.lstsq(weighted, np.ones(len(power_w)))[0]
    rest_w = w_per_gib * terms[1] + w_per_server
    return RestOfServer(
        w_per_w_of_tdp=float(per_tdp_w),
        w_per_gib=float(w_per_gib),
        w_per_server=float(w_per_server),
        median_share=float(np.median(rest_w / power_w)),
        assumed_least_share=PLATFORM_SHARE,
    )
