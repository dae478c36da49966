"""AMD GPUs through AMD SMI, the library installed with ROCm: power limits and energy.

The kernel's own interface (`joulie.adapters.gpu.amdgpu`) needs no library and comes first.
"""

from __future__ import annotations

from joulie.adapters.gpu.process import LibraryProcess
from joulie.adapters.gpu.session import GpuLimiter, GpuMeter, GpuSession


def amdsmi_session() -> GpuSession:
    """AMD GPUs of this machine, by AMD SMI."""
    return GpuSession(LibraryProcess("AMD SMI", "amdsmi"))


class AmdSmi(GpuLimiter):
    """Power limits of AMD GPUs; a `PowerLimiter`."""

    name = "amdsmi"
    vendor = "AMD"


class AmdSmiMeter(GpuMeter):
    """Energy of AMD GPUs; a `PowerSource`. MI100 and later count it."""

    name = "amdsmi"
    vendor = "AMD"
