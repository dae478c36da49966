"""RAPL against trees of real directories and links."""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from joulie.adapters.cpu.rapl import Rapl, RaplMeter
from joulie.domain.quantities import InvalidQuantityError
from joulie.host_files import OsFiles
from joulie.ports.devices import ControlFailedError, ControlRefusedError, DeviceKind, PowerDevice
from support import sysfs_trees as trees

LIMIT = "constraint_0_power_limit_uw"
WRITE = "joulie.host_files.OsFiles.write"


def contents(sys: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in (sys / "devices").rglob("*") if path.is_file()}


def changed(before: dict[Path, str], after: dict[Path, str]) -> set[str]:
    return {f"{path.parent.name}/{path.name}" for path in after if before.get(path) != after[path]}


def test_every_package_counts_once(tmp_path: Path) -> None:
    """Trap: zones counted twice through symlinks and mmio; psys taken for a package by its place."""
    rapl = Rapl(trees.intel_two_sockets(tmp_path))
    assert rapl.unavailable() is None
    assert rapl.devices() == [
        PowerDevice(f"package-{n}", DeviceKind.CPU_PACKAGE, limit_w=205.0, max_w=205.0, default_w=205.0)
        for n in range(2)
    ]


def test_one_file_is_written_for_a_package(tmp_path: Path) -> None:
    """Trap: the package's cap written to dram and psys too. package-1 is intel-rapl:2, behind psys."""
    sys = trees.intel_two_sockets(tmp_path)
    before = contents(sys)
    assert Rapl(sys).set_limit("package-1", 123.5) == 123.5
    after = contents(sys)
    assert changed(before, after) == {f"intel-rapl:2/{LIMIT}"}
    assert trees.zone_file(sys, "intel-rapl:2", LIMIT).read_text() == "123500000\n"


def test_the_limit_named_long_term_is_the_one(tmp_path: Path) -> None:
    sys = trees.intel_two_sockets(tmp_path)
    zone = trees.zone_file(sys, "intel-rapl:0", "").resolve()
    (zone / "constraint_0_name").write_text("short_term\n")
    (zone / "constraint_1_name").write_text("long_term\n")
    before = contents(sys)
    Rapl(sys).set_limit("package-0", 150.0)
    assert changed(before, contents(sys)) == {"intel-rapl:0/constraint_1_power_limit_uw"}


def test_the_range_is_the_packages_not_the_drams(tmp_path: Path) -> None:
    """Trap: cap range taken from dram, so that "100 %" throttled the node."""
    assert {device.max_w for device in Rapl(trees.intel_two_sockets(tmp_path)).devices()} == {205.0}


def test_firmware_that_states_no_maximum(tmp_path: Path) -> None:
    devices = Rapl(trees.intel_four_sockets(tmp_path)).devices()
    assert [device.id for device in devices] == ["package-0", "package-1", "package-2", "package-3"]
    assert {(device.limit_w, device.min_w, device.max_w, device.default_w) for device in devices} == {
        (150.0, None, None, None)
    }


def test_mmio_serves_where_it_is_alone(tmp_path: Path) -> None:
    sys = trees.add_powercap(tmp_path, "intel-rapl-mmio", [trees.package(0, 15.0)])
    assert Rapl(sys).set_limit("package-0", 10.0) == 10.0


def test_dies_are_packages_of_their_own(tmp_path: Path) -> None:
    sys = trees.intel_multi_die(tmp_path)
    assert [device.id for device in Rapl(sys).devices()] == [
        f"package-{socket}-die-{die}" for socket in range(2) for die in range(2)
    ]
    assert Rapl(sys).set_limit("package-1-die-1", 95.0) == 95.0
    assert trees.zone_file(sys, "intel-rapl:3", LIMIT).read_text() == "95000000\n"


def test_packages_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    sys = trees.add_powercap(tmp_path, "intel-rapl", [trees.package(number) for number in reversed(range(12))])
    assert [device.id for device in Rapl(sys).devices()] == [f"package-{number}" for number in range(12)]


def test_amd_measures_and_does_not_limit(tmp_path: Path) -> None:
    sys = trees.amd_energy_only(tmp_path)
    assert "package-0 has no long_term limit" in (Rapl(sys).unavailable() or "")
    assert [device.limit_w for device in Rapl(sys).devices()] == [None, None]
    with pytest.raises(ControlRefusedError, match="energy only"):
        Rapl(sys).set_limit("package-0", 100.0)
    assert RaplMeter(sys).unavailable() is None


@pytest.mark.parametrize(
    ("tree", "reason"), [(trees.virtual_machine, "no RAPL zones"), (trees.masked, "mount the host's /sys")]
)
def test_nothing_to_control_is_a_reason_not_an_error(tmp_path: Path, tree: Callable[[Path], Path], reason: str) -> None:
    sys = tree(tmp_path)
    assert reason in (Rapl(sys).unavailable() or "")
    assert reason in (RaplMeter(sys).unavailable() or "")
    assert Rapl(sys).devices() == []
    assert RaplMeter(sys).energy() == []


def test_a_zone_switched_off_or_locked_is_refused_unwritten(tmp_path: Path) -> None:
    sys = trees.intel_two_sockets(tmp_path)
    trees.zone_file(sys, "intel-rapl:0", "enabled").write_text("0\n")
    before = contents(sys)
    assert Rapl(sys).unavailable() is None, "the other package can still be limited"
    assert [device.limit_w for device in Rapl(sys).devices()] == [None, 205.0]
    with pytest.raises(ControlRefusedError, match="locked by the firmware"):
        Rapl(sys).set_limit("package-0", 100.0)
    assert contents(sys) == before


def test_a_read_only_mount_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    assert "is not writable" in (Rapl(trees.intel_two_sockets(tmp_path)).unavailable() or "")


def test_a_limit_that_cannot_be_read_is_a_reason(tmp_path: Path) -> None:
    sys = trees.add_powercap(tmp_path, "intel-rapl", [trees.package(0), trees.package(1)])
    trees.zone_file(sys, "intel-rapl:0", LIMIT).unlink()
    trees.zone_file(sys, "intel-rapl:1", LIMIT).write_text("")
    reasons = Rapl(sys).unavailable() or ""
    assert "package-0: cannot read the power limit" in reasons
    assert "holds '' without its end" in reasons
    assert [device.limit_w for device in Rapl(sys).devices()] == [None, None]


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.EACCES, ControlRefusedError),
        (errno.EPERM, ControlRefusedError),
        (errno.EROFS, ControlRefusedError),
        (errno.EOPNOTSUPP, ControlRefusedError),
        (errno.ENODATA, ControlFailedError),
        (errno.EIO, ControlFailedError),
    ],
)
def test_what_the_kernel_answers_to_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    def refuse(_files: object, file: Path, text: str) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(WRITE, refuse)
    with pytest.raises(error, match=rf"write 100 W to .*{LIMIT}: {os.strerror(number)}"):
        Rapl(trees.intel_two_sockets(tmp_path)).set_limit("package-0", 100.0)


def test_a_write_without_effect_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WRITE, lambda _files, _file, _text: None)
    with pytest.raises(ControlFailedError, match="accepted, but 205 W is in force"):
        Rapl(trees.intel_two_sockets(tmp_path)).set_limit("package-0", 100.0)


def test_the_driver_may_round_to_its_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eighths = lambda _files, file, text: file.write_text(f"{int(text) // 125_000 * 125_000}\n")  # noqa: E731
    monkeypatch.setattr(WRITE, eighths)
    assert Rapl(trees.intel_two_sockets(tmp_path)).set_limit("package-0", 100.2) == 100.125


def test_what_is_read_back_must_be_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WRITE, lambda _files, file, _text: file.write_text("-1\n"))
    with pytest.raises(ControlFailedError, match="holds '-1', not a number"):
        Rapl(trees.intel_two_sockets(tmp_path)).set_limit("package-0", 100.0)


def test_a_package_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ControlFailedError, match="no RAPL zone package-7"):
        Rapl(trees.intel_two_sockets(tmp_path)).set_limit("package-7", 100.0)


@pytest.mark.parametrize("limit_w", [float("nan"), float("inf"), 0.0, -5.0])
def test_limits_that_are_none(tmp_path: Path, limit_w: float) -> None:
    with pytest.raises(InvalidQuantityError, match="limit_w"):
        Rapl(trees.intel_two_sockets(tmp_path)).set_limit("package-0", limit_w)


def test_energy_by_domain(tmp_path: Path) -> None:
    readings = RaplMeter(trees.intel_two_sockets(tmp_path)).energy()
    assert {reading.device_id: reading.energy_j for reading in readings} == {
        "dram-0": 3.0,
        "dram-1": 3.0,
        "package-0": 10.0,
        "package-1": 20.0,
        "psys": 90.0,
    }
    assert {reading.wraps_at_j for reading in readings} == {trees.MAX_ENERGY_UJ / 1e6}


def test_energy_of_dies_and_laptops(tmp_path: Path) -> None:
    ids = {reading.device_id for reading in RaplMeter(trees.intel_multi_die(tmp_path / "dies")).energy()}
    assert {"package-0-die-1", "dram-0-die-1"} <= ids
    ids = {reading.device_id for reading in RaplMeter(trees.laptop(tmp_path / "laptop")).energy()}
    assert ids == {"package-0", "core-0", "uncore-0", "psys"}


def test_a_counter_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    """Missing is never zero."""
    sys = trees.intel_two_sockets(tmp_path)
    for zone in ("intel-rapl:0", "intel-rapl:2"):
        trees.zone_file(sys, zone, "energy_uj").write_text("")
    trees.zone_file(sys, "intel-rapl:1", "max_energy_range_uj").write_text("0\n")
    meter = RaplMeter(sys)
    assert {reading.device_id for reading in meter.energy()} == {"dram-0", "dram-1", "psys"}
    assert [reading.wraps_at_j for reading in meter.energy() if reading.device_id == "psys"] == [None]
    assert "needs root" in (meter.unavailable() or "")
    assert meter.power_w() == {}


def test_a_short_read_is_no_number(tmp_path: Path) -> None:
    """205 W read short is 20 W, which would be saved and restored."""
    sys = trees.intel_two_sockets(tmp_path)
    trees.zone_file(sys, "intel-rapl:0", LIMIT).write_text("20500000")
    assert Rapl(sys).devices()[0].limit_w is None


def test_a_zone_whose_name_cannot_be_read_is_listed_without_a_limit(tmp_path: Path) -> None:
    """Otherwise a cap would be reported as applied on a part of the packages."""
    sys = trees.intel_two_sockets(tmp_path)
    name = trees.zone_file(sys, "intel-rapl:2", "name")
    name.unlink()
    rapl = Rapl(sys)
    assert [(device.id, device.limit_w) for device in rapl.devices()] == [("package-0", 205.0), ("intel-rapl:2", None)]
    name.write_text("1 2\n")
    assert rapl.devices()[1].id == "intel-rapl:2", "not a name"
    name.write_text("package-1\n")
    assert [device.id for device in rapl.devices()] == ["package-0", "package-1"]
    name.unlink()
    assert [device.id for device in rapl.devices()] == ["package-0", "package-1"], "a name does not change"


def test_a_zone_of_an_unreadable_package_has_no_name(tmp_path: Path) -> None:
    sys = trees.intel_two_sockets(tmp_path)
    trees.zone_file(sys, "intel-rapl:0", "name").unlink()
    assert [reading.device_id for reading in RaplMeter(sys).energy()] == ["psys", "dram-1", "package-1"]


def test_a_limit_that_no_register_holds_is_none(tmp_path: Path) -> None:
    sys = trees.intel_two_sockets(tmp_path)
    trees.zone_file(sys, "intel-rapl:0", "constraint_0_max_power_uw").write_text(f"{2**64}\n")
    trees.zone_file(sys, "intel-rapl:0", LIMIT).write_text(f"{2**63}\n")
    assert [(device.limit_w, device.max_w) for device in Rapl(sys).devices()] == [(None, None), (205.0, 205.0)]


def test_a_class_that_cannot_be_listed_is_not_taken_for_the_second_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The MMIO zones of the same packages have limits of their own, at which a cap looks restored."""
    rapl = Rapl(trees.intel_two_sockets(tmp_path))
    assert rapl.set_limit("package-0", 100.0) == 100.0
    names = OsFiles.names
    failing = iter([OSError(errno.EIO, "")])

    def once(files: OsFiles, folder: Path) -> object:
        if error := next(failing, None):
            raise error
        return names(files, folder)

    monkeypatch.setattr(OsFiles, "names", once)
    assert [device.limit_w for device in rapl.devices()] == [100.0, 205.0]


@pytest.mark.parametrize("fault", ["list", "name"])
def test_h4_a_limit_that_cannot_be_found_now_is_not_a_package_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A cap of Joulie's may be in force there, unlike on a package that has no limit at all."""
    sys = trees.intel_two_sockets(tmp_path)

    class Failing(OsFiles):
        def names(self, folder: Path) -> Sequence[str]:
            if fault == "list" and folder.name == "intel-rapl:0":
                raise OSError(errno.EBUSY, "Device or resource busy")
            return super().names(folder)

        def read(self, file: Path) -> str:
            return "" if fault == "name" and file.match("intel-rapl:0/constraint_0_name") else super().read(file)

    rapl = Rapl(sys, Failing())
    assert [(device.limit_w is None, device.limitable) for device in rapl.devices()] == [(True, True), (False, True)]
    with pytest.raises(ControlFailedError):
        rapl.set_limit("package-0", 100.0)
    assert not any(device.limitable for device in Rapl(trees.amd_energy_only(tmp_path / "amd")).devices())


def test_h5_limit_is_unreadable_while_its_maximum_is(tmp_path: Path) -> None:
    """With another maximum, a cap in percent is another one: the limit in force looks like somebody else's."""
    sys = trees.intel_two_sockets(tmp_path)
    maximum = sys / "class/powercap/intel-rapl:0/constraint_0_max_power_uw"
    maximum.write_text("")
    assert [device.limit_w is None for device in Rapl(sys).devices()] == [True, False]
    maximum.unlink()
    assert [device.limit_w is None for device in Rapl(sys).devices()] == [False, False]
