"""What a host's CPUs are: /proc/cpuinfo for their model, sysfs for how they are put together.

Source: Linux, Documentation/admin-guide/cputopology.rst.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CpuInfo:
    """CPUs that are online; None where the host does not say.

    Attributes:
        model: ``Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz``; Arm's kernels print none.
        vendor: ``GenuineIntel``, ``AuthenticAMD``.
        sockets: number of packages.
        cores: number of physical cores in all of them.
        threads: number of logical CPUs.
    """

    model: str | None
    vendor: str | None
    sockets: int | None
    cores: int | None
    threads: int | None


def read(host_proc: Path = Path("/proc"), host_sys: Path = Path("/sys")) -> CpuInfo:
    """Read what is there.

    Args:
        host_proc: where a /proc of the host is mounted; a container's own will do.
        host_sys: where the host's /sys is mounted.
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
    """``key : value`` lines of the first processor; the others of a host are the same."""
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
    """A number from 0; the kernel writes -1 where firmware does not tell."""
    try:
        text = file.read_text().strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None
