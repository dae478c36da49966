"""GPUs on the PCI bus, whether or not a driver responds.

A container without the driver's library is not a machine without GPUs.

Source: Linux, Documentation/ABI/testing/sysfs-bus-pci; PCI Code and ID Assignment, class codes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from joulie.host_files import OS_FILES, HostFiles, matching, read_text

NVIDIA, AMD = "NVIDIA", "AMD"

# Class codes without the programming interface: VGA controller, 3D controller, other display, processing accelerator.
# Graphics inside AMD's CPUs are VGA controllers.
_CLASSES: Mapping[str, tuple[str, frozenset[str]]] = {
    "0x10de": (NVIDIA, frozenset({"0300", "0302"})),
    "0x1002": (AMD, frozenset({"0302", "0380", "1200"})),
}
_OF_VIRTUAL_MACHINES = "vfio-pci"


def gpus_on_bus(sys: Path = Path("/sys"), files: HostFiles = OS_FILES) -> Mapping[str, int]:
    """Number of GPUs by vendor; those handed to virtual machines are not the host's."""
    found: Counter[str] = Counter()
    for device in matching(files, sys / "bus/pci/devices", "*"):
        vendor, classes = _CLASSES.get(read_text(files, device / "vendor") or "", ("", frozenset()))
        if not vendor or (read_text(files, device / "class") or "")[2:6] not in classes:
            continue
        if files.resolve(device / "driver").name != _OF_VIRTUAL_MACHINES:
            found[vendor] += 1
    return dict(found)
