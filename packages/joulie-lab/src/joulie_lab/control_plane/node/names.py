"""Cluster DNS for the node's pods: answers for Services only, from what the API server says."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import threading
from collections.abc import Callable, Sequence

_HEADER = struct.Struct(">HHHHHH")
_QUESTION = struct.Struct(">HH")
_ANSWER = struct.Struct(">HHHIH")
_RESPONSE, _NO_NAME = 0x8400, 3
_POINTER_TO_QUESTION = 0xC00C
_TYPES = {1: 4, 28: 6}  # A, AAAA
_TTL_S = 5
_DOMAIN = ("svc", "cluster", "local")

ServiceAddresses = Callable[[str, str], Sequence[str] | None]
"""Cluster addresses of a Service by its name and namespace; None without one."""


def answer(query: bytes, addresses: ServiceAddresses) -> bytes:
    """Answer one DNS query for SERVICE.NAMESPACE.svc.cluster.local; any other name does not exist.

    Raises:
        ValueError: not a query.
    """
    try:
        number, _, questions, *_ = _HEADER.unpack_from(query)
        labels, end = _labels(query, _HEADER.size)
        kind, _ = _QUESTION.unpack_from(query, end)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError("not a DNS query") from error
    if questions != 1:
        raise ValueError("not one question")
    found = addresses(labels[0], labels[1]) if tuple(labels[2:]) == _DOMAIN else None
    question = query[_HEADER.size : end + _QUESTION.size]
    packed = [
        ipaddress.ip_address(text).packed
        for text in found or ()
        if ipaddress.ip_address(text).version == _TYPES.get(kind)
    ]
    flags = _RESPONSE | (_NO_NAME if found is None else 0)
    records = b"".join(
        _ANSWER.pack(_POINTER_TO_QUESTION, kind, 1, _TTL_S, len(address)) + address for address in packed
    )
    return _HEADER.pack(number, flags, 1, len(packed), 0, 0) + question + records


class NameServer:
    """Serves names on UDP port 53 of an address from a thread of its own; use it as a context manager."""

    def __init__(self, address: str, addresses: ServiceAddresses) -> None:
        self._addresses = addresses
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        self._thread = threading.Thread(target=self._serve, name="names", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                query, sender = self._socket.recvfrom(4096)
            except OSError:
                return
            if not query and self._socket.fileno() < 0:
                return
            with contextlib.suppress(ValueError, OSError):
                self._socket.sendto(answer(query, self._addresses), sender)


def _labels(query: bytes, start: int) -> tuple[list[str], int]:
    labels = []
    while length := query[start]:
        labels.append(query[start + 1 : start + 1 + length].decode().lower())
        start += 1 + length
    return labels, start + 1
