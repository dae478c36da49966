"""Power, limits, clocks and energy of a node's CPUs and GPUs. This module needs no numpy."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

from joulie.domain.locked_clocks import SmClock


class ControlRefusedError(RuntimeError):
    """A device that cannot be controlled: not supported, no permission, locked by firmware. Trying again is useless."""


class ControlFailedError(RuntimeError):
    """A write or read that failed although the device can be controlled; the next cycle tries again.

    Attributes:
        in_force: limit in force after a write that had another effect than asked for, W or Hz; None where unknown.
    """

    def __init__(self, message: str, *, in_force: float | None = None) -> None:
        super().__init__(message)
        self.in_force = in_force


class NoBackendError(ControlFailedError):
    """This machine has no such device or driver, as opposed to one that does not respond."""


_REFUSALS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY}


def control_error(action: str, error: OSError) -> ControlRefusedError | ControlFailedError:
    """`ControlRefusedError` or `ControlFailedError`, by the operating system's `error`.

    Args:
        action: what was tried, and on what: ``write 150 W to /sys/...``.
        error: what the system answered.
    """
    kind = ControlRefusedError if error.errno in _REFUSALS else ControlFailedError
    return kind(f"{action}: {error.strerror or error}")


class DeviceKind(StrEnum):
    """Kind of device that a power limit applies to."""

    CPU_PACKAGE = "cpu"
    GPU = "gpu"


@dataclass(frozen=True)
class PowerDevice:
    """One CPU package or GPU whose power can be read, and limited where `limit_w` is known.

    Attributes:
        id: stable over reboots where the hardware allows: ``package-0``, a GPU's UUID.
        kind: what it is.
        model: the model string as the device or its driver prints it; None where unknown.
        limit_w: the limit in force, W; None where it cannot be read.
        min_w: smallest limit that the device accepts, W; None where it reports none.
        max_w: largest limit that the device accepts, W; None where it reports none (sysfs may report 0).
        default_w: limit at 100 %, W: a GPU's default limit, a CPU's maximum; None where it reports none.
        mig: whether a GPU is divided, into MIG instances or into partitions of an AMD GPU; its power and limit are
            those of the whole GPU. None where that does not apply.
        limitable: whether it has a limit that can be written; False where it has none, or the firmware locks it.
        address: PCI address, by which AMD's device plugin names GPUs: ``0000:0c:00.0``; None where unknown.
    """

    id: str
    kind: DeviceKind
    model: str | None = None
    limit_w: float | None = None
    min_w: float | None = None
    max_w: float | None = None
    default_w: float | None = None
    mig: bool | None = None
    limitable: bool = True
    address: str | None = None


class DriverClient(Protocol):
    """A connection to a GPU driver that can be given up, so that the driver can be replaced or the GPUs reset."""

    @property
    def lost(self) -> Sequence[str]:
        """GPUs that did not respond when last read, and why: ``GPU 3 does not respond: GPU is lost``."""
        ...

    @property
    def restart_reason(self) -> str | None:
        """Why this program must be restarted before the driver can be used again; None if it need not."""
        ...

    def hold(self, reason: str | None) -> None:
        """Disconnect, and refuse work with `reason` (`ControlFailedError`) until called with None."""
        ...


class PowerLimiter(Protocol):
    """A way to limit the power of the CPU packages, or of the GPUs, of one node.

    Candidates are tried in order; one that cannot work says why (`unavailable`) and never raises for it.
    """

    name: str
    """The backend as NodeTwin's controlStatus and `joulie_backend_mode` name it: rapl, hsmp, nvml, amdgpu, amdsmi..."""

    def unavailable(self) -> str | None:
        """Why this backend cannot limit power here, or None if it can."""
        ...

    def devices(self) -> Sequence[PowerDevice]:
        """The devices as they are now, in a stable order; one that does not answer (a lost GPU) is left out.

        Raises:
            NoBackendError: this machine has no such device or driver.
            ControlFailedError: the backend as a whole does not answer.
        """
        ...

    def set_limit(self, device_id: str, limit_w: float) -> float:
        """Write a limit, read it back and return what is in force, W.

        Raises:
            ControlRefusedError: the device cannot be limited.
            ControlFailedError: the write failed, or what was read back is not what was written.
        """
        ...


@runtime_checkable
class JointPowerLimiter(PowerLimiter, Protocol):
    """A backend that sets the limits of several devices together, since each write of its own would take long."""

    def set_limits(
        self, limits_w: Mapping[str, float]
    ) -> Mapping[str, float | ControlRefusedError | ControlFailedError]:
        """Write limits, read them back and return what is in force, W, or what failed, by device; raises nothing."""
        ...


class ClockLimiter(Protocol):
    """Locks the SM clocks of GPUs to a maximum.

    Nothing tells which lock is in force: what was locked is known from `clocks` under load only.
    """

    def clocks(self) -> Sequence[SmClock]:
        """Clocks of the GPUs that state theirs, in a stable order.

        Raises:
            NoBackendError: this machine has no such device or driver.
            ControlFailedError: the driver does not answer.
        """
        ...

    def lock(self, gpu: str, max_hz: float) -> float:
        """Lock a clock from above; returns the largest supported clock up to `max_hz`, to which it is locked, Hz.

        Raises:
            ControlRefusedError: the GPU cannot be locked so; nothing changed.
            ControlFailedError: it may be locked.
        """
        ...

    def reset(self, gpu: str) -> None:
        """Take any lock of a GPU away; without one nothing changes. Raises as `lock`."""
        ...


@dataclass(frozen=True)
class FrequencyPolicy:
    """One cpufreq policy: CPUs that change frequency together.

    Attributes:
        id: ``policy0``.
        min_hz: lowest frequency of the hardware, Hz.
        max_hz: highest frequency of the hardware, Hz.
        limit_hz: upper limit in force (scaling_max_freq), Hz.
        current_hz: frequency now, Hz; None where it cannot be read.
        steps_hz: limits that the driver can set, Hz; empty where it sets any.
    """

    id: str
    min_hz: float
    max_hz: float
    limit_hz: float
    current_hz: float | None = None
    steps_hz: tuple[float, ...] = ()


class FrequencyLimiter(Protocol):
    """Upper frequency limits of a node's CPUs (cpufreq)."""

    @property
    def driver(self) -> str:
        """Driver family: ``intel_pstate``, ``amd-pstate``, ``acpi-cpufreq``, or empty where there is none."""
        ...

    def unavailable(self) -> str | None:
        """Why frequencies cannot be limited here, or None if they can."""
        ...

    def policies(self) -> Sequence[FrequencyPolicy]:
        """All policies as they are now, ordered by number."""
        ...

    def set_limit(self, policy_id: str, limit_hz: float) -> float:
        """Write an upper limit, read it back and return what is in force, Hz; raises as `PowerLimiter.set_limit`."""
        ...


class EnergyReading(NamedTuple):
    """A cumulative energy counter at one moment."""

    device_id: str
    """As `PowerDevice.id`; other RAPL domains by their own names (``dram-0``, ``psys``)."""
    energy_j: float
    """Counter, J."""
    wraps_at_j: float | None
    """Value at which the counter wraps to 0, J; None where it does not wrap, or this is unknown."""


class PowerSource(Protocol):
    """Measured power of a node's CPUs or GPUs.

    A device that cannot be read is left out: missing is never zero.
    """

    name: str
    """rapl or nvml, as NodeTwin's powerMeasurement.source names it."""

    def unavailable(self) -> str | None:
        """Why nothing can be measured here, or None if it can."""
        ...

    def energy(self) -> Sequence[EnergyReading]:
        """All energy counters now; empty where there are none."""
        ...

    def power_w(self) -> dict[str, float]:
        """Power by device now, W, of devices that report it directly (GPUs); empty for those with counters only."""
        ...
