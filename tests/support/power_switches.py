"""Machines whose power is switched: one in memory, and Redfish's emulator as a process of its own."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from joulie.adapters.kubernetes.resources import NODES
from joulie.adapters.power_switches.file import NodeSwitch, SwitchFileError, SwitchKind
from joulie.ports.power_switch import PowerState, PowerSwitchError
from joulie.program.certificates import self_signed, write_files
from joulie_lab.control_plane import ManagedProcess
from joulie_lab.control_plane.ports import free_port
from support.operator_stage import until

USER, PASSWORD = "joulie", "not a secret"
HASHED = "$2b$04$wPriJM3WdDKfSd4rjqtewOKKhrZnDs75waZxfDGlTqBTdqQMc8Bqe"
"""The password by bcrypt."""
MACHINES = {"m1": "11111111-1111-4111-8111-111111111111", "m2": "22222222-2222-4222-8222-222222222222"}
ON, OFF = PowerState.ON, PowerState.OFF


@dataclass
class FakeMachine:
    """A machine and its switch.

    Attributes:
        power: whether it has power.
        obeys: whether it shuts down when it is asked to.
        wakes: whether it hears that it is to wake.
        answers: whether its BMC answers.
        shuts_down_in: reads of its state that its operating system takes to shut down.
        calls: what it was told.
        boots: how often it has booted.
    """

    power: PowerState = PowerState.ON
    obeys: bool = True
    wakes: bool = True
    answers: bool = True
    shuts_down_in: int = 0
    calls: list[str] = field(default_factory=list)
    boots: int = 1
    _left: int | None = None

    async def state(self) -> PowerState:
        self._heard()
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self.power, self._left = PowerState.OFF, None
        return self.power

    async def on(self) -> None:
        self._heard()
        self.calls.append("on")
        if self.wakes and self.power is PowerState.OFF:
            self.power = PowerState.ON
            self.boots += 1

    async def off(self, *, force: bool = False) -> None:
        self._heard()
        self.calls.append("force off" if force else "off")
        if force:
            self.power, self._left = PowerState.OFF, None
        elif self.obeys and self.power is PowerState.ON and self._left is None:
            self._left = self.shuts_down_in

    def _heard(self) -> None:
        if not self.answers:
            raise PowerSwitchError("no answer")


class Emulator:
    """sushy-emulator with its fake driver: machines that take up to 11 s to go on or off."""

    def __init__(self, folder: Path, now_s: float) -> None:
        """Make its files; `start` runs it."""
        pair = write_files(folder, self_signed(["127.0.0.1"], now_s))
        self.ca_file = pair.certificate
        port = free_port()
        users = folder / "users"
        users.write_text(f"{USER}:{HASHED}\n")
        systems = [{"uuid": uuid, "name": name, "power_state": "On", "nics": []} for name, uuid in MACHINES.items()]
        config = folder / "emulator.conf"
        config.write_text(
            f"SUSHY_EMULATOR_FAKE_DRIVER = True\nSUSHY_EMULATOR_FAKE_SYSTEMS = {systems!r}\n"
            f"SUSHY_EMULATOR_STATE_DIR = {str(folder)!r}\nSUSHY_EMULATOR_AUTH_FILE = {str(users)!r}\n"
        )
        self.url = f"https://127.0.0.1:{port}"
        program = Path(sys.executable).parent / "sushy-emulator"
        tls = ["--ssl-certificate", pair.certificate, "--ssl-key", pair.key]
        command = [program, "--config", config, "--fake", "-i", "127.0.0.1", "-p", str(port), *tls]
        self.process = ManagedProcess("sushy-emulator", command, folder / "log", {})

    def system(self, name: str) -> str:
        """URL of a machine."""
        return f"{self.url}/redfish/v1/Systems/{MACHINES[name]}"

    def file(self, path: Path) -> Path:
        """A file of switches for its machines."""
        switches = {name: {"redfish": self.system(name)} for name in MACHINES}
        path.write_text(json.dumps({"username": USER, "password": PASSWORD, "switches": switches}))
        return path


class Site:
    """Machines and their switches; kubelets are as the machines."""

    def __init__(self, *nodes, may_force=False):
        self.machines = {name: FakeMachine() for name in nodes}
        self.may_force = may_force
        self.kind = SwitchKind.REDFISH
        self.broken = False

    def reload(self):
        if self.broken:
            raise SwitchFileError("broken")

    def get(self, name):
        return NodeSwitch(self.machines[name], self.may_force, self.kind) if name in self.machines else None

    async def aclose(self): ...

    async def kubelets(self, stage):
        """Nodes say what their machines are."""
        for name, machine in self.machines.items():
            ready = {"type": "Ready", "status": "True" if machine.power is ON else "Unknown"}
            info = {"bootID": f"boot-{machine.boots}"}
            body = {"status": {"conditions": [ready], "nodeInfo": info}}
            await stage.client.patch(NODES, name, body, subresource="status")
        await until(
            lambda: all(
                (facts := stage.view.node(name)).ready is (machine.power is ON)
                and facts.boot_id == f"boot-{machine.boots}"
                for name, machine in self.machines.items()
            )
        )
