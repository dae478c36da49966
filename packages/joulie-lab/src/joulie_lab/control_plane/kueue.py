"""Kueue's CRDs for tests, from its pinned Go module. Kueue itself is neither built nor run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from joulie_lab.control_plane.binaries import cache_root, locked
from joulie_lab.control_plane.go_build import download_module
from joulie_lab.control_plane.tools import BinariesError, Report

KUEUE_MODULE = "sigs.k8s.io/kueue"
KUEUE_VERSION = "v0.15.2"
"""Version in go.mod. It serves both v1beta1 and v1beta2."""

DEFINITIONS = ("admissionchecks", "multikueueclusters", "multikueueconfigs", "workloads")
"""Plural names of the Kueue resources that Joulie uses."""

_BASES = "config/components/crd/bases"

FetchModule = Callable[[Path, Report], Path]
"""Return the folder of Kueue's module; the cache folder, where a Go toolchain may be kept, comes first."""


def fetch_kueue(root: Path, report: Report) -> Path:
    """Return the folder of Kueue's module, which Go fetches and checks against the pinned checksum.

    Args:
        root: folder for a private Go toolchain if the PATH has none that is new enough.
        report: called with each line of progress.

    Raises:
        BinariesError: the module is not available; the message says why.
    """
    return download_module("kueue", KUEUE_MODULE, root, report)


def obtain_kueue_definitions(
    report: Report, *, environment: Mapping[str, str] = os.environ, fetch: FetchModule = fetch_kueue
) -> Path:
    """Return the folder of Kueue's CustomResourceDefinitions, fetched once. Safe for concurrent processes.

    They are as the module has them, one file PLURAL.yaml each of `DEFINITIONS`. They name no conversion webhook: only
    Kueue's installation adds that.

    Args:
        report: told each line of progress, where they are fetched.
        environment: where JOULIE_CONTROL_PLANE_DIR is looked up.
        fetch: how the module is fetched.

    Raises:
        BinariesError: they cannot be had; the message says what to do.
    """
    root = cache_root(environment)
    folder = root / f"kueue-{KUEUE_VERSION}"
    if not _is_whole(folder):
        with locked(folder, report):
            # Another process may have fetched them while this one waited for the lock.
            if not _is_whole(folder):
                _copy(fetch(root, report) / _BASES, folder)
                report(f"kueue {KUEUE_VERSION}: definitions in {folder}")
    return folder


def _is_whole(folder: Path) -> bool:
    return all((folder / f"{plural}.yaml").is_file() for plural in DEFINITIONS)


def _copy(bases: Path, folder: Path) -> None:
    """Copy to a temporary folder, then move each file atomically, so that the cache is never incomplete."""
    with tempfile.TemporaryDirectory(prefix=".kueue-", dir=folder) as aside:
        for plural in DEFINITIONS:
            source, copied = bases / f"kueue.x-k8s.io_{plural}.yaml", Path(aside) / f"{plural}.yaml"
            if not source.is_file():
                raise BinariesError(f"{KUEUE_MODULE} {KUEUE_VERSION} has no {_BASES}/{source.name}")
            copied.write_bytes(source.read_bytes())
            copied.replace(folder / copied.name)
