"""Files that commands write: pipes, devices and links are written through, and no result is lost with the disk."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from joulie.apps.cli.main import main
from joulie_lab.program import parallel
from joulie_lab.simulation import runner

from .test_cli_simulate import FakeSession

pytestmark = pytest.mark.slow

JOBS = "t,len,cpus\n0,600,4\n60,600,8\n120,x,8\n"
IMPORT = ("workload", "import", "csv", "jobs.csv", "--columns", "arrival=t,duration=len,cores=cpus")
SWEEP = ("sweep", "quick", "--scheduler", "t10,joulie", "--seed", "1,2", "--jobs", "1", "--state", "state.jsonl")
WRITERS = {
    "simulate": ("simulate", "quick", "--json"),
    "simulate --report": ("simulate", "quick", "--report"),
    "sweep": (*SWEEP, "--json"),
    "sweep --report": (*SWEEP, "--report"),
    "bench": ("bench", "attribution", "--small", "--json"),
    "generate": ("workload", "generate", "--hours", "0.2", "--out"),
    "fmu": ("fmu", "build", "--output"),
    "import": (*IMPORT, "--skip-bad-lines", "--out"),
}


class Session(FakeSession):
    """Without progress, as in a sweep."""

    def run(self, on_progress) -> None:
        """The series are there from the beginning."""


@pytest.fixture(autouse=True)
def _devices():
    """What these tests forbid would take the machine's own devices away from a test that runs as root."""
    yield
    for name, minor in (("null", 3), ("full", 7)):
        path = Path("/dev", name)
        if not path.is_char_device():
            path.unlink(missing_ok=True)
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
            pytest.fail(f"{path} was replaced by a file")


@pytest.fixture
def joulie(monkeypatch, tmp_path, capfdbinary):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "Session", Session)
    for user in (runner, parallel):
        monkeypatch.setattr(user, "warm_up", lambda: None)
    monkeypatch.setattr(runner, "published_jobs", lambda seed, hours, rate: range(100_000))
    (tmp_path / "jobs.csv").write_text(JOBS)

    def _joulie(*arguments: str) -> tuple[int, bytes, str]:
        with pytest.raises(SystemExit) as caught:
            main(list(arguments))
        streams = capfdbinary.readouterr()
        return int(caught.value.code or 0), streams.out, streams.err.decode()

    return _joulie


@pytest.mark.parametrize("command", WRITERS)
def test_u1_dash_is_standard_output(joulie, tmp_path, command):
    arguments = WRITERS[command]
    assert joulie(*arguments, "named")[0] == 0
    status, out, err = joulie(*arguments, "-")
    assert status == 0
    named = (tmp_path / "named").read_bytes()
    assert out[:4] == named[:4]
    if "json" in arguments[-1]:
        json.loads(out)
    assert abs(len(out) - len(named)) < 0.02 * len(named)
    assert not (tmp_path / "-").exists()
    assert err  # the table and what was written are told beside it


@pytest.mark.parametrize("command", WRITERS)
def test_u1_devices_pipes_and_links_are_written_through(joulie, tmp_path, command):
    arguments = WRITERS[command]
    before = Path("/dev/null").stat().st_ino
    assert joulie(*arguments, "/dev/null")[0] == 0
    assert Path("/dev/null").stat().st_ino == before

    os.mkfifo(tmp_path / "pipe")
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_bytes()), daemon=True)
    reader.start()
    assert joulie(*arguments, "pipe")[0] == 0
    reader.join(timeout=10.0)
    assert received[0]
    assert (tmp_path / "pipe").is_fifo()

    (tmp_path / "real").mkdir()
    (tmp_path / "real/file").write_text("old")
    (tmp_path / "link").symlink_to("real/file")
    assert joulie(*arguments, "link")[0] == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real/file").read_bytes()[:4] == received[0][:4]
    assert [path.name for path in tmp_path.rglob(".*")] == []


@pytest.mark.parametrize("command", ["simulate", "simulate --report", "sweep", "bench"])
def test_u5_the_table_is_printed_before_a_full_disk_loses_it(joulie, command):
    status, out, err = joulie(*WRITERS[command], "/dev/full")
    assert status != 0
    assert len(out.splitlines()) > 3
    problem = [line for line in err.splitlines() if "/dev/full" in line]
    assert problem == [f"joulie: error: {WRITERS[command][-1]} /dev/full: cannot be written: No space left on device"]
    assert "Traceback" not in err


@pytest.mark.parametrize("out", ["-", "part.jsonl", "/dev/null"])
def test_u3_an_import_that_fails_writes_nothing(joulie, tmp_path, out):
    status, written, err = joulie(*IMPORT, "--out", out)
    assert status != 0
    assert "nothing is written" in err
    assert written == b""
    assert not (tmp_path / "part.jsonl").exists()
