"""A running instance of an FMU, with one interface for FMI 2.0 and 3.0.

An FMU is third-party native code in this process. Its messages are collected and not printed, its failures are raised
as `CoolingPlantError`, and functions that the standard forbids after a failure are not called. A crash of that code (a
segmentation fault) ends the process; this module cannot prevent it.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from joulie_lab.simulation.cooling_plant import CoolingPlantError

_OK, _DISCARD, _FATAL = 0, 2, 4
_STATUS_NAMES = {1: "warning", 2: "discard", 3: "error", 4: "fatal", 5: "pending"}
_FMI2_LAST_SUCCESSFUL_TIME, _FMI2_TERMINATED = 2, 3
_MAX_EVENT_ITERATIONS = 1000
_KEPT_MESSAGES = 5
_KEPT_CHARACTERS = 300


class FmuInstance(ABC):
    """Common interface of FMI 2.0 and 3.0 instances; times are in seconds, values in the FMU's own units."""

    def __init__(self, label: str, description: Any) -> None:
        self._label = label
        self._messages: deque[str] = deque(maxlen=_KEPT_MESSAGES)
        self._slave: Any = None
        self._failed_status = _OK
        self._identity = {"guid": description.guid, "modelIdentifier": description.coSimulation.modelIdentifier}

    @abstractmethod
    def initialize(
        self, parameters: Sequence[tuple[int, float]], input_references: Sequence[int], inputs: Sequence[float]
    ) -> None:
        """Set `parameters` (reference, value), then initialize at time 0 under the first inputs."""

    @abstractmethod
    def set(self, references: Sequence[int], values: Sequence[float]) -> None:
        """Set real variables between steps."""

    @abstractmethod
    def get(self, references: Sequence[int]) -> list[float]:
        """Read real variables."""

    @abstractmethod
    def advance(self, time_s: float, dt_s: float) -> float:
        """Step from `time_s` by `dt_s`; returns the time reached, which is earlier if the FMU returned early."""

    def release(self) -> None:
        """Terminate and free the instance, as far as its state allows. Safe to call twice."""
        slave, self._slave = self._slave, None
        if slave is None or self._failed_status == _FATAL:
            return  # after "fatal" no function of the FMU may be called (FMI 2.0.1, 2.1.3)
        if self._failed_status == _OK:
            with suppress(Exception):  # the results are already read, so a failure to terminate is ignored
                slave.terminate()
        slave.freeInstance()

    def failure(self, what: str) -> CoolingPlantError:
        """An error about this FMU, with its last messages."""
        said = f"; the FMU said: {' | '.join(self._messages)}" if self._messages else ""
        return CoolingPlantError(f"{self._label}: {what}{said}")

    def _load(self, make: Callable[[], Any], instantiate: Callable[[Any], None]) -> None:
        slave = None
        try:
            with chdir(Path.cwd()):  # FMPy changes directory to load the binary, and stays there when that fails
                slave = make()
            instantiate(slave)
        except Exception as error:  # FMPy raises Exception itself, ctypes AttributeError for a missing function
            if slave is not None:
                slave.freeLibrary()
            raise self.failure(f"cannot be instantiated: {error}") from error
        self._slave = slave

    @contextmanager
    def _calls(self, what: str) -> Iterator[None]:
        """Convert the failure of an FMI call to a `CoolingPlantError` and remember its severity."""
        from fmpy.fmi1 import FMICallException

        try:
            yield
        except FMICallException as error:
            self._failed_status = error.status
            status = _STATUS_NAMES.get(error.status, f"unknown status {error.status}")
            raise self.failure(f"{what} failed: {error.function} returned {status}") from error

    def _keep(self, status: int, message: bytes | None) -> None:
        if status != _OK and message:
            self._messages.append(message.decode("utf-8", errors="replace").strip()[:_KEPT_CHARACTERS])


class Fmi2Instance(FmuInstance):
    """An instance of an FMI 2.0 FMU."""

    def __init__(self, label: str, description: Any, folder: Path) -> None:
        from fmpy.fmi2 import FMU2Slave

        super().__init__(label, description)
        callbacks, self._key = _fmi2_callbacks(self._keep)
        try:
            self._load(
                lambda: FMU2Slave(unzipDirectory=str(folder), **self._identity),
                lambda slave: slave.instantiate(callbacks=callbacks),
            )
        except CoolingPlantError:
            _LISTENERS.pop(self._key, None)
            raise

    def initialize(
        self, parameters: Sequence[tuple[int, float]], input_references: Sequence[int], inputs: Sequence[float]
    ) -> None:
        """See `FmuInstance.initialize`."""
        with self._calls("initialization"):
            self._slave.setupExperiment(startTime=0.0)
            if parameters:
                self._slave.setReal(*zip(*parameters, strict=True))
            self._slave.enterInitializationMode()
            self._slave.setReal(input_references, inputs)
            self._slave.exitInitializationMode()

    def set(self, references: Sequence[int], values: Sequence[float]) -> None:
        """See `FmuInstance.set`."""
        with self._calls("setting the inputs"):
            self._slave.setReal(references, values)

    def get(self, references: Sequence[int]) -> list[float]:
        """See `FmuInstance.get`."""
        with self._calls("reading the outputs"):
            return list(self._slave.getReal(references))

    def advance(self, time_s: float, dt_s: float) -> float:
        """See `FmuInstance.advance`."""
        try:
            with self._calls(f"the step of {dt_s:g} s at {time_s:g} s"):
                self._slave.doStep(time_s, dt_s)
        except CoolingPlantError:
            if self._failed_status != _DISCARD:
                raise
            return self._after_discard(time_s)
        return time_s + dt_s

    def release(self) -> None:
        """See `FmuInstance.release`."""
        super().release()
        _LISTENERS.pop(self._key, None)

    def _after_discard(self, time_s: float) -> float:
        """The time reached in a step that the FMU could not finish."""
        self._failed_status = _OK
        terminated, reached_s = False, time_s
        with suppress(Exception):  # if the FMU cannot report the time, assume no progress
            terminated = self._slave.getBooleanStatus(_FMI2_TERMINATED)
            reached_s = float(self._slave.getRealStatus(_FMI2_LAST_SUCCESSFUL_TIME))
        if terminated:
            raise self.failure(f"asked to end the simulation at {reached_s:g} s")
        return reached_s


class Fmi3Instance(FmuInstance):
    """An instance of an FMI 3.0 FMU; its event mode is used if it has one."""

    def __init__(self, label: str, description: Any, folder: Path, *, discrete_inputs: bool) -> None:
        from fmpy.fmi3 import FMU3Slave

        super().__init__(label, description)
        self._event_mode = bool(description.coSimulation.hasEventMode)
        self._set_in_event_mode = self._event_mode and discrete_inputs
        self._load(
            lambda: FMU3Slave(unzipDirectory=str(folder), **self._identity),
            lambda slave: slave.instantiate(
                eventModeUsed=self._event_mode,
                earlyReturnAllowed=True,
                logMessage=lambda _environment, status, _category, message: self._keep(status, message),
            ),
        )

    def initialize(
        self, parameters: Sequence[tuple[int, float]], input_references: Sequence[int], inputs: Sequence[float]
    ) -> None:
        """See `FmuInstance.initialize`."""
        with self._calls("initialization"):
            if parameters:
                self._slave.setFloat64(*zip(*parameters, strict=True))
            self._slave.enterInitializationMode(startTime=0.0)
            self._slave.setFloat64(input_references, inputs)
            self._slave.exitInitializationMode()
            if self._event_mode:
                self._finish_events()

    def set(self, references: Sequence[int], values: Sequence[float]) -> None:
        """See `FmuInstance.set`."""
        with self._calls("setting the inputs"):
            if self._set_in_event_mode:
                self._slave.enterEventMode()
            self._slave.setFloat64(references, values)
            if self._set_in_event_mode:
                self._finish_events()

    def get(self, references: Sequence[int]) -> list[float]:
        """See `FmuInstance.get`."""
        with self._calls("reading the outputs"):
            return list(self._slave.getFloat64(references))

    def advance(self, time_s: float, dt_s: float) -> float:
        """See `FmuInstance.advance`."""
        with self._calls(f"the step of {dt_s:g} s at {time_s:g} s"):
            event, terminate, early, last_time_s = self._slave.doStep(time_s, dt_s)
            if terminate:
                raise self.failure(f"asked to end the simulation at {last_time_s:g} s")
            if event and self._event_mode:
                self._slave.enterEventMode()
                self._finish_events()
        return float(last_time_s) if early else time_s + dt_s

    def _finish_events(self) -> None:
        """Iterate the discrete states until they converge, then return to step mode."""
        for _ in range(_MAX_EVENT_ITERATIONS):
            needs_update, terminate, *_ = self._slave.updateDiscreteStates()
            if terminate:
                raise self.failure("asked to end the simulation at an event")
            if not needs_update:
                self._slave.enterStepMode()
                return
        raise self.failure(f"its events do not settle within {_MAX_EVENT_ITERATIONS} iterations")


# FMI 2.0 loggers are variadic C functions. FMPy has a native proxy that formats the message, one for the whole process,
# so it calls one Python logger, which distinguishes instances by their environment and is never garbage-collected.
_LISTENERS: dict[int, Callable[[int, bytes | None], None]] = {}
_KEYS = itertools.count(1)


def _fmi2_callbacks(listener: Callable[[int, bytes | None], None]) -> tuple[Any, int]:
    """Callbacks for one instance, and the key of its messages."""
    from ctypes import byref, c_void_p

    from fmpy import calloc, fmi2, free

    callbacks = fmi2.fmi2CallbackFunctions()
    callbacks.logger = _fmi2_logger()
    callbacks.allocateMemory = fmi2.fmi2CallbackAllocateMemoryTYPE(calloc)
    callbacks.freeMemory = fmi2.fmi2CallbackFreeMemoryTYPE(free)
    key = next(_KEYS)
    callbacks.componentEnvironment = c_void_p(key)
    _LISTENERS[key] = listener
    with suppress(ImportError, OSError):  # FMPy has no proxy on some platforms: messages are not formatted there
        from fmpy.logging import addLoggerProxy

        addLoggerProxy(byref(callbacks))
    return callbacks, key


@cache
def _fmi2_logger() -> Any:
    from fmpy.fmi2 import fmi2CallbackLoggerTYPE

    def log(environment: int | None, _name: bytes, status: int, _category: bytes, message: bytes | None) -> None:
        listener = _LISTENERS.get(environment or 0)
        if listener is not None:
            listener(status, message)

    return fmi2CallbackLoggerTYPE(log)
