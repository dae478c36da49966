"""A real PostgreSQL server of the tests' own, on a socket in its own folder."""

import os
import pwd
import signal
import subprocess
from pathlib import Path

import psycopg

from joulie_lab.control_plane import ManagedProcess, Postgres, wait_for

# initdb alone takes a minute where cores are slow and shared.
_PATIENCE_S = 180.0
_INITDB_OPTIONS = ("--auth=trust", "--username=joulie", "--encoding=UTF8", "--no-locale", "--no-sync")


class PostgresServer:
    """A server with one superuser, joulie, who needs no password.

    PostgreSQL refuses to run as root; root's tests run it as nobody, out of a copy that nobody can read.
    """

    def __init__(self, postgres: Postgres, folder: Path) -> None:
        """Make its data; `start` runs it.

        Args:
            postgres: the programs.
            folder: for its data, its socket and its log; an empty one that others can reach.
        """
        self._folder = folder
        data = folder / "data"
        as_user: list[str | Path] = []
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            postgres = postgres.copied_to(folder / "postgresql")
            # A change of user ends the tie to the parent's life that ManagedProcess makes: it is tied again.
            identity = (f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups")
            as_user = ["setpriv", *identity, "--pdeathsig=KILL"]
        made = subprocess.run(
            [*as_user, postgres.programs / "initdb", *_INITDB_OPTIONS, data],
            cwd=folder,
            env={**os.environ, **postgres.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        assert made.returncode == 0, made.stdout
        settings = {"listen_addresses": "", "unix_socket_directories": folder, "fsync": "off", "jit": "off"}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [*as_user, postgres.programs / "postgres", "-D", data, *options]
        self.process = ManagedProcess("postgresql", command, folder / "log", postgres.environment)

    def start(self) -> None:
        """Run it, and wait until it answers."""
        self.process.start()
        wait_for(self._ready, _PATIENCE_S, "PostgreSQL is ready")

    def stop(self) -> None:
        """End it without the orderly write of what is thrown away with it."""
        os.kill(self.process.pid, signal.SIGQUIT)
        self.process.stop()

    def url(self, database: str) -> str:
        """The address of a database, which need not be there."""
        return f"postgresql://joulie@/{database}?host={self._folder}"

    def execute(self, statement: str) -> None:
        """Run a statement in the database postgres, outside of a transaction."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _ready(self) -> bool:
        self.process.raise_if_ended()
        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True
