"""Power limits of AMD EPYC sockets through the Host System Management Port, /dev/hsmp.

Source: Linux, arch/x86/include/uapi/asm/amd_hsmp.h (message numbers, structure, ioctl) and drivers/platform/x86/amd
(responses). Limits are in mW there; the firmware silently clips them to the processor's configurable range, and
reports only the maximum of that range.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from pathlib import Path

from joulie.domain.quantities import positive_number
from joulie.host_files import OS_FILES, HostFiles
from joulie.ports.devices import ControlFailedError, ControlRefusedError, DeviceKind, PowerDevice, control_error

# struct hsmp_message, packed to 4 bytes: msg_id, num_args, response_sz, args[8], sock_ind
_MESSAGE = struct.Struct("=IHH8IH2x")
_IOCTL = 0xC0000000 | _MESSAGE.size << 16 | 0xF8 << 8  # _IOWR(0xF8, 0, struct hsmp_message)
_SET_LIMIT, _GET_LIMIT, _GET_LIMIT_MAX = 5, 6, 7
_MAX_SOCKETS = 8

_MILLI = 1e-3
READ_BACK_TOLERANCE_W = 1.0
"""Maximum difference of the limit read back, W: the firmware may round to whole watts."""


class Hsmp:
    """Power limits of CPU sockets; a `PowerLimiter`.

    Args:
        device: device file of the driver.
        files: files of the host.
    """

    name = "hsmp"

    def __init__(self, device: Path = Path("/dev/hsmp"), files: HostFiles = OS_FILES) -> None:
        self._device = device
        self._files = files

    def unavailable(self) -> str | None:
        """None if the limit of at least one socket can be read and the device file written."""
        if not self._files.exists(self._device):
            return f"no {self._device}: not an AMD EPYC, amd_hsmp driver not loaded, or HSMP disabled in the BIOS"
        if not self._files.writable(self._device):
            return f"{self._device} is not writable: needs root and the device in the container"
        try:
            self._send(0, _GET_LIMIT)
        except OSError as error:
            return str(_error(f"read the limit of socket 0 through {self._device}", error))
        return None

    def devices(self) -> Sequence[PowerDevice]:
        """See `PowerLimiter.devices`; sockets are named like RAPL packages."""
        devices = []
        for socket in range(_MAX_SOCKETS):
            try:
                limit_w = self._send(socket, _GET_LIMIT) * _MILLI
                max_w = self._send(socket, _GET_LIMIT_MAX) * _MILLI or None
            except OSError as error:
                if error.errno == errno.ENODEV:  # no further sockets
                    break
                raise ControlFailedError(f"read socket {socket} through {self._device}: {error.strerror}") from error
            devices.append(PowerDevice(f"package-{socket}", DeviceKind.CPU_PACKAGE, None, limit_w, None, max_w, max_w))
        return devices

    def set_limit(self, device_id: str, limit_w: float) -> float:
        """See `PowerLimiter.set_limit`."""
        limit_w = positive_number("limit_w", limit_w)
        number = device_id.removeprefix("package-")
        if not number.isdecimal():
            raise ControlFailedError(f"no socket {device_id} at {self._device}")
        action = f"set {limit_w:g} W on {device_id} through {self._device}"
        try:
            self._send(int(number), _SET_LIMIT, round(limit_w / _MILLI))
            in_force_w = self._send(int(number), _GET_LIMIT) * _MILLI
        except OSError as error:
            raise _error(action, error) from error
        if abs(in_force_w - limit_w) > READ_BACK_TOLERANCE_W:
            raise ControlFailedError(f"{action}: accepted, but {in_force_w:g} W is in force", in_force=in_force_w)
        return in_force_w

    def _send(self, socket: int, message: int, argument: int | None = None) -> int:
        """Send a message with an argument, or a query that returns a number.

        Raises:
            OSError: the device file cannot be opened or the driver rejects the message.
        """
        n_arguments = 0 if argument is None else 1
        buffer = bytearray(
            _MESSAGE.pack(message, n_arguments, 1 - n_arguments, argument or 0, 0, 0, 0, 0, 0, 0, 0, socket)
        )
        # The driver accepts queries on read-only descriptors and commands on write-only ones.
        self._files.ioctl(self._device, _IOCTL, buffer, write=argument is not None)
        return int(_MESSAGE.unpack(buffer)[3])


def _error(action: str, error: OSError) -> ControlRefusedError | ControlFailedError:
    if error.errno == errno.ENOMSG:
        return ControlRefusedError(f"{action}: the firmware of this processor does not support the message")
    return control_error(action, error)
