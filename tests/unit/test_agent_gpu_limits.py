"""Limits of single GPUs, through the whole agent: set for the pod that holds the GPU, and gone with it."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.kubelet.pod_resources import PodResources
from joulie.adapters.kubernetes.api.v1alpha1 import ControlOutcome
from joulie.adapters.kubernetes.control_reports import not_restored_reason
from joulie.adapters.kubernetes.resources import NODE_TWINS, NODES
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.saved_clocks import SavedClocks
from joulie.apps.agent.gpu_limits import KEPT_S, GpuHolders, LimitLease
from joulie.apps.agent.reporting import ControlReport, Reporter
from joulie.domain.actuation import LimitedDevice, WantedCap, wanted_limits
from joulie.domain.gpu_allocations import Allocation, Holding
from joulie.domain.hardware import CapRange
from joulie.domain.limit_contest import RESETS
from joulie.domain.locked_clocks import ANY_GPU
from joulie.ports.devices import DeviceKind, PowerDevice
from joulie.ports.telemetry import SourceError
from support.agent_machine import Bench, Machine, on_cluster, until
from support.fake_gpus import FakeGpus
from support.pod_resources import PodResourcesSocket, kubelet_socket
from support.sysfs_trees import intel_two_sockets

pytestmark = pytest.mark.slow

FIRST, SECOND = 0, 1
TRAIN = ("ml", "train-0")


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[PodResourcesSocket]:
    with kubelet_socket(tmp_path / "kubelet.sock") as socket:
        socket.pods = {TRAIN: {"nvidia.com/gpu": ["0"]}}
        yield socket


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    intel_two_sockets(machine.sys)
    machine.settings["pod_resources_socket"] = tmp_path / "kubelet.sock"
    return machine


async def raised(fault: Exception) -> bytes:
    raise fault


def limits_w(driver: FakeGpus) -> list[float]:
    return [driver.read(gpu, "set_mw") / 1e3 for gpu in (FIRST, SECOND)]


async def renew(bench: Bench, second: int = 0) -> None:
    """What the operator does while it lives."""
    body = {"status": {"lastUpdated": rfc3339(1.8e9 + second)}}
    await bench.client.apply(NODE_TWINS, bench.name, body, field_manager="joulie-operator", subresource="status")


async def limit(bench: Bench, gpu: str, watts: float, pod: tuple[str, str] = TRAIN) -> None:
    await ask_for(bench, {"id": gpu, "watts": watts, "pod": {"namespace": pod[0], "name": pod[1]}})


async def lock(bench: Bench, gpu: str, mhz: float) -> None:
    await ask_for(bench, {"id": gpu, "maxSmClockMhz": mhz, "pod": {"namespace": TRAIN[0], "name": TRAIN[1]}})


async def ask_for(bench: Bench, *limits: dict[str, Any]) -> None:
    spec = {"nodeName": bench.machine.node, "profile": "performance", "gpuLimits": list(limits)}
    await bench.client.apply(NODE_TWINS, bench.name, {"spec": spec}, field_manager="joulie-operator")


async def first_gpu(bench: Bench) -> str:
    """ID of the first GPU, from the agent's report."""

    async def reported() -> bool:
        return len((await bench.control()).gpus) == 2

    await bench.ask()
    await renew(bench)
    await until(reported)
    return sorted(gpu.id for gpu in (await bench.control()).gpus)[0]


def confirmed_at(bench: Bench, gpu: str, watts: float) -> Callable[[], Any]:
    async def confirmed() -> bool:
        found = {one.id: one for one in (await bench.control()).gpus}[gpu]
        return (found.limit_watts, found.original_watts, found.min_watts) == (watts, 600.0, 200.0)

    return confirmed


def scenario(machine: Machine, steps: Callable[[Bench, str], Any]) -> None:
    async def run(bench: Bench) -> None:
        await bench.add_node()
        async with bench.agent():
            await steps(bench, await first_gpu(bench))

    on_cluster(machine, run)


def test_limit_is_of_one_gpu_and_is_reported(machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket) -> None:
    driver.write(FIRST, set_mw=600_000)  # an administrator's

    async def steps(bench: Bench, gpu: str) -> None:
        await limit(bench, gpu, 450.0)
        await until(lambda: limits_w(driver) == [450.0, 700.0])

        await until(confirmed_at(bench, gpu, 450.0))
        status = {one.id: one for one in (await bench.control()).gpus}
        assert [(pod.namespace, pod.name) for pod in status[gpu].pods or ()] == [TRAIN]
        assert status[gpu].shared is False
        assert [status[other].pods for other in status if other != gpu] == [()]
        # Joulie only ever lowers.
        await limit(bench, gpu, 650.0)
        await until(lambda: limits_w(driver) == [600.0, 700.0])

        async def is_original() -> bool:
            found = {one.id: one for one in (await bench.control()).gpus}[gpu]
            # The operator takes a change of the original for another GPU: it must never be the limit of before.
            assert found.original_watts == 600.0
            return found.limit_watts == 600.0

        for watts in (450.0, 300.0):
            await limit(bench, gpu, watts)
            await until(lambda: limits_w(driver)[FIRST] < 600.0)
            await until(confirmed_at(bench, gpu, watts))
            await bench.ask()
            await until(is_original)

    scenario(machine, steps)
    assert limits_w(driver) == [600.0, 700.0]


def test_no_report_of_a_gpu_is_without_its_holders(
    machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one neither: an operator withdraws limits whose holders it cannot tell, at each restart of an agent."""
    reports: list[ControlReport] = []
    report = Reporter.control

    async def control(reporter: Reporter, twin: Any, results: ControlReport) -> None:
        reports.append(results)
        await report(reporter, twin, results)

    monkeypatch.setattr(Reporter, "control", control)

    async def steps(bench: Bench, gpu: str) -> None:
        await limit(bench, gpu, 450.0)
        await until(lambda: limits_w(driver) == [450.0, 700.0])

    scenario(machine, steps)
    statuses = [gpu for one in reports for gpu in one.gpus]
    assert statuses
    assert all(gpu.pods is not None for gpu in statuses)


def test_limit_ends_with_the_hold_of_its_pod(machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket) -> None:
    async def steps(bench: Bench, gpu: str) -> None:
        await limit(bench, gpu, 450.0)
        await until(lambda: limits_w(driver) == [450.0, 700.0])
        kubelet.pods = {("ml", "train-1"): {"nvidia.com/gpu": ["0"]}}
        await until(lambda: limits_w(driver) == [700.0, 700.0])
        assert not any(gpu in record for record in machine.saved.split() if "original" in record)
        kubelet.pods = {TRAIN: {"nvidia.com/gpu": ["0"]}}
        await until(lambda: limits_w(driver) == [450.0, 700.0])
        # Another pod joins by time slicing: nobody's limit any more.
        kubelet.pods = {TRAIN: {"nvidia.com/gpu": ["0::0"]}}
        await until(lambda: limits_w(driver) == [700.0, 700.0])

    scenario(machine, steps)


def test_limit_ends_when_the_operator_is_silent(
    machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket
) -> None:
    machine.settings["gpu_limit_lease_s"] = 1.0

    async def steps(bench: Bench, gpu: str) -> None:
        await limit(bench, gpu, 450.0)
        await renew(bench, 1)
        await until(lambda: limits_w(driver) == [450.0, 700.0])
        await until(lambda: limits_w(driver) == [700.0, 700.0])  # nothing was renewed
        await renew(bench, 2)
        await until(lambda: limits_w(driver) == [450.0, 700.0])

    scenario(machine, steps)


def test_holders_are_kept_for_a_minute_of_silence() -> None:
    answers: list[list[Allocation] | Exception] = []
    now_s = 0.0

    async def answer() -> list[Allocation]:
        given = answers.pop(0)
        if isinstance(given, Exception):
            raise given
        return given

    holders = GpuHolders(answer, lambda: now_s)
    gpus = [PowerDevice("GPU-1", DeviceKind.GPU)]
    silent, train = SourceError("the kubelet does not answer"), [Allocation(TRAIN, ("GPU-1",))]
    for at_s, said, known in (
        (0.0, silent, False),
        (1.0, train, True),
        (1.0 + KEPT_S, silent, True),
        (1.5 + KEPT_S, silent, False),
        (2.0 + KEPT_S, [], True),
        (3.0 + KEPT_S, silent, True),
    ):
        now_s = at_s
        answers.append(said)
        asyncio.run(holders.read())
        assert bool(holders.of(gpus, complete=True)) is known, at_s
    assert holders.of(gpus, complete=True) == {"GPU-1": Holding()}, "the latest answer counts"


@pytest.mark.parametrize("fault", [None, ModuleNotFoundError("No module named 'h2'")])
def test_kubelet_that_does_not_answer_leaves_it_to_the_operator(
    machine: Machine, driver: FakeGpus, fault: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong in asking it: an image without h2 once stopped every cycle, CPU caps included."""
    if fault is not None:
        monkeypatch.setattr(PodResources, "_list", lambda _self: raised(fault))

    async def steps(bench: Bench, gpu: str) -> None:
        await limit(bench, gpu, 450.0)
        await until(lambda: limits_w(driver) == [450.0, 700.0])
        assert [one.pods for one in (await bench.control()).gpus] == [None, None]

    scenario(machine, steps)


def test_limit_below_a_cap_of_all_gpus(machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket) -> None:
    async def steps(bench: Bench, gpu: str) -> None:
        limits = [{"id": gpu, "watts": 450.0, "pod": {"namespace": "ml", "name": "train-0"}}]
        caps = {"gpu": {"powerCap": {"capWattsPerGpu": 500}}, "gpuLimits": limits}
        spec = {"nodeName": machine.node, "profile": "eco", **caps}
        await bench.client.apply(NODE_TWINS, bench.name, {"spec": spec}, field_manager="joulie-operator")
        await until(lambda: limits_w(driver) == [450.0, 500.0])

        async def is_confirmed() -> bool:  # power budgets count the cap then, and not the GPUs' full power
            gpu = (await bench.control()).gpu
            return gpu is not None and gpu.result == ControlOutcome.APPLIED

        await until(is_confirmed)

    scenario(machine, steps)


def test_lease_counts_from_the_last_change() -> None:
    lease = LimitLease(10.0)
    assert not lease.holds(None, 0.0)
    assert lease.holds("a", 100.0)
    assert lease.holds("a", 110.0)
    assert not lease.holds("a", 110.1)
    assert lease.holds("b", 111.0)


DEVICES = ("gpu-0", "gpu-1", "gpu-2")


@given(
    st.one_of(st.none(), st.floats(1.0, 2000.0)),
    st.one_of(st.none(), st.floats(1.0, 100.0)),
    st.dictionaries(st.sampled_from((*DEVICES, "gone")), st.floats(1.0, 2000.0)),
)
def test_limits_of_single_gpus_only_lower(cap_w: float | None, percent: float | None, limits: dict[str, float]) -> None:
    span = CapRange(200.0, 800.0, 700.0)
    devices = [LimitedDevice(name, 700.0, span) for name in DEVICES]
    common = wanted_limits(WantedCap(cap_w, percent), devices)
    wanted = wanted_limits(WantedCap(cap_w, percent, tuple(limits.items())), devices)
    for device in DEVICES:
        asked = wanted.limits_w.get(device)
        assert asked is None or span.min_w <= asked <= span.max_w
        if device in common.limits_w:
            assert asked is not None
            assert asked <= common.limits_w[device]
        elif device in limits:
            assert asked == span.clamped(limits[device])
        else:
            assert asked is None
    assert ("gone" in wanted.refused) == ("gone" in limits)


def test_a_program_that_resets_the_limit_is_named_and_not_fought(
    machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket
) -> None:
    async def steps(bench: Bench, gpu: str) -> None:
        await limit(bench, gpu, 450.0)
        for _ in range(RESETS):
            await until(lambda: limits_w(driver)[FIRST] == 450.0)
            await until(confirmed_by("joulie"))
            driver.write(FIRST, set_mw=650_000)

        async def is_left() -> bool:
            outcome = (await bench.control()).gpu
            return outcome is not None and "another program sets 650 W" in (outcome.message or "")

        await until(is_left)
        assert limits_w(driver) == [650.0, 700.0]
        # What the other program set is the GPU's own limit now.
        await until(confirmed_by(None))
        await bench.ask()

    def confirmed_by(owner: str | None) -> Callable[[], Any]:
        async def confirmed() -> bool:
            return sorted((await bench_now[0].control()).gpus, key=lambda one: one.id)[0].owner == owner

        return confirmed

    bench_now: list[Bench] = []

    async def with_bench(bench: Bench, gpu: str) -> None:
        bench_now.append(bench)
        await steps(bench, gpu)

    scenario(machine, with_bench)
    assert limits_w(driver) == [650.0, 700.0]


def test_limit_of_a_killed_agent_ends_with_its_pod_though_no_agent_ran(
    machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket
) -> None:
    driver.write(FIRST, set_mw=600_000)  # an administrator's, which the next agent must know from the saved record

    async def run(bench: Bench) -> None:
        await bench.add_node()
        async with bench.agent() as task:
            gpu = await first_gpu(bench)
            await limit(bench, gpu, 450.0)
            await until(lambda: limits_w(driver) == [450.0, 700.0])
            await bench.kill(task)
        assert limits_w(driver) == [450.0, 700.0]
        kubelet.pods = {}  # its pod ends meanwhile; the NodeTwin still asks for its limit
        async with bench.agent():
            await renew(bench, 1)
            await until(lambda: limits_w(driver) == [600.0, 700.0])

    on_cluster(machine, run)


def locks_mhz(driver: FakeGpus) -> list[int]:
    return [driver.read(gpu, "lock_mhz") for gpu in (FIRST, SECOND)]


def may_be_locked(machine: Machine) -> bool:
    """Whether the saved file says so of a GPU."""
    file = machine.root / "state/clocks.json"
    return file.exists() and bool(json.loads(file.read_text())["gpus"])


def clock_is(bench: Bench, gpu: str, *expected: object) -> Callable[[], Any]:
    """Whether the largest clock, the lock (MHz) and the result of a GPU are reported so."""

    async def reported() -> bool:
        found = {one.id: one.sm_clock for one in (await bench.control()).gpus}.get(gpu)
        return found is not None and (found.largest_mhz, found.max_mhz, found.result) == expected

    return reported


def test_a_clock_is_locked_for_the_holder_and_reported_once_it_was_read(
    machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket
) -> None:
    machine.settings["gpu_clocks"] = True
    driver.write(FIRST, idle=1)

    async def steps(bench: Bench, gpu: str) -> None:
        await until(clock_is(bench, gpu, 1980.0, None, None))
        await lock(bench, gpu, 1400.0)
        await until(clock_is(bench, gpu, 1980.0, None, "unconfirmed"))
        driver.write(FIRST, idle=0)
        await until(clock_is(bench, gpu, 1980.0, 1395.0, "applied"))
        assert (locks_mhz(driver), limits_w(driver), may_be_locked(machine)) == ([1395, 0], [700.0, 700.0], True)
        kubelet.pods = {("ml", "train-1"): {"nvidia.com/gpu": ["0"]}}  # the pod ends in its trial
        await until(lambda: locks_mhz(driver) == [0, 0])
        await until(clock_is(bench, gpu, 1980.0, None, None))
        assert not may_be_locked(machine)
        kubelet.pods = {TRAIN: {"nvidia.com/gpu": ["0"]}}
        await until(lambda: locks_mhz(driver) == [1395, 0])

    scenario(machine, steps)
    assert (locks_mhz(driver), may_be_locked(machine)) == ([0, 0], False), "an agent that stops leaves no lock"


def test_a_lock_ends_when_the_operator_is_silent(
    machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket
) -> None:
    machine.settings |= {"gpu_clocks": True, "gpu_limit_lease_s": 1.0}

    async def steps(bench: Bench, gpu: str) -> None:
        await lock(bench, gpu, 1200.0)
        await renew(bench, 1)
        await until(lambda: locks_mhz(driver) == [1200, 0])
        await until(lambda: locks_mhz(driver) == [0, 0])  # nothing was renewed
        await until(lambda: not may_be_locked(machine))

    scenario(machine, steps)


@pytest.mark.parametrize("allowed", [True, False])
def test_a_lock_of_a_killed_agent_is_reset_by_the_next_one(
    machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket, *, allowed: bool
) -> None:
    machine.settings["gpu_clocks"] = True

    async def run(bench: Bench) -> None:
        await bench.add_node()
        async with bench.agent() as task:
            gpu = await first_gpu(bench)
            await lock(bench, gpu, 1200.0)
            await until(lambda: locks_mhz(driver) == [1200, 0])
            await bench.kill(task)
        assert (locks_mhz(driver), may_be_locked(machine)) == ([1200, 0], True)
        resets = driver.read(FIRST, "resets")
        machine.settings["gpu_clocks"] = allowed
        async with bench.agent():
            await renew(bench, 1)
            if allowed:  # the NodeTwin still asks for it: reset, then locked anew
                await until(clock_is(bench, gpu, 1980.0, 1200.0, "applied"))
            else:
                await until(clock_is(bench, gpu, None, None, "blocked"))
                assert (locks_mhz(driver), may_be_locked(machine)) == ([0, 0], False)
        assert driver.read(FIRST, "resets") > resets

    on_cluster(machine, run)


def test_a_lock_that_something_overrides_is_an_error_and_taken_away(
    machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket
) -> None:
    machine.settings["gpu_clocks"] = True
    driver.write(FIRST, ignore_lock=1)

    async def steps(bench: Bench, gpu: str) -> None:
        await lock(bench, gpu, 1200.0)
        await until(clock_is(bench, gpu, None, None, "error"))
        assert not may_be_locked(machine)
        locks = driver.read(FIRST, "locks")
        await renew(bench, 1)
        await ask_for(bench)
        await until(clock_is_absent(bench, gpu))
        assert driver.read(FIRST, "locks") == locks

    def clock_is_absent(bench: Bench, gpu: str) -> Callable[[], Any]:
        async def absent() -> bool:
            return [one.sm_clock for one in (await bench.control()).gpus if one.id == gpu] == [None]

        return absent

    scenario(machine, steps)


def test_a_node_is_not_restored_while_a_clock_may_be_locked(
    machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket
) -> None:
    """What `joulie cleanup` waits for before the agents are uninstalled."""
    machine.settings["gpu_clocks"] = True

    async def steps(bench: Bench, gpu: str) -> None:
        await lock(bench, gpu, 1200.0)
        await until(clock_is(bench, gpu, 1980.0, 1200.0, "applied"))
        driver.write(FIRST, fail_reset=15)
        await ask_for(bench)

        async def is_told() -> bool:
            return not_restored_reason(await bench.twin()) == f"SM clocks may be locked: {gpu}"

        await until(is_told)
        driver.write(FIRST, fail_reset=0)

        async def is_restored() -> bool:
            return not_restored_reason(await bench.twin()) == ""

        await until(is_restored)
        assert locks_mhz(driver) == [0, 0]

    scenario(machine, steps)


def test_clocks_are_left_alone_in_observe_mode(machine: Machine, driver: FakeGpus, kubelet: PodResourcesSocket) -> None:
    machine.settings["gpu_clocks"] = True

    async def steps(bench: Bench, gpu: str) -> None:
        await lock(bench, gpu, 1200.0)
        await until(lambda: locks_mhz(driver) == [1200, 0])
        labels = {"metadata": {"labels": {"joulie.io/mode": "observe"}}}
        await bench.client.patch(NODES, bench.machine.node, labels)
        await until(lambda: locks_mhz(driver) == [0, 0])
        await until(lambda: not may_be_locked(machine))

    scenario(machine, steps)


def test_a_file_of_clocks_counts_in_its_boot_and_for_all_gpus_where_it_cannot_be_read(tmp_path: Path) -> None:
    boot = tmp_path / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("00000001-8b1c-4ec5-9d3a-70f4cc4f9f8a\n")
    saved = SavedClocks(tmp_path / "state/clocks.json", tmp_path / "proc")
    assert saved.load() == frozenset()
    saved.save({"GPU-b", "GPU-a"})
    assert saved.load() == {"GPU-a", "GPU-b"}
    file = tmp_path / "state/clocks.json"
    assert file.stat().st_mode & 0o777 == 0o600
    text = file.read_text()
    for garbled in ("", "{", '{"bootId": 1, "gpus": []}', "\xff", text[:-3]):
        file.write_bytes(garbled.encode("latin-1"))
        assert saved.load() == {ANY_GPU}
    file.write_text(text)
    boot.write_text("00000002-8b1c-4ec5-9d3a-70f4cc4f9f8a\n")
    assert saved.load() == frozenset(), "the driver of another boot has forgotten the locks"
    boot.write_text("")
    with pytest.raises(OSError, match="boot id"):
        saved.load()
