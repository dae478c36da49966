"""Real directory trees laid out as Linux lays out /sys, links included, from compact descriptions.

Layouts: Documentation/ABI/testing/sysfs-class-powercap and Documentation/admin-guide/pm/cpufreq.rst. Every builder
takes the directory that stands for /sys and returns it.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

MAX_ENERGY_UJ = 262_143_328_850


@dataclass(frozen=True)
class Zone:
    """One powercap zone; without a limit it has no constraint files, as on AMD."""

    name: str
    energy_uj: int = 1_000_000
    limit_w: float | None = None
    max_w: float = 0.0
    short_term_w: float | None = None
    enabled: bool = True
    zones: tuple["Zone", ...] = ()

    def files(self) -> dict[str, object]:
        files: dict[str, object] = {
            "name": self.name,
            "energy_uj": self.energy_uj,
            "max_energy_range_uj": MAX_ENERGY_UJ,
            "enabled": int(self.enabled),
        }
        limits = (("long_term", self.limit_w, self.max_w, 999_424), ("short_term", self.short_term_w, 0.0, 2440))
        stated = [limit for limit in limits if limit[1] is not None]
        for number, (name, limit_w, max_w, window_us) in enumerate(stated):
            files |= {
                f"constraint_{number}_name": name,
                f"constraint_{number}_power_limit_uw": round((limit_w or 0.0) * 1e6),
                f"constraint_{number}_max_power_uw": round(max_w * 1e6),
                f"constraint_{number}_time_window_us": window_us,
            }
        return files


def write_files(folder: Path, files: Mapping[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")


def link(at: Path, to: Path) -> None:
    """A relative link, as sysfs has them, so that the tree can be mounted anywhere."""
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(os.path.relpath(to, at.parent))


def add_powercap(sys: Path, control_type: str, zones: Iterable[Zone]) -> Path:
    """A control type with its zones: nested directories below /sys/devices, one flat class of links to them."""
    folder = sys / "devices/virtual/powercap" / control_type
    write_files(folder, {"enabled": 1})
    link(sys / "class/powercap" / control_type, folder)
    _add_zones(sys, folder, zones)
    return sys


def _add_zones(sys: Path, parent: Path, zones: Iterable[Zone]) -> None:
    for number, zone in enumerate(zones):
        folder = parent / f"{parent.name}:{number:x}"
        write_files(folder, zone.files())
        link(folder / "device", parent)
        link(folder / "subsystem", sys / "class/powercap")
        link(sys / "class/powercap" / folder.name, folder)
        _add_zones(sys, folder, zone.zones)


def package(number: int, limit_w: float = 205.0, max_w: float = 205.0, *zones: Zone, name: str = "") -> Zone:
    return Zone(
        name or f"package-{number}",
        energy_uj=(number + 1) * 10_000_000,
        limit_w=limit_w,
        max_w=max_w,
        short_term_w=limit_w * 1.2,
        zones=zones,
    )


def zone_file(sys: Path, zone: str, file: str) -> Path:
    """A file of a zone by the zone's kernel name, ``intel-rapl:0:1``."""
    return sys / "class/powercap" / zone / file


def intel_two_sockets(sys: Path) -> Path:
    """A server whose platform domain sits between its packages, each with DRAM that has a (lower) limit of its own."""

    def socket(number: int) -> Zone:
        return package(number, 205.0, 205.0, Zone("dram", energy_uj=3_000_000, limit_w=40.0, max_w=40.0))

    add_powercap(sys, "intel-rapl", [socket(0), Zone("psys", energy_uj=90_000_000, limit_w=600.0), socket(1)])
    return add_powercap(sys, "intel-rapl-mmio", [socket(0), socket(1)])


def intel_four_sockets(sys: Path) -> Path:
    """Firmware that states no maximum."""
    sockets = (package(number, 150.0, 0.0, Zone("dram")) for number in range(4))
    return add_powercap(sys, "intel-rapl", sockets)


def intel_multi_die(sys: Path) -> Path:
    names = [f"package-{socket}-die-{die}" for socket in range(2) for die in range(2)]
    dies = (package(number, 200.0, 200.0, Zone("dram"), name=name) for number, name in enumerate(names))
    return add_powercap(sys, "intel-rapl", dies)


def laptop(sys: Path) -> Path:
    core, uncore = Zone("core", limit_w=0.0, enabled=False), Zone("uncore", limit_w=0.0, enabled=False)
    add_powercap(sys, "intel-rapl", [package(0, 15.0, 15.0, core, uncore), Zone("psys", limit_w=0.0, enabled=False)])
    return add_powercap(sys, "intel-rapl-mmio", [package(0, 15.0, 15.0)])


def amd_energy_only(sys: Path) -> Path:
    return add_powercap(sys, "intel-rapl", [Zone(f"package-{n}", zones=(Zone("core"),)) for n in range(2)])


def virtual_machine(sys: Path) -> Path:
    """No RAPL driver, no scaling driver."""
    return add_topology(sys, cpus=4, sockets=1)


def masked(sys: Path) -> Path:
    """As in an unprivileged container: the class has its links, what they lead to is an empty directory."""
    for number in range(2):
        link(sys / f"class/powercap/intel-rapl:{number}", sys / f"devices/virtual/powercap/intel-rapl/x:{number}")
    (sys / "devices/virtual/powercap").mkdir(parents=True)
    return sys


def add_topology(sys: Path, cpus: int, sockets: int, threads_per_core: int = 1) -> Path:
    per_socket = cpus // sockets
    for cpu in range(cpus):
        write_files(
            sys / f"devices/system/cpu/cpu{cpu}/topology",
            {"physical_package_id": cpu // per_socket, "core_id": cpu % per_socket // threads_per_core},
        )
    return sys


def add_cpufreq(
    sys: Path,
    driver: str,
    policies: Mapping[int, Iterable[int]],
    khz: tuple[int, int],
    offline: Iterable[int] = (),
    table_khz: Iterable[int] = (),
) -> Path:
    """Policies with their CPUs; those offline keep a directory whose files do not answer, as inactive policies do."""
    for number, cpus in policies.items():
        folder = sys / f"devices/system/cpu/cpufreq/policy{number}"
        files: dict[str, object] = {
            "affected_cpus": " ".join(map(str, cpus)),
            "cpuinfo_min_freq": khz[0],
            "cpuinfo_max_freq": khz[1],
            "scaling_driver": driver,
            "scaling_min_freq": khz[0],
            "scaling_max_freq": khz[1],
            "scaling_cur_freq": khz[0],
        }
        if table := " ".join(map(str, table_khz)):
            files["scaling_available_frequencies"] = table
        write_files(folder, dict.fromkeys(files, "") if number in offline else files)
        for cpu in cpus:
            link(sys / f"devices/system/cpu/cpu{cpu}/cpufreq", folder)
    return sys


def intel_pstate(sys: Path, mode: str = "active") -> Path:
    """One policy a CPU."""
    driver = "intel_pstate" if mode == "active" else "intel_cpufreq"
    return add_cpufreq(sys, driver, {cpu: [cpu] for cpu in range(12)}, (800_000, 3_500_000))


def amd_pstate(sys: Path, mode: str = "active") -> Path:
    driver = "amd-pstate-epp" if mode == "active" else "amd-pstate"
    return add_cpufreq(sys, driver, {cpu: [cpu] for cpu in range(4)}, (400_000, 3_700_000))


def acpi_cpufreq(sys: Path) -> Path:
    """Four CPUs a policy, and a table of three frequencies."""
    policies = {0: range(4), 4: range(4, 8)}
    table = (2_450_000, 2_000_000, 1_500_000)
    return add_cpufreq(sys, "acpi-cpufreq", policies, (1_500_000, 2_450_000), table_khz=table)
