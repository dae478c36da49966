"""A Prometheus server for tests: one that is there already, else Debian's package, unpacked and never installed."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path

from joulie_lab.control_plane.binaries import cache_root
from joulie_lab.control_plane.cluster import LocalControlPlane
from joulie_lab.control_plane.debian import Fetch, fetch_packages, is_program, keep, run_command
from joulie_lab.control_plane.process import ManagedProcess
from joulie_lab.control_plane.tools import BinariesError, Report

PROGRAM_VARIABLE = "JOULIE_PROMETHEUS"

_PACKAGE = "prometheus"
_PROMTOOL = "promtool"
_WHAT_TO_DO = (
    f"Install Prometheus in any other way and put it on the PATH, or set {PROGRAM_VARIABLE} to the path of its program."
)


def fetch_prometheus(folder: Path, report: Report) -> Path:
    """Fetch the program out of Debian's package into an empty folder and return its path, as `fetch_packages` does.

    Raises:
        BinariesError: this is not Debian or one of its kind, or the package cannot be had.
    """
    return _fetch(_PACKAGE, folder, report)


def fetch_promtool(folder: Path, report: Report) -> Path:
    """Fetch promtool in the same way, out of the same package.

    Raises:
        BinariesError: as for `fetch_prometheus`.
    """
    return _fetch(_PROMTOOL, folder, report)


def _fetch(program: str, folder: Path, report: Report) -> Path:
    return fetch_packages(_PACKAGE, folder, report, what_to_do=_WHAT_TO_DO) / "usr/bin" / program


def obtain_prometheus(
    report: Report, *, environment: Mapping[str, str] = os.environ, fetch: Fetch = fetch_prometheus
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
        if not is_program(Path(given)):
            raise BinariesError(f"{PROGRAM_VARIABLE}={given}: no such program; name one, or unset it")
        return Path(given).absolute()
    return _obtain(_PACKAGE, report, environment, fetch)


def obtain_promtool(
    report: Report, *, environment: Mapping[str, str] = os.environ, fetch: Fetch = fetch_promtool
) -> Path:
    """Return the path of promtool, from the PATH, the cache, or Debian's package, as `obtain_prometheus` does.

    Raises:
        BinariesError: it is nowhere and cannot be fetched; the message says what to do.
    """
    return _obtain(_PROMTOOL, report, environment, fetch)


def _obtain(program: str, report: Report, environment: Mapping[str, str], fetch: Fetch) -> Path:
    if on_path := shutil.which(program, path=environment.get("PATH", os.defpath)):
        return Path(on_path)
    place = cache_root(environment) / f"{program}_{platform.system().lower()}-{platform.machine()}" / program
    keep(place, report, fetch=fetch, try_out=_version, what_to_do=_WHAT_TO_DO)
    return place


def _version(program: Path) -> str:
    return run_command([str(program), "--version"], program.parent).partition(" (")[0]


def start_prometheus(
    plane: LocalControlPlane, program: Path, target: str, *, port: int, interval_s: float
) -> ManagedProcess:
    """Run a server beside a control plane, which scrapes one target.

    Args:
        plane: a control plane that has been started.
        program: path of the server, see `obtain_prometheus`.
        target: host and port of the target.
        port: port on loopback that it listens on.
        interval_s: time between two scrapes, s.
    """
    folder = plane.folder / "prometheus"
    folder.mkdir()
    interval = f"{round(1000 * interval_s)}ms"
    times = {"scrape_interval": interval, "scrape_timeout": interval}
    # As the charts of exporters have it: a series' own labels `namespace` and `pod` are those of the pod it is about.
    jobs = [{"job_name": "gpus", "honor_labels": True, "static_configs": [{"targets": [target]}]}]
    configuration = folder / "prometheus.json"
    configuration.write_text(json.dumps({"global": times, "scrape_configs": jobs}))  # JSON is YAML
    command: list[str | Path] = [
        program,
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    return plane.spawn("prometheus", command)
