"""Measured power of a node's own devices, from counters of energy and from what devices say directly."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from joulie.domain.actuation import mean_power_w
from joulie.domain.quantities import InvalidQuantityError
from joulie.ports import ControlFailedError, ControlRefusedError, EnergyReading, PowerSource

_log = logging.getLogger(__name__)

# Cores and the uncore are inside the package, DRAM and psys beside and around it: none of them may be added to it.
_PACKAGE = re.compile(r"package-\d+(-die-\d+)?")


@dataclass(frozen=True)
class PowerSample:
    """Power of a node's devices over the last cycle. What could not be read is not there.

    Attributes:
        power_w: mean power by device or RAPL domain, W.
        energy_j: counters by device or RAPL domain, J.
    """

    power_w: Mapping[str, float] = field(default_factory=dict)
    energy_j: Mapping[str, float] = field(default_factory=dict)

    @property
    def packages(self) -> int:
        """CPU packages with a counter."""
        return sum(1 for name in self.energy_j if _PACKAGE.fullmatch(name))

    @property
    def package_power_w(self) -> float | None:
        """Power of all CPU packages, W; None unless each of them has a sample."""
        powers = [power_w for name, power_w in self.power_w.items() if _PACKAGE.fullmatch(name)]
        return sum(powers) if powers and len(powers) == self.packages else None


class _Last(NamedTuple):
    energy_j: float
    read_at_s: float


class PowerMeter:
    """Reads the first source that works, cycle after cycle.

    Args:
        sources: candidates in order of preference.
    """

    def __init__(self, sources: Sequence[PowerSource]) -> None:
        self._sources = sources
        self._last: dict[str, _Last] = {}

    def available(self) -> PowerSource | None:
        """The source in use; None where nothing can be measured."""
        return next((source for source in self._sources if source.unavailable() is None), None)

    def read(self, now_s: float) -> PowerSample:
        """Power since the reading before; the first one has energy only.

        Args:
            now_s: monotonic time, s.
        """
        source = self.available()
        if source is None:
            return PowerSample()
        try:
            readings, direct_w = source.energy(), source.power_w()
        except (ControlFailedError, ControlRefusedError) as error:
            _log.warning("power cannot be read", extra={"source": source.name, "error": str(error)})
            return PowerSample()
        powers = {reading.device_id: self._mean_w(reading, now_s) for reading in readings}
        measured = {name: power_w for name, power_w in powers.items() if power_w is not None}
        return PowerSample(measured | direct_w, {reading.device_id: reading.energy_j for reading in readings})

    def _mean_w(self, reading: EnergyReading, now_s: float) -> float | None:
        last = self._last.get(reading.device_id)
        self._last[reading.device_id] = _Last(reading.energy_j, now_s)
        if last is None:
            return None
        try:
            return mean_power_w(last.energy_j, reading.energy_j, now_s - last.read_at_s, wraps_at_j=reading.wraps_at_j)
        except InvalidQuantityError as error:
            _log.warning("counter left out", extra={"device": reading.device_id, "error": str(error)})
            return None
