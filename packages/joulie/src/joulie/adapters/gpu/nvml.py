"""NVIDIA GPUs through NVML: power limits, power and energy.

Only whole GPUs are listed: a limit belongs to the GPU, also where MIG divides it. `PowerDevice.limit_w` is the limit
that was set, `default_w` the one after a reboot.
"""

from __future__ import annotations

from joulie.adapters.gpu.process import LibraryProcess
from joulie.adapters.gpu.session import GpuLimiter, GpuMeter, GpuSession


def nvml_session() -> GpuSession:
    """NVIDIA GPUs of this machine."""
    return GpuSession(LibraryProcess("NVML", "nvml"))


class Nvml(GpuLimiter):
    """Power limits of NVIDIA GPUs; a `PowerLimiter`."""

    name = "nvml"
    vendor = "NVIDIA"


class NvmlMeter(GpuMeter):
    """Power and energy of NVIDIA GPUs; a `PowerSource`. Energy is counted from Volta on."""

    name = "nvml"
    vendor = "NVIDIA"
