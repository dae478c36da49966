"""Finds free TCP ports on this machine."""

from __future__ import annotations

import contextlib
import secrets
import socket

from joulie_lab.control_plane.process import ProcessFailedError

LOOPBACK = "127.0.0.1"

# Below the kernel's range for outgoing connections, which could otherwise take the port before it is used.
_PORTS = range(10240, 32000)


def free_port() -> int:
    """Find a port on 127.0.0.1 that is free and outside the range of outgoing connections.

    Raises:
        ProcessFailedError: none was found.
    """
    for _ in range(1000):
        port = _PORTS[secrets.randbelow(len(_PORTS))]
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port
    raise ProcessFailedError(f"no free port between {_PORTS.start} and {_PORTS.stop - 1} on 127.0.0.1")
