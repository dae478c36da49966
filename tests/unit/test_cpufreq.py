"""cpufreq against trees of real directories and links."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from joulie.adapters.cpu.cpufreq import Cpufreq
from joulie.domain.quantities import InvalidQuantityError
from joulie.host_files import OsFiles
from joulie.ports.devices import ControlFailedError, ControlRefusedError, FrequencyPolicy
from support import sysfs_trees as trees

WRITE = "joulie.host_files.OsFiles.write"


def test_policies_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    cpufreq = Cpufreq(trees.intel_pstate(tmp_path))
    assert cpufreq.unavailable() is None
    assert [policy.id for policy in cpufreq.policies()] == [f"policy{cpu}" for cpu in range(12)]
    assert cpufreq.policies()[0] == FrequencyPolicy("policy0", 0.8e9, 3.5e9, 3.5e9, 0.8e9)


@pytest.mark.parametrize(
    ("tree", "family"),
    [
        (trees.intel_pstate, "intel_pstate"),
        (lambda sys: trees.intel_pstate(sys, "passive"), "intel_pstate"),
        (trees.amd_pstate, "amd-pstate"),
        (lambda sys: trees.amd_pstate(sys, "passive"), "amd-pstate"),
        (trees.acpi_cpufreq, "acpi-cpufreq"),
        (trees.virtual_machine, ""),
    ],
)
def test_the_family_of_the_driver(tmp_path: Path, tree: Callable[[Path], Path], family: str) -> None:
    assert Cpufreq(tree(tmp_path)).driver == family


def test_a_limit_goes_to_one_policy(tmp_path: Path) -> None:
    sys = trees.amd_pstate(tmp_path)
    cpufreq = Cpufreq(sys)
    assert cpufreq.set_limit("policy2", 2.1e9) == 2.1e9
    assert [policy.limit_hz for policy in cpufreq.policies()] == [3.7e9, 3.7e9, 2.1e9, 3.7e9]
    assert (sys / "devices/system/cpu/cpu2/cpufreq/scaling_min_freq").read_text() == "400000\n"


def test_policies_offline_are_left_out(tmp_path: Path) -> None:
    sys = trees.add_cpufreq(tmp_path, "intel_pstate", {0: [0], 1: [1]}, (800_000, 3_000_000), offline=[0])
    cpufreq = Cpufreq(sys)
    assert [policy.id for policy in cpufreq.policies()] == ["policy1"]
    assert cpufreq.driver == "intel_pstate"


def test_a_machine_without(tmp_path: Path) -> None:
    cpufreq = Cpufreq(trees.virtual_machine(tmp_path))
    assert "no cpufreq policy" in (cpufreq.unavailable() or "")
    assert cpufreq.policies() == []
    with pytest.raises(ControlFailedError, match="No such file"):
        cpufreq.set_limit("policy0", 1e9)


def test_a_read_only_mount_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    assert "is not writable" in (Cpufreq(trees.amd_pstate(tmp_path)).unavailable() or "")


def test_a_driver_with_a_table_rounds_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WRITE, lambda _files, file, _text: file.write_text("2000000\n"))
    assert Cpufreq(trees.acpi_cpufreq(tmp_path)).set_limit("policy0", 2.3e9) == 2.0e9


def test_raising_must_reach_the_highest_step_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WRITE, lambda _files, file, _text: file.write_text("2000000\n"))
    with pytest.raises(ControlFailedError, match="2000 MHz is in force"):
        Cpufreq(trees.acpi_cpufreq(tmp_path)).set_limit("policy0", 2.45e9)


def test_a_write_without_effect_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WRITE, lambda _files, _file, _text: None)
    with pytest.raises(ControlFailedError, match=r"write 2000 MHz to .*policy0/scaling_max_freq: .* 3500 MHz"):
        Cpufreq(trees.intel_pstate(tmp_path)).set_limit("policy0", 2e9)


@pytest.mark.parametrize(("number", "error"), [(errno.EROFS, ControlRefusedError), (errno.EBUSY, ControlFailedError)])
def test_what_the_kernel_answers_to_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    def refuse(_files: object, file: Path, text: str) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(WRITE, refuse)
    with pytest.raises(error, match=os.strerror(number)):
        Cpufreq(trees.intel_pstate(tmp_path)).set_limit("policy0", 2e9)


def test_what_is_read_back_must_be_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WRITE, lambda _files, file, _text: file.write_text("<unknown>\n"))
    with pytest.raises(ControlFailedError, match="not a number"):
        Cpufreq(trees.intel_pstate(tmp_path)).set_limit("policy0", 2e9)


@pytest.mark.parametrize("limit_hz", [float("nan"), 0.0, -1.0])
def test_limits_that_are_none(tmp_path: Path, limit_hz: float) -> None:
    with pytest.raises(InvalidQuantityError, match="limit_hz"):
        Cpufreq(trees.intel_pstate(tmp_path)).set_limit("policy0", limit_hz)


class CountedFiles(OsFiles):
    """Files of the operating system, the names of those read, and some that fail."""

    def __init__(self) -> None:
        self.reads: list[str] = []
        self.failing: set[str] = set()

    def read(self, file: Path) -> str:
        self.reads.append(file.name)
        if file.name in self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(file)


def test_only_what_may_change_is_read_in_every_cycle(tmp_path: Path) -> None:
    files = CountedFiles()
    cpufreq = Cpufreq(trees.intel_pstate(tmp_path), files)
    first = cpufreq.policies()
    files.reads.clear()
    assert cpufreq.policies() == first
    assert files.reads.count("scaling_max_freq") == files.reads.count("scaling_cur_freq") == 12
    assert len(files.reads) == 2 * 12 + 4, "the rest of one policy, in turn"


def test_a_limit_that_an_administrator_changes_is_noticed_at_once(tmp_path: Path) -> None:
    sys = trees.intel_pstate(tmp_path)
    cpufreq = Cpufreq(sys)
    cpufreq.policies()
    trees.write_files(sys / "devices/system/cpu/cpufreq/policy7", {"scaling_max_freq": 1_200_000})
    assert [policy.limit_hz for policy in cpufreq.policies() if policy.limit_hz != 3.5e9] == [1.2e9]


def test_turbo_that_an_administrator_turns_off_is_noticed_at_once(tmp_path: Path) -> None:
    sys = trees.intel_pstate(tmp_path)
    cpufreq = Cpufreq(sys)
    cpufreq.policies()
    for cpu in range(12):
        trees.write_files(sys / f"devices/system/cpu/cpufreq/policy{cpu}", {"cpuinfo_max_freq": 2_100_000})
    assert {policy.max_hz for policy in cpufreq.policies()} == {2.1e9}


def test_a_change_of_one_policy_is_noticed_in_turn(tmp_path: Path) -> None:
    sys = trees.intel_pstate(tmp_path)
    cpufreq = Cpufreq(sys)
    cpufreq.policies()
    trees.write_files(sys / "devices/system/cpu/cpufreq/policy7", {"cpuinfo_max_freq": 2_100_000})
    listings = [cpufreq.policies()[7].max_hz for _ in range(12)]
    assert listings[-1] == 2.1e9


@pytest.mark.parametrize("file", ["scaling_available_frequencies", "cpuinfo_max_freq", "scaling_max_freq"])
def test_what_cannot_be_read_now_is_read_again(tmp_path: Path, file: str) -> None:
    files = CountedFiles()
    cpufreq = Cpufreq(trees.acpi_cpufreq(tmp_path), files)
    files.failing = {file}
    cpufreq.policies()
    files.failing = set()
    assert [policy.steps_hz for policy in cpufreq.policies()] == [(2.45e9, 2.0e9, 1.5e9)] * 2
