"""Limits of a whole host on a tree like that of Linux, with its file of original limits."""

import errno
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from joulie.adapters.cpu.cpufreq import Cpufreq
from joulie.adapters.cpu.cpuinfo import CpuInfoReader
from joulie.adapters.cpu.rapl import Rapl
from joulie.adapters.gpu.pci import NVIDIA
from joulie.adapters.kubernetes.api.v1alpha1 import ControlResult
from joulie.adapters.saved_limits import SavedLimits
from joulie.apps.agent.discovery import hardware_of_host
from joulie.apps.agent.gpus import GpuBackends
from joulie.apps.agent.host import Host, HostBackends
from joulie.apps.agent.outcome import reported_limits
from joulie.domain.actuation import WantedCap
from joulie.domain.dvfs import DvfsSettings
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.saved_records import ReportedLimits
from joulie.host_files import OsFiles
from joulie.ports.devices import DeviceKind, PowerDevice
from support import sysfs_trees as trees
from support.sysfs_trees import add_topology, zone_file

pytestmark = pytest.mark.slow

ECO, LIFTED = WantedCap(percent=60.0), WantedCap()
XEON = "vendor_id\t: GenuineIntel\nmodel name\t: INTEL(R) XEON(R) GOLD 6530\n"
GPU = "NVIDIA H100 80GB HBM3"


@dataclass
class Gpus:
    """GPUs of 200 to 700 W, 700 W by default."""

    limits_w: dict[str, float]
    name: str = "nvml"
    listings: int = 0
    writes: list[str] = field(default_factory=list)

    def unavailable(self) -> str | None:
        return None

    def devices(self) -> Sequence[PowerDevice]:
        self.listings += 1
        return [
            PowerDevice(name, DeviceKind.GPU, GPU, limit_w, 200.0, 700.0, 700.0)
            for name, limit_w in self.limits_w.items()
        ]

    def set_limit(self, device_id: str, limit_w: float) -> float:
        self.writes.append(device_id)
        self.limits_w[device_id] = limit_w
        return limit_w


class CountedFiles(OsFiles):
    """Files of the operating system, with the number of reads by name."""

    def __init__(self) -> None:
        self.reads: dict[str, int] = {}

    def read(self, file: Path) -> str:
        self.reads[file.name] = self.reads.get(file.name, 0) + 1
        return super().read(file)


def raising(error: OSError) -> Callable[..., None]:
    def fail(*_arguments: object) -> None:
        raise error

    return fail


class Bench:
    """The directories of a host, its GPUs, and new processes of its agent."""

    def __init__(self, root: Path, tree: Callable[[Path], object], gpus: int = 0) -> None:
        self.sys, self.proc, self.file = root / "sys", root / "proc", root / "state/limits.json"
        self.sys.mkdir()
        tree(self.sys)
        trees.write_files(self.proc, {"cpuinfo": XEON})
        self.boot("00000001-8b1c-4ec5-9d3a-70f4cc4f9f8a")
        self.gpus = Gpus({f"GPU-{number}": 700.0 for number in range(gpus)})
        self.files = CountedFiles()

    def boot(self, boot_id: str) -> None:
        trees.write_files(self.proc / "sys/kernel/random", {"boot_id": boot_id})

    def host(self) -> Host:
        backends = HostBackends(
            cpu_info=CpuInfoReader(self.proc, self.sys, self.files).read,
            cpu_limiters=(Rapl(self.sys),),
            frequency=Cpufreq(self.sys, self.files),
            cpu_meters=(),
            gpus=(GpuBackends(NVIDIA, (self.gpus,)),),
            store=SavedLimits(self.file, self.proc),
            catalogue=BUILTIN_CATALOGUE,
        )
        return Host(backends, DvfsSettings())

    def cycle(self, host: Host, cap: WantedCap) -> tuple[str, str]:
        """One cycle; the messages for CPUs and GPUs."""
        host.observe_cpu(0.0)
        cpu = host.enforce_cpu(cap, 0.0)
        host.observe_gpu(0.0)
        return cpu.message, host.enforce_gpu(cap).message

    def limit_w(self, zone: str = "intel-rapl:0") -> float:
        return float(zone_file(self.sys, zone, "constraint_0_power_limit_uw").read_text()) / 1e6

    def set_limit_w(self, limit_w: float, zone: str = "intel-rapl:0") -> None:
        zone_file(self.sys, zone, "constraint_0_power_limit_uw").write_text(f"{limit_w * 1e6:.0f}")

    @property
    def saved(self) -> dict[str, float]:
        return dict(json.loads(self.file.read_text())["limits"])


def one_socket(sys: Path) -> None:
    trees.add_powercap(sys, "intel-rapl", [trees.package(0), trees.package(1)])
    add_topology(sys, cpus=8, sockets=2)


def test_h7_restore_of_512_policies_and_16_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: every policy is read once a cycle, and each kind of device is saved once."""

    def policies(sys: Path) -> None:
        trees.add_cpufreq(sys, "amd-pstate", {cpu: [cpu] for cpu in range(512)}, (400_000, 3_700_000))

    bench = Bench(tmp_path, policies, gpus=16)
    syncs: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (syncs.append(descriptor), fsync(descriptor))[1])
    host = bench.host()
    bench.cycle(host, ECO)
    # Once in the listing, once to see that one policy is there at all, once for each write that is read back.
    assert bench.files.reads["scaling_max_freq"] <= 512 + 512 + 4
    assert len(syncs) == 2 * 2, "the file and its folder, for policies and for GPUs"
    assert bench.gpus.listings == 1
    assert len(bench.saved) == 2 * (512 + 16)
    syncs.clear()
    bench.files.reads.clear()
    bench.cycle(host, ECO)
    assert (len(syncs), bench.gpus.listings) == (0, 2)
    assert bench.files.reads["scaling_max_freq"] <= 512 + 4
    assert bench.files.reads["scaling_cur_freq"] <= 512 + 4
    # Killed; the next process restores.
    bench.files.reads.clear()
    messages = bench.cycle(bench.host(), LIFTED)
    assert all(message.startswith("restored") for message in messages)
    assert len(syncs) == 2 * 2
    assert bench.files.reads["scaling_max_freq"] <= 3 * 512 + 4
    files = (bench.sys / "devices/system/cpu/cpufreq").glob("policy*/scaling_max_freq")
    assert {file.read_text().strip() for file in files} == {"3700000"}
    assert set(bench.gpus.limits_w.values()) == {700.0}
    assert bench.saved == {}


def test_h8_watts_are_the_sockets(tmp_path: Path) -> None:
    def dies(sys: Path) -> None:
        trees.intel_multi_die(sys)
        add_topology(sys, cpus=8, sockets=2)

    bench = Bench(tmp_path, dies)
    host = bench.host()
    bench.cycle(host, WantedCap(cap_w=240.0))
    zones = [f"intel-rapl:{number}" for number in range(4)]
    assert [bench.limit_w(zone) for zone in zones] == [120.0] * 4
    bench.cycle(host, ECO)
    assert [bench.limit_w(zone) for zone in zones] == [120.0] * 4
    assert host.observation is not None
    cpu = hardware_of_host(host.observation, BUILTIN_CATALOGUE).cpu
    assert cpu is not None
    assert cpu.cap_range is not None
    assert (cpu.sockets, cpu.cap_range.max_watts_per_socket) == (2, 400.0)
    assert not any("sockets" in warning for warning in cpu.warnings)


def test_h8_tdp_of_the_catalogue_is_the_sockets(tmp_path: Path) -> None:
    def dies(sys: Path) -> None:
        names = [f"package-0-die-{die}" for die in range(2)]
        trees.add_powercap(sys, "intel-rapl", [trees.package(n, 135.0, 0.0, name=name) for n, name in enumerate(names)])

    bench = Bench(tmp_path, dies)
    host = bench.host()
    bench.cycle(host, ECO)
    # 60 % of the 270 W of a Xeon Gold 6530, divided by its two dies.
    assert [bench.limit_w(f"intel-rapl:{number}") for number in range(2)] == [81.0, 81.0]


def test_h4_one_unreadable_package_does_not_hold_up_the_others(tmp_path: Path) -> None:
    bench = Bench(tmp_path, one_socket)
    zone_file(bench.sys, "intel-rapl:1", "constraint_0_power_limit_uw").write_text("")
    host = bench.host()
    message, _ = bench.cycle(host, ECO)
    assert "1 x 123 W in force" in message
    assert "package-1: the limit in force cannot be read" in message
    assert "rapl/package-1" not in bench.saved
    message, _ = bench.cycle(host, LIFTED)
    assert message.startswith("restored")
    assert bench.limit_w() == 205.0


@pytest.mark.parametrize("cap", [ECO, None])
@pytest.mark.parametrize(
    "damage", ["{", '{"bootId": "00000001-8b1c-4ec5-9d3a-70f4cc4f9f8a", "limits": {}, "version": 2}', "deleted"]
)
def test_h5_lost_state_with_caps_in_force(tmp_path: Path, damage: str, cap: WantedCap | None) -> None:
    bench = Bench(tmp_path, one_socket, gpus=1)
    bench.cycle(bench.host(), ECO)
    if damage == "deleted":
        bench.file.unlink()
    else:
        bench.file.write_text(damage)
    host = bench.host()
    for backend in ("rapl", "nvml"):
        host.recall(ReportedLimits(backend, ECO, complete=True), 100.0)
    if cap is not None:
        bench.cycle(host, cap)
        assert (bench.limit_w(), bench.gpus.limits_w) == (123.0, {"GPU-0": 420.0})
        host = bench.host()
    messages = bench.cycle(host, LIFTED)
    assert all(message.startswith("restored") for message in messages)
    assert (bench.limit_w(), bench.gpus.limits_w) == (205.0, {"GPU-0": 700.0})


@pytest.mark.parametrize("damage", ["{", "deleted"])
def test_h5_what_is_known_of_a_loss_outlives_the_process_that_noticed_it(tmp_path: Path, damage: str) -> None:
    bench = Bench(tmp_path, one_socket, gpus=1)
    bench.cycle(bench.host(), ECO)
    if damage == "deleted":
        bench.file.unlink()
    else:
        bench.file.write_text(damage)
    first = bench.host()
    for backend in ("rapl", "nvml"):
        first.recall(ReportedLimits(backend, ECO, complete=True), 100.0)
    first.observe_cpu(0.0)
    first.enforce_cpu(LIFTED, 0.0)  # it saves what it knows of the CPUs, and is killed before it looks at the GPUs
    messages = bench.cycle(bench.host(), LIFTED)  # meanwhile another report says nothing of the lost caps
    assert all(message.startswith("restored") for message in messages)
    assert (bench.limit_w(), bench.gpus.limits_w) == (205.0, {"GPU-0": 700.0})
    # Whoever sets a limit from now on owns it.
    bench.gpus.limits_w["GPU-0"] = 420.0
    bench.cycle(bench.host(), LIFTED)
    assert bench.gpus.limits_w == {"GPU-0": 420.0}


@pytest.mark.parametrize("garbled", ["", XEON[:-4]])
def test_h5_no_limit_is_judged_without_the_model_whose_range_it_is(tmp_path: Path, garbled: str) -> None:
    """A package that states no maximum has the catalogue's: a short read of the model makes 60 % another cap."""

    def unstated(sys: Path) -> None:
        one_socket(sys)
        for zone in ("intel-rapl:0", "intel-rapl:1"):
            zone_file(sys, zone, "constraint_0_max_power_uw").write_text("0\n")

    bench = Bench(tmp_path, unstated)
    bench.cycle(bench.host(), ECO)
    capped_w = bench.limit_w()
    bench.file.unlink()
    (bench.proc / "cpuinfo").write_text(garbled)
    host = bench.host()
    host.recall(ReportedLimits("rapl", ECO, complete=True), 100.0)
    message, _ = bench.cycle(host, LIFTED)
    assert (message.startswith("restored"), bench.limit_w()) == (False, capped_w)
    (bench.proc / "cpuinfo").write_text(XEON)
    message, _ = bench.cycle(host, LIFTED)
    assert message.startswith("restored")
    assert bench.limit_w() > capped_w


def test_h5_report_of_a_process_that_could_save_nothing_is_no_sign_of_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has written nothing: a limit in force that equals its cap is the administrator's."""
    bench = Bench(tmp_path, one_socket, gpus=2)
    bench.gpus.limits_w["GPU-1"] = 420.0
    with monkeypatch.context() as patched:
        patched.setattr(SavedLimits, "save", raising(OSError(errno.ENOSPC, "No space left on device")))
        host = bench.host()
        host.observe_gpu(0.0)
        outcome = host.enforce_gpu(ECO)
    assert outcome.message.startswith("1 x 420 W in force for a cap of 60 %; GPU-0: limits not changed")
    result = ControlResult(backend=outcome.backend, result=outcome.result, message=outcome.message)
    host = bench.host()
    for reported in reported_limits(result):
        host.recall(reported, math.inf)
    bench.cycle(host, WantedCap(percent=50.0))
    bench.cycle(host, LIFTED)
    assert bench.gpus.limits_w == {"GPU-0": 700.0, "GPU-1": 420.0}


def test_h5_loss_is_no_problem_of_packages_without_a_limit(tmp_path: Path) -> None:
    """As on AMD: nothing of Joulie's can be in force there, however little is known."""
    bench = Bench(tmp_path, trees.amd_energy_only)
    host = bench.host()
    host.recall(ReportedLimits("dvfs"), 100.0)
    message, _ = bench.cycle(host, LIFTED)
    assert message.startswith("restored")


def test_h5_cap_that_outlives_a_change_of_the_boot_id(tmp_path: Path) -> None:
    bench = Bench(tmp_path, one_socket)
    bench.set_limit_w(180.0)
    bench.cycle(bench.host(), ECO)
    bench.boot("00000002-8b1c-4ec5-9d3a-70f4cc4f9f8a")
    bench.cycle(bench.host(), WantedCap(cap_w=100.0))
    bench.cycle(bench.host(), LIFTED)
    assert bench.limit_w() == 180.0


def test_h6_saved_limit_of_0_w(tmp_path: Path) -> None:
    bench = Bench(tmp_path, one_socket, gpus=1)
    bench.cycle(bench.host(), ECO)
    saved = {**bench.saved, "rapl/package-0": 0}
    bench.file.write_text(json.dumps({"bootId": "00000001-8b1c-4ec5-9d3a-70f4cc4f9f8a", "limits": saved}))
    messages = bench.cycle(bench.host(), LIFTED)
    assert "package-0: the limit in force may be a cap" in messages[0]
    assert bench.limit_w() == 123.0
    assert bench.limit_w("intel-rapl:1") == 205.0
    assert messages[1].startswith("restored")
    assert bench.gpus.limits_w == {"GPU-0": 700.0}
