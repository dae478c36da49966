"""The file that lists power switches: addresses and credentials by node, from a Secret."""

from __future__ import annotations

import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

import httpx2
import msgspec

from joulie.adapters.power_switches.programs import IPMITOOL, CommandSwitch, IpmiSwitch, Program, WakeOnLanSwitch
from joulie.adapters.power_switches.redfish import RedfishSwitch
from joulie.http_client import tls_context
from joulie.ports.power_switch import PowerSwitch

IPMI_PORT = 623


class SwitchFileError(ValueError):
    """A file of switches that cannot be read; the message names the file and the place in it, and no credentials."""


class SwitchKind(StrEnum):
    """How a switch is spoken to: key of its entry in the file, and value of the node's annotation."""

    REDFISH = "redfish"
    IPMI = "ipmi"
    WAKE_ON_LAN = "wakeOnLan"
    COMMAND = "command"


class NodeSwitch(NamedTuple):
    """The switch of a node."""

    switch: PowerSwitch
    may_force: bool = False
    """Whether its power may be cut where it does not shut down."""
    kind: SwitchKind = SwitchKind.REDFISH


_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _Switch(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    redfish: _Text | None = None
    ipmi: _Text | None = None
    wake_on_lan: _Text | None = None
    command: Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1)] | None = None
    username: str | None = None
    password: str | None = None
    broadcast: _Text = "255.255.255.255"
    env: dict[str, str] = {}
    cipher_suite: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    force_off: bool = False

    @property
    def kind(self) -> SwitchKind | None:
        """Its kind; None where it has none, or more than one."""
        told = {
            SwitchKind.REDFISH: self.redfish,
            SwitchKind.IPMI: self.ipmi,
            SwitchKind.WAKE_ON_LAN: self.wake_on_lan,
            # What a machine that wakes by a packet is shut down with.
            SwitchKind.COMMAND: self.command if self.wake_on_lan is None else None,
        }
        kinds = [kind for kind, value in told.items() if value is not None]
        return kinds[0] if len(kinds) == 1 else None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    switches: dict[str, _Switch]
    username: str = ""
    password: str = ""
    """Of the switches that name none."""


class SwitchFile:
    """The switches in a file, which is read again when it has changed.

    Args:
        path: the file.
        ca_file: PEM certificates of authorities of the BMCs; None for the system's.

    Raises:
        OSError: the certificates cannot be read.
    """

    def __init__(self, path: Path, ca_file: Path | None = None) -> None:
        self._path = path
        self._http = httpx2.AsyncClient(verify=tls_context(ca_file))
        self._stamp: tuple[int, int] | None = None
        self._switches: dict[str, NodeSwitch] = {}

    def reload(self) -> None:
        """Read the file if it has changed; what was read before stays in force where it cannot be read.

        Raises:
            SwitchFileError: it cannot be read.
        """
        try:
            found = self._path.stat()
            stamp = found.st_mtime_ns, found.st_size
            if stamp == self._stamp:
                return
            content = msgspec.yaml.decode(self._path.read_bytes(), type=_File)
        except (OSError, msgspec.MsgspecError) as error:
            # Errors of YAML go on with the lines at which they are, passwords among them.
            raise SwitchFileError(f"{self._path}: {str(error).partition(chr(10))[0]}") from None
        self._switches = {node: self._switch(node, one, content) for node, one in content.switches.items()}
        self._stamp = stamp

    def _switch(self, node: str, switch: _Switch, content: _File) -> NodeSwitch:
        kind = switch.kind
        made: PowerSwitch | None = None
        username = content.username if switch.username is None else switch.username
        password = content.password if switch.password is None else switch.password
        match kind:
            case SwitchKind.REDFISH if switch.redfish is not None:
                made = self._redfish(node, switch.redfish, username, password)
            case SwitchKind.IPMI:
                made = self._ipmi(node, switch, username, password)
            case SwitchKind.WAKE_ON_LAN if switch.wake_on_lan is not None and switch.command is not None:
                command = CommandSwitch(Program(switch.command, switch.env))
                made = WakeOnLanSwitch(self._mac(node, switch.wake_on_lan), switch.broadcast, command)
            case SwitchKind.COMMAND if switch.command is not None:
                made = CommandSwitch(Program(switch.command, switch.env))
        if kind is None or made is None:
            raise SwitchFileError(
                f"{self._path}: {node}: one of redfish, ipmi, command, and wakeOnLan with command is expected"
            )
        return NodeSwitch(made, switch.force_off, kind)

    def _redfish(self, node: str, address: str, username: str, password: str) -> RedfishSwitch:
        url = urlsplit(address)
        if url.scheme != "https" or not url.hostname or url.username is not None:
            raise SwitchFileError(f"{self._path}: {node}: an https URL without a user is expected")
        return RedfishSwitch(address, username, password, self._http)

    def _ipmi(self, node: str, switch: _Switch, username: str, password: str) -> IpmiSwitch:
        try:
            url = urlsplit(f"//{switch.ipmi}")
            host, port = url.hostname, url.port or IPMI_PORT
        except ValueError:
            host, port = None, 0
        # ipmitool takes what begins with a dash for an option.
        if not host or host.startswith("-") or url.username is not None or url.path:
            raise SwitchFileError(f"{self._path}: {node}: ipmi: a host name or address is expected")
        if shutil.which(IPMITOOL) is None:
            raise SwitchFileError(f"{self._path}: {node}: ipmi: {IPMITOOL} is not in PATH")
        return IpmiSwitch.of(host, port, username, password, switch.cipher_suite)

    def _mac(self, node: str, text: str) -> bytes:
        try:
            mac = bytes.fromhex(text.replace(":", "").replace("-", ""))
        except ValueError:
            mac = b""
        if len(mac) != 6:
            raise SwitchFileError(f"{self._path}: {node}: wakeOnLan: a MAC address is expected")
        return mac

    def get(self, node: str) -> NodeSwitch | None:
        """The switch of a node; None if it has none."""
        return self._switches.get(node)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()
