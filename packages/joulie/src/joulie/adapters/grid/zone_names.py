"""Sources that know one zone only, or that have names of their own for zones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from joulie.domain.grid.series import Series
from joulie.domain.grid.signals import Observation
from joulie.ports import GridSource, GridSourceError


class _Wrapper(ABC):
    """A source that asks another one about a zone by another name."""

    def __init__(self, source: GridSource) -> None:
        self._source = source
        self.name = source.name
        self.measure = source.measure
        self.basis = source.basis

    @abstractmethod
    def _own_name(self, zone: str) -> str:
        """The zone's name for the wrapped source."""

    async def latest(self, zone: str) -> Observation:
        return await self._source.latest(self._own_name(zone))

    async def forecast(self, zone: str, horizon_s: float) -> Series | None:
        return await self._source.forecast(self._own_name(zone), horizon_s)

    async def history(self, zone: str, from_s: float, until_s: float) -> Series | None:
        return await self._source.history(self._own_name(zone), from_s, until_s)


class OneZone(_Wrapper):
    """A source that has the numbers of one zone and does not state which: those of the default zone."""

    def __init__(self, source: GridSource, zone: str) -> None:
        super().__init__(source)
        self._zone = zone

    def _own_name(self, zone: str) -> str:
        if zone != self._zone:
            raise GridSourceError(f"it is of zone {self._zone} only; write {{zone}} where it takes others")
        return zone


class RenamedZones(_Wrapper):
    """A source with other names for zones."""

    def __init__(self, source: GridSource, names: Mapping[str, str]) -> None:
        super().__init__(source)
        self._names = names

    def _own_name(self, zone: str) -> str:
        return self._names.get(zone, zone)
