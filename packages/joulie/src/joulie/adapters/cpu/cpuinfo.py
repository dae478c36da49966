"""Model and topology of a host's CPUs: the model from /proc/cpuinfo, the topology from sysfs.

Source: Linux, Documentation/admin-guide/cputopology.rst.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from joulie.host_files import OS_FILES, HostFiles, matching, read_number


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


def read(host_proc: Path = Path("/proc"), host_sys: Path = Path("/sys"), files: HostFiles = OS_FILES) -> CpuInfo:
    """Read model and topology of the CPUs.

    Args:
        host_proc: mount point of a /proc of the host; that of a container is sufficient.
        host_sys: mount point of the host's /sys.
        files: files of the host.
    """
    fields = _first_processor(files, host_proc / "cpuinfo")
    cpus = matching(files, host_sys / "devices/system/cpu", "cpu[0-9]*")
    cores = [core for cpu in cpus if (core := _core(files, cpu / "topology"))]
    return CpuInfo(
        model=fields.get("model name"),
        vendor=fields.get("vendor_id"),
        sockets=len({package for package, _, _ in cores}) or None,
        cores=len(set(cores)) or None,
        threads=len(cores) or None,
    )


def _first_processor(files: HostFiles, cpuinfo: Path) -> dict[str, str]:
    """``key : value`` lines of the first processor; all processors of a host are assumed equal."""
    try:
        text = files.read(cpuinfo)
    except (OSError, ValueError):
        return {}
    whole = text[: text.rfind("\n") + 1]  # without the line that a short read cuts
    lines = (line.partition(":") for line in whole.strip().split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines if value.strip()}


def _core(files: HostFiles, topology: Path) -> tuple[int, int, int] | None:
    """Package, die and core of a logical CPU; core numbers may repeat in another die."""
    package, core = _number(files, topology / "physical_package_id"), _number(files, topology / "core_id")
    if package is None or core is None:
        return None
    return package, _number(files, topology / "die_id") or 0, core


def _number(files: HostFiles, file: Path) -> int | None:
    """A non-negative number; None if unreadable or -1, which the kernel reports if the firmware has no value."""
    try:
        return read_number(files, file)
    except (OSError, ValueError):
        return None
