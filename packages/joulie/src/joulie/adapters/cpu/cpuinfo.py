"""Model and topology of a host's CPUs: the model from /proc/cpuinfo, the topology from sysfs.

Source: Linux, Documentation/admin-guide/cputopology.rst.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from joulie.adapters.cpu.sysfs import read_number


@dataclass(frozen=True)
class CpuInfo:
    """The CPUs that are online; unknown values are None.

    Attributes:
        model: model name such as ``Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz``; Arm kernels do not report it.
        vendor: ``GenuineIntel`` or ``AuthenticAMD``.
        sockets: number of packages.
        cores: total number of physical cores.
        threads: total number of logical CPUs.
    """

    model: str | None
    vendor: str | None
    sockets: int | None
    cores: int | None
    threads: int | None


def read(host_proc: Path = Path("/proc"), host_sys: Path = Path("/sys")) -> CpuInfo:
    """Read model and topology of the CPUs.

    Args:
        host_proc: mount point of a /proc of the host; that of a container is sufficient.
        host_sys: mount point of the host's /sys.
    """
    fields = _first_processor(host_proc / "cpuinfo")
    cores = [core for folder in (host_sys / "devices/system/cpu").glob("cpu[0-9]*/topology") if (core := _core(folder))]
    return CpuInfo(
        model=fields.get("model name"),
        vendor=fields.get("vendor_id"),
        sockets=len({package for package, _, _ in cores}) or None,
        cores=len(set(cores)) or None,
        threads=len(cores) or None,
    )


def _first_processor(cpuinfo: Path) -> dict[str, str]:
    """``key : value`` lines of the first processor; all processors of a host are assumed equal."""
    try:
        text = cpuinfo.read_text()
    except (OSError, ValueError):
        return {}
    lines = (line.partition(":") for line in text.strip().split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines if value.strip()}


def _core(topology: Path) -> tuple[int, int, int] | None:
    """Package, die and core of a logical CPU; core numbers may repeat in another die."""
    package, core = _number(topology / "physical_package_id"), _number(topology / "core_id")
    if package is None or core is None:
        return None
    return package, _number(topology / "die_id") or 0, core


def _number(file: Path) -> int | None:
    """A non-negative number; None if unreadable or -1, which the kernel reports if the firmware has no value."""
    try:
        return read_number(file)
    except (OSError, ValueError):
        return None
