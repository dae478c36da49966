"""`joulie agent inspect`: what it says of machines, and that it leaves them alone."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.adapters.cpu import cpuinfo
from joulie.adapters.cpu.cpufreq import Cpufreq
from joulie.adapters.cpu.rapl import Rapl, RaplMeter
from joulie.adapters.gpu.pci import NVIDIA
from joulie.apps.agent import inspection
from joulie.apps.agent.gpus import GpuBackends
from joulie.apps.agent.inspection import inspected
from joulie.apps.agent.main import agent, host_backends
from joulie.apps.agent.settings import AgentSettings
from joulie.domain.actuation import WantedCap
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.ports.devices import ControlFailedError, DeviceKind, NoBackendError, PowerDevice
from joulie_lab.benchmarks.lives.bed import Bed, small
from joulie_lab.benchmarks.lives.faults import Faults
from joulie_lab.machines.files import MachineFiles
from joulie_lab.machines.library import MACHINES
from joulie_lab.machines.specs import Load
from support import sysfs_trees as trees

pytestmark = pytest.mark.slow

INTEL = "vendor_id\t: GenuineIntel\nmodel name\t: INTEL(R) XEON(R) GOLD 6530\n"
EPYC = "vendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9654 96-Core Processor\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0xc0\n"


def machine(tmp_path: Path, cpuinfo: str | None, build: Callable[[Path], Path] = lambda sys: sys) -> list[str]:
    """Options for a machine of files."""
    folders = {name: tmp_path / name for name in ("sys", "proc", "dev")}
    for folder in folders.values():
        folder.mkdir()
    build(folders["sys"])
    if cpuinfo is not None:
        (folders["proc"] / "cpuinfo").write_text(cpuinfo)
    return [part for name, folder in folders.items() for part in (f"--host-{name}", str(folder))]


def inspect(options: list[str], *more: str) -> Any:
    result = CliRunner().invoke(agent, ["inspect", *options, "-o", "json", *more], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def usable(found: Any) -> list[str]:
    return [backend["name"] for backend in found["cpu"]["backends"] if backend["usable"]]


def cap(found: Any) -> Any:
    return found["would_cap"]["at_pct"]["60"]


def contents(folder: Path) -> dict[str, str]:
    return {str(file): file.read_text() for file in sorted(folder.rglob("*")) if file.is_file()}


def two_sockets(sys: Path) -> Path:
    trees.add_topology(sys, cpus=8, sockets=2, threads_per_core=2)
    return trees.intel_two_sockets(sys)


def test_two_sockets_by_rapl_and_nothing_is_written(tmp_path: Path) -> None:
    options = machine(tmp_path, INTEL, two_sockets)
    before = contents(tmp_path)
    found = inspect(options)
    assert contents(tmp_path) == before
    assert list(found) == ["cpu", "gpus", "would_cap", "problems"]
    cpu = found["cpu"]
    assert (cpu["vendor"], cpu["sockets"], cpu["cores"], cpu["threads"]) == ("intel", 2, 4, 8)
    assert "6530" in cpu["model"]
    assert (cpu["cap_range_w"], cpu["limits_w"]) == ([41.0, 205.0], [205.0, 205.0])
    # Neither DRAM nor psys nor the copies of intel-rapl-mmio belong to the power of the CPUs.
    assert cpu["power"] == {"source": "rapl", "zones": ["package-0", "package-1"], "unusable": {}}
    assert usable(found) == ["rapl"]
    assert [backend["name"] for backend in cpu["backends"]] == ["rapl", "hsmp", "dvfs"]
    assert cap(found) == {"cpu_w": 123.0, "gpu_w": {}, "backend": "rapl"}


def test_dies_are_added_up_to_sockets(tmp_path: Path) -> None:
    found = inspect(machine(tmp_path, INTEL, trees.intel_multi_die))
    assert (found["cpu"]["sockets"], found["cpu"]["limits_w"]) == (2, [400.0, 400.0])
    assert found["cpu"]["cap_range_w"] == [80.0, 400.0]
    assert cap(found)["cpu_w"] == 240.0


def test_zones_of_other_parts_are_no_packages(tmp_path: Path) -> None:
    def build(sys: Path) -> Path:
        return trees.add_powercap(sys, "intel-rapl", [trees.Zone("psys", limit_w=400.0), trees.Zone("dram")])

    found = inspect(machine(tmp_path, INTEL, build))
    why = found["cpu"]["backends"][0]["why"]
    assert why.endswith("/class/powercap, only dram, psys"), "not that a container runtime hides them"
    assert (cap(found)["cpu_w"], found["cpu"]["power"]["source"]) == (None, None)


def test_a_socket_whose_cpus_are_offline_is_a_socket(tmp_path: Path) -> None:
    def build(sys: Path) -> Path:
        trees.add_topology(sys, cpus=2, sockets=1)
        return trees.add_powercap(sys, "intel-rapl", [trees.package(0), trees.package(1)])

    found = inspect(machine(tmp_path, INTEL, build))
    assert (found["cpu"]["sockets"], found["cpu"]["limits_w"]) == (2, [205.0, 205.0])
    assert "CPU: CPUs of 1 of 2 sockets are online" in found["problems"]
    assert not any("listed as packages" in problem for problem in found["problems"])


@pytest.mark.parametrize("text", ["0", "", "-1", "x"])
def test_h4_a_limit_that_cannot_be_read_is_unknown_and_never_written(tmp_path: Path, text: str) -> None:
    options = machine(tmp_path, INTEL, two_sockets)
    limit = "constraint_0_power_limit_uw"
    trees.zone_file(tmp_path / "sys", "intel-rapl:0", limit).write_text(text)
    found = inspect(options)
    assert (found["cpu"]["limits_w"], cap(found)["cpu_w"]) == ([None, 205.0], 123.0)
    assert "CPU: package-0: the limit in force cannot be read, so it is never written" in found["problems"]
    trees.zone_file(tmp_path / "sys", "intel-rapl:2", limit).write_text(text)
    assert cap(inspect(options))["cpu_w"] is None


def test_ranges_have_no_noise_of_floats(tmp_path: Path) -> None:
    def build(sys: Path) -> Path:
        return trees.add_powercap(sys, "intel-rapl-mmio", [trees.package(0, 28.0, 28.0)])

    found = inspect(machine(tmp_path, INTEL, build))
    assert (found["cpu"]["cap_range_w"], cap(found)["cpu_w"]) == ([5.6, 28.0], 16.8)


def test_limit_that_is_lower_already_stays(tmp_path: Path) -> None:
    def build(sys: Path) -> Path:
        return trees.add_powercap(sys, "intel-rapl", [trees.package(0, 100.0, 205.0), trees.package(1, 90.0, 205.0)])

    assert cap(inspect(machine(tmp_path, INTEL, build)))["cpu_w"] == 100.0


def test_epyc_without_hsmp_is_capped_by_frequency(tmp_path: Path) -> None:
    def build(sys: Path) -> Path:
        trees.add_topology(sys, cpus=8, sockets=2)
        return trees.amd_pstate(trees.amd_energy_only(sys))

    found = inspect(machine(tmp_path, EPYC, build))
    cpu = found["cpu"]
    assert (cpu["tdp_w"], cpu["cap_range_w"], cpu["limits_w"]) == (360.0, [72.0, 400.0], [None, None])
    assert cpu["power"]["zones"] == ["package-0", "package-1"]
    assert usable(found) == ["dvfs"]
    why = {backend["name"]: backend["why"] for backend in cpu["backends"]}
    assert "energy only" in why["rapl"]
    assert "no " in why["hsmp"]
    assert why["dvfs"] is None
    assert cap(found) == {"cpu_w": 216.0, "gpu_w": {}, "backend": "dvfs"}


def test_h3_one_unreadable_package_is_no_source(tmp_path: Path) -> None:
    options = machine(tmp_path, INTEL, two_sockets)
    trees.zone_file(tmp_path / "sys", "intel-rapl:2", "energy_uj").write_text("")
    found = inspect(options)
    power = found["cpu"]["power"]
    assert (power["source"], power["zones"], list(power["unusable"])) == (None, ["package-0"], ["package-1"])
    assert any("package-1" in problem for problem in found["problems"])


def test_arm_without_rapl(tmp_path: Path) -> None:
    def build(sys: Path) -> Path:
        trees.add_topology(sys, cpus=4, sockets=1)
        return trees.add_cpufreq(sys, "cppc_cpufreq", {cpu: [cpu] for cpu in range(4)}, (1_000_000, 3_000_000))

    found = inspect(machine(tmp_path, ARM, build))
    cpu = found["cpu"]
    unknown = (cpu["model"], cpu["vendor"], cpu["tdp_w"], cpu["cap_range_w"], cpu["power"]["source"])
    assert unknown == (None,) * 5
    assert cpu["limits_w"] == [None]
    assert usable(found) == ["dvfs"]
    assert cap(found) == {"cpu_w": None, "gpu_w": {}, "backend": "dvfs"}


@pytest.mark.parametrize("build", [trees.virtual_machine, trees.masked])
def test_virtual_machine_and_container(tmp_path: Path, build: Callable[[Path], Path]) -> None:
    found = inspect(machine(tmp_path, INTEL, build))
    assert usable(found) == []
    assert cap(found) == {"cpu_w": None, "gpu_w": {}, "backend": None}
    assert "CPU: no backend can cap it" in found["problems"]


def test_what_is_unknown_has_no_unit(tmp_path: Path) -> None:
    nowhere = ["--host-sys", str(tmp_path / "no"), "--host-proc", str(tmp_path / "no"), "--host-dev", "/no"]
    lines = CliRunner().invoke(agent, ["inspect", *nowhere], catch_exceptions=False).output.splitlines()
    assert "TDP       unknown, cap range unknown" in lines
    assert "60 % cap  unknown" in lines


def test_nothing_at_all(tmp_path: Path) -> None:
    found = inspect(["--host-sys", str(tmp_path / "no"), "--host-proc", str(tmp_path / "no"), "--host-dev", "/no"])
    cpu = found["cpu"]
    assert [cpu[key] for key in ("model", "vendor", "sockets", "cores", "threads", "limits_w")] == [None] * 6


def test_device_file_that_is_no_hsmp(tmp_path: Path) -> None:
    options = machine(tmp_path, EPYC, trees.amd_energy_only)
    (tmp_path / "dev/hsmp").write_text("")
    hsmp = inspect(options)["cpu"]["backends"][1]
    assert hsmp["usable"] is False
    assert str(tmp_path / "dev/hsmp") in hsmp["why"]


def test_table_and_yaml(tmp_path: Path) -> None:
    options = machine(tmp_path, INTEL, two_sockets)
    text = CliRunner().invoke(agent, ["inspect", *options], catch_exceptions=False).output
    assert "60 % cap  123 W a socket by rapl" in text
    document = CliRunner().invoke(agent, ["inspect", *options, "-o", "yaml"], catch_exceptions=False).output
    assert yaml.safe_load(document) == inspect(options)


def test_agent_alone_still_runs() -> None:
    result = CliRunner().invoke(agent, [], env={"NODE_NAME": ""})
    assert "NODE_NAME is required" in result.output


class Gpus:
    """Two GPUs; a `PowerLimiter`."""

    name = "nvml"

    def __init__(self, error: ControlFailedError | None = None) -> None:
        self.error = error

    def unavailable(self) -> str | None:
        return str(self.error) if self.error else None

    def devices(self) -> list[PowerDevice]:
        if self.error:
            raise self.error
        return [
            PowerDevice("GPU-0", DeviceKind.GPU, "NVIDIA H100 80GB HBM3", 700.0, 200.0, 700.0, 700.0),
            PowerDevice("GPU-1", DeviceKind.GPU, "NVIDIA Z9", 250.0, 100.0, 500.0, 450.0),
        ]

    def set_limit(self, device_id: str, limit_w: float) -> float:
        raise AssertionError("inspecting writes nothing")


def with_gpus(tmp_path: Path, gpus: Gpus) -> Any:
    agent_settings = AgentSettings(node_name="n1", host_sys=tmp_path, host_proc=tmp_path, host_dev=tmp_path)
    return inspected(replace(host_backends(agent_settings, BUILTIN_CATALOGUE), gpus=(GpuBackends(NVIDIA, (gpus,)),)))


def test_gpus_of_the_catalogue_and_others(tmp_path: Path) -> None:
    found = with_gpus(tmp_path, Gpus())
    known, other = found["gpus"]
    assert (known["uuid"], known["vendor"], known["limit_w"], known["default_w"]) == ("GPU-0", "nvidia", 700.0, 700.0)
    assert (known["range_w"], other["range_w"]) == ([200.0, 700.0], [100.0, 500.0])
    assert known["backends"] == [{"name": "nvml", "usable": True, "why": None}]
    # 60 % of 450 W would be 270 W, but 250 W are in force.
    assert cap(found)["gpu_w"] == {"GPU-0": 420.0, "GPU-1": 250.0}


@pytest.mark.parametrize(
    ("cap_uw", "low_uw", "high_uw", "cap_w", "problem"),
    [
        (750_000_000, 750_000_000, 750_000_000, 750.0, None),  # minimum and maximum are equal: nothing to lower
        (200_000_000, 0, 0, None, "GPU GPU-00000000000000ab: neither it nor the catalogue states"),
        ("", 100_000_000, 750_000_000, None, "GPUs: no backend can cap those of AMD"),
    ],
)
def test_gpus_that_cannot_be_capped(
    tmp_path: Path, cap_uw: object, low_uw: int, high_uw: int, cap_w: float | None, problem: str | None
) -> None:
    device = tmp_path / "sys/devices/pci0000:00/0000:01:00.0"
    options = machine(tmp_path, EPYC)
    trees.write_files(device, {"vendor": "0x1002", "unique_id": "00000000000000ab", "product_name": "Odd Card"})
    limits = {"power1_cap": cap_uw, "power1_cap_min": low_uw, "power1_cap_max": high_uw}
    default = {"power1_cap_default": high_uw} if high_uw else {}
    trees.write_files(device / "hwmon/hwmon1", {"name": "amdgpu", **limits, **default})
    trees.link(device / "hwmon/hwmon1/device", device)
    trees.link(tmp_path / "sys/class/hwmon/hwmon1", device / "hwmon/hwmon1")
    found = inspect(options)
    assert cap(found)["gpu_w"] == {"GPU-00000000000000ab": cap_w}
    about = [one for one in found["problems"] if one.startswith("GPU")]
    assert len(about) == (problem is not None)
    assert (problem or "") in "".join(about)


def test_gpu_driver_that_does_not_answer_is_a_problem(tmp_path: Path) -> None:
    found = with_gpus(tmp_path, Gpus(ControlFailedError("Driver/library version mismatch")))
    assert found["gpus"] == []
    assert "GPUs: nvml: Driver/library version mismatch" in found["problems"]


def test_gpus_without_a_driver_in_the_container_are_a_problem(tmp_path: Path) -> None:
    device = tmp_path / "bus/pci/devices/0000:19:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    found = with_gpus(tmp_path, Gpus(NoBackendError("libnvidia-ml.so.1 not found")))
    problem = "GPUs: 1 NVIDIA on the PCI bus, but no driver responds: nvml: libnvidia-ml.so.1 not found"
    assert problem in found["problems"]


def test_gpu_driver_that_hangs_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    gpus = Gpus()
    monkeypatch.setattr(gpus, "unavailable", lambda: str(ended.wait()))
    monkeypatch.setattr(inspection, "GPU_PATIENCE_S", 0.0)
    assert "have not responded" in " ".join(with_gpus(tmp_path, gpus)["problems"])
    ended.set()


@pytest.mark.parametrize("name", MACHINES)
def test_every_modelled_machine_is_capped_as_its_inspection_says(tmp_path: Path, name: str) -> None:
    bed = Bed(small(MACHINES[name]), Load.parse("0.5"), Faults(), tmp_path)
    found = inspected(bed.backends())
    cpu, planned = found["cpu"], cap(found)
    spec = MACHINES[name]
    assert cpu["sockets"] == spec.sockets
    assert (cpu["power"]["source"] is None) is (spec.rapl is None)
    outcome, _ = bed.cycle(WantedCap(percent=60.0))
    if spec.hsmp and spec.hsmp.min_w > planned["cpu_w"]:
        return  # HSMP states no minimum: only the attempt shows that it does not go so low
    assert outcome.backend == (planned["backend"] or "none")
    if planned["backend"] in {"rapl", "hsmp"}:
        limits_w = inspected(bed.backends())["cpu"]["limits_w"]
        assert limits_w == pytest.approx([planned["cpu_w"]] * spec.sockets, abs=1.0)


def test_user_without_privileges_gets_reasons(tmp_path: Path) -> None:
    bed = Bed(small(MACHINES["xeon-8380"]), Load.parse("0.5"), Faults(), tmp_path)
    files = MachineFiles(bed.machine, lambda: 0.0, privileged=False)
    sys, proc = Path("/machine/sys"), Path("/machine/proc")
    found = inspected(
        replace(
            bed.backends(),
            cpu_info=partial(cpuinfo.read, proc, sys, files),
            cpu_limiters=(Rapl(sys, files),),
            frequency=Cpufreq(sys, files),
            cpu_meters=(RaplMeter(sys, files),),
        )
    )
    cpu = found["cpu"]
    assert (usable(found), cpu["limits_w"]) == ([], [270.0, 270.0])
    assert list(cpu["power"]["unusable"]) == ["package-0", "package-1"]
    assert all("needs root" in why for why in cpu["power"]["unusable"].values())
    assert all("needs root" in backend["why"] for backend in cpu["backends"])


@settings(max_examples=25)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "name",
                "energy_uj",
                "max_energy_range_uj",
                "enabled",
                "constraint_0_name",
                "constraint_0_power_limit_uw",
                "constraint_0_max_power_uw",
            ]
        ),
        st.sampled_from(["", "-1", "nan", "x", "0", "9" * 30, "package-0", "package-1", "long_term", "\x00"]),
    ),
    st.sampled_from(["", "model name\t: \n", "\x00\x01", EPYC, ARM]),
)
def test_no_content_of_files_ends_it(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, str], cpuinfo: str
) -> None:
    tmp_path = tmp_path_factory.mktemp("machine")
    machine(tmp_path, cpuinfo, two_sockets)
    for name, text in files.items():
        trees.zone_file(tmp_path / "sys", "intel-rapl:0", name).write_text(text)
    host = AgentSettings(
        node_name="inspect",
        host_sys=tmp_path / "sys",
        host_proc=tmp_path / "proc",
        host_dev=tmp_path / "dev",
    )
    # Each look at GPUs starts a process for each driver, which none of these files reaches.
    found = inspected(replace(host_backends(host, BUILTIN_CATALOGUE), gpus=()))
    json.dumps(found)
    assert all(limit_w is None or limit_w >= 0.0 for limit_w in found["cpu"]["limits_w"])
