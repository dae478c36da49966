"""Settings and clients from which sources of grid signals are created; plug-ins receive the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import httpx2
import msgspec

from joulie.adapters.grid.provider import Provider, RequestPolicy
from joulie.domain.grid.signals import Basis, Measure
from joulie.ports.grid import RequestRate
from joulie.ports.telemetry import MetricsDatabase

_OptionsT = TypeVar("_OptionsT")


class SourceSettings(Protocol):
    """The settings that sources read; `joulie.adapters.grid.settings.GridSettings` has them."""

    @property
    def electricity_map_api_region(self) -> str:
        """Default zone."""

    @property
    def carbon_basis(self) -> Basis:
        """Basis of intensities whose source does not state it."""

    @property
    def request_policy(self) -> RequestPolicy:
        """Timeout, retries and rate limit of requests."""

    @property
    def source_settings(self) -> Mapping[Measure, Mapping[str, Any]]:
        """Settings of each built-in source, by measure and name."""

    @property
    def grid_zone_names(self) -> Mapping[str, Any]:
        """Names of zones at sources that use others, by source."""


@dataclass(frozen=True)
class SourceContext:
    """Settings and clients for creating a source.

    Attributes:
        settings: grid settings of the program.
        measure: measure that the source is to provide.
        client: HTTP client shared by all sources; it follows no redirects.
        prometheus: client of PROMETHEUS_ADDRESS; None if not configured.
        now_s: current time, s since the epoch.
        rate: rate limit of all requests; None for one of each provider alone.
    """

    settings: SourceSettings
    measure: Measure
    client: httpx2.AsyncClient
    prometheus: MetricsDatabase | None
    now_s: Callable[[], float]
    rate: RequestRate | None = None

    @property
    def basis(self) -> Basis | None:
        """Basis of values whose source does not state it; None for prices."""
        return self.settings.carbon_basis if self.measure is Measure.CARBON else None

    @property
    def zone(self) -> str:
        """The default zone, which values without a zone belong to."""
        return self.settings.electricity_map_api_region

    def provider(self) -> Provider:
        """Create a client of one HTTP API; each has a circuit breaker of its own."""
        return Provider(self.client, self.settings.request_policy, rate=self.rate)


def options(kind: type[_OptionsT]) -> Callable[[Mapping[str, Any]], _OptionsT]:
    """A converter of a JSON object to options; it raises ValueError for unknown or invalid ones."""
    return lambda given: msgspec.convert(dict(given), kind)
