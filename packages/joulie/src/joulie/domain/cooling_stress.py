"""Cooling stress: how much of its cooling capacity a node uses, by named models.

A model maps power, TDP, ambient temperature and cooling zone to a stress of 0..100. Programs add models from plug-ins
to those that are built in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from joulie.domain.units import ZERO_CELSIUS_K, FloatArray, non_negative, positive

REFERENCE_AMBIENT_K = 20.0 + ZERO_CELSIUS_K
"""Ambient temperature at which cooling has its full capacity."""


class CoolingStressModel(Protocol):
    """Power, TDP, ambient temperature and zone of nodes -> cooling stress, 0..100.

    A model never gives less stress for more power.
    """

    def __call__(
        self,
        power_w: npt.ArrayLike,
        tdp_w: npt.ArrayLike,
        ambient_k: npt.ArrayLike,
        ambient_known: npt.ArrayLike,
        zones: Sequence[str | None],
    ) -> FloatArray:
        """Stress of each node, 0..100.

        Args:
            power_w: measured power, W, shape ``(n_nodes,)`` or scalar.
            tdp_w: TDP, W, above 0.
            ambient_k: ambient temperature, K; any positive value where it is not known.
            ambient_known: whether `ambient_k` was measured.
            zones: cooling zone of each node, None where it has none; empty where no node has one.

        Raises:
            InvalidQuantityError: an input is NaN or out of range.
        """
        ...


class UnknownCoolingModelError(ValueError):
    """A cooling model that is not registered under that name."""


def linear_cooling_stress(
    power_w: npt.ArrayLike,
    tdp_w: npt.ArrayLike,
    ambient_k: npt.ArrayLike = REFERENCE_AMBIENT_K,
    ambient_known: npt.ArrayLike = True,
    zones: Sequence[str | None] = (),
) -> FloatArray:
    """Share of the TDP in use, over a cooling capacity that shrinks by 2 % a kelvin above 20 C, to half at most.

    ``clamp(power / TDP / max(0.5, 1 - (ambient - 20) * 0.02) * 100, 0, 100)``; capacity 1 where ambient is unknown
    (spec: control loop, digital twin). See `CoolingStressModel` for arguments and errors.
    """
    power = non_negative("power_w", power_w)
    tdp = positive("tdp_w", tdp_w)
    above_k = positive("ambient_k", ambient_k) - REFERENCE_AMBIENT_K
    capacity = np.where(np.asarray(ambient_known), np.maximum(0.5, 1.0 - above_k * 0.02), 1.0)
    return np.clip(power / tdp / capacity * 100.0, 0.0, 100.0)


COOLING_MODELS: Mapping[str, CoolingStressModel] = MappingProxyType({"linear": linear_cooling_stress})
