"""The process that talks to a GPU driver's library, so that the agent need not.

A call into a driver may never return, and a library whose driver is replaced may crash whoever uses it. In a process of
its own both end with that process: the agent kills it after a deadline and starts another. Whatever it had open is
closed with it.

The agent sends one JSON object a line and gets one back. The process ends when its input ends. It imports next to
nothing, since it runs on every GPU node: see `joulie.adapters.gpu.session` for the other side.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from joulie.adapters.gpu.library import GpuLibrary, GpuState, LibraryError

IDLE_S = 0.2
"""Time without a request after which the library is let go, where connecting again is cheap, s."""

CHEAP_CONNECT_S = 0.25
"""Longest time to connect that counts as cheap, s: about 1 % of an agent's cycle."""


class Worker:
    """Answers requests with a library, and lets it go while there are none, where that is cheap and safe.

    Args:
        library: the vendor's library.
    """

    def __init__(self, library: GpuLibrary) -> None:
        self._library = library
        self._cheap = False

    @property
    def idle_s(self) -> float | None:
        """Time to wait for a request before `rest`, s; None for ever."""
        return IDLE_S if self._cheap and self._library.connected else None

    def answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer a request: ``read``, ``set``, ``clocks``, ``lock``, ``reset`` or ``disconnect``."""
        try:
            if request["do"] == "disconnect":
                self.rest()
                return {}
            self._connect()
            return self._done(request)
        except LibraryError as error:
            return {"error": str(error), "kind": error.kind}

    def rest(self) -> None:
        """Let the library go."""
        self._library.disconnect()

    def _done(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        match request["do"]:
            case "set":
                set_w, enforced_w = self._library.set_limit(request["uuid"], request["limit_w"])
                return {"set_w": set_w, "enforced_w": enforced_w}
            case "lock":
                return {"locked_mhz": self._library.lock_clock(request["uuid"], request["max_mhz"])}
            case "reset":
                self._library.reset_clock(request["uuid"])
                return {}
            case "clocks":
                return {"gpus": self._read(self._library.clocks)}
            case _:
                return {"gpus": self._read(self._library.read)}

    def _connect(self) -> None:
        if self._library.connected:
            return
        began_s = time.monotonic()
        self._library.connect()
        self._cheap = time.monotonic() - began_s <= CHEAP_CONNECT_S and self._library.survives_disconnect()

    def _read(self, read: Callable[[], Sequence[GpuState]]) -> Sequence[GpuState]:
        try:
            return read()
        except LibraryError:
            self._library.disconnect()  # a driver that was reloaded responds only to a new connection
            raise


def serve(library: GpuLibrary, requests: TextIO, answers: TextIO) -> None:
    """Answer requests until their end."""
    worker = Worker(library)
    while True:
        idle_s = worker.idle_s
        if idle_s is not None and not select.select([requests], [], [], idle_s)[0]:
            worker.rest()
            continue
        line = requests.readline()
        if not line:
            break
        answers.write(json.dumps(worker.answer(json.loads(line))) + "\n")
        answers.flush()
    worker.rest()


def main(vendor: str) -> None:
    """Serve the library of a vendor, ``nvml`` or ``amdsmi``, over standard input and output."""
    library: GpuLibrary
    if vendor == "nvml":
        from joulie.adapters.gpu.nvml_library import NvmlLibrary

        library = NvmlLibrary()
    else:
        from joulie.adapters.gpu.amdsmi_library import AmdSmiLibrary

        library = AmdSmiLibrary()
    # Libraries print to standard output; answers have a descriptor of their own.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        serve(library, sys.stdin, answers)
