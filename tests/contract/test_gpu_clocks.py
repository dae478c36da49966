"""What every backend that locks clocks does: NVML over a library of our own, and the modelled GPUs of the lab."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from joulie.adapters.gpu.nvml import NvmlClocks
from joulie.adapters.gpu.process import LibraryProcess
from joulie.adapters.gpu.session import GpuSession
from joulie.domain.locked_clocks import SmClock
from joulie.domain.quantities import InvalidQuantityError
from joulie.ports.devices import ClockLimiter, ControlFailedError, ControlRefusedError, NoBackendError
from joulie_lab.machines.gpus import ModelledGpus
from joulie_lab.machines.library import MACHINES
from joulie_lab.machines.machine import Machine as ModelledMachine
from joulie_lab.machines.specs import Load
from support import fake_gpus
from support.fake_gpus import FakeGpus

pytestmark = pytest.mark.slow

LARGEST_HZ = 1.98e9
_H100 = next(one for one in MACHINES.values() if one.gpu is not None and "H100" in one.gpu.model)


@dataclass
class Machine:
    """GPUs of 1980 MHz at work, through one backend.

    Attributes:
        limiter: the backend.
        locked_hz: the lock that the first GPU really has, Hz; None without one.
        reload: loads the driver anew.
        rest: takes all work away.
        remove: removes the driver.
    """

    limiter: ClockLimiter
    locked_hz: Callable[[], float | None]
    reload: Callable[[], None]
    rest: Callable[[], None]

    def first(self) -> SmClock:
        return self.limiter.clocks()[0]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_gpus.build(tmp_path_factory.mktemp("nvml"), "fake_nvml")


@pytest.fixture
def driver(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    return fake_gpus.install(library, tmp_path, monkeypatch)


def _nvml(driver: FakeGpus) -> Iterator[Machine]:
    session = GpuSession(LibraryProcess("NVML", "nvml"))

    def reload() -> None:
        driver.write(0, lock_mhz=0)
        session.hold("the driver is replaced")
        driver.reload()
        session.hold(None)

    yield Machine(
        NvmlClocks(session),
        lambda: driver.read(0, "lock_mhz") * 1e6 or None,
        reload,
        lambda: driver.write(0, idle=1),
    )
    session.close()


def _modelled() -> Iterator[Machine]:
    now_s = [0.0]
    machine = ModelledMachine(_H100, Load.parse("0.6"))

    def clock() -> float:
        now_s[0] += 1.0
        return now_s[0]

    def rest() -> None:
        machine.load = Load.parse("0")

    yield Machine(ModelledGpus(machine, clock), lambda: machine.gpus[0].locked_hz, machine.reload_gpu_driver, rest)


@pytest.fixture(params=["nvml", "modelled"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    if request.param == "nvml":
        yield from _nvml(request.getfixturevalue("driver"))
    else:
        yield from _modelled()


def test_clocks_of_all_gpus_are_read(machine: Machine) -> None:
    clocks = machine.limiter.clocks()
    assert len(clocks) == len({one.gpu for one in clocks}) >= 2
    assert clocks[0] == SmClock(clocks[0].gpu, LARGEST_HZ, LARGEST_HZ, idle=False, at_power_limit=False, slowed=False)


def test_a_lock_is_the_largest_supported_clock_below_and_of_one_gpu(machine: Machine) -> None:
    first = machine.first().gpu
    assert machine.limiter.lock(first, 1.4e9) == machine.locked_hz() == 1.395e9
    assert [one.now_hz for one in machine.limiter.clocks()[:2]] == pytest.approx([1.395e9, LARGEST_HZ])
    assert machine.limiter.lock(first, 1.2e9) == pytest.approx(machine.first().now_hz) == 1.2e9
    machine.limiter.reset(first)
    assert (machine.locked_hz(), machine.first().now_hz) == (None, LARGEST_HZ)
    machine.limiter.reset(first)


def test_a_gpu_without_work_says_so(machine: Machine) -> None:
    machine.rest()
    assert machine.first().idle
    assert machine.first().now_hz < 0.5e9


def test_the_driver_forgets_locks_when_it_is_loaded_anew(machine: Machine) -> None:
    machine.limiter.lock(machine.first().gpu, 1.2e9)
    machine.reload()
    assert (machine.locked_hz(), machine.first().now_hz) == (None, LARGEST_HZ)


def test_a_clock_that_no_gpu_supports_is_refused_and_changes_nothing(machine: Machine) -> None:
    with pytest.raises(ControlRefusedError, match="support"):
        machine.limiter.lock(machine.first().gpu, 1e8)
    assert machine.locked_hz() is None


def test_a_gpu_that_is_not_there_fails(machine: Machine) -> None:
    for call in (lambda: machine.limiter.lock("GPU-x", 1.2e9), lambda: machine.limiter.reset("GPU-x")):
        with pytest.raises(ControlFailedError, match="GPU-x does not respond"):
            call()


def test_nvml_says_why_a_clock_is_low(driver: FakeGpus) -> None:
    for machine in _nvml(driver):
        driver.write(0, capped=1)
        driver.write(1, hot=1)
        found = [(one.idle, one.at_power_limit, one.slowed) for one in machine.limiter.clocks()]
        assert found == [(False, True, False), (False, False, True)]


def test_nvml_refuses_without_permission_and_leaves_out_what_states_no_clock(driver: FakeGpus) -> None:
    for machine in _nvml(driver):
        first, second = (one.gpu for one in machine.limiter.clocks())
        driver.write(0, fail_lock=fake_gpus.NO_PERMISSION, fail_reset=fake_gpus.GPU_IS_LOST)
        with pytest.raises(ControlRefusedError, match="Permission"):
            machine.limiter.lock(first, 1.2e9)
        with pytest.raises(ControlFailedError, match="lost"):
            machine.limiter.reset(first)
        assert machine.limiter.lock(second, 1.2e9) == 1.2e9  # what one GPU does not take is no reason to wait
        with pytest.raises(InvalidQuantityError):
            machine.limiter.lock(second, float("nan"))
        driver.write(0, fail_clocks=fake_gpus.NOT_SUPPORTED)
        assert [one.gpu for one in machine.limiter.clocks()] == [second]


def test_without_the_driver_there_is_no_backend(
    driver: FakeGpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for machine in _nvml(driver):
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "nowhere"))
        with pytest.raises(NoBackendError):
            machine.limiter.clocks()


def test_a_locked_clock_saves_more_power_than_it_costs_work_on_a_modelled_gpu() -> None:
    machine = ModelledMachine(_H100, Load.parse("0.6"))
    machine.advance(100.0)
    first, second = machine.gpus[:2]
    first.locked_hz = 1.575e9
    machine.advance(200.0)
    kind = machine.spec.gpu_kinds[0]
    assert 0.5 < first.power_w / second.power_w < 0.65
    assert 0.85 < first.speed(kind) < 0.95
    assert second.speed(kind) == 1.0
    second.limit_w = 300.0
    machine.advance(300.0)
    assert second.clock(kind) < 1.0, "a power limit holds the clock down too"
