"""A month's report as tables for readers, and as a document with all that it was computed from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from joulie.domain.accounting.embodied import SECONDS_PER_YEAR, Asset, Shares, Spread
from joulie.domain.accounting.records import Energy
from joulie.domain.accounting.sci import NEGLIGIBLE, Report, ReportLine, WorkloadKey, ZoneMix
from joulie.domain.quantities import JOULES_PER_KWH
from joulie.program.tables import print_table

_SECONDS_PER_DAY = 86400.0
_METHOD = "SCI = (E x I + M) per R (ISO/IEC 21031); Scope 2 by both methods (GHG Protocol); months of UTC"
_UNALLOCATED = "(unallocated)"
_EMPTY = "-"


def report_document(report: Report) -> dict[str, Any]:
    """A report in plain JSON types; units are in the names."""
    return {
        "month": str(report.month),
        "closed": report.closed,
        "completeFrom": _utc(report.complete_from_s),
        "method": _METHOD,
        "total": _line(report.total),
        "workloads": [_named(key, line) for key, line in report.workloads.items()],
        "unallocated": [_named(key, line) for key, line in report.unallocated.items()],
        "correctionsOfEarlierMonths": _line(report.earlier),
        "marketBased": [_mix(mix) for mix in report.zones],
        "embodied": [_asset(asset, reserved_s) for asset, reserved_s in report.assets.items()],
        "pue": [asdict(one) for one in report.pues],
        "notes": list(notes(report)),
    }


def print_report(report: Report) -> None:
    """Print a report as tables."""
    state = "closed" if report.closed else "open: figures can still change"
    click.echo(f"Emissions of {report.month} ({state})\n{_METHOD}\n")
    columns = ("WORKLOAD", "KWH", "LOCATION", "MARKET", "EMBODIED", "(LOW..HIGH)", "UNITS", "SCI, G/UNIT", "MARGINAL")
    rows = [_cells(_title(key), line) for key, line in report.workloads.items()]
    rows.append(_cells(_UNALLOCATED, sum(report.unallocated.values(), ReportLine())))
    rows.append(_cells("TOTAL", report.total))
    print_table("By workload, gCO2eq; marginal emissions are in no sum", columns, rows)
    zones = [row for mix in report.zones for row in _mix_cells(mix)]
    print_table("Market-based factors", ("ZONE", "COVERED BY", "KWH", "G/KWH", "SOURCE"), zones)
    assets = [_asset_cells(asset, reserved_s) for asset, reserved_s in report.assets.items()]
    print_table("Embodied emissions of nodes", ("HARDWARE", "NODE DAYS", "KG", "(LOW..HIGH)", "YEARS"), assets)
    sources = [(asset.name, asset.source) for asset in report.assets if asset is not None]
    print_table("", ("HARDWARE", "SOURCE"), sources)
    pues = [(one.zone, f"{one.pue:g}", f"{one.gpu_pue:g}", one.source) for one in report.pues]
    print_table("PUE", ("ZONE", "PUE", "GPU PUE", "SOURCE"), pues)
    for note in notes(report):
        click.echo(f"- {note}")


def notes(report: Report) -> Iterator[str]:
    """What a reader must know of the figures."""
    total, energy = report.total, report.total.energy
    if not report.closed:
        yield "the month is not closed: its figures can still change"
    if report.complete_from_s > report.month.starts_s:
        yield f"accounting began on {_utc(report.complete_from_s)}: the time before it is in no figure"
    if unknown := _share(energy.energy_without_intensity_j, energy):
        yield f"location-based emissions are without {unknown:.2%} of the energy: no carbon intensity"
    if unknown := _share(total.energy_without_market_j, energy):
        yield f"market-based emissions are without {unknown:.2%} of the energy: no residual mix is given"
    if days := _days(total.unknown_s):
        yield f"embodied emissions are without {days:.2f} node days of unknown hardware"
    measured, assumed = _share(energy.measured_j, energy), _share(energy.assumed_j, energy)
    yield f"{measured:.2%} of the energy was measured, {assumed:.2%} assumed, the rest modelled"
    if report.earlier.energy.energy_j or report.earlier.energy.emissions_g:
        yield "corrections of earlier months, which are closed, were booked in this one; they are in no line above"
    yield "marginal emissions say what a change would cause; they are no part of an inventory"
    for key, line in report.workloads.items():
        if line.missing and line.units is not None:
            yield f"no score for {_title(key)}: {line.missing}"


def _line(line: ReportLine) -> dict[str, Any]:
    energy = line.energy
    return {
        "energyKWh": energy.energy_j / JOULES_PER_KWH,
        "itEnergyKWh": energy.it_j / JOULES_PER_KWH,
        "locationBasedG": energy.emissions_g,
        "energyWithoutIntensityKWh": energy.energy_without_intensity_j / JOULES_PER_KWH,
        "marketBasedG": line.market_g,
        "energyWithoutMarketFactorKWh": line.energy_without_market_j / JOULES_PER_KWH,
        "marginalG": energy.marginal_g,
        "energyWithoutMarginalKWh": energy.energy_without_marginal_j / JOULES_PER_KWH,
        "embodiedG": line.embodied.g,
        "embodiedLowG": line.embodied.low_g,
        "embodiedHighG": line.embodied.high_g,
        "reservedNodeDays": _shares(line.reserved_s),
        "unknownNodeDays": _shares(line.unknown_s),
    }


def _named(key: WorkloadKey, line: ReportLine) -> dict[str, Any]:
    named = {"namespace": key.namespace, "kind": key.kind, "name": key.name, **_line(line)}
    if line.units is not None:
        named["functionalUnits"] = asdict(line.units)
    if line.sci_g is not None:
        return named | {"sciGPerUnit": line.sci_g}
    return named | ({"noScoreBecause": line.missing} if line.missing else {})


def _mix(mix: ZoneMix) -> dict[str, Any]:
    return {
        "zone": mix.zone,
        "energyKWh": mix.energy_j / JOULES_PER_KWH,
        "instruments": [
            {
                "kind": one.kind,
                "from": _utc(one.from_s),
                "until": _utc(one.until_s),
                "gPerKWh": one.g_per_kwh,
                "source": one.source,
                "coveredKWh": joules / JOULES_PER_KWH,
            }
            for one, joules in mix.covered
        ],
        "residualMix": None if mix.residual is None else asdict(mix.residual),
        "residualKWh": mix.rest_j / JOULES_PER_KWH,
    }


def _asset(asset: Asset | None, reserved_s: Shares) -> dict[str, Any]:
    return {"hardware": None if asset is None else asdict(asset), "nodeDays": _shares(reserved_s)}


def _cells(title: str, line: ReportLine) -> tuple[str, ...]:
    energy, units = line.energy, line.units
    return (
        title,
        f"{energy.energy_j / JOULES_PER_KWH:,.3f}",
        _known(energy.emissions_g, energy.energy_without_intensity_j, energy.energy_j),
        _known(line.market_g, line.energy_without_market_j, energy.energy_j),
        _known(line.embodied.g, _days(line.unknown_s), _days(line.reserved_s)),
        f"{line.embodied.low_g:,.0f}..{line.embodied.high_g:,.0f}",
        _EMPTY if units is None else f"{units.amount:,.0f} {units.unit}",
        _EMPTY if line.sci_g is None else f"{line.sci_g:.6g}",
        _known(energy.marginal_g, energy.energy_without_marginal_j, energy.energy_j),
    )


def _known(amount_g: float, unknown: float, whole: float) -> str:
    """An amount, with + where a part is unknown, and ? where all of it is."""
    if whole > 0.0 and unknown >= whole * (1.0 - NEGLIGIBLE):
        return "?"
    return f"{amount_g:,.1f}" + ("+?" if unknown > whole * NEGLIGIBLE else "")


def _mix_cells(mix: ZoneMix) -> Iterator[tuple[str, ...]]:
    for one, joules in mix.covered:
        yield mix.zone, one.kind, f"{joules / JOULES_PER_KWH:,.3f}", f"{one.g_per_kwh:g}", one.source
    rest = f"{mix.rest_j / JOULES_PER_KWH:,.3f}"
    if mix.residual is None:
        yield mix.zone, "nothing", rest, "?", f"no residual mix of {mix.zone} in the inventory"
    elif mix.rest_j > 0.0:
        yield mix.zone, "residual mix", rest, f"{mix.residual.g_per_kwh:g}", mix.residual.source


def _asset_cells(asset: Asset | None, reserved_s: Shares) -> tuple[str, ...]:
    days = f"{reserved_s.cpu / _SECONDS_PER_DAY:,.2f}"
    if asset is None:
        return "unknown: give a factor in the inventory", days, "?", "?", "?"
    whole: Spread = asset.cpu + asset.memory + asset.gpu
    kg, low_kg, high_kg = (f"{amount_g / 1000:,.0f}" for amount_g in (whole.g, whole.low_g, whole.high_g))
    return asset.name, days, kg, f"{low_kg}..{high_kg}", f"{asset.lifespan_s / SECONDS_PER_YEAR:g}"


def _title(key: WorkloadKey) -> str:
    return "/".join(part for part in (key.namespace, key.kind, key.name) if part)


def _shares(reserved_s: Shares) -> Mapping[str, float]:
    return asdict(reserved_s * (1.0 / _SECONDS_PER_DAY))


def _days(reserved_s: Shares) -> float:
    """Node days by the largest of the shares."""
    return max(reserved_s.cpu, reserved_s.memory, reserved_s.gpu) / _SECONDS_PER_DAY


def _share(part_j: float, energy: Energy) -> float:
    """Part of an energy; 0 where it is only the rounding of sums."""
    return part_j / energy.energy_j if part_j > NEGLIGIBLE * energy.energy_j else 0.0


def _utc(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%MZ")
