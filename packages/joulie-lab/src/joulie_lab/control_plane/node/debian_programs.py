"""Installs the Debian packages that a node needs."""

from __future__ import annotations

import shutil
from pathlib import Path

from joulie_lab.control_plane.debian import CommandError, run_command
from joulie_lab.control_plane.tools import BinariesError, Report

PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "mmdebstrap": "mmdebstrap",
    "buildah": "buildah",
    "crun": "crun",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
}
"""Debian packages by a program or file of each."""


def missing() -> list[str]:
    """Those of `PACKAGES` that are not installed."""
    return [package for program, package in PACKAGES.items() if not _present(program)]


def install(report: Report) -> None:
    """Install those of `PACKAGES` that are missing; needs root.

    Raises:
        BinariesError: a package is not available.
    """
    wanted = missing()
    if not wanted:
        return
    report(f"installing Debian's {', '.join(wanted)}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        run_command(["apt-get", "--quiet", "update"], Path("/"), quiet)
        run_command(["apt-get", "--quiet", "--yes", "--no-install-recommends", "install", *wanted], Path("/"), quiet)
    except CommandError as error:
        raise BinariesError(f"packages of a node cannot be installed: {error}") from error


def _present(program: str) -> bool:
    return Path(program).exists() if program.startswith("/") else shutil.which(program) is not None
