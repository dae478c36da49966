"""What every backend of GPUs does: NVML and AMD SMI over libraries of our own, the amdgpu driver's files, rocm-smi."""

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from joulie.adapters.gpu.amdgpu import Amdgpu, AmdgpuMeter
from joulie.adapters.gpu.amdsmi import AmdSmi, AmdSmiMeter
from joulie.adapters.gpu.nvml import Nvml, NvmlMeter
from joulie.adapters.gpu.process import LibraryProcess
from joulie.adapters.gpu.rocm_smi import RocmSmi
from joulie.adapters.gpu.session import GpuSession
from joulie.domain.quantities import InvalidQuantityError
from joulie.ports.devices import (
    ControlFailedError,
    ControlRefusedError,
    DeviceKind,
    NoBackendError,
    PowerLimiter,
    PowerSource,
)
from support import fake_gpus
from support.amdgpu_files import AmdgpuFiles, add_amdgpu, add_other_sensors

pytestmark = pytest.mark.slow


@dataclass
class Machine:
    """Two GPUs of 200 to 800 W, 700 W by default, through one backend.

    Attributes:
        limiter: the backend.
        meter: its power source; None without one.
        limit_w: the limit that a GPU really has, W.
        refuse: lets a GPU refuse limits from now on.
        ignore: lets a GPU take limits without effect.
        lose: takes a GPU off the bus.
        remove: removes driver and GPUs, before the backend is first used.
    """

    limiter: PowerLimiter
    meter: PowerSource | None
    limit_w: Callable[[int], float]
    refuse: Callable[[int], None]
    ignore: Callable[[int], None]
    lose: Callable[[int], None]
    remove: Callable[[], None]
    clock: list[float]

    def ids(self) -> list[str]:
        self.clock[0] += 10.0
        return [device.id for device in self.limiter.devices()]


def _library(vendor: str, library: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    lost, no_permission = {"nvml": (15, 4), "amdsmi": (12, 10)}[vendor]
    fake = fake_gpus.install(library, folder, monkeypatch)
    clock = [0.0]
    session = GpuSession(LibraryProcess(vendor, vendor, lambda: clock[0]), lambda: clock[0])
    limiter, meter = (
        (Nvml(session), NvmlMeter(session)) if vendor == "nvml" else (AmdSmi(session), AmdSmiMeter(session))
    )
    yield Machine(
        limiter,
        meter,
        lambda gpu: fake.read(gpu, "set_mw") / 1000,
        lambda gpu: fake.write(gpu, fail_set=no_permission),
        lambda gpu: fake.write(gpu, ignore_set=1),
        lambda gpu: fake.write(gpu, fail_all=lost),
        lambda: monkeypatch.setenv("LD_LIBRARY_PATH", str(folder / "nowhere")),
        clock,
    )
    session.close()


def _amdgpu(folder: Path) -> Iterator[Machine]:
    add_other_sensors(folder)
    hwmons = [add_amdgpu(folder, index) for index in range(2)]
    files = AmdgpuFiles()

    def refuse(gpu: int) -> None:
        def answer(file: Path) -> None:
            if file.parent == hwmons[gpu]:
                raise OSError(errno.EACCES, "Permission denied")

        files.answer = answer

    yield Machine(
        Amdgpu(folder, files),
        AmdgpuMeter(folder, files),
        lambda gpu: int((hwmons[gpu] / "power1_cap").read_text()) / 1e6,
        refuse,
        lambda gpu: files.ignored.add(hwmons[gpu] / "power1_cap"),
        lambda gpu: (folder / "class/hwmon" / hwmons[gpu].name).unlink(),
        lambda: [(folder / "class/hwmon" / hwmon.name).unlink() for hwmon in hwmons] and None,
        [0.0],
    )


ROCM_SMI = r"""#!/bin/sh
cd "$(dirname "$0")" || exit 1
case "$*" in
*--showmaxpower*)
    printf '{'
    for card in card*; do
        printf '"%s": {"Max Graphics Package Power (W)": "%s", "Unique ID": "0x%s", ' "$card" "$(cat "$card")" "$card"
        printf '"Card Series": "AMD Instinct MI300X"}, '
    done
    printf '"system": {"Driver version": "6.8"}}'
    ;;
*--setpoweroverdrive*)
    if [ -e "refuses$2" ]; then
        echo "GPU[$2]: Permission denied"
    elif [ "$4" -lt 200 ] || [ "$4" -gt 800 ]; then
        echo "ERROR: GPU[$2]: Value is out of range"
    elif [ ! -e "ignores$2" ]; then
        echo "$4.0" > "card$2"
    fi
    ;;
esac
"""


def _rocm_smi(folder: Path) -> Iterator[Machine]:
    command = folder / "rocm-smi"
    command.write_text(ROCM_SMI)
    command.chmod(0o755)
    for card in range(2):
        (folder / f"card{card}").write_text("700.0")
    clock = [0.0]
    yield Machine(
        RocmSmi(str(command), lambda: clock[0]),
        None,
        lambda gpu: float((folder / f"card{gpu}").read_text()),
        lambda gpu: (folder / f"refuses{gpu}").touch(),
        lambda gpu: (folder / f"ignores{gpu}").touch(),
        lambda gpu: (folder / f"card{gpu}").unlink(),
        command.unlink,
        clock,
    )


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("libraries")
    return {vendor: fake_gpus.build(folder, f"fake_{vendor}") for vendor in ("nvml", "amdsmi")}


@pytest.fixture(params=["nvml", "amdsmi", "amdgpu", "rocm-smi"])
def machine(
    request: pytest.FixtureRequest, libraries: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machine]:
    if request.param in libraries:
        yield from _library(request.param, libraries[request.param], tmp_path, monkeypatch)
    else:
        yield from (_amdgpu if request.param == "amdgpu" else _rocm_smi)(tmp_path)


def test_every_gpu_is_listed_with_its_limit(machine: Machine) -> None:
    assert machine.limiter.unavailable() is None
    devices = machine.limiter.devices()
    assert [(device.kind, device.limit_w) for device in devices] == [(DeviceKind.GPU, 700.0)] * 2
    assert len({device.id for device in devices}) == 2
    assert all(device.model for device in devices)
    if machine.limiter.name != "rocm-smi":
        assert {(device.min_w, device.max_w, device.default_w) for device in devices} == {(200.0, 800.0, 700.0)}


def test_a_limit_goes_to_one_gpu_and_is_read_back(machine: Machine) -> None:
    first, second = machine.ids()
    assert machine.limiter.set_limit(second, 420.0) == 420.0
    assert [machine.limit_w(gpu) for gpu in range(2)] == [700.0, 420.0]
    assert [device.limit_w for device in machine.limiter.devices()] == [700.0, 420.0]
    assert machine.ids() == [first, second], "ids and order stay"
    assert machine.limiter.set_limit(second, 700.0) == 700.0


def test_a_fraction_of_a_watt_may_be_rounded(machine: Machine) -> None:
    first, _ = machine.ids()
    assert machine.limiter.set_limit(first, 420.4) == pytest.approx(420.4, abs=0.5)


def test_a_limit_without_effect_is_no_success(machine: Machine) -> None:
    first, second = machine.ids()
    machine.ignore(0)
    with pytest.raises(ControlFailedError, match=r"700(\.0)? W i(s|n)"):
        machine.limiter.set_limit(first, 400.0)
    assert machine.limiter.set_limit(second, 400.0) == 400.0


def test_a_gpu_that_refuses_says_so_and_the_other_is_limited(machine: Machine) -> None:
    first, second = machine.ids()
    machine.refuse(0)
    with pytest.raises(ControlRefusedError, match=f"set 400 W on GPU {first}: .*[Pp]ermission"):
        machine.limiter.set_limit(first, 400.0)
    assert machine.limiter.set_limit(second, 400.0) == 400.0
    assert [machine.limit_w(gpu) for gpu in range(2)] == [700.0, 400.0]


@pytest.mark.parametrize("limit_w", [100.0, 900.0])
def test_a_limit_outside_the_range_changes_nothing(machine: Machine, limit_w: float) -> None:
    first, _ = machine.ids()
    with pytest.raises((ControlFailedError, ControlRefusedError)):
        machine.limiter.set_limit(first, limit_w)
    assert machine.limit_w(0) == 700.0


def test_a_gpu_that_is_not_there_fails(machine: Machine) -> None:
    with pytest.raises(ControlFailedError, match="GPU-0"):
        machine.limiter.set_limit("GPU-0", 400.0)


@pytest.mark.parametrize("limit_w", [float("nan"), 0.0, -1.0])
def test_a_limit_that_is_none_is_refused(machine: Machine, limit_w: float) -> None:
    first, _ = machine.ids()
    with pytest.raises(InvalidQuantityError, match="limit_w"):
        machine.limiter.set_limit(first, limit_w)


def test_a_lost_gpu_is_left_out_and_the_other_stays_under_control(machine: Machine) -> None:
    first, second = machine.ids()
    machine.lose(0)
    assert machine.ids() == [second]
    assert machine.limiter.unavailable() is None
    assert machine.limiter.set_limit(second, 300.0) == 300.0
    with pytest.raises(ControlFailedError, match=first):
        machine.limiter.set_limit(first, 300.0)


def test_without_the_driver_there_is_no_backend(machine: Machine) -> None:
    machine.remove()
    assert machine.limiter.unavailable() is not None
    with pytest.raises(NoBackendError):
        machine.limiter.devices()
    if machine.meter is not None:
        assert machine.meter.unavailable() is not None


@pytest.mark.parametrize("machine", ["nvml", "amdsmi", "amdgpu"], indirect=True)
def test_the_power_of_each_gpu_is_measured_and_missing_is_not_zero(machine: Machine) -> None:
    assert machine.meter is not None
    first, second = machine.ids()
    assert machine.meter.unavailable() is None
    assert _measured(machine.meter) == {first, second}
    machine.lose(0)
    machine.clock[0] += 10.0
    assert _measured(machine.meter) == {second}


def _measured(meter: PowerSource) -> set[str]:
    """GPUs with energy or power, all positive."""
    energy_j = {reading.device_id: reading.energy_j for reading in meter.energy()}
    values = energy_j | meter.power_w()
    assert all(value > 0.0 for value in values.values())
    return set(values)
