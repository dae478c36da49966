"""PostgreSQL's server programs for tests: those that are there already, else Debian's packages, never installed."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from joulie_lab.control_plane.binaries import cache_root
from joulie_lab.control_plane.debian import CommandError, Fetch, fetch_packages, is_program, keep, run_command
from joulie_lab.control_plane.tools import BinariesError, Report

PROGRAMS_VARIABLE = "JOULIE_POSTGRES_BIN"

_PROGRAMS = ("initdb", "postgres")
_PACKAGE = "postgresql"
_INSTALLED = Path("/usr/lib/postgresql")
"""Where Debian's packages put each version, off the PATH."""

# The server and what it loads. The C library stays this machine's, as the loader is; LLVM is for compiling queries,
# which `jit` turns off; Perl is the packages' own scripts'.
_CHOSEN = re.compile(r"postgresql-\d+$|lib(?!c6$|c-|llvm|z3|perl)(?!.*-perl$)")

_WHAT_TO_DO = (
    f"Install PostgreSQL's server in any other way and put its initdb on the PATH, or set {PROGRAMS_VARIABLE} to the "
    f"folder of its programs."
)


@dataclass(frozen=True)
class Postgres:
    """Where PostgreSQL's initdb and postgres are.

    Attributes:
        programs: their folder.
        tree: the unpacked packages that hold them and work in any place; None where they are installed.
    """

    programs: Path
    tree: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The variables that they need: where the unpacked packages have their shared libraries."""
        if self.tree is None:
            return {}
        folders = [*self.tree.glob("lib/*-linux-*"), *self.tree.glob("usr/lib/*-linux-*")]
        return {"LD_LIBRARY_PATH": ":".join(map(str, folders))}

    def copied_to(self, folder: Path) -> Postgres:
        """Return the same at a new path, for a user who may not read the cache; what is installed stays in place."""
        if self.tree is None:
            return self
        shutil.copytree(self.tree, folder, symlinks=True)
        return _of_tree(folder)


def fetch_postgres(folder: Path, report: Report) -> Path:
    """Unpack Debian's server package and the libraries that this machine lacks, as `fetch_packages` does.

    Raises:
        BinariesError: this is not Debian or one of its kind, or a package cannot be had.
    """
    return fetch_packages(
        _PACKAGE, folder, report, what_to_do=_WHAT_TO_DO, choose=lambda name: bool(_CHOSEN.match(name))
    )


def obtain_postgres(
    report: Report,
    *,
    environment: Mapping[str, str] = os.environ,
    installed: Path = _INSTALLED,
    fetch: Fetch = fetch_postgres,
) -> Postgres:
    """Return PostgreSQL's server programs, fetched once where there are none; safe to be called by many at once.

    Looked for in this order: the folder that JOULIE_POSTGRES_BIN names, that of the PATH's initdb, Debian's folder of
    what is installed, the cache of the control plane's programs, Debian's packages.

    Args:
        report: told each line of progress, where they are fetched.
        environment: where JOULIE_POSTGRES_BIN, PATH and JOULIE_CONTROL_PLANE_DIR are looked up.
        installed: the folder that has one folder a version.
        fetch: how the tree of a `Postgres` is fetched.

    Raises:
        BinariesError: they are nowhere and cannot be fetched, or lack a library; the message says what to do.
    """
    if given := environment.get(PROGRAMS_VARIABLE):
        if not _has_programs(Path(given)):
            raise BinariesError(
                f"{PROGRAMS_VARIABLE}={given}: no folder with {' and '.join(_PROGRAMS)}; name one, or unset it"
            )
        return Postgres(Path(given).absolute())
    for folder in _found(environment, installed):
        if _has_programs(folder):
            return Postgres(folder)
    place = cache_root(environment) / f"{_PACKAGE}_{platform.system().lower()}-{platform.machine()}" / _PACKAGE
    keep(place, report, fetch=fetch, try_out=_version, what_to_do=_WHAT_TO_DO)
    return _of_tree(place)


def _found(environment: Mapping[str, str], installed: Path) -> Iterator[Path]:
    if on_path := shutil.which("initdb", path=environment.get("PATH", os.defpath)):
        yield Path(on_path).resolve().parent
    yield from sorted(installed.glob("*/bin"), reverse=True)


def _has_programs(folder: Path) -> bool:
    return all(is_program(folder / name) for name in _PROGRAMS)


def _of_tree(tree: Path) -> Postgres:
    return Postgres(next(tree.glob("usr/lib/postgresql/*/bin"), tree), tree)


def _version(tree: Path) -> str:
    """Run both programs: the loader names a library that they lack."""
    postgres = _of_tree(tree)
    if not _has_programs(postgres.programs):
        raise CommandError(f"there is no {' and '.join(_PROGRAMS)} in {postgres.programs}")
    told = [run_command([str(postgres.programs / name), "--version"], tree, postgres.environment) for name in _PROGRAMS]
    return told[-1].strip()
