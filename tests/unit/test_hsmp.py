"""AMD's host system management port against firmware that answers an injected ioctl."""

import errno
import fcntl
import os
import struct
from pathlib import Path

import pytest

from joulie.adapters.cpu.hsmp import Hsmp
from joulie.domain.quantities import InvalidQuantityError
from joulie.ports.devices import ControlFailedError, ControlRefusedError, DeviceKind, PowerDevice

SET, GET, GET_MAX = 5, 6, 7


class Firmware:
    """Sockets of 400 W at most; limits above are clipped without a word."""

    def __init__(self, sockets: int) -> None:
        self.limits_mw = [360_000] * sockets
        self.fails: dict[int, int] = {}

    def ioctl(self, descriptor: int, request: int, buffer: bytearray) -> int:
        assert request == 0xC02CF800, "_IOWR(0xF8, 0, 44 bytes)"
        assert len(buffer) == 44
        message, n_arguments, n_answers = struct.unpack_from("=IHH", buffer, 0)
        socket = struct.unpack_from("=H", buffer, 40)[0]
        writable = bool(flags(descriptor) & os.O_ACCMODE)
        assert (n_arguments, n_answers, writable) == ((1, 0, True) if message == SET else (0, 1, False))
        if message in self.fails:
            raise OSError(self.fails[message], os.strerror(self.fails[message]))
        if socket >= len(self.limits_mw):
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        if message == SET:
            self.limits_mw[socket] = min(struct.unpack_from("=I", buffer, 8)[0], 400_000)
        else:
            struct.pack_into("=I", buffer, 8, self.limits_mw[socket] if message == GET else 400_000)
        return 0


def flags(descriptor: int) -> int:
    return int(Path(f"/proc/self/fdinfo/{descriptor}").read_text().split("flags:")[1].split()[0], 8)


@pytest.fixture
def firmware() -> Firmware:
    return Firmware(sockets=2)


@pytest.fixture
def hsmp(tmp_path: Path, firmware: Firmware, monkeypatch: pytest.MonkeyPatch) -> Hsmp:
    device = tmp_path / "hsmp"
    device.touch()
    monkeypatch.setattr(fcntl, "ioctl", firmware.ioctl)
    return Hsmp(device)


def test_sockets(hsmp: Hsmp) -> None:
    assert hsmp.unavailable() is None
    assert hsmp.devices() == [
        PowerDevice(f"package-{n}", DeviceKind.CPU_PACKAGE, limit_w=360.0, max_w=400.0, default_w=400.0)
        for n in range(2)
    ]


def test_a_limit_goes_to_one_socket(hsmp: Hsmp, firmware: Firmware) -> None:
    assert hsmp.set_limit("package-1", 240.5) == 240.5
    assert firmware.limits_mw == [360_000, 240_500]


def test_a_clipped_limit_is_no_success(hsmp: Hsmp) -> None:
    with pytest.raises(ControlFailedError, match="accepted, but 400 W is in force"):
        hsmp.set_limit("package-0", 500.0)


def test_no_device_file(tmp_path: Path) -> None:
    assert "not an AMD EPYC" in (Hsmp(tmp_path / "hsmp").unavailable() or "")
    with pytest.raises(ControlFailedError, match="No such file"):
        Hsmp(tmp_path / "hsmp").devices()


def test_a_device_file_that_may_not_be_written(hsmp: Hsmp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    assert "is not writable" in (hsmp.unavailable() or "")


def test_a_message_that_the_firmware_does_not_know(hsmp: Hsmp, firmware: Firmware) -> None:
    firmware.fails = dict.fromkeys((SET, GET), errno.ENOMSG)
    assert "does not support the message" in (hsmp.unavailable() or "")
    with pytest.raises(ControlRefusedError, match="does not support the message"):
        hsmp.set_limit("package-0", 200.0)


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.EPERM, ControlRefusedError), (errno.ETIMEDOUT, ControlFailedError), (errno.ENODEV, ControlFailedError)],
)
def test_what_the_driver_answers(hsmp: Hsmp, firmware: Firmware, number: int, error: type[Exception]) -> None:
    firmware.fails = {SET: number}
    with pytest.raises(error, match=rf"set 200 W on package-0 through .*: {os.strerror(number)}"):
        hsmp.set_limit("package-0", 200.0)


def test_firmware_that_is_busy_does_not_look_like_fewer_sockets(hsmp: Hsmp, firmware: Firmware) -> None:
    firmware.fails = {GET_MAX: errno.EBUSY}
    with pytest.raises(ControlFailedError, match="read socket 0"):
        hsmp.devices()


@pytest.mark.parametrize("device", ["package-0-die-1", "package-", "psys"])
def test_devices_that_are_no_sockets(hsmp: Hsmp, device: str) -> None:
    with pytest.raises(ControlFailedError, match="no socket"):
        hsmp.set_limit(device, 200.0)


def test_a_limit_that_is_none(hsmp: Hsmp) -> None:
    with pytest.raises(InvalidQuantityError, match="limit_w"):
        hsmp.set_limit("package-0", float("nan"))
