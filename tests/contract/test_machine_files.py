"""A modelled machine answers as a kernel does, in process and mounted by FUSE."""

import errno
import json
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from joulie.adapters.cpu import cpuinfo
from joulie.adapters.cpu.cpufreq import Cpufreq
from joulie.adapters.cpu.hsmp import Hsmp
from joulie.adapters.cpu.rapl import Rapl, RaplMeter
from joulie.host_files import OS_FILES, HostFiles
from joulie.ports.devices import ControlRefusedError
from joulie_lab.machines.files import MachineFiles
from joulie_lab.machines.library import MACHINES
from joulie_lab.machines.machine import Machine
from joulie_lab.machines.specs import Load
from support.mounted_machine import mounted, why_not_mountable

_NO_FUSE = why_not_mountable()
PL1 = "constraint_0_power_limit_uw"
HSMP_IOCTL = 0xC02CF800


class Door:
    """One way to a machine's files."""

    def __init__(self, files: HostFiles, root: Path) -> None:
        self.files = files
        self.root = root
        self.sys, self.proc, self.hsmp = root / "sys", root / "proc", root / "dev/hsmp"

    def zone(self, name: str, file: str) -> Path:
        return self.sys / "class/powercap" / name / file

    def policy(self, file: str, number: int = 0) -> Path:
        return self.sys / f"devices/system/cpu/cpufreq/policy{number}" / file

    def read(self, file: Path) -> str:
        return self.files.read(file).strip()

    def refuses(self, file: Path, text: str) -> int | None:
        with pytest.raises(OSError) as refusal:
            self.files.write(file, text)
        return refusal.value.errno

    def state(self) -> dict:
        return json.loads(self.files.read(self.root / "control/state"))


Enter = Callable[..., Door]


@pytest.fixture(
    params=["in process", pytest.param("fuse", marks=pytest.mark.skipif(bool(_NO_FUSE), reason=_NO_FUSE or ""))]
)
def enter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Enter]:
    """Starts a machine by its name."""
    with ExitStack() as stack:
        ticks = iter(range(1_000_000))

        def start(name: str, load: str = "1.0") -> Door:
            if request.param == "fuse":
                root = tmp_path / name
                return Door(OS_FILES, stack.enter_context(mounted(name, root, load=load, speed=1000.0)))
            files = MachineFiles(Machine(MACHINES[name], Load.parse(load)), lambda: float(next(ticks)))
            return Door(files, Path("/machine"))

        yield start


def test_rapl_limits_round_and_are_refused_as_by_the_kernel(enter: Enter) -> None:
    door = enter("xeon-8380")
    file = door.zone("intel-rapl:0", PL1)
    assert door.read(file) == "270000000"
    door.files.write(file, "100200000\n")
    assert door.read(file) == "100125000", "1/8 W"
    assert door.refuses(file, "garbage") == errno.EINVAL
    assert door.refuses(file, "-1") == errno.EINVAL
    assert door.refuses(door.zone("intel-rapl:0", "name"), "x") == errno.EACCES
    assert door.read(file) == "100125000"
    with pytest.raises(FileNotFoundError):
        door.files.read(door.zone("intel-rapl:7", PL1))


def test_rapl_limits_that_the_firmware_locked(enter: Enter) -> None:
    door = enter("xeon-8380-locked")
    assert door.read(door.zone("intel-rapl:0", "enabled")) == "0"
    assert door.refuses(door.zone("intel-rapl:0", PL1), "100000000") == errno.ENODATA
    assert door.refuses(door.zone("intel-rapl:0", "enabled"), "1") == errno.ENOSYS


def test_rapl_zones_of_a_client_are_listed_twice_and_count_once(enter: Enter) -> None:
    door = enter("xeon-e-2388g")
    names = set(door.files.names(door.sys / "class/powercap"))
    assert {"intel-rapl:0", "intel-rapl-mmio:0", "intel-rapl:1", "intel-rapl:0:1"} <= names
    assert [device.id for device in Rapl(door.sys, door.files).devices()] == ["package-0"]
    zones = {reading.device_id for reading in RaplMeter(door.sys, door.files).energy()}
    assert zones == {"package-0", "core-0", "uncore-0", "psys"}


def test_dies_are_packages_of_their_own(enter: Enter) -> None:
    door = enter("xeon-9242")
    devices = Rapl(door.sys, door.files).devices()
    assert [device.id for device in devices] == [f"package-{socket}-die-{die}" for socket in (0, 1) for die in (0, 1)]
    info = cpuinfo.read(door.proc, door.sys, door.files)
    assert (info.sockets, info.cores, info.threads) == (2, 96, 192)


def test_counters_run_with_the_power_of_the_moment(enter: Enter) -> None:
    door = enter("epyc-9654", "0.5")
    before = door.state()
    shown_j = int(door.read(door.zone("intel-rapl:0", "energy_uj"))) / 1e6
    after = door.state()
    turns = after["packages"][0]["energy_j"] // 65532.610987
    earliest_j, latest_j = (state["packages"][0]["energy_j"] for state in (before, after))
    assert any(earliest_j - 1.0 <= shown_j + turn * 65532.610987 <= latest_j + 1.0 for turn in range(int(turns) + 1))
    assert after["now_s"] > before["now_s"]
    assert door.read(door.zone("intel-rapl:0", "max_energy_range_uj")) == "65532610987"
    assert Rapl(door.sys, door.files).unavailable() is not None, "AMD's zones have no limits"
    assert not [name for name in door.files.names(door.zone("intel-rapl:0", "")) if name.startswith("constraint")]


def test_cpufreq_clamps_and_rounds_down(enter: Enter) -> None:
    door = enter("epyc-7742")
    file = door.policy("scaling_max_freq")
    for written, read in (("2100000", "2000000"), ("1", "1500000"), ("9999999", "2250000")):
        door.files.write(file, written)
        assert door.read(file) == read
    assert door.refuses(file, "fast") == errno.EINVAL
    assert Cpufreq(door.sys, door.files).driver == "acpi-cpufreq"


def test_policies_without_an_online_cpu_are_busy(enter: Enter) -> None:
    door = enter("epyc-7742")
    door.files.write(door.root / "control/offline", "1")
    with pytest.raises(OSError) as busy:
        door.files.read(door.policy("scaling_max_freq", 1))
    assert busy.value.errno == errno.EBUSY
    assert door.refuses(door.policy("scaling_max_freq", 1), "1500000") == errno.EBUSY
    assert "policy1" not in {policy.id for policy in Cpufreq(door.sys, door.files).policies()}
    cpus = door.sys / "devices/system/cpu"
    assert door.read(cpus / "online") == "0,2-255"
    with pytest.raises(FileNotFoundError):
        door.read(cpus / "cpu1/topology/core_id")
    assert cpuinfo.read(door.proc, door.sys, door.files).threads == 255


def test_hsmp_clips_to_the_range_and_refuses_as_the_driver_does(enter: Enter) -> None:
    door = enter("epyc-9654")
    hsmp = Hsmp(door.hsmp, door.files)
    assert hsmp.unavailable() is None
    assert [(device.limit_w, device.max_w) for device in hsmp.devices()] == [(360.0, 400.0)] * 2
    assert hsmp.set_limit("package-1", 216.0) == 216.0

    def answer(message: int, arguments: int, words: int, socket: int, *, write: bool) -> int | None:
        buffer = bytearray(struct.pack("=IHH8IH2x", message, arguments, words, 500_000, *[0] * 7, socket))
        try:
            door.files.ioctl(door.hsmp, HSMP_IOCTL, buffer, write=write)
        except OSError as error:
            return error.errno
        return None

    assert answer(5, 1, 0, 0, write=True) is None
    assert hsmp.devices()[0].limit_w == 400.0, "clipped"
    assert answer(5, 1, 0, 2, write=True) == errno.ENODEV
    assert answer(5, 0, 0, 0, write=True) == errno.EINVAL
    assert answer(999, 0, 1, 0, write=False) == errno.ENOMSG
    assert answer(5, 1, 0, 0, write=False) == errno.EPERM
    assert answer(6, 0, 1, 0, write=True) == errno.EPERM


def test_machines_without_hsmp_rapl_or_frequency_scaling(enter: Enter) -> None:
    door = enter("epyc-7742")
    assert "not an AMD EPYC" in (Hsmp(door.hsmp, door.files).unavailable() or "")
    machine = enter("vm-intel")
    assert Rapl(machine.sys, machine.files).unavailable() is not None
    assert Cpufreq(machine.sys, machine.files).unavailable() is not None
    assert cpuinfo.read(machine.proc, machine.sys, machine.files).model == "Intel(R) Xeon(R) Platinum 8490H"


def test_amd_gpus_through_hwmon(enter: Enter) -> None:
    door = enter("mi300x")
    cap = door.sys / "class/hwmon/hwmon3/power1_cap"
    assert door.read(cap.with_name("name")) == "amdgpu"
    door.files.write(cap, "500900000\n")
    assert door.read(cap) == "500000000", "whole watts"
    assert door.refuses(cap, "751000000") == errno.EINVAL
    assert door.read(cap.with_name("power1_input")) == "500000000"


def test_a_reboot_brings_back_the_firmware_s_limits(enter: Enter) -> None:
    door = enter("xeon-8380-lowered")
    boot_id = door.proc / "sys/kernel/random/boot_id"
    before = door.read(boot_id)
    door.files.write(door.zone("intel-rapl:0", PL1), "100000000")
    door.files.write(door.root / "control/boot", "1")
    assert door.read(boot_id) != before
    assert door.read(door.zone("intel-rapl:0", PL1)) == "200000000"


def test_limits_bring_the_power_down(enter: Enter) -> None:
    door = enter("xeon-8380")
    assert Rapl(door.sys, door.files).set_limit("package-0", 162.0) == 162.0
    while (state := door.state())["now_s"] < 60.0:
        pass
    assert state["packages"][0]["power_w"] == pytest.approx(162.0)
    assert state["packages"][1]["power_w"] == pytest.approx(270.0)


def test_others_than_root_are_refused() -> None:
    files = MachineFiles(Machine(MACHINES["xeon-8380"]), lambda: 0.0, privileged=False)
    zone = Path("/machine/sys/class/powercap/intel-rapl:0")
    with pytest.raises(PermissionError):
        files.read(zone / "energy_uj")
    with pytest.raises(ControlRefusedError):
        Rapl(Path("/machine/sys"), files).set_limit("package-0", 100.0)
    assert Rapl(Path("/machine/sys"), files).unavailable() is not None
