"""Settings of programs that watch the grid; the first names are those of the Compute Gardener Scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulie.domain.grid.request import GridDefaults, Mode
from joulie.domain.grid.signals import Basis
from joulie.program.prometheus_settings import PrometheusSettings
from joulie.program.settings import Kind, ProgramSettings, setting

LONGEST_HORIZON_S = 7 * 86400.0
"""Of forecasts: later ones say little, and cost seconds."""


@dataclass(frozen=True, kw_only=True)
class GridSettings(PrometheusSettings, ProgramSettings):
    """Where carbon intensity and prices come from, and what holds pods that do not say.

    Raises:
        ValueError: settings that contradict each other.
    """

    electricity_map_api_key: str | None = setting(
        "ELECTRICITY_MAP_API_KEY",
        None,
        kind=Kind.TEXT,
        secret=True,
        help="Key of the Electricity Maps API. Better ELECTRICITY_MAP_API_KEY_FILE: a file can be replaced while the "
        "program runs.",
    )
    electricity_map_api_key_file: Path | None = setting(
        "ELECTRICITY_MAP_API_KEY_FILE", None, kind=Kind.PATH, help="File with that key; read at each request."
    )
    electricity_map_api_url: str = setting(
        "ELECTRICITY_MAP_API_URL",
        "https://api.electricitymaps.com/v3",
        kind=Kind.TEXT,
        help="Electricity Maps API: its base, or the address of the latest value as the Compute Gardener has it "
        "(.../carbon-intensity/latest?zone=).",
    )
    electricity_map_api_region: str = setting(
        "ELECTRICITY_MAP_API_REGION",
        "US-CAL-CISO",
        kind=Kind.TEXT,
        help="Zone of nodes and pods that name none.",
    )
    api_timeout_s: float = setting(
        "API_TIMEOUT", "10s", kind=Kind.DURATION, minimum=0.1, maximum=300, help="How long one request may take."
    )
    api_max_retries: int = setting(
        "API_MAX_RETRIES", "3", kind=Kind.INTEGER, minimum=0, maximum=10, help="How often a failed one is repeated."
    )
    api_retry_delay_s: float = setting(
        "API_RETRY_DELAY",
        "1s",
        kind=Kind.DURATION,
        minimum=0.001,
        maximum=60,
        help="Pause before the first repetition; it doubles from there, with jitter.",
    )
    api_rate_limit: float = setting(
        "API_RATE_LIMIT",
        "10",
        kind=Kind.NUMBER,
        minimum=0.1,
        help="Most requests to one source a minute; more of them wait.",
    )
    cache_ttl_s: float = setting(
        "CACHE_TTL", "5m", kind=Kind.DURATION, minimum=1.0, help="How long an answer is used before it is asked again."
    )
    max_cache_age_s: float = setting(
        "MAX_CACHE_AGE",
        "1h",
        kind=Kind.DURATION,
        minimum=1.0,
        help="How long the last good answer is used while a source fails; then the signal is missing.",
    )
    enable_pod_priorities: bool = setting(
        "ENABLE_POD_PRIORITIES",
        "false",
        kind=Kind.BOOLEAN,
        help="Release held pods by priority before age.",
    )
    carbon_enabled: bool = setting(
        "CARBON_ENABLED", "true", kind=Kind.BOOLEAN, help="Whether carbon intensity holds pods."
    )
    carbon_intensity_threshold_g_per_kwh: float = setting(
        "CARBON_INTENSITY_THRESHOLD",
        "200.0",
        kind=Kind.NUMBER,
        minimum=0,
        unit="gCO2eq/kWh",
        help="Carbon intensity above which it does.",
    )
    pricing_enabled: bool = setting(
        "PRICING_ENABLED", "false", kind=Kind.BOOLEAN, help="Whether prices are watched and hold pods."
    )
    pricing_provider: str = setting(
        "PRICING_PROVIDER",
        "tou",
        kind=Kind.TEXT,
        help="Sources of prices in order of trust, separated by commas: tou (time-of-use schedules), file, json, "
        "prometheus, static, or a plug-in's name. The next one is asked while the first has no answer.",
    )
    pricing_schedules_path: Path | None = setting(
        "PRICING_SCHEDULES_PATH", None, kind=Kind.PATH, help="YAML file of time-of-use schedules."
    )
    max_scheduling_delay_s: float = setting(
        "MAX_SCHEDULING_DELAY",
        "24h",
        kind=Kind.DURATION,
        minimum=0,
        help="How long a pod is held at most that does not say.",
    )

    carbon_sources: str = setting(
        "CARBON_SOURCES",
        "electricity-maps",
        kind=Kind.TEXT,
        help="Sources of carbon intensity in order of trust, separated by commas: electricity-maps, watttime, uk, "
        "file, json, prometheus, static, or a plug-in's name. All of one basis, average or marginal.",
    )
    carbon_basis: str = setting(
        "CARBON_BASIS",
        Basis.AVERAGE.value,
        kind=Kind.CHOICE,
        choices=tuple(Basis),
        help="What the carbon intensities of file, json, prometheus and static are.",
    )
    watttime_username: str | None = setting("WATTTIME_USERNAME", None, kind=Kind.TEXT, help="User of WattTime.")
    watttime_password: str | None = setting(
        "WATTTIME_PASSWORD", None, kind=Kind.TEXT, secret=True, help="Password of that user."
    )
    watttime_password_file: Path | None = setting(
        "WATTTIME_PASSWORD_FILE", None, kind=Kind.PATH, help="File with that password; read at each login."
    )
    watttime_url: str = setting(
        "WATTTIME_API_URL", "https://api.watttime.org", kind=Kind.TEXT, help="Base of the WattTime API."
    )
    uk_carbon_url: str = setting(
        "UK_CARBON_API_URL",
        "https://api.carbonintensity.org.uk",
        kind=Kind.TEXT,
        help="Base of Great Britain's Carbon Intensity API.",
    )
    carbon_file_path: Path | None = setting(
        "CARBON_FILE_PATH", None, kind=Kind.PATH, help="CSV or Parquet file of the source file."
    )
    carbon_file_options: Mapping[str, Any] = setting(
        "CARBON_FILE_OPTIONS",
        "{}",
        kind=Kind.JSON,
        help="How to read it: columns time, value and zone, time_zone, factor, step (s), forecast.",
    )
    carbon_json_url: str = setting(
        "CARBON_JSON_URL", "", kind=Kind.TEXT, help="Address of the source json; {zone} stands for the zone."
    )
    carbon_json_options: Mapping[str, Any] = setting(
        "CARBON_JSON_OPTIONS",
        "{}",
        kind=Kind.JSON,
        help="JSON pointers value, time, zone, forecast, forecast_value, forecast_time; factor; header of the key.",
    )
    carbon_json_key_file: Path | None = setting(
        "CARBON_JSON_KEY_FILE", None, kind=Kind.PATH, help="File with the key to send; read at each request."
    )
    carbon_prometheus_query: str = setting(
        "CARBON_PROMETHEUS_QUERY",
        "",
        kind=Kind.TEXT,
        help="PromQL of the source prometheus, in gCO2eq/kWh; {zone} stands for the zone.",
    )
    carbon_static_g_per_kwh: float | None = setting(
        "CARBON_STATIC_INTENSITY",
        None,
        kind=Kind.NUMBER,
        minimum=0,
        unit="gCO2eq/kWh",
        help="Carbon intensity of the source static.",
    )
    price_file_path: Path | None = setting(
        "PRICE_FILE_PATH", None, kind=Kind.PATH, help="CSV or Parquet file of the source file."
    )
    price_file_options: Mapping[str, Any] = setting(
        "PRICE_FILE_OPTIONS", "{}", kind=Kind.JSON, help="As CARBON_FILE_OPTIONS."
    )
    price_json_url: str = setting("PRICE_JSON_URL", "", kind=Kind.TEXT, help="As CARBON_JSON_URL.")
    price_json_options: Mapping[str, Any] = setting(
        "PRICE_JSON_OPTIONS", "{}", kind=Kind.JSON, help="As CARBON_JSON_OPTIONS."
    )
    price_json_key_file: Path | None = setting(
        "PRICE_JSON_KEY_FILE", None, kind=Kind.PATH, help="As CARBON_JSON_KEY_FILE."
    )
    price_prometheus_query: str = setting(
        "PRICE_PROMETHEUS_QUERY",
        "",
        kind=Kind.TEXT,
        help="PromQL of the source prometheus, in currency/kWh; {zone} stands for the zone.",
    )
    price_static_per_kwh: float | None = setting(
        "PRICE_STATIC", None, kind=Kind.NUMBER, unit="currency/kWh", help="Price of the source static."
    )
    grid_zone_names: Mapping[str, Any] = setting(
        "GRID_ZONE_NAMES",
        "{}",
        kind=Kind.JSON,
        help='What a source calls a zone: {"watttime": {"US-CAL-CISO": "CAISO_NORTH"}}.',
    )
    grid_zones: Mapping[str, Any] = setting(
        "GRID_ZONES",
        "{}",
        kind=Kind.JSON,
        help='Zones of cloud regions beside the built-in ones: {"aws:eu-central-1": "DE"}.',
    )
    grid_state_file: Path | None = setting(
        "GRID_STATE_FILE",
        None,
        kind=Kind.PATH,
        help="File that keeps the last good values and their history over restarts.",
    )
    grid_forecast_horizon_s: float = setting(
        "GRID_FORECAST_HORIZON",
        "48h",
        kind=Kind.DURATION,
        minimum=3600,
        maximum=LONGEST_HORIZON_S,
        help="How far forecasts look at least; as far as the longest delay and run, where that is at most a week.",
    )
    grid_mode: str = setting(
        "GRID_MODE",
        Mode.THRESHOLD.value,
        kind=Kind.CHOICE,
        choices=tuple(Mode),
        help="How the moment to run is chosen where neither pod nor namespace says.",
    )
    grid_default_runtime_s: float = setting(
        "GRID_DEFAULT_RUNTIME",
        "1h",
        kind=Kind.DURATION,
        minimum=1.0,
        help="How long a workload runs that does not say; the mode optimal needs it.",
    )
    grid_carbon_weight: float = setting(
        "GRID_CARBON_WEIGHT",
        "0.5",
        kind=Kind.NUMBER,
        minimum=0,
        maximum=1,
        help="Weight of carbon where both carbon and prices are watched.",
    )
    grid_price_weight: float = setting(
        "GRID_PRICE_WEIGHT", "0.5", kind=Kind.NUMBER, minimum=0, maximum=1, help="Weight of the price there."
    )
    price_threshold_per_kwh: float | None = setting(
        "PRICE_THRESHOLD",
        None,
        kind=Kind.NUMBER,
        unit="currency/kWh",
        help="Price above which pods are held that do not say; without one they are held in peak periods.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_cache_age_s < self.cache_ttl_s:
            raise ValueError(
                f"MAX_CACHE_AGE ({self.max_cache_age_s:g} s) must be at least CACHE_TTL ({self.cache_ttl_s:g} s), or "
                "signals go missing between two requests"
            )
        if not all(isinstance(zone, str) for zone in self.grid_zones.values()):
            raise ValueError('GRID_ZONES: names of zones are expected, such as {"aws:eu-central-1": "DE"}')
        if self.grid_carbon_weight + self.grid_price_weight <= 0.0:
            raise ValueError("GRID_CARBON_WEIGHT and GRID_PRICE_WEIGHT: one of them must be above 0")

    def defaults(self) -> GridDefaults:
        """What holds for workloads that do not say otherwise."""
        return GridDefaults(
            carbon_enabled=self.carbon_enabled,
            carbon_threshold_g_per_kwh=self.carbon_intensity_threshold_g_per_kwh,
            price_enabled=self.pricing_enabled,
            price_threshold_per_kwh=self.price_threshold_per_kwh,
            max_delay_s=self.max_scheduling_delay_s,
            mode=Mode(self.grid_mode),
            runtime_s=self.grid_default_runtime_s,
            carbon_weight=self.grid_carbon_weight,
            price_weight=self.grid_price_weight,
        )
