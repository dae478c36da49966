"""What a source of grid signals is made from; plug-ins get it, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2
import msgspec

from joulie.adapters.grid.provider import Provider
from joulie.domain.grid.signals import Basis, Measure
from joulie.ports import MetricsDatabase

if TYPE_CHECKING:  # its settings are those of all sources
    from joulie.adapters.grid.settings import GridSettings

_OptionsT = TypeVar("_OptionsT")


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

    settings: GridSettings
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
