"""The file that lists power switches: addresses and credentials by node, from a Secret."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

import httpx2
import msgspec

from joulie.adapters.power_switches.redfish import RedfishSwitch
from joulie.http_client import tls_context
from joulie.ports import PowerSwitch


class SwitchFileError(ValueError):
    """A file of switches that cannot be read; the message names the file and the place in it, and no credentials."""


class NodeSwitch(NamedTuple):
    """The switch of a node."""

    switch: PowerSwitch
    may_force: bool = False
    """Whether its power may be cut where it does not shut down."""


class _Switch(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    redfish: Annotated[str, msgspec.Meta(min_length=1)]
    username: str | None = None
    password: str | None = None
    force_off: bool = False


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
        self._switches = {
            node: NodeSwitch(self._redfish(node, one, content), one.force_off) for node, one in content.switches.items()
        }
        self._stamp = stamp

    def _redfish(self, node: str, switch: _Switch, content: _File) -> RedfishSwitch:
        url = urlsplit(switch.redfish)
        if url.scheme != "https" or not url.hostname or url.username is not None:
            raise SwitchFileError(f"{self._path}: {node}: an https URL without a user is expected")
        username = content.username if switch.username is None else switch.username
        password = content.password if switch.password is None else switch.password
        return RedfishSwitch(switch.redfish, username, password, self._http)

    def get(self, node: str) -> NodeSwitch | None:
        """The switch of a node; None if it has none."""
        return self._switches.get(node)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()
