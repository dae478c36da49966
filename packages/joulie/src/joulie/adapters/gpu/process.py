"""A process of its own for a GPU driver's library, with a deadline for each answer.

The process is started on first use and stays; it is killed when it does not answer in time. A process inside a call
that the kernel does not interrupt cannot even be killed: it is then left alone, and no other is started beside it.
Attempts after a failure are spaced out, up to `MAX_PAUSE_S`.
"""

from __future__ import annotations

import json
import logging
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import joulie
from joulie.ports.devices import ControlFailedError, ControlRefusedError, NoBackendError

DEADLINE_S = 30.0
"""Time for one answer, s. Without persistence mode, connecting initialises each GPU, which takes seconds."""

END_S = 2.0
"""Time for the process to end by itself, or after it is killed, s."""

MIN_PAUSE_S, MAX_PAUSE_S = 10.0, 120.0
"""Pauses after a first failure, and after many in a row, s."""

ABSENT_PAUSE_S = 300.0
"""Pause before a missing library is looked for again, s: on most nodes there is none."""


class OutdatedLibraryError(ControlFailedError):
    """The loaded driver is of another version than the library."""


_ERRORS: Mapping[str, type[ControlFailedError] | type[ControlRefusedError]] = {
    "absent": NoBackendError,
    "failed": ControlFailedError,
    "outdated": OutdatedLibraryError,
    "refused": ControlRefusedError,
}

_log = logging.getLogger(__name__)


def readable(stream: IO[bytes], timeout_s: float) -> bool:
    """Whether there is something to read within a time, s."""
    return bool(select.select([stream], [], [], timeout_s)[0])


class LibraryProcess:
    """The worker process of one vendor's library; see `joulie.adapters.gpu.worker` for the other side.

    Args:
        title: name of the library in messages.
        vendor: library to serve: nvml or amdsmi.
        clock: monotonic time, s.
        wait: whether a stream can be read within a time, s.
    """

    def __init__(
        self,
        title: str,
        vendor: str,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[IO[bytes], float], bool] = readable,
    ) -> None:
        self._title = title
        self._vendor = vendor
        self._clock = clock
        self._wait = wait
        self._process: subprocess.Popen[bytes] | None = None
        self._stuck: subprocess.Popen[bytes] | None = None
        self._pause_s = 0.0
        self._resume_s = float("-inf")
        self._asking = threading.Lock()
        self._problem: ControlFailedError | ControlRefusedError = ControlFailedError("")
        self._told = ""

    @property
    def pid(self) -> int | None:
        """Process id; None while there is none."""
        return self._process.pid if self._process else None

    def ask(self, **request: Any) -> Mapping[str, Any]:
        """The answer to a request.

        Raises:
            NoBackendError: this machine has no such library.
            ControlRefusedError: the driver refuses.
            ControlFailedError: the driver does not respond, or did not a moment ago.
        """
        with self._asking:
            return self._ask(request)

    def _ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._clock() < self._resume_s:
            raise self._problem
        try:
            answer = self._answer(json.dumps(request).encode() + b"\n")
        except ControlFailedError as error:
            self._back_off(error)
            raise
        if "error" not in answer:
            self._pause_s, self._told = 0.0, ""
            return answer
        problem = _ERRORS[answer["kind"]](answer["error"])
        if request["do"] not in {"set", "lock", "reset"}:  # what one GPU does not take says nothing about the library
            self._back_off(problem)
        if isinstance(problem, NoBackendError):
            self._end()
        raise problem

    def end(self) -> None:
        """End the process, by force if it does not end by itself; everything that it had open is closed then.

        Raises:
            ControlFailedError: it is inside the driver and cannot be ended.
        """
        if not self._asking.acquire(timeout=END_S):
            if self._process is not None:
                self._process.kill()  # another thread waits for its answer, and finds that it has ended
            return
        try:
            self._end()
        finally:
            self._asking.release()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        _close_pipes(process)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._kill(process)

    def retry_now(self) -> None:
        """Forget earlier failures: the driver was replaced."""
        self._pause_s, self._resume_s = 0.0, float("-inf")

    def _answer(self, request: bytes) -> Mapping[str, Any]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
        except OSError:
            raise self._crashed(process) from None
        if not self._wait(process.stdout, DEADLINE_S):
            raise self._hung(process)
        line = process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._crashed(process)
        answer: Mapping[str, Any] = json.loads(line)
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        """The process, started if there is none."""
        if self._stuck is not None:
            if self._stuck.poll() is None:
                raise self._inside_driver(self._stuck)
            self._stuck = None
        if self._process is None:
            code = (
                f"import sys; sys.path.insert(0, {str(Path(joulie.__file__).parents[1])!r}); "
                f"from joulie.adapters.gpu.worker import main; main({self._vendor!r})"
            )
            optimise = ["-" + "O" * sys.flags.optimize] if sys.flags.optimize else []
            # Isolated and without site-packages: it needs none, and starts in a third of the time.
            command = [sys.executable, *optimise, "-B", "-I", "-S", "-c", code]
            try:
                self._process = subprocess.Popen(  # noqa: S603
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
                )
            except OSError as error:
                raise ControlFailedError(f"{self._title}: its process cannot be started: {error}") from error
        return self._process

    def _crashed(self, process: subprocess.Popen[bytes]) -> ControlFailedError:
        self._end()
        return ControlFailedError(f"{self._title}: its process ended with status {process.returncode}")

    def _hung(self, process: subprocess.Popen[bytes]) -> ControlFailedError:
        self._process = None
        _close_pipes(process)
        try:
            self._kill(process)
        except ControlFailedError as error:
            return error
        return ControlFailedError(f"{self._title} did not answer within {DEADLINE_S:g} s")

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._stuck = process
            raise self._inside_driver(process) from None

    def _inside_driver(self, process: subprocess.Popen[bytes]) -> ControlFailedError:
        return ControlFailedError(f"{self._title}: process {process.pid} hangs inside the driver and cannot be ended")

    def _back_off(self, problem: ControlFailedError | ControlRefusedError) -> None:
        absent = isinstance(problem, NoBackendError)
        self._problem = problem
        self._pause_s = ABSENT_PAUSE_S if absent else min(MAX_PAUSE_S, max(MIN_PAUSE_S, 2.0 * self._pause_s))
        self._resume_s = self._clock() + self._pause_s
        if not absent and str(problem) != self._told:
            _log.warning("GPU library does not respond", extra={"library": self._title, "error": str(problem)})
            self._told = str(problem)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):  # nobody reads its other end
                stream.close()
