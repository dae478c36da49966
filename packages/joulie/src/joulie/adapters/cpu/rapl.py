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

import errno
import re
from collections.abc import Sequence
from pathlib import Path

from joulie.domain.quantities import positive_number
from joulie.host_files import OS_FILES, HostFiles, read_number, read_text, write_number
from joulie.ports.devices import ControlFailedError, ControlRefusedError, DeviceKind, EnergyReading, PowerDevice

_CONTROL_TYPES = ("intel-rapl", "intel-rapl-mmio")
"""Control types with zones, in order of preference: the second lists the same packages again."""

_PACKAGE = re.compile(r"package-(\d+(?:-die-\d+)?)")
_LIMIT_NAME = re.compile(r"constraint_\d+_name")
_LIMIT_KIND = re.compile(r"[a-z]+_[a-z]+")
_NAME = re.compile(r"[a-z]+(-[a-z0-9-]+)?")
_MICRO = 1e-6
_MAX_REGISTER_W = 2.0**15
"""Limits have 15 bits and units of 1/8 W on most packages, of 1 W at most."""
READ_BACK_TOLERANCE_W = 0.5
"""Maximum difference of the limit read back, W: drivers round to the hardware's power unit, 1/8 W on most packages."""


class _Zone:
    """One RAPL domain: ``package-0``, ``dram-0``, ``psys``.

    Attributes:
        id: its name, with its package's number where the name alone is not unique; the kernel's number of the zone
            while the name cannot be read.
        path: its folder.
        named: whether its name could be read.
    """

    def __init__(self, zone_id: str, path: Path, files: HostFiles, *, named: bool) -> None:
        self.id = zone_id
        self.path = path
        self.named = named
        self._files = files
        self._long_term: str | None = None
        self._wraps_at_j: float | None = None

    @property
    def is_package(self) -> bool:
        return _PACKAGE.fullmatch(self.id) is not None

    def long_term(self) -> str | None:
        """Prefix of the long-term limit's files, ``constraint_N``; None without such a limit.

        Raises:
            OSError: it is not known which limits the zone has.
        """
        if self._long_term is None:
            names = [name for name in self._files.names(self.path) if _LIMIT_NAME.fullmatch(name)]
            limits = {name: read_text(self._files, self.path / name) for name in names}
            self._long_term = next((name.removesuffix("_name") for name in names if limits[name] == "long_term"), None)
            if self._long_term is None and not all(name and _LIMIT_KIND.fullmatch(name) for name in limits.values()):
                raise OSError(errno.EIO, "the name of a limit cannot be read", str(self.path))
        return self._long_term

    def energy(self) -> EnergyReading:
        """Its energy counter; raises OSError or ValueError."""
        energy_j = _from_micro(self._files, self.path / "energy_uj")
        if self._wraps_at_j is None:
            self._wraps_at_j = _positive_from_micro(self._files, self.path / "max_energy_range_uj")
        return EnergyReading(self.id, energy_j, self._wraps_at_j)

    def limit_file(self) -> Path:
        """File of the long-term limit.

        Raises:
            ControlRefusedError: the zone cannot be limited.
            ControlFailedError: it is not known what zone this is.
            OSError: it is not known which limits it has.
        """
        if not self.named:
            raise ControlFailedError(f"{self.id}: its name cannot be read")
        prefix = self.long_term()
        if prefix is None:
            raise ControlRefusedError(f"{self.id} has no long_term limit: it reports energy only, as AMD packages do")
        if read_text(self._files, self.path / "enabled") == "0":
            raise ControlRefusedError(
                f"the power limit of {self.id} is disabled or locked by the firmware: unlock it in the BIOS, "
                f"then write 1 to {self.path / 'enabled'}"
            )
        return self.path / f"{prefix}_power_limit_uw"

    def device(self) -> PowerDevice:
        """The package with its current limit, which counts as unreadable if its maximum is."""
        limit_w, limitable = None, True
        try:
            limit_w = _plausible_w(_from_micro(self._files, self.limit_file()))
        except ControlRefusedError:
            limitable = False
        except (ControlFailedError, OSError, ValueError):
            pass
        max_w = None
        try:
            if self._long_term is not None:
                max_w = _plausible_w(_from_micro(self._files, self.path / f"{self._long_term}_max_power_uw")) or None
        except FileNotFoundError:
            pass
        except (OSError, ValueError):
            limit_w = None
        return PowerDevice(
            self.id, DeviceKind.CPU_PACKAGE, limit_w=limit_w, max_w=max_w, default_w=max_w, limitable=limitable
        )

    def write_problem(self) -> str | None:
        """Why it cannot be limited; None if it can."""
        try:
            file = self.limit_file()
            _from_micro(self._files, file)
        except (ControlRefusedError, ControlFailedError, ValueError) as error:
            return str(error)
        except OSError as error:
            return f"{self.id}: cannot read the power limit: {error}"
        if self._files.writable(file):
            return None
        return f"{self.id}: {file} is not writable: needs root and a writable mount"


class _Zones:
    """All zones. The name of a zone does not change, so that it is read once.

    Args:
        host_sys: mount point of the host's /sys.
        files: files of the host.
    """

    def __init__(self, host_sys: Path, files: HostFiles) -> None:
        self.folder = host_sys / "class/powercap"
        self._files = files
        self._known: dict[Path, _Zone] = {}

    def all(self, *, afresh: bool = False) -> list[_Zone]:
        """All zones by number, each id once; `afresh` reads their names again."""
        known = {} if afresh else self._known
        self._known = {entry: self._zone(entry, known.get(entry)) for entry in self.entries()}
        zones: dict[str, _Zone] = {}
        for zone in self._known.values():
            if zone.named:
                zones.setdefault(zone.id, zone)
        return sorted(zones.values(), key=_order)

    def packages(self, *, afresh: bool = False) -> list[_Zone]:
        """All packages, and zones that may be packages for all that can be read; none if no name at all can be read."""
        named = [zone for zone in self.all(afresh=afresh) if zone.is_package]
        unnamed = [zone for entry, zone in self._known.items() if not zone.named and entry.name.count(":") == 1]
        return [*named, *unnamed] if named else []

    def entries(self) -> list[Path]:
        """Links to zones in the powercap class, those of the preferred control type that has any.

        While the class cannot be listed, they are those listed last: not the second list of the same packages.
        """
        try:
            names = sorted(self._files.names(self.folder))
        except OSError:
            return list(self._known)
        types = ([name for name in names if name.startswith(f"{control_type}:")] for control_type in _CONTROL_TYPES)
        return [self.folder / name for name in next((found for found in types if found), [])]

    def missing(self) -> str:
        """Why there are no packages."""
        if not self.entries():
            return f"no RAPL zones in {self.folder}: no driver for this CPU, or a virtual machine"
        if found := [zone.id for zone in self.all() if zone.named]:
            return f"no package zones in {self.folder}, only {', '.join(found)}"
        return (
            f"no package zones in {self.folder}: container runtimes hide them from unprivileged "
            "containers; mount the host's /sys at another path and set HOST_SYS to it"
        )

    def _zone(self, entry: Path, known: _Zone | None) -> _Zone:
        if known is not None and known.named:
            return known
        path = self._files.resolve(entry)
        zone_id = _zone_id(self._files, path)
        return _Zone(zone_id or entry.name, path, self._files, named=zone_id is not None)


class Rapl:
    """Power limits of CPU packages; a `PowerLimiter`. `RaplMeter` reads their energy.

    Args:
        host_sys: mount point of the host's /sys.
        files: files of the host.
    """

    name = "rapl"

    def __init__(self, host_sys: Path = Path("/sys"), files: HostFiles = OS_FILES) -> None:
        self._files = files
        self._zones = _Zones(host_sys, files)

    def unavailable(self) -> str | None:
        """None if at least one package can be limited."""
        packages = self._zones.packages()
        if not packages:
            return self._zones.missing()
        problems = [problem for package in packages if (problem := package.write_problem())]
        return None if len(problems) < len(packages) else "; ".join(problems)

    def devices(self) -> Sequence[PowerDevice]:
        """All packages by number; `limit_w` is None for packages that cannot be limited.

        A zone whose name cannot be read may be a package: it is listed by the kernel's number, without a limit.
        """
        return [package.device() for package in self._zones.packages()]

    def set_limit(self, device_id: str, limit_w: float) -> float:
        """See `PowerLimiter.set_limit`."""
        limit_w = positive_number("limit_w", limit_w)
        package = next((one for one in self._zones.packages(afresh=True) if one.id == device_id), None)
        if package is None:
            raise ControlFailedError(f"no RAPL zone {device_id} in {self._zones.folder}")
        try:
            file = package.limit_file()
        except OSError as error:
            raise ControlFailedError(f"write {limit_w:g} W to {device_id}: {error}") from error
        action = f"write {limit_w:g} W to {file}"
        in_force_w = write_number(self._files, file, round(limit_w / _MICRO), action) * _MICRO
        if abs(in_force_w - limit_w) > READ_BACK_TOLERANCE_W:
            raise ControlFailedError(f"{action}: accepted, but {in_force_w:g} W is in force", in_force=in_force_w)
        return in_force_w


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
        self._zones = _Zones(host_sys, files)

    def unavailable(self) -> str | None:
        """None if at least one package's energy can be read."""
        packages = [zone for zone in self._zones.all() if zone.is_package]
        if not packages:
            return self._zones.missing()
        if any(_reading(package) for package in packages):
            return None
        return f"energy_uj in {self._zones.folder} is not readable: needs root"

    def energy(self) -> Sequence[EnergyReading]:
        """Energy counters of all zones that can be read."""
        return [reading for zone in self._zones.all() if (reading := _reading(zone))]

    def power_w(self) -> dict[str, float]:
        """No readings: RAPL counts energy only."""
        return {}


def _reading(zone: _Zone) -> EnergyReading | None:
    try:
        return zone.energy()
    except (OSError, ValueError):
        return None


def _order(zone: _Zone) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d+", zone.id)], zone.id


def _zone_id(files: HostFiles, path: Path) -> str | None:
    """Name of a zone, with its package number where the name alone is not unique (``dram-0-die-1``)."""
    name = _name(files, path)
    if name is None or ":" not in path.parent.name:
        return name
    above = _name(files, path.parent)
    if above is None:
        return None
    package = _PACKAGE.fullmatch(above)
    return f"{name}-{package[1]}" if package else name


def _name(files: HostFiles, path: Path) -> str | None:
    """Content of a zone's file `name`; None if it cannot be read or is not a name."""
    name = read_text(files, path / "name")
    return name if name and _NAME.fullmatch(name) else None


def _from_micro(files: HostFiles, file: Path) -> float:
    """Value in W or J of a file in uW or uJ.

    Raises:
        OSError: the file cannot be read.
        ValueError: the content is not a non-negative number.
    """
    return read_number(files, file) * _MICRO


def _plausible_w(limit_w: float) -> float | None:
    """A limit that a register of 15 bits can hold; None for any other."""
    return limit_w if limit_w <= _MAX_REGISTER_W else None


def _positive_from_micro(files: HostFiles, file: Path) -> float | None:
    """Like `_from_micro`; None if the file is missing or holds 0, which stands for an unknown value."""
    try:
        return _from_micro(files, file) or None
    except (OSError, ValueError):
        return None
