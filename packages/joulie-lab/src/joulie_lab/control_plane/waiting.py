"""Polls for a condition with a timeout and a message that tells what did not happen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_S = 0.05
_LATE_POLL_SHARE = 0.04
_LATE_POLL_S = 0.2


class NotReachedError(AssertionError):
    """A condition did not become true in time; an AssertionError, so that a test reports it as its failure."""


def wait_for(predicate: Callable[[], T], timeout_s: float, message: str, *, poll_s: float = _POLL_S) -> T:
    """Call `predicate` until its result is true, and return that result.

    Args:
        predicate: condition to wait for. An AssertionError that it raises counts as "not yet", and the last one is
            reported at the timeout; any other error ends the wait.
        timeout_s: timeout, s; the predicate is called at least once.
        message: the condition in words: "pod default/a is Running".
        poll_s: pause between two calls, s; at least. What takes long is looked at less often, for a look costs time of
            the processes that are waited for: after a pause of a twenty-fifth of the time so far, at most 0.2 s.

    Raises:
        NotReachedError: the timeout expired.
    """
    began = time.monotonic()
    while True:
        reason = ""
        try:
            result = predicate()
        except AssertionError as error:
            reason = f" ({error})"
        else:
            if result:
                return result
            reason = f" (last seen: {result!r})"
        waited_s = time.monotonic() - began
        if waited_s >= timeout_s:
            raise NotReachedError(f"not within {timeout_s:g} s: {message}{reason}")
        time.sleep(max(poll_s, min(_LATE_POLL_SHARE * waited_s, _LATE_POLL_S)))
