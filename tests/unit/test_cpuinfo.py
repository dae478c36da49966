"""What /proc/cpuinfo and the topology of sysfs tell."""

from pathlib import Path

import pytest

from joulie.adapters.cpu import cpuinfo
from joulie.adapters.cpu.cpuinfo import CpuInfo, CpuInfoReader
from joulie_lab.machines.files import MachineFiles
from joulie_lab.machines.library import MACHINES
from joulie_lab.machines.machine import Machine
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


class Host:
    """A modelled machine with two sockets of 64 cores, the names of the files that were read, and some that fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine = Machine(MACHINES["epyc-7742"])
        files = MachineFiles(self.machine, lambda: 0.0)
        self.reader = CpuInfoReader(Path("/machine/proc"), Path("/machine/sys"), files)
        self.read: list[str] = []
        self.answers: dict[str, str | OSError] = {}
        read = files.read

        def counted(file: Path) -> str:
            self.read.append(file.name)
            answer = self.answers.get(file.name)
            if isinstance(answer, OSError):
                raise answer
            return read(file) if answer is None else answer

        monkeypatch.setattr(files, "read", counted)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def test_topology_is_read_again_only_once_other_cpus_are_online(host: Host) -> None:
    info = host.reader.read()
    assert (info.sockets, info.cores, info.threads) == (2, 128, 256)
    assert len(host.read) > 3 * 256
    host.read.clear()
    assert host.reader.read() is info
    assert host.read == ["online"]
    host.machine.offline = {1, 200}
    assert (host.reader.read().cores, host.reader.read().threads) == (128, 254)
    host.machine.offline = set(range(64, 128)) | set(range(192, 256))
    assert (host.reader.read().sockets, host.reader.read().threads) == (2, 128)
    host.machine.offline = set()
    assert host.reader.read() == info


@pytest.mark.parametrize(
    ("file", "answer"),
    [
        ("cpuinfo", OSError("input/output error")),
        ("cpuinfo", "processor\t: 0\nvendor_id\t: AuthenticAMD\n"),
        ("physical_package_id", OSError("input/output error")),
        ("core_id", "-1\n"),
        ("die_id", OSError("input/output error")),
        ("online", "<unknown>\n"),
        ("online", ""),
    ],
)
def test_topology_that_could_not_be_read_as_a_whole_is_not_kept(host: Host, file: str, answer: str | OSError) -> None:
    host.answers[file] = answer
    host.reader.read()
    del host.answers[file]
    info = host.reader.read()
    assert (info.model, info.sockets, info.cores) == ("AMD EPYC 7742 64-Core Processor", 2, 128)
    host.read.clear()
    assert host.reader.read() == info
    assert host.read == ["online"]
