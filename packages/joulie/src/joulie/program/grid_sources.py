"""From settings to sources of grid signals, built in or brought by other distributions as Python entry points.

A plug-in is registered in the group ``joulie.grid_sources`` as a callable that takes a `SourceWorld` and returns a
`joulie.ports.GridSource`; CARBON_SOURCES or PRICING_PROVIDER name it.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from prometheus_client import CollectorRegistry

from joulie.adapters.grid.constant import Constant
from joulie.adapters.grid.discipline import Discipline, Provider, Secret
from joulie.adapters.grid.electricity_maps import ElectricityMaps
from joulie.adapters.grid.feed import FeedLimits, GridFeed
from joulie.adapters.grid.files import FileOptions, TableFile
from joulie.adapters.grid.http_json import HttpJson, JsonOptions
from joulie.adapters.grid.metrics import GridMetrics
from joulie.adapters.grid.tariff import TimeOfUse
from joulie.adapters.grid.uk import CarbonIntensityUk
from joulie.adapters.grid.watttime import WattTime
from joulie.adapters.price_schedules import PriceSchedulesError, load_price_schedules
from joulie.adapters.prometheus import History, Prometheus, PrometheusError
from joulie.domain.grid.series import Series, of_points
from joulie.domain.grid.signals import Basis, Measure, Observation, Provenance
from joulie.domain.grid.tou import TouTariff
from joulie.ports import GridSource, GridSourceError
from joulie.program.grid_settings import LONGEST_HORIZON_S, GridSettings
from joulie.program.settings import listed

SOURCE_GROUP = "joulie.grid_sources"
_STEP_S = 1800.0
"""Of the past from Prometheus: a hundred days are 4,800 steps of the 11,000 that it allows."""


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SourceWorld:
    """What sources are made of.

    Attributes:
        settings: of the program.
        measure: that is asked for.
        client: shared; it follows no redirects.
        prometheus: the server of PROMETHEUS_ADDRESS; None where there is none.
        now_s: s since the epoch.
    """

    settings: GridSettings
    measure: Measure
    client: httpx2.AsyncClient
    prometheus: Prometheus | None
    now_s: Callable[[], float]

    @cached_property
    def basis(self) -> Basis | None:
        """What the numbers of sources are that do not know themselves."""
        return Basis(self.settings.carbon_basis) if self.measure is Measure.CARBON else None

    def provider(self) -> Provider:
        """A way to ask one HTTP API as the settings have it, with a rate limit and a breaker of its own."""
        settings = self.settings
        rules = Discipline(
            settings.api_timeout_s, int(settings.api_max_retries), settings.api_retry_delay_s, settings.api_rate_limit
        )
        return Provider(self.client, rules)


@asynccontextmanager
async def open_feed(
    settings: GridSettings,
    *,
    registry: CollectorRegistry | None = None,
    now_s: Callable[[], float] = time.time,
) -> AsyncIterator[GridFeed]:
    """A feed of what the settings ask for; whoever opens it also runs it (`GridFeed.run`).

    Args:
        settings: of the program.
        registry: for the feed's metrics; None for none.
        now_s: s since the epoch.

    Raises:
        ValueError: settings that cannot be: an unknown source, options that are none, average and marginal mixed.
    """
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx2.AsyncClient(follow_redirects=False))
        prometheus = await _prometheus(settings, stack)
        chains = {
            measure: _chain(names, SourceWorld(settings, measure, client, prometheus, now_s))
            for measure, names in _wanted(settings).items()
        }
        metrics = GridMetrics(registry or CollectorRegistry(), now_s=now_s)
        feed = GridFeed(
            chains,
            _limits(settings),
            now_s,
            zone=settings.electricity_map_api_region,
            state_file=settings.grid_state_file,
            fetched=metrics.fetched,
        )
        metrics.signals = lambda: (signal for signal in feed.signals() if feed.confirmed(signal.zone))
        yield feed


def _limits(settings: GridSettings) -> FeedLimits:
    # A window that begins at the end of the longest delay should be within the forecast.
    longest_s = min(settings.max_scheduling_delay_s + settings.grid_default_runtime_s, LONGEST_HORIZON_S)
    return FeedLimits(settings.cache_ttl_s, settings.max_cache_age_s, max(settings.grid_forecast_horizon_s, longest_s))


def _wanted(settings: GridSettings) -> dict[Measure, tuple[str, ...]]:
    """Names of the sources of what is watched."""
    wanted = {Measure.CARBON: listed(settings.carbon_sources)}
    if settings.pricing_enabled:
        wanted[Measure.PRICE] = listed(settings.pricing_provider)
    return wanted


async def _prometheus(settings: GridSettings, stack: AsyncExitStack) -> Prometheus | None:
    asked = {name for names in _wanted(settings).values() for name in names}
    if "prometheus" not in asked:
        return None
    try:
        return await stack.enter_async_context(settings.prometheus())
    except PrometheusError as error:
        raise ValueError(str(error)) from error


def _chain(names: tuple[str, ...], world: SourceWorld) -> list[GridSource]:
    return [_Zoned.of(_made(name, world), world.settings) for name in names]


def _made(name: str, world: SourceWorld) -> GridSource:
    """The source called `name`; a plug-in cannot replace what is built in."""
    known = _BUILT_IN[world.measure]
    if name in known:
        return known[name](world)
    entry = next(iter(entry_points(group=SOURCE_GROUP, name=name)), None)
    variable = "CARBON_SOURCES" if world.measure is Measure.CARBON else "PRICING_PROVIDER"
    if entry is None:
        others = {entry.name for entry in entry_points(group=SOURCE_GROUP)}
        raise ValueError(f"{variable}: unknown source {name!r}; known: {', '.join(sorted({*known, *others}))}")
    try:
        source: GridSource = entry.load()(world)
    except Exception as error:
        raise ValueError(f"{variable}: plug-in {name!r} ({entry.value}): {error}") from error
    return source


# ---- built in


def _electricity_maps(world: SourceWorld) -> GridSource:
    settings = world.settings
    key = Secret(
        "ELECTRICITY_MAP_API_KEY or ELECTRICITY_MAP_API_KEY_FILE",
        settings.electricity_map_api_key,
        settings.electricity_map_api_key_file,
    )
    return ElectricityMaps(world.provider(), key, settings.electricity_map_api_url, world.now_s)


def _watttime(world: SourceWorld) -> GridSource:
    settings = world.settings
    password = Secret(
        "WATTTIME_PASSWORD or WATTTIME_PASSWORD_FILE", settings.watttime_password, settings.watttime_password_file
    )
    url = settings.watttime_url.rstrip("/")
    return WattTime(world.provider(), settings.watttime_username, password, url, world.now_s)


def _uk(world: SourceWorld) -> GridSource:
    return CarbonIntensityUk(world.provider(), world.settings.uk_carbon_url.rstrip("/"), world.now_s)


def _file(world: SourceWorld) -> GridSource:
    settings, carbon = world.settings, world.measure is Measure.CARBON
    path = settings.carbon_file_path if carbon else settings.price_file_path
    if path is None:
        return _Unusable("file", world.measure, world.basis, f"no file: set {_prefix(world)}_FILE_PATH")
    options = settings.carbon_file_options if carbon else settings.price_file_options
    checked = _options(options, FileOptions, f"{_prefix(world)}_FILE_OPTIONS")
    return TableFile(path, checked, world.measure, world.basis, settings.electricity_map_api_region, world.now_s)


def _json(world: SourceWorld) -> GridSource:
    settings, carbon = world.settings, world.measure is Measure.CARBON
    url = settings.carbon_json_url if carbon else settings.price_json_url
    if not url:
        return _Unusable("json", world.measure, world.basis, f"no address: set {_prefix(world)}_JSON_URL")
    options = settings.carbon_json_options if carbon else settings.price_json_options
    key_file = settings.carbon_json_key_file if carbon else settings.price_json_key_file
    checked = _options(options, JsonOptions, f"{_prefix(world)}_JSON_OPTIONS")
    key = None if key_file is None else Secret(f"{_prefix(world)}_JSON_KEY_FILE", file=key_file)
    source = HttpJson(world.provider(), url, checked, world.measure, world.basis, world.now_s, key)
    return source if "{zone}" in url else _OneZone(source, settings.electricity_map_api_region)


def _prometheus_query(world: SourceWorld) -> GridSource:
    settings = world.settings
    carbon = world.measure is Measure.CARBON
    query = settings.carbon_prometheus_query if carbon else settings.price_prometheus_query
    if not query:
        return _Unusable("prometheus", world.measure, world.basis, f"no query: set {_prefix(world)}_PROMETHEUS_QUERY")
    if world.prometheus is None:
        return _Unusable("prometheus", world.measure, world.basis, "no server: set PROMETHEUS_ADDRESS")
    source = PrometheusQuery(world.prometheus, query, world.measure, world.basis)
    return source if "{zone}" in query else _OneZone(source, settings.electricity_map_api_region)


def _static(world: SourceWorld) -> GridSource:
    settings, carbon = world.settings, world.measure is Measure.CARBON
    value = settings.carbon_static_g_per_kwh if carbon else settings.price_static_per_kwh
    if value is None:
        return _Unusable(
            "static",
            world.measure,
            world.basis,
            f"no number: set {'CARBON_STATIC_INTENSITY' if carbon else 'PRICE_STATIC'}",
        )
    return Constant(value, world.measure, world.basis, world.now_s)


def _time_of_use(world: SourceWorld) -> GridSource:
    path = world.settings.pricing_schedules_path
    if path is None:
        return _Unusable("tou", world.measure, world.basis, "no schedules: set PRICING_SCHEDULES_PATH")
    return TimeOfUse(_Schedules(path).tariff, world.now_s)


_Maker = Callable[[SourceWorld], GridSource]
_OF_EITHER: Mapping[str, _Maker] = {
    "file": _file,
    "json": _json,
    "prometheus": _prometheus_query,
    "static": _static,
}
_BUILT_IN: Mapping[Measure, Mapping[str, _Maker]] = {
    Measure.CARBON: {"electricity-maps": _electricity_maps, "watttime": _watttime, "uk": _uk, **_OF_EITHER},
    Measure.PRICE: {"tou": _time_of_use, **_OF_EITHER},
}


def _prefix(world: SourceWorld) -> str:
    return world.measure.name


def _options(given: Mapping[str, Any], kind: type[Any], variable: str) -> Any:
    try:
        return msgspec.convert(dict(given), kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{variable}: {error}") from error


# ---- sources around sources


@dataclass
class PrometheusQuery:
    """A PromQL expression, as a source.

    Attributes:
        prometheus: the server.
        query: in gCO2eq/kWh or currency/kWh, with ``{zone}`` where the zone stands; its result is one series.
        measure: of it.
        basis: of carbon intensities.
    """

    prometheus: Prometheus
    query: str
    measure: Measure
    basis: Basis | None
    name: str = "prometheus"

    async def latest(self, zone: str) -> Observation:
        """The result now."""
        try:
            found = await self.prometheus.query(self._promql(zone))
        except PrometheusError as error:
            raise GridSourceError(str(error)) from error
        if len(found) != 1:
            raise GridSourceError(f"{len(found)} series for zone {zone}; the query must give one")
        (series,) = found
        if series.time_s is None:
            raise GridSourceError("a result without a time")
        return Observation(series.value, series.time_s, Provenance(self.name, zone, self.basis))

    async def forecast(self, zone: str, horizon_s: float) -> Series | None:
        """Nothing: Prometheus knows the past."""
        return None

    async def history(self, zone: str, from_s: float, until_s: float) -> Series | None:
        """The results so far."""
        try:
            found = await self.prometheus.query_range(self._promql(zone), from_s, until_s, _STEP_S)
        except PrometheusError as error:
            raise GridSourceError(str(error)) from error
        return self._joined(found)

    def _joined(self, found: list[History]) -> Series | None:
        """The samples of a series that may have changed its labels meanwhile."""
        points = [(sample.time_s, sample.value) for history in found for sample in history.samples]
        return of_points(points, _STEP_S) if points else None

    def _promql(self, zone: str) -> str:
        return self.query.replace("{zone}", zone)


@dataclass
class _Schedules:
    """A file of price schedules, read again when it has changed."""

    path: Path
    _version: tuple[int, int] = (0, 0)
    _tariff: TouTariff | None = None
    _problem: str = ""

    def tariff(self) -> TouTariff:
        """The tariff that the file last held; one that cannot be read changes nothing.

        Raises:
            GridSourceError: there has been none yet.
        """
        version = self._version_now()
        if version != self._version:
            self._version = version
            self._read()
        if self._tariff is None:
            raise GridSourceError(self._problem)
        return self._tariff

    def _version_now(self) -> tuple[int, int]:
        try:
            status = self.path.stat()
        except OSError:
            return (-1, -1)
        return status.st_mtime_ns, status.st_size

    def _read(self) -> None:
        try:
            self._tariff = load_price_schedules(self.path)
        except PriceSchedulesError as error:
            self._problem = str(error)
            _log.warning("price schedules cannot be read", extra={"problem": self._problem})


@dataclass
class _Unusable:
    """A source that lacks a setting: a state that is shown, not a failure of the program.

    So a key that is deleted, or a file that is broken, closes nothing.
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


class _Around(ABC):
    """A source that changes what another one is asked."""

    def __init__(self, source: GridSource) -> None:
        self.source = source
        self.name = source.name
        self.measure = source.measure
        self.basis = source.basis

    @abstractmethod
    def asked(self, zone: str) -> str:
        """What the other one is asked for."""

    async def latest(self, zone: str) -> Observation:
        return await self.source.latest(self.asked(zone))

    async def forecast(self, zone: str, horizon_s: float) -> Series | None:
        return await self.source.forecast(self.asked(zone), horizon_s)

    async def history(self, zone: str, from_s: float, until_s: float) -> Series | None:
        return await self.source.history(self.asked(zone), from_s, until_s)


class _OneZone(_Around):
    """A source that has one zone's numbers and does not say which: those of the default zone."""

    def __init__(self, source: GridSource, zone: str) -> None:
        super().__init__(source)
        self._zone = zone

    def asked(self, zone: str) -> str:
        if zone != self._zone:
            raise GridSourceError(f"it is of zone {self._zone} only; write {{zone}} where it takes others")
        return zone


class _Zoned(_Around):
    """A source that has names of its own for zones."""

    def __init__(self, source: GridSource, names: Mapping[str, str]) -> None:
        super().__init__(source)
        self._names = names

    @classmethod
    def of(cls, source: GridSource, settings: GridSettings) -> GridSource:
        names = settings.grid_zone_names.get(source.name)
        if names is None:
            return source
        if not isinstance(names, Mapping) or not all(isinstance(name, str) for name in names.values()):
            raise ValueError(f"GRID_ZONE_NAMES: {source.name}: names of zones are expected, got {names!r}")
        return cls(source, names)

    def asked(self, zone: str) -> str:
        return self._names.get(zone, zone)
