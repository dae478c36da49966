"""GPUs on the PCI bus."""

from pathlib import Path

from joulie.adapters.gpu.pci import gpus_on_bus
from support.sysfs_trees import link, write_files


def add(sys: Path, address: str, vendor: str, kind: str, driver: str | None = None) -> None:
    device = sys / "devices/pci0000:00" / address
    write_files(device, {"vendor": vendor, "class": kind})
    link(sys / "bus/pci/devices" / address, device)
    if driver is not None:
        folder = sys / "bus/pci/drivers" / driver
        folder.mkdir(parents=True, exist_ok=True)
        link(device / "driver", folder)


def test_gpus_are_counted_with_or_without_a_driver(tmp_path: Path) -> None:
    add(tmp_path, "0000:19:00.0", "0x10de", "0x030200", "nvidia")
    add(tmp_path, "0000:3b:00.0", "0x10de", "0x030000")
    add(tmp_path, "0000:c1:00.0", "0x1002", "0x120000", "amdgpu")
    assert gpus_on_bus(tmp_path) == {"NVIDIA": 2, "AMD": 1}


def test_what_is_no_gpu_of_the_host(tmp_path: Path) -> None:
    add(tmp_path, "0000:19:00.0", "0x10de", "0x030200", "vfio-pci")
    add(tmp_path, "0000:19:00.1", "0x10de", "0x040300", "snd_hda_intel")
    add(tmp_path, "0000:05:00.0", "0x10de", "0x068000")
    add(tmp_path, "0000:0b:00.0", "0x1a03", "0x030000", "ast")
    add(tmp_path, "0000:0c:00.0", "0x1002", "0x030000", "amdgpu")
    assert gpus_on_bus(tmp_path) == {}


def test_a_machine_without_pci(tmp_path: Path) -> None:
    assert gpus_on_bus(tmp_path) == {}
