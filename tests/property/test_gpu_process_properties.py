"""Whatever a GPU driver does, and in whatever order: errors that say so, nothing left open, and GPUs that come back."""

import contextlib
from pathlib import Path
from typing import IO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joulie.adapters.gpu.nvml import Nvml, NvmlMeter
from joulie.adapters.gpu.process import MAX_PAUSE_S, LibraryProcess, readable
from joulie.adapters.gpu.session import MAX_RECONNECT_S, GpuSession
from joulie.ports.devices import ControlFailedError, ControlRefusedError
from support import fake_gpus
from support.fake_gpus import FakeGpus

pytestmark = pytest.mark.slow

FAULTS = ("hang", "crash", "reload", "not loaded", "mismatch", "lost", "refuses", "ignores", "held", "none")
USES = ("list", "limit", "measure")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_gpus.build(tmp_path_factory.mktemp("nvml"), "fake_nvml")


class Driver:
    """A fake driver, its faults, and a clock."""

    def __init__(self, fake: FakeGpus) -> None:
        self.fake = fake
        self.now_s = 0.0
        self.session = GpuSession(LibraryProcess("NVML", "nvml", self._clock, self._wait), self._clock)
        self.nvml, self.meter = Nvml(self.session), NvmlMeter(self.session)

    def _clock(self) -> float:
        return self.now_s

    def _wait(self, stream: IO[bytes], timeout_s: float) -> bool:
        """The deadline is over as soon as the driver hangs."""
        while self.fake.get("hang"):
            if self.fake.get("hanging"):
                return False
        return readable(stream, timeout_s)

    def break_down(self, fault: str) -> None:
        match fault:
            case "hang" | "crash":
                self.fake.set(**{fault: 1})
            case "reload":
                self.fake.reload()
            case "not loaded":
                self.fake.set(driver=fake_gpus.DRIVER_NOT_LOADED)
            case "mismatch":
                self.fake.set(driver=fake_gpus.MISMATCH)
            case "lost":
                self.fake.write(0, fail_all=fake_gpus.GPU_IS_LOST)
            case "refuses":
                self.fake.write(0, fail_set=fake_gpus.NO_PERMISSION)
            case "ignores":
                self.fake.write(0, ignore_set=1)
            case "held":
                self.session.hold("driver upgrade")

    def mend(self) -> None:
        self.fake.set(hang=0, hanging=0, crash=0, driver=0)
        self.fake.write(0, fail_all=0, fail_set=0, ignore_set=0)
        self.session.hold(None)

    def use(self, what: str, limit_w: float) -> None:
        """One use of the GPUs, which may fail; a limit that is not in force afterwards is an error."""
        with contextlib.suppress(ControlFailedError, ControlRefusedError):
            devices = self.nvml.devices()
            if what == "limit" and devices:
                in_force_w = self.nvml.set_limit(devices[0].id, limit_w)
                number = int(devices[0].id[-1])
                assert abs(self.fake.read(number, "set_mw") / 1000 - in_force_w) <= 1.0
            if what == "measure":
                assert all(power_w > 0.0 for power_w in self.meter.power_w().values())


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(FAULTS), st.sampled_from(USES), st.floats(200.0, 800.0), st.sampled_from([0.0, 5.0, 20.0])
        ),
        max_size=8,
    ),
    persistence=st.booleans(),
)
def test_h11_gpus_come_back_after_any_faults(
    steps: list[tuple[str, str, float, float]],
    persistence: bool,
    library: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        driver = Driver(fake_gpus.install(library, tmp_path_factory.mktemp("driver"), patch))
        driver.fake.set(persistence=int(persistence))
        for fault, what, limit_w, pause_s in steps:
            driver.break_down(fault)
            pid = driver.session._process.pid
            driver.use(what, limit_w)
            if fault == "held":
                assert pid is None or not Path(f"/proc/{pid}").exists()
            driver.now_s += pause_s
            driver.mend()
        for _ in range(2):  # the first reading may meet a connection from before the driver was loaded anew
            driver.now_s += MAX_PAUSE_S + MAX_RECONNECT_S
            driver.use("list", 0.0)
        assert len(driver.nvml.devices()) == 2
        driver.session.close()
