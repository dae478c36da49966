"""Power of the host from its energy counters: between cycles, over wraps, and where a counter fails."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from joulie.apps.agent.metering import STOPPED, UNREADABLE, PowerMeter, PowerSample, Sampler
from joulie.ports.devices import EnergyReading
from support.virtual_time import run_virtually

AMD_J = 65_532.0
INTEL_DRAM_J = 65_713.0


class Packages:
    """Energy counters of packages and other domains at constant power; a `PowerSource`."""

    name = "rapl"

    def __init__(self, wraps_at_j: float, **power_w: float) -> None:
        self.wraps_at_j = wraps_at_j
        self.power_w_by_id = {name.replace("_", "-"): one for name, one in power_w.items()}
        self.now_s = 0.0
        self.unreadable: set[str] = set()
        self.stopped: dict[str, float] = {}
        self.reads = 0

    def unavailable(self) -> str | None:
        return None

    def energy(self) -> Sequence[EnergyReading]:
        self.reads += 1
        return [
            EnergyReading(name, power_w * self.stopped.get(name, self.now_s) % self.wraps_at_j, self.wraps_at_j)
            for name, power_w in self.power_w_by_id.items()
            if name not in self.unreadable
        ]

    def power_w(self) -> dict[str, float]:
        return {}


def readings(source: Packages, meter: PowerMeter, interval_s: float, cycles: int) -> list[PowerSample]:
    """Samples of cycles; where the meter needs it, the counters are read in between, as the sampler does."""
    found = [meter.read(source.now_s)]
    for _ in range(cycles):
        due_s = source.now_s + interval_s
        while source.now_s + meter.sampling_interval_s < due_s:
            source.now_s += meter.sampling_interval_s
            meter.sample(source.now_s)
        source.now_s = due_s
        found.append(meter.read(source.now_s))
    return found[1:]


class Gpu:
    """A GPU with an energy counter and a power that happens to be read at a peak; a `PowerSource`."""

    name = "nvml"
    energy_j: float | None = 1000.0

    def unavailable(self) -> str | None:
        return None

    def energy(self) -> Sequence[EnergyReading]:
        return [] if self.energy_j is None else [EnergyReading("GPU-1", self.energy_j, None)]

    def power_w(self) -> dict[str, float]:
        return {"GPU-1": 650.0}


def test_the_energy_of_a_gpu_goes_before_the_power_of_a_moment() -> None:
    gpu = Gpu()
    meter = PowerMeter([gpu])
    assert meter.read(0.0).power_w == {"GPU-1": 650.0}, "one reading of a counter says nothing"
    gpu.energy_j = 5000.0
    assert meter.read(10.0).power_w == {"GPU-1": 400.0}
    gpu.energy_j = 100.0
    assert meter.read(20.0).power_w == {"GPU-1": 650.0}, "the driver was loaded anew"
    gpu.energy_j = None
    assert meter.read(30.0).power_w == {"GPU-1": 650.0}, "older than Volta"


@pytest.mark.parametrize("interval_s", [1.0, 20.0, 70.0, 600.0])
@pytest.mark.parametrize("bound_w", [800.0, 4000.0])
def test_h1_power_of_an_epyc_at_any_reconcile_interval(interval_s: float, bound_w: float) -> None:
    source = Packages(AMD_J, package_0=391.0, package_1=277.0)
    meter = PowerMeter([source], lambda _device: bound_w)
    for sample in readings(source, meter, interval_s, 5):
        assert sample.package_power_w == pytest.approx(668.0)


def test_h1_power_of_an_intel_dram_zone_at_the_default_interval() -> None:
    source = Packages(INTEL_DRAM_J, dram_0=61.0)
    meter = PowerMeter([source])
    assert [one.power_w["dram-0"] for one in readings(source, meter, 20.0, 3)] == pytest.approx([61.0] * 3)


def test_h1_sampler_reads_between_the_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", at_once)
    source = Packages(AMD_J, package_0=400.0)
    meter = PowerMeter([source], lambda _device: 800.0)

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        meter.read(clock())
        sampler = asyncio.create_task(Sampler(meter, clock).run())
        for _ in range(10):
            await asyncio.sleep(60.0)
            source.now_s = clock()
        source_reads = source.reads
        sampler.cancel()
        assert source_reads >= 600.0 / (AMD_J / 800.0 / 2.0) - 1

    run_virtually(main())


def test_h3_one_unreadable_package_is_no_power_of_the_node() -> None:
    source = Packages(AMD_J, package_0=200.0, package_1=200.0)
    meter = PowerMeter([source])
    assert readings(source, meter, 10.0, 2)[-1].package_power_w == pytest.approx(400.0)
    source.unreadable = {"package-1"}
    sample = readings(source, meter, 10.0, 2)[-1]
    assert sample.package_power_w is None
    assert sample.problems == {"package-1": UNREADABLE}


def test_h3_package_that_never_could_be_read_is_missed() -> None:
    source = Packages(AMD_J, package_0=200.0, package_1=200.0)
    source.unreadable = {"package-1"}
    sample = readings(source, PowerMeter([source]), 10.0, 2)[-1]
    known = sample.required_of(["package-0", "package-1"], 2)
    assert (known.package_power_w, dict(known.problems)) == (None, {"package-1": UNREADABLE})
    # Without a list of packages, the number of sockets tells.
    assert sample.required_of([], 2).package_power_w is None
    assert sample.required_of([], 1).package_power_w == pytest.approx(200.0)


def test_h3_dies_make_a_socket() -> None:
    source = Packages(AMD_J, **{f"package_{socket}_die_{die}": 50.0 for socket in range(2) for die in range(2)})
    sample = readings(source, PowerMeter([source]), 10.0, 2)[-1].required_of(["package-0", "package-1"], 2)
    assert (sample.package_power_w, sample.sockets) == (pytest.approx(200.0), 2)


def test_h10_stopped_counter_is_missing_and_stale_never_zero() -> None:
    source = Packages(AMD_J, package_0=200.0, package_1=150.0)
    meter = PowerMeter([source])
    readings(source, meter, 20.0, 3)
    source.stopped = {"package-1": source.now_s}
    samples = readings(source, meter, 20.0, 5)
    assert [one.package_power_w for one in samples] == [None] * 5
    assert [dict(one.problems) for one in samples[2:]] == [{"package-1": STOPPED}] * 3
    source.stopped = {}
    samples = readings(source, meter, 20.0, 3)
    # What it missed is not power; the interval after its return is.
    assert [one.package_power_w for one in samples] == [None, pytest.approx(350.0), pytest.approx(350.0)]


def test_h10_idle_package_is_measured() -> None:
    source = Packages(AMD_J, package_0=0.4)
    assert readings(source, PowerMeter([source]), 20.0, 8)[-1].package_power_w == pytest.approx(0.4)


def test_h10_graphics_unit_that_is_off_is_no_problem() -> None:
    source = Packages(AMD_J, package_0=20.0, uncore_0=0.0)
    sample = readings(source, PowerMeter([source]), 20.0, 8)[-1]
    assert (sample.package_power_w, dict(sample.problems)) == (pytest.approx(20.0), {})
