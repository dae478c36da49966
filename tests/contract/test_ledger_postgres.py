"""The ledger in a real PostgreSQL server, started for these tests."""

import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from joulie.adapters.ledger import open_ledger
from joulie.domain.accounting.records import Cycle
from joulie.ports.ledger import LedgerError
from joulie_lab.control_plane import obtain_postgres
from support.ledger_contract import T0, LedgerContract, pod, sample
from support.postgres_server import PostgresServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(request):
    """Programs that are missing are fetched; no test is skipped for them."""
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        postgres = obtain_postgres(lambda line: sys.stderr.write(f"{line}\n"))
    # pytest's own temporary folders are closed to other users, and their paths are too long for a socket's.
    with tempfile.TemporaryDirectory(prefix="ledger-") as folder:
        server = PostgresServer(postgres, Path(folder))
        server.start()
        yield server
        server.stop()


class TestPostgres(LedgerContract):
    @pytest.fixture
    def open(self, server):
        opened, databases = [], {}

        def open_again(keep=None, name="ledger"):
            if name not in databases:
                databases[name] = f"ledger_{uuid.uuid4().hex}"
                server.execute(f"CREATE DATABASE {databases[name]} TEMPLATE template0")
            opened.append(open_ledger(server.url(databases[name]), keep))
            return opened[-1]

        yield open_again
        for ledger in opened:
            ledger.close()

    def test_cycles_go_on_after_the_server_has_dropped_the_connection(self, open, server):
        ledger = open()
        ledger.append(Cycle(T0, [sample(pod(), 100)]))
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        assert ledger.append(Cycle(T0 + 30, [sample(pod(), 100)])).added["team-a"].energy_j == 3000

    def test_a_database_of_others_is_not_taken_for_a_ledger(self, open, server):
        open()
        with pytest.raises(LedgerError, match=r'"absent" does not exist: check that it can be reached'):
            open_ledger(server.url("absent"))
