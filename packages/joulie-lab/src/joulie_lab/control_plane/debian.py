"""Fetches programs for tests from Debian's packages, which are unpacked into the cache and never installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from joulie_lab.control_plane.binaries import locked
from joulie_lab.control_plane.tools import BinariesError, Report

Fetch = Callable[[Path, Report], Path]
"""Fetches a program, or a folder of programs, into an empty folder and returns its path there."""

TryOut = Callable[[Path], str]
"""Runs the program at a path and returns its version; raises CommandError if it does not run."""

_TIMEOUT_S = 300.0
_OUTPUT_LINES = 10
_UNPACKED = "unpacked"
# "Inst libpq5 [15.18-0] (15.20-0 Debian:12 [amd64])" of `apt-get --simulate install`.
_WOULD_INSTALL = re.compile(r"^Inst (\S+)", re.MULTILINE)


class CommandError(Exception):
    """A command failed; the message has the end of its output."""


def is_program(path: Path) -> bool:
    """Whether `path` is an executable file."""
    return path.is_file() and os.access(path, os.X_OK)


def keep(place: Path, report: Report, *, fetch: Fetch, try_out: TryOut, what_to_do: str) -> None:
    """Ensure that a working program exists at `place`, fetching it if necessary. Safe for concurrent processes.

    A program that is there but does not run is fetched again: the cache may come from a machine with other libraries.

    Args:
        place: path in a cache folder that is used for this program only.
        report: called with each line of progress if the program is fetched.
        fetch: fetches the program.
        try_out: runs the program to test it.
        what_to_do: advice at the end of error messages.

    Raises:
        BinariesError: the program cannot be fetched, or does not run on this machine.
    """
    if _runs(place, try_out):
        return
    with locked(place.parent, report):
        # Another process may have fetched it while this one waited for the lock.
        if not _runs(place, try_out):
            _fetch_into(place, report, fetch, try_out, what_to_do)


def fetch_packages(
    package: str,
    folder: Path,
    report: Report,
    *,
    what_to_do: str,
    choose: Callable[[str], bool] | None = None,
) -> Path:
    """Download and unpack Debian packages, without root.

    apt verifies packages against the archive's signed index, as for an installation. If this machine's package lists
    are missing or too old, new ones are fetched into `folder`.

    Args:
        package: package name.
        folder: empty folder, also used for the downloads.
        report: called with each line of progress.
        what_to_do: advice at the end of error messages.
        choose: selects, by name, the packages to fetch among those that apt would install for `package`; None for
            `package` only, without its dependencies.

    Returns:
        The root folder of the unpacked files.

    Raises:
        BinariesError: this machine does not run Debian or a derivative, or a package is not available.
    """
    for command in ("apt-get", "dpkg-deb"):
        if shutil.which(command) is None:
            raise BinariesError(f"{package} is not on this machine, and no {command} to fetch it with. {what_to_do}")
    report(f"{package}: fetching Debian's package; nothing is installed")
    try:
        for archive in _download(package, choose, folder, report):
            run_command(["dpkg-deb", "--extract", str(archive), _UNPACKED], folder)
    except CommandError as error:
        raise BinariesError(f"Debian's package of {package} cannot be had: {error}\n{what_to_do}") from error
    return folder / _UNPACKED


def run_command(command: list[str], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command in `folder` and return its output.

    Args:
        command: command line.
        folder: working directory.
        environment: variables added to this process's environment.

    Raises:
        CommandError: the command cannot be run, exceeds five minutes, or exits with a status other than 0.
    """
    try:
        done = subprocess.run(  # noqa: S603 - commands of this package
            command,
            cwd=folder,
            env={**os.environ, **(environment or {}), "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(str(error)) from error
    if done.returncode:
        raise CommandError(f"{' '.join(command)}: exit status {done.returncode}: {_end(done.stdout)}")
    return done.stdout


def _runs(place: Path, try_out: TryOut) -> bool:
    if not place.exists():
        return False
    try:
        try_out(place)
    except CommandError:
        return False
    return True


def _fetch_into(place: Path, report: Report, fetch: Fetch, try_out: TryOut, what_to_do: str) -> None:
    """Fetch into a temporary folder and test, then move atomically, so that programs in the cache work."""
    with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as aside:
        fetched = fetch(Path(aside), report)
        try:
            version = try_out(fetched)
        except CommandError as error:
            raise BinariesError(
                f"the {place.name} that was fetched does not run here: {error}\n{what_to_do}"
            ) from error
        if place.is_dir():
            shutil.rmtree(place)
        fetched.replace(place)
    report(f"{version}: {place}")


def _download(package: str, choose: Callable[[str], bool] | None, folder: Path, report: Report) -> list[Path]:
    # Without this, apt run by root downloads as a user that cannot write to this folder.
    apt = ["apt-get", "--quiet", "-o", "APT::Sandbox::User=root"]
    try:
        return _download_by(apt, package, choose, folder)
    except CommandError:
        report(f"{package}: not by this machine's lists of packages: fetching lists of our own, about 15 MB")
        for name in ("lists/partial", "cache"):
            (folder / name).mkdir(parents=True, exist_ok=True)  # of another package's attempt
        apt += ["-o", f"Dir::State::lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache"]
        updated = run_command([*apt, "update"], folder)
        try:
            return _download_by(apt, package, choose, folder)
        except CommandError as error:
            # An update without a network exits with 0: only its output tells why the package is not in the lists.
            raise CommandError(f"{error}\nThe update of the lists said: {_end(updated)}") from error


def _download_by(apt: list[str], package: str, choose: Callable[[str], bool] | None, folder: Path) -> list[Path]:
    names = [package]
    if choose is not None:
        would = run_command([*apt, "--simulate", "--no-install-recommends", "install", package], folder)
        names = [name for name in _WOULD_INSTALL.findall(would) if choose(name)]
        if not names:
            raise CommandError(f"apt would install none of it here: {_end(would)}")
    for left_by_older_lists in folder.glob("*.deb"):
        left_by_older_lists.unlink()
    run_command([*apt, "download", *names], folder)
    return sorted(folder.glob("*.deb"))


def _end(output: str) -> str:
    return "\n".join(output.splitlines()[-_OUTPUT_LINES:])
