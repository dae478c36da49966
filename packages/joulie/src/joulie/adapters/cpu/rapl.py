"""RAPL through the powercap class of sysfs: power limits and energy counters of CPU packages.

Source: Linux, Documentation/power/powercap/powercap.rst and drivers/powercap/{powercap_sys,intel_rapl_common}.c.
Consequences:

- A zone is identified by its file `name`, never by its place in the tree: the platform domain ``psys`` may be the
  top-level zone ``intel-rapl:1``. Entries of the class are links into /sys/devices, and ``intel-rapl-mmio`` lists the
  packages of ``intel-rapl`` a second time; each zone counts once.
- Only the constraint named ``long_term`` (PL1) of package zones is written. AMD packages have no constraint: they
  report energy only.
- A zone locked by the firmware reads ``enabled`` 0, like one whose limit was never enabled. Neither is limited:
  enabling it could not be undone from a saved limit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from joulie.domain.quantities import positive_number
from joulie.host_files import OS_FILES, HostFiles, matching, read_number, read_text, write_number
from joulie.ports import ControlFailedError, ControlRefusedError, DeviceKind, EnergyReading, PowerDevice

_CONTROL_TYPES = ("intel-rapl", "intel-rapl-mmio")
"""Control types with zones, in order of preference where both list the same zone."""

_PACKAGE = re.compile(r"package-(\d+(?:-die-\d+)?)")
_MICRO = 1e-6
READ_BACK_TOLERANCE_W = 0.5
"""Maximum difference of the limit read back, W: drivers round to the hardware's power unit, 1/8 W on most packages."""


@dataclass(frozen=True)
class _Zone:
    """One RAPL domain: ``package-0``, ``dram-0``, ``psys``."""

    id: str
    path: Path
    files: HostFiles

    @property
    def is_package(self) -> bool:
        return _PACKAGE.fullmatch(self.id) is not None

    def long_term(self) -> str | None:
        """Prefix of the long-term limit's files, ``constraint_N``; None without such a limit."""
        for name_file in matching(self.files, self.path, "constraint_*_name"):
            if read_text(self.files, name_file) == "long_term":
                return name_file.name.removesuffix("_name")
        return None

    def limit_file(self) -> Path:
        """File of the long-term limit.

        Raises:
            ControlRefusedError: the zone cannot be limited.
        """
        prefix = self.long_term()
        if prefix is None:
            raise ControlRefusedError(f"{self.id} has no long_term limit: it reports energy only, as AMD packages do")
        if read_text(self.files, self.path / "enabled") == "0":
            raise ControlRefusedError(
                f"the power limit of {self.id} is disabled or locked by the firmware: unlock it in the BIOS, "
                f"then write 1 to {self.path / 'enabled'}"
            )
        return self.path / f"{prefix}_power_limit_uw"

    def device(self) -> PowerDevice:
        """The package with its current limit."""
        try:
            limit_w = _from_micro(self.files, self.limit_file())
        except (ControlRefusedError, OSError, ValueError):
            limit_w = None
        prefix = self.long_term()
        max_w = _positive_from_micro(self.files, self.path / f"{prefix}_max_power_uw") if prefix else None
        return PowerDevice(self.id, DeviceKind.CPU_PACKAGE, limit_w=limit_w, max_w=max_w, default_w=max_w)


class Rapl:
    """Power limits of CPU packages; a `PowerLimiter`. `RaplMeter` reads their energy.

    Args:
        host_sys: mount point of the host's /sys.
        files: files of the host.
    """

    name = "rapl"

    def __init__(self, host_sys: Path = Path("/sys"), files: HostFiles = OS_FILES) -> None:
        self._files = files
        self._host_sys = host_sys

    def unavailable(self) -> str | None:
        """None if at least one package can be limited."""
        packages = self._packages()
        if not packages:
            return _no_packages(self._files, self._host_sys)
        problems = [problem for package in packages if (problem := _write_problem(package))]
        return None if len(problems) < len(packages) else "; ".join(problems)

    def devices(self) -> Sequence[PowerDevice]:
        """All packages by number; `limit_w` is None for packages that cannot be limited."""
        return [package.device() for package in self._packages()]

    def set_limit(self, device_id: str, limit_w: float) -> float:
        """See `PowerLimiter.set_limit`."""
        limit_w = positive_number("limit_w", limit_w)
        package = next((package for package in self._packages() if package.id == device_id), None)
        if package is None:
            raise ControlFailedError(f"no RAPL zone {device_id} under {self._host_sys}")
        file = package.limit_file()
        action = f"write {limit_w:g} W to {file}"
        in_force_w = write_number(self._files, file, round(limit_w / _MICRO), action) * _MICRO
        if abs(in_force_w - limit_w) > READ_BACK_TOLERANCE_W:
            raise ControlFailedError(f"{action}: accepted, but {in_force_w:g} W is in force")
        return in_force_w

    def _packages(self) -> list[_Zone]:
        return [zone for zone in _zones(self._files, self._host_sys) if zone.is_package]


class RaplMeter:
    """Energy counters of all RAPL domains; a `PowerSource`.

    Packages include their ``core-N`` and ``uncore-N`` domains, ``psys`` includes the packages, and ``dram-N`` is
    separate: add up packages only.

    Args:
        host_sys: mount point of the host's /sys.
        files: files of the host.
    """

    name = "rapl"

    def __init__(self, host_sys: Path = Path("/sys"), files: HostFiles = OS_FILES) -> None:
        self._files = files
        self._host_sys = host_sys

    def unavailable(self) -> str | None:
        """None if at least one package's energy can be read."""
        if any(_PACKAGE.fullmatch(reading.device_id) for reading in self.energy()):
            return None
        if not any(zone.is_package for zone in _zones(self._files, self._host_sys)):
            return _no_packages(self._files, self._host_sys)
        return f"energy_uj under {self._host_sys / 'class/powercap'} is not readable: needs root"

    def energy(self) -> Sequence[EnergyReading]:
        """Energy counters of all zones that can be read."""
        readings = []
        for zone in _zones(self._files, self._host_sys):
            try:
                energy_j = _from_micro(self._files, zone.path / "energy_uj")
            except (OSError, ValueError):
                continue
            wraps_at_j = _positive_from_micro(self._files, zone.path / "max_energy_range_uj")
            readings.append(EnergyReading(zone.id, energy_j, wraps_at_j))
        return readings

    def power_w(self) -> dict[str, float]:
        """No readings: RAPL counts energy only."""
        return {}


def _zones(files: HostFiles, host_sys: Path) -> list[_Zone]:
    """All zones without duplicates, by number."""
    zones: dict[str, _Zone] = {}
    for entry in _entries(files, host_sys):
        path = files.resolve(entry)
        if zone_id := _zone_id(files, path):
            zones.setdefault(zone_id, _Zone(zone_id, path, files))
    return sorted(zones.values(), key=lambda zone: ([int(number) for number in re.findall(r"\d+", zone.id)], zone.id))


def _entries(files: HostFiles, host_sys: Path) -> list[Path]:
    """Links to zones in the powercap class, those of the preferred control type first."""
    folder = host_sys / "class/powercap"
    return [entry for control_type in _CONTROL_TYPES for entry in matching(files, folder, f"{control_type}:*")]


def _zone_id(files: HostFiles, path: Path) -> str | None:
    """Name of a zone, with its package number where the name alone is not unique (``dram-0-die-1``)."""
    name = read_text(files, path / "name")
    package = _PACKAGE.fullmatch(read_text(files, path.parent / "name") or "")
    return f"{name}-{package[1]}" if name and package else name


def _no_packages(files: HostFiles, host_sys: Path) -> str:
    if not _entries(files, host_sys):
        return f"no RAPL zones in {host_sys / 'class/powercap'}: no driver for this CPU, or a virtual machine"
    return (
        f"no package zones in {host_sys / 'class/powercap'}: container runtimes hide them from unprivileged "
        "containers; mount the host's /sys at another path and set HOST_SYS to it"
    )


def _write_problem(package: _Zone) -> str | None:
    try:
        file = package.limit_file()
        _from_micro(package.files, file)
    except (ControlRefusedError, ValueError) as error:
        return str(error)
    except OSError as error:
        return f"{package.id}: cannot read the power limit: {error}"
    if package.files.writable(file):
        return None
    return f"{package.id}: {file} is not writable: needs root and a writable mount"


def _from_micro(files: HostFiles, file: Path) -> float:
    """Value in W or J of a file in uW or uJ.

    Raises:
        OSError: the file cannot be read.
        ValueError: the content is not a non-negative number.
    """
    return read_number(files, file) * _MICRO


def _positive_from_micro(files: HostFiles, file: Path) -> float | None:
    """Like `_from_micro`; None if the file is missing or holds 0, which stands for an unknown value."""
    try:
        return _from_micro(files, file) or None
    except (OSError, ValueError):
        return None
