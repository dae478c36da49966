"""Whether this machine can run a node at all: asked before anything is installed or built."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path

from joulie_lab.control_plane.node import cgroups, debian_programs, host

_FUSE = Path("/dev/fuse")
# In namespaces of their own. A program that is not installed yet is not tried.
_PROBES = {
    "process, mount and network namespaces": "true",
    "overlay mounts": """
        mount -t tmpfs probe /tmp && cd /tmp && mkdir lower upper work merged &&
        mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work probe merged""",
    "network bridges": """
        ! command -v ip ||
        { ip link add probe0 type bridge && ip link add probe1 type veth && ip link set probe1 master probe0; }""",
    "iptables": "! command -v iptables || iptables -t nat -S",
}
_PROBE_S = 30.0


def missing() -> str | None:
    """What this machine lacks that cannot be installed; None if a node can run."""
    if os.geteuid() != 0:
        return "root"
    if (packages := debian_programs.missing()) and shutil.which("apt-get") is None:
        return f"Debian's apt-get, to install {', '.join(packages)}"
    if not _opens(_FUSE):
        return f"{_FUSE}, for the modelled machine"
    if not _groups_can_be_made():
        return "writable control groups"
    return next((what for what, script in _PROBES.items() if not _succeeds(script)), None)


def _opens(device: Path) -> bool:
    try:
        os.close(os.open(device, os.O_RDWR))
    except OSError:
        return False
    return True


def _groups_can_be_made() -> bool:
    name = f"joulie-probe-{uuid.uuid4().hex[:8]}"
    try:
        roots = cgroups.hierarchies()
        cgroups.create(name)
        cgroups.end(name)
    except OSError:
        return False
    return bool(roots)


def _succeeds(script: str) -> bool:
    try:
        done = subprocess.run(  # noqa: S603 - scripts of this module
            host.isolated(["/bin/sh", "-c", script]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
