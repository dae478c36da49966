"""A month's report of emissions as JSON: what the accounting program answers, and what `joulie ledger report` prints.

Units are in the names; emissions are gCO2eq.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import msgspec

from joulie.domain.accounting.embodied import Asset, Shares
from joulie.domain.accounting.inventory import ResidualMix
from joulie.domain.accounting.month_savings import MonthSaving
from joulie.domain.accounting.records import Energy, UnitCount
from joulie.domain.accounting.sci import NEGLIGIBLE, PueUse, Report, ReportLine, WorkloadKey, ZoneMix
from joulie.domain.quantities import JOULES_PER_KWH

REPORT_PATH = "/api/v1/report"
_SECONDS_PER_DAY = 86400.0
_METHOD = "SCI = (E x I + M) per R (ISO/IEC 21031); Scope 2 by both methods (GHG Protocol); months of UTC"


class LineItem(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Figures of a workload, of what nobody has reserved or used of a node, or a sum of them.

    Attributes:
        namespace: of the workload; None of a sum.
        kind: of its owner; None of a sum.
        name: of its owner, or of the node; None of a sum.
        energy_kwh: with PUE.
        it_energy_kwh: without PUE.
        location_based_g: of the energy with known carbon intensity.
        energy_without_intensity_kwh: the rest.
        market_based_g: of the energy that an instrument or a residual mix covers.
        energy_without_market_factor_kwh: the rest.
        marginal_g: of the energy with known marginal intensity; part of no sum.
        energy_without_marginal_kwh: the rest.
        embodied_g: of the hardware that was reserved.
        embodied_low_g: lower end of its range.
        embodied_high_g: upper end of its range.
        reserved_node_days: reserved shares of nodes times days.
        unknown_node_days: the part on hardware whose embodied emissions nobody knows.
        functional_units: what the workload has delivered; None where nobody counts it.
        sci_g_per_unit: score; None without one.
        no_score_because: what is missing for a score.
    """

    namespace: str | None = None
    kind: str | None = None
    name: str | None = None
    energy_kwh: float = msgspec.field(name="energyKWh")
    it_energy_kwh: float = msgspec.field(name="itEnergyKWh")
    location_based_g: float
    energy_without_intensity_kwh: float = msgspec.field(name="energyWithoutIntensityKWh")
    market_based_g: float
    energy_without_market_factor_kwh: float = msgspec.field(name="energyWithoutMarketFactorKWh")
    marginal_g: float
    energy_without_marginal_kwh: float = msgspec.field(name="energyWithoutMarginalKWh")
    embodied_g: float
    embodied_low_g: float
    embodied_high_g: float
    reserved_node_days: Shares
    unknown_node_days: Shares
    functional_units: UnitCount | None = None
    sci_g_per_unit: float | None = None
    no_score_because: str = ""


class InstrumentItem(msgspec.Struct, frozen=True, rename="camel"):
    """A contractual instrument and what it covers of the report's energy. Attributes as of `Instrument`."""

    kind: str
    from_: str = msgspec.field(name="from")
    until: str
    g_per_kwh: float = msgspec.field(name="gPerKWh")
    source: str
    covered_kwh: float = msgspec.field(name="coveredKWh")


class MixItem(msgspec.Struct, frozen=True, rename="camel"):
    """What the energy of a zone is covered by, by the market-based method.

    Attributes:
        zone: of the grid.
        energy_kwh: of the report's workloads.
        instruments: in the order in which they count.
        residual_mix: of what they do not cover; None where it is not known.
        residual_kwh: what they do not cover.
    """

    zone: str
    energy_kwh: float = msgspec.field(name="energyKWh")
    instruments: list[InstrumentItem]
    residual_mix: ResidualMix | None
    residual_kwh: float = msgspec.field(name="residualKWh")


class AssetItem(msgspec.Struct, frozen=True, rename="camel"):
    """Hardware, and for how many node days it was reserved; None: of unknown embodied emissions."""

    hardware: Asset | None
    node_days: Shares


class SavingItem(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """One saving of the month. Trials have theirs in `measuredSavings` of a signed report.

    Attributes:
        what: what saves, and what of.
        how_known: measured by holdout, or modelled.
        saved_pct: the share that is saved, %; None where it is modelled, or too little is known.
        low_pct: lower bound of an interval that holds at all looks together, %.
        high_pct: upper bound, %.
        units: number of windows of time or workloads behind it.
        left_out: number of those that were left alone by chance.
        since: when the first of them ended.
        amount_g: emissions that are saved, by the model.
    """

    what: str
    how_known: str
    saved_pct: float | None = None
    low_pct: float | None = None
    high_pct: float | None = None
    units: int = 0
    left_out: int = 0
    since: str | None = None
    amount_g: float | None = None


class ReportAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """The answer at `REPORT_PATH`.

    Attributes:
        month: of UTC, ``2026-10``.
        namespace: whose workloads are in it; None: all, and what nobody has reserved.
        closed: whether its figures are final.
        complete_from: start of the time that it has figures of.
        method: standards that the figures follow.
        total: of all lines.
        workloads: largest first.
        unallocated: what nobody has reserved or used, by node.
        unallocated_total: sum of these.
        corrections_of_earlier_months: booked in this month; in no line and no score.
        market_based: factors by zone.
        embodied: hardware.
        pue: with sources.
        notes: what a reader must know of the figures.
        savings: what was saved, and how it is known; holdouts are of all namespaces together.
    """

    month: str
    namespace: str | None
    closed: bool
    complete_from: str
    method: str
    total: LineItem
    workloads: list[LineItem]
    unallocated: list[LineItem]
    unallocated_total: LineItem
    corrections_of_earlier_months: LineItem
    market_based: list[MixItem]
    embodied: list[AssetItem]
    pue: list[PueUse]
    notes: list[str]
    savings: list[SavingItem] = []


def report_answer(report: Report, savings: Iterable[MonthSaving] = (), problems: Iterable[str] = ()) -> ReportAnswer:
    """A report as JSON.

    Args:
        report: the report.
        savings: of its month.
        problems: what of the evidence of savings cannot be read.
    """
    return ReportAnswer(
        str(report.month),
        report.namespace,
        report.closed,
        _utc(report.complete_from_s),
        _METHOD,
        _line(report.total),
        [_line(line, key) for key, line in report.workloads.items()],
        [_line(line, key) for key, line in report.unallocated.items()],
        _line(sum(report.unallocated.values(), ReportLine())),
        _line(report.earlier),
        [_mix(mix) for mix in report.zones],
        [AssetItem(asset, _days(reserved_s)) for asset, reserved_s in report.assets.items()],
        list(report.pues),
        [*_notes(report), *(f"begun anew, what was before is lost: {problem}" for problem in problems)],
        [_saving(one) for one in savings],
    )


def _saving(one: MonthSaving) -> SavingItem:
    saved, low, high = (None, None, None) if one.interval is None else (100.0 * share for share in one.interval)
    return SavingItem(
        what=one.what,
        how_known=one.how_known,
        saved_pct=saved,
        low_pct=low,
        high_pct=high,
        units=one.units,
        left_out=one.left_out,
        since=None if one.since_s is None else _utc(one.since_s),
        amount_g=one.amount_g,
    )


def title_of(key: WorkloadKey | LineItem) -> str:
    """Namespace, kind and name of a workload, for people."""
    return "/".join(part for part in (key.namespace, key.kind, key.name) if part)


def _notes(report: Report) -> Iterator[str]:
    total, energy = report.total, report.total.energy
    if not report.closed:
        yield "the month is not closed: its figures can still change"
    if report.namespace is not None:
        yield f"only namespace {report.namespace}: what nodes used and kept for nobody is in no line"
    if report.complete_from_s > report.month.starts_s:
        yield f"accounting began on {_utc(report.complete_from_s)}: the time before it is in no figure"
    if unknown := _share(energy.energy_without_intensity_j, energy):
        yield f"location-based emissions are without {unknown:.2%} of the energy: no carbon intensity"
    if unknown := _share(total.energy_without_market_j, energy):
        yield f"market-based emissions are without {unknown:.2%} of the energy: no residual mix is given"
    if days := largest(_days(total.unknown_s)):
        yield f"embodied emissions are without {days:.2f} node days of unknown hardware"
    measured, assumed = _share(energy.measured_j, energy), _share(energy.assumed_j, energy)
    yield f"{measured:.2%} of the energy was measured, {assumed:.2%} assumed, the rest modelled"
    if report.earlier.energy.energy_j or report.earlier.energy.emissions_g:
        yield "corrections of earlier months, which are closed, were booked in this one; they are in no line above"
    yield "marginal emissions say what a change would cause; they are no part of an inventory"
    for key, line in report.workloads.items():
        if line.missing and line.units is not None:
            yield f"no score for {title_of(key)}: {line.missing}"


def _line(line: ReportLine, key: WorkloadKey | None = None) -> LineItem:
    energy = line.energy
    return LineItem(
        namespace=None if key is None else key.namespace,
        kind=None if key is None else key.kind,
        name=None if key is None else key.name,
        energy_kwh=energy.energy_j / JOULES_PER_KWH,
        it_energy_kwh=energy.it_j / JOULES_PER_KWH,
        location_based_g=energy.emissions_g,
        energy_without_intensity_kwh=energy.energy_without_intensity_j / JOULES_PER_KWH,
        market_based_g=line.market_g,
        energy_without_market_factor_kwh=line.energy_without_market_j / JOULES_PER_KWH,
        marginal_g=energy.marginal_g,
        energy_without_marginal_kwh=energy.energy_without_marginal_j / JOULES_PER_KWH,
        embodied_g=line.embodied.g,
        embodied_low_g=line.embodied.low_g,
        embodied_high_g=line.embodied.high_g,
        reserved_node_days=_days(line.reserved_s),
        unknown_node_days=_days(line.unknown_s),
        functional_units=line.units,
        sci_g_per_unit=line.sci_g,
        no_score_because=line.missing,
    )


def _mix(mix: ZoneMix) -> MixItem:
    instruments = [
        InstrumentItem(
            one.kind, _utc(one.from_s), _utc(one.until_s), one.g_per_kwh, one.source, covered_j / JOULES_PER_KWH
        )
        for one, covered_j in mix.covered
    ]
    return MixItem(mix.zone, mix.energy_j / JOULES_PER_KWH, instruments, mix.residual, mix.rest_j / JOULES_PER_KWH)


def _days(reserved_s: Shares) -> Shares:
    return reserved_s * (1.0 / _SECONDS_PER_DAY)


def largest(shares: Shares) -> float:
    """The largest of the shares."""
    return max(shares.cpu, shares.memory, shares.gpu)


def _share(part_j: float, energy: Energy) -> float:
    """Part of an energy; 0 where it is only the rounding of sums."""
    return part_j / energy.energy_j if part_j > NEGLIGIBLE * energy.energy_j else 0.0


def _utc(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%MZ")
