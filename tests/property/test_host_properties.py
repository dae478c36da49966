"""Whatever the host looks like: each package once, one file a write, and no input that crashes a reading."""

import asyncio
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.adapters.control_http import HttpControl, HttpControlError
from joulie.adapters.cpu.cpufreq import Cpufreq
from joulie.adapters.cpu.rapl import READ_BACK_TOLERANCE_W, Rapl, RaplMeter
from joulie.adapters.saved_limits import SavedLimits
from joulie.domain.limit_records import LimitRecord
from joulie.domain.saved_records import SavedRecords
from support import sysfs_trees as trees
from support.sysfs_trees import Zone

quick = settings(max_examples=50, deadline=None)
GARBAGE = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=30)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@st.composite
def packages(draw: st.DrawFn) -> list[Zone]:
    """Packages of one or more dies in any order, with the platform domain somewhere among them, or not."""
    dies = draw(st.integers(1, 3))
    names = [
        f"package-{socket}" + (f"-die-{die}" if dies > 1 else "")
        for socket in range(draw(st.integers(1, 12 // dies)))
        for die in range(dies)
    ]
    below = draw(st.sampled_from([(), (Zone("dram", limit_w=40.0),), (Zone("core"), Zone("dram"))]))
    zones = [trees.package(number, 200.0, 200.0, *below, name=name) for number, name in enumerate(names)]
    return draw(st.permutations(zones + draw(st.sampled_from([[], [Zone("psys", limit_w=900.0)]]))))


def contents(sys: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in (sys / "devices").rglob("*") if path.is_file()}


@quick
@given(zones=packages(), with_mmio=st.booleans(), limit_w=st.floats(1.0, 1000.0), data=st.data())
def test_each_package_once_and_one_file_a_write(
    zones: list[Zone], with_mmio: bool, limit_w: float, data: st.DataObject
) -> None:
    with folder() as sys:
        trees.add_powercap(sys, "intel-rapl", zones)
        if with_mmio:
            trees.add_powercap(sys, "intel-rapl-mmio", [zone for zone in zones if zone.name != "psys"])
        rapl = Rapl(sys)
        ids = [device.id for device in rapl.devices()]
        assert sorted(ids) == sorted(zone.name for zone in zones if zone.name != "psys")
        before = contents(sys)
        chosen = data.draw(st.sampled_from(ids))
        assert abs(rapl.set_limit(chosen, limit_w) - limit_w) <= READ_BACK_TOLERANCE_W
        after = contents(sys)
        (written,) = (path for path in after if after[path] != before[path])
        assert (written.parent / "name").read_text().strip() == chosen
        assert written.parent.parent.name == "intel-rapl"
        assert {device.id: device.limit_w for device in rapl.devices() if device.limit_w == 200.0}.keys() >= (
            set(ids) - {chosen}
        )
        energies = [reading.device_id for reading in RaplMeter(sys).energy()]
        assert len(energies) == len(set(energies)) == sum(1 + len(zone.zones) for zone in zones)


@settings(max_examples=25, deadline=None)  # each writes a tree of a hundred files
@given(data=st.data())
def test_no_content_of_sysfs_crashes_a_reading(data: st.DataObject) -> None:
    with folder() as sys:
        trees.acpi_cpufreq(trees.intel_two_sockets(sys))
        for path in contents(sys):
            if data.draw(st.booleans()):
                path.write_text(data.draw(GARBAGE))
        for device in Rapl(sys).devices():
            assert all(value is None or value >= 0 for value in (device.limit_w, device.max_w))
        assert all(reading.energy_j >= 0 for reading in RaplMeter(sys).energy())
        assert all(policy.limit_hz >= 0 for policy in Cpufreq(sys).policies())
        for backend in (Rapl(sys), RaplMeter(sys), Cpufreq(sys)):
            assert backend.unavailable() is None or isinstance(backend.unavailable(), str)


@quick
@given(share=st.floats(0.0, 1.0), cpu=st.integers(0, 3))
def test_a_frequency_limit_is_undone_by_the_original(share: float, cpu: int) -> None:
    with folder() as sys:
        cpufreq = Cpufreq(trees.amd_pstate(sys))
        policy = cpufreq.policies()[cpu]
        wanted_hz = policy.min_hz + share * (policy.max_hz - policy.min_hz)
        assert abs(cpufreq.set_limit(policy.id, wanted_hz) - wanted_hz) <= 500.0, "half a kHz"
        assert cpufreq.set_limit(policy.id, policy.limit_hz) == policy.limit_hz
        assert cpufreq.policies()[cpu] == policy


keys = st.builds("{}/{}".format, st.sampled_from(["rapl", "nvml", "dvfs"]), st.text(max_size=20))
saved_watts = st.floats(1e-3, 1e10)
records = st.builds(LimitRecord, st.none() | saved_watts, st.lists(saved_watts, max_size=3).map(tuple))


@quick
@given(limits=st.dictionaries(keys, records, max_size=5), cut=st.floats(0, 1, exclude_max=True))
def test_saved_limits_come_back_whole_or_not_at_all(limits: dict[str, LimitRecord], cut: float) -> None:
    with folder() as host:
        trees.write_files(host / "sys/kernel/random", {"boot_id": BOOT_ID})
        saved = SavedLimits(host / "limits.json", host)
        saved.save(SavedRecords(limits))
        assert saved.load() == SavedRecords(limits, found=True)
        content = (host / "limits.json").read_bytes()
        (host / "limits.json").write_bytes(content[: int(len(content) * cut)])
        loaded = saved.load()
        assert (loaded.records, loaded.earlier) == ({}, {})
        assert loaded.lost


BOOT_ID = "00000001-8b1c-4ec5-9d3a-70f4cc4f9f8a"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


@quick
@given(limits=JSON, boot_id=st.sampled_from([BOOT_ID, "other"]) | JSON, more=st.dictionaries(st.text(max_size=5), JSON))
def test_h6_no_content_of_the_saved_file_raises(limits: object, boot_id: object, more: dict[str, object]) -> None:
    with folder() as host:
        trees.write_files(host / "sys/kernel/random", {"boot_id": BOOT_ID})
        (host / "limits.json").write_text(json.dumps({**more, "bootId": boot_id, "limits": limits}))
        saved = SavedLimits(host / "limits.json", host)
        loaded = saved.load()
        for record in (*loaded.records.values(), *loaded.earlier.values()):
            assert record.original is None or 0.0 < record.original < float("inf")
        saved.save(SavedRecords(loaded.records))
        assert saved.load().records == loaded.records


@quick
@given(body=st.binary(max_size=60) | st.builds(lambda value: f'{{"packagePowerWatts": {value}}}'.encode(), st.floats()))
def test_any_telemetry_is_a_power_or_a_named_error(body: bytes) -> None:
    async def read() -> None:
        transport = httpx2.MockTransport(lambda _request: httpx2.Response(200, content=body))
        async with httpx2.AsyncClient(transport=transport) as client:
            try:
                telemetry = await HttpControl("http://bmc/{node}", None, client).telemetry("node")
            except HttpControlError:
                return
            power_w = telemetry.package_power_w
            assert power_w is None or 0 <= power_w < float("inf")

    asyncio.run(read())
