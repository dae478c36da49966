"""The file of original limits: one boot, whole or not at all, never fatal."""

import logging
import os
import stat
from pathlib import Path

import pytest

from joulie.adapters.saved_limits import SavedLimits
from support.sysfs_trees import write_files

LIMITS = {"rapl/package-0": 205.0, "dvfs/policy0": 3.5e9}


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return boot(tmp_path, "first")


def boot(tmp_path: Path, boot_id: str) -> Path:
    write_files(tmp_path / "proc/sys/kernel/random", {"boot_id": boot_id})
    return tmp_path / "proc"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "var/lib/joulie/limits.json"


def test_another_process_finds_what_was_saved(file: Path, proc: Path) -> None:
    SavedLimits(file, proc).save(LIMITS)
    assert SavedLimits(file, proc).load() == LIMITS
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_saving_replaces(file: Path, proc: Path) -> None:
    saved = SavedLimits(file, proc)
    saved.save(LIMITS)
    saved.save({})
    assert saved.load() == {}


def test_a_reboot_voids_it(file: Path, proc: Path, tmp_path: Path) -> None:
    saved = SavedLimits(file, proc)
    saved.save(LIMITS)
    boot(tmp_path, "second")
    assert saved.load() == {}
    saved.save({"rapl/package-0": 100.0})
    assert saved.load() == {"rapl/package-0": 100.0}


def test_nothing_saved_yet(file: Path, proc: Path) -> None:
    assert SavedLimits(file, proc).load() == {}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"bootId": "first", "limits": {"rapl/package-0"',
        b'{"bootId": "first", "limits": {"rapl/package-0": NaN}}',
        b'{"bootId": "first", "limits": {"rapl/package-0": -5}}',
        b'{"bootId": "first", "limits": {"rapl/package-0": "205"}}',
        b'{"bootId": "first", "limits": {}, "version": 2}',
        b"\xff\x00",
    ],
)
def test_a_corrupt_file_is_kept_aside_and_told(
    file: Path, proc: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert SavedLimits(file, proc).load() == {}
    assert [record.getMessage() for record in caplog.records] == ["saved limits are corrupt: file renamed"]
    assert file.with_name("limits.json.corrupt").read_bytes() == content
    SavedLimits(file, proc).save(LIMITS)
    assert SavedLimits(file, proc).load() == LIMITS


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_failed_save_leaves_what_was_there(
    file: Path, proc: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    saved = SavedLimits(file, proc)
    saved.save(LIMITS)

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        if step == "write":
            patched.setattr("joulie.adapters.saved_limits._write_through", full)
        else:
            patched.setattr(*{"fsync": (os, "fsync", full), "replace": (Path, "replace", full)}[step])
        with pytest.raises(OSError, match="No space"):
            saved.save({})
    assert saved.load() == LIMITS
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_the_content_is_durable_before_it_gets_its_name(
    file: Path, proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (steps.append("fsync"), fsync(descriptor)))
    monkeypatch.setattr(Path, "replace", lambda self, target: (steps.append("rename"), replace(self, target))[1])
    SavedLimits(file, proc).save(LIMITS)
    assert steps == ["fsync", "rename", "fsync"]
