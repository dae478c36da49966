"""Failures on demand, so that programs can be seen to survive them."""

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
    """What goes wrong next.

    Attributes:
        watch_delay_s: by how many seconds watches hold changes back.
    """

    def __init__(self) -> None:
        self.watch_delay_s = 0.0
        self._rules: list[_Rule] = []

    def fail_next(
        self, count: int, status: int, *, retry_after_s: int | None, method: str | None, path: str | None
    ) -> None:
        """Answer the next requests that match with an error status."""
        self._rules.append(_Rule(count, status, retry_after_s, method, path))

    def of_request(self, method: str, path: str) -> StatusError | None:
        """The failure that a request meets, which is then used up."""
        for rule in self._rules:
            if rule.applies(method, path):
                rule.left -= 1
                self._rules = [other for other in self._rules if other.left > 0]
                return injected(rule.status, rule.retry_after_s)
        return None
