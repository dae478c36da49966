"""Finds free TCP ports on this machine."""

from __future__ import annotations

import os
import secrets
import socket
from collections import deque

from joulie_lab.control_plane.process import ProcessFailedError

LOOPBACK = "127.0.0.1"

# Below the kernel's range for outgoing connections, which could otherwise take the port before it is used.
_PORTS = range(10240, 32000)
_MOST_RESERVED = 256
_reserved: deque[int] = deque()
"""Descriptors of the sockets that reserve ports; the system closes those that are left when the process ends."""


def free_port() -> int:
    """Find a port on 127.0.0.1 that is free and outside the range of outgoing connections.

    No process gets it from here again while this one runs, or until this one has asked for many more: it may take
    minutes until somebody listens on it.

    Raises:
        ProcessFailedError: none was found.
    """
    for _ in range(1000):
        port = _PORTS[secrets.randbelow(len(_PORTS))]
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0joulie-port-{port}")  # a name of the network namespace, which goes with its process
            with socket.socket() as probe:
                probe.bind((LOOPBACK, port))
        except OSError:
            mark.close()
            continue
        _reserved.append(mark.detach())
        if len(_reserved) > _MOST_RESERVED:
            os.close(_reserved.popleft())
        return port
    raise ProcessFailedError(f"no free port between {_PORTS.start} and {_PORTS.stop - 1} on 127.0.0.1")
