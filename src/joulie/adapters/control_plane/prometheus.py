"""A Prometheus server for tests: one that is there already, else Debian's package, unpacked and never installed."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from joulie.adapters.control_plane.binaries import cache_root, locked
from joulie.adapters.control_plane.tools import BinariesError, Report

PROGRAM_VARIABLE = "JOULIE_PROMETHEUS"

_PACKAGE = "prometheus"
_TIMEOUT_S = 300.0
_OUTPUT_LINES = 10
_WHAT_TO_DO = (
    f"Install Prometheus in any other way and put it on the PATH, or set {PROGRAM_VARIABLE} to the path of its program."
)

FetchPrometheus = Callable[[Path, Report], Path]
"""Fetch the program into an empty folder and return where it lies there."""


class _CommandError(Exception):
    """A command failed; the message has the end of what it said."""


def fetch_debian_package(folder: Path, report: Report) -> Path:
    """Download Debian's package and unpack it, as any user.

    apt checks the package against the archive's signed index, as for an installation. Where this machine has no lists
    of packages, or lists that are too old, new ones are fetched into `folder`.

    Args:
        folder: an empty folder, which the downloads go to as well.
        report: told each line of progress.

    Raises:
        BinariesError: this is not Debian or one of its kind, or the package cannot be had.
    """
    for command in ("apt-get", "dpkg-deb"):
        if shutil.which(command) is None:
            raise BinariesError(f"there is no {_PACKAGE} on the PATH, and no {command} to fetch it with. {_WHAT_TO_DO}")
    report(f"{_PACKAGE}: fetching Debian's package; nothing is installed")
    try:
        archive = _download(folder, report)
        _run(["dpkg-deb", "--extract", str(archive), "unpacked"], folder)
    except _CommandError as error:
        raise BinariesError(f"Debian's package of {_PACKAGE} cannot be had: {error}\n{_WHAT_TO_DO}") from error
    return folder / "unpacked/usr/bin" / _PACKAGE


def obtain_prometheus(
    report: Report,
    *,
    environment: Mapping[str, str] = os.environ,
    fetch: FetchPrometheus = fetch_debian_package,
) -> Path:
    """Return the path of a Prometheus server, fetched once where there is none; safe to be called by many at once.

    Looked for in this order: the program that JOULIE_PROMETHEUS names, the PATH, the cache of the control plane's
    programs, Debian's package.

    Args:
        report: told each line of progress, where it is fetched.
        environment: where JOULIE_PROMETHEUS, PATH and JOULIE_CONTROL_PLANE_DIR are looked up.
        fetch: how it is fetched.

    Raises:
        BinariesError: it is nowhere and cannot be fetched; the message says what to do.
    """
    if given := environment.get(PROGRAM_VARIABLE):
        if not _is_program(Path(given)):
            raise BinariesError(f"{PROGRAM_VARIABLE}={given}: no such program; name one, or unset it")
        return Path(given).absolute()
    if on_path := shutil.which(_PACKAGE, path=environment.get("PATH", os.defpath)):
        return Path(on_path)
    cache = cache_root(environment) / f"{_PACKAGE}_{platform.system().lower()}-{platform.machine()}"
    place = cache / _PACKAGE
    if not _is_program(place):
        with locked(cache, report):
            # Another process may have fetched it while this one waited.
            if not _is_program(place):
                _fetch_into(cache, place, report, fetch)
    return place


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _fetch_into(cache: Path, place: Path, report: Report, fetch: FetchPrometheus) -> None:
    """Fetch aside and see it run, then move it to its place at once: what is in the cache works."""
    with tempfile.TemporaryDirectory(prefix=f".{_PACKAGE}-", dir=cache) as aside:
        program = fetch(Path(aside), report)
        try:
            told = _run([str(program), "--version"], cache)
        except _CommandError as error:
            raise BinariesError(f"the {_PACKAGE} that was fetched does not run here: {error}\n{_WHAT_TO_DO}") from error
        program.replace(place)
    report(f"{told.partition(' (')[0]}: {place}")


def _download(folder: Path, report: Report) -> Path:
    # Without this root's downloads are done by a user who may not write here; others download as themselves.
    apt = ["apt-get", "--quiet", "-o", "APT::Sandbox::User=root"]
    try:
        _run([*apt, "download", _PACKAGE], folder)
    except _CommandError:
        report(f"{_PACKAGE}: not by this machine's lists of packages: fetching lists of our own, about 15 MB")
        for name in ("lists/partial", "cache"):
            (folder / name).mkdir(parents=True)
        apt += ["-o", f"Dir::State::lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache"]
        updated = _run([*apt, "update"], folder)
        try:
            _run([*apt, "download", _PACKAGE], folder)
        except _CommandError as error:
            # An update without a network ends well: only what it said tells why the package is not in the lists.
            raise _CommandError(f"{error}\nThe update of the lists said: {_end(updated)}") from error
    return next(folder.glob(f"{_PACKAGE}_*.deb"))


def _run(command: list[str], folder: Path) -> str:
    """Run a command in `folder` and return what it said."""
    try:
        done = subprocess.run(  # noqa: S603 - commands of this module
            command,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _CommandError(str(error)) from error
    if done.returncode:
        raise _CommandError(f"{' '.join(command)}: exit status {done.returncode}: {_end(done.stdout)}")
    return done.stdout


def _end(output: str) -> str:
    return "\n".join(output.splitlines()[-_OUTPUT_LINES:])
