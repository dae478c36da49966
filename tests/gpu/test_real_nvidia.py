"""Joulie's NVML code on the NVIDIA GPUs of this machine. It reads only: no limit, clock or mode is changed.

No other program may use the GPUs meanwhile.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from joulie.adapters.gpu.nvml import Nvml, NvmlClocks, NvmlMeter
from joulie.adapters.gpu.pci import NVIDIA, gpus_on_bus
from joulie.adapters.gpu.process import LibraryProcess
from joulie.adapters.gpu.session import FRESH_S, GpuSession
from joulie.adapters.gpu.worker import IDLE_S
from joulie.domain.hardware import BUILTIN_CATALOGUE

LOAD = Path(__file__).parents[1] / "support/gpu_load.py"
SETTLED_S = 5.0
"""Hopper and later state a mean of the last second."""
SAMPLES = 10
AGREEMENT = 0.1
"""Relative difference between the energy counter and the mean of power samples; a sensor may be off by 5 %."""


@pytest.fixture
def process() -> Iterator[LibraryProcess]:
    process = LibraryProcess("NVML", "nvml")
    yield process
    process.end()


@pytest.fixture
def session(process: LibraryProcess) -> GpuSession:
    return GpuSession(process)


def nvidia_smi(*fields: str) -> Sequence[Mapping[str, str]]:
    """What the vendor's program says of each GPU, by field."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    rows = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [dict(zip(fields, row.split(", "), strict=True)) for row in rows]


@contextmanager
def load() -> Iterator[None]:
    """Keep the first GPU busy."""
    with subprocess.Popen([sys.executable, LOAD], stdout=subprocess.PIPE, text=True) as busy:
        try:
            assert busy.stdout is not None
            assert busy.stdout.readline() == "busy\n"
            time.sleep(SETTLED_S)
            yield
        finally:
            busy.kill()


def test_limits_are_those_of_nvidia_smi(session: GpuSession) -> None:
    limits = ("power.limit", "power.min_limit", "power.max_limit", "power.default_limit")
    told = nvidia_smi("uuid", "name", *limits)
    found = [(gpu.id, gpu.model, gpu.limit_w, gpu.min_w, gpu.max_w, gpu.default_w) for gpu in Nvml(session).devices()]
    assert found == [(uuid, name, *map(float, watts)) for uuid, name, *watts in (row.values() for row in told)]


def test_each_gpu_is_found_on_the_bus(session: GpuSession) -> None:
    assert gpus_on_bus()[NVIDIA] == len(Nvml(session).devices())


def test_a_limit_of_the_catalogues_range_is_never_refused(session: GpuSession) -> None:
    for gpu in Nvml(session).devices():
        assert gpu.model is not None
        known = BUILTIN_CATALOGUE.gpu(gpu.model).model
        if known is None:
            pytest.skip(f"the catalogue has no {gpu.model}")
        assert (known.cap_max_w, known.default_w) == (gpu.max_w, gpu.default_w)
        assert gpu.min_w is not None
        assert known.cap_min_w >= gpu.min_w


def test_counted_energy_is_that_of_the_power_under_load(session: GpuSession) -> None:
    meter = NvmlMeter(session)
    idle = nvidia_smi("uuid", "power.draw.instant")[0]
    with load():
        began_s, before = now_s(), {reading.device_id: reading.energy_j for reading in meter.energy()}
        samples = []
        for _ in range(SAMPLES):
            time.sleep(FRESH_S)
            samples.append(meter.power_w())
        after = {reading.device_id: reading.energy_j for reading in meter.energy()}
        lasted_s = now_s() - began_s
    assert before.keys() == after.keys()
    for gpu, energy_j in after.items():
        sampled_w = sum(sample[gpu] for sample in samples) / len(samples)
        assert (energy_j - before[gpu]) / lasted_s == pytest.approx(sampled_w, rel=AGREEMENT)
    assert samples[-1][idle["uuid"]] > 1.5 * float(idle["power.draw.instant"])


def test_clocks_say_whether_a_gpu_is_busy(session: GpuSession) -> None:
    largest = [float(row["clocks.max.sm"]) * 1e6 for row in nvidia_smi("clocks.max.sm")]
    time.sleep(SETTLED_S)  # the clock of a test before stays for a moment
    resting = NvmlClocks(session).clocks()
    assert [clock.largest_hz for clock in resting] == largest
    with load():
        busy = NvmlClocks(session).clocks()[0]
    assert resting[0].idle
    assert not busy.idle
    assert busy.now_hz > resting[0].now_hz


def test_nothing_of_the_driver_stays_open_between_readings(process: LibraryProcess, session: GpuSession) -> None:
    Nvml(session).devices()
    opened = driver_files(process)
    time.sleep(3 * IDLE_S)
    assert opened
    if {row["persistence_mode"] for row in nvidia_smi("persistence_mode")} == {"Enabled"}:
        assert driver_files(process) == []


def test_inspect_shows_the_gpus() -> None:
    command = [sys.executable, "-m", "joulie", "agent", "inspect", "-o", "json"]
    shown = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert [gpu["uuid"] for gpu in shown["gpus"]] == [row["uuid"] for row in nvidia_smi("uuid")]


def now_s() -> float:
    return time.monotonic()  # noqa: TID251 - the card counts energy in real time


def driver_files(process: LibraryProcess) -> Sequence[str]:
    """Files of the driver that the process has open or mapped."""
    of_process = Path(f"/proc/{process.pid}")
    opened = [str(file.readlink()) for file in (of_process / "fd").iterdir() if file.exists()]
    mapped = (of_process / "maps").read_text(encoding="utf-8").splitlines()
    return [name for name in (*opened, *mapped) if "/dev/nvidia" in name or "libnvidia-ml" in name]
