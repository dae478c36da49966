"""Joulie's programs as forks of a process that has imported them: a start costs a tenth of the processor time.

What runs is what ``python -m joulie`` runs, in a process, session and environment of its own. Starts with all their
imports are tested by tests/release, test_helm_install.py, test_chart_programs.py and the tests of a real node.
"""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from joulie.apps.cli.main import main
from joulie_lab.control_plane import LocalControlPlane
from joulie_lab.control_plane.process import ManagedProcess

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "joulie.apps.operator.main",
        "joulie.apps.agent.main",
        "joulie.apps.extender.main",
        "joulie.apps.grid.controller",
        "joulie.apps.grid.guard",
        "joulie.apps.grid.main",
        "joulie_lab.apps.simulator.main",
        "joulie_lab.control_plane",
    ]
)
_READ_AT_START = ("LD_", "PYTHON", "TZ")
"""Beginnings of the variables that the dynamic linker, Python and libc read once: they need a start of its own."""
_PR_SET_PDEATHSIG = 1


def spawn_joulie(plane: LocalControlPlane, name: str, command: str, environment: Mapping[str, str]) -> ManagedProcess:
    """Run ``joulie COMMAND`` beside a control plane, as `LocalControlPlane.spawn` runs any program."""
    if any(variable.startswith(_READ_AT_START) for variable in environment):
        return plane.spawn(name, [sys.executable, "-m", "joulie", *command.split()], environment=environment)
    program = _ForkedProgram(name, command.split(), plane.log_folder / f"{name}.log", environment)
    plane.run_beside(program)
    return program


class _ForkedProgram(ManagedProcess):
    """A fork; `command` is the words after ``joulie``."""

    def _launch(self, environment: Mapping[str, str]) -> "_Fork":
        heard, told = _FORKS.Pipe(duplex=False)
        process = _FORKS.Process(target=_run, args=(self.command, environment, self.log, told), name=self.name)
        process.start()
        told.close()
        heard.recv()
        return _Fork(process)


class _Fork:
    """A fork as `subprocess.Popen` would show it."""

    def __init__(self, process: ForkServerProcess) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self._process = process

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return status

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)


def _run(words: Sequence[str], environment: Mapping[str, str], log: Path, started: Connection) -> None:
    """Become the program, as a new process would, and tell when it is one."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    with log.open("ab") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    os.environ.clear()
    os.environ.update(environment)
    with started:
        started.send(None)
    main(list(words))
