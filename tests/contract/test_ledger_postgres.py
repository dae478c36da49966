"""The ledger in a real PostgreSQL server, started for these tests."""

import os
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

import psycopg
import pytest

from joulie.adapters.ledger import open_ledger
from joulie.domain.accounting.records import Cycle
from joulie.ports import LedgerError
from ledger_contract import T0, LedgerContract, pod, sample

pytestmark = pytest.mark.slow

_VARIABLE = "JOULIE_POSTGRES_BIN"


def _programs() -> Path | None:
    """The folder with initdb and postgres: Debian does not put it on the PATH."""
    given = os.environ.get(_VARIABLE)
    on_path = shutil.which("initdb")
    found = [Path(given)] if given else [Path(on_path).parent] if on_path else []
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in found if (folder / "postgres").is_file()), None)


@pytest.fixture(scope="module")
def server():
    """A server that listens on a socket in its own folder."""
    programs = _programs()
    if programs is None:
        pytest.skip(f"no PostgreSQL is installed; set {_VARIABLE} to the folder of its programs")
    with tempfile.TemporaryDirectory(prefix="ledger-") as place:
        folder = Path(place)
        # PostgreSQL refuses to run as root.
        as_user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if os.geteuid() == 0 else []
        if as_user:
            shutil.chown(folder, "nobody", "nogroup")

        def run(*command: str) -> None:
            subprocess.run([*as_user, *command], cwd=folder, check=True, capture_output=True, timeout=120)

        options = f"-c listen_addresses='' -c fsync=off -k {folder}"
        data = str(folder / "data")
        run(str(programs / "initdb"), "--auth=trust", "--username=joulie", "--encoding=UTF8", "--no-sync", data)
        control = (str(programs / "pg_ctl"), "--pgdata", data, "--wait", "--silent")
        run(*control, "--log", str(folder / "log"), "--options", options, "start")
        try:
            yield folder
        finally:
            run(*control, "--mode", "immediate", "stop")


def url_of(folder: Path, database: str) -> str:
    return f"postgresql://joulie@/{database}?host={folder}"


class TestPostgres(LedgerContract):
    @pytest.fixture
    def open(self, server):
        opened, databases = [], {}

        def open_again(keep=None, name="ledger"):
            if name not in databases:
                databases[name] = f"ledger_{uuid.uuid4().hex}"
                with psycopg.connect(url_of(server, "postgres"), autocommit=True) as connection:
                    connection.execute(f"CREATE DATABASE {databases[name]} TEMPLATE template0")
            opened.append(open_ledger(url_of(server, databases[name]), keep))
            return opened[-1]

        yield open_again
        for ledger in opened:
            ledger.close()

    def test_cycles_go_on_after_the_server_has_dropped_the_connection(self, open, server):
        ledger = open()
        ledger.append(Cycle(T0, [sample(pod(), 100)]))
        with psycopg.connect(url_of(server, "postgres"), autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        assert ledger.append(Cycle(T0 + 30, [sample(pod(), 100)])).added["team-a"].energy_j == 3000

    def test_a_database_of_others_is_not_taken_for_a_ledger(self, open, server):
        open()
        with pytest.raises(LedgerError, match=r'"absent" does not exist: see that it can be reached'):
            open_ledger(url_of(server, "absent"))
