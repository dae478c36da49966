"""`python -m joulie_lab.control_plane.node COMMAND...`: run a command beside everything that a real node needs."""

from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from joulie_lab.control_plane.node import cgroups, debian_programs, host, preflight
from joulie_lab.control_plane.node.prepared import FOLDER_VARIABLE, prepare
from joulie_lab.control_plane.tools import BinariesError

_DESCRIPTION = """\
Obtain what runs a Kubernetes node on this machine, then run COMMAND in process, mount and network namespaces of its
own, where its tests start the node: containerd, runc and network plug-ins of Debian's packages, which are installed;
kubelet and kube-proxy as `python -m joulie_lab.control_plane` obtains the others; and the images of the programs, built
from the Dockerfile on a base of Debian's packages, without a registry. Nothing is left when the command ends, however
it ends, but for the packages and the cache of binaries and images. Needs root, Debian, /dev/fuse, and a kernel that
lets root make namespaces, control groups, overlay mounts and bridges, as containers of a CI often may not. Exit status:
the command's, or 1 if the node cannot be had.
"""
_LOCK = Path("/run/joulie-node.lock")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m joulie_lab.control_plane.node",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--if-possible", action="store_true", help="where this machine lacks something, only say so, and succeed"
    )
    parser.add_argument("--source", type=Path, default=Path.cwd(), help="root of the repository; default: here")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="command that runs the node, with its arguments")
    given = parser.parse_args(arguments)
    try:
        lacking = preflight.missing()
        if lacking is None:
            debian_programs.install(_report)
            lacking = preflight.missing()  # by the programs that are there now
        if lacking is not None:
            _report(f"left out: the tests of a real node, for this machine lacks {lacking}")
            return 0 if given.if_possible else 1
        with _LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # there is one node on a machine
            folder = prepare(given.source.resolve(), _report)
            if not given.command:
                return 0
            return _run(given.command, folder)
    except BinariesError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - a command
        return 1


def _run(command: Sequence[str], folder: Path) -> int:
    cgroups.end(host.GROUP)  # of a run that was killed
    try:
        return subprocess.call(  # noqa: S603 - the caller's command
            host.isolated(command), env={**os.environ, FOLDER_VARIABLE: str(folder)}
        )
    finally:
        cgroups.end(host.GROUP)


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - a command


if __name__ == "__main__":
    sys.exit(main())
