"""Power switch of a machine with a BMC that speaks Redfish (DSP0266): the action ComputerSystem.Reset.

Requests authenticate one by one: BMCs have few sessions, and a program that is killed would leave its own behind. A
task that the BMC answers with (202) is not followed; the power state tells what came of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx2
import msgspec

from joulie.http_client import RequestError, fetch, shown_body
from joulie.ports.power_switch import PowerState, PowerSwitchError

_TIMEOUT_S = 10.0
_MAX_BYTES = 1 << 20
_STATES = {"On": PowerState.ON, "Off": PowerState.OFF}


class _Reset(msgspec.Struct):
    target: str = ""
    allowed: list[str] | None = msgspec.field(name="ResetType@Redfish.AllowableValues", default=None)


class _Actions(msgspec.Struct):
    reset: _Reset = msgspec.field(name="#ComputerSystem.Reset", default_factory=_Reset)


class _System(msgspec.Struct, rename="pascal"):
    power_state: str | None = None
    actions: _Actions = msgspec.field(default_factory=_Actions)

    @property
    def state(self) -> PowerState:
        """Anything but on and off (PoweringOn, PoweringOff, Paused, null) is on its way, or unknown."""
        return _STATES.get(self.power_state or "", PowerState.CHANGING)


@dataclass(frozen=True)
class RedfishSwitch:
    """The switch of one machine.

    Attributes:
        system: URL of its ComputerSystem, https.
        username: user of the BMC; empty for none.
        password: of that user.
        http: HTTP client that verifies the BMC's certificate and follows no redirects.
    """

    system: str
    username: str
    password: str = field(repr=False)
    http: httpx2.AsyncClient = field(repr=False)

    async def state(self) -> PowerState:
        """Whether the machine has power."""
        return (await self._read()).state

    async def on(self) -> None:
        """Switch it on; nothing is done where it is on."""
        system = await self._read()
        if system.state is not PowerState.ON:
            await self._reset(system, "On", "ForceOn")

    async def off(self, *, force: bool = False) -> None:
        """Have it shut down, or cut its power by force; nothing is done where it is off."""
        system = await self._read()
        if system.state is not PowerState.OFF:
            await self._reset(system, "ForceOff" if force else "GracefulShutdown")

    async def _read(self) -> _System:
        body = await self._request("GET", self.system)
        try:
            return msgspec.json.decode(body, type=_System)
        except msgspec.DecodeError as error:
            raise PowerSwitchError(f"{self.system}: not a ComputerSystem: {error}") from error

    async def _reset(self, system: _System, *types: str) -> None:
        """Reset with the first of some types that the BMC has; one that does not say which it has is taken at its word.

        Raises:
            PowerSwitchError: it has none of them, or did not accept it.
        """
        reset = system.actions.reset
        kind = next((one for one in types if reset.allowed is None or one in reset.allowed), None)
        if kind is None:
            raise PowerSwitchError(f"{self.system} has no {' or '.join(types)}")
        target = str(httpx2.URL(self.system).join(reset.target))
        if not reset.target or urlsplit(target)[:2] != urlsplit(self.system)[:2]:
            raise PowerSwitchError(f"{self.system}: its reset action is not on the same host: {reset.target!r}")
        await self._request("POST", target, json={"ResetType": kind})

    async def _request(self, method: str, url: str, **more: object) -> bytes:
        auth = (self.username, self.password) if self.username else None
        try:
            response, body = await fetch(
                self.http, method, url, max_bytes=_MAX_BYTES, timeout=_TIMEOUT_S, auth=auth, **more
            )
        except RequestError as error:
            raise PowerSwitchError(f"{method} {url}: {error}") from error
        if not response.is_success:
            raise PowerSwitchError(f"{method} {url}: {response.status_code} {shown_body(body)}")
        return body
