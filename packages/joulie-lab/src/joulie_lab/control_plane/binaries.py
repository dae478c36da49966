"""Provides the programs of a control plane: from KUBEBUILDER_ASSETS, the cache, or a download or build done once."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from joulie_lab.control_plane.official import provide_tool
from joulie_lab.control_plane.tools import ASSETS_VARIABLE, CACHE_VARIABLE, STAGES, TOOLS, BinariesError, Report, Tool

ProvideTool = Callable[[Tool, Path, Path, Report], None]
"""Downloads or builds a tool into a folder; the third argument is the cache folder, which may hold a Go toolchain."""


@dataclass(frozen=True)
class Binaries:
    """Paths of the programs and of the folder `STAGES`, by name."""

    paths: Mapping[str, Path]

    def __getitem__(self, name: str) -> Path:
        """The path of the artefact `name`."""
        return self.paths[name]


def cache_root(environment: Mapping[str, str] = os.environ) -> Path:
    """The root folder of the cache: JOULIE_CONTROL_PLANE_DIR, else in the user's cache folder."""
    if given := environment.get(CACHE_VARIABLE):
        return Path(given).expanduser().absolute()
    return user_cache_path("joulie") / "control-plane"


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The cache folder of the pinned versions for this machine's architecture."""
    versions = "_".join(f"{tool.name}-{tool.version}" for tool in TOOLS)
    return cache_root(environment) / f"{versions}_{platform.system().lower()}-{platform.machine()}"


def obtain(
    report: Report,
    *,
    tools: Sequence[Tool] = TOOLS,
    environment: Mapping[str, str] = os.environ,
    provide: ProvideTool = provide_tool,
) -> Binaries:
    """Find every program; download or build those that are missing. Safe for concurrent processes.

    Args:
        report: called with the missing programs and the cost of providing them, then with each line of progress.
        tools: tools whose programs are wanted.
        environment: environment with KUBEBUILDER_ASSETS and JOULIE_CONTROL_PLANE_DIR.
        provide: downloads or builds a tool.

    Raises:
        BinariesError: a program is missing and can be neither downloaded nor built.
    """
    cache = cache_folder(environment)
    folders = [*_assets(environment), cache]

    def missing() -> list[Tool]:
        return [tool for tool in tools if not all(_find(artefact, folders) for artefact in tool.artefacts)]

    if missing():
        with locked(cache, report):
            # Another process may have provided them while this one waited for the lock.
            if needed := missing():
                report(_cost(needed))
            for tool in needed:
                _provide_into(cache, tool, report, provide)
    return Binaries({artefact: _found(artefact, folders) for tool in tools for artefact in tool.artefacts})


def _cost(tools: list[Tool]) -> str:
    names = ", ".join(f"{tool.name} {tool.version}" for tool in tools)
    download_mb = sum(tool.download_mb for tool in tools)
    build_min = -(-sum(tool.cold_build_s for tool in tools) // 60)
    return (
        f"{names}: missing; official builds, about {download_mb} MB, are downloaded where they can be reached. "
        f"Building all with Go takes about {build_min} minutes on two cores and 6 GB of disk, once."
    )


def _assets(environment: Mapping[str, str]) -> list[Path]:
    given = environment.get(ASSETS_VARIABLE)
    if not given:
        return []
    folder = Path(given).expanduser().absolute()
    if not folder.is_dir():
        raise BinariesError(
            f"{ASSETS_VARIABLE}={given}: no such folder; name one that holds kube-apiserver, etcd and kubectl, "
            f"or unset {ASSETS_VARIABLE} and they are downloaded or built"
        )
    return [folder]


def _find(artefact: str, folders: list[Path]) -> Path | None:
    for folder in folders:
        path = folder / artefact
        if path.is_dir() if artefact == STAGES else path.is_file() and os.access(path, os.X_OK):
            return path
    return None


def _found(artefact: str, folders: list[Path]) -> Path:
    path = _find(artefact, folders)
    if path is None:
        raise BinariesError(f"{artefact} was provided and is gone from {folders[-1]}; remove that folder and run again")
    return path


def _provide_into(cache: Path, tool: Tool, report: Report, provide: ProvideTool) -> None:
    """Download or build in a temporary folder, then move each artefact atomically: the cache is never incomplete."""
    with tempfile.TemporaryDirectory(prefix=f".{tool.name}-", dir=cache) as aside:
        provide(tool, Path(aside), cache.parent, report)
        missing = [artefact for artefact in tool.artefacts if _find(artefact, [Path(aside)]) is None]
        if missing:
            raise BinariesError(f"{tool.name} {tool.version} was provided without {', '.join(missing)}")
        for artefact in tool.artefacts:
            place = cache / artefact
            if place.is_dir():
                shutil.rmtree(place)
            (Path(aside) / artefact).replace(place)


@contextlib.contextmanager
def locked(cache: Path, report: Report) -> Iterator[None]:
    """Lock the cache so that one process at a time downloads or builds; the kernel releases a dead process's lock."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = (cache / ".lock").open("w")
    except OSError as error:
        raise BinariesError(
            f"{cache} cannot be written ({error.strerror}); set {CACHE_VARIABLE} to a folder that can"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"waiting for another build into {cache}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
