"""Settings of programs that run a grid feed; the first ones are named as in the Compute Gardener Scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulie.adapters.grid.provider import RequestPolicy
from joulie.adapters.grid.sources import SOURCES, refuse_unknown, source_settings
from joulie.domain.grid.request import GridDefaults, Mode
from joulie.domain.grid.signals import Basis, Measure
from joulie.settings import boolean, choice, duration, group, integer, json_object, listed, number, path, text

MAX_HORIZON_S = 7 * 86400.0
"""Maximum forecast horizon: longer forecasts say little and take seconds to compute."""


def _zones(zones: Mapping[str, Any]) -> Mapping[str, str]:
    if not all(isinstance(zone, str) for zone in zones.values()):
        raise ValueError('expected an object of zone names, such as {"aws:eu-central-1": "DE"}')
    return zones


@dataclass(frozen=True, kw_only=True)
class GridSettings:
    """Sources of carbon intensity and prices, and defaults for pods without annotations.

    Raises:
        ValueError: settings contradict each other.
    """

    electricity_map_api_region: str = text(
        "ELECTRICITY_MAP_API_REGION", "US-CAL-CISO", "Default zone, for nodes and pods without a zone."
    )
    request_policy: RequestPolicy = group(
        RequestPolicy,
        timeout_s=duration("API_TIMEOUT", "10s", "Timeout of one request.", minimum=0.1, maximum=300),
        retries=integer(
            "API_MAX_RETRIES", "3", "Maximum number of retries of a failed request.", minimum=0, maximum=10
        ),
        first_pause_s=duration(
            "API_RETRY_DELAY",
            "1s",
            "Pause before the first retry; it doubles with each retry, with jitter.",
            minimum=0.001,
            maximum=60,
        ),
        calls_per_minute=number(
            "API_RATE_LIMIT",
            "10",
            "Maximum number of requests to one source in any minute, of all programs of the installation together; "
            "further requests wait.",
            minimum=0.1,
        ),
    )
    cache_ttl_s: float = duration(
        "CACHE_TTL", "5m", "How long a value is used before its source is queried again.", minimum=1.0
    )
    max_cache_age_s: float = duration(
        "MAX_CACHE_AGE",
        "1h",
        "Maximum age of the last good value while sources fail; then the signal is missing.",
        minimum=1.0,
    )
    enable_tracing: bool = boolean(
        "ENABLE_TRACING",
        False,
        "Export traces to OTEL_EXPORTER_OTLP_ENDPOINT, by default http://localhost:4318; that variable alone enables "
        "them too.",
    )
    enable_pod_priorities: bool = boolean("ENABLE_POD_PRIORITIES", False, "Release held pods by priority before age.")
    defaults: GridDefaults = group(
        GridDefaults,
        move_wh_per_gb=number(
            "GRID_MOVE_WH_PER_GB",
            "10",
            "Energy of the network for moving a workload's data to another zone, per GB.",
            minimum=0,
            maximum=1000,
            unit="Wh",
        ),
        carbon_enabled=boolean("CARBON_ENABLED", True, "Whether carbon intensity holds pods."),
        carbon_threshold_g_per_kwh=number(
            "CARBON_INTENSITY_THRESHOLD",
            "200.0",
            "Carbon intensity above which pods are held by default.",
            minimum=0,
            unit="gCO2eq/kWh",
        ),
        price_enabled=boolean("PRICING_ENABLED", False, "Whether prices are fetched and hold pods."),
        price_threshold_per_kwh=number(
            "PRICE_THRESHOLD",
            None,
            "Price above which pods are held by default; without one they are held in peak periods.",
            unit="currency/kWh",
        ),
        max_delay_s=duration("MAX_SCHEDULING_DELAY", "24h", "Default maximum time that a pod is held.", minimum=0),
        mode=choice(
            "GRID_MODE",
            Mode.THRESHOLD,
            "Default mode of choosing the start time, for pods and namespaces without one.",
            Mode,
        ),
        runtime_s=duration(
            "GRID_DEFAULT_RUNTIME",
            "1h",
            "Default runtime of workloads that do not state one; the mode optimal uses it.",
            minimum=1.0,
        ),
        carbon_weight=number(
            "GRID_CARBON_WEIGHT",
            "0.5",
            "Weight of carbon intensity if both carbon intensity and prices hold pods.",
            minimum=0,
            maximum=1,
        ),
        price_weight=number("GRID_PRICE_WEIGHT", "0.5", "Weight of the price in that case.", minimum=0, maximum=1),
    )

    carbon_sources: tuple[str, ...] = text(
        "CARBON_SOURCES",
        "electricity-maps",
        "Sources of carbon intensity in order of preference, separated by commas: "
        f"{', '.join(SOURCES[Measure.CARBON])}, or a plug-in's name. All of the same basis, average or marginal.",
        to=listed,
    )
    carbon_basis: Basis = choice(
        "CARBON_BASIS", Basis.AVERAGE, "Basis of the carbon intensities of file, json, prometheus and static.", Basis
    )
    pricing_provider: tuple[str, ...] = text(
        "PRICING_PROVIDER",
        "tou",
        f"Sources of prices in order of preference, separated by commas: {', '.join(SOURCES[Measure.PRICE])}, or a "
        "plug-in's name; tou reads time-of-use schedules. While a source fails, the next one is queried.",
        to=listed,
    )
    source_settings: Mapping[Measure, Mapping[str, Any]] = group(
        dict, **{measure: source_settings(measure) for measure in Measure}
    )
    grid_zone_names: Mapping[str, Any] = json_object(
        "GRID_ZONE_NAMES", 'Names of zones at a source that uses others: {"watttime": {"US-CAL-CISO": "CAISO_NORTH"}}.'
    )
    grid_zones: Mapping[str, str] = json_object(
        "GRID_ZONES", 'Zones of cloud regions, in addition to the built-in ones: {"aws:eu-central-1": "DE"}.', to=_zones
    )
    grid_state_file: Path | None = path(
        "GRID_STATE_FILE", None, "File in which the last good values and histories are kept over restarts."
    )
    grid_forecast_horizon_s: float = duration(
        "GRID_FORECAST_HORIZON",
        "48h",
        "Minimum forecast horizon; it is extended to the maximum delay plus the default runtime, at most a week.",
        minimum=3600,
        maximum=MAX_HORIZON_S,
    )

    def __post_init__(self) -> None:
        refuse_unknown(Measure.CARBON, self.carbon_sources)
        if self.defaults.price_enabled:
            refuse_unknown(Measure.PRICE, self.pricing_provider)
        if self.max_cache_age_s < self.cache_ttl_s:
            raise ValueError(
                f"MAX_CACHE_AGE ({self.max_cache_age_s:g} s) must be at least CACHE_TTL ({self.cache_ttl_s:g} s), or "
                "signals would go missing between two requests"
            )
        if self.defaults.carbon_weight + self.defaults.price_weight <= 0.0:
            raise ValueError("invalid GRID_CARBON_WEIGHT and GRID_PRICE_WEIGHT: at least one must be above 0")
