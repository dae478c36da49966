"""What /proc/cpuinfo and the topology of sysfs tell."""

from pathlib import Path

from joulie.adapters.cpu import cpuinfo
from joulie.adapters.cpu.cpuinfo import CpuInfo
from support import sysfs_trees as trees

XEON = """processor\t: {number}
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz
power management:

"""
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\n\n"


def proc(folder: Path, text: str) -> Path:
    trees.write_files(folder, {"cpuinfo": text})
    return folder


def test_two_sockets_with_hyperthreads(tmp_path: Path) -> None:
    sys = trees.add_topology(tmp_path / "sys", cpus=16, sockets=2, threads_per_core=2)
    text = "".join(XEON.format(number=number) for number in range(16))
    assert cpuinfo.read(proc(tmp_path / "proc", text), sys) == CpuInfo(
        "Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz", "GenuineIntel", sockets=2, cores=8, threads=16
    )


def test_cores_numbered_by_die(tmp_path: Path) -> None:
    sys = trees.add_topology(tmp_path, cpus=4, sockets=1)
    for cpu in range(4):
        trees.write_files(sys / f"devices/system/cpu/cpu{cpu}/topology", {"die_id": cpu // 2, "core_id": cpu % 2})
    assert cpuinfo.read(tmp_path, sys).cores == 4


def test_cpus_offline_do_not_count(tmp_path: Path) -> None:
    sys = trees.add_topology(tmp_path, cpus=4, sockets=2)
    (sys / "devices/system/cpu/cpu4").mkdir()
    (sys / "devices/system/cpu/cpufreq").mkdir()
    info = cpuinfo.read(tmp_path, sys)
    assert (info.sockets, info.threads) == (2, 4)


def test_arm_prints_no_model_and_firmware_may_not_number_packages(tmp_path: Path) -> None:
    sys = trees.add_topology(tmp_path / "sys", cpus=1, sockets=1)
    trees.write_files(sys / "devices/system/cpu/cpu0/topology", {"physical_package_id": -1})
    assert cpuinfo.read(proc(tmp_path / "proc", ARM), sys) == CpuInfo(None, None, None, None, None)


def test_nothing_there(tmp_path: Path) -> None:
    assert cpuinfo.read(tmp_path / "proc", tmp_path / "sys") == CpuInfo(None, None, None, None, None)
