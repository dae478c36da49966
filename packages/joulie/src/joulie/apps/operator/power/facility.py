"""Facility measurements from Prometheus: ambient temperatures, and power of IT, cooling and racks, with their age."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from joulie.adapters.prometheus import Prometheus, PrometheusError, Series
from joulie.apps.operator.settings.power import PowerSettings
from joulie.apps.operator.sources.node_power import bounded
from joulie.domain.control import ControlledNode, Facility
from joulie.domain.control_power import HISTORY_SAMPLES
from joulie.domain.quantities import ZERO_CELSIUS_K
from joulie.domain.signal import Reading
from joulie.domain.twin import power_trend_w_per_min
from joulie.program.sources import SourceStates

SOURCE = "facility"
_TEMPERATURES = {"ambient", "zone"}


class FacilityFeed:
    """Polls facility measurements from Prometheus.

    Args:
        prometheus: Prometheus client.
        settings: queries.
        now_s: current time, s since the epoch.
        states: records the result of each reading.
    """

    def __init__(
        self, prometheus: Prometheus, settings: PowerSettings, now_s: Callable[[], float], states: SourceStates
    ) -> None:
        self._prometheus = prometheus
        self._settings = settings
        self._now_s = now_s
        self._states = states
        # The last samples of each quantity, oldest first.
        self._samples: dict[tuple[str, str], deque[Reading]] = {}

    async def read(self, nodes: Sequence[ControlledNode]) -> None:
        """Query the facility, and the zones and racks of these nodes if there is a query template."""
        queries = self._queries(nodes)
        self._samples = {key: samples for key, samples in self._samples.items() if key in queries}
        failures: list[str] = []

        async def ask(key: tuple[str, str]) -> None:
            try:
                value = _merged(await self._prometheus.query(queries[key]), key[0])
            except PrometheusError as error:
                failures.append(str(error))
                return
            if value is not None:
                samples = self._samples.setdefault(key, deque(maxlen=HISTORY_SAMPLES))
                samples.append(Reading(self._now_s(), value))

        await bounded(ask, sorted(queries))
        if failures:
            more = f" (and {len(failures) - 1} more queries)" if len(failures) > 1 else ""
            self._states.failed(SOURCE, f"{failures[0]}{more}")
        else:
            self._states.answered(SOURCE, len(self._samples))

    def _queries(self, nodes: Sequence[ControlledNode]) -> dict[tuple[str, str], str]:
        """Queries by kind and by zone or rack."""
        settings = self._settings
        queries = {
            ("ambient", ""): settings.facility_ambient_query,
            ("it", ""): settings.facility_it_power_query,
            ("cooling", ""): settings.facility_cooling_power_query,
        }
        for kind, template, places in (
            ("zone", settings.facility_zone_ambient_template, {node.zone for node in nodes}),
            ("rack", settings.facility_rack_power_template, {node.rack for node in nodes}),
        ):
            if template:
                queries |= {(kind, place): template.replace("%s", _quoted(place)) for place in places if place}
        return {key: query for key, query in queries.items() if query}

    def facility(self) -> Facility:
        """The fresh measurements."""
        oldest_s = self._now_s() - self._settings.power_stale_s
        samples = {key: found for key, found in self._samples.items() if found[-1].time_s >= oldest_s}
        fresh = {key: found[-1].value for key, found in samples.items()}
        ambient_c = fresh.get(("ambient", ""))
        it_w, cooling_w = fresh.get(("it", "")), fresh.get(("cooling", ""))
        return Facility(
            ambient_k=None if ambient_c is None else kelvin(ambient_c),
            zone_ambient_k={
                place: zone_k
                for (kind, place), celsius in fresh.items()
                if kind == "zone" and (zone_k := kelvin(celsius)) is not None
            },
            rack_power_w={place: power_w for (kind, place), power_w in fresh.items() if kind == "rack"},
            it_power_w=it_w,
            cooling_power_w=cooling_w,
            pue=None if not it_w or cooling_w is None else (it_w + cooling_w) / it_w,
            it_ramp_w_per_min=None if it_w is None else self._ramp_w_per_min(samples["it", ""]),
            rack_ramp_w_per_min={
                place: self._ramp_w_per_min(found) for (kind, place), found in samples.items() if kind == "rack"
            },
        )

    def _ramp_w_per_min(self, samples: Sequence[Reading]) -> float:
        """Slope over the trend window with respect to time, not samples; 0 with fewer than two samples."""
        rows = np.array(samples)
        recent = rows[:, 0] >= self._now_s() - self._settings.trend_window_s
        return float(power_trend_w_per_min(rows[:, 0], rows[:, 1], recent))


def kelvin(celsius: float) -> float | None:
    """Degrees Celsius to K; None below absolute zero, which a broken sensor can report."""
    temperature_k = celsius + ZERO_CELSIUS_K
    return temperature_k if temperature_k > 0.0 else None


def _merged(series: Sequence[Series], kind: str) -> float | None:
    """Mean of temperatures or sum of powers over all series; None without series, or if the power is negative."""
    if not series:
        return None
    total = sum(one.value for one in series)
    if kind in _TEMPERATURES:
        return total / len(series)
    return total if total >= 0.0 else None


def _quoted(label_value: str) -> str:
    """A label value escaped for use between quotes in PromQL."""
    return label_value.replace("\\", "\\\\").replace('"', '\\"')
