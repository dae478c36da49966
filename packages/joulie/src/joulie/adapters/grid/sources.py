"""Registry of grid sources: built-in ones, and plug-ins of other distributions, found as Python entry points.

To add a source, write a module with its settings and a function that creates it, and add a row here. A plug-in is
registered in the entry point group ``joulie.grid_sources`` as a callable that takes a `SourceContext` and returns a
`joulie.ports.grid.GridSource`. CARBON_SOURCES and PRICING_PROVIDER select sources by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from joulie.adapters.grid import constant, day_ahead, electricity_maps, files, http_json, promql, tariff, uk, watttime
from joulie.adapters.grid.source_context import SourceContext
from joulie.adapters.grid.zone_names import RenamedZones
from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import Basis, Measure, Observation
from joulie.ports.grid import GridSource, GridSourceError
from joulie.settings import group

SOURCE_GROUP = "joulie.grid_sources"
VARIABLES = {Measure.CARBON: "CARBON_SOURCES", Measure.PRICE: "PRICING_PROVIDER"}


class SourceRow(NamedTuple):
    """A built-in source.

    Attributes:
        settings: declaration of its settings by `joulie.settings`.
        make: creates the source from their value; raises `GridSourceError` if a required setting is missing.
    """

    settings: Any
    make: Callable[[Any, SourceContext], GridSource]


def _common_sources(measure: Measure) -> Mapping[str, SourceRow]:
    """Sources that can provide either carbon intensity or prices."""
    return {
        "file": SourceRow(files.file_settings(measure), files.table_file),
        "json": SourceRow(http_json.json_settings(measure), http_json.http_json),
        "prometheus": SourceRow(promql.query_setting(measure), promql.prometheus_query),
        "static": SourceRow(constant.value_setting(measure), constant.static),
    }


SOURCES: Mapping[Measure, Mapping[str, SourceRow]] = {
    Measure.CARBON: {
        "electricity-maps": SourceRow(
            group(electricity_maps.ElectricityMapsSettings), electricity_maps.electricity_maps
        ),
        "watttime": SourceRow(group(watttime.WattTimeSettings), watttime.watttime),
        "uk": SourceRow(uk.URL_SETTING, uk.carbon_intensity_uk),
        **_common_sources(Measure.CARBON),
    },
    Measure.PRICE: {
        "tou": SourceRow(tariff.PATH_SETTING, tariff.time_of_use),
        "energy-charts": SourceRow(day_ahead.ENERGY_CHARTS_URL_SETTING, day_ahead.energy_charts),
        "entsoe": SourceRow(group(day_ahead.EntsoeSettings), day_ahead.entsoe),
        **_common_sources(Measure.PRICE),
    },
}


def source_settings(measure: Measure) -> Any:
    """Settings field that holds the settings of each built-in source by name."""
    return group(dict, **{name: row.settings for name, row in SOURCES[measure].items()})


def make_source(name: str, context: SourceContext) -> GridSource:
    """Create the source called `name`; a plug-in cannot replace a built-in source.

    Raises:
        ValueError: the source is unknown, its zone names are invalid, or a plug-in failed.
    """
    row = SOURCES[context.measure].get(name)
    source = _plug_in(name, context) if row is None else _built_in(name, row, context)
    names = context.settings.grid_zone_names.get(source.name)
    if names is None:
        return source
    if not isinstance(names, Mapping) or not all(isinstance(zone, str) for zone in names.values()):
        raise ValueError(f"GRID_ZONE_NAMES: {source.name}: expected an object of zone names, got {names!r}")
    return RenamedZones(source, names)


def _built_in(name: str, row: SourceRow, context: SourceContext) -> GridSource:
    settings = context.settings.source_settings[context.measure][name]
    try:
        return row.make(settings, context)
    except GridSourceError as error:
        return _Unconfigured(name, context.measure, context.basis, str(error))


def refuse_unknown(measure: Measure, names: Iterable[str]) -> None:
    """Raise ValueError if a source is neither built in nor a plug-in."""
    known = {*SOURCES[measure], *(entry.name for entry in entry_points(group=SOURCE_GROUP))}
    for name in names:
        if name not in known:
            raise ValueError(f"{VARIABLES[measure]}: unknown source {name!r}; known: {', '.join(sorted(known))}")


def _plug_in(name: str, context: SourceContext) -> GridSource:
    refuse_unknown(context.measure, [name])
    entry = next(iter(entry_points(group=SOURCE_GROUP, name=name)))
    variable = VARIABLES[context.measure]
    try:
        source: GridSource = entry.load()(context)
    except Exception as error:
        raise ValueError(f"{variable}: plug-in {name!r} ({entry.value}): {error}") from error
    return source


@dataclass
class _Unconfigured:
    """A source that lacks a required setting: every request fails with the problem.

    The program starts all the same, so that a deleted key or a broken file does not stop it.
    """

    name: str
    measure: Measure
    basis: Basis | None
    problem: str

    async def latest(self, zone: str) -> Observation:
        raise GridSourceError(self.problem)

    async def forecast(self, zone: str, horizon_s: float) -> Series | None:
        raise GridSourceError(self.problem)

    async def history(self, zone: str, from_s: float, until_s: float) -> Series | None:
        raise GridSourceError(self.problem)
