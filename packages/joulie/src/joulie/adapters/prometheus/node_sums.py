"""Adds up the devices of nodes: each once, all or nothing, and says what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from joulie.adapters.prometheus.readings import Rejection
from joulie.domain.counters import mean_rate
from joulie.domain.signal import Reading

_MAX_DEVICES = 64
"""Of one kind in a node. An exporter that shows more is broken, or wants our memory."""


class NodeSums:
    """Readings of the devices of nodes, by part of the node (cpu, dram, gpu ...)."""

    def __init__(self) -> None:
        self._devices: dict[str, dict[str, dict[str, Reading | Rejection]]] = {}
        self.rejected: Counter[Rejection] = Counter()

    def reject(self, reason: Rejection) -> None:
        """Count a series that is left out."""
        self.rejected[reason] += 1

    def add(self, part: str, node: str, device: str, found: Reading | Rejection) -> None:
        """Take note of what a series says of a device.

        Of several series of a device the newest counts. They come from exporters that were started anew, or that are
        scraped twice. Equal readings are no duplicates: a GPU says the same for each of its slices.
        """
        devices = self._devices.setdefault(part, {}).setdefault(node, {})
        if isinstance(found, Rejection):
            self.reject(found)
        if device not in devices and len(devices) >= _MAX_DEVICES:
            self.reject(Rejection.ABSURD)
            devices[next(iter(devices))] = Rejection.ABSURD  # the node has no believable sum any more
            return
        known = devices.get(device)
        if isinstance(known, Reading) and isinstance(found, Reading) and known != found:
            self.reject(Rejection.DUPLICATE)
        if not isinstance(known, Reading) or (isinstance(found, Reading) and found > known):
            devices[device] = found

    def sums(self, part: str) -> dict[str, Reading]:
        """Sum of each node's devices, as old as the oldest of them; a node of which one has no reading is left out."""
        found: dict[str, Reading] = {}
        for node, devices in self._devices.get(part, {}).items():
            readings = [reading for reading in devices.values() if isinstance(reading, Reading)]
            if len(readings) == len(devices):
                found[node] = added(readings)
        return found

    def counts(self, part: str) -> dict[str, int]:
        """Number of devices of each node that has a sum."""
        return {node: len(self._devices[part][node]) for node in self.sums(part)}


def added(readings: Sequence[Reading]) -> Reading:
    """The sum of some readings, as old as the oldest."""
    return Reading(min(time_s for time_s, _ in readings), sum(value for _, value in readings))


def both(first: Mapping[str, Reading], second: Mapping[str, Reading]) -> dict[str, Reading]:
    """The sum of two parts of each node that has both."""
    return {node: added([first[node], second[node]]) for node in first.keys() & second.keys()}


def rate_of(samples: Sequence[Reading], maximum: float) -> Reading | Rejection:
    """Rate of a counter, per second, or why there is none; `maximum` is the largest one to believe."""
    if (problem := _problem(samples)) is not None:
        return problem
    if len(samples) < 2:
        return Rejection.TOO_FEW
    rate = mean_rate(samples, max_rate=maximum)
    if rate is not None:
        return rate
    return Rejection.TOO_FEW if mean_rate(samples) is None else Rejection.ABSURD


def latest_of(samples: Sequence[Reading], maximum: float) -> Reading | Rejection:
    """The last sample of a gauge, or why it is no measurement; `maximum` is the largest one to believe."""
    if (problem := _problem(samples[-1:])) is not None:
        return problem
    return samples[-1] if samples[-1].value <= maximum else Rejection.ABSURD


def _problem(samples: Sequence[Reading]) -> Rejection | None:
    if not samples:
        return Rejection.NOT_FINITE
    return Rejection.NEGATIVE if min(value for _, value in samples) < 0.0 else None
