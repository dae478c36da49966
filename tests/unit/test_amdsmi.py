"""AMD SMI against a module that answers as the Python package does."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from joulie.adapters.gpu.amdsmi import AmdSmi, AmdSmiMeter, AmdSmiSession
from joulie.domain.quantities import InvalidQuantityError
from joulie.ports import ControlFailedError, ControlRefusedError, DeviceKind, PowerDevice


class SmiError(Exception):
    """Stands for amdsmi.AmdSmiException."""


def gpu(uuid: str) -> SimpleNamespace:
    caps = {"default_power_cap": 750_000_000, "dpm_cap": 0, "min_power_cap": 0, "max_power_cap": 750_000_000}
    power = {"current_socket_power": 142, "average_socket_power": "N/A", "socket_power": 142}
    return SimpleNamespace(uuid=uuid, caps=caps | {"power_cap": 750_000_000}, power=power, error="", refuses="")


class FakeAmdSmi:
    """The functions of the package that are used, with its names and units (uW, W)."""

    AmdSmiException = SmiError

    def __init__(self) -> None:
        self.gpus = [gpu("uuid-0"), gpu("uuid-1")]
        self.connections = 0
        self.deaf = False

    def amdsmi_init(self) -> None:
        self.connections += 1

    def amdsmi_shut_down(self) -> None:
        self.connections -= 1

    def amdsmi_get_processor_handles(self) -> list[SimpleNamespace]:
        if self.deaf:
            raise SmiError("AMDSMI_STATUS_INIT_ERROR - Initialization error")
        return self.gpus

    def amdsmi_get_gpu_device_uuid(self, handle: SimpleNamespace) -> str:
        if handle.error:
            raise SmiError(handle.error)
        return str(handle.uuid)

    def amdsmi_get_gpu_asic_info(self, handle: SimpleNamespace) -> dict[str, Any]:
        return {"market_name": "AMD Instinct MI300X"}

    def amdsmi_get_power_cap_info(self, handle: SimpleNamespace) -> dict[str, Any]:
        if handle.caps is None:
            raise SmiError("AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported")
        return dict(handle.caps)

    def amdsmi_get_power_info(self, handle: SimpleNamespace) -> dict[str, Any]:
        return dict(handle.power)

    def amdsmi_set_power_cap(self, handle: SimpleNamespace, sensor: int, cap: int) -> None:
        assert (sensor, type(cap)) == (0, int)
        if handle.refuses == "silently":
            return
        if handle.refuses:
            raise SmiError(handle.refuses)
        handle.caps["power_cap"] = cap // 1_000_000 * 1_000_000


@pytest.fixture
def smi() -> FakeAmdSmi:
    return FakeAmdSmi()


@pytest.fixture
def session(smi: FakeAmdSmi) -> AmdSmiSession:
    return AmdSmiSession(lambda: smi)


@pytest.fixture
def limiter(session: AmdSmiSession) -> AmdSmi:
    return AmdSmi(session)


def test_devices(limiter: AmdSmi) -> None:
    assert limiter.unavailable() is None
    assert limiter.devices() == [
        PowerDevice(uuid, DeviceKind.GPU, "AMD Instinct MI300X", 750.0, min_w=None, max_w=750.0, default_w=750.0)
        for uuid in ("uuid-0", "uuid-1")
    ]


def test_a_limit_goes_to_one_gpu_in_whole_watts(limiter: AmdSmi, smi: FakeAmdSmi) -> None:
    assert limiter.set_limit("uuid-1", 500.4) == 500.0
    assert [gpu.caps["power_cap"] for gpu in smi.gpus] == [750_000_000, 500_000_000]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("AMDSMI_STATUS_NO_PERM - Permission Denied", ControlRefusedError),
        ("AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported", ControlRefusedError),
        ("AMDSMI_STATUS_BUSY - Device busy", ControlFailedError),
        ("silently", ControlFailedError),
    ],
)
def test_refusals(limiter: AmdSmi, smi: FakeAmdSmi, status: str, error: type[Exception]) -> None:
    smi.gpus[0].refuses = status
    with pytest.raises(error, match=r"set 500 W on GPU uuid-0: (AMDSMI|accepted, but 750 W)"):
        limiter.set_limit("uuid-0", 500.0)


def test_a_cap_that_cannot_be_read_back_is_no_success(limiter: AmdSmi, smi: FakeAmdSmi) -> None:
    smi.gpus[0].refuses = "silently"
    smi.gpus[0].caps = None
    with pytest.raises(ControlFailedError, match="cannot be read"):
        limiter.set_limit("uuid-0", 500.0)


def test_power(session: AmdSmiSession, smi: FakeAmdSmi) -> None:
    smi.gpus[1].power = {"current_socket_power": "N/A", "average_socket_power": 0}
    meter = AmdSmiMeter(session)
    assert meter.power_w() == {"uuid-0": 142.0, "uuid-1": 0.0}
    smi.gpus[1].power = {"current_socket_power": 0xFFFF, "average_socket_power": 0xFFFFFFFF}
    assert meter.power_w() == {"uuid-0": 142.0}
    assert meter.unavailable() is None
    assert meter.energy() == []
    smi.gpus.clear()
    assert meter.unavailable() == "no AMD GPU reports its power"


def test_a_lost_gpu_is_left_out_and_told_once(
    limiter: AmdSmi, smi: FakeAmdSmi, caplog: pytest.LogCaptureFixture
) -> None:
    smi.gpus[0].error = "AMDSMI_STATUS_IO - I/O Error"
    with caplog.at_level(logging.WARNING):
        assert [[device.id for device in limiter.devices()] for _ in range(2)] == [["uuid-1"], ["uuid-1"]]
    assert len(caplog.records) == 1
    with pytest.raises(ControlFailedError, match="GPU uuid-0 does not respond"):
        limiter.set_limit("uuid-0", 500.0)


def test_gpus_without_caps(limiter: AmdSmi, smi: FakeAmdSmi) -> None:
    for handle in smi.gpus:
        handle.caps = None
    assert "not supported by AMD Instinct" in (limiter.unavailable() or "")


def test_no_gpu(limiter: AmdSmi, smi: FakeAmdSmi) -> None:
    smi.gpus.clear()
    assert limiter.unavailable() == "no AMD GPU responds"


def test_the_package_is_not_installed() -> None:
    assert "No module named 'amdsmi'" in (AmdSmi().unavailable() or "")
    assert "No module named 'amdsmi'" in (AmdSmiMeter().unavailable() or "")


def test_a_connection_that_breaks_is_made_anew(limiter: AmdSmi, smi: FakeAmdSmi) -> None:
    smi.deaf = True
    assert "AMDSMI_STATUS_INIT_ERROR" in (limiter.unavailable() or "")
    smi.deaf = False
    assert len(limiter.devices()) == 2
    assert smi.connections == 1


def test_a_limit_that_is_none(limiter: AmdSmi) -> None:
    with pytest.raises(InvalidQuantityError, match="limit_w"):
        limiter.set_limit("uuid-0", float("nan"))
