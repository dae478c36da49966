"""Where the tests' PostgreSQL comes from; nothing is downloaded here: the commands are small scripts."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from joulie_lab.control_plane.postgres import Postgres, fetch_postgres, obtain_postgres
from joulie_lab.control_plane.tools import BinariesError
from support.fetched_programs import Fetcher, quiet, write_program

PROGRAMS = "tree/usr/lib/postgresql/15/bin"
LIBRARY = "tree/usr/lib/x86_64-linux-gnu/libpq.so.5"
RUNS = "#!/bin/sh\necho 'postgres (PostgreSQL) 15.9'\n"
# As the loader does: it looks for the library where the environment says.
NEEDS_LIBRARY = """#!/bin/sh
IFS=:
for folder in $LD_LIBRARY_PATH; do [ -f "$folder/libpq.so.5" ] && echo 'postgres (PostgreSQL) 15.9' && exit 0; done
echo "postgres: error while loading shared libraries: libpq.so.5: cannot open shared object file"
exit 127
"""


def fetcher(text: str = RUNS, **others: str) -> Fetcher:
    return Fetcher("tree", {f"{PROGRAMS}/initdb": RUNS, f"{PROGRAMS}/postgres": text, **others})


def install(folder: Path) -> Path:
    for name in ("initdb", "postgres"):
        write_program(folder / name, RUNS)
    return folder


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Where Debian's packages would be."""
    return tmp_path / "installed"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"JOULIE_CONTROL_PLANE_DIR": str(tmp_path / "cache"), "PATH": str(tmp_path / "bin")}


def test_what_is_nowhere_is_fetched_once_into_the_cache(
    environment: Mapping[str, str], installed: Path, tmp_path: Path
) -> None:
    fetch, lines = fetcher(), list[str]()
    postgres = obtain_postgres(lines.append, environment=environment, installed=installed, fetch=fetch)
    assert postgres.tree is not None
    assert postgres.tree.parent.parent == tmp_path / "cache"
    assert (postgres.programs / "postgres").read_text() == RUNS
    assert lines == [f"postgres (PostgreSQL) 15.9: {postgres.tree}"]
    assert obtain_postgres(quiet, environment=environment, installed=installed, fetch=fetch) == postgres
    assert fetch.fetched == 1
    assert sorted(path.name for path in postgres.tree.parent.iterdir()) == [".lock", "postgresql"]


def test_a_named_folder_the_path_what_is_installed_and_the_cache_come_in_this_order(
    environment: dict[str, str], installed: Path, tmp_path: Path
) -> None:
    cached = obtain_postgres(quiet, environment=environment, installed=installed, fetch=fetcher())
    named, linked = install(tmp_path / "mine"), install(tmp_path / "linked")
    older, newer = install(installed / "15/bin"), install(installed / "17/bin")
    on_path = tmp_path / "bin/initdb"
    on_path.parent.mkdir()
    on_path.symlink_to(linked / "initdb")
    fetch = fetcher()

    def found(**more: str) -> Postgres:
        return obtain_postgres(quiet, environment=environment | more, installed=installed, fetch=fetch)

    assert found(JOULIE_POSTGRES_BIN=str(named)) == Postgres(named)
    assert found() == Postgres(linked)
    on_path.unlink()
    assert found() == Postgres(newer)
    (newer / "postgres").unlink()  # a client alone
    assert found() == Postgres(older)
    (older / "initdb").chmod(0o644)
    assert found() == cached
    assert not fetch.fetched


def test_a_named_folder_without_the_programs_is_an_error_that_says_what_to_do(
    environment: dict[str, str], installed: Path
) -> None:
    with pytest.raises(BinariesError, match=r"JOULIE_POSTGRES_BIN=/nowhere: no folder with initdb and postgres; name"):
        obtain_postgres(
            quiet, environment=environment | {"JOULIE_POSTGRES_BIN": "/nowhere"}, installed=installed, fetch=fetcher()
        )


def test_a_library_that_is_missing_is_named_and_nothing_is_kept(
    environment: Mapping[str, str], installed: Path, tmp_path: Path
) -> None:
    with pytest.raises(BinariesError, match=r"does not run here: (.|\n)*libpq\.so\.5(.|\n)*set JOULIE_POSTGRES_BIN"):
        obtain_postgres(quiet, environment=environment, installed=installed, fetch=fetcher(NEEDS_LIBRARY))
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == [".lock"]


def test_packages_without_the_programs_are_told(environment: Mapping[str, str], installed: Path) -> None:
    with pytest.raises(BinariesError, match=r"there is no initdb and postgres in "):
        obtain_postgres(quiet, environment=environment, installed=installed, fetch=Fetcher("tree", {LIBRARY: ""}))


def test_a_cache_of_a_machine_with_more_libraries_is_fetched_anew(
    environment: Mapping[str, str], installed: Path
) -> None:
    cached = obtain_postgres(quiet, environment=environment, installed=installed, fetch=fetcher())
    write_program(cached.programs / "postgres", NEEDS_LIBRARY)
    fetch = fetcher(NEEDS_LIBRARY, **{LIBRARY: ""})
    assert obtain_postgres(quiet, environment=environment, installed=installed, fetch=fetch) == cached
    assert obtain_postgres(quiet, environment=environment, installed=installed, fetch=fetch) == cached
    assert fetch.fetched == 1


def test_what_was_fetched_runs_in_another_place_with_its_own_libraries(
    environment: Mapping[str, str], installed: Path, tmp_path: Path
) -> None:
    fetch = fetcher(NEEDS_LIBRARY, **{LIBRARY: ""})
    postgres = obtain_postgres(quiet, environment=environment, installed=installed, fetch=fetch)
    copy = postgres.copied_to(tmp_path / "copy")
    assert copy.programs.is_relative_to(tmp_path / "copy")
    (postgres.programs / "../../../x86_64-linux-gnu/libpq.so.5").unlink()
    ran = subprocess.run([copy.programs / "postgres"], env={**os.environ, **copy.environment}, check=False)
    assert ran.returncode == 0


def test_what_is_installed_needs_nothing_and_stays_in_its_place(installed: Path, tmp_path: Path) -> None:
    postgres = Postgres(install(installed / "15/bin"))
    assert postgres.environment == {}
    assert postgres.copied_to(tmp_path / "copy") is postgres


def test_the_server_and_the_libraries_that_it_loads_are_fetched_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ["libpq5", "libicu72", "libkrb5-3", "libgcc-s1", "libcrypt1", "postgresql-15"]
    others = ["libc6", "libc-bin", "libllvm14", "libz3-4", "libperl5.36", "libjson-perl", "locales", "ssl-cert"]
    others += ["postgresql", "postgresql-common", "postgresql-client-15"]
    would = "\n".join(f"echo 'Inst {name} (1.0 Debian:12 [amd64])'" for name in sorted(chosen + others))
    write_program(
        tmp_path / "bin/apt-get",
        f'#!/bin/sh\ncase "$*" in\n*--simulate*) {would} ;;\n'
        '*) while [ "$1" != download ]; do shift; done; shift; for name; do echo "$name" > "${name}_1.deb"; done ;;\n'
        "esac\n",
    )
    write_program(tmp_path / "bin/dpkg-deb", '#!/bin/sh\nmkdir -p "$3" && cat "$2" >> "$3/names"\n')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    (tmp_path / "target").mkdir()
    tree = fetch_postgres(tmp_path / "target", quiet)
    assert sorted((tree / "names").read_text().split()) == sorted(chosen)
