"""NVIDIA GPUs of a modelled machine, with the meaning of NVML's calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from joulie.ports import ControlFailedError, DeviceKind, EnergyReading, NoBackendError, PowerDevice
from joulie_lab.machines.machine import GpuState, Machine
from joulie_lab.machines.specs import Gpu
from joulie_lab.machines.tree import set_gpu_limit


class ModelledGpus:
    """Limits, power and energy of a machine's NVIDIA GPUs: a `PowerLimiter` and a `PowerSource`.

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
        found = self._gpus().get(device_id)
        if found is None:
            raise ControlFailedError(f"GPU {device_id} does not respond")
        gpu, state = found
        self._guard("write", device_id)
        try:
            set_gpu_limit(state, round(limit_w, 3), (gpu.min_w, gpu.max_w))
        except OSError as error:
            raise ControlFailedError(f"set {limit_w:g} W on GPU {device_id}: invalid argument") from error
        self._guard("written", device_id)
        return state.limit_w

    def energy(self) -> Sequence[EnergyReading]:
        """See `PowerSource.energy`."""
        return [EnergyReading(uuid, state.energy_j, None) for uuid, (_, state) in self._gpus().items()]

    def power_w(self) -> dict[str, float]:
        """See `PowerSource.power_w`."""
        return {uuid: state.power_w for uuid, (_, state) in self._gpus().items()}

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
