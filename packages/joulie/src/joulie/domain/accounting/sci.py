"""Reports of a month: SCI by workload, and emissions by both methods of the GHG Protocol, from what was booked.

SCI (ISO/IEC 21031): ``(E * I + M) per R``. E is energy with PUE, I the location-based average carbon intensity of the
time that it was used, M the embodied emissions of what was reserved, R what a workload has delivered in its functional
unit. A score needs all of them: where one is missing, the workload has none, and the report says which.

GHG Protocol Scope 2: location-based is the same ``E * I``. Market-based is the energy that instruments cover times
their factors, and the rest times the residual mix. Instruments cover all workloads of a zone in the same proportion.
Marginal emissions stand beside both and are in no sum of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from joulie.domain.accounting.embodied import NO_EMISSIONS, NO_SHARES, Asset, Shares, Spread
from joulie.domain.accounting.inventory import Instrument, Inventory, ResidualMix
from joulie.domain.accounting.journal import Month
from joulie.domain.accounting.records import IDLE_OWNER, NO_ENERGY, Energy, UnitCount
from joulie.domain.quantities import JOULES_PER_KWH

NEGLIGIBLE = 1e-9
"""Share of energy or time below which it counts as none: sums of floating-point numbers."""


@dataclass(frozen=True, slots=True)
class WorkloadKey:
    """A workload; of what nodes keep for nobody, the kind is `IDLE_OWNER` and the name the node's.

    Attributes:
        namespace: of the workload.
        kind: of the owner.
        name: of the owner.
    """

    namespace: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class ReservedAsset:
    """What a workload has reserved of one kind of hardware.

    Attributes:
        workload: whose.
        asset: of what; None: hardware whose embodied emissions nobody knows.
        reserved_s: shares times seconds.
    """

    workload: WorkloadKey
    asset: Asset | None
    reserved_s: Shares


@dataclass(frozen=True, slots=True)
class PueUse:
    """A PUE that energy of a zone was booked on.

    Attributes:
        zone: of the grid.
        pue: of CPU and memory.
        gpu_pue: of GPUs.
        source: where it came from.
    """

    zone: str
    pue: float
    gpu_pue: float
    source: str


@dataclass(frozen=True)
class MonthRecords:
    """All that is booked in a month.

    Attributes:
        month: of UTC.
        since_s: since when the ledger accounts, s since the epoch.
        closed: whether nothing is booked in it any more.
        energy: by workload and zone, corrections of the month included.
        earlier: corrections of earlier months that are booked in this one, by workload and zone.
        reserved: by workload and hardware.
        units: what workloads have delivered.
        pues: that energy was booked on.
    """

    month: Month
    since_s: float
    closed: bool
    energy: Mapping[tuple[WorkloadKey, str], Energy] = field(default_factory=dict)
    earlier: Mapping[tuple[WorkloadKey, str], Energy] = field(default_factory=dict)
    reserved: Sequence[ReservedAsset] = ()
    units: Sequence[tuple[WorkloadKey, UnitCount]] = ()
    pues: Sequence[PueUse] = ()

    def of_namespace(self, namespace: str) -> MonthRecords:
        """Those of one namespace's workloads."""
        energy = {key: one for key, one in self.energy.items() if key[0].namespace == namespace}
        zones = {zone for _workload, zone in energy}
        return replace(
            self,
            energy=energy,
            earlier={key: one for key, one in self.earlier.items() if key[0].namespace == namespace},
            reserved=[one for one in self.reserved if one.workload.namespace == namespace],
            units=[one for one in self.units if one[0].namespace == namespace],
            pues=[one for one in self.pues if one.zone in zones],
        )


@dataclass(frozen=True, slots=True)
class ReportLine:
    """Figures of one workload, or a sum of them. Adds up, but for units and score.

    Attributes:
        energy: with location-based and marginal emissions.
        market_g: market-based emissions of the energy that has a factor, gCO2eq.
        energy_without_market_j: energy that neither an instrument nor a residual mix covers, J.
        embodied: M, gCO2eq.
        reserved_s: shares of nodes times seconds.
        unknown_s: the part of `reserved_s` on hardware whose embodied emissions nobody knows.
        units: what it has delivered; None where nobody counts it.
        sci_g: score, gCO2eq per unit; None without one.
        missing: why it has no score; empty with one.
    """

    energy: Energy = NO_ENERGY
    market_g: float = 0.0
    energy_without_market_j: float = 0.0
    embodied: Spread = NO_EMISSIONS
    reserved_s: Shares = NO_SHARES
    unknown_s: Shares = NO_SHARES
    units: UnitCount | None = None
    sci_g: float | None = None
    missing: str = ""

    def __add__(self, other: ReportLine) -> ReportLine:
        return ReportLine(
            self.energy + other.energy,
            self.market_g + other.market_g,
            self.energy_without_market_j + other.energy_without_market_j,
            self.embodied + other.embodied,
            self.reserved_s + other.reserved_s,
            self.unknown_s + other.unknown_s,
        )

    def with_score(self, counts: Sequence[UnitCount]) -> ReportLine:
        """With its functional unit, and its score or why it has none."""
        units = _counted(counts)
        missing = self._missing(counts, units)
        if missing or units is None:
            return replace(self, units=units, missing=missing)
        return replace(self, units=units, sci_g=(self.energy.emissions_g + self.embodied.g) / units.amount)

    def _missing(self, counts: Sequence[UnitCount], units: UnitCount | None) -> str:
        energy = self.energy
        if units is None:
            return "no functional unit" if not counts else "several functional units: name one"
        if units.amount <= 0.0:
            return f"it delivered no {units.unit}"
        if energy.energy_without_intensity_j > NEGLIGIBLE * energy.energy_j:
            return f"{energy.energy_without_intensity_j / energy.energy_j:.2%} of its energy has no carbon intensity"
        if _total(self.unknown_s) > NEGLIGIBLE * _total(self.reserved_s):
            return "the embodied emissions of its nodes are not known"
        if _total(self.reserved_s) <= 0.0:
            return "it reserves nothing: its pods have no requests"
        return ""


@dataclass(frozen=True, slots=True)
class ZoneMix:
    """What the energy of a zone was covered by, by the market-based method.

    Attributes:
        zone: of the grid.
        energy_j: of all workloads, J.
        covered: energy that each instrument covers, J.
        residual: residual mix of the rest; None: not known.
        rest_j: energy that no instrument covers, J.
    """

    zone: str
    energy_j: float
    covered: tuple[tuple[Instrument, float], ...]
    residual: ResidualMix | None
    rest_j: float

    @property
    def g_per_j(self) -> float:
        """Emissions per energy of the zone that has a factor, gCO2eq/J of all energy."""
        rest_g = 0.0 if self.residual is None else self.rest_j * self.residual.g_per_kwh
        total_g = sum(joules * one.g_per_kwh for one, joules in self.covered) + rest_g
        return total_g / JOULES_PER_KWH / self.energy_j if self.energy_j > 0.0 else 0.0

    @property
    def unknown_share(self) -> float:
        """Share of the energy that has no factor."""
        return self.rest_j / self.energy_j if self.residual is None and self.energy_j > 0.0 else 0.0

    def of(self, energy_j: float) -> ZoneMix:
        """The same mix for a part of the zone's energy, J."""
        part = energy_j / self.energy_j if self.energy_j > 0.0 else 0.0
        covered = tuple((one, joules * part) for one, joules in self.covered)
        return replace(self, energy_j=energy_j, covered=covered, rest_j=self.rest_j * part)


@dataclass(frozen=True)
class Report:
    """A month's report.

    Attributes:
        month: of UTC.
        namespace: whose workloads are in it; None: all, and what nobody has reserved.
        closed: whether its figures are final.
        complete_from_s: start of the time that it has figures of, s since the epoch.
        workloads: largest first.
        unallocated: what no pod has reserved or used, by node.
        total: of both.
        earlier: corrections of earlier months that are booked in this one: in no line and no score.
        zones: market-based factors.
        assets: hardware with its node seconds; None: of unknown embodied emissions.
        pues: that energy was booked on.
    """

    month: Month
    namespace: str | None
    closed: bool
    complete_from_s: float
    workloads: Mapping[WorkloadKey, ReportLine]
    unallocated: Mapping[WorkloadKey, ReportLine]
    total: ReportLine
    earlier: ReportLine
    zones: Sequence[ZoneMix]
    assets: Mapping[Asset | None, Shares]
    pues: Sequence[PueUse]


def report(records: MonthRecords, inventory: Inventory, namespace: str | None = None) -> Report:
    """The report of a month.

    Args:
        records: what is booked in it.
        inventory: instruments and residual mixes. They count for all workloads of a zone, also where one namespace's
            are reported.
        namespace: whose workloads to report; None for all, and what nobody has reserved.
    """
    zones = {mix.zone: mix for mix in _mixes(records, inventory)}
    if namespace is not None:
        records = records.of_namespace(namespace)
        zones = {zone: zones[zone].of(energy_j) for zone, energy_j in _by_zone(records).items()}
    lines: defaultdict[WorkloadKey, ReportLine] = defaultdict(ReportLine)
    for (workload, zone), energy in records.energy.items():
        lines[workload] += _energy_line(energy, zones[zone])
    earlier = sum((ReportLine(energy) for energy in records.earlier.values()), ReportLine())
    assets: defaultdict[Asset | None, Shares] = defaultdict(Shares)
    for one in records.reserved:
        assets[one.asset] += one.reserved_s
        if one.asset is None:
            lines[one.workload] += ReportLine(reserved_s=one.reserved_s, unknown_s=one.reserved_s)
        else:
            lines[one.workload] += ReportLine(embodied=one.asset.charged(one.reserved_s), reserved_s=one.reserved_s)
    counts: defaultdict[WorkloadKey, list[UnitCount]] = defaultdict(list)
    for workload, count in records.units:
        counts[workload].append(count)
    scored = {workload: line.with_score(counts[workload]) for workload, line in _largest_first(lines)}
    return Report(
        records.month,
        namespace,
        records.closed,
        max(records.month.starts_s, records.since_s),
        {key: line for key, line in scored.items() if key.kind != IDLE_OWNER},
        {key: replace(line, missing="") for key, line in scored.items() if key.kind == IDLE_OWNER},
        sum(lines.values(), ReportLine()),
        earlier,
        [zones[zone] for zone in sorted(zones)],
        dict(assets),
        records.pues,
    )


def _energy_line(energy: Energy, mix: ZoneMix) -> ReportLine:
    return ReportLine(energy, energy.energy_j * mix.g_per_j, energy.energy_j * mix.unknown_share)


def _largest_first(lines: Mapping[WorkloadKey, ReportLine]) -> Iterable[tuple[WorkloadKey, ReportLine]]:
    return sorted(lines.items(), key=lambda item: item[1].energy.energy_j, reverse=True)


def _mixes(records: MonthRecords, inventory: Inventory) -> Iterable[ZoneMix]:
    for zone, joules in _by_zone(records).items():
        covered, rest_j = [], joules
        for one in inventory.instruments:
            part_j = min(_conveyed_j(one, records.month, joules), rest_j) if one.zone == zone else 0.0
            if part_j > 0.0:
                covered.append((one, part_j))
                rest_j -= part_j
        year = records.month.year
        residual = next((one for one in inventory.residual_mixes if (one.zone, one.year) == (zone, year)), None)
        yield ZoneMix(zone, joules, tuple(covered), residual, rest_j)


def _by_zone(records: MonthRecords) -> Mapping[str, float]:
    """Energy by zone, J."""
    energy_j: defaultdict[str, float] = defaultdict(float)
    for (_workload, zone), energy in records.energy.items():
        energy_j[zone] += energy.energy_j
    return energy_j


def _conveyed_j(one: Instrument, month: Month, energy_j: float) -> float:
    """Energy that an instrument conveys in a month: the part of its time that lies in it, J."""
    overlap_s = max(0.0, min(one.until_s, month.ends_s) - max(one.from_s, month.starts_s))
    if one.share is not None:
        return one.share * energy_j * overlap_s / (month.ends_s - month.starts_s)
    return (one.kwh or 0.0) * JOULES_PER_KWH * overlap_s / (one.until_s - one.from_s)


def _counted(counts: Sequence[UnitCount]) -> UnitCount | None:
    """The sum of counts in one unit; None of none, and of different units."""
    if len({one.unit for one in counts}) != 1:
        return None
    sources = "; ".join(sorted({one.source for one in counts}))
    return UnitCount(counts[0].unit, sum(one.amount for one in counts), sources)


def _total(shares: Shares) -> float:
    return shares.cpu + shares.memory + shares.gpu
