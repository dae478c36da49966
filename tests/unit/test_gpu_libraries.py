"""NVML and AMD SMI, each in its own process, against libraries of our own: what one cannot do while the other can.

What every GPU backend does is in tests/contract/test_gpu_backends.py.
"""

import ctypes
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

import pytest

from joulie.adapters.gpu import process as process_module
from joulie.adapters.gpu.amdsmi import AmdSmi, AmdSmiMeter
from joulie.adapters.gpu.nvml import Nvml, NvmlMeter
from joulie.adapters.gpu.process import DEADLINE_S, MAX_PAUSE_S, MIN_PAUSE_S, LibraryProcess, readable
from joulie.adapters.gpu.session import FRESH_S, MIN_RECONNECT_S, OUTDATED_S, GpuSession
from joulie.ports.devices import ControlFailedError, NoBackendError
from support import fake_gpus
from support.fake_gpus import FakeGpus

pytestmark = pytest.mark.slow

FIRST, SECOND = (f"GPU-00000000-0000-0000-0000-{number:012}" for number in range(2))


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Bench:
    """NVML as the agent uses it, its clock, and the fake driver below."""

    driver: FakeGpus
    clock: Clock = field(default_factory=Clock)
    wait: Callable[[IO[bytes], float], bool] = readable

    def __post_init__(self) -> None:
        self.process = LibraryProcess("NVML", "nvml", self.clock, self._wait)
        self.session = GpuSession(self.process, self.clock)
        self.nvml, self.meter = Nvml(self.session), NvmlMeter(self.session)

    def _wait(self, stream: IO[bytes], timeout_s: float) -> bool:
        return self.wait(stream, timeout_s)

    @property
    def ids(self) -> list[str]:
        """GPUs as read now."""
        self.clock.now_s += FRESH_S
        return [device.id for device in self.nvml.devices()]

    def hang(self) -> None:
        """From now on the driver hangs, and the deadline of a request is over as soon as it does."""

        def expire(_stream: IO[bytes], timeout_s: float) -> bool:
            assert timeout_s == DEADLINE_S
            while not self.driver.get("hanging"):
                pass
            return False

        self.driver.set(hang=1)
        self.wait = expire

    def recover(self) -> None:
        self.driver.set(hang=0, hanging=0)
        self.wait = readable


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_gpus.build(tmp_path_factory.mktemp("nvml"), "fake_nvml")


@pytest.fixture
def bench(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench(fake_gpus.install(library, tmp_path, monkeypatch))
    yield bench
    bench.recover()
    bench.session.close()


def test_h11_a_call_that_hangs_ends_with_its_process(bench: Bench) -> None:
    assert bench.ids == [FIRST, SECOND]
    pid = bench.process.pid
    bench.hang()
    with pytest.raises(ControlFailedError, match="NVML did not answer within 30 s"):
        _ = bench.ids
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    calls = bench.driver.get("calls")
    with pytest.raises(ControlFailedError, match="NVML did not answer"):
        _ = bench.ids
    assert bench.driver.get("calls") == calls, "not tried again at once"
    bench.recover()
    bench.clock.now_s += MIN_PAUSE_S
    assert bench.ids == [FIRST, SECOND]
    assert bench.process.pid != pid


def test_h11_a_limit_whose_write_hangs_is_an_error(bench: Bench) -> None:
    assert bench.ids
    bench.hang()
    with pytest.raises(ControlFailedError, match=f"set 300 W on GPU {FIRST}: NVML did not answer within 30 s"):
        bench.nvml.set_limit(FIRST, 300.0)
    with pytest.raises(ControlFailedError, match="did not answer"):
        bench.nvml.set_limit(SECOND, 300.0)


class Immortal:
    """A process inside a call that the kernel does not interrupt."""

    pid, returncode = 4711, None
    stdin = stdout = None

    def __init__(self) -> None:
        self.kills = 0
        self.ended = False

    def kill(self) -> None:
        self.kills += 1

    def wait(self, timeout: float) -> int:
        raise subprocess.TimeoutExpired("nvml", timeout)

    def poll(self) -> int | None:
        return -9 if self.ended else None


def test_h11_no_process_is_started_beside_one_that_cannot_be_killed(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    immortal = Immortal()
    bench.process._process = cast("subprocess.Popen[bytes]", immortal)
    with caplog.at_level(logging.WARNING):
        bench.session.hold("driver upgrade")
    assert "process 4711 hangs inside the driver and cannot be ended" in caplog.records[0].error  # type: ignore[attr-defined]
    bench.session.hold(None)
    for _ in range(3):
        with pytest.raises(ControlFailedError, match="process 4711 hangs inside the driver"):
            _ = bench.ids
        bench.clock.now_s += MAX_PAUSE_S
    assert immortal.kills == 1
    immortal.ended = True
    assert bench.ids == [FIRST, SECOND]


def test_h11_a_library_that_crashes_takes_nobody_with_it(bench: Bench) -> None:
    assert bench.ids
    bench.driver.set(crash=1)
    with pytest.raises(ControlFailedError, match=f"its process ended with status -{signal.SIGABRT.value}"):
        _ = bench.ids
    bench.clock.now_s += MIN_PAUSE_S
    assert bench.ids == [FIRST, SECOND]


def test_h11_attempts_after_failures_are_spaced_out_and_told_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.driver.set(driver=fake_gpus.DRIVER_NOT_LOADED)
    attempts = []
    with caplog.at_level(logging.WARNING):
        for _ in range(600):
            before = bench.driver.get("calls")
            with pytest.raises(ControlFailedError, match="NVML: Driver Not Loaded"):
                bench.nvml.devices()
            if bench.driver.get("calls") > before:
                attempts.append(bench.clock.now_s)
            bench.clock.now_s += 1.0
    assert attempts == [0.0, 10.0, 30.0, 70.0, 150.0, 270.0, 390.0, 510.0]
    assert [record.getMessage() for record in caplog.records] == ["GPU library does not respond"]
    bench.driver.set(driver=0)
    bench.clock.now_s += MAX_PAUSE_S
    assert bench.ids == [FIRST, SECOND]


def test_h11_the_driver_is_let_go_entirely_and_used_again_at_once(bench: Bench) -> None:
    assert bench.ids
    pid = bench.process.pid
    assert bench.driver.opened_by(pid)
    bench.session.hold("driver upgrade")
    bench.session.hold("driver upgrade")
    assert (bench.driver.get("inits"), bench.driver.get("shutdowns")) == (1, 1)
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    calls = bench.driver.get("calls")
    assert bench.nvml.unavailable() == "driver upgrade"
    assert bench.meter.unavailable() == "driver upgrade"
    with pytest.raises(ControlFailedError, match="driver upgrade"):
        bench.nvml.set_limit(FIRST, 300.0)
    assert (bench.driver.get("calls"), bench.process.pid) == (calls, None)
    bench.driver.set(driver=fake_gpus.DRIVER_NOT_LOADED)
    bench.session.hold(None)
    assert bench.nvml.unavailable() == "NVML: Driver Not Loaded"
    bench.session.hold("validation")
    bench.driver.set(driver=0)
    bench.session.hold(None)
    assert bench.ids == [FIRST, SECOND], "after an upgrade no pause is waited for"


def test_h11_a_reloaded_driver_is_connected_to_again(bench: Bench) -> None:
    assert bench.ids
    bench.driver.reload()
    with pytest.raises(ControlFailedError, match="Uninitialized"):
        _ = bench.ids
    assert not bench.driver.opened_by(bench.process.pid)
    bench.clock.now_s += MIN_PAUSE_S
    assert bench.ids == [FIRST, SECOND]
    assert (bench.driver.get("inits"), bench.driver.get("shutdowns")) == (2, 1)


def test_h11_a_library_of_another_driver_version_is_loaded_anew(bench: Bench) -> None:
    bench.driver.set(driver=fake_gpus.MISMATCH)
    assert bench.nvml.unavailable() == "NVML: Driver/library version mismatch"
    maps = Path(f"/proc/{bench.process.pid}/maps").read_text()
    assert "libnvidia-ml" not in maps, "unloaded, so that the next attempt finds the new one"


def test_h11_a_driver_that_was_replaced_asks_for_a_new_container(bench: Bench) -> None:
    """A container keeps the library that it was created with."""
    assert bench.ids
    bench.session.hold("driver upgrade")
    bench.driver.reload()
    bench.driver.set(driver=fake_gpus.MISMATCH)
    bench.session.hold(None)
    for reason in (None, "the GPU driver was replaced, and only a new container has its library"):
        assert "version mismatch" in (bench.nvml.unavailable() or "")
        assert bench.session.restart_reason == reason
        bench.clock.now_s += OUTDATED_S
    bench.session.hold("another upgrade")
    assert bench.session.restart_reason is None
    bench.session.hold(None)
    bench.driver.set(driver=0)
    assert bench.ids == [FIRST, SECOND]
    assert bench.session.restart_reason is None


def test_h11_a_library_that_never_fitted_its_driver_is_no_reason_to_restart(bench: Bench) -> None:
    bench.driver.set(driver=fake_gpus.MISMATCH)
    for _ in range(3):
        assert "version mismatch" in (bench.nvml.unavailable() or "")
        bench.clock.now_s += OUTDATED_S
    assert bench.session.restart_reason is None


@pytest.mark.parametrize("code", [fake_gpus.GPU_IS_LOST, fake_gpus.RESET_REQUIRED, 999])
def test_h11_a_lost_gpu_is_told_once_and_looked_for_with_new_connections(
    bench: Bench, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    bench.driver.write(0, fail_all=code)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert bench.ids == [SECOND]
    assert [record.getMessage() for record in caplog.records] == ["GPU does not respond, ignored"]
    assert [text.partition(":")[0] for text in bench.session.lost] == ["GPU 0 does not respond"]
    assert bench.nvml.set_limit(SECOND, 300.0) == 300.0
    with pytest.raises(ControlFailedError, match=f"GPU {FIRST} does not respond"):
        bench.nvml.set_limit(FIRST, 300.0)
    reconnections = []
    for _ in range(200):
        before = bench.driver.get("shutdowns")
        assert bench.ids == [SECOND]
        if bench.driver.get("shutdowns") > before:
            reconnections.append(bench.clock.now_s)
    pauses = [after - before for before, after in zip([1.0, *reconnections], reconnections, strict=False)]
    assert pauses == [MIN_RECONNECT_S, 2 * MIN_RECONNECT_S, 4 * MIN_RECONNECT_S]
    bench.driver.write(0, fail_all=0)
    assert bench.ids == [FIRST, SECOND]


def test_h11_with_persistence_mode_the_driver_is_let_go_between_readings(bench: Bench) -> None:
    bench.driver.set(persistence=1)
    assert bench.ids
    pid = bench.process.pid
    while bench.driver.opened_by(pid):
        pass
    assert bench.driver.get("shutdowns") == 1
    assert bench.ids == [FIRST, SECOND]
    assert bench.process.pid == pid


def test_one_cycle_reads_the_gpus_once(bench: Bench) -> None:
    assert bench.ids
    calls = bench.driver.get("calls")
    assert bench.nvml.unavailable() is None
    assert len(bench.nvml.devices()) == len(bench.meter.power_w()) == len(bench.meter.energy()) == 2
    assert bench.driver.get("calls") == calls
    bench.nvml.set_limit(FIRST, 300.0)
    assert bench.nvml.devices()[0].limit_w == 300.0, "what was written is read again"


def test_h9_mig_is_told_and_the_whole_gpu_is_capped(bench: Bench) -> None:
    bench.driver.write(0, mig=1)
    bench.driver.write(1, mig=-1)
    assert [(device.id, device.mig) for device in bench.nvml.devices()] == [(FIRST, True), (SECOND, None)]
    assert bench.nvml.set_limit(FIRST, 400.0) == 400.0


def test_something_else_may_hold_the_limit_lower(bench: Bench) -> None:
    bench.driver.write(0, hold_mw=350_000)
    assert bench.nvml.set_limit(FIRST, 400.0) == 350.0
    assert bench.nvml.devices()[0].limit_w == 400.0, "what was set is what a restore must know"
    bench.driver.write(0, hold_mw=650_000)
    with pytest.raises(ControlFailedError, match="accepted, but 650 W is in force") as failed:
        bench.nvml.set_limit(FIRST, 400.0)
    assert failed.value.in_force == 400.0


def test_without_a_driver_its_library_is_looked_for_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    clock = Clock()
    started: list[object] = []
    popen = subprocess.Popen

    def counted(*arguments: object, **options: object) -> object:
        started.append(arguments)
        return popen(*arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(process_module.subprocess, "Popen", counted)
    process = LibraryProcess("NVML", "nvml", clock)
    nvml = Nvml(GpuSession(process, clock))
    for _ in range(100):
        with pytest.raises(NoBackendError, match=r"libnvidia-ml\.so\.1 not found: no NVIDIA driver"):
            nvml.devices()
        assert process.pid is None
        clock.now_s += 1.0
    assert len(started) == 1


def test_the_process_imports_nothing_but_the_standard_library_and_little_of_it() -> None:
    """It runs on every GPU node."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from joulie.adapters.gpu import worker, nvml_library; "
        "from joulie.adapters.gpu import amdsmi_library; print(*(name for name in sys.modules if '.' not in name))"
    )
    root = str(Path(process_module.__file__).parents[3])
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, root], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"asyncio", "logging", "msgspec", "numpy", "subprocess", "pynvml", "dataclasses", "inspect"}


def test_a_fake_is_loaded_by_name_as_the_real_library_would_be(bench: Bench, library: Path) -> None:
    assert bench.ids
    assert str(library) in Path(f"/proc/{bench.process.pid}/maps").read_text()
    assert ctypes.sizeof(ctypes.c_void_p) == 8


def test_h12_the_partitions_of_an_mi300x_have_no_cap_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = fake_gpus.install(fake_gpus.build(tmp_path, "fake_amdsmi"), tmp_path, monkeypatch, gpus=4)
    for gpu in (1, 3):
        driver.write(gpu, partition=1)
    session = GpuSession(LibraryProcess("AMD SMI", "amdsmi"))
    limiter = AmdSmi(session)
    assert limiter.unavailable() is None
    devices = limiter.devices()
    assert [(device.id[-1], device.limit_w) for device in devices] == [("0", 700.0), ("2", 700.0)]
    assert {device.model for device in devices} == {"AMD Instinct MI300X"}
    assert [reading.energy_j for reading in AmdSmiMeter(session).energy()] == pytest.approx([5000.0, 5000.0], rel=1e-4)
    session.close()
