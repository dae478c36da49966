"""NVIDIA GPUs of a modelled machine, with the meaning of NVML's calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from joulie.domain.locked_clocks import SmClock
from joulie.ports.devices import (
    ControlFailedError,
    ControlRefusedError,
    DeviceKind,
    EnergyReading,
    NoBackendError,
    PowerDevice,
)
from joulie_lab.machines.machine import GpuState, Machine
from joulie_lab.machines.specs import Gpu
from joulie_lab.machines.tree import set_gpu_limit

SM_CLOCK_STEP_HZ, MIN_SM_CLOCK_HZ = 15e6, 210e6


class ModelledGpus:
    """A machine's NVIDIA GPUs: a `PowerLimiter`, a `ClockLimiter` and a `PowerSource`.

    Args:
        machine: the machine.
        clock: time, s.
        guard: called with ``read`` or ``write`` and a device before each access; it may raise.
    """

    name = "nvml"

    def __init__(
        self, machine: Machine, clock: Callable[[], float], guard: Callable[[str, str], None] = lambda _call, _gpu: None
    ) -> None:
        self._machine = machine
        self._clock = clock
        self._guard = guard

    def unavailable(self) -> str | None:
        """See `PowerLimiter.unavailable`."""
        try:
            return None if self._gpus() else "no NVIDIA GPU"
        except (ControlFailedError, NoBackendError) as error:
            return str(error)

    def devices(self) -> Sequence[PowerDevice]:
        """See `PowerLimiter.devices`."""
        return [
            PowerDevice(uuid, DeviceKind.GPU, gpu.model, state.limit_w, gpu.min_w, gpu.max_w, gpu.default_w)
            for uuid, (gpu, state) in self._gpus().items()
        ]

    def set_limit(self, device_id: str, limit_w: float) -> float:
        """See `PowerLimiter.set_limit`; limits out of range are refused, whole milliwatts are kept."""
        gpu, state = self._gpu(device_id)
        self._guard("write", device_id)
        try:
            set_gpu_limit(state, round(limit_w, 3), (gpu.min_w, gpu.max_w))
        except OSError as error:
            raise ControlFailedError(f"set {limit_w:g} W on GPU {device_id}: invalid argument") from error
        self._guard("written", device_id)
        return state.limit_w

    def clocks(self) -> Sequence[SmClock]:
        """See `ClockLimiter.clocks`."""
        return [
            SmClock(
                uuid,
                now_hz=gpu.max_sm_hz * state.clock(gpu) if state.share > 0.0 else MIN_SM_CLOCK_HZ,
                largest_hz=gpu.max_sm_hz,
                idle=state.share <= 0.0,
                at_power_limit=state.share > 0.0 and state.power_w >= state.limit_w,
                slowed=False,
            )
            for uuid, (gpu, state) in self._gpus().items()
            if gpu.max_sm_hz
        ]

    def lock(self, gpu: str, max_hz: float) -> float:
        """See `ClockLimiter.lock`; clocks are multiples of 15 MHz."""
        kind, state = self._gpu(gpu)
        if max_hz < MIN_SM_CLOCK_HZ or not kind.max_sm_hz:
            raise ControlRefusedError(f"lock {max_hz / 1e6:g} MHz on GPU {gpu}: not supported")
        self._guard("write", gpu)
        state.locked_hz = min(max_hz // SM_CLOCK_STEP_HZ * SM_CLOCK_STEP_HZ, kind.max_sm_hz)
        self._guard("written", gpu)
        return state.locked_hz

    def reset(self, gpu: str) -> None:
        """See `ClockLimiter.reset`."""
        _, state = self._gpu(gpu)
        self._guard("write", gpu)
        state.locked_hz = None
        self._guard("written", gpu)

    def energy(self) -> Sequence[EnergyReading]:
        """See `PowerSource.energy`."""
        return [EnergyReading(uuid, state.energy_j, None) for uuid, (_, state) in self._gpus().items()]

    def power_w(self) -> dict[str, float]:
        """See `PowerSource.power_w`."""
        return {uuid: state.power_w for uuid, (_, state) in self._gpus().items()}

    def _gpu(self, uuid: str) -> tuple[Gpu, GpuState]:
        found = self._gpus().get(uuid)
        if found is None:
            raise ControlFailedError(f"GPU {uuid} does not respond")
        return found

    def _gpus(self) -> dict[str, tuple[Gpu, GpuState]]:
        """GPUs that respond, by UUID."""
        self._guard("list", "")
        self._machine.advance(self._clock())
        spec = self._machine.spec
        states = zip(spec.gpu_kinds, self._machine.gpus, strict=True)
        found = {gpu: one for gpu, one in zip(spec.gpu_ids, states, strict=True) if one[0].vendor == "nvidia"}
        if not found:
            raise NoBackendError("NVML: driver not loaded")
        return found
