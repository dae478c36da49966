"""Model and topology of a host's CPUs: the model from /proc/cpuinfo, the topology from sysfs.

Source: Linux, Documentation/admin-guide/cputopology.rst.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from joulie.host_files import OS_FILES, HostFiles, matching, read_number, read_text


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


class CpuInfoReader:
    """Reads model and topology of the CPUs; again only once others are online, since they are thousands of files.

    Args:
        host_proc: mount point of a /proc of the host; that of a container is sufficient.
        host_sys: mount point of the host's /sys.
        files: files of the host.
    """

    def __init__(
        self, host_proc: Path = Path("/proc"), host_sys: Path = Path("/sys"), files: HostFiles = OS_FILES
    ) -> None:
        self._cpuinfo = host_proc / "cpuinfo"
        self._cpus = host_sys / "devices/system/cpu"
        self._files = files
        self._known: tuple[str, CpuInfo] | None = None

    def read(self) -> CpuInfo:
        """The CPUs that are online now."""
        online = read_text(self._files, self._cpus / "online")
        if self._known is not None and self._known[0] == online:
            return self._known[1]
        fields, complete = _first_processor(self._files, self._cpuinfo)
        folders = [cpu / "topology" for cpu in matching(self._files, self._cpus, "cpu[0-9]*")]
        cores = [core for folder in folders if (core := _core(self._files, folder))]
        info = CpuInfo(
            model=fields.get("model name"),
            vendor=fields.get("vendor_id"),
            sockets=len({package for package, _, _ in cores}) or None,
            cores=len({(package, die or 0, core) for package, die, core in cores}) or None,
            threads=len(cores) or None,
        )
        complete = complete and len(cores) == _number_of(online or "")
        if any(die is None for _, die, _ in cores):  # older kernels have no such file
            complete = complete and not self._files.exists(folders[0] / "die_id")
        self._known = (online, info) if online is not None and complete else None
        return info


def read(host_proc: Path = Path("/proc"), host_sys: Path = Path("/sys"), files: HostFiles = OS_FILES) -> CpuInfo:
    """Read model and topology of the CPUs once; see `CpuInfoReader`."""
    return CpuInfoReader(host_proc, host_sys, files).read()


def _number_of(cpus: str) -> int | None:
    """Number of CPUs in a list of the kernel's such as ``0-3,8``; None if it is not one.

    Source: Linux, Documentation/admin-guide/cputopology.rst.
    """
    count = 0
    for part in cpus.split(","):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            return None
        count += int(last or first) - int(first) + 1
    return count


def _first_processor(files: HostFiles, cpuinfo: Path) -> tuple[dict[str, str], bool]:
    """``key : value`` lines of the first processor, and whether those are all; all processors are assumed equal."""
    try:
        text = files.read(cpuinfo)
    except (OSError, ValueError):
        return {}, False
    first, end, _ = text.lstrip().partition("\n\n")
    whole = first if end else first[: first.rfind("\n") + 1]  # without the line that a short read cuts
    lines = (line.partition(":") for line in whole.splitlines())
    return {key.strip(): value.strip() for key, _, value in lines if value.strip()}, bool(end)


def _core(files: HostFiles, topology: Path) -> tuple[int, int | None, int] | None:
    """Package, die and core of a logical CPU; core numbers may repeat in another die."""
    package, core = _number(files, topology / "physical_package_id"), _number(files, topology / "core_id")
    if package is None or core is None:
        return None
    return package, _number(files, topology / "die_id"), core


def _number(files: HostFiles, file: Path) -> int | None:
    """A non-negative number; None if unreadable or -1, which the kernel reports if the firmware has no value."""
    try:
        return read_number(files, file)
    except (OSError, ValueError):
        return None
