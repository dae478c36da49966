"""Modelled machines mounted by FUSE in a process of their own."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_PATIENCE_S = 60.0


def why_not_mountable() -> str | None:
    """Why FUSE tests are left out here; None where they run. Root with /dev/fuse always runs them, so CI does."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "FUSE tests are left out: /dev/fuse is missing or not accessible; run them as root"
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        return "FUSE tests are left out: neither root nor fusermount3; run them as root or install fuse3"
    return None


@contextlib.contextmanager
def mounted(name: str, folder: Path, *, load: str = "1.0", speed: float = 1.0) -> Iterator[Path]:
    """A machine's sys, proc, dev and control in a folder, which is made."""
    folder.mkdir()
    command = [sys.executable, "-m", "joulie", "machine", "mount", name, str(folder), "--load", load]
    with subprocess.Popen([*command, "--speed", str(speed)], stderr=subprocess.PIPE, text=True) as process:
        try:
            _wait(process)
            yield folder
        finally:
            process.terminate()
            process.wait(_PATIENCE_S)


def _wait(process: subprocess.Popen[str]) -> None:
    """Read what it says until it is mounted; at its end it is not."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        if "is mounted at" in line:
            return
        said.append(line)
    raise AssertionError(f"not mounted: {''.join(said)}")
