"""The numbers in a NodeTwin's status: scores, PUE and watts of many nodes at once, and their dead-bands.

Measurements vary all the time. Stored numbers are replaced only when one has left its dead-band, so that noise causes
no writes. Rows hold one node's numbers in the order of `_SCORES`, PUE, `_POWERS`; NaN where there is none.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwinStatus, PowerMeasurement
from joulie.domain.twin import FleetTwin
from joulie.domain.units import BoolArray, FloatArray

SCORE_BAND = 1.0
"""Dead-band of scores, points."""
PUE_BAND = 0.01
"""Dead-band of the estimated PUE."""
POWER_BAND = 0.02
"""Dead-band of powers, as a share of the node's capped power; of trends, the same per minute."""

_SCORES = (
    "predicted_power_headroom_score",
    "predicted_cooling_stress_score",
    "predicted_psu_stress_score",
    "hardware_density_score",
)
_POWERS = (
    "measured_node_power_w",
    "cpu_capped_power_w",
    "gpu_capped_power_w",
    "node_capped_power_w",
    "cpu_tdp_w",
    "gpu_tdp_w",
    "node_tdp_w",
    "power_trend_w_per_min",
)
_PUE = len(_SCORES)
_FIRST_POWER = _PUE + 1
_NODE_CAPPED = _FIRST_POWER + _POWERS.index("node_capped_power_w")
_NO_POWER = PowerMeasurement()

Numbers = tuple[float, ...]


def wanted_numbers(twin: FleetTwin, rows: slice) -> FloatArray:
    """Numbers of some nodes, rounded as they are stored, shape ``(n_rows, n_numbers)``."""
    cpu_capped_w, gpu_capped_w = twin.cpu_capped_w[rows], twin.gpu_capped_w[rows]
    cpu_tdp_w, gpu_tdp_w = twin.cpu_tdp_w[rows], twin.gpu_tdp_w[rows]
    numbers = np.column_stack(
        [
            twin.headroom[rows],
            twin.cooling_stress[rows],
            twin.psu_stress[rows],
            twin.density[rows],
            twin.estimated_pue[rows],
            twin.measured_w[rows],
            cpu_capped_w,
            gpu_capped_w,
            cpu_capped_w + gpu_capped_w,
            cpu_tdp_w,
            gpu_tdp_w,
            cpu_tdp_w + gpu_tdp_w,
            twin.power_trend_w_per_min[rows],
        ]
    )
    rounded = np.round(numbers, 2)
    rounded[:, _PUE] = np.round(numbers[:, _PUE], 4)
    return rounded


def stored_numbers(status: NodeTwinStatus) -> Numbers:
    """Numbers of a status."""
    power = status.power_measurement or _NO_POWER
    found = (
        status.predicted_power_headroom_score,
        status.predicted_cooling_stress_score,
        status.predicted_psu_stress_score,
        status.hardware_density_score,
        status.estimated_pue,
        power.measured_node_power_w,
        power.cpu_capped_power_w,
        power.gpu_capped_power_w,
        power.node_capped_power_w,
        power.cpu_tdp_w,
        power.gpu_tdp_w,
        power.node_tdp_w,
        power.power_trend_w_per_min,
    )
    return tuple([math.nan if number is None else number for number in found])


def with_numbers(status: NodeTwinStatus, numbers: FloatArray) -> NodeTwinStatus:
    """A status with these numbers of one node, shape ``(n_numbers,)``."""
    values = numbers.tolist()
    power = msgspec.structs.replace(
        status.power_measurement or _NO_POWER, **dict(zip(_POWERS, values[_FIRST_POWER:], strict=True))
    )
    scores = dict(zip(_SCORES, values[:_PUE], strict=True))
    return msgspec.structs.replace(status, **scores, estimated_pue=values[_PUE], power_measurement=power)


def numbers_close(wanted: FloatArray, stored: FloatArray) -> BoolArray:
    """Whether the stored numbers of nodes are within the dead-bands, shape ``(n_rows,)``; one and none never are."""
    bands = np.empty_like(wanted)
    bands[:, :_PUE] = SCORE_BAND
    bands[:, _PUE] = PUE_BAND
    bands[:, _FIRST_POWER:] = POWER_BAND * wanted[:, _NODE_CAPPED, np.newaxis]
    # Comparisons with NaN are false.
    close = (np.abs(wanted - stored) <= bands) | (np.isnan(wanted) & np.isnan(stored))
    return np.asarray(close.all(axis=1))
