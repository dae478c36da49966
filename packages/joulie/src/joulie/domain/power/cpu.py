"""CPU power and throughput: utilisation and a package cap in, wall power and clock out.

Measured curves are wall power of the whole node and exceed the TDP of its sockets, so power is split in two: the
*package*, which caps and clocks act on, and the *platform* (memory, fans, supplies), which they do not.
Source of all formulas: spec, simulator physics; the exponents are assumptions, see `UTIL_EXPONENT`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from joulie.domain.hardware import CpuModel
from joulie.domain.hardware.estimates import TYPICAL_FULL_SHARE, TYPICAL_IDLE_SHARE
from joulie.domain.hardware.models import CURVE_POINTS
from joulie.domain.power.curves import cap_or_uncapped, interpolate_even
from joulie.domain.units import BoolArray, FloatArray, IntArray, finite, non_negative, positive

UTIL_EXPONENT = 1.15
"""Exponent of utilisation where no curve was measured (assumed)."""
FREQUENCY_EXPONENT = 1.35
"""Exponent of the clock in the package's dynamic power (assumed)."""
DEFAULT_FREQUENCY_FLOOR = 0.40
"""Lowest clock as a share of the highest, about 1.5 of 3.7 GHz (assumed)."""

PLATFORM_SHARE = 0.15
"""Minimum share of a node's full power outside its packages (spec: simulator physics)."""

DEEP_IDLE_BELOW_UTIL = 0.20
DEEP_IDLE_SAVING = 0.5
DEEP_IDLE_FLOOR_W = 20.0


class CpuState(NamedTuple):
    """Operating point of the CPUs of a node; arrays of the broadcast shape of the inputs."""

    wall_w: FloatArray
    """Power of the whole node without GPUs, W."""
    package_w: FloatArray
    """The part of it that a cap acts on, all sockets together, W."""
    frequency: FloatArray
    """Clock as a share of the highest, within floor..1."""
    saturated: BoolArray
    """The cap cannot be met: the clock is at its floor and the package still draws more."""


@dataclass(frozen=True, eq=False)
class CpuPower:
    """Power model of the CPUs of one node, or of many: every field may be an array over nodes.

    Attributes:
        curve_w: wall power at even steps of ``util ** util_exponent``, W, shape ``(..., n_points)``, never falling.
        tdp_w: TDP of all sockets together, W, shape ``(...)``.
        util_exponent: 1 for measured curves; `UTIL_EXPONENT` where only the end points are known, which makes the
            interpolation the formula ``idle + (max - idle) * util ** a``.
        frequency_floor: lowest clock as a share of the highest.
    """

    curve_w: FloatArray
    tdp_w: FloatArray
    util_exponent: FloatArray
    frequency_floor: FloatArray
    platform_w: FloatArray = field(init=False)
    package_idle_w: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        curve_w = positive("curve_w", self.curve_w)
        positive("tdp_w", self.tdp_w)
        positive("util_exponent", self.util_exponent)
        positive("frequency_floor", finite("frequency_floor", self.frequency_floor, maximum=1.0))
        full_w = curve_w[..., -1]
        platform_w = np.maximum(PLATFORM_SHARE * full_w, full_w - self.tdp_w)
        object.__setattr__(self, "platform_w", platform_w)
        object.__setattr__(self, "package_idle_w", np.maximum(0.05 * full_w, curve_w[..., 0] - platform_w))

    @classmethod
    def of(cls, model: CpuModel, sockets: int, *, frequency_floor: float = DEFAULT_FREQUENCY_FLOOR) -> CpuPower:
        """The power model of a node with `sockets` CPUs of one model."""
        positive("sockets", sockets)
        points_w = np.asarray(model.curve_w) * (sockets / model.curve_sockets)
        measured = len(points_w) == CURVE_POINTS
        # Between two known ends the curve is a straight line in util ** a: the same points for all, so fleets stack.
        curve_w = points_w if measured else np.linspace(points_w[0], points_w[1], CURVE_POINTS)
        return cls(
            curve_w=curve_w,
            tdp_w=np.asarray(model.tdp_w * sockets),
            util_exponent=np.asarray(1.0 if measured else UTIL_EXPONENT),
            frequency_floor=np.asarray(frequency_floor),
        )

    @classmethod
    def typical(cls, tdp_w: float) -> CpuPower:
        """The power model of a server whose CPUs nobody knows but by their TDP together, W."""
        positive("tdp_w", tdp_w)
        return cls(
            curve_w=np.linspace(TYPICAL_IDLE_SHARE * tdp_w, TYPICAL_FULL_SHARE * tdp_w, CURVE_POINTS),
            tdp_w=np.asarray(tdp_w),
            util_exponent=np.asarray(UTIL_EXPONENT),
            frequency_floor=np.asarray(DEFAULT_FREQUENCY_FLOOR),
        )

    @classmethod
    def fleet(cls, models: Sequence[CpuPower], model_of_node: IntArray) -> CpuPower:
        """One row a node: the model `models[model_of_node[i]]` for node i."""
        return cls(
            curve_w=np.stack([model.curve_w for model in models])[model_of_node],
            tdp_w=np.stack([model.tdp_w for model in models])[model_of_node],
            util_exponent=np.stack([model.util_exponent for model in models])[model_of_node],
            frequency_floor=np.stack([model.frequency_floor for model in models])[model_of_node],
        )

    def wall_w(self, util: npt.ArrayLike) -> FloatArray:
        """Power of the node at full clock, W.

        Args:
            util: CPU utilisation 0..1, shape ``(...)``.

        Raises:
            InvalidQuantityError: utilisation is NaN or outside 0..1.
        """
        checked = finite("util", util, minimum=0.0, maximum=1.0)
        return interpolate_even(self.curve_w, np.asarray(checked**self.util_exponent))

    def operate(
        self,
        util: npt.ArrayLike,
        cap_w: npt.ArrayLike = np.inf,
        *,
        activity: npt.ArrayLike = 1.0,
        deep_idle: npt.ArrayLike = False,
    ) -> CpuState:
        """The operating point under a package cap: the highest clock that meets it.

        ``package = idle + dynamic * f ** b`` is solved for f in closed form; a cap above the draw changes nothing.

        Args:
            util: CPU utilisation 0..1.
            cap_w: cap on all packages together, W; inf where uncapped.
            activity: factor on the dynamic power, for work that stalls.
            deep_idle: whether the node may enter deep C-states.

        Raises:
            InvalidQuantityError: an input is NaN or out of range.
        """
        used = finite("util", util, minimum=0.0, maximum=1.0)
        limit_w = cap_or_uncapped("cap_w", cap_w)
        active = non_negative("activity", activity)
        full_wall_w = self.wall_w(used)
        full_w = np.maximum(0.05 * self.curve_w[..., -1], full_wall_w - self.platform_w)

        idle_w = self.package_idle_w - np.where(
            np.asarray(deep_idle), _deep_idle_saving_w(self.package_idle_w, used), 0.0
        )
        dynamic_w = (full_w - self.package_idle_w) * active
        budget_w = np.maximum(limit_w - idle_w, 0.0)
        share = np.where(limit_w < idle_w + dynamic_w, 0.0, 1.0)
        np.divide(budget_w, dynamic_w, out=share, where=(share == 0.0) & (dynamic_w > 0.0))
        frequency = np.maximum(share ** (1.0 / FREQUENCY_EXPONENT), self.frequency_floor)
        package_w = idle_w + dynamic_w * frequency**FREQUENCY_EXPONENT
        # A hair of tolerance: the clock solved for meets the cap up to rounding.
        saturated = package_w > limit_w * (1.0 + 1e-9)
        return CpuState(full_wall_w - full_w + package_w, package_w, frequency, np.asarray(saturated))


def _deep_idle_saving_w(idle_w: FloatArray, util: FloatArray) -> FloatArray:
    """What deep C-states save: up to half of the idle power, linearly less up to 20 % load, never under the floor."""
    depth = np.clip(1.0 - util / DEEP_IDLE_BELOW_UTIL, 0.0, 1.0)
    return np.minimum(DEEP_IDLE_SAVING * depth * idle_w, np.maximum(idle_w - DEEP_IDLE_FLOOR_W, 0.0))
