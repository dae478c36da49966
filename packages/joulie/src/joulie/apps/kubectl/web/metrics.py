"""Metrics of `joulie web`. Labels have fixed sets of values: never a user, namespace or path."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Histogram

from joulie.program.http import AsgiApp, Receive, Scope, Send

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class WebMetrics:
    """Counters and histograms of requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._sign_ins = Counter(
            "joulie_web_sign_ins", "Attempts to sign in with a token.", ["result"], registry=registry
        )
        self._seconds = Histogram(
            "joulie_web_request_seconds",
            "Time from a request to the end of its response, by the class of its status.",
            ["status"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        for result in ("accepted", "refused"):
            self._sign_ins.labels(result)

    def signed_in(self, *, accepted: bool) -> None:
        """Count an attempt to sign in."""
        self._sign_ins.labels("accepted" if accepted else "refused").inc()

    def timed(self, app: AsgiApp, now_s: Callable[[], float]) -> AsgiApp:
        """`app`, whose requests are timed.

        Args:
            app: application.
            now_s: monotonic clock, s.
        """

        async def measured(scope: Scope, receive: Receive, send: Send) -> None:
            began_s, status = now_s(), "5xx"

            async def noted(message: Scope) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = f"{message['status'] // 100}xx"
                await send(message)

            try:
                await app(scope, receive, noted)
            finally:
                self._seconds.labels(status).observe(now_s() - began_s)

        return measured
