"""What a node can draw under limits of its devices, and the limits that leave it no more than that.

A node's worst case is what its CPUs and GPUs may draw under their limits, plus what no limit reaches: fans, memory,
network cards, storage and conversion.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class DeviceLimits(NamedTuple):
    """The limits of a node's CPU packages, or of its GPUs, which are alike; W for one device.

    A kind of device that takes no limit has the same power as `min_w` and `full_w`.
    """

    devices: float
    """Devices; a virtual machine has a part of its packages."""
    min_w: float
    full_w: float
    in_force_w: float
    asked_w: float

    @property
    def steerable(self) -> bool:
        """Whether it takes limits."""
        return self.min_w < self.full_w


NO_DEVICES = DeviceLimits(0.0, 0.0, 0.0, 0.0, 0.0)


class PowerCeiling(NamedTuple):
    """Upper bound of a node's caps; None where there is none."""

    cpu_w: float | None
    """Of one CPU package, W."""
    gpu_w: float | None
    """Of one GPU, W."""


class NodeLimits(NamedTuple):
    """The limits of one node."""

    cpu: DeviceLimits
    gpu: DeviceLimits
    other_w: float
    """What no limit reaches, W."""

    @property
    def floor_w(self) -> float:
        """Worst case under the lowest limits, W."""
        return self._sum(self.cpu.min_w, self.gpu.min_w)

    @property
    def full_w(self) -> float:
        """Worst case without limits, W."""
        return self._sum(self.cpu.full_w, self.gpu.full_w)

    @property
    def in_force_w(self) -> float:
        """Worst case under the limits in force, W."""
        return self._sum(self.cpu.in_force_w, self.gpu.in_force_w)

    @property
    def asked_w(self) -> float:
        """Worst case under the limits that the node is asked to set, W."""
        return self._sum(self.cpu.asked_w, self.gpu.asked_w)

    @property
    def as_before(self) -> PowerCeiling:
        """What the node was asked to set. One that does not answer may set it at any time: it must not become more."""
        return PowerCeiling(_asked_w(self.cpu), _asked_w(self.gpu))

    def ceiling(self, limit_w: float) -> PowerCeiling | None:
        """The limits that leave a worst case of at most `limit_w`, W; None where that needs none.

        All devices give the same share of their range. Limits are whole watts, so that they change seldom; below the
        floor they are those of the floor.
        """
        range_w = self.full_w - self.floor_w
        if range_w <= 0.0 or limit_w >= self.full_w:
            return None
        share = max(limit_w - self.floor_w, 0.0) / range_w
        return PowerCeiling(_limit_w(self.cpu, share), _limit_w(self.gpu, share))

    def _sum(self, cpu_w: float, gpu_w: float) -> float:
        return self.other_w + self.cpu.devices * cpu_w + self.gpu.devices * gpu_w


def _asked_w(device: DeviceLimits) -> float | None:
    return device.asked_w if device.asked_w < device.full_w else None


def _limit_w(device: DeviceLimits, share: float) -> float | None:
    if not device.steerable:
        return _asked_w(device)
    return max(math.floor(device.min_w + share * (device.full_w - device.min_w) + 1e-9), 1.0)
