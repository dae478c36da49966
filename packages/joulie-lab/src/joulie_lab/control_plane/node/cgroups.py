"""Control groups of the node: every process of it is in one, by which it is found, measured and ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_COPIED = ("cpuset.cpus", "cpuset.mems")
_KILL_S = 10.0


def is_unified() -> bool:
    """Whether the machine has the one hierarchy of version 2."""
    return (_MOUNT / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """Roots of the hierarchies: one of version 2, else one of each controller."""
    if is_unified():
        return [_MOUNT]
    return sorted(path for path in _MOUNT.iterdir() if path.is_dir() and (path / "cgroup.procs").exists())


def controller(name: str) -> Path:
    """Root of the hierarchy with the controller `name`."""
    return _MOUNT if is_unified() else _MOUNT / name


def create(name: str) -> None:
    """Create the group `name` in every hierarchy."""
    for root in hierarchies():
        group = root / name
        group.mkdir(parents=True, exist_ok=True)
        for setting in _COPIED:
            # A new cpuset has neither processors nor memory, and takes no process.
            if (group / setting).exists() and not (group / setting).read_text().strip():
                (group / setting).write_text((group.parent / setting).read_text())


def joining(name: str, command: list[str]) -> list[str]:
    """A command line that joins the group `name` in every hierarchy, then becomes `command`."""
    files = " ".join(f"{root / name}/cgroup.procs" for root in hierarchies())
    return ["/bin/sh", "-c", f'for file in {files}; do echo $$ > "$file" || exit 1; done; exec "$@"', "sh", *command]


def processes(group: Path) -> list[int]:
    """Ids of the processes in a group's folder and in those below it."""
    return [process for procs in _walk(group) for process in _read_ids(procs / "cgroup.procs")]


def end(name: str) -> None:
    """Kill every process in the group `name`, and remove it.

    Raises:
        OSError: a process does not end.
    """
    deadline = time.monotonic() + _KILL_S
    while left := {process for root in hierarchies() for process in processes(root / name)}:
        if time.monotonic() > deadline:
            raise OSError(f"processes of the control group {name} do not end: {sorted(left)}")
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    for root in hierarchies():
        for group in _walk(root / name):
            group.rmdir()


def _walk(group: Path) -> Iterator[Path]:
    """The folders below `group`, deepest first, and itself."""
    for folder, _, _ in os.walk(group, topdown=False):
        yield Path(folder)


def _read_ids(file: Path) -> list[int]:
    try:
        return [int(line) for line in file.read_text().split()]
    except OSError:
        return []
