"""Circuit breaker: calls to a server that is down fail at once instead of waiting for a timeout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_FAILURES = 3
_FIRST_PAUSE_S = 30.0
_MAX_PAUSE_S = 300.0


class Breaker:
    """Circuit breaker that opens after three failed calls in a row.

    While it is open, calls fail at once, except one trial call at a time after a pause. A trial that fails doubles the
    pause, from 30 s to 5 min; one that succeeds closes the breaker.

    Args:
        now_s: monotonic clock, s.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._failures = 0
        self._reason = ""
        self._pause_s = 0.0
        self._next_try_s = 0.0
        self._trying = False

    @property
    def problem(self) -> str | None:
        """Error of the last failed call while the breaker is open; None while it is closed."""
        return self._reason if self._pause_s else None

    @contextmanager
    def guarding(self, failure: type[Exception]) -> Iterator[None]:
        """Run one call; an exception of type `failure` counts as a failure, and is raised while the breaker is open."""
        trying = bool(self._pause_s)
        if trying:
            wait_s = self._next_try_s - self._now_s()
            if self._trying or wait_s > 0.0:
                raise failure(f"request not sent: {self._reason}; next try in {max(0.0, wait_s):.0f} s")
            self._trying = True
        try:
            yield
        except failure as error:
            self._failed(str(error), trying)
            raise
        except Exception:  # the server responded, if not as hoped
            self._worked()
            raise
        else:
            self._worked()
        finally:
            if trying:
                self._trying = False

    def _failed(self, reason: str, trying: bool) -> None:
        self._failures += 1
        self._reason = reason
        if trying or (self._failures >= _FAILURES and not self._pause_s):
            self._pause_s = min(_MAX_PAUSE_S, 2.0 * self._pause_s or _FIRST_PAUSE_S)
            self._next_try_s = self._now_s() + self._pause_s

    def _worked(self) -> None:
        self._failures = 0
        self._pause_s = 0.0
