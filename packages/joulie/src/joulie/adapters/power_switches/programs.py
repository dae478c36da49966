"""Power switches that are other programs: a command of the administrator's, ipmitool, and Wake-on-LAN beside a command.

Programs are run without a shell, in a process group of their own that ends with them, and know nothing of this
process's environment but PATH.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from joulie.ports.power_switch import PowerState, PowerSwitchError

IPMITOOL = "ipmitool"
WAKE_PORT = 9
"""UDP port of magic packets: discard, to which nothing answers."""
_TIMEOUT_S = 30.0
_MAX_BYTES = 4096
_SHOWN_CHARS = 200
_STATES = {state.value: state for state in PowerState}


@dataclass(frozen=True)
class Program:
    """A program that is run to completion.

    Attributes:
        argv: program and arguments; ``{action}`` in them stands for what is to be done, which is added at the end where
            it stands nowhere.
        environment: its variables beside PATH; values are secrets.
        timeout_s: time after which it is killed, s.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = _TIMEOUT_S

    async def run(self, action: str) -> str:
        """Run it. Returns what it printed.

        Raises:
            PowerSwitchError: it cannot be started, did not end in time, or did not end with status 0.
        """
        argv = [argument.replace("{action}", action) for argument in self.argv]
        if argv == list(self.argv):
            argv.append(action)
        name = f"{argv[0]} {action}"
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={"PATH": os.environ.get("PATH", os.defpath), **self.environment},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise PowerSwitchError(f"{name}: {error}") from error
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(self.timeout_s):
                printed, said, status = await asyncio.gather(
                    _beginning(process.stdout), _beginning(process.stderr), process.wait()
                )
        except TimeoutError:
            raise PowerSwitchError(f"{name}: no end within {self.timeout_s:g} s") from None
        finally:
            # What it started and left behind, too.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if status:
            raise PowerSwitchError(f"{name}: exit status {status}: {self._shown(said or printed)}")
        return printed

    def _shown(self, text: str) -> str:
        """The end of an output in one line, without the secrets that it was given."""
        for secret in self.environment.values():
            text = text.replace(secret, "***") if secret else text
        return " ".join(text.split())[-_SHOWN_CHARS:]


async def _beginning(stream: asyncio.StreamReader) -> str:
    """The beginning of an output, which is read to its end."""
    kept = b""
    while block := await stream.read(_MAX_BYTES):
        kept = (kept + block)[:_MAX_BYTES]
    return kept.decode(errors="replace")


@dataclass(frozen=True)
class CommandSwitch:
    """A command of the administrator's, run with ``state``, ``on``, ``off`` or ``force-off``.

    For ``state`` it prints on, off or changing. It ends with status 0 where it was told.
    """

    program: Program

    async def state(self) -> PowerState:
        """Whether the machine has power."""
        printed = (await self.program.run("state")).strip().lower()
        if printed not in _STATES:
            raise PowerSwitchError(
                f"{self.program.argv[0]} state: {', '.join(_STATES)} is expected, got {printed[:40]!r}"
            )
        return _STATES[printed]

    async def on(self) -> None:
        """Switch it on; nothing is done where it is on."""
        if await self.state() is not PowerState.ON:
            await self.program.run("on")

    async def off(self, *, force: bool = False) -> None:
        """Have it shut down, or cut its power by force; nothing is done where it is off."""
        if await self.state() is not PowerState.OFF:
            await self.program.run("force-off" if force else "off")


@dataclass(frozen=True)
class WakeOnLanSwitch:
    """A machine that wakes by a magic packet; a command tells its state and shuts it down.

    Attributes:
        mac: address of its network card, six bytes.
        broadcast: address to which the packet is sent: a broadcast address of the network of that card.
        port: UDP port.
        command: tells whether it is on, and shuts it down.
    """

    mac: bytes
    broadcast: str
    command: CommandSwitch
    port: int = WAKE_PORT

    async def state(self) -> PowerState:
        """Whether the machine is on, by the command."""
        return await self.command.state()

    async def on(self) -> None:
        """Send the packet; nobody says that it arrived."""
        if await self.state() is PowerState.ON:
            return
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                sender.sendto(magic_packet(self.mac), (self.broadcast, self.port))
        except OSError as error:
            raise PowerSwitchError(f"magic packet to {self.broadcast}: {error}") from error

    async def off(self, *, force: bool = False) -> None:
        """Have it shut down by the command."""
        await self.command.off(force=force)


def magic_packet(mac: bytes) -> bytes:
    """The packet that wakes a network card: six times FF, and its address 16 times. Source: AMD, publication 20213."""
    return b"\xff" * 6 + mac * 16


@dataclass(frozen=True)
class IpmiSwitch:
    """A BMC that speaks IPMI 2.0 over the network (RMCP+), through ipmitool.

    Attributes:
        program: ipmitool with host and user, which ends with ``chassis power``; its environment has the password.
    """

    program: Program

    @classmethod
    def of(cls, host: str, port: int, username: str, password: str, cipher_suite: int | None = None) -> IpmiSwitch:
        """The switch of a BMC. A user of level OPERATOR may control power, and no more.

        Without a cipher suite the BMC is asked for its own, which some do not tell.
        """
        argv = (IPMITOOL, "-I", "lanplus", "-H", host, "-p", str(port), "-U", username, "-L", "OPERATOR", "-E")
        suite = () if cipher_suite is None else ("-C", str(cipher_suite))
        return cls(Program((*argv, *suite, "-N", "2", "-R", "2", "chassis", "power"), {"IPMI_PASSWORD": password}))

    async def state(self) -> PowerState:
        """Whether the machine has power."""
        printed = (await self.program.run("status")).strip().lower()
        state = printed.removeprefix("chassis power is ")
        if state not in (PowerState.ON, PowerState.OFF):
            raise PowerSwitchError(f"{IPMITOOL} chassis power status: {printed[:40]!r}")
        return PowerState(state)

    async def on(self) -> None:
        """Switch it on; nothing is done where it is on."""
        if await self.state() is not PowerState.ON:
            await self.program.run("on")

    async def off(self, *, force: bool = False) -> None:
        """Have it shut down (by ACPI), or cut its power by force; nothing is done where it is off."""
        if await self.state() is not PowerState.OFF:
            await self.program.run("off" if force else "soft")
