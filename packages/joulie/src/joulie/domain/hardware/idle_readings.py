"""Power of GPUs that no process uses, as read by people who have them.

The catalogue's `idle_w` is where the power curve of a busy device begins; a device without work draws less: the driver
lowers its clocks. Readings are of nvidia-smi tables in public repositories and issues with no memory in use and 0 %
utilisation (searched by limit and memory size), or of the ROCm issue that is named; equal readings count once. None was
found for the cards of the catalogue that are not listed here, the H100 NVL and the Radeon Pro W7900 among them: an H100
NVL with a loaded model and no work read 97 W.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

_TABLES = "nvidia-smi tables of public repositories, no memory in use"
_NO_CLOCKS = f"{_TABLES}, performance state P8"
_ROCM = "https://github.com/ROCm/legacy-rocm-build/issues/"


class IdleReadings(NamedTuple):
    """What was read on one model."""

    readings_w: tuple[float, ...]
    """W, ascending."""
    source: str

    @property
    def median_w(self) -> float:
        """Median, W."""
        return median(self.readings_w)


IDLE_READINGS: Mapping[str, IdleReadings] = MappingProxyType(
    {
        "NVIDIA B200": IdleReadings((137.0,), f"{_ROCM}5219"),
        "NVIDIA H200": IdleReadings((75.0, 76.0, 78.0, 120.0), _TABLES),
        "NVIDIA H200 NVL": IdleReadings((69.0,), _TABLES),
        "NVIDIA H100 80GB HBM3": IdleReadings((68.0, 69.0, 70.0, 71.0, 72.0, 74.0, 75.0), _TABLES),
        "NVIDIA H100 PCIe": IdleReadings((50.0, 51.0), _TABLES),
        "NVIDIA A100-SXM4-80GB": IdleReadings((50.0, 52.0, 61.0, 62.0, 68.0), _TABLES),
        "NVIDIA A100-SXM4-40GB": IdleReadings((46.0, 50.0, 52.0, 69.0), _TABLES),
        "NVIDIA A800-SXM4-80GB": IdleReadings((59.0,), _TABLES),
        "NVIDIA A100 80GB PCIe": IdleReadings((43.0, 45.0, 47.0, 53.0, 54.0, 62.0), _TABLES),
        "NVIDIA H20": IdleReadings((72.0,), _TABLES),
        "NVIDIA A30": IdleReadings((27.0, 28.0, 29.0, 43.0), _TABLES),
        "NVIDIA A40": IdleReadings((30.0,), "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/874"),
        "NVIDIA L40S": IdleReadings((20.0, 22.0), _NO_CLOCKS),
        "NVIDIA L4": IdleReadings((10.0, 15.0, 16.0, 17.0), _NO_CLOCKS),
        "NVIDIA A10": IdleReadings((8.0, 15.0, 17.0, 26.0), _NO_CLOCKS),
        "NVIDIA A10G": IdleReadings((9.0, 14.0, 17.0, 23.0), _NO_CLOCKS),
        "NVIDIA RTX A6000": IdleReadings((16.0, 19.0), _NO_CLOCKS),
        "NVIDIA RTX A4000": IdleReadings(
            (4.76, 4.96, 5.06, 5.12, 5.58, 6.09, 6.58, 6.79),
            "https://github.com/RainbowMiner/RainbowMiner/issues/1796",
        ),
        "NVIDIA GeForce RTX 3090": IdleReadings((20.0, 25.0), _NO_CLOCKS),
        "NVIDIA GeForce RTX 4090": IdleReadings((16.0, 36.0), _NO_CLOCKS),
        "Tesla T4": IdleReadings((9.0, 15.0, 17.0), _NO_CLOCKS),
        "Tesla V100-SXM2-32GB": IdleReadings((28.0, 39.0, 40.0, 41.0, 42.0), _TABLES),
        "Tesla V100-SXM2-16GB": IdleReadings((24.0, 32.0, 39.0, 47.0, 53.0), _TABLES),
        "Tesla V100-PCIE-32GB": IdleReadings((28.0, 30.0, 33.0, 34.0, 36.0, 38.0), _TABLES),
        "Tesla V100-PCIE-16GB": IdleReadings((26.0, 34.0, 36.0, 37.0, 38.0), _TABLES),
        "Tesla V100S-PCIE-32GB": IdleReadings((36.0,), _TABLES),
        "Tesla P100-PCIE-16GB": IdleReadings((25.0, 26.0, 27.0, 28.0, 29.0), _TABLES),
        "Tesla P40": IdleReadings((9.0,), _NO_CLOCKS),
        "AMD Instinct MI355X": IdleReadings((238.0,), f"{_ROCM}5219"),
        "AMD Instinct MI300X": IdleReadings((131.0, 133.0, 136.0, 137.0), f"{_ROCM}4750"),
    }
)
"""By the model's name in the catalogue."""
