"""What the scripts of a release share: where the tree is, and running commands in it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UV = ROOT / ".tools" / "bin" / "uv"
"""The Makefile installs it."""


class CommandError(RuntimeError):
    """A command failed, or could not be started; the message has its last lines."""


def run(*words: object, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """Run a command and return what it wrote to standard output.

    Args:
        words: the program and its arguments.
        cwd: the folder to run it in.
        env: variables beside those of this process.

    Raises:
        CommandError: it failed, or is not there.
    """
    command = [str(word) for word in words]
    try:
        ended = subprocess.run(  # noqa: S603 - the release's own commands
            command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise CommandError(f"{command[0]} is not installed") from error
    if ended.returncode:
        tail = "\n".join((ended.stdout + ended.stderr).strip().splitlines()[-20:])
        raise CommandError(f"{' '.join(command)}: exit status {ended.returncode}\n{tail}")
    return ended.stdout
