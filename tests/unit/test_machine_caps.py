"""Caps on modelled machines in virtual time: what power the machine really draws."""

import errno
from pathlib import Path

import pytest

from joulie.adapters.kubernetes.api.v1alpha1 import ControlOutcome
from joulie.domain.actuation import WantedCap
from joulie_lab.benchmarks.lives.bed import CYCLE_S, Bed, small
from joulie_lab.benchmarks.lives.faults import Faults
from joulie_lab.machines.library import MACHINES
from joulie_lab.machines.specs import Load

SETTLING_CYCLES, TEN_MINUTES = 45, int(600.0 / CYCLE_S)


def energy_j(bed: Bed) -> float:
    return sum(package.energy_j for package in bed.machine.packages)


@pytest.mark.parametrize("load", ["1.0", "0:1.0,70:0.85/140"])
def test_h1_epyc_without_hsmp_is_measured_and_held_at_its_cap(tmp_path: Path, load: str) -> None:
    """Findings, row H1: counters that wrap after 65,532 J, read at RECONCILE_INTERVAL 20 s."""
    bed = Bed(small(MACHINES["epyc-9654-no-hsmp"]), Load.parse(load), Faults(), tmp_path)
    target_w = 2 * 0.6 * 360.0
    began_j = true_w = 0.0
    for cycle in range(SETTLING_CYCLES + TEN_MINUTES):
        before_j = energy_j(bed)
        began_j = before_j if cycle == SETTLING_CYCLES else began_j
        outcome, _ = bed.cycle(WantedCap(percent=60.0))
        if cycle:
            assert bed.host.observation.cpu_power.package_power_w == pytest.approx(true_w, rel=0.02)
        bed.wait(CYCLE_S)
        true_w = (energy_j(bed) - before_j) / CYCLE_S
    assert outcome.backend == "dvfs"
    assert outcome.result is ControlOutcome.APPLIED
    held_w = (energy_j(bed) - began_j) / 600.0
    assert held_w == pytest.approx(target_w, rel=0.03)
    assert bed.machine.demand_w(1.0, 3.7e9) * 2 > 1.5 * target_w, "the load wants more"


def test_a_limit_that_the_firmware_clipped_is_known_for_joulie_s(tmp_path: Path) -> None:
    """40 % of an EPYC 7763 is below what HSMP takes: 225 W is in force then, and no administrator's."""
    bed = Bed(small(MACHINES["epyc-7763"]), Load(), Faults(), tmp_path)
    before = bed.limits()
    bed.cycle(WantedCap(percent=40.0))
    assert bed.limits()["package 0 hsmp"] == 225.0
    bed.machine.kexec()  # the saved limits are of another boot, the registers keep theirs
    bed.host = None
    bed.wait(CYCLE_S)
    bed.cycle(WantedCap(percent=40.0))
    bed.cycle(WantedCap())
    assert bed.limits() == before


def test_h5_limit_clipped_without_an_answer_is_restored_after_kexec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The firmware clips a cap, reading it back times out, and another kernel starts before the next cycle."""
    bed = Bed(small(MACHINES["epyc-7763"]), Load(), Faults(), tmp_path)
    before = bed.limits()
    ioctl, written = bed.files.ioctl, False

    def no_answer(device: Path, request: int, buffer: bytearray, *, write: bool) -> None:
        nonlocal written
        if written:
            raise OSError(errno.ETIMEDOUT, "Connection timed out")
        ioctl(device, request, buffer, write=write)
        written = write

    with monkeypatch.context() as broken:
        broken.setattr(bed.files, "ioctl", no_answer)
        bed.cycle(WantedCap(percent=60.0))
    assert bed.limits()["package 0 hsmp"] == 225.0
    bed.machine.kexec()
    bed.host = None
    bed.wait(CYCLE_S)
    cpu, _ = bed.cycle(WantedCap())
    assert cpu.message.startswith("restored")
    assert bed.limits() == before


def test_a_socket_that_cannot_be_limited_is_no_applied_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HSMP ends its sockets with ENODEV; one that is lost answers the same."""
    bed = Bed(small(MACHINES["epyc-9965"]), Load(), Faults(), tmp_path)
    ioctl = bed.files.ioctl

    def one_socket(device: Path, request: int, buffer: bytearray, *, write: bool) -> None:
        if int.from_bytes(buffer[-4:-2], "little") == 1:
            raise OSError(errno.ENODEV, "No such device")
        ioctl(device, request, buffer, write=write)

    monkeypatch.setattr(bed.files, "ioctl", one_socket)
    cpu, _ = bed.cycle(WantedCap(percent=60.0))
    assert cpu.result is ControlOutcome.ERROR
    assert cpu.message.endswith("; 1 of 2 sockets are limited")


def test_a_frequency_limit_close_to_the_original_is_restored(tmp_path: Path) -> None:
    bed = Bed(small(MACHINES["ampere-altra"]), Load(), Faults(), tmp_path)
    before = bed.limits()
    bed.cycle(WantedCap(percent=60.0))
    bed.cycle(WantedCap(percent=99.5))
    assert 0.99 * 3.0e9 < bed.limits()["package 0 policy 0"] < 3.0e9
    bed.cycle(WantedCap())
    assert bed.limits() == before


def test_an_administrator_s_limit_that_equals_a_cap_is_kept_over_restarts(tmp_path: Path) -> None:
    """Nothing was written, so that there is no record; that is no loss."""
    bed = Bed(small(MACHINES["xeon-8380"]), Load(), Faults(), tmp_path)
    for package in bed.machine.packages:
        package.limits["intel-rapl"].power_w[0] = 162.0
    for _ in range(3):
        bed.cycle(WantedCap(percent=60.0))
        bed.wait(CYCLE_S)
        bed.host = None
    bed.cycle(WantedCap())
    assert bed.limits()["package 0 intel-rapl 0"] == 162.0
