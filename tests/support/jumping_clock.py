"""The wall clock of a program that jumps when a test says so, while its monotonic clock goes on."""

from __future__ import annotations

import struct
import time
from pathlib import Path


class JumpingClock:
    """The clock of a program that is started with its `environment`; see `tests/native/jumping_clock.c`.

    Attributes:
        environment: variables of the program.
        ahead_s: by how many seconds it is ahead of the machine's.
    """

    def __init__(self, library: Path, file: Path) -> None:
        self.environment = {"LD_PRELOAD": str(library), "JUMPING_CLOCK": str(file)}
        self._file = file
        self.ahead_s = 0
        file.write_bytes(struct.pack("=q", 0))

    @property
    def now_s(self) -> float:
        """What it shows, s since the epoch."""
        return time.time() + self.ahead_s  # noqa: TID251 - real programs run in real time

    def jump_to(self, ahead_s: int) -> None:
        """Set it to so many seconds ahead of the machine's clock."""
        self.ahead_s = ahead_s
        with self._file.open("r+b") as file:  # in place: it is mapped
            file.write(struct.pack("=q", ahead_s))
