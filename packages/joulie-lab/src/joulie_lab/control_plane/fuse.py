"""libfuse, which mounts modelled machines: this machine's, else Debian's package, which is not installed."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping
from ctypes.util import find_library
from pathlib import Path

from joulie_lab.control_plane.binaries import cache_root
from joulie_lab.control_plane.debian import CommandError, Fetch, fetch_packages, keep
from joulie_lab.control_plane.tools import BinariesError, Report

_LIBRARY = "fuse3"
_PACKAGES = ("libfuse3-3", "libfuse3-4")
"""Debian 12's, Debian 13's."""

_WHAT_TO_DO = "Install libfuse 3 in any other way (package libfuse3-3, fuse3-libs or fuse3)."


def fetch_libfuse(folder: Path, report: Report) -> Path:
    """Unpack Debian's package, as `fetch_packages` does.

    Raises:
        BinariesError: this is not Debian or one of its kind, or the package is not available.
    """
    for package in _PACKAGES[:-1]:
        try:
            return fetch_packages(package, folder, report, what_to_do=_WHAT_TO_DO)
        except BinariesError:
            continue
    return fetch_packages(_PACKAGES[-1], folder, report, what_to_do=_WHAT_TO_DO)


def obtain_libfuse(report: Report, *, environment: Mapping[str, str] = os.environ, fetch: Fetch = fetch_libfuse) -> str:
    """Return libfuse's file or name, fetched once where it is missing; safe to be called by many at once.

    Args:
        report: told each line of progress, where it is fetched.
        environment: where JOULIE_CONTROL_PLANE_DIR is looked up.
        fetch: how the tree of its package is fetched.

    Raises:
        BinariesError: it is not on this machine and cannot be fetched; the message says what to do.
    """
    if installed := find_library(_LIBRARY):
        return installed
    place = cache_root(environment) / f"libfuse_{platform.system().lower()}-{platform.machine()}" / "libfuse"
    keep(place, report, fetch=fetch, try_out=_version, what_to_do=_WHAT_TO_DO)
    return str(_library(place))


def _library(tree: Path) -> Path:
    found = next(tree.glob("**/libfuse3.so.*"), None)
    if found is None:
        raise CommandError(f"there is no libfuse3.so in {tree}")
    return found


def _version(tree: Path) -> str:
    """Load it: the loader names what it lacks."""
    try:
        return f"libfuse {ctypes.CDLL(str(_library(tree))).fuse_version()}"
    except OSError as error:
        raise CommandError(str(error)) from error
