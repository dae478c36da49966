"""Settings of programs that watch the grid; the first names are those of the Compute Gardener Scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulie.adapters.grid.provider import RequestPolicy
from joulie.adapters.grid.sources import SOURCES, source_settings
from joulie.domain.grid.request import GridDefaults, Mode
from joulie.domain.grid.signals import Basis, Measure
from joulie.settings import boolean, choice, duration, group, integer, json_object, listed, number, path, text

MAX_HORIZON_S = 7 * 86400.0
"""Of forecasts: later ones say little, and cost seconds."""


def _zones(zones: Mapping[str, Any]) -> Mapping[str, str]:
    if not all(isinstance(zone, str) for zone in zones.values()):
        raise ValueError('names of zones are expected, such as {"aws:eu-central-1": "DE"}')
    return zones


@dataclass(frozen=True, kw_only=True)
class GridSettings:
    """Where carbon intensity and prices come from, and what holds for pods without annotations.

    Raises:
        ValueError: settings that contradict each other.
    """

    electricity_map_api_region: str = text(
        "ELECTRICITY_MAP_API_REGION", "US-CAL-CISO", "Zone of nodes and pods that name none."
    )
    request_policy: RequestPolicy = group(
        RequestPolicy,
        timeout_s=duration("API_TIMEOUT", "10s", "Timeout of one request.", minimum=0.1, maximum=300),
        retries=integer("API_MAX_RETRIES", "3", "How often a failed one is repeated.", minimum=0, maximum=10),
        first_pause_s=duration(
            "API_RETRY_DELAY",
            "1s",
            "Pause before the first repetition; it doubles from there, with jitter.",
            minimum=0.001,
            maximum=60,
        ),
        calls_per_minute=number(
            "API_RATE_LIMIT", "10", "Maximum requests to one source a minute; more of them wait.", minimum=0.1
        ),
    )
    cache_ttl_s: float = duration(
        "CACHE_TTL", "5m", "How long an answer is used before it is asked again.", minimum=1.0
    )
    max_cache_age_s: float = duration(
        "MAX_CACHE_AGE",
        "1h",
        "How long the last good answer is used while a source fails; then the signal is missing.",
        minimum=1.0,
    )
    enable_pod_priorities: bool = boolean("ENABLE_POD_PRIORITIES", False, "Release held pods by priority before age.")
    defaults: GridDefaults = group(
        GridDefaults,
        carbon_enabled=boolean("CARBON_ENABLED", True, "Whether carbon intensity holds pods."),
        carbon_threshold_g_per_kwh=number(
            "CARBON_INTENSITY_THRESHOLD", "200.0", "Carbon intensity above which it does.", minimum=0, unit="gCO2eq/kWh"
        ),
        price_enabled=boolean("PRICING_ENABLED", False, "Whether prices are watched and hold pods."),
        price_threshold_per_kwh=number(
            "PRICE_THRESHOLD",
            None,
            "Price above which pods are held by default; without one they are held in peak periods.",
            unit="currency/kWh",
        ),
        max_delay_s=duration("MAX_SCHEDULING_DELAY", "24h", "How long a pod is held at most by default.", minimum=0),
        mode=choice(
            "GRID_MODE",
            Mode.THRESHOLD,
            "How the moment to run is chosen where neither pod nor namespace says.",
            Mode,
        ),
        runtime_s=duration(
            "GRID_DEFAULT_RUNTIME",
            "1h",
            "How long a workload runs that does not say; the mode optimal needs it.",
            minimum=1.0,
        ),
        carbon_weight=number(
            "GRID_CARBON_WEIGHT",
            "0.5",
            "Weight of carbon where both carbon and prices are watched.",
            minimum=0,
            maximum=1,
        ),
        price_weight=number("GRID_PRICE_WEIGHT", "0.5", "Weight of the price there.", minimum=0, maximum=1),
    )

    carbon_sources: tuple[str, ...] = text(
        "CARBON_SOURCES",
        "electricity-maps",
        f"Sources of carbon intensity in order of trust, separated by commas: {', '.join(SOURCES[Measure.CARBON])}, "
        "or a plug-in's name. All of one basis, average or marginal.",
        to=listed,
    )
    carbon_basis: Basis = choice(
        "CARBON_BASIS", Basis.AVERAGE, "What the carbon intensities of file, json, prometheus and static are.", Basis
    )
    pricing_provider: tuple[str, ...] = text(
        "PRICING_PROVIDER",
        "tou",
        f"Sources of prices in order of trust, separated by commas: {', '.join(SOURCES[Measure.PRICE])}, or a "
        "plug-in's name; tou has time-of-use schedules. The next one is asked while the first has no answer.",
        to=listed,
    )
    source_settings: Mapping[Measure, Mapping[str, Any]] = group(
        dict, **{measure: source_settings(measure) for measure in Measure}
    )
    grid_zone_names: Mapping[str, Any] = json_object(
        "GRID_ZONE_NAMES", 'What a source calls a zone: {"watttime": {"US-CAL-CISO": "CAISO_NORTH"}}.'
    )
    grid_zones: Mapping[str, str] = json_object(
        "GRID_ZONES", 'Zones of cloud regions beside the built-in ones: {"aws:eu-central-1": "DE"}.', to=_zones
    )
    grid_state_file: Path | None = path(
        "GRID_STATE_FILE", None, "File that keeps the last good values and their history over restarts."
    )
    grid_forecast_horizon_s: float = duration(
        "GRID_FORECAST_HORIZON",
        "48h",
        "Minimum horizon of forecasts; as far as the longest delay and run, where that is at most a week.",
        minimum=3600,
        maximum=MAX_HORIZON_S,
    )

    def __post_init__(self) -> None:
        if self.max_cache_age_s < self.cache_ttl_s:
            raise ValueError(
                f"MAX_CACHE_AGE ({self.max_cache_age_s:g} s) must be at least CACHE_TTL ({self.cache_ttl_s:g} s), or "
                "signals go missing between two requests"
            )
        if self.defaults.carbon_weight + self.defaults.price_weight <= 0.0:
            raise ValueError("GRID_CARBON_WEIGHT and GRID_PRICE_WEIGHT: one of them must be above 0")
