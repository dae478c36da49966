"""The file of original limits: whole or not at all, never deleted unread, never fatal."""

import json
import logging
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from joulie.adapters.saved_limits import SavedLimits
from joulie.domain.actuation import WantedCap
from joulie.domain.limit_records import LimitRecord
from joulie.domain.saved_records import LostRecords, ReportedLimits, SavedRecords
from support.sysfs_trees import write_files

FIRST, SECOND, THIRD = (f"0000000{number}-8b1c-4ec5-9d3a-70f4cc4f9f8a" for number in (1, 2, 3))

BOOT = f'"bootId": "{FIRST}"'

RECORDS = {
    "rapl/package-0": LimitRecord(205.0, (123.0, 140.0)),
    "dvfs/policy0": LimitRecord(3.5e9),
    "nvml/GPU-1:2": LimitRecord(None, (420.0,)),
    "hsmp/package-0": LimitRecord(None),
}


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return boot(tmp_path, FIRST)


def boot(tmp_path: Path, boot_id: str) -> Path:
    write_files(tmp_path / "proc/sys/kernel/random", {"boot_id": boot_id})
    return tmp_path / "proc"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "var/lib/joulie/limits.json"


def test_another_process_finds_what_was_saved(file: Path, proc: Path) -> None:
    SavedLimits(file, proc).save(SavedRecords(RECORDS))
    assert SavedLimits(file, proc).load() == SavedRecords(RECORDS, found=True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_saving_replaces(file: Path, proc: Path) -> None:
    saved = SavedLimits(file, proc)
    saved.save(SavedRecords(RECORDS))
    saved.save(SavedRecords())
    assert saved.load() == SavedRecords(found=True)


def test_h5_records_of_another_boot_are_told_apart(file: Path, proc: Path, tmp_path: Path) -> None:
    saved = SavedLimits(file, proc)
    saved.save(SavedRecords(RECORDS))
    boot(tmp_path, SECOND)
    assert saved.load() == SavedRecords(earlier=RECORDS, found=True)
    now, before = {"rapl/package-0": LimitRecord(100.0)}, {"nvml/GPU-1": LimitRecord(700.0, (420.0,))}
    saved.save(SavedRecords(now, before))
    assert saved.load() == SavedRecords(now, before, found=True)
    boot(tmp_path, THIRD)
    assert saved.load() == SavedRecords(earlier={**before, **now}, found=True)


@pytest.mark.parametrize("boot_id", ["", "\n", "\x00\n", "NaN\n", "00000000-0000-4000-8000-0"])
def test_h5_garbled_boot_id_neither_voids_records_nor_is_saved(
    file: Path, proc: Path, tmp_path: Path, boot_id: str
) -> None:
    saved = SavedLimits(file, proc)
    saved.save(SavedRecords(RECORDS))
    boot(tmp_path, boot_id)
    with pytest.raises(OSError, match="boot_id"):
        saved.load()
    with pytest.raises(OSError, match="boot_id"):
        saved.save(SavedRecords())
    boot(tmp_path, FIRST)
    assert saved.load().records == RECORDS


LOST = LostRecords(
    "records of this boot were lost",
    everywhere=True,
    reported={
        "rapl": ReportedLimits("rapl", WantedCap(123.0), complete=True),
        "nvml": ReportedLimits("nvml", WantedCap(percent=60.0), (210.0, 280.5)),
        "dvfs": ReportedLimits("dvfs"),
    },
    checked=frozenset({"rapl/package-0", "nvml/GPU-1:2"}),
)


@pytest.mark.parametrize("lost", [LOST, replace(LOST, everywhere=False), LostRecords(LOST.reason, everywhere=True)])
def test_h5_loss_is_saved_with_what_is_known_instead(file: Path, proc: Path, tmp_path: Path, lost: LostRecords) -> None:
    saved = SavedLimits(file, proc)
    saved.save(SavedRecords(RECORDS, lost=lost))
    assert saved.load() == SavedRecords(RECORDS, lost=lost, found=True)
    boot(tmp_path, SECOND)
    assert saved.load() == SavedRecords(earlier=RECORDS, found=True)


@pytest.mark.parametrize(("loader", "kept"), [("208", True), ("209", True), ("114", False), ("garbage", False)])
def test_h5_what_is_known_of_a_loss_outlives_kexec(
    file: Path, proc: Path, tmp_path: Path, loader: str, kept: bool
) -> None:
    """Another kernel, started by this one, finds the limits of devices as they were: no firmware has reset them."""
    saved = SavedLimits(file, proc)
    saved.save(SavedRecords(RECORDS, lost=LOST))
    boot(tmp_path, SECOND)
    write_files(proc / "sys/kernel", {"bootloader_type": loader})
    write_files(proc, {"stat": "btime 1700000000"})
    unknown = {key: record for key, record in RECORDS.items() if record.original is None}
    loaded = saved.load()
    assert loaded == SavedRecords(unknown if kept else {}, RECORDS, LOST if kept else None, found=True, kexec=kept)
    saved.save(loaded)
    assert saved.load().kexec is kept, "a later process of this boot knows it, too"
    assert saved.booted_at_epoch_s() == (None if kept else 1.7e9), "reports from before kexec are still true"


def test_h5_garbled_entries_about_a_loss_spoil_nothing(file: Path, proc: Path) -> None:
    entries = {"lost:rapl": 1, "lost.W:rapl": -5, "lost.%:rapl": 600, "lost.0:rapl": "x", "lost.": 1, "rapl/a": 205.0}
    write_files(file.parent, {file.name: json.dumps({"bootId": FIRST, "limits": entries})})
    lost = LostRecords(LOST.reason, reported={"rapl": ReportedLimits("rapl")})
    assert SavedLimits(file, proc).load() == SavedRecords({"rapl/a": LimitRecord(205.0)}, lost=lost, found=True)


def test_nothing_saved_yet(file: Path, proc: Path) -> None:
    assert SavedLimits(file, proc).load() == SavedRecords()


def test_file_of_the_first_release_is_read(file: Path, proc: Path) -> None:
    write_files(
        file.parent,
        {file.name: f'{{{BOOT}, "limits": {{"rapl/package-0": 205.0}}}}'},
    )
    assert SavedLimits(file, proc).load().records == {"rapl/package-0": LimitRecord(205.0)}


def test_the_first_release_can_read_the_file(file: Path, proc: Path) -> None:
    """It refuses other fields, and takes numbers from zero on: a rollback must not lose the originals."""
    SavedLimits(file, proc).save(SavedRecords(RECORDS))
    content = json.loads(file.read_text())
    assert content.keys() == {"bootId", "limits"}
    assert all(isinstance(limit, float) and limit >= 0.0 for limit in content["limits"].values())
    assert {key: limit for key, limit in content["limits"].items() if ":" not in key} == {
        "rapl/package-0": 205.0,
        "dvfs/policy0": 3.5e9,
    }


@pytest.mark.parametrize("value", ["0", "-5", '"205"', "null", "true", "{}"])
def test_h6_an_unusable_limit_spoils_no_other(file: Path, proc: Path, value: str) -> None:
    content = f'{{{BOOT}, "limits": {{"rapl/package-0": {value}, "rapl/package-1": 205.0}}}}'
    write_files(file.parent, {file.name: content})
    loaded = SavedLimits(file, proc).load()
    assert loaded.records["rapl/package-1"] == LimitRecord(205.0)
    assert loaded.records["rapl/package-0"] == LimitRecord(None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        f'{{{BOOT}, "limits": {{"rapl/package-0"'.encode(),
        f'{{{BOOT}, "limits": {{"rapl/package-0": NaN}}}}'.encode(),
        b"[]",
        b"7",
        b"\xff\x00",
    ],
)
def test_h5_a_corrupt_file_is_kept_aside_and_told(
    file: Path, proc: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        loaded = SavedLimits(file, proc).load()
    assert (loaded.records, loaded.found) == ({}, True)
    assert [record.getMessage() for record in caplog.records] == ["saved limits are corrupt: file renamed"]
    aside = file.with_name("limits.json.corrupt")
    assert aside.read_bytes() == content
    # The next process knows it as well, until new limits are saved.
    assert str(aside) in SavedLimits(file, proc).load().lost.reason
    SavedLimits(file, proc).save(SavedRecords(RECORDS))
    assert SavedLimits(file, proc).load() == SavedRecords(RECORDS, found=True)


@pytest.mark.parametrize(
    ("content", "records", "earlier"),
    [
        (
            f'{{{BOOT}, "limits": {{"rapl/a": 205.0}}, "version": 2}}',
            {"rapl/a": LimitRecord(205.0)},
            {},
        ),
        ('{"bootId": "other", "limits": {"rapl/a": 205.0}, "version": 2}', {}, {"rapl/a": LimitRecord(205.0)}),
        ('{"version": 2, "limits": {"rapl/a": 205.0}}', {}, {"rapl/a": LimitRecord(205.0)}),
        (f'{{{BOOT}, "devices": []}}', {}, {}),
        (f'{{{BOOT}, "limits": []}}', {}, {}),
    ],
)
def test_h5_readable_part_of_another_format_is_used_and_the_file_is_kept(
    file: Path, proc: Path, content: str, records: dict[str, LimitRecord], earlier: dict[str, LimitRecord]
) -> None:
    write_files(file.parent, {file.name: content})
    saved = SavedLimits(file, proc)
    loaded = saved.load()
    assert (loaded.records, loaded.earlier, loaded.found) == (records, earlier, True)
    assert (loaded.lost is not None and "another format" in loaded.lost.reason) or '"other"' in content
    assert file.exists()
    saved.save(SavedRecords(RECORDS))
    saved.save(SavedRecords())
    assert file.with_name("limits.json.other-format").read_text().strip() == content
    write_files(file.parent, {file.name: content})
    again = SavedLimits(file, proc)
    again.load()
    again.save(SavedRecords(RECORDS))
    assert file.with_name("limits.json.other-format.1").read_text().strip() == content


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_failed_save_leaves_what_was_there(
    file: Path, proc: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    saved = SavedLimits(file, proc)
    saved.save(SavedRecords(RECORDS))

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        if step == "write":
            patched.setattr("joulie.adapters.saved_limits.write_through", full)
        else:
            patched.setattr(*{"fsync": (os, "fsync", full), "replace": (Path, "replace", full)}[step])
        with pytest.raises(OSError, match="No space"):
            saved.save(SavedRecords())
    assert saved.load().records == RECORDS
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_the_content_is_durable_before_it_gets_its_name(
    file: Path, proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (steps.append("fsync"), fsync(descriptor)))
    monkeypatch.setattr(Path, "replace", lambda self, target: (steps.append("rename"), replace(self, target))[1])
    SavedLimits(file, proc).save(SavedRecords(RECORDS))
    assert steps == ["fsync", "rename", "fsync"]


@pytest.mark.parametrize(
    ("stat_text", "booted_at_s"),
    [("cpu 1 2 3\nbtime 1700000000\nprocesses 5\n", 1.7e9), ("btime\n", None), ("btime x\n", None), ("", None)],
)
def test_time_of_the_last_boot(file: Path, proc: Path, stat_text: str, booted_at_s: float | None) -> None:
    assert SavedLimits(file, proc).booted_at_epoch_s() is None
    (proc / "stat").write_text(stat_text)
    assert SavedLimits(file, proc).booted_at_epoch_s() == booted_at_s
