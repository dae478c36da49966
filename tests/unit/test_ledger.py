"""The ledger in an SQLite file."""

import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from joulie.adapters.ledger import LedgerSettings, open_ledger
from joulie.domain.accounting.records import Completion, Cycle, Grouping
from joulie.ports.ledger import LedgerError
from support.accounting_day import run_day
from support.ledger_contract import HOUR_S, T0, LedgerContract, only, pod, sample


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


class TestSqlite(LedgerContract):
    @pytest.fixture
    def open(self, tmp_path):
        opened = []

        def open_again(keep=None, name="ledger"):
            opened.append(open_ledger(url_of(tmp_path / f"{name}.db"), keep))
            return opened[-1]

        yield open_again
        for ledger in opened:
            ledger.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


def test_every_cycle_is_flushed_and_readers_do_not_wait(path):
    ledger = open_ledger(url_of(path))
    with ledger._engine.begin() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
    ledger.close()


def test_a_damaged_file_is_refused_and_kept(path):
    path.write_bytes(b"SQLite format 3\0" + b"\x10\x00\x02\x02\x00\x40\x20\x20" + b"\xff" * 4096)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="restore a backup, or move the file away to start a new one"):
        open_ledger(url_of(path))
    assert path.read_bytes() == before


def test_a_file_that_is_damaged_within_is_refused(path):
    ledger = open_ledger(url_of(path))
    ledger.append(Cycle(T0, [sample(pod(str(number)), 1.0) for number in range(500)]))
    ledger.close()
    content = bytearray(path.read_bytes())
    content[8 * 4096 : 20 * 4096] = b"\x5a" * (12 * 4096)
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="damaged"):
        open_ledger(url_of(path))


def test_a_file_of_another_program_is_refused(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE pods (name TEXT)")
    connection.close()
    with pytest.raises(LedgerError, match="another program"):
        open_ledger(url_of(path))


def test_a_ledger_of_version_4_keeps_its_pods_and_takes_labels(path):
    ledger = open_ledger(url_of(path))
    ledger.append(Cycle(T0, [sample(pod(), 100.0)]))
    ledger.close()
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE pods DROP COLUMN labels")
        connection.execute("UPDATE state SET value = '4' WHERE key = 'version'")
    connection.close()
    ledger = open_ledger(url_of(path))
    ledger.append(Cycle(T0 + HOUR_S, [sample(pod(labels=(("team", "vision"),)), 100.0)]))
    ledger.close()
    (row,) = open_ledger(url_of(path)).usage(Grouping.LABEL, labels=["team"])
    assert (row.labels, row.energy.cpu_j) == (("vision",), 100.0 * HOUR_S)


def test_a_ledger_of_another_version_is_refused(path):
    open_ledger(url_of(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE state SET value = '99' WHERE key = 'version'")
    connection.close()
    with pytest.raises(LedgerError, match=r"version 99, this Joulie reads version 5"):
        open_ledger(url_of(path))


def test_a_locked_file_is_said_to_be_locked(path, monkeypatch):
    monkeypatch.setattr("joulie.adapters.ledger.database._BUSY_TIMEOUT_S", 0.01)
    ledger = open_ledger(url_of(path))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="locked by another program"):
        ledger.append(Cycle(T0))
    assert ledger.usage(Grouping.POD) == []  # who only reads does not wait
    other.close()
    ledger.append(Cycle(T0))
    ledger.close()


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(LedgerError, match=r"there is no folder .*absent"):
        open_ledger(url_of(tmp_path / "absent" / "ledger.db"))


@pytest.mark.parametrize("url", ["", "ledger.db", "mysql://host/db", "sqlite://"])
def test_a_url_that_is_none_says_how_to_write_one(url):
    with pytest.raises(LedgerError, match=re.escape("sqlite:////var/lib/joulie/ledger.db")):
        open_ledger(url)


def test_a_password_is_never_shown():
    with pytest.raises(LedgerError) as caught:
        open_ledger("postgresql://joulie:hunter2@127.0.0.1:1/ledger?connect_timeout=1")
    assert "hunter2" not in str(caught.value)
    assert "127.0.0.1:1/ledger" in str(caught.value)
    for query in ("password=hunter2&sslkey=k", "sslpassword=hunter2", "options=-c%20secret=hunter2"):
        with pytest.raises(LedgerError) as caught:
            open_ledger(f"postgresql://joulie@127.0.0.1:1/ledger?connect_timeout=1&{query}")
        assert "hunter2" not in str(caught.value)


@pytest.mark.slow
def test_the_file_gives_free_room_back(path):
    ledger = open_ledger(url_of(path), LedgerSettings(hours_kept_s=HOUR_S, retention_s=60))
    ledger.append(Cycle(T0))
    metas = [pod(str(number), started_s=T0) for number in range(4000)]
    ledger.append(Cycle(T0 + 30, [sample(meta, 1.0) for meta in metas]))
    ledger.append(Cycle(T0 + 60, completions=[Completion(meta.uid, T0 + 60) for meta in metas]))
    full = ledger.counts()["bytes"]
    ledger.prune(T0 + 2 * 86400)
    assert ledger.counts()["bytes"] < full / 5
    assert only(ledger).energy_j == pytest.approx(60 * 4000)
    ledger.close()


@pytest.mark.slow
def test_a_day_over_three_deaths_equals_an_independent_calculation(path):
    outcome = run_day(path, running=700, cycle_s=600.0)
    assert outcome.deaths == 3
    assert outcome.pods > 3000
    assert 0.01 < outcome.unknown_share < 0.1
    assert outcome.worst_namespace < 1e-9
    assert outcome.worst_pod < 1e-9


_PROGRAM = """
import sys
from support.ledger_contract import T0, pod, sample, steady
from joulie.adapters.ledger import open_ledger
from joulie.domain.accounting.records import Cycle

ledger = open_ledger(sys.argv[1])
for number in range(int(sys.argv[2]), 150):
    ledger.append(Cycle(T0 + 30.0 * number, [sample(pod(str(one)), 100.0 + one) for one in range(200)], (), steady()))
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_process_that_is_killed_again_and_again_loses_nothing(path):
    """A real SIGKILL, at whatever it is doing; the program goes on with the last cycle that it heard of, or before."""
    heard, kills = 0, 0
    while heard < 149:
        command = [sys.executable, "-c", _PROGRAM, url_of(path), str(max(0, heard - 1))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as process:
            assert process.stdout is not None
            for line in process.stdout:
                heard = int(line)
                if heard >= 30 * (kills + 1):
                    # Some cycles come to their end while the signal is under way, the last one hardly ever.
                    process.kill()
                    kills += 1
                    break
            else:
                assert process.wait() == 0
    assert kills == 4
    ledger = open_ledger(url_of(path))
    for row in ledger.usage(Grouping.POD):
        assert row.energy.energy_j == pytest.approx((100 + int(row.name)) * 30 * 149, rel=1e-12)
        assert row.energy.emissions_g == pytest.approx(row.energy.energy_j / 3.6e6 * 500, rel=1e-12)
        assert row.energy.assumed_j == 0.0
    ledger.close()
