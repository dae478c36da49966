"""AMD GPUs through the hwmon files of their kernel driver, amdgpu: power limits and power, without any library.

``power1_cap`` takes microwatts and keeps whole watts. It refuses what is below ``power1_cap_min`` or above
``power1_cap_max`` (EINVAL), and everything while the GPU is reset or asleep (EPERM); a limit that cannot be read is an
empty line. Drivers before Linux 6.7 give 0 as the minimum. A virtual function has no cap. Each physical GPU has one
hwmon folder: the partitions of an MI300X share that of the whole. Of the two dies of an MI250X only the first has a cap
and reports the power of both.

Source: Linux, Documentation/gpu/amdgpu/thermal.rst, drivers/gpu/drm/amd/pm/amdgpu_pm.c and swsmu.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from joulie.domain.energy_counter import PLAUSIBLE_POWER_W
from joulie.domain.quantities import positive_number
from joulie.host_files import OS_FILES, HostFiles, read_number, read_text, write_number
from joulie.ports.devices import (
    ControlFailedError,
    ControlRefusedError,
    DeviceKind,
    EnergyReading,
    NoBackendError,
    PowerDevice,
)

_MICRO = 1e-6
_DRIVER = "amdgpu"
_READ_BACK_TOLERANCE_W = 1.0
_UNIQUE_ID = re.compile(r"[0-9a-f]{16}")
"""As the driver writes it, ``%016llx``: amdgpu_get_unique_id in drivers/gpu/drm/amd/pm/amdgpu_pm.c."""
_PCI_ID = re.compile(r"0x[0-9a-f]{4}")
_FAMILY = re.compile(r"MI\d+")
_UNREADABLE = "?"
_WHOLE = "SPX"
"""Compute partition mode of a GPU that is not divided."""
_POWER_FILES = ("power1_average", "power1_input")  # MI300 and later have the second one only

# Boards by PCI device id: their product_name, which a board's maker writes, may be missing or say anything.
_MODELS = {
    "0x738c": "AMD Instinct MI100",
    "0x740c": "AMD Instinct MI250X",
    "0x7408": "AMD Instinct MI250X",
    "0x740f": "AMD Instinct MI210",
    "0x74a0": "AMD Instinct MI300A",
    "0x74a1": "AMD Instinct MI300X",
    "0x74a2": "AMD Instinct MI308X",
    "0x74a5": "AMD Instinct MI325X",
    "0x74b5": "AMD Instinct MI300X VF",
    "0x75a0": "AMD Instinct MI350X",
    "0x75a3": "AMD Instinct MI355X",
}


@dataclass(frozen=True)
class _Gpu:
    """A GPU: its id, its model if known, its folders, and whether id and model could be read."""

    id: str
    model: str | None
    device: Path
    hwmon: Path
    identified: bool


class _Driver:
    """The GPUs of the driver.

    Args:
        sys: mount point of sysfs.
        files: files of the host.
    """

    def __init__(self, sys: Path, files: HostFiles) -> None:
        self._class = sys / "class/hwmon"
        self.files = files
        # By device: GPUs seen before. What they are called does not change, whether it can be read now or not.
        self._seen: dict[Path, _Gpu] = {}

    def gpus(self) -> Sequence[_Gpu]:
        """All physical GPUs, by PCI address.

        Raises:
            NoBackendError: there is none.
            ControlFailedError: the class cannot be listed.
        """
        found = {}
        for entry in self._entries():
            hwmon = self._class / entry
            device, folder = self.files.resolve(hwmon / "device"), self.files.resolve(hwmon)
            seen = self._seen.get(device)
            if seen is not None and seen.hwmon == folder:
                found[device] = seen
            elif gpu := self._gpu(device, folder):
                found[device] = gpu
                if gpu.identified:
                    self._seen[device] = gpu
        gpus = [gpu for _, gpu in sorted(found.items())]
        if not gpus:
            raise NoBackendError(f"no AMD GPU with the driver amdgpu in {self._class}")
        return gpus

    def _entries(self) -> Sequence[str]:
        try:
            return sorted(self.files.names(self._class))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise ControlFailedError(f"cannot list {self._class}: {error.strerror}") from error

    def watts(self, gpu: _Gpu, file: str) -> float | None:
        """A power, W; None if it cannot be read, or the GPU's id or model could not."""
        if not gpu.identified:
            return None
        try:
            return read_number(self.files, gpu.hwmon / file) * _MICRO
        except (OSError, ValueError):
            return None

    def device(self, gpu: _Gpu) -> PowerDevice:
        """The GPU with its limit in force, which counts as unreadable if its range is, or if it is above that."""
        limit_w = self.watts(gpu, "power1_cap")
        try:
            min_w, max_w, default_w = (self._stated_w(gpu, f"power1_cap_{end}") for end in ("min", "max", "default"))
        except (OSError, ValueError):
            limit_w = min_w = max_w = default_w = None
        if limit_w is not None and limit_w > (max_w or PLAUSIBLE_POWER_W) + _READ_BACK_TOLERANCE_W:
            limit_w = None
        divided, address = self._is_divided(gpu), gpu.device.name
        return PowerDevice(
            gpu.id, DeviceKind.GPU, gpu.model, limit_w, min_w, max_w, default_w, mig=divided, address=address
        )

    def _is_divided(self, gpu: _Gpu) -> bool | None:
        """Whether pods may hold partitions of it; None where it has none. What cannot be read counts as divided."""
        mode = self._stated(gpu.device / "current_compute_partition")
        return None if mode == "" else mode is None or mode.upper() != _WHOLE

    def _stated_w(self, gpu: _Gpu, file: str) -> float | None:
        """An end of the range, W; None where the driver states none."""
        try:
            return read_number(self.files, gpu.hwmon / file) * _MICRO or None
        except FileNotFoundError:
            return None

    def _gpu(self, device: Path, hwmon: Path) -> _Gpu | None:
        """A GPU; None for the second die of a board, for graphics inside a CPU, and for sensors of other devices."""
        if read_text(self.files, hwmon / "name") != _DRIVER:
            # Only this driver gives a device a unique id. Left out, a cap on the other GPUs would pass for one on all.
            lost = self.files.exists(device / "unique_id")
            return _Gpu(device.name, None, device, hwmon, identified=False) if lost else None
        capped = read_text(self.files, hwmon / "power1_cap")
        model, unique = self._model(device), self._stated(device / "unique_id")
        if capped == "0" or (not model and not self.files.exists(hwmon / "power1_cap")):
            return None
        unique = unique.lower() if unique is not None else _UNREADABLE
        known = not unique or _UNIQUE_ID.fullmatch(unique) is not None
        gpu_id = f"GPU-{unique}" if known and unique.strip("0") else device.name
        return _Gpu(gpu_id, model or None, device, hwmon, identified=known and model is not None)

    def _model(self, device: Path) -> str | None:
        """Model of a GPU, empty if nothing states it; None if it cannot be read: its caps may depend on it.

        The name is not that of a known board unless it has the board's family in it.
        """
        name, number = self._stated(device / "product_name"), self._pci_id(device / "device")
        if name is None or number is None:
            return None
        known = _MODELS.get(number, "")
        family = _FAMILY.search(known)
        return known if family and family[0] not in name.upper() else name

    def _pci_id(self, file: Path) -> str | None:
        """A PCI device id; empty without such a file, None if it holds anything else, which the kernel never writes."""
        if not self.files.exists(file):
            return ""
        number = (read_text(self.files, file) or "").lower()
        return number if _PCI_ID.fullmatch(number) else None

    def _stated(self, file: Path) -> str | None:
        """Content of a file, empty if there is none; None if it cannot be read as a whole."""
        return read_text(self.files, file) if self.files.exists(file) else ""


class Amdgpu:
    """Power limits of AMD GPUs; a `PowerLimiter`. A GPU's id is its unique id, else its PCI address.

    Args:
        sys: mount point of sysfs.
        files: files of the host.
    """

    name = "amdgpu"

    def __init__(self, sys: Path = Path("/sys"), files: HostFiles = OS_FILES) -> None:
        self._driver = _Driver(sys, files)

    def unavailable(self) -> str | None:
        """None if at least one GPU can be limited."""
        try:
            gpus = self._driver.gpus()
        except ControlFailedError as error:
            return str(error)
        caps = [gpu.hwmon / "power1_cap" for gpu in gpus if self._driver.device(gpu).limit_w]
        if not caps:
            return f"no power cap can be read of {', '.join(gpu.model or gpu.id for gpu in gpus)}"
        if not any(self._driver.files.writable(cap) for cap in caps):
            return f"{caps[0]} is not writable: not root, or sysfs is mounted read-only"
        return None

    def devices(self) -> Sequence[PowerDevice]:
        """See `PowerLimiter.devices`."""
        return [self._driver.device(gpu) for gpu in self._driver.gpus()]

    def set_limit(self, device_id: str, limit_w: float) -> float:
        """See `PowerLimiter.set_limit`; whole watts."""
        limit_w = positive_number("limit_w", limit_w)
        action = f"set {limit_w:g} W on GPU {device_id}"
        gpu = next((gpu for gpu in self._driver.gpus() if gpu.id == device_id), None)
        if gpu is None:
            raise ControlFailedError(f"{action}: it does not respond")
        file = gpu.hwmon / "power1_cap"
        try:
            in_force_w = write_number(self._driver.files, file, round(round(limit_w) / _MICRO), action) * _MICRO
        except ControlRefusedError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EPERM:
                raise ControlFailedError(f"{error}: the GPU is being reset or is asleep") from error
            raise
        if abs(in_force_w - limit_w) > _READ_BACK_TOLERANCE_W:
            raise ControlFailedError(f"{action}: accepted, but {in_force_w:g} W is in force", in_force=in_force_w)
        return in_force_w


class AmdgpuMeter:
    """Power of AMD GPUs; a `PowerSource`.

    Args:
        sys: mount point of sysfs.
        files: files of the host.
    """

    name = "amdgpu"

    def __init__(self, sys: Path = Path("/sys"), files: HostFiles = OS_FILES) -> None:
        self._driver = _Driver(sys, files)

    def unavailable(self) -> str | None:
        """None if at least one GPU reports its power."""
        try:
            return None if self.power_w() else "no AMD GPU reports its power"
        except ControlFailedError as error:
            return str(error)

    def energy(self) -> Sequence[EnergyReading]:
        """No readings: the driver counts no energy."""
        return []

    def power_w(self) -> dict[str, float]:
        """Power of each GPU that reports it, W: the average, else the present power."""
        powers = {gpu.id: self._power_w(gpu) for gpu in self._driver.gpus()}
        return {name: power_w for name, power_w in powers.items() if power_w is not None}

    def _power_w(self, gpu: _Gpu) -> float | None:
        readings = (self._driver.watts(gpu, file) for file in _POWER_FILES)
        return next((power_w for power_w in readings if power_w is not None), None)
