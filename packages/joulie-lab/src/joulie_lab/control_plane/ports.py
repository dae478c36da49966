"""Ports of this machine that nobody listens on."""

from __future__ import annotations

import contextlib
import secrets
import socket

from joulie_lab.control_plane.process import ProcessFailedError

# Below the ports that the kernel gives to outgoing connections, so that none of those can take ours meanwhile.
_PORTS = range(10240, 32000)


def free_port() -> int:
    """A port of 127.0.0.1 that is free now, and that no outgoing connection takes.

    Raises:
        ProcessFailedError: none was found.
    """
    for _ in range(1000):
        port = _PORTS[secrets.randbelow(len(_PORTS))]
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ProcessFailedError(f"no free port between {_PORTS.start} and {_PORTS.stop - 1} on 127.0.0.1")
