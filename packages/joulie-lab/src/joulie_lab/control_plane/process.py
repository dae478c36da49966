"""Manages a child process that cannot outlive this one: start, pause, resume, stop, with its output in a log file."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

_LOG_TAIL_BYTES = 3000
_KILLED_S = 60.0
"""The longest that a killed process takes to be gone, on whatever disk it waits."""

# Asks the kernel to kill this process when its parent dies, however that happens, and becomes the program. As a process
# of its own, because what subprocess can run between fork and exec is unsafe beside threads.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class ProcessFailedError(RuntimeError):
    """A process of the control plane failed to start, ended unexpectedly or is not running; the message has its log."""


class Child(Protocol):
    """The part of subprocess.Popen that a child process needs here."""

    pid: int

    def poll(self) -> int | None:
        """The exit status; None while it runs."""

    def wait(self, timeout: float) -> int:
        """Wait for its end.

        Raises:
            TimeoutExpired: it did not end in time.
        """

    def send_signal(self, sig: int) -> None:
        """Send a signal; no effect after its end."""


class ManagedProcess:
    """A child process in its own session, so that Ctrl-C reaches this process alone, which then stops it in order.

    The kernel ties the child to the *thread* that starts it: start it from one that lives as long as the child.
    """

    def __init__(
        self, name: str, command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Describe the process; `start` runs it. `environment` is added to this process's own."""
        self.name = name
        self.command = [str(word) for word in command]
        self.log = log
        self._environment = dict(environment or {})
        self._process: Child | None = None

    @property
    def pid(self) -> int:
        """The process id.

        Raises:
            ProcessFailedError: the process is not running.
        """
        return self._running().pid

    @property
    def running(self) -> bool:
        """Whether the process is running; a paused process is."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """The exit status of the last run, as in subprocess; None before it ended."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start the process, appending its output to the log; no effect if it is running.

        Raises:
            ProcessFailedError: the program does not exist.
        """
        if self.running:
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._process = self._launch({**os.environ, **self._environment})

    def _launch(self, environment: Mapping[str, str]) -> Child:
        """Begin a run in its own session, with all of its environment."""
        program = shutil.which(self.command[0], path=environment.get("PATH"))
        if program is None:
            raise ProcessFailedError(f"{self.name} cannot be run: no such program: {self.command[0]}")
        command = [program, *self.command[1:]]
        if sys.platform == "linux":  # elsewhere atexit and `with` remain
            command = [sys.executable, "-ISc", _DIE_WITH_PARENT, str(os.getpid()), *command]
        with self.log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - commands are this package's or its caller's
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): it keeps its sockets open but does not respond."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a paused process (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process and its group at once (SIGKILL), as in a crash; no effect if it is not running."""
        if self._process is not None and self.running:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(_KILLED_S)

    def stop(self, grace_s: float = 10.0) -> None:
        """Terminate the process (SIGTERM), by force after `grace_s`; no effect if it is not running."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        self._process.send_signal(signal.SIGCONT)  # a paused process receives SIGTERM only when it is resumed
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        self.kill()

    def log_tail(self) -> str:
        """Return the end of the log."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")

    def raise_if_ended(self) -> None:
        """Raise an error if the process has ended.

        Raises:
            ProcessFailedError: it has ended; the message has its exit status and the end of its log.
        """
        if not self.running:
            raise ProcessFailedError(
                f"{self.name} ended with status {self.exit_status}; the end of {self.log}:\n{self.log_tail()}"
            )

    def _running(self) -> Child:
        if self._process is None or self._process.poll() is not None:
            raise ProcessFailedError(f"{self.name} is not running")
        return self._process

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self._running().pid, number)
