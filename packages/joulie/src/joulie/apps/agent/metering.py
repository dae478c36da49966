"""Measured power of the host's devices, from energy counters and from instantaneous readings."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from joulie.domain.energy_counter import mean_power_w
from joulie.domain.quantities import InvalidQuantityError
from joulie.ports import ControlFailedError, ControlRefusedError, EnergyReading, PowerSource

_log = logging.getLogger(__name__)

# Core and uncore domains are part of the package, DRAM is beside it and psys around it: adding any of them to the
# package would count power twice or count power that is not the CPU's.
_PACKAGE = re.compile(r"package-\d+(-die-\d+)?")


@dataclass(frozen=True)
class PowerSample:
    """Power of the host's devices in the last cycle; devices that could not be read are absent.

    Attributes:
        power_w: mean power since the previous cycle by device or RAPL domain, W.
        energy_j: energy counters by device or RAPL domain, J.
    """

    power_w: Mapping[str, float] = field(default_factory=dict)
    energy_j: Mapping[str, float] = field(default_factory=dict)

    @property
    def packages(self) -> int:
        """Number of CPU packages with an energy counter."""
        return sum(1 for name in self.energy_j if _PACKAGE.fullmatch(name))

    @property
    def package_power_w(self) -> float | None:
        """Total power of all CPU packages, W; None unless every package has a sample."""
        powers = [power_w for name, power_w in self.power_w.items() if _PACKAGE.fullmatch(name)]
        return sum(powers) if powers and len(powers) == self.packages else None


class _PreviousReading(NamedTuple):
    energy_j: float
    read_at_s: float


class PowerMeter:
    """Measures power from the first available source and keeps the previous counters.

    Args:
        sources: power sources in order of preference.
    """

    def __init__(self, sources: Sequence[PowerSource]) -> None:
        self._sources = sources
        self._previous: dict[str, _PreviousReading] = {}

    def available(self) -> PowerSource | None:
        """The first available source; None if power cannot be measured."""
        return next((source for source in self._sources if source.unavailable() is None), None)

    def read(self, now_s: float) -> PowerSample:
        """Mean power since the previous call; the first call returns energy only.

        Args:
            now_s: monotonic time, s.
        """
        source = self.available()
        if source is None:
            return PowerSample()
        try:
            readings, direct_w = source.energy(), source.power_w()
        except (ControlFailedError, ControlRefusedError) as error:
            _log.warning("power reading failed", extra={"source": source.name, "error": str(error)})
            return PowerSample()
        powers = {reading.device_id: self._mean_w(reading, now_s) for reading in readings}
        measured = {name: power_w for name, power_w in powers.items() if power_w is not None}
        return PowerSample(measured | direct_w, {reading.device_id: reading.energy_j for reading in readings})

    def _mean_w(self, reading: EnergyReading, now_s: float) -> float | None:
        previous = self._previous.get(reading.device_id)
        self._previous[reading.device_id] = _PreviousReading(reading.energy_j, now_s)
        if previous is None:
            return None
        try:
            duration_s = now_s - previous.read_at_s
            return mean_power_w(previous.energy_j, reading.energy_j, duration_s, wraps_at_j=reading.wraps_at_j)
        except InvalidQuantityError as error:
            _log.warning("invalid energy counter ignored", extra={"device": reading.device_id, "error": str(error)})
            return None
