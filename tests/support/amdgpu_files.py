"""The files of the amdgpu driver, with the kernel's answers; see `joulie.adapters.gpu.amdgpu` for the source."""

import errno
from collections.abc import Callable
from pathlib import Path

from joulie.host_files import OsFiles
from support.sysfs_trees import link, write_files

UNIQUE_IDS = ("90f5f8a3c2b1d4e6", "1b2c3d4e5f60718a")


def add_amdgpu(sys: Path, index: int, *, first_hwmon: int = 4, **changes: object) -> Path:
    """A GPU of 200 to 800 W, 700 W by default, 72 W drawn: its hwmon folder. A file whose content is None is absent.

    Other sensors of the machine, and the console's graphics card, stand before it.
    """
    device = sys / f"devices/pci0000:{0x40 + index:02x}/0000:{0x41 + index:02x}:00.0"
    hwmon = device / "hwmon" / f"hwmon{first_hwmon + index}"
    files: dict[str, object] = {
        "name": "amdgpu",
        "power1_label": "PPT",
        "power1_cap": 700_000_000,
        "power1_cap_min": 200_000_000,
        "power1_cap_max": 800_000_000,
        "power1_cap_default": 700_000_000,
        "power1_input": 72_000_000 + index,
    }
    own = {"unique_id": UNIQUE_IDS[index % 2], "product_name": "AMD Instinct MI300X OAM", "device": "0x74a1"}
    for name, content in changes.items():
        (own if name in own else files)[name] = content
    write_files(device, {name: content for name, content in own.items() if content is not None})
    write_files(hwmon, {name: content for name, content in files.items() if content is not None})
    link(hwmon / "device", device)
    link(sys / "class/hwmon" / hwmon.name, hwmon)
    return hwmon


def add_other_sensors(sys: Path) -> None:
    """Sensors that are no GPU's."""
    for number, name in enumerate(("k10temp", "nvme")):
        folder = sys / f"devices/virtual/hwmon/hwmon{number}"
        write_files(folder, {"name": name, "power1_cap": 1_000_000})
        link(sys / "class/hwmon" / folder.name, folder)


class AmdgpuFiles(OsFiles):
    """Files whose writes are answered as the driver does.

    Attributes:
        answer: called with a file before it is written; may raise OSError.
        ignored: files that take a limit without effect.
    """

    def __init__(self) -> None:
        self.answer: Callable[[Path], None] = lambda _file: None
        self.ignored: set[Path] = set()

    def write(self, file: Path, text: str) -> None:
        self.answer(file)
        watts = int(text) // 1_000_000
        low, high = (int(self.read(file.with_name(f"power1_cap_{end}"))) // 1_000_000 for end in ("min", "max"))
        if not low <= watts <= high:
            raise OSError(errno.EINVAL, "Invalid argument")
        if file not in self.ignored:
            super().write(file, f"{watts * 1_000_000}\n")
