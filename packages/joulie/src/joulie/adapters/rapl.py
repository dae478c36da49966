"""RAPL by the powercap class of sysfs: power limits and energy counters of CPU packages.

Source: Linux, Documentation/power/powercap/powercap.rst and drivers/powercap/{powercap_sys,intel_rapl_common}.c.
What that means here:

- A zone is what its file `name` says, never what its place in the tree suggests: the platform domain ``psys`` may be
  the top-level zone ``intel-rapl:1``. Entries of the class are links into /sys/devices, and ``intel-rapl-mmio`` shows
  the packages of ``intel-rapl`` a second time; each zone counts once.
- Only the constraint named ``long_term`` of package zones is written. On AMD packages have no constraint: energy only.
- A zone locked by the firmware reads ``enabled`` 0, like one whose limit was never switched on. Neither is limited:
  switching it on could not be undone from a saved limit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from joulie.domain.quantities import positive_number
from joulie.ports import ControlFailedError, ControlRefusedError, DeviceKind, EnergyReading, PowerDevice, control_error

_CONTROL_TYPES = ("intel-rapl", "intel-rapl-mmio")
"""Where zones are looked for; of two with one name the first is taken."""

_PACKAGE = re.compile(r"package-(\d+(?:-die-\d+)?)")
_MICRO = 1e-6
READ_BACK_TOLERANCE_W = 0.5
"""The driver rounds to the hardware's power unit (1/8 W on most packages); more than this is another limit."""


@dataclass(frozen=True)
class _Zone:
    """One RAPL domain: ``package-0``, ``dram-0``, ``psys``."""

    id: str
    path: Path

    @property
    def is_package(self) -> bool:
        return _PACKAGE.fullmatch(self.id) is not None

    def long_term(self) -> str | None:
        """``constraint_N``, the prefix of the long-term limit's files; None where there is none."""
        for name_file in sorted(self.path.glob("constraint_*_name")):
            if _text(name_file) == "long_term":
                return name_file.name.removesuffix("_name")
        return None

    def limit_file(self) -> Path:
        """The file to write a limit to.

        Raises:
            ControlRefusedError: this zone cannot be limited.
        """
        prefix = self.long_term()
        if prefix is None:
            raise ControlRefusedError(f"{self.id} has no long_term limit: it reports energy only, as AMD packages do")
        if _text(self.path / "enabled") == "0":
            raise ControlRefusedError(
                f"{self.id} has its power limit switched off or locked by the firmware: unlock it in the BIOS, "
                f"then write 1 to {self.path / 'enabled'}"
            )
        return self.path / f"{prefix}_power_limit_uw"

    def device(self) -> PowerDevice:
        """The package as it is now."""
        try:
            limit_w = _from_micro(self.limit_file())
        except (ControlRefusedError, OSError, ValueError):
            limit_w = None
        prefix = self.long_term()
        max_w = _positive_from_micro(self.path / f"{prefix}_max_power_uw") if prefix else None
        return PowerDevice(self.id, DeviceKind.CPU_PACKAGE, limit_w=limit_w, max_w=max_w, default_w=max_w)


class Rapl:
    """Power limits of CPU packages; a `PowerLimiter`. `RaplMeter` reads their energy.

    Args:
        host_sys: where the host's /sys is mounted.
    """

    name = "rapl"

    def __init__(self, host_sys: Path = Path("/sys")) -> None:
        self._host_sys = host_sys

    def unavailable(self) -> str | None:
        """None if at least one package can be limited."""
        packages = self._packages()
        if not packages:
            return _no_packages(self._host_sys)
        problems = [problem for package in packages if (problem := _write_problem(package))]
        return None if len(problems) < len(packages) else "; ".join(problems)

    def devices(self) -> Sequence[PowerDevice]:
        """All packages, in the order of their numbers; those that cannot be limited have no `limit_w`."""
        return [package.device() for package in self._packages()]

    def set_limit(self, device_id: str, limit_w: float) -> float:
        """See `PowerLimiter.set_limit`."""
        limit_w = positive_number("limit_w", limit_w)
        package = next((package for package in self._packages() if package.id == device_id), None)
        if package is None:
            raise ControlFailedError(f"no RAPL zone {device_id} under {self._host_sys}")
        file = package.limit_file()
        action = f"write {limit_w:g} W to {file}"
        try:
            _write(file, str(round(limit_w / _MICRO)))
            in_force_w = _from_micro(file)
        except OSError as error:
            raise control_error(action, error) from error
        except ValueError as error:
            raise ControlFailedError(f"{action}: {error}") from error
        if abs(in_force_w - limit_w) > READ_BACK_TOLERANCE_W:
            raise ControlFailedError(f"{action}: accepted, but {in_force_w:g} W is in force")
        return in_force_w

    def _packages(self) -> list[_Zone]:
        return [zone for zone in _zones(self._host_sys) if zone.is_package]


class RaplMeter:
    """Energy counters of all RAPL domains; a `PowerSource`.

    Packages contain their ``core-N`` and ``uncore-N``, ``psys`` contains packages, and ``dram-N`` is beside them: sum
    packages only.

    Args:
        host_sys: where the host's /sys is mounted.
    """

    name = "rapl"

    def __init__(self, host_sys: Path = Path("/sys")) -> None:
        self._host_sys = host_sys

    def unavailable(self) -> str | None:
        """None if at least one package's energy can be read."""
        if any(_PACKAGE.fullmatch(reading.device_id) for reading in self.energy()):
            return None
        if not any(zone.is_package for zone in _zones(self._host_sys)):
            return _no_packages(self._host_sys)
        return f"energy_uj under {self._host_sys / 'class/powercap'} cannot be read: only root may"

    def energy(self) -> Sequence[EnergyReading]:
        """The counters that can be read now."""
        readings = []
        for zone in _zones(self._host_sys):
            try:
                energy_j = _from_micro(zone.path / "energy_uj")
            except (OSError, ValueError):
                continue
            readings.append(EnergyReading(zone.id, energy_j, _positive_from_micro(zone.path / "max_energy_range_uj")))
        return readings

    def power_w(self) -> dict[str, float]:
        """Nothing: RAPL counts energy."""
        return {}


def _zones(host_sys: Path) -> list[_Zone]:
    """All zones, each once, in the order of their numbers."""
    zones: dict[str, _Zone] = {}
    for entry in _entries(host_sys):
        path = entry.resolve()
        if zone_id := _zone_id(path):
            zones.setdefault(zone_id, _Zone(zone_id, path))
    return sorted(zones.values(), key=lambda zone: ([int(number) for number in re.findall(r"\d+", zone.id)], zone.id))


def _entries(host_sys: Path) -> list[Path]:
    """The class's links to zones, those of the preferred control type first."""
    folder = host_sys / "class/powercap"
    return [entry for control_type in _CONTROL_TYPES for entry in sorted(folder.glob(f"{control_type}:*"))]


def _zone_id(path: Path) -> str | None:
    """The zone's name, with its package's number where the name alone is not unique (``dram-0-die-1``)."""
    name = _text(path / "name")
    package = _PACKAGE.fullmatch(_text(path.parent / "name") or "")
    return f"{name}-{package[1]}" if name and package else name


def _no_packages(host_sys: Path) -> str:
    if not _entries(host_sys):
        return f"no RAPL zones in {host_sys / 'class/powercap'}: no driver for this CPU, or a virtual machine"
    return (
        f"no package among the zones of {host_sys / 'class/powercap'}: container runtimes hide them from unprivileged "
        "containers; mount the host's /sys elsewhere and set HOST_SYS to it"
    )


def _write_problem(package: _Zone) -> str | None:
    try:
        file = package.limit_file()
        _from_micro(file)
    except (ControlRefusedError, ValueError) as error:
        return str(error)
    except OSError as error:
        return f"{package.id}: its limit cannot be read: {error}"
    return None if os.access(file, os.W_OK) else f"{package.id}: {file} may not be written: root and a writable mount"


def _write(file: Path, text: str) -> None:
    """Write in one call, as sysfs wants it; unlike `Path.write_text` this creates no file."""
    descriptor = os.open(file, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except (OSError, ValueError):
        return None


def _from_micro(file: Path) -> float:
    """What a file holds in uW or uJ, in W or J.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds no number, or one below zero.
    """
    text = file.read_text().strip()
    if not text.isdecimal():
        raise ValueError(f"{file} holds {text[:40]!r}, not a number")
    return int(text) * _MICRO


def _positive_from_micro(file: Path) -> float | None:
    """Like `_watts`; None where there is nothing, or the 0 of firmware that does not say."""
    try:
        return _from_micro(file) or None
    except (OSError, ValueError):
        return None
