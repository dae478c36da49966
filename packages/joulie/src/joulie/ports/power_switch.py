"""Switching machines on and off."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class PowerSwitchError(RuntimeError):
    """A power switch that did not answer, refused, or cannot do what was asked; the message says why."""


class PowerState(StrEnum):
    """What a power switch says of its machine."""

    ON = "on"
    OFF = "off"
    CHANGING = "changing"


class PowerSwitch(Protocol):
    """Switches one machine on and off.

    A call returns when it is accepted; `state` tells what came of it. All raise `PowerSwitchError`.
    """

    async def state(self) -> PowerState:
        """Whether the machine has power."""
        ...

    async def on(self) -> None:
        """Switch the machine on; nothing is done where it is on."""
        ...

    async def off(self, *, force: bool = False) -> None:
        """Have the operating system shut down, or cut the power by force; nothing is done where it is off."""
        ...
