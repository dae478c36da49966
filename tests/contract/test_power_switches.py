"""What every power switch must do: one in memory, Redfish and IPMI against emulators, commands and Wake-on-LAN."""

import asyncio
import json
import os
import time
from contextlib import asynccontextmanager

import httpx2
import pytest

from joulie.adapters.power_switches.file import SwitchFile, SwitchFileError
from joulie.adapters.power_switches.programs import CommandSwitch, Program, WakeOnLanSwitch
from joulie.adapters.power_switches.redfish import RedfishSwitch
from joulie.http_client import tls_context
from joulie.ports.power_switch import PowerState, PowerSwitchError
from joulie.program.certificates import self_signed, write_files
from joulie_lab.control_plane import wait_for
from support import ipmi as ipmi_user
from support.fetched_programs import write_program
from support.ipmi import IpmiEmulator
from support.power_switches import PASSWORD, USER, Emulator, FakeMachine
from support.scripted_server import serving

PATIENCE_S = 60.0


def now_s():
    return time.time()  # noqa: TID251 - certificates of real servers


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    emulator = Emulator(tmp_path_factory.mktemp("emulator"), now_s())
    emulator.process.start()
    with httpx2.Client(verify=tls_context(emulator.ca_file)) as http:

        def ready():
            assert emulator.process.running, emulator.process.log.read_text()
            try:
                return http.get(f"{emulator.url}/redfish/v1/").is_success
            except httpx2.ConnectError:
                return False

        try:
            wait_for(ready, PATIENCE_S, "the emulator answers")
            yield emulator
        finally:
            emulator.process.stop()


class InMemory:
    @asynccontextmanager
    async def switch(self):
        yield FakeMachine(shuts_down_in=2)


class OverRedfish:
    def __init__(self, emulator, folder):
        self._file = SwitchFile(emulator.file(folder / "switches.yaml"), emulator.ca_file)

    @asynccontextmanager
    async def switch(self):
        self._file.reload()
        try:
            yield self._file.get("m1").switch
        finally:
            await self._file.aclose()


@pytest.fixture(scope="module")
def ipmi(tmp_path_factory):
    emulator = IpmiEmulator(tmp_path_factory.mktemp("ipmi"))
    emulator.process.start()
    try:
        yield emulator
    finally:
        emulator.process.stop()


class FromFile:
    """A switch as the file has it."""

    def __init__(self, folder, entry):
        self._path = folder / "switches.yaml"
        self._path.write_text(json.dumps({"switches": {"m1": entry}}))

    @asynccontextmanager
    async def switch(self):
        switches = SwitchFile(self._path)
        switches.reload()
        try:
            yield switches.get("m1").switch
        finally:
            await switches.aclose()


def bmc(emulator, password):
    # OpenIPMI's simulator is one of those that do not tell.
    return {
        "ipmi": f"127.0.0.1:{emulator.port}", "username": ipmi_user.USER, "password": password, "cipherSuite": 3,
    }  # fmt: skip


class OverIpmi(FromFile):
    def __init__(self, emulator, folder):
        super().__init__(folder, bmc(emulator, ipmi_user.PASSWORD))

    @asynccontextmanager
    async def switch(self):
        async with super().switch() as switch:
            async with asyncio.timeout(PATIENCE_S):
                while not await answers(switch):
                    await asyncio.sleep(0.2)
            yield switch


async def answers(switch):
    try:
        await switch.state()
    except PowerSwitchError:
        return False
    return True


MACHINE = """#!/bin/sh
power={power}
case "$1" in
state) cat $power ;;
on) echo on > $power ;;
off) echo changing > $power; (sleep 0.2; echo off > $power) > /dev/null 2>&1 & wait ;;
force-off) echo off > $power ;;
*) echo "what is $1? $SECRET" >&2; exit 3 ;;
esac
"""


def machine(folder):
    """A program that is a machine of its own."""
    power = folder / "power"
    power.write_text("on")
    return write_program(folder / "machine", MACHINE.replace("{power}", str(power)))


class OnLan:
    """A machine that hears magic packets, and whose command can do anything but wake it."""

    MAC = "02:00:5e:10:00:01"

    def __init__(self, folder):
        self._machine = machine(folder)
        self._power = folder / "power"

    def heard(self, packet):
        if packet == b"\xff" * 6 + bytes.fromhex(self.MAC.replace(":", "")) * 16:
            new = self._power.with_suffix(".new")
            new.write_text("on")
            new.rename(self._power)  # its command may be reading the old one

    @asynccontextmanager
    async def switch(self):
        class Card(asyncio.DatagramProtocol):
            def datagram_received(_self, data, _address):
                self.heard(data)

        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(Card, local_addr=("127.0.0.1", 0))
        port = transport.get_extra_info("sockname")[1]
        command = CommandSwitch(Program((str(self._machine),)))
        try:
            yield WakeOnLanSwitch(bytes.fromhex(self.MAC.replace(":", "")), "127.0.0.1", command, port)
        finally:
            transport.close()


@pytest.fixture(params=["in memory", "redfish", "ipmi", "command", "wake on lan"])
def world(request, tmp_path, monkeypatch):
    match request.param:
        case "in memory":
            return InMemory()
        case "redfish":
            return OverRedfish(request.getfixturevalue("emulator"), tmp_path)
        case "ipmi":
            emulator = request.getfixturevalue("ipmi")
            monkeypatch.setenv("PATH", str(emulator.programs), prepend=os.pathsep)
            return OverIpmi(emulator, tmp_path)
        case "command":
            return FromFile(tmp_path, {"command": [str(machine(tmp_path))]})
    return OnLan(tmp_path)


def play(world, body):
    async def main():
        async with world.switch() as switch:
            await body(switch)

    asyncio.run(main())


async def becomes(switch, state):
    async with asyncio.timeout(PATIENCE_S):
        while await switch.state() is not state:
            await asyncio.sleep(0.0 if isinstance(switch, FakeMachine) else 0.1)


def test_it_goes_off_and_on_and_twice_is_once(world):
    async def body(switch):
        await switch.on()
        await becomes(switch, PowerState.ON)
        await switch.on()
        assert await switch.state() is PowerState.ON
        await switch.off()
        await becomes(switch, PowerState.OFF)
        await switch.off()
        await switch.off(force=True)
        assert await switch.state() is PowerState.OFF
        await switch.on()
        await becomes(switch, PowerState.ON)
        await switch.off(force=True)
        await becomes(switch, PowerState.OFF)

    play(world, body)


# ---- Redfish alone


def test_a_machine_that_the_bmc_does_not_know_and_a_wrong_password_are_errors(emulator):
    async def main():
        async with httpx2.AsyncClient(verify=tls_context(emulator.ca_file)) as http:
            for system, password, expected in (
                (f"{emulator.url}/redfish/v1/Systems/none", PASSWORD, "404"),
                (emulator.system("m2"), "wrong", "401"),
            ):
                switch = RedfishSwitch(system, USER, password, http)
                with pytest.raises(PowerSwitchError, match=expected) as raised:
                    await switch.state()
                assert password not in str(raised.value) or password == PASSWORD
                assert password not in repr(switch)

    asyncio.run(main())


def test_a_certificate_of_another_authority_is_refused(emulator, tmp_path):
    other = write_files(tmp_path, self_signed(["127.0.0.1"], now_s()))

    async def main():
        switches = SwitchFile(emulator.file(tmp_path / "switches.yaml"), other.certificate)
        switches.reload()
        with pytest.raises(PowerSwitchError, match="certificate verify failed"):
            await switches.get("m2").switch.state()
        await switches.aclose()

    asyncio.run(main())


class Bmc:
    """A BMC of few lines that has whatever a test says."""

    def __init__(self, state="On", **reset):
        self.system = {"PowerState": state, "Actions": {"#ComputerSystem.Reset": {"target": "/reset"} | reset}}
        self.status, self.body, self.told = 200, None, []

    async def answer(self, request, answer):
        if request.method == "POST":
            self.told.append((request.path, json.loads(request.body)["ResetType"]))
            await answer.whole(202, b'{"@odata.id": "/redfish/v1/TaskService/Tasks/1"}')
        elif self.status != 200:
            await answer.whole(self.status, b"{}", "location: https://127.0.0.1:1/elsewhere\r\n")
        else:
            await answer.whole(200, self.body or json.dumps(self.system).encode())

    def ask(self, body):
        async def main():
            async with serving(self.answer) as url, httpx2.AsyncClient() as http:
                await body(RedfishSwitch(f"{url}/redfish/v1/Systems/1", USER, PASSWORD, http))

        asyncio.run(main())


ALLOWED = "ResetType@Redfish.AllowableValues"


@pytest.mark.parametrize(
    ("bmc", "force", "told"),
    [
        (Bmc(**{ALLOWED: ["On", "GracefulShutdown", "ForceOff"]}), False, "GracefulShutdown"),
        (Bmc(**{ALLOWED: ["On", "GracefulShutdown", "ForceOff"]}), True, "ForceOff"),
        (Bmc(), False, "GracefulShutdown"),
        (Bmc("PoweringOn"), False, "GracefulShutdown"),
        (Bmc("PoweringOff"), True, "ForceOff"),
    ],
)
def test_off_asks_for_what_the_bmc_has_and_an_accepted_task_is_enough(bmc, force, told):
    bmc.ask(lambda switch: switch.off(force=force))
    assert bmc.told == [("/reset", told)]


def test_a_bmc_without_a_shutdown_is_not_forced_off():
    async def body(switch):
        with pytest.raises(PowerSwitchError, match="has no GracefulShutdown"):
            await switch.off()

    bmc = Bmc(**{ALLOWED: ["On", "ForceOff"]})
    bmc.ask(body)
    assert bmc.told == []


def test_on_takes_force_on_where_there_is_no_on():
    bmc = Bmc("Off", **{ALLOWED: ["ForceOn"]})
    bmc.ask(lambda switch: switch.on())
    assert bmc.told == [("/reset", "ForceOn")]


@pytest.mark.parametrize("target", ["https://elsewhere.example/reset", "//elsewhere.example/reset", ""])
def test_a_reset_elsewhere_is_refused(target):
    async def body(switch):
        with pytest.raises(PowerSwitchError, match="not on the same host"):
            await switch.off()

    bmc = Bmc(target=target)
    bmc.ask(body)
    assert bmc.told == []


@pytest.mark.parametrize(("status", "body"), [(302, None), (503, None), (200, b"[]"), (200, b'{"PowerState": 7}')])
def test_no_answer_that_is_not_a_system_says_anything(status, body):
    async def ask(switch):
        for call in (switch.state, switch.on, switch.off):
            with pytest.raises(PowerSwitchError):
                await call()

    bmc = Bmc()
    bmc.status, bmc.body = status, body
    bmc.ask(ask)
    assert bmc.told == []


@pytest.mark.parametrize("state", ["Paused", None, "PoweringOn"])
def test_other_states_are_neither_on_nor_off(state):
    async def body(switch):
        assert await switch.state() is PowerState.CHANGING

    Bmc(state).ask(body)


# ---- programs


def told(switch, *calls):
    async def main():
        for call in calls:
            await getattr(switch, call)()

    asyncio.run(main())


def test_a_wrong_password_of_a_bmc_is_an_error_without_it(ipmi, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(ipmi.programs), prepend=os.pathsep)

    async def body(switch):
        with pytest.raises(PowerSwitchError, match="ipmitool status: exit status 1") as raised:
            await switch.state()
        assert "hidden" not in str(raised.value) + repr(switch)

    play(FromFile(tmp_path, bmc(ipmi, "wrong-and-hidden")), body)


def test_a_command_that_fails_says_so_without_its_secrets_and_knows_no_other(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN_OF_THE_OPERATOR", "elsewhere")
    program = Program((str(machine(tmp_path)), "{action}-it"), {"SECRET": "hidden"})
    with pytest.raises(PowerSwitchError, match=r"machine state: exit status 3: what is state-it\? \*\*\*"):
        told(CommandSwitch(program), "state")
    assert "hidden" not in repr(program)
    env = Program(("env",), {"SECRET": "hidden"})
    known = asyncio.run(Program(("sh", "-c", "env # {action}"), env.environment).run("state"))
    assert "SECRET=hidden" in known
    assert "elsewhere" not in known


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo maybe", "on, off, changing is expected, got 'maybe'"),
        ("head -c 100000 /dev/zero", "is expected, got"),
        ("sleep 60", "no end within 0.2 s"),
        ("sleep 60 & sleep 60", "no end within 0.2 s"),
        ("exit 7", "exit status 7"),
    ],
)
def test_a_command_that_says_nothing_of_use_is_an_error(script, error):
    timeout_s = 0.2 if "sleep" in script else 30.0
    program = Program(("sh", "-c", f"{script} # {{action}}"), timeout_s=timeout_s)
    with pytest.raises(PowerSwitchError, match=error):
        told(CommandSwitch(program), "state")


def test_a_program_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(PowerSwitchError, match="missing state"):
        told(CommandSwitch(Program((str(tmp_path / "missing"),))), "state")


def test_no_packet_is_sent_to_a_machine_that_is_on(tmp_path):
    command = CommandSwitch(Program((str(machine(tmp_path)),)))
    told(WakeOnLanSwitch(b"\1" * 6, "no address", command), "on")
    (tmp_path / "power").write_text("off")
    with pytest.raises(PowerSwitchError, match="magic packet to no address"):
        told(WakeOnLanSwitch(b"\1" * 6, "no address", command), "on")


# ---- the file


def test_the_file_tells_the_kind_of_each_switch(tmp_path, monkeypatch):
    write_program(tmp_path / "bin" / "ipmitool", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    switches = reload(
        tmp_path / "switches.yaml",
        "username: u\npassword: p\nswitches:\n"
        "  a: {redfish: 'https://b/1'}\n"
        "  b: {ipmi: '[2001:db8::1]:6230', forceOff: true}\n"
        "  c: {command: [/bin/power, '{action}', c], env: {TOKEN: t}}\n"
        "  d: {wakeOnLan: 02-00-5e-10-00-01, broadcast: 10.1.255.255, command: [/bin/power, d]}\n",
    )
    assert {name: switches.get(name).kind.value for name in "abcd"} == {
        "a": "redfish", "b": "ipmi", "c": "command", "d": "wakeOnLan",
    }  # fmt: skip
    program = switches.get("b").switch.program
    assert program.argv[:7] == ("ipmitool", "-I", "lanplus", "-H", "2001:db8::1", "-p", "6230")
    assert program.environment == {"IPMI_PASSWORD": "p"}
    assert "p" not in program.argv
    assert switches.get("b").may_force
    assert switches.get("d").switch.broadcast == "10.1.255.255"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SwitchFileError, match="b: ipmi: ipmitool is not in PATH"):
        SwitchFile(tmp_path / "switches.yaml").reload()


def reload(path, text, switches=None):
    path.write_text(text)
    switches = switches or SwitchFile(path)
    switches.reload()
    return switches


def test_the_file_is_read_again_and_what_was_known_stays_where_it_is_wrong(tmp_path):
    path = tmp_path / "switches.yaml"
    one = "username: u\npassword: p\nswitches:\n  n1: {redfish: 'https://b/1'}\n"
    switches = reload(path, one)
    assert (switches.get("n1").switch.system, switches.get("n1").switch.username) == ("https://b/1", "u")
    assert not switches.get("n1").may_force
    reload(path, f"{one}  n2: {{redfish: 'https://b/2', username: '', password: q, forceOff: true}}\n", switches)
    assert (switches.get("n2").switch.password, switches.get("n2").may_force) == ("q", True)
    with pytest.raises(SwitchFileError):
        reload(path, "switches: {", switches)
    assert switches.get("n1")
    assert switches.get("n2")
    path.unlink()
    with pytest.raises(SwitchFileError):
        switches.reload()
    assert switches.get("n2")


@pytest.mark.parametrize(
    "text",
    [
        "switches: {n: {redfish: 'http://b/1', password: hidden}}",
        "switches: {n: {redfish: 'https://u:hidden@b/1'}}",
        "switches: {n: {redfish: '', password: hidden}}",
        "switches: {n: {ipmi: '-H evil', password: hidden}}",
        "switches: {n: {ipmi: 'hidden@b'}}",
        "switches: {n: {ipmi: 'b:port', password: hidden}}",
        "switches: {n: {ipmi: b, redfish: 'https://b', password: hidden}}",
        "switches: {n: {wakeOnLan: '02:00:5e:10:00:01', password: hidden}}",
        "switches: {n: {wakeOnLan: '02:00', command: [x], password: hidden}}",
        "switches: {n: {command: [], env: {A: hidden}}}",
        "switches: {n: {command: 'rm -rf', env: {A: hidden}}}",
        "switches: {n: {password: hidden}}",
        "switches:\n  n: {redfish: 'https://b'\n  password: hidden\n",
        "password: [hidden]\nswitches: {}",
        "- hidden",
        "",
    ],
)
def test_a_wrong_file_is_refused_and_shows_no_password(tmp_path, text):
    with pytest.raises(SwitchFileError, match=r"switches\.yaml") as raised:
        reload(tmp_path / "switches.yaml", text)
    assert "hidden" not in str(raised.value)
