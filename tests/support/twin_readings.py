"""Readings of a fleet for tests of the twin, from one row a node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulie.domain.cooling_stress import REFERENCE_AMBIENT_K
from joulie.domain.twin import DEFAULT_RACK_CAPACITY_W, FleetReadings

Hardware = tuple[float, float, int, int]
"""CPU TDP (W), GPU TDP (W), cores, GPUs."""


@dataclass(frozen=True)
class Row:
    """What is known of one node; None is what is not known, and an uncapped device."""

    hardware: Hardware | None = (1000.0, 0.0, 96, 0)
    measured_w: float | None = 500.0
    cpu_cap_percent: float | None = None
    gpu_cap_percent: float | None = None
    samples: tuple[tuple[float, float], ...] = ()
    rack: str | None = None
    zone: str | None = None
    ambient_k: float | None = None


def _or(default: float, values: Sequence[float | None]) -> np.ndarray:
    return np.array([default if value is None else value for value in values], dtype=np.float64)


def fleet_readings(
    rows: Sequence[Row],
    rack_capacity_w: Mapping[str, float] | None = None,
    default_capacity_w: float = DEFAULT_RACK_CAPACITY_W,
) -> FleetReadings:
    """The rows as the arrays that `twin_fleet` takes."""
    hardware = np.array([row.hardware or (0.0, 0.0, 0, 0) for row in rows], dtype=np.float64).reshape(-1, 4)
    racks = sorted({row.rack for row in rows if row.rack is not None})
    samples = np.zeros((len(rows), max((len(row.samples) for row in rows), default=0), 2))
    valid = np.zeros(samples.shape[:2], dtype=np.bool_)
    for index, row in enumerate(rows):
        valid[index, : len(row.samples)] = True
        samples[index, : len(row.samples)] = np.array(row.samples).reshape(-1, 2)
    return FleetReadings(
        cpu_tdp_w=hardware[:, 0],
        gpu_tdp_w=hardware[:, 1],
        cores=hardware[:, 2],
        gpus=hardware[:, 3],
        hardware_known=np.array([row.hardware is not None for row in rows], dtype=np.bool_),
        measured_w=_or(0.0, [row.measured_w for row in rows]),
        power_known=np.array([row.measured_w is not None for row in rows], dtype=np.bool_),
        cpu_cap_percent=_or(100.0, [row.cpu_cap_percent for row in rows]),
        gpu_cap_percent=_or(100.0, [row.gpu_cap_percent for row in rows]),
        ambient_k=_or(REFERENCE_AMBIENT_K, [row.ambient_k for row in rows]),
        ambient_known=np.array([row.ambient_k is not None for row in rows], dtype=np.bool_),
        zones=[row.zone for row in rows],
        rack=np.array([-1 if row.rack is None else racks.index(row.rack) for row in rows], dtype=np.int64),
        rack_capacity_w=np.array([(rack_capacity_w or {}).get(rack, default_capacity_w) for rack in racks]),
        cluster_capacity_w=default_capacity_w,
        sample_time_s=samples[..., 0],
        sample_power_w=samples[..., 1],
        sample_valid=valid,
    )
