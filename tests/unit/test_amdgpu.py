"""The files of the amdgpu driver: what only this driver does. See tests/contract/test_gpu_backends.py for the rest."""

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.gpu.amdgpu import Amdgpu, AmdgpuMeter
from joulie.ports.devices import ControlFailedError, DeviceKind, NoBackendError, PowerDevice
from joulie_lab.machines.files import MachineFiles
from joulie_lab.machines.library import MACHINES
from joulie_lab.machines.machine import Machine
from support.amdgpu_files import UNIQUE_IDS, AmdgpuFiles, add_amdgpu, add_other_sensors
from support.sysfs_trees import link, write_files

FIRST, SECOND = (f"GPU-{unique}" for unique in UNIQUE_IDS)


@pytest.fixture
def files() -> AmdgpuFiles:
    return AmdgpuFiles()


def test_h12_an_amd_gpu_is_capped_and_measured_without_any_library(tmp_path: Path, files: AmdgpuFiles) -> None:
    add_other_sensors(tmp_path)
    hwmon = add_amdgpu(tmp_path, 0)
    limiter, meter = Amdgpu(tmp_path, files), AmdgpuMeter(tmp_path, files)
    assert limiter.unavailable() is None
    (device,) = limiter.devices()
    assert (device.id, device.model, device.limit_w) == (FIRST, "AMD Instinct MI300X OAM", 700.0)
    assert limiter.set_limit(FIRST, 450.0) == 450.0
    assert (hwmon / "power1_cap").read_text() == "450000000\n"
    assert meter.power_w() == {FIRST: 72.0}


def test_h12_the_partitions_of_one_gpu_are_one_gpu(tmp_path: Path, files: AmdgpuFiles) -> None:
    """In CPX mode an MI300X has eight cards, all but the first on a platform device without sensors."""
    hwmon = add_amdgpu(tmp_path, 0)
    for number in range(1, 8):
        device = tmp_path / f"devices/platform/amdgpu_xcp_{number}"
        write_files(device / f"drm/card{number}", {"uevent": ""})
        link(tmp_path / f"class/drm/card{number}", device / f"drm/card{number}")
    link(tmp_path / "class/hwmon/hwmon9", hwmon)
    assert [device.id for device in Amdgpu(tmp_path, files).devices()] == [FIRST]


@pytest.mark.parametrize(("mode", "divided"), [("SPX", False), ("CPX", True), ("", None)])
def test_a_divided_gpu_says_so_and_where_it_is(
    tmp_path: Path, files: AmdgpuFiles, mode: str, divided: bool | None
) -> None:
    hwmon = add_amdgpu(tmp_path, 0)
    if mode:
        write_files(hwmon.parents[1], {"current_compute_partition": mode})
    (device,) = Amdgpu(tmp_path, files).devices()
    assert (device.mig, device.address) == (divided, "0000:41:00.0")


def test_h12_the_second_die_of_a_board_is_no_gpu_of_its_own(tmp_path: Path, files: AmdgpuFiles) -> None:
    add_amdgpu(tmp_path, 0, product_name=None, device="0x740c")
    add_amdgpu(tmp_path, 1, product_name=None, device="0x740c", power1_cap=0, power1_cap_max=0, power1_input=0)
    assert [device.model for device in Amdgpu(tmp_path, files).devices()] == ["AMD Instinct MI250X"]
    assert set(AmdgpuMeter(tmp_path, files).power_w()) == {FIRST}


def test_graphics_inside_a_cpu_are_no_gpu(tmp_path: Path, files: AmdgpuFiles) -> None:
    add_amdgpu(tmp_path, 0, product_name=None, device="0x164e", power1_cap=None)
    with pytest.raises(NoBackendError, match="no AMD GPU with the driver amdgpu"):
        Amdgpu(tmp_path, files).devices()


def test_a_virtual_function_is_known_and_cannot_be_limited(tmp_path: Path, files: AmdgpuFiles) -> None:
    add_amdgpu(tmp_path, 0, product_name=None, device="0x74b5", power1_cap=None, power1_input=None)
    limiter = Amdgpu(tmp_path, files)
    assert limiter.unavailable() == "no power cap can be read of AMD Instinct MI300X VF"
    assert [device.limit_w for device in limiter.devices()] == [None]
    assert AmdgpuMeter(tmp_path, files).unavailable() == "no AMD GPU reports its power"


def test_an_older_driver_states_no_minimum_and_no_default(tmp_path: Path, files: AmdgpuFiles) -> None:
    add_amdgpu(tmp_path, 0, power1_cap_min=0, power1_cap_default=None, power1_input=None, power1_average=61_000_000)
    (device,) = Amdgpu(tmp_path, files).devices()
    assert (device.min_w, device.max_w, device.default_w) == (None, 800.0, None)
    assert AmdgpuMeter(tmp_path, files).power_w() == {FIRST: 61.0}


def test_a_limit_that_cannot_be_read_is_an_empty_line(tmp_path: Path, files: AmdgpuFiles) -> None:
    add_amdgpu(tmp_path, 0, power1_cap="")
    add_amdgpu(tmp_path, 1)
    limiter = Amdgpu(tmp_path, files)
    assert [(device.id, device.limit_w) for device in limiter.devices()] == [(FIRST, None), (SECOND, 700.0)]
    assert limiter.unavailable() is None


def test_without_a_unique_id_a_gpu_has_its_pci_address(tmp_path: Path, files: AmdgpuFiles) -> None:
    add_amdgpu(tmp_path, 0, unique_id=None)
    add_amdgpu(tmp_path, 1, unique_id="0000000000000000")
    assert [device.id for device in Amdgpu(tmp_path, files).devices()] == ["0000:41:00.0", "0000:42:00.0"]


def test_a_reset_gives_every_hwmon_another_number_and_every_gpu_keeps_its_id(
    tmp_path: Path, files: AmdgpuFiles
) -> None:
    hwmon = add_amdgpu(tmp_path, 0)
    limiter = Amdgpu(tmp_path, files)
    limiter.set_limit(FIRST, 400.0)
    (tmp_path / "class/hwmon" / hwmon.name).unlink()
    renamed = hwmon.rename(hwmon.with_name("hwmon9"))
    link(tmp_path / "class/hwmon/hwmon9", renamed)
    expected = (FIRST, DeviceKind.GPU, "AMD Instinct MI300X OAM", 400.0, 200.0, 800.0, 700.0)
    assert limiter.devices() == [PowerDevice(*expected, address="0000:41:00.0")]


def test_a_write_while_the_gpu_is_reset_may_be_tried_again(tmp_path: Path, files: AmdgpuFiles) -> None:
    add_amdgpu(tmp_path, 0)

    def resetting(_file: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    files.answer = resetting
    with pytest.raises(ControlFailedError, match="Operation not permitted: the GPU is being reset or is asleep"):
        Amdgpu(tmp_path, files).set_limit(FIRST, 400.0)


def test_files_that_cannot_be_written_say_how_to_mount_them(tmp_path: Path) -> None:
    add_amdgpu(tmp_path, 0)

    class ReadOnly(AmdgpuFiles):
        def writable(self, file: Path) -> bool:
            return False

    reason = Amdgpu(tmp_path, ReadOnly()).unavailable() or ""
    assert reason.endswith("power1_cap is not writable: not root, or sysfs is mounted read-only")
    assert AmdgpuMeter(tmp_path, ReadOnly()).unavailable() is None


@pytest.mark.slow
@given(limit_w=st.floats(200.0, 800.0))
def test_any_limit_in_the_range_is_in_force_within_half_a_watt(
    limit_w: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("sys")
    add_amdgpu(folder, 0)
    assert Amdgpu(folder, AmdgpuFiles()).set_limit(FIRST, limit_w) == pytest.approx(limit_w, abs=0.5)


@pytest.mark.parametrize("garbage", [2**63, 2**64 - 1, 2**70])
def test_errors_printed_as_unsigned_are_no_powers(tmp_path: Path, files: AmdgpuFiles, garbage: int) -> None:
    add_amdgpu(tmp_path, 0, power1_cap=garbage, power1_cap_max=garbage, power1_input=garbage)
    (device,) = Amdgpu(tmp_path, files).devices()
    assert (device.limit_w, device.max_w) == (None, None)
    assert AmdgpuMeter(tmp_path, files).power_w() == {}


@pytest.mark.slow
@given(content=st.text(st.characters(codec="utf-8"), max_size=12))
def test_no_content_of_a_file_crashes_a_reading(content: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("sys")
    files = ("unique_id", "power1_cap", "power1_cap_max", "power1_input", "device", "product_name")
    add_amdgpu(folder, 0, **dict.fromkeys(files, content))
    limiter, meter = Amdgpu(folder, AmdgpuFiles()), AmdgpuMeter(folder, AmdgpuFiles())
    if limiter.unavailable() is None:
        assert all(device.limit_w for device in limiter.devices())
    if meter.unavailable() is None:
        assert all(power_w >= 0.0 for power_w in meter.power_w().values())


def test_a_gpu_keeps_its_id_when_that_cannot_be_read() -> None:
    """A limit saved under another id would never be restored."""
    machine = Machine(MACHINES["mi300x"])
    files, sys = MachineFiles(machine, lambda: 0.0), Path("/machine/sys")
    garbage: dict[str, str] = {}
    read = files.read
    files.read = lambda file: garbage.get(file.name) or read(file)
    first = Amdgpu(sys, files)
    for unreadable in ("1 2\n", "0x10\n"):
        garbage["unique_id"] = unreadable
        assert all(device.limit_w is None for device in first.devices()), "not known by its id yet"
    garbage.clear()
    ids = [device.id for device in first.devices()]
    assert ids[0] == "GPU-0000000000001000"
    garbage |= {"unique_id": "1 2\n", "name": "NaN\n"}
    assert [device.id for device in first.devices()] == ids


@pytest.mark.parametrize(("file", "shown"), [("product_name", "AMD"), ("unique_id", "00000000000"), ("device", "")])
def test_h5_a_short_read_gives_a_gpu_neither_another_id_nor_another_model(file: str, shown: str) -> None:
    """The range of a model that is not known allows other caps, which no later process recognises."""
    machine = Machine(MACHINES["mi300x"])
    files, sys = MachineFiles(machine, lambda: 0.0), Path("/machine/sys")
    first = Amdgpu(sys, files).devices()
    read, short = files.read, {file, "product_name"} if file == "device" else {file}
    files.read = lambda path: shown if path.name in short else read(path)
    limiter = Amdgpu(sys, files)
    assert all(device.limit_w is None for device in limiter.devices())
    files.read = read
    assert limiter.devices() == first


@pytest.mark.parametrize("garbage", ["<unknown>\n", "NaN\n", "-1\n", "102-G30211-00\n"])
def test_h5_a_known_board_with_another_name_is_that_board(garbage: str) -> None:
    """The catalogue's smallest limit is found by the model, which is kept for as long as the process runs."""
    machine = Machine(MACHINES["mi300x"])
    files, sys = MachineFiles(machine, lambda: 0.0), Path("/machine/sys")
    read = files.read
    files.read = lambda path: garbage if path.name == "product_name" else read(path)
    assert {device.model for device in Amdgpu(sys, files).devices()} == {"AMD Instinct MI300X"}


@pytest.mark.parametrize("garbage", ["<unknown>\n", "\n"])
def test_h5_a_device_id_that_is_none_identifies_no_gpu(garbage: str) -> None:
    machine = Machine(MACHINES["mi300x"])
    files, sys = MachineFiles(machine, lambda: 0.0), Path("/machine/sys")
    read = files.read
    files.read = lambda path: garbage if path.name in {"product_name", "device"} else read(path)
    limiter = Amdgpu(sys, files)
    assert all(device.limit_w is None for device in limiter.devices())
    files.read = read
    assert {device.model for device in limiter.devices()} == {"AMD Instinct MI300X"}


def test_a_gpu_whose_driver_cannot_be_read_is_listed_without_a_limit() -> None:
    """Left out, a cap on the other GPUs would pass for a cap on all."""
    machine = Machine(MACHINES["mi300x"])
    files, sys = MachineFiles(machine, lambda: 0.0), Path("/machine/sys")
    read = files.read
    names = [files.resolve(sys / "class/hwmon" / entry) / "name" for entry in files.names(sys / "class/hwmon")]
    gpu = next(file for file in names if read(file) == "amdgpu\n")
    files.read = lambda file: "NaN\n" if files.resolve(file) == gpu else read(file)
    found = Amdgpu(sys, files).devices()
    assert len(found) == machine.spec.gpus
    assert [device.limit_w for device in found].count(None) == 1


def test_h4_a_class_that_cannot_be_listed_is_not_a_machine_without_gpus(tmp_path: Path) -> None:
    """Else the node has no GPUs for a cycle, and the report of their caps is replaced by that."""
    add_amdgpu(tmp_path, 0)

    class Failing(AmdgpuFiles):
        def names(self, folder: Path) -> Sequence[str]:
            raise OSError(errno.EBUSY, "Device or resource busy")

    for read in (Amdgpu(tmp_path, Failing()).devices, AmdgpuMeter(tmp_path, Failing()).power_w):
        with pytest.raises(ControlFailedError, match="busy") as failed:
            read()
        assert not isinstance(failed.value, NoBackendError)
    assert "busy" in (Amdgpu(tmp_path, Failing()).unavailable() or "")
    assert "busy" in (AmdgpuMeter(tmp_path, Failing()).unavailable() or "")


def test_graphics_whose_cap_cannot_be_read_are_listed_without_a_limit(tmp_path: Path) -> None:
    add_amdgpu(tmp_path, 0)
    hwmon = add_amdgpu(tmp_path, 1, product_name=None, device=None)

    class Failing(AmdgpuFiles):
        def read(self, file: Path) -> str:
            if self.resolve(file) == hwmon / "power1_cap":
                raise OSError(errno.EIO, "Input/output error")
            return super().read(file)

    assert [device.limit_w for device in Amdgpu(tmp_path, Failing()).devices()] == [700.0, None]


@pytest.mark.parametrize("file", ["power1_cap_min", "power1_cap_max", "power1_cap_default"])
def test_h5_limit_is_unreadable_while_its_range_is(tmp_path: Path, file: str) -> None:
    """A cap below the smallest limit is clamped: without that, the limit in force looks like somebody else's."""
    garbled = add_amdgpu(tmp_path, 0) / file
    add_amdgpu(tmp_path, 1)
    garbled.write_text("")
    assert [device.limit_w for device in Amdgpu(tmp_path, AmdgpuFiles()).devices()] == [None, 700.0]
    garbled.unlink()
    assert [device.limit_w for device in Amdgpu(tmp_path, AmdgpuFiles()).devices()] == [700.0, 700.0]


def test_a_limit_above_the_largest_is_none(tmp_path: Path, files: AmdgpuFiles) -> None:
    """Taken for the original, it would let a cap raise the limit that is really in force."""
    add_amdgpu(tmp_path, 0, power1_cap=2**64 - 1)
    (device,) = Amdgpu(tmp_path, files).devices()
    assert device.limit_w is None
