"""Sums of device readings by node: each device counts once, and a node with an invalid device has no sum.

Series that are left out are counted by reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from joulie.adapters.prometheus.readings import Rejection
from joulie.domain.counters import mean_rate
from joulie.domain.signal import Reading

_MAX_DEVICES = 64
"""Maximum number of devices of one kind in a node, which also bounds memory against a broken exporter."""


class NodeSums:
    """Readings of the devices of nodes, by part of the node (cpu, dram, gpu ...)."""

    def __init__(self) -> None:
        self._devices: dict[str, dict[str, dict[str, Reading | Rejection]]] = {}
        self.rejected: Counter[Rejection] = Counter()

    def reject(self, reason: Rejection) -> None:
        """Count a series that is left out."""
        self.rejected[reason] += 1

    def add(self, part: str, node: str, device: str, found: Reading | Rejection) -> None:
        """Add the reading of a device from one series, or the reason why the series has none.

        Of several series of a device the newest counts; they come from restarted exporters, or from exporters that are
        scraped twice. Equal readings are not counted as duplicates: a GPU reports the same for each of its slices.
        """
        devices = self._devices.setdefault(part, {}).setdefault(node, {})
        if isinstance(found, Rejection):
            self.reject(found)
        if device not in devices and len(devices) >= _MAX_DEVICES:
            self.reject(Rejection.ABSURD)
            devices[next(iter(devices))] = Rejection.ABSURD  # so that the node has no sum any more
            return
        known = devices.get(device)
        if isinstance(known, Reading) and isinstance(found, Reading) and known != found:
            self.reject(Rejection.DUPLICATE)
        if not isinstance(known, Reading) or (isinstance(found, Reading) and found > known):
            devices[device] = found

    def sums(self, part: str) -> dict[str, Reading]:
        """Sum of each node's devices, with the oldest of their times, if all of them have a reading."""
        found: dict[str, Reading] = {}
        for node, devices in self._devices.get(part, {}).items():
            readings = [reading for reading in devices.values() if isinstance(reading, Reading)]
            if len(readings) == len(devices):
                found[node] = sum_of(readings)
        return found

    def counts(self, part: str) -> dict[str, int]:
        """Number of devices of the nodes that have a sum."""
        return {node: len(self._devices[part][node]) for node in self.sums(part)}


def sum_of(readings: Sequence[Reading]) -> Reading:
    """Sum of readings, with the oldest of their times."""
    return Reading(min(time_s for time_s, _ in readings), sum(value for _, value in readings))


def sum_of_both(first: Mapping[str, Reading], second: Mapping[str, Reading]) -> dict[str, Reading]:
    """Sum of two parts of the nodes that have both."""
    return {node: sum_of([first[node], second[node]]) for node in first.keys() & second.keys()}


def rate_of(samples: Sequence[Reading], maximum: float) -> Reading | Rejection:
    """Rate of a counter, per second, or why there is none; a rate above `maximum` is implausible."""
    if (problem := _problem(samples)) is not None:
        return problem
    if len(samples) < 2:
        return Rejection.TOO_FEW
    rate = mean_rate(samples, max_rate=maximum)
    if rate is not None:
        return rate
    return Rejection.TOO_FEW if mean_rate(samples) is None else Rejection.ABSURD


def latest_of(samples: Sequence[Reading], maximum: float) -> Reading | Rejection:
    """Last sample of a gauge, or why it is invalid; a value above `maximum` is implausible."""
    if (problem := _problem(samples[-1:])) is not None:
        return problem
    return samples[-1] if samples[-1].value <= maximum else Rejection.ABSURD


def _problem(samples: Sequence[Reading]) -> Rejection | None:
    if not samples:
        return Rejection.NOT_FINITE
    return Rejection.NEGATIVE if min(value for _, value in samples) < 0.0 else None
