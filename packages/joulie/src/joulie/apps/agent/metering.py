"""Measured power of the host's devices, from energy counters and from instantaneous readings.

A counter must be read before it wraps twice, however rarely the agent reconciles: AMD packages wrap after 65,532 J,
which is two to three minutes of a large EPYC. So a `Sampler` reads the counters between the cycles where that is
needed, the meter adds the energy up, and each cycle gets the mean power since the one before.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from joulie.domain.energy_counter import PLAUSIBLE_POWER_W, EnergyTrack, mean_power_w, sampling_interval_s, track
from joulie.domain.quantities import InvalidQuantityError
from joulie.ports.devices import ControlFailedError, ControlRefusedError, EnergyReading, PowerSource

_log = logging.getLogger(__name__)

# Core and uncore domains are part of the package, DRAM is beside it and psys around it: adding any of them to the
# package would count power twice or count power that is not the CPU's.
_PACKAGE = re.compile(r"package-(\d+)(-die-\d+)?")

_UNKNOWN_INTERVAL_S = 1.0
"""Time until a sampler looks again while no cycle has read the counters, s."""

UNREADABLE = "its energy counter cannot be read"
STOPPED = "its energy counter has stopped"


def socket_of(device_id: str) -> str | None:
    """Socket number of a CPU package or of one of its dies; None for other RAPL domains."""
    match = _PACKAGE.fullmatch(device_id)
    return match[1] if match else None


@dataclass(frozen=True)
class PowerSample:
    """Power of the host's devices in the last cycle; devices that could not be read are absent.

    Attributes:
        power_w: mean power since the previous cycle by device or RAPL domain, W.
        energy_j: energy counters by device or RAPL domain, J.
        problems: why a device that should be measured is not, by device; constant while nothing changes.
    """

    power_w: Mapping[str, float] = field(default_factory=dict)
    energy_j: Mapping[str, float] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def sockets(self) -> int:
        """Number of CPU sockets with an energy counter; a socket may have several dies."""
        return len(set(map(socket_of, self.energy_j)) - {None})

    def required_of(self, packages: Iterable[str], sockets: int | None) -> PowerSample:
        """The same sample with a problem for everything that should be measured and is not.

        Args:
            packages: CPU packages that exist.
            sockets: number of CPU sockets; None if unknown.
        """
        read = {*self.energy_j, *(name.partition("-die-")[0] for name in self.energy_j)}
        missing = [name for name in packages if name not in read and name not in self.problems]
        problems = {**self.problems, **dict.fromkeys(missing, UNREADABLE)}
        if self.energy_j and not problems and self.sockets < (sockets or 0):
            problems["package"] = f"only {self.sockets} of {sockets} sockets have an energy counter"
        return replace(self, problems=problems)

    @property
    def package_power_w(self) -> float | None:
        """Total power of all CPU packages, W; None unless every package has a sample: a part is never the whole."""
        packages = [name for name in self.energy_j if _PACKAGE.fullmatch(name)]
        if self.problems or not packages or not all(name in self.power_w for name in packages):
            return None
        return sum(self.power_w[name] for name in packages)


class PowerMeter:
    """Measures power from the first available source. It may be used from several threads.

    Args:
        sources: power sources in order of preference.
        max_power_w: returns the most that a device can draw, W.
    """

    def __init__(
        self, sources: Sequence[PowerSource], max_power_w: Callable[[str], float] = lambda _device: PLAUSIBLE_POWER_W
    ) -> None:
        self._sources = sources
        self._max_power_w = max_power_w
        self._lock = threading.Lock()
        self._tracks: dict[str, EnergyTrack] = {}
        self._marks: dict[str, EnergyTrack] = {}
        self._problems: Mapping[str, str] = {}
        self.source: PowerSource | None = None
        """The source that the latest cycle read; None if power cannot be measured."""
        self.sampling_interval_s = _UNKNOWN_INTERVAL_S
        """Maximum time between two readings that misses no wrap of a counter, s."""

    def available(self) -> PowerSource | None:
        """The first available source; None if power cannot be measured."""
        return next((source for source in self._sources if source.unavailable() is None), None)

    def sample(self, now_s: float) -> None:
        """Read the counters between two cycles; `now_s` is monotonic time, s."""
        with self._lock:
            self._readings(now_s)

    def read(self, now_s: float) -> PowerSample:
        """Mean power since the previous call; the first call returns energy only.

        Args:
            now_s: monotonic time, s.
        """
        with self._lock:
            self.source = self.available()
            self.sampling_interval_s = sampling_interval_s(())
            readings, direct_w = self._readings(now_s)
            powers = dict(direct_w)
            for reading in readings:
                power_w = self._since_last_cycle_w(reading.device_id)
                if power_w is not None:
                    powers[reading.device_id] = power_w  # the mean of the cycle, rather than a moment's power
            energies = {reading.device_id: reading.energy_j for reading in readings}
            problems = self._why_missing(energies)
            self._log_problems(problems)
            return PowerSample(powers, energies, problems)

    def _readings(self, now_s: float) -> tuple[Sequence[EnergyReading], Mapping[str, float]]:
        if self.source is None:
            return (), {}
        try:
            readings, direct_w = self.source.energy(), self.source.power_w()
        except (ControlFailedError, ControlRefusedError, OSError, ValueError) as error:
            _log.warning("power reading failed", extra={"source": self.source.name, "error": str(error)})
            return (), {}
        valid = [reading for reading in readings if self._track(reading, now_s)]
        self.sampling_interval_s = sampling_interval_s(
            (reading.wraps_at_j, self._max_power_w(reading.device_id)) for reading in valid
        )
        return valid, direct_w

    def _track(self, reading: EnergyReading, now_s: float) -> bool:
        """Keep a reading; returns whether it is one."""
        name = reading.device_id
        try:
            self._tracks[name] = track(
                self._tracks.get(name),
                reading.energy_j,
                now_s,
                wraps_at_j=reading.wraps_at_j,
                max_power_w=self._max_power_w(name),
            )
        except InvalidQuantityError as error:
            _log.warning("invalid energy counter ignored", extra={"device": name, "error": str(error)})
            return False
        return True

    def _since_last_cycle_w(self, device_id: str) -> float | None:
        known = self._tracks[device_id]
        mark = self._marks.get(device_id)
        power_w = None if mark is None else mean_power_w(mark, known)
        if power_w is not None or mark is None or mark.since_s != known.since_s:
            self._marks[device_id] = known  # else the mark stays: a slow counter's next progress spans both cycles
        return power_w

    def _why_missing(self, found: Mapping[str, float]) -> dict[str, str]:
        """Problems of the packages read earlier; another domain, such as a graphics unit, may be off."""
        packages = sorted(name for name in self._tracks if _PACKAGE.fullmatch(name))
        return {
            name: STOPPED if name in found else UNREADABLE
            for name in packages
            if name not in found or self._tracks[name].stale
        }

    def _log_problems(self, problems: Mapping[str, str]) -> None:
        if problems != self._problems:
            level = logging.WARNING if problems else logging.INFO
            _log.log(level, "devices without power readings changed", extra={"problems": problems})
            self._problems = problems


class Sampler:
    """Reads energy counters between the cycles, often enough that none wraps unnoticed.

    Args:
        meter: whose counters to read.
        clock: monotonic time, s.
    """

    def __init__(self, meter: PowerMeter, clock: Callable[[], float]) -> None:
        self._meter = meter
        self._clock = clock

    async def run(self) -> None:
        """Read until cancelled; where the cycles come often enough, only they read."""
        while True:
            await asyncio.sleep(self._meter.sampling_interval_s)
            await asyncio.to_thread(self._meter.sample, self._clock())
