"""What a source of grid signals is made from; plug-ins get it, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import httpx2
import msgspec

from joulie.adapters.grid.provider import Provider, RequestPolicy
from joulie.domain.grid.signals import Basis, Measure
from joulie.ports import MetricsDatabase

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
        """Zone names by source, where a source calls a zone otherwise."""


@dataclass(frozen=True)
class SourceContext:
    """What sources are made of.

    Attributes:
        settings: of the program.
        measure: that is asked for.
        client: shared; it follows no redirects.
        prometheus: the server of PROMETHEUS_ADDRESS; None where there is none.
        now_s: s since the epoch.
    """

    settings: SourceSettings
    measure: Measure
    client: httpx2.AsyncClient
    prometheus: MetricsDatabase | None
    now_s: Callable[[], float]

    @property
    def basis(self) -> Basis | None:
        """Basis of numbers whose source does not state it."""
        return self.settings.carbon_basis if self.measure is Measure.CARBON else None

    @property
    def zone(self) -> str:
        """The default zone: that of numbers whose source names no zone."""
        return self.settings.electricity_map_api_region

    def provider(self) -> Provider:
        """A client of one HTTP API as the settings have it, with a rate limit and a circuit breaker of its own."""
        return Provider(self.client, self.settings.request_policy)


def options(kind: type[_OptionsT]) -> Callable[[Mapping[str, Any]], _OptionsT]:
    """Reads a JSON object of options; unknown ones are refused by ValueError."""
    return lambda given: msgspec.convert(dict(given), kind)
