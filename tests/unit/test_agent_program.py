"""The agent as a whole, on directories that stand for a host and on a fake cluster."""

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from joulie.adapters.cpu.cpuinfo import CpuInfo, CpuInfoReader
from joulie.adapters.cpu.rapl import RaplMeter
from joulie.adapters.kubernetes.api.v1alpha1 import ControlStatus
from joulie.adapters.kubernetes.resources import NODE_HARDWARES, NODE_TWINS, NODES, TELEMETRY_PROFILES
from joulie.apps.agent import node as node_module
from joulie.domain import energy_counter
from joulie.domain.dvfs import DvfsSettings
from joulie.domain.mode import Mode
from joulie.ports.devices import EnergyReading
from support.agent_machine import AMD, Bench, Machine, on_cluster, until
from support.fake_gpus import NO_PERMISSION, FakeGpus
from support.sysfs_trees import amd_energy_only, amd_pstate, intel_pstate, intel_two_sockets, zone_file

pytestmark = pytest.mark.slow

ECO = {"packagePowerCapPctOfMax": 60}
BOTH = ("intel-rapl:0", "intel-rapl:2")
LIBRARY = "libnvidia-ml.so.1"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Two Intel sockets of 205 W; psys sits between them as intel-rapl:1."""
    machine = Machine(tmp_path)
    intel_two_sockets(machine.sys)
    intel_pstate(machine.sys)
    return machine


@pytest.fixture
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has, the agent's has no NVIDIA driver."""
    folder = tmp_path / "no-driver"
    folder.mkdir()
    (folder / LIBRARY).touch()  # found first, and not loadable
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))


@pytest.mark.usefixtures("no_gpu")
def test_cap_is_applied_reported_and_drift_is_healed(machine: Machine) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(cpu=ECO)
        async with bench.agent():
            await until(lambda: [machine.limit_w(zone) for zone in BOTH] == [123.0, 123.0])
            await until(lambda: _applied(bench))
            machine.set_limit_w(180.0)
            await until(lambda: machine.limit_w() == 123.0)
            cpu = await bench.cpu()
            assert (cpu.backend, cpu.result, cpu.message) == (
                "rapl",
                "applied",
                "2 x 123 W in force for a cap of 60 %",
            )
            assert (await bench.control()).observed_generation == (await bench.twin()).metadata.generation
            # Neither psys nor DRAM, which have limits of their own, is touched.
            assert machine.limit_w("intel-rapl:1") == 600.0
            assert machine.limit_w("intel-rapl:0:0") == 40.0

    on_cluster(machine, scenario)


@pytest.mark.usefixtures("no_gpu")
def test_stop_restores_and_says_so(machine: Machine) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(cpu=ECO)
        async with bench.agent():
            await until(lambda: _applied(bench))
        assert [machine.limit_w(zone) for zone in BOTH] == [205.0, 205.0]
        assert (await bench.cpu()).message == "restored: no cap requested, original limits in force"
        # No report for the caps of this twin: they are not in force.
        assert (await bench.control()).observed_generation is None

    on_cluster(machine, scenario)


@pytest.mark.usefixtures("no_gpu")
def test_without_restore_on_exit_the_cap_stays(machine: Machine) -> None:
    machine.settings["restore_on_exit"] = False

    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(cpu=ECO)
        async with bench.agent():
            await until(lambda: _applied(bench))
        assert machine.limit_w() == 123.0
        assert "205" in machine.saved

    on_cluster(machine, scenario)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("lifted", [{"packagePowerCapPctOfMax": 100}, None])
def test_trap_caps_of_a_killed_agent_give_way_to_the_original_limits(
    machine: Machine, lifted: dict[str, float] | None
) -> None:
    machine.set_limit_w(190.0, BOTH[0])  # what the machine's owner chose, not its maximum

    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(cpu=ECO)
        async with bench.agent() as task:
            await until(lambda: _applied(bench))
            await bench.kill(task)
        assert machine.limit_w() == 123.0
        await bench.ask(cpu=lifted)
        async with bench.agent():
            await until(lambda: [machine.limit_w(zone) for zone in BOTH] == [190.0, 205.0])
            await until(lambda: _restored(bench))

    on_cluster(machine, scenario)


@pytest.mark.usefixtures("no_gpu")
def test_restarted_agent_keeps_the_first_originals(machine: Machine) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(cpu=ECO)
        async with bench.agent() as task:
            await until(lambda: _applied(bench))
            await bench.kill(task)
        await bench.ask(cpu={"packagePowerCapWatts": 100})
        async with bench.agent():
            await until(lambda: machine.limit_w() == 100.0)
        assert machine.limit_w() == 205.0

    on_cluster(machine, scenario)


@pytest.mark.usefixtures("no_gpu")
def test_deleted_twin_takes_its_caps_along(machine: Machine) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(cpu=ECO)
        async with bench.agent():
            await until(lambda: _applied(bench))
            await bench.client.delete(NODE_TWINS, bench.name)
            await until(lambda: machine.limit_w() == 205.0)
            await bench.ask(cpu=ECO)
            await until(lambda: _applied(bench))

    on_cluster(machine, scenario)


@pytest.mark.usefixtures("no_gpu")
def test_rapl_lost_and_found_again(machine: Machine) -> None:
    machine.settings["dvfs"] = DvfsSettings(cooldown_s=0.0, trip_count=1)

    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(cpu={"packagePowerCapWatts": 100})
        async with bench.agent():
            await until(lambda: _backend(bench, "rapl"))
            _enable(machine, enabled=False)
            _burn(machine)
            await until(lambda: _backend(bench, "dvfs"))
            await until(lambda: _burn(machine) or machine.max_khz() < 3_500_000)
            assert machine.max_khz() >= 1_500_000
            _enable(machine, enabled=True)
            await until(lambda: _backend(bench, "rapl"))
            await until(lambda: machine.max_khz() == 3_500_000)

    on_cluster(machine, scenario)


@pytest.mark.usefixtures("no_gpu")
def test_amd_without_hsmp_is_capped_by_frequency(tmp_path: Path) -> None:
    machine = Machine(tmp_path, cpuinfo=AMD)
    amd_pstate(amd_energy_only(machine.sys))
    # Nothing counts: the tree's energy stands still, power is 0 W and the throttle would never move.
    for number in range(2):
        zone_file(machine.sys, f"intel-rapl:{number}", "energy_uj").unlink()

    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(cpu=ECO)
        async with bench.agent() as task:
            # 40 % of the span from 3.7 down to 0.4 GHz.
            await until(lambda: machine.max_khz() == 2_380_000)
            await until(lambda: _backend(bench, "dvfs"))
            await bench.kill(task)
        async with bench.agent():
            await until(lambda: _backend(bench, "dvfs"))
        assert machine.max_khz() == 3_700_000

    on_cluster(machine, scenario)


@pytest.mark.usefixtures("no_gpu")
def test_h1_frequency_controller_whose_counters_stand_still_is_an_error(tmp_path: Path) -> None:
    machine = Machine(tmp_path, cpuinfo=AMD)
    amd_pstate(amd_energy_only(machine.sys))

    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(cpu=ECO)
        async with bench.agent():
            await until(lambda: _result(bench, "error"))
            assert machine.max_khz() == 2_380_000  # 40 % of the span, as without a meter
            assert "power cannot be read" in ((await bench.cpu()).message or "")

    on_cluster(machine, scenario)


@pytest.mark.usefixtures("no_gpu")
def test_h1_agent_reads_counters_between_its_cycles(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.settings["reconcile_interval_s"] = 3600.0
    monkeypatch.setattr(energy_counter, "MAX_SAMPLING_INTERVAL_S", 0.05)
    reads: list[float] = []
    energy = RaplMeter.energy

    def counted(meter: RaplMeter) -> Sequence[EnergyReading]:
        reads.append(0.0)
        return energy(meter)

    monkeypatch.setattr(RaplMeter, "energy", counted)

    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        async with bench.agent():
            await until(lambda: len(reads) > 10)

    on_cluster(machine, scenario)


@pytest.mark.usefixtures("no_gpu")
def test_simulate_only_writes_nothing_and_says_blocked(machine: Machine) -> None:
    machine.settings["simulate_only"] = True

    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(cpu=ECO)
        async with bench.agent():
            await until(lambda: _result(bench, "blocked"))
            message = (await bench.cpu()).message or ""
        assert message.startswith("SIMULATE_ONLY")
        assert machine.limit_w() == 205.0
        assert machine.saved == ""

    on_cluster(machine, scenario)


@pytest.mark.usefixtures("no_gpu")
def test_observe_mode_writes_nothing_and_says_what_it_would(machine: Machine) -> None:
    machine.settings["default_mode"] = Mode.OBSERVE
    before = _contents(machine)

    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(cpu=ECO)
        async with bench.agent():
            await until(lambda: _result(bench, "observed"))
            control = await bench.control()
            assert control.cpu is not None
            assert (control.cpu.backend, control.cpu.message) == (
                "rapl",
                "observe mode, nothing is written; otherwise 2 x 123 W for a cap of 60 %",
            )
            assert control.observed_generation == (await bench.twin()).metadata.generation
            await bench.ask(cpu={"packagePowerCapPctOfMax": 100})
            await until(lambda: _restored(bench))
            assert (await bench.cpu()).result == "observed"
        assert (_contents(machine), machine.saved) == (before, "")

    on_cluster(machine, scenario)


@pytest.mark.usefixtures("no_gpu")
def test_label_of_the_node_wins_over_the_mode_and_observing_lifts_everything(machine: Machine) -> None:
    machine.settings["default_mode"] = Mode.OBSERVE

    async def scenario(bench: Bench) -> None:
        await bench.add_node(**{"joulie.io/mode": "enforce"})
        await bench.ask(cpu=ECO)
        async with bench.agent():
            await until(lambda: [machine.limit_w(zone) for zone in BOTH] == [123.0, 123.0])
            await until(lambda: _result(bench, "applied"))
            await bench.client.patch(NODES, machine.node, {"metadata": {"labels": {"joulie.io/mode": None}}})
            await until(lambda: [machine.limit_w(zone) for zone in BOTH] == [205.0, 205.0])
            await until(lambda: _result(bench, "observed"))

    on_cluster(machine, scenario)


@pytest.mark.usefixtures("no_gpu")
def test_agent_that_starts_in_observe_mode_lifts_the_caps_of_one_before_it(machine: Machine) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(cpu=ECO)
        async with bench.agent() as task:
            await until(lambda: [machine.limit_w(zone) for zone in BOTH] == [123.0, 123.0])
            await bench.kill(task)
        machine.settings["default_mode"] = Mode.OBSERVE
        async with bench.agent():
            await until(lambda: [machine.limit_w(zone) for zone in BOTH] == [205.0, 205.0])
            await until(lambda: _result(bench, "observed"))

    on_cluster(machine, scenario)


def test_observe_mode_reads_gpus_only(machine: Machine, driver: FakeGpus) -> None:
    machine.settings["default_mode"] = Mode.OBSERVE

    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(gpu={"scope": "perGpu", "capPctOfMax": 60})
        async with bench.agent():
            await until(lambda: _gpu_result(bench, "observed"))
            assert "2 x 420 W" in ((await bench.gpu()).message or "")

    on_cluster(machine, scenario)


@pytest.mark.usefixtures("no_gpu")
def test_one_package_that_refuses_does_not_stop_the_other(machine: Machine) -> None:
    zone_file(machine.sys, BOTH[1], "enabled").write_text("0\n")

    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(cpu=ECO)
        async with bench.agent():
            await until(lambda: _result(bench, "blocked"))
            message = (await bench.cpu()).message or ""
            assert machine.limit_w() == 123.0
            assert message.startswith("1 x 123 W in force for a cap of 60 %; package-1: ")

    on_cluster(machine, scenario)


@pytest.mark.usefixtures("no_gpu")
def test_hardware_is_published_and_healed(machine: Machine) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        async with bench.agent():
            await until(bench.hardware)
            await until(lambda: _model(bench, "Intel Xeon Gold 6530"))
            hardware = await bench.hardware()
            assert hardware is not None
            assert hardware.status.cpu is not None
            assert (hardware.status.cpu.sockets, hardware.status.cpu.vendor) == (2, "intel")
            assert hardware.status.cpu.cap_range is not None
            assert hardware.status.cpu.cap_range.max_watts_per_socket == 205.0
            assert hardware.metadata.owner_references[0].name == bench.machine.node
            edited = {"status": {"cpu": {"model": "by hand"}}}
            await bench.client.patch(NODE_HARDWARES, bench.name, edited, subresource="status", field_manager="someone")
            await until(lambda: _model(bench, "Intel Xeon Gold 6530"))

    on_cluster(machine, scenario)


@pytest.mark.usefixtures("no_gpu")
def test_dotted_node_name_is_one_object(machine: Machine) -> None:
    machine.node = "ip-10-0-0-1.eu-central-1.compute.internal"

    async def scenario(bench: Bench) -> None:
        assert bench.name == machine.node
        await bench.add_node()
        await bench.ask(cpu=ECO)
        async with bench.agent():
            await until(lambda: _applied(bench))
            await until(bench.hardware)

    on_cluster(machine, scenario)


@pytest.mark.usefixtures("no_gpu")
def test_a_settled_agent_writes_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    cycles = 0
    read = CpuInfoReader.read

    def counted(reader: CpuInfoReader) -> CpuInfo:
        nonlocal cycles
        cycles += 1
        return read(reader)

    monkeypatch.setattr(CpuInfoReader, "read", counted)

    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(cpu=ECO)
        async with bench.agent():
            await until(lambda: _applied(bench))
            await until(lambda: _model(bench, "Intel Xeon Gold 6530"))

            async def rests() -> bool:
                settled, begun = await _objects(bench), cycles
                await until(lambda: cycles >= begun + 5)
                return await _objects(bench) == settled

            # What is applied may be confirmed, and power be known, a cycle later.
            await until(rests)

    on_cluster(machine, scenario)


@pytest.mark.usefixtures("no_gpu")
def test_the_operators_fields_stay(machine: Machine) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(cpu=ECO)
        status = {"status": {"schedulableClass": "eco", "predictedPowerHeadroomScore": 42.0}}
        await bench.client.apply(NODE_TWINS, bench.name, status, field_manager="joulie-operator", subresource="status")
        async with bench.agent():
            await until(lambda: _applied(bench))
        twin = await bench.twin()
        assert twin.status.schedulable_class == "eco"
        assert twin.status.predicted_power_headroom_score == 42.0
        assert twin.spec.cpu is not None

    on_cluster(machine, scenario)


@pytest.mark.usefixtures("no_gpu")
def test_control_goes_on_while_the_api_server_is_away(machine: Machine) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(cpu=ECO)
        async with bench.agent():
            await until(lambda: _applied(bench))
            await bench.cluster.stop()
            machine.set_limit_w(180.0)
            await until(lambda: machine.limit_w() == 123.0)
            await bench.cluster.start()

    on_cluster(machine, scenario)


@pytest.mark.usefixtures("no_gpu")
def test_profile_that_names_the_node_switches_control_off_and_gets_the_report(machine: Machine) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(cpu=ECO)
        async with bench.agent():
            await until(lambda: _applied(bench))
            target = {"scope": "node", "nodeName": machine.node}
            spec = {"target": target, "controls": {"cpu": {"type": "none"}}}
            await bench.client.create(TELEMETRY_PROFILES, {"metadata": {"name": "off"}, "spec": spec})
            await until(lambda: machine.limit_w() == 205.0)
            await until(lambda: _result(bench, "blocked"))
            await until(lambda: _told_to_profile(bench, "off"))

    on_cluster(machine, scenario)


def test_gpus_are_capped_and_restored(machine: Machine, driver: FakeGpus) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(gpu={"scope": "perGpu", "capPctOfMax": 60})
        async with bench.agent():
            # 60 % of the default limit, 700 W, not of the largest, 800 W.
            await until(lambda: _gpu_limits(driver) == [420_000, 420_000])
            await until(lambda: _gpu_result(bench, "applied"))
            driver.write(0, set_mw=650_000)
            await until(lambda: _gpu_limits(driver) == [420_000, 420_000])
            await bench.ask()
            await until(lambda: _gpu_limits(driver) == [700_000, 700_000])

    on_cluster(machine, scenario)


def test_gpu_without_permission_is_blocked(machine: Machine, driver: FakeGpus) -> None:
    driver.write(0, fail_set=NO_PERMISSION)
    driver.write(1, fail_set=NO_PERMISSION)

    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(cpu=ECO, gpu={"capWattsPerGpu": 300})
        async with bench.agent():
            await until(lambda: _gpu_result(bench, "blocked"))
            await until(lambda: _applied(bench))

    on_cluster(machine, scenario)


def test_h11_cpus_are_capped_while_the_gpu_driver_hangs(
    machine: Machine, driver: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "_GPU_PATIENCE_S", 0.01)
    driver.set(hang=1)

    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(cpu=ECO, gpu={"capWattsPerGpu": 300})
        async with bench.agent():
            await until(lambda: _applied(bench))
            await until(lambda: _gpu_result(bench, "unconfirmed"))
            assert [machine.limit_w(zone) for zone in BOTH] == [123.0, 123.0]
            machine.set_limit_w(180.0)
            await until(lambda: machine.limit_w() == 123.0)
            driver.set(hang=0)
            await until(lambda: _gpu_limits(driver) == [300_000, 300_000])
            await until(lambda: _gpu_result(bench, "applied"))

    on_cluster(machine, scenario)


def test_h11_a_slow_driver_is_late_and_heard(
    machine: Machine, driver: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "_GPU_PATIENCE_S", 1e-6)
    driver.set(latency_us=1000)

    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(gpu={"capWattsPerGpu": 300})
        async with bench.agent():
            await until(lambda: _gpu_result(bench, "unconfirmed"))
            await until(lambda: _gpu_result(bench, "applied"))
            assert _gpu_limits(driver) == [300_000, 300_000]

    on_cluster(machine, scenario)


def test_h11_a_driver_is_let_go_at_once(machine: Machine, driver: FakeGpus) -> None:
    machine.settings["reconcile_interval_s"] = 3600.0

    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        caps = itertools.cycle(({"capWattsPerGpu": 300}, {"capWattsPerGpu": 310}))
        await bench.ask(gpu=next(caps))

        async def is_applied() -> bool:
            for _ in range(100):
                if await _gpu_result(bench, "applied"):
                    return True
                await asyncio.sleep(0.02)
            await bench.ask(gpu=next(caps))  # a driver that was late counts in the next cycle, and none is due for long
            return False

        async with bench.agent():
            await until(is_applied)
            assert driver.get("inits") > driver.get("shutdowns")
            labels = {"nvidia.com/gpu.deploy.dcgm": "paused-for-driver-upgrade"}
            body = {"metadata": {"labels": labels}}
            await bench.client.apply(NODES, machine.node, body, field_manager="driver-manager")
            await until(lambda: driver.get("inits") == driver.get("shutdowns"))

    on_cluster(machine, scenario)


def test_h11_nvml_is_let_go_for_a_driver_upgrade(machine: Machine, driver: FakeGpus) -> None:
    async def label(bench: Bench, state: str) -> None:
        labels = {"nvidia.com/gpu-driver-upgrade-state": state}
        await bench.client.apply(NODES, machine.node, {"metadata": {"labels": labels}}, field_manager="gpu-operator")

    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        await bench.ask(gpu={"capWattsPerGpu": 300})
        async with bench.agent():
            await until(lambda: _gpu_result(bench, "applied"))
            await label(bench, "pod-restart-required")
            await until(lambda: _gpu_result(bench, "blocked"))
            assert "the GPU driver is being upgraded" in ((await bench.gpu()).message or "")
            assert driver.get("inits") == driver.get("shutdowns") > 0
            calls = driver.get("calls")
            driver.reload()
            for gpu in range(2):
                driver.write(gpu, set_mw=700_000)
            hardware = await bench.hardware()
            assert hardware is not None
            assert hardware.status.gpu is not None
            assert (hardware.status.gpu.count, hardware.status.gpu.control_available) == (2, False)
            assert driver.get("calls") == calls, "nobody touches the driver"
            await label(bench, "upgrade-done")
            await until(lambda: _gpu_limits(driver) == [300_000, 300_000])

    on_cluster(machine, scenario)
    assert driver.get("inits") == driver.get("shutdowns")


def test_node_created_again_gets_its_hardware_again(machine: Machine, no_gpu: None) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.add_node()
        async with bench.agent():
            await until(bench.hardware)
            await bench.client.delete(NODES, machine.node)
            await until(lambda: _gone(bench))  # the garbage collector's work: the Node owns it
            await bench.add_node()
            uid = (await bench.client.get(NODES, machine.node)).metadata.uid

            async def is_owned() -> bool:
                hardware = await bench.hardware()
                return hardware is not None and [one.uid for one in hardware.metadata.owner_references] == [uid]

            await until(is_owned)

    on_cluster(machine, scenario)


async def _told_to_profile(bench: Bench, name: str) -> bool:
    """Whether the profile says what the twin says; written one after the other, they may differ in the second."""
    profile = await bench.client.get(TELEMETRY_PROFILES, name)
    return _said(profile.status.control) == _said(await bench.control())


def _said(control: ControlStatus | None) -> list[tuple[str | None, ...]]:
    results = () if control is None else (control.cpu, control.gpu)
    return [(one.backend, one.result, one.message) for one in results if one is not None]


def _contents(machine: Machine) -> dict[str, str]:
    return {str(file): file.read_text() for file in machine.sys.rglob("*") if file.is_file()}


async def _gpu_result(bench: Bench, result: str) -> bool:
    return (await bench.gpu()).result == result


async def _applied(bench: Bench) -> bool:
    return await _result(bench, "applied") and not await _restored(bench)


async def _restored(bench: Bench) -> bool:
    return ((await bench.cpu()).message or "").startswith("restored")


async def _result(bench: Bench, result: str) -> bool:
    return (await bench.cpu()).result == result


async def _backend(bench: Bench, backend: str) -> bool:
    return (await bench.cpu()).backend == backend


async def _model(bench: Bench, model: str) -> bool:
    hardware = await bench.hardware()
    return hardware is not None and hardware.status.cpu is not None and hardware.status.cpu.model == model


async def _gone(bench: Bench) -> bool:
    return await bench.hardware() is None


async def _objects(bench: Bench) -> list[object]:
    """Both objects of the node, whole: a write shows in their resource versions."""
    return [await bench.twin(), await bench.hardware()]


def _gpu_limits(driver: FakeGpus) -> list[int]:
    return [driver.read(gpu, "set_mw") for gpu in range(2)]


def _enable(machine: Machine, *, enabled: bool) -> None:
    for zone in BOTH:
        zone_file(machine.sys, zone, "enabled").write_text(f"{int(enabled)}\n")


def _burn(machine: Machine) -> None:
    """Add energy: thousands of joules between two cycles are far above any cap, and below what is absurd."""
    for zone in BOTH:
        file = zone_file(machine.sys, zone, "energy_uj")
        file.write_text(f"{int(file.read_text()) + 20_000_000}\n")
