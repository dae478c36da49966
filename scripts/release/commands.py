"""The repository's root and a function to run commands, for the release scripts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UV = ROOT / ".tools" / "bin" / "uv"
"""The Makefile installs it."""


class CommandError(RuntimeError):
    """A command failed or could not be started; the message has the last lines of its output."""


def run(*words: object, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """Run a command and return what it wrote to standard output.

    Args:
        words: the program and its arguments.
        cwd: the folder to run it in.
        env: environment variables, in addition to those of this process.

    Raises:
        CommandError: the command failed or is not installed.
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
