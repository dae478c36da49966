"""GPU work of the agent beside its CPU work: a driver that hangs, is upgraded, or does not respond."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from joulie.adapters.cpu.cpuinfo import CpuInfo
from joulie.adapters.gpu.pci import AMD, NVIDIA
from joulie.adapters.kubernetes.api.v1alpha1 import (
    ControlOutcome,
    ControlResult,
    GpuHardware,
    NodeHardwareSpec,
    NodeHardwareStatus,
)
from joulie.adapters.kubernetes.control_reports import RESTORED
from joulie.apps.agent import node as node_module
from joulie.apps.agent.gpus import GpuBackends
from joulie.apps.agent.host import Host, HostBackends
from joulie.apps.agent.node import NodeAgent, NodeInputs
from joulie.apps.agent.outcome import Outcome, all_of, failed, reported_limits, restored
from joulie.apps.agent.routing import Routing, from_settings
from joulie.apps.agent.settings import AgentSettings
from joulie.apps.agent.views import HardwareView, NodeView, TwinView
from joulie.domain.actuation import WantedCap
from joulie.domain.dvfs import DvfsSettings
from joulie.domain.gpu_maintenance import gpu_hold_reason
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.saved_records import SavedRecords
from joulie.ports.devices import ControlFailedError, DeviceKind, FrequencyPolicy, NoBackendError, PowerDevice

ROUTING: Routing = from_settings(AgentSettings(node_name="n1"))
PATIENCE_S = 30.0


class Devices:
    """A backend of devices in memory; with `gate`, every call waits for it, as in a driver that hangs."""

    def __init__(self, name: str, kind: DeviceKind, model: str | None = None) -> None:
        self.name = name
        self.device = PowerDevice(
            f"{kind.value}-0", kind, model, limit_w=200.0, min_w=50.0, max_w=200.0, default_w=200.0
        )
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.error: ControlFailedError | None = None
        self.held: str | None = None
        self.lost: list[str] = []
        self.restart_reason: str | None = None
        self.present = True

    def unavailable(self) -> str | None:
        try:
            self.devices()
        except ControlFailedError as error:
            return str(error)
        return None

    def devices(self) -> Sequence[PowerDevice]:
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)
        if self.held is not None:
            raise ControlFailedError(self.held)
        if self.error is not None:
            raise self.error
        return [self.device] if self.present else []

    def set_limit(self, device_id: str, limit_w: float) -> float:
        self.devices()
        self.device = replace(self.device, limit_w=limit_w)
        return limit_w

    def hold(self, reason: str | None) -> None:
        self.held = reason


class NoFrequency:
    driver = ""

    def unavailable(self) -> str | None:
        return "no cpufreq"

    def policies(self) -> Sequence[FrequencyPolicy]:
        return []

    def set_limit(self, policy_id: str, limit_hz: float) -> float:
        raise AssertionError


class Store:
    def __init__(self) -> None:
        self.saved = SavedRecords(found=True)

    def load(self) -> SavedRecords:
        return self.saved

    def save(self, saved: SavedRecords) -> None:
        self.saved = saved

    def booted_at_epoch_s(self) -> float | None:
        return None


class Reports:
    """Takes the place of the Reporter."""

    def __init__(self) -> None:
        self.hardware_status = NodeHardwareStatus()

    async def hardware(self, stored: object, node: object, status: NodeHardwareStatus) -> None:
        self.hardware_status = status

    async def control(self, *_: object) -> None: ...


class Bench:
    """One node agent on devices in memory."""

    def __init__(self) -> None:
        self.cpu = Devices("rapl", DeviceKind.CPU_PACKAGE)
        self.gpu = Devices("nvml", DeviceKind.GPU, "NVIDIA L40S")
        self.amd = Devices("amdgpu", DeviceKind.GPU, "AMD Instinct MI210")
        self.amd.device = replace(self.amd.device, id="gpu-1")
        self.amd.error = NoBackendError("no AMD GPU")
        self.on_bus: dict[str, int] = {}
        self.backends = backends = HostBackends(
            cpu_info=lambda: CpuInfo("cpu", "GenuineIntel", 1, 8, 16),
            cpu_limiters=(self.cpu,),
            frequency=NoFrequency(),
            cpu_meters=(),
            gpus=(
                GpuBackends(NVIDIA, (self.gpu,), clients=(self.gpu,)),
                GpuBackends(AMD, (self.amd,), clients=(self.amd,)),
            ),
            store=Store(),
            catalogue=BUILTIN_CATALOGUE,
            gpus_on_bus=lambda: self.on_bus,
        )
        self.reports = Reports()
        self.agent = NodeAgent(
            "n1",
            Host(backends, DvfsSettings()),
            cast("Any", None),
            cast("Any", self.reports),
            BUILTIN_CATALOGUE,
            lambda: 0.0,
        )

    async def cycle(
        self,
        percent: float = 50.0,
        *,
        labels: dict[str, str] | None = None,
        stored: GpuHardware | None = None,
        now_s: float = 0.0,
    ) -> ControlOutcome:
        cap = WantedCap(percent=percent)
        hardware = HardwareView(NodeHardwareSpec(node_name="n1"), NodeHardwareStatus(gpu=stored)) if stored else None
        node = NodeView("uid", labels or {}, {"cpu": 8.0})
        await self.agent.cycle(NodeInputs(node, TwinView("n1", cap, cap), hardware, ROUTING), now_s)
        assert self.agent.gpu is not None
        return self.agent.gpu.result

    @property
    def gpu_hardware(self) -> GpuHardware:
        assert self.reports.hardware_status.gpu is not None
        return self.reports.hardware_status.gpu

    @property
    def backend(self) -> str:
        assert self.agent.gpu is not None
        return self.agent.gpu.backend

    @property
    def message(self) -> str:
        assert self.agent.gpu is not None
        return self.agent.gpu.message


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.gpu.gate.set()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle that waits for its GPU work no longer than for the event loop to turn."""
    monkeypatch.setattr(node_module, "_GPU_PATIENCE_S", 1e-6)
    monkeypatch.setattr(node_module, "_GPU_RESTORE_S", 1e-6)


def test_gpus_of_two_vendors_are_capped_and_restored_together(bench: Bench) -> None:
    async def scenario() -> None:
        bench.amd.error = None
        assert await bench.cycle(50.0) is ControlOutcome.APPLIED
        assert (bench.gpu.device.limit_w, bench.amd.device.limit_w) == (100.0, 100.0)
        assert bench.backend == "nvml+amdgpu"
        assert bench.message == (
            "nvml: 1 x 100 W in force for a cap of 50 %; amdgpu: 1 x 100 W in force for a cap of 50 %"
        )
        assert bench.gpu_hardware.count == 2
        assert await bench.cycle(100.0) is ControlOutcome.APPLIED
        assert (bench.gpu.device.limit_w, bench.amd.device.limit_w) == (200.0, 200.0)
        assert (bench.backend, bench.message) == (
            "nvml+amdgpu", "restored: no cap requested, original limits in force",
        )  # fmt: skip

    asyncio.run(scenario())


def test_gpus_of_two_vendors_are_restored_after_a_kill_with_the_saved_limits_lost(bench: Bench) -> None:
    async def scenario() -> None:
        bench.amd.error = None
        await bench.cycle(50.0)
        result = ControlResult(bench.backend, ControlOutcome.APPLIED, bench.message)
        assert [(one.backend, one.cap, one.complete) for one in reported_limits(result)] == [
            (name, WantedCap(percent=50.0), True) for name in ("nvml", "amdgpu")
        ]
        store = Store()
        store.saved = SavedRecords()
        host = Host(replace(bench.backends, store=store), DvfsSettings())
        for reported in reported_limits(result):
            host.recall(reported, 0.0)
        host.observe_gpu(0.0)
        assert host.enforce_gpu(WantedCap()).result is ControlOutcome.APPLIED
        assert (bench.gpu.device.limit_w, bench.amd.device.limit_w) == (200.0, 200.0)

    asyncio.run(scenario())


@pytest.mark.parametrize("failing", ["nvml", "amdgpu"])
def test_a_cap_is_applied_only_where_the_gpus_of_both_vendors_have_it(bench: Bench, failing: str) -> None:
    async def scenario() -> None:
        bench.amd.error = None
        await bench.cycle(100.0)
        broken, other = (bench.gpu, bench.amd) if failing == "nvml" else (bench.amd, bench.gpu)
        broken.error = ControlFailedError("the driver does not respond")
        assert await bench.cycle(50.0) is ControlOutcome.BLOCKED
        assert (broken.device.limit_w, other.device.limit_w) == (200.0, 100.0)
        assert bench.backend == other.name
        assert f"{other.name}: 1 x 100 W in force for a cap of 50 %" in bench.message
        assert f"{failing}: the driver does not respond" in bench.message
        assert bench.gpu_hardware.count == 2, "those seen last"
        broken.error = None
        assert await bench.cycle(50.0) is ControlOutcome.APPLIED
        broken.error = ControlFailedError("the driver does not respond")
        assert await bench.cycle(100.0) is ControlOutcome.ERROR
        assert (broken.device.limit_w, other.device.limit_w) == (100.0, 200.0)
        assert bench.backend == failing, "the other holds no limit"

    asyncio.run(scenario())


def test_h5_a_vendor_without_gpus_does_not_hide_limits_that_are_not_restored(bench: Bench) -> None:
    """Life 3,558 of `joulie bench lives --seed 7`: its report was taken for one of restored limits."""

    async def scenario() -> None:
        bench.gpu.error, bench.amd.error = NoBackendError("no NVIDIA GPU"), None
        assert await bench.cycle(50.0) is ControlOutcome.APPLIED
        bench.amd.error = ControlFailedError("device or resource busy")
        assert await bench.cycle(100.0) is ControlOutcome.ERROR
        assert (bench.backend, bench.amd.device.limit_w) == ("amdgpu", 100.0)
        assert bench.message.startswith("original limits not restored: gpu-1: device or resource busy")
        assert not bench.agent.is_restored
        (reported,) = reported_limits(ControlResult(bench.backend, ControlOutcome.ERROR, bench.message))
        assert (reported.backend, reported.limits_w) == ("amdgpu", (100.0,))

    asyncio.run(scenario())


_RESTORED = restored("nvml", "no cap requested")
_NO_BACKEND = restored("none", "no cap requested")
_KEPT = failed("amdgpu", "original limits not restored: gpu-1: busy; 100 W may be in force")


@pytest.mark.parametrize("others", [[_KEPT], [_NO_BACKEND, _KEPT], [_RESTORED, _KEPT], [_KEPT, _RESTORED, _NO_BACKEND]])
def test_a_report_says_restored_only_if_all_are(others: list[Outcome]) -> None:
    together = all_of(others)
    assert (together.backend, together.result) == ("amdgpu", ControlOutcome.ERROR)
    assert not together.message.startswith("restored")
    assert all_of([_RESTORED, _NO_BACKEND, _RESTORED]) == _RESTORED
    assert all_of([_NO_BACKEND, _NO_BACKEND]) == _NO_BACKEND


def test_gpus_of_a_second_vendor_without_a_driver_are_not_called_capped(bench: Bench) -> None:
    async def scenario() -> None:
        bench.on_bus = {"NVIDIA": 1, "AMD": 2}
        assert await bench.cycle(50.0) is ControlOutcome.BLOCKED
        assert bench.gpu.device.limit_w == 100.0
        assert bench.message == "nvml: 1 x 100 W in force for a cap of 50 %; amdgpu: no AMD GPU"
        unknown = "the GPUs are not known now: no driver responds for GPUs on the PCI bus: 2 AMD"
        assert unknown in bench.gpu_hardware.warnings
        (found,) = reported_limits(ControlResult("nvml", ControlOutcome.BLOCKED, bench.message))
        assert found.cap == WantedCap(percent=50.0), "a successor knows the cap by this report"
        assert await bench.cycle(100.0) is ControlOutcome.APPLIED
        assert bench.gpu.device.limit_w == 200.0

    asyncio.run(scenario())


def test_gpus_of_a_vendor_whose_driver_is_gone_at_the_start_are_not_forgotten(bench: Bench) -> None:
    """Else the power of the others would pass for that of all."""

    async def scenario() -> None:
        bench.on_bus = {"NVIDIA": 1, "AMD": 2}
        await bench.cycle(100.0, stored=GpuHardware(present=True, count=3))
        assert bench.gpu_hardware.count == 3

    asyncio.run(scenario())


def test_a_vendor_without_gpus_here_does_not_keep_a_cap_from_being_applied(bench: Bench) -> None:
    async def scenario() -> None:
        bench.on_bus = {"NVIDIA": 1}
        bench.amd.error = ControlFailedError("cannot list /sys/class/hwmon")
        assert await bench.cycle(50.0) is ControlOutcome.APPLIED
        assert (bench.backend, bench.message) == ("nvml", "1 x 100 W in force for a cap of 50 %")

    asyncio.run(scenario())


def test_limits_of_single_gpus_of_two_vendors(bench: Bench) -> None:
    bench.amd.error = None
    host = bench.agent.host
    assert host is not None
    host.observe_gpu(0.0)
    outcome = host.enforce_gpu(WantedCap(by_device=(("gpu-1", 120.0),)))
    assert outcome.result is ControlOutcome.APPLIED
    assert (bench.gpu.device.limit_w, bench.amd.device.limit_w) == (200.0, 120.0)
    host.observe_gpu(0.0)
    outcome = host.enforce_gpu(WantedCap(by_device=(("gpu-0", 110.0), ("gpu-1", 120.0))))
    assert outcome.result is ControlOutcome.APPLIED
    assert (bench.gpu.device.limit_w, bench.amd.device.limit_w) == (110.0, 120.0)


def test_positions_are_indices_only_where_all_gpus_are_of_one_vendor(bench: Bench) -> None:
    """A device plugin that counts from 0 must not name the other vendor's GPU."""
    host = bench.agent.host
    assert host is not None
    host.observe_cpu(0.0)

    def indexed() -> bool:
        host.observe_gpu(0.0)
        assert host.observation is not None
        return host.observation.gpus_indexed

    assert indexed()
    bench.amd.error = None
    assert not indexed()
    bench.gpu.error = ControlFailedError("the driver does not respond")
    assert not indexed()
    bench.gpu.error, bench.amd.error = None, NoBackendError("no AMD GPU")
    bench.gpu.lost = ["GPU 3 does not respond"]
    assert not indexed()


def test_h11_a_driver_upgrade_of_one_vendor_leaves_the_other_s_gpus_under_control(bench: Bench) -> None:
    async def scenario() -> None:
        bench.amd.error = None
        await bench.cycle(100.0)
        await bench.cycle(50.0, labels={"nvidia.com/gpu-driver-upgrade-state": "drain-required"})
        assert (bench.gpu.held is not None, bench.amd.held) == (True, None)
        assert (bench.gpu.device.limit_w, bench.amd.device.limit_w) == (200.0, 100.0)

    asyncio.run(scenario())


@pytest.mark.usefixtures("impatient")
def test_h11_a_hung_gpu_driver_delays_no_cap_of_the_cpus(bench: Bench) -> None:
    async def scenario() -> None:
        bench.gpu.gate.clear()
        for percent in (50.0, 60.0, 70.0):
            assert await bench.cycle(percent) is ControlOutcome.UNCONFIRMED
            assert bench.cpu.device.limit_w == 2.0 * percent
        assert bench.message == "the GPU driver has not answered yet; nothing waits for it"
        assert bench.gpu.device.limit_w == 200.0
        await bench.agent.restore(0.0)
        assert bench.cpu.device.limit_w == 200.0

    asyncio.run(scenario())


def test_h11_work_goes_on_when_the_driver_answers_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(node_module, "_GPU_PATIENCE_S", 1e-6)
            bench.gpu.gate.clear()
            await bench.cycle(50.0)
        bench.gpu.gate.set()
        assert await bench.agent._gpu_thread.idle(PATIENCE_S)
        assert bench.gpu.device.limit_w == 100.0, "what was asked for when the work began"
        assert await bench.cycle(60.0) is ControlOutcome.APPLIED
        assert bench.gpu.device.limit_w == 120.0

    asyncio.run(scenario())


@pytest.mark.usefixtures("impatient")
def test_h11_a_driver_that_is_always_late_is_heard_until_it_hangs(bench: Bench) -> None:
    async def late_cycle(percent: float, now_s: float) -> ControlOutcome:
        """A cycle whose GPU work ends after it."""
        bench.gpu.gate.clear()
        result = await bench.cycle(percent, now_s=now_s)
        bench.gpu.gate.set()
        assert await bench.agent._gpu_thread.idle(PATIENCE_S)
        return result

    async def scenario() -> None:
        assert await late_cycle(50.0, 0.0) is ControlOutcome.UNCONFIRMED
        assert await late_cycle(50.0, 20.0) is ControlOutcome.APPLIED
        assert await late_cycle(60.0, 40.0) is ControlOutcome.UNCONFIRMED, "another cap"
        assert await late_cycle(60.0, 60.0) is ControlOutcome.APPLIED
        bench.gpu.gate.clear()
        results = [await bench.cycle(60.0, now_s=now_s) for now_s in (80.0, 100.0, 120.0, 140.0)]
        assert results == [ControlOutcome.APPLIED] * 3 + [ControlOutcome.UNCONFIRMED]

    asyncio.run(scenario())


@pytest.mark.usefixtures("impatient")
def test_h11_gpus_published_earlier_stay_while_the_driver_hangs(bench: Bench) -> None:
    earlier = GpuHardware(present=True, count=8, model="NVIDIA L40S", control_available=True, telemetry_available=True)

    async def scenario() -> None:
        bench.gpu.gate.clear()
        await bench.cycle(stored=earlier)
        assert (bench.gpu_hardware.present, bench.gpu_hardware.count) == (True, 8)
        assert not bench.gpu_hardware.control_available
        assert bench.gpu_hardware.warnings == ("the GPUs are not known now: not read yet",)

    asyncio.run(scenario())


def test_h11_gpus_are_let_go_for_a_driver_upgrade_and_capped_afterwards(bench: Bench) -> None:
    key = "nvidia.com/gpu-driver-upgrade-state"

    async def scenario() -> None:
        assert await bench.cycle() is ControlOutcome.APPLIED
        assert await bench.cycle(labels={key: "drain-required"}) is ControlOutcome.BLOCKED
        assert bench.gpu.held == f"the GPU driver is being upgraded: {key}=drain-required"
        assert f"{key}=drain-required" in bench.message
        assert (bench.gpu_hardware.present, bench.gpu_hardware.control_available) == (True, False)
        assert await bench.cycle(labels={key: "upgrade-done"}) is ControlOutcome.APPLIED
        assert bench.gpu.held is None
        assert bench.gpu_hardware.control_available

    asyncio.run(scenario())


def test_h11_a_driver_that_fails_for_a_while_takes_no_gpu_away(bench: Bench) -> None:
    async def scenario() -> None:
        await bench.cycle()
        bench.gpu.error = ControlFailedError("NVML: Driver Not Loaded")
        assert await bench.cycle() is ControlOutcome.BLOCKED
        assert (bench.gpu_hardware.present, bench.gpu_hardware.count) == (True, 1)
        assert bench.gpu_hardware.warnings == ("the GPUs are not known now: nvml: NVML: Driver Not Loaded",)
        bench.gpu.error = NoBackendError("libnvidia-ml.so.1 not found")
        await bench.cycle()
        assert not bench.gpu_hardware.present

    asyncio.run(scenario())


def test_h11_lost_gpus_are_reported_and_do_not_make_a_node_one_without_gpus(bench: Bench) -> None:
    async def scenario() -> None:
        bench.gpu.lost = ["GPU 3 does not respond: GPU is lost"]
        assert await bench.cycle() is ControlOutcome.APPLIED
        assert bench.gpu_hardware.warnings == ("GPU 3 does not respond: GPU is lost",)
        bench.gpu.present = False
        await bench.cycle()
        assert (bench.gpu_hardware.present, bench.gpu_hardware.count) == (True, 1)
        assert bench.gpu_hardware.warnings == ("the GPUs are not known now: GPU 3 does not respond: GPU is lost",)

    asyncio.run(scenario())


def test_gpus_without_a_driver_in_the_container_are_blocked_and_told(bench: Bench) -> None:
    """Without them the node would be one without GPUs, whose GPU caps are nothing to do."""
    bench.gpu.error = NoBackendError("libnvidia-ml.so.1 not found")
    bench.on_bus = {"NVIDIA": 8}

    async def scenario() -> None:
        assert await bench.cycle() is ControlOutcome.BLOCKED
        assert bench.message == "nvml: libnvidia-ml.so.1 not found"
        assert bench.gpu_hardware.warnings == (
            "the GPUs are not known now: no driver responds for GPUs on the PCI bus: 8 NVIDIA",
        )

    asyncio.run(scenario())


def test_a_node_without_gpus_has_nothing_to_do(bench: Bench) -> None:
    bench.gpu.error = NoBackendError("libnvidia-ml.so.1 not found")

    async def scenario() -> None:
        assert await bench.cycle() is ControlOutcome.NONE
        assert bench.gpu_hardware.warnings == ()

    asyncio.run(scenario())


def test_h11_a_replaced_driver_restarts_the_agent(bench: Bench) -> None:
    assert bench.agent.host is not None
    assert bench.agent.host.why_not_alive() is None
    bench.gpu.restart_reason = "the GPU driver was replaced"
    assert bench.agent.host.why_not_alive() == "the GPU driver was replaced"


def test_h11_gpu_work_that_breaks_is_reported_and_the_cpus_are_capped(bench: Bench) -> None:
    async def scenario() -> None:
        bench.gpu.error = cast("ControlFailedError", ValueError("a bug"))
        assert await bench.cycle(60.0) is ControlOutcome.ERROR
        assert bench.message == "GPU work failed: a bug"
        assert bench.cpu.device.limit_w == 120.0

    asyncio.run(scenario())


def test_restore_before_the_first_cycle_lifts_what_an_earlier_agent_left(bench: Bench) -> None:
    async def scenario() -> None:
        await bench.cycle()
        assert (bench.cpu.device.limit_w, bench.gpu.device.limit_w) == (100.0, 100.0)
        bench.agent.inputs = None
        await bench.agent.restore(0.0)
        assert (bench.cpu.device.limit_w, bench.gpu.device.limit_w) == (200.0, 200.0)

    asyncio.run(scenario())


def test_restore_after_a_cycle(bench: Bench) -> None:
    async def scenario() -> None:
        await bench.cycle()
        await bench.agent.restore(0.0)
        assert (bench.cpu.device.limit_w, bench.gpu.device.limit_w) == (200.0, 200.0)
        assert bench.message.startswith(RESTORED)

    asyncio.run(scenario())


def test_h11_work_of_a_cycle_that_still_runs_is_not_taken_for_the_restore(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(node_module, "_GPU_PATIENCE_S", 1e-6)
            bench.gpu.gate.clear()
            await bench.cycle()
        asyncio.get_running_loop().call_soon(bench.gpu.gate.set)
        await bench.agent.restore(0.0)
        assert bench.gpu.device.limit_w == 200.0
        assert bench.message.startswith(RESTORED)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "state",
    [
        "cordon-required",
        "wait-for-jobs-required",
        "pod-deletion-required",
        "drain-required",
        "node-maintenance-required",
        "post-maintenance-required",
        "pod-restart-required",
        "validation-required",
        "upgrade-failed",
    ],
)
def test_h11_states_of_an_upgrade_in_which_nobody_may_use_the_driver(state: str) -> None:
    assert state in (gpu_hold_reason({"nvidia.com/gpu-driver-upgrade-state": state}) or "")


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"nvidia.com/gpu-driver-upgrade-state": ""},
        {"nvidia.com/gpu-driver-upgrade-state": "upgrade-required"},
        {"nvidia.com/gpu-driver-upgrade-state": "uncordon-required"},
        {"nvidia.com/gpu-driver-upgrade-state": "upgrade-done", "nvidia.com/mig.config.state": "success"},
        {"nvidia.com/mig.config.state": "failed"},
        {"nvidia.com/gpu.deploy.dcgm": "true", "nvidia.com/gpu.deploy.driver": "false"},
    ],
)
def test_h11_labels_of_nodes_whose_driver_may_be_used(labels: dict[str, str]) -> None:
    assert gpu_hold_reason(labels) is None


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ({"nvidia.com/mig.config.state": "pending"}, "MIG is being configured: nvidia.com/mig.config.state=pending"),
        ({"nvidia.com/mig.config.state": "rebooting"}, "MIG is being configured"),
        ({"nvidia.com/gpu.deploy.dcgm": "paused-for-driver-upgrade"}, "GPU clients are paused: nvidia.com/gpu.deploy"),
        ({"nvidia.com/gpu.deploy.client": "paused-for-mig-change"}, "GPU clients are paused"),
    ],
)
def test_h11_mig_changes_and_paused_operands(labels: dict[str, str], reason: str) -> None:
    assert (gpu_hold_reason(labels) or "").startswith(reason)
