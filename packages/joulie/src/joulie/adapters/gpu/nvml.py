"""NVIDIA GPUs through NVML: power limits, locked SM clocks, power and energy.

Only whole GPUs are listed: a limit belongs to the GPU, also where MIG divides it. `PowerDevice.limit_w` is the limit
that was set, `default_w` the one after a reboot.
"""

from __future__ import annotations

from collections.abc import Sequence

from joulie.adapters.gpu.process import LibraryProcess
from joulie.adapters.gpu.session import GpuLimiter, GpuMeter, GpuSession
from joulie.domain.locked_clocks import SmClock
from joulie.domain.quantities import positive_number

_HZ_PER_MHZ = 1e6


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


class NvmlClocks:
    """Locked SM clocks of NVIDIA GPUs, from Volta on; a `ClockLimiter`. Root only.

    The driver forgets locks when it is loaded anew, also where it is unloaded without persistence mode.
    """

    def __init__(self, session: GpuSession) -> None:
        self._session = session

    def clocks(self) -> Sequence[SmClock]:
        """See `ClockLimiter.clocks`."""
        return [
            SmClock(
                gpu["uuid"],
                gpu["sm_mhz"] * _HZ_PER_MHZ,
                gpu["largest_mhz"] * _HZ_PER_MHZ,
                gpu["idle"],
                gpu["at_power_limit"],
                gpu["slowed"],
            )
            for gpu in self._session.ask(do="clocks")["gpus"]
        ]

    def lock(self, gpu: str, max_hz: float) -> float:
        """See `ClockLimiter.lock`."""
        max_hz = positive_number("max_hz", max_hz)
        answer = self._session.ask(do="lock", uuid=gpu, max_mhz=max_hz / _HZ_PER_MHZ)
        return float(answer["locked_mhz"]) * _HZ_PER_MHZ

    def reset(self, gpu: str) -> None:
        """See `ClockLimiter.reset`."""
        self._session.ask(do="reset", uuid=gpu)
