"""Wrappers for sources that cover a single zone, or that use other names for zones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import Observation
from joulie.ports.grid import GridSource, GridSourceError


class _Wrapper(ABC):
    """A source that queries another one with a translated zone name."""

    def __init__(self, source: GridSource) -> None:
        self._source = source
        self.name = source.name
        self.measure = source.measure
        self.basis = source.basis

    @abstractmethod
    def _own_name(self, zone: str) -> str:
        """The wrapped source's name of a zone."""

    async def latest(self, zone: str) -> Observation:
        return await self._source.latest(self._own_name(zone))

    async def forecast(self, zone: str, horizon_s: float) -> Series | None:
        return await self._source.forecast(self._own_name(zone), horizon_s)

    async def history(self, zone: str, from_s: float, until_s: float) -> Series | None:
        return await self._source.history(self._own_name(zone), from_s, until_s)


class OneZone(_Wrapper):
    """A source whose values have no zone: they belong to the default zone, and other zones are refused."""

    def __init__(self, source: GridSource, zone: str) -> None:
        super().__init__(source)
        self._zone = zone

    def _own_name(self, zone: str) -> str:
        if zone != self._zone:
            raise GridSourceError(
                f"covers zone {self._zone} only; write {{zone}} in its query or URL if it covers others"
            )
        return zone


class RenamedZones(_Wrapper):
    """A source that uses other names for zones; zones without an entry keep their name."""

    def __init__(self, source: GridSource, names: Mapping[str, str]) -> None:
        super().__init__(source)
        self._names = names

    def _own_name(self, zone: str) -> str:
        return self._names.get(zone, zone)
