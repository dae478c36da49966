"""The source prometheus: carbon intensity or prices from a PromQL expression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from joulie.adapters.grid.source_context import SourceContext
from joulie.adapters.grid.zone_names import OneZone
from joulie.domain.grid.series import Series, of_points
from joulie.domain.grid.signals import Basis, Measure, Observation, Provenance
from joulie.ports.grid import GridSource, GridSourceError
from joulie.ports.telemetry import MetricsDatabase, SourceError
from joulie.settings import text

_STEP_S = 1800.0
"""Step of histories: a hundred days are 4,800 steps of the 11,000 that Prometheus allows."""


def query_setting(measure: Measure) -> Any:
    """The setting of the source prometheus."""
    unit = "gCO2eq/kWh" if measure is Measure.CARBON else "currency/kWh"
    return text(
        f"{measure.name}_PROMETHEUS_QUERY",
        "",
        f"PromQL of the source prometheus, in {unit}; {{zone}} stands for the zone.",
    )


def prometheus_query(query: str, context: SourceContext) -> GridSource:
    """Create the source prometheus.

    Raises:
        GridSourceError: the query or PROMETHEUS_ADDRESS is not set.
    """
    if not query:
        raise GridSourceError(f"no query: set {context.measure.name}_PROMETHEUS_QUERY")
    if context.prometheus is None:
        raise GridSourceError("no server: set PROMETHEUS_ADDRESS")
    source = PrometheusQuery(context.prometheus, query, context.measure, context.basis)
    return source if "{zone}" in query else OneZone(source, context.zone)


@dataclass
class PrometheusQuery:
    """Source that evaluates a PromQL expression.

    Attributes:
        prometheus: client of the server.
        query: expression in gCO2eq/kWh or currency/kWh that results in one series; ``{zone}`` stands for the zone.
        measure: carbon or price.
        basis: basis of carbon intensities; None for prices.
    """

    prometheus: MetricsDatabase
    query: str
    measure: Measure
    basis: Basis | None
    name: str = "prometheus"

    async def latest(self, zone: str) -> Observation:
        """Current result of the expression."""
        try:
            found = await self.prometheus.query(self._promql(zone))
        except SourceError as error:
            raise GridSourceError(str(error)) from error
        if len(found) != 1:
            raise GridSourceError(f"{len(found)} series for zone {zone}; the query must return exactly one")
        (series,) = found
        if series.time_s is None:
            raise GridSourceError("invalid response: a result without a time")
        return Observation(series.value, series.time_s, Provenance(self.name, zone, self.basis))

    async def forecast(self, zone: str, horizon_s: float) -> Series | None:
        """None: Prometheus has no forecasts."""
        return None

    async def history(self, zone: str, from_s: float, until_s: float) -> Series | None:
        """Past results; series whose labels changed in the meantime are joined."""
        try:
            found = await self.prometheus.query_range(self._promql(zone), from_s, until_s, _STEP_S)
        except SourceError as error:
            raise GridSourceError(str(error)) from error
        points = [(sample.time_s, sample.value) for history in found for sample in history.samples]
        return of_points(points, _STEP_S) if points else None

    def _promql(self, zone: str) -> str:
        return self.query.replace("{zone}", zone)
