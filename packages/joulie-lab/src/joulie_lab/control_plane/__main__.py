"""`python -m joulie_lab.control_plane`: obtain the programs of a control plane and print their folders."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from joulie_lab.control_plane.binaries import obtain
from joulie_lab.control_plane.fuse import obtain_libfuse
from joulie_lab.control_plane.kueue import obtain_kueue_definitions
from joulie_lab.control_plane.postgres import obtain_postgres
from joulie_lab.control_plane.prometheus import obtain_prometheus, obtain_promtool
from joulie_lab.control_plane.tools import TOOLS, BinariesError

_DESCRIPTION = """\
Obtain kube-apiserver, kube-scheduler, kube-controller-manager, kubectl, etcd, kwok and helm: from the folder
KUBEBUILDER_ASSETS where set, else from the cache (JOULIE_CONTROL_PLANE_DIR, by default in the user's cache folder),
else their official builds, verified by the checksums published beside them (not kwok, which publishes none), else built
once from their pinned Go modules. And prometheus, for the tests of telemetry: the program that JOULIE_PROMETHEUS names,
else of the PATH, else of the cache, else of Debian's package, which is not installed. And PostgreSQL's initdb and
postgres, for the tests of the ledger: the folder that JOULIE_POSTGRES_BIN names, else that of the PATH's initdb, else
the installed package's, else of the cache, else of Debian's packages, not installed either. And the definitions of
Kueue's resources, of the cache, else of Kueue's pinned Go module. And libfuse 3, which mounts modelled machines, where
this machine lacks it. Progress goes to standard error, the folders that
hold them to standard output. Exit status: 0 they are there, 1 they cannot be had.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m joulie_lab.control_plane",
        description=_DESCRIPTION,
        epilog="versions: " + ", ".join(f"{tool.name} {tool.version}" for tool in TOOLS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)
    try:
        binaries = obtain(_report)
        prometheus = obtain_prometheus(_report)
        promtool = obtain_promtool(_report)
        postgres = obtain_postgres(_report)
        kueue = obtain_kueue_definitions(_report)
        obtain_libfuse(_report)
    except BinariesError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    programs = [path.parent for path in [*binaries.paths.values(), prometheus, promtool]]
    for folder in dict.fromkeys([*programs, postgres.programs, kueue]):
        print(folder)  # noqa: T201
    return 0


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - a command


if __name__ == "__main__":
    sys.exit(main())
