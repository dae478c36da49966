"""NVML by the real nvidia-ml-py against a library of our own."""

import ctypes
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pynvml
import pytest

from joulie.adapters.gpu.nvml import Nvml, NvmlMeter, NvmlSession
from joulie.domain.quantities import InvalidQuantityError
from joulie.ports import ControlFailedError, ControlRefusedError, DeviceKind, EnergyReading, PowerDevice
from support import fake_nvml
from support.fake_nvml import FakeNvml

FIRST, SECOND = (f"GPU-00000000-0000-0000-0000-{number:012}" for number in range(2))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    return FakeNvml(fake_nvml.build(tmp_path_factory.mktemp("nvml")))


@pytest.fixture
def driver(library: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    """Two GPUs; whoever loads libnvidia-ml.so.1 gets the fake one."""
    load = ctypes.CDLL

    def fake_load(name: str, *args: Any, **options: Any) -> ctypes.CDLL:
        return load(str(library.path) if name == "libnvidia-ml.so.1" else name, *args, **options)

    monkeypatch.setattr(ctypes, "CDLL", fake_load)
    monkeypatch.setattr(pynvml, "CDLL", fake_load)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    library.reset(gpus=2)
    yield library
    library.reset(gpus=0)


@pytest.fixture
def nvml(driver: FakeNvml) -> Nvml:
    return Nvml()


def test_devices(nvml: Nvml) -> None:
    """Trap: 100 % is the default limit, not the maximum."""
    assert nvml.unavailable() is None
    assert nvml.devices() == [
        PowerDevice(
            uuid, DeviceKind.GPU, "NVIDIA H100 80GB HBM3", limit_w=700.0, min_w=200.0, max_w=800.0, default_w=700.0
        )
        for uuid in (FIRST, SECOND)
    ]


def test_a_limit_goes_to_one_gpu(nvml: Nvml, driver: FakeNvml) -> None:
    assert nvml.set_limit(SECOND, 420.5) == 420.5
    assert [driver.read(gpu, "set_mw") for gpu in range(2)] == [700_000, 420_500]
    assert [(device.limit_w, device.default_w) for device in nvml.devices()] == [(700.0, 700.0), (420.5, 700.0)]


def test_power_and_energy(driver: FakeNvml) -> None:
    meter = NvmlMeter()
    assert meter.unavailable() is None
    assert meter.power_w() == {FIRST: 71.5, SECOND: 72.5}
    assert meter.energy() == [EnergyReading(FIRST, 5000.0, None), EnergyReading(SECOND, 5000.0, None)]


def test_a_card_that_counts_no_energy_is_left_out(driver: FakeNvml) -> None:
    driver.write(0, fail_energy=fake_nvml.NOT_SUPPORTED)
    assert [reading.device_id for reading in NvmlMeter().energy()] == [SECOND]
    driver.write(1, fail_power=fake_nvml.NOT_SUPPORTED)
    assert NvmlMeter().power_w() == {FIRST: 71.5}


@pytest.mark.parametrize("code", [fake_nvml.NO_PERMISSION, fake_nvml.NOT_SUPPORTED])
def test_refusals(nvml: Nvml, driver: FakeNvml, code: int) -> None:
    driver.write(0, fail_set=code)
    with pytest.raises(ControlRefusedError, match=f"set 400 W on GPU {FIRST}: (Insufficient Perm|Not Supp)"):
        nvml.set_limit(FIRST, 400.0)


def test_a_limit_outside_the_range_fails(nvml: Nvml) -> None:
    with pytest.raises(ControlFailedError, match="Invalid Argument"):
        nvml.set_limit(FIRST, 100.0)


@pytest.mark.parametrize(
    ("firmware", "in_force_w"),
    [({"ignore_set": 1}, 700), ({"clamp_mw": 300_000}, 300), ({"hold_mw": 650_000}, 650)],
    ids=["ignores", "clamps", "enforces another"],
)
def test_a_limit_without_effect_is_no_success(
    nvml: Nvml, driver: FakeNvml, firmware: dict[str, int], in_force_w: int
) -> None:
    driver.write(0, **firmware)
    with pytest.raises(ControlFailedError, match=f"accepted, but {in_force_w} W is in force"):
        nvml.set_limit(FIRST, 400.0)


def test_something_else_may_hold_the_limit_lower(nvml: Nvml, driver: FakeNvml) -> None:
    driver.write(0, hold_mw=350_000)
    assert nvml.set_limit(FIRST, 400.0) == 350.0
    assert nvml.devices()[0].limit_w == 400.0, "what was set is what a restore must know"


def test_rounding_by_the_driver_is_accepted(nvml: Nvml, driver: FakeNvml) -> None:
    driver.write(0, clamp_mw=400_000)
    assert nvml.set_limit(FIRST, 400.7) == 400.0


@pytest.mark.parametrize("code", [fake_nvml.GPU_IS_LOST, fake_nvml.RESET_REQUIRED])
def test_a_lost_gpu_is_left_out_and_told_once(
    nvml: Nvml, driver: FakeNvml, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    driver.write(0, fail_all=code)
    with caplog.at_level(logging.WARNING, logger="joulie.adapters.gpu.library"):
        for _ in range(3):
            assert [device.id for device in nvml.devices()] == [SECOND]
    assert [record.getMessage() for record in caplog.records] == ["GPU does not respond, ignored"]
    assert nvml.unavailable() is None
    assert nvml.set_limit(SECOND, 300.0) == 300.0
    with pytest.raises(ControlFailedError, match=f"GPU {FIRST} does not respond"):
        nvml.set_limit(FIRST, 300.0)
    driver.write(0, fail_all=0)
    assert [device.id for device in nvml.devices()] == [FIRST, SECOND]


def test_all_gpus_lost(nvml: Nvml, driver: FakeNvml) -> None:
    for gpu in range(2):
        driver.write(gpu, fail_all=fake_nvml.GPU_IS_LOST)
    assert nvml.unavailable() == "no NVIDIA GPU responds"
    assert NvmlMeter().unavailable() == "no NVIDIA GPU responds"


def test_gpus_without_power_limits(nvml: Nvml, driver: FakeNvml) -> None:
    for gpu in range(2):
        driver.write(gpu, fail_limits=fake_nvml.NOT_SUPPORTED, fail_power=fake_nvml.NOT_SUPPORTED)
    assert "not supported by NVIDIA H100" in (nvml.unavailable() or "")
    assert {(device.limit_w, device.min_w, device.default_w) for device in nvml.devices()} == {(None, None, None)}
    assert NvmlMeter().unavailable() == "no NVIDIA GPU reports its power"


def test_no_gpu_in_a_driver(nvml: Nvml, driver: FakeNvml) -> None:
    driver.reset(gpus=0)
    assert nvml.unavailable() == "no NVIDIA GPU responds"


def test_a_driver_that_is_not_loaded_yet(nvml: Nvml, driver: FakeNvml) -> None:
    driver.driver(fake_nvml.DRIVER_NOT_LOADED)
    assert nvml.unavailable() == "NVML: Driver Not Loaded"
    assert NvmlMeter().unavailable() == "NVML: Driver Not Loaded"
    with pytest.raises(ControlFailedError, match="Driver Not Loaded"):
        nvml.devices()
    driver.driver(0)
    assert len(nvml.devices()) == 2


def test_a_reloaded_driver_is_connected_to_again(nvml: Nvml, driver: FakeNvml) -> None:
    assert len(nvml.devices()) == 2
    driver.unload()
    with pytest.raises(ControlFailedError, match="Uninitialized"):
        nvml.devices()
    assert nvml.set_limit(FIRST, 300.0) == 300.0
    assert driver.connections == 1


def test_limiter_and_meter_share_a_connection(driver: FakeNvml) -> None:
    session = NvmlSession()
    Nvml(session).devices()
    NvmlMeter(session).power_w()
    assert driver.connections == 1
    session.close()
    session.close()
    assert driver.connections == 0


@pytest.mark.parametrize("limit_w", [float("nan"), 0.0, -1.0])
def test_limits_that_are_none(nvml: Nvml, limit_w: float) -> None:
    with pytest.raises(InvalidQuantityError, match="limit_w"):
        nvml.set_limit(FIRST, limit_w)


def test_without_the_library_pynvml_is_not_imported() -> None:
    """It would cost 5 MB on every node without a GPU."""
    code = (
        "import ctypes, sys; from joulie.adapters.gpu.nvml import Nvml; ctypes.CDLL = lambda name: open('/nowhere'); "
        "print(Nvml().unavailable(), 'pynvml' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("libnvidia-ml.so.1 not found")
    assert done.stdout.endswith("False\n")


@pytest.mark.slow
def test_loaded_as_the_system_would(library: FakeNvml) -> None:
    code = "from joulie.adapters.gpu.nvml import Nvml; print(Nvml().set_limit(Nvml().devices()[2].id, 250.0))"
    environment = os.environ | {"LD_LIBRARY_PATH": str(library.path.parent), "FAKE_NVML_GPUS": "3"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "250.0\n"
