"""What a node needs, made once and kept in the user's cache: binaries and image archives."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from joulie_lab.control_plane.binaries import Binaries, cache_root, obtain
from joulie_lab.control_plane.fuse import obtain_libfuse
from joulie_lab.control_plane.node import images
from joulie_lab.control_plane.tools import NODE_TOOLS, TOOLS, BinariesError, Report

FOLDER_VARIABLE = "JOULIE_NODE"
"""Environment variable with the folder of the image archives, for the command that starts the node."""

ARCHIVES = {name: f"{name}.tar" for name in ("joulie", "pause", "kube-scheduler")}
"""Images that a node has from its start."""
LAB_ARCHIVE = "joulie-lab.tar"
TIMES = "times.json"


def prepare(source: Path, report: Report) -> Path:
    """Obtain binaries and build images; return the folder of the image archives and of their times, `TIMES`.

    Args:
        source: root of the repository.
        report: called with each line of progress.

    Raises:
        BinariesError: a step failed.
    """
    folder = cache_root() / "node"
    folder.mkdir(parents=True, exist_ok=True)
    times: dict[str, float] = {}

    def step(name: str, work: Callable[[], object]) -> None:
        started_s = time.monotonic()
        work()
        times[name] = round(time.monotonic() - started_s, 1)
        report(f"{name}: {times[name]:.0f} s")

    step("programs", lambda: (programs(report), obtain_libfuse(report)))
    step("images", lambda: _images(source, folder, report))
    (folder / TIMES).write_text(json.dumps(times))
    return folder


def programs(report: Report) -> Binaries:
    """Find the programs of the control plane and of the node; download or build those that are missing."""
    return obtain(report, tools=[*TOOLS, *NODE_TOOLS])


def _images(source: Path, folder: Path, report: Report) -> None:
    binaries = programs(report)
    scheduler = next(tool for tool in TOOLS if tool.name == "kubernetes")
    images.write_static_image(folder / ARCHIVES["pause"], images.PAUSE, images.compile_pause(folder), "/pause")
    images.write_static_image(
        folder / ARCHIVES["kube-scheduler"],
        f"localhost/kube-scheduler:{scheduler.version}",
        binaries["kube-scheduler"],
        "/usr/local/bin/kube-scheduler",
    )
    archives = {images.JOULIE: folder / ARCHIVES["joulie"], images.LAB: folder / LAB_ARCHIVE}
    images.build(source, images.Store(folder / "buildah"), archives, _uv(source), report)


def _uv(source: Path) -> Path:
    beside = source / ".tools/bin/uv"
    found = beside if beside.exists() else shutil.which("uv")
    if found is None:
        raise BinariesError(f"no uv: not {beside}, nor on the PATH; `make setup` installs it")
    return Path(found)


def folder_of(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of `prepare`, in a command that `python -m joulie_lab.control_plane.node` runs.

    Raises:
        BinariesError: this process was started otherwise.
    """
    given = environment.get(FOLDER_VARIABLE)
    if given is None:
        raise BinariesError(f"{FOLDER_VARIABLE} is not set: see python -m joulie_lab.control_plane.node --help")
    return Path(given)
