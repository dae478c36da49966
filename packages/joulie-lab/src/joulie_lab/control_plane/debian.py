"""Programs out of Debian's packages, unpacked into the cache and never installed, for tests."""

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
"""Fetch a program, or a folder of programs, into an empty folder and return where it lies there."""

TryOut = Callable[[Path], str]
"""Run what lies at a path and return the version that it tells; a CommandError where it does not run."""

_TIMEOUT_S = 300.0
_OUTPUT_LINES = 10
_UNPACKED = "unpacked"
# "Inst libpq5 [15.18-0] (15.20-0 Debian:12 [amd64])" of `apt-get --simulate install`.
_WOULD_INSTALL = re.compile(r"^Inst (\S+)", re.MULTILINE)


class CommandError(Exception):
    """A command failed; the message has the end of what it said."""


def is_program(path: Path) -> bool:
    """Return whether `path` is a file that may be run."""
    return path.is_file() and os.access(path, os.X_OK)


def keep(place: Path, report: Report, *, fetch: Fetch, try_out: TryOut, what_to_do: str) -> None:
    """Have what `place` names there and working, fetched where it is not; safe to be called by many at once.

    What is there and does not run is fetched anew: a cache may come from another machine, with other libraries.

    Args:
        place: a path in a folder of the cache that is of this alone.
        report: told each line of progress, where it is fetched.
        fetch: how it is fetched.
        try_out: how it is seen to run.
        what_to_do: the end of the error's message.

    Raises:
        BinariesError: it cannot be fetched, or does not run here.
    """
    if _runs(place, try_out):
        return
    with locked(place.parent, report):
        # Another process may have fetched it while this one waited.
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
    """Download Debian's packages and unpack them, as any user.

    apt checks a package against the archive's signed index, as for an installation. Where this machine has no lists of
    packages, or lists that are too old, new ones are fetched into `folder`.

    Args:
        package: its name.
        folder: an empty folder, which the downloads go to as well.
        report: told each line of progress.
        what_to_do: the end of the error's message.
        choose: of the packages that apt would install here for `package`, by name, those that are fetched; where not
            given `package` is, without its dependencies.

    Returns:
        The folder that stands for the root of the file system.

    Raises:
        BinariesError: this is not Debian or one of its kind, or a package cannot be had.
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
    """Run a command in `folder` and return what it said.

    Args:
        command: the words.
        folder: where it runs.
        environment: added to this process's own.

    Raises:
        CommandError: it cannot be run, takes five minutes, or ends with another status than 0.
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
    """Fetch aside and see it run, then move it to its place at once: what is in the cache works."""
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
    # Without this root's downloads are done by a user who may not write here; others download as themselves.
    apt = ["apt-get", "--quiet", "-o", "APT::Sandbox::User=root"]
    try:
        return _download_by(apt, package, choose, folder)
    except CommandError:
        report(f"{package}: not by this machine's lists of packages: fetching lists of our own, about 15 MB")
        for name in ("lists/partial", "cache"):
            (folder / name).mkdir(parents=True)
        apt += ["-o", f"Dir::State::lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache"]
        updated = run_command([*apt, "update"], folder)
        try:
            return _download_by(apt, package, choose, folder)
        except CommandError as error:
            # An update without a network ends well: only what it said tells why the package is not in the lists.
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
