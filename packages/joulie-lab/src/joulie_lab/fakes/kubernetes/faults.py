"""Fault injection, to test that programs survive API failures."""

from __future__ import annotations

from dataclasses import dataclass

from joulie_lab.fakes.kubernetes.errors import StatusError, injected


@dataclass
class _Rule:
    left: int
    status: int
    retry_after_s: int | None
    method: str | None
    path: str | None

    def applies(self, method: str, path: str) -> bool:
        return self.left > 0 and self.method in {None, method} and (self.path is None or self.path in path)


class Faults:
    """Faults to inject into coming requests.

    Attributes:
        watch_delay_s: delay of watch events, s.
    """

    def __init__(self) -> None:
        self.watch_delay_s = 0.0
        self._rules: list[_Rule] = []

    def fail_next(
        self, count: int, status: int, *, retry_after_s: int | None, method: str | None, path: str | None
    ) -> None:
        """Fail the next matching requests with an error status."""
        self._rules.append(_Rule(count, status, retry_after_s, method, path))

    def clear(self) -> None:
        """Inject no error any more."""
        self._rules.clear()

    def take(self, method: str, path: str) -> StatusError | None:
        """The fault that applies to a request, which is then used up; None if there is none."""
        for rule in self._rules:
            if rule.applies(method, path):
                rule.left -= 1
                self._rules = [other for other in self._rules if other.left > 0]
                return injected(rule.status, rule.retry_after_s)
        return None
