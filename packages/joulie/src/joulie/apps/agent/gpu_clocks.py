"""Locks the SM clocks of GPUs for single pods, and takes the locks away.

That a clock may be locked is on disk before it is, and is deleted after the lock was taken away: whatever happens in
between, the next process resets the clock. Only GPUs of which Joulie may have locked the clock are ever reset, since a
reset undoes an administrator's lock too.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from joulie.adapters.kubernetes.api.v1alpha1 import ControlOutcome
from joulie.domain.locked_clocks import ANY_GPU, ClockAction, LockedClock, SmClock
from joulie.domain.quantities import InvalidQuantityError
from joulie.ports.devices import ClockLimiter, ControlFailedError, ControlRefusedError

_log = logging.getLogger(__name__)

NOT_ALLOWED = "GPU_CLOCKS is not set on this node's agent"
NOT_SUPPORTED = "its driver states no SM clock"
SIMULATED = "SIMULATE_ONLY: nothing is written"
NO_LOAD = "not locked yet: the clock was not above the maximum under load"
NOT_SEEN = "locked, but not read at or below the maximum under load yet"


class ClockStore(Protocol):
    """Storage of the GPUs whose clock may be locked, which survives the process but not the boot."""

    def load(self) -> frozenset[str]:
        """What was saved last; `ANY_GPU` where it cannot be understood. Raises OSError."""
        ...

    def save(self, gpus: Collection[str]) -> None:
        """Replace what is saved, atomically and durably. Raises OSError."""
        ...


@dataclass(frozen=True)
class ClockReport:
    """SM clock of one GPU after a cycle.

    Attributes:
        largest_hz: its largest clock, Hz; None where it is not to be locked.
        max_hz: maximum that it is locked to, Hz; None without a lock, or if that is not known.
        result: None where nothing is asked for and nothing is locked.
        message: details.
    """

    largest_hz: float | None = None
    max_hz: float | None = None
    result: ControlOutcome | None = None
    message: str = ""


class GpuClocks:
    """The SM clocks of the host's GPUs. Every call blocks on the driver.

    Args:
        limiter: locks clocks.
        store: GPUs whose clock may be locked.
        enabled: whether Joulie may lock clocks; those that may be locked are reset in any case.
        simulate_only: write nothing.
    """

    def __init__(self, limiter: ClockLimiter, store: ClockStore, *, enabled: bool, simulate_only: bool = False) -> None:
        self._limiter = limiter
        self._store = store
        self._enabled = enabled
        self._simulate_only = simulate_only
        self._saved: frozenset[str] | None = None  # GPUs whose clock may be locked; None until that is read
        self._was_reset: set[str] = set()
        self._known: dict[str, LockedClock] = {}
        self.seen: Mapping[str, ClockReport] = {}
        """Reports of the last cycle, by GPU; `ANY_GPU` for those that are not known."""

    def enforce(self, asked_hz: Mapping[str, float]) -> None:
        """Bring the clocks of all GPUs to the maxima that are asked for, Hz; those of the others are not locked."""
        self.seen = self._enforced(asked_hz if self._enabled else {}) | (
            {} if self._enabled else {gpu: _blocked(NOT_ALLOWED) for gpu in asked_hz}
        )

    def _enforced(self, asked_hz: Mapping[str, float]) -> dict[str, ClockReport]:
        try:
            if self._saved is None:
                self._saved = self._store.load()
        except OSError as error:
            _log.warning("saved clocks cannot be read", extra={"error": str(error)})
            return {gpu: _failed(f"what was locked is not known: {error}") for gpu in {*asked_hz, ANY_GPU}}
        if not self._enabled and not self._saved:
            return {}  # nothing was locked, and nobody is asked
        try:
            found = {clock.gpu: clock for clock in self._limiter.clocks()}
        except (ControlFailedError, ControlRefusedError) as error:
            self._known = {}  # the driver may be loaded anew meanwhile
            return {gpu: _failed(str(error)) for gpu in {*asked_hz, *self._saved}}
        self._known = {gpu: known for gpu, known in self._known.items() if gpu in found}
        reports = {gpu: _blocked(NOT_SUPPORTED) for gpu in asked_hz if gpu not in found}
        return reports | {gpu: self._turn(clock, asked_hz.get(gpu)) for gpu, clock in found.items()}

    def _turn(self, clock: SmClock, asked_hz: float | None) -> ClockReport:
        """One GPU's turn."""
        gpu, may_be_locked = clock.gpu, self._may_be_locked(clock.gpu)
        known, action = self._known.get(gpu, LockedClock()).looked(clock, asked_hz, may_be_locked=may_be_locked)
        if self._simulate_only:
            return _blocked(SIMULATED) if may_be_locked or asked_hz is not None else ClockReport()
        self._known[gpu] = known
        problem = ""
        try:
            if action is ClockAction.LOCK and asked_hz is not None:
                self._lock(gpu, known, asked_hz)
            elif action is ClockAction.RESET:
                self._reset(gpu, known)
        except (ControlFailedError, ControlRefusedError, InvalidQuantityError, OSError) as error:
            problem = f"{action}: {error}"
            _log.warning("SM clock not changed", extra={"gpu": gpu, "problem": problem})
        return self._report(clock, asked_hz, problem)

    def _lock(self, gpu: str, known: LockedClock, asked_hz: float) -> None:
        new = gpu not in self._named
        if new:
            self._remember(self._named | {gpu})
        try:
            self._known[gpu] = known.locked(asked_hz, self._limiter.lock(gpu, asked_hz))
        except ControlRefusedError as error:
            _log.warning("SM clock cannot be locked", extra={"gpu": gpu, "problem": str(error)})
            self._known[gpu] = known.given_up(f"refused: {error}")
            if new:  # nothing was changed
                self._remember(self._named - {gpu})
            return
        except ControlFailedError:
            self._known[gpu] = known.unlocked()  # whether it is locked is not known: it is reset next
            raise
        _log.info("SM clock locked", extra={"gpu": gpu, "max_mhz": round(self._known[gpu].max_hz / 1e6)})

    def _reset(self, gpu: str, known: LockedClock) -> None:
        self._known[gpu] = known.unlocked()
        self._limiter.reset(gpu)
        _log.info("SM clock reset", extra={"gpu": gpu, "problem": known.problem})
        self._was_reset.add(gpu)
        if gpu in self._named:
            self._remember(self._named - {gpu})

    def _report(self, clock: SmClock, asked_hz: float | None, problem: str) -> ClockReport:
        known, may_be_locked = self._known[clock.gpu], self._may_be_locked(clock.gpu)
        largest_hz = clock.largest_hz if self._enabled and not known.problem else None
        max_hz = known.max_hz if may_be_locked and math.isfinite(known.max_hz) else None
        if problem:
            return ClockReport(largest_hz, max_hz, ControlOutcome.ERROR, problem)
        if known.problem and (asked_hz is not None or may_be_locked):
            return ClockReport(None, max_hz, ControlOutcome.ERROR, known.problem)
        if asked_hz is None:
            return ClockReport(largest_hz)
        if max_hz is None:
            return ClockReport(largest_hz, None, ControlOutcome.UNCONFIRMED, NO_LOAD)
        if known.confirmed:
            return ClockReport(largest_hz, max_hz, ControlOutcome.APPLIED)
        return ClockReport(largest_hz, max_hz, ControlOutcome.UNCONFIRMED, NOT_SEEN)

    def _may_be_locked(self, gpu: str) -> bool:
        return gpu in self._named or (ANY_GPU in self._named and gpu not in self._was_reset)

    @property
    def _named(self) -> frozenset[str]:
        return self._saved or frozenset()

    def _remember(self, gpus: frozenset[str]) -> None:
        self._store.save(gpus)
        self._saved = gpus


def _blocked(why: str) -> ClockReport:
    return ClockReport(result=ControlOutcome.BLOCKED, message=why)


def _failed(why: str) -> ClockReport:
    return ClockReport(result=ControlOutcome.ERROR, message=why)
