"""The extender's ASGI application: the protocol's verbs, debug endpoints, and error responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from time import perf_counter

import msgspec

from joulie.adapters.kubernetes.api.core import Pod
from joulie.apps.extender import answers, wire
from joulie.apps.extender.explain import explanation, scoring
from joulie.apps.extender.feed import DEFAULT_LABELS, NodeLabels, WatchState
from joulie.apps.extender.fleet import Fleet, FleetView
from joulie.apps.extender.judge import Profiles, judge
from joulie.apps.extender.metrics import ExtenderMetrics
from joulie.apps.extender.rankings import Rankings
from joulie.program.http import AsgiApp, Receive, Scope, Send, json_body, respond
from joulie.program.tracing import span

MAX_POD_BYTES = 4 * 2**20
"""Maximum size of a pod: it has at most 1.5 MiB in etcd."""
_MAX_CANDIDATE_BYTES = {"filter": 32 * 2**10, "prioritize": 32 * 2**10, "preempt": 512 * 2**10}
"""Maximum average size of a candidate by verb: a whole node takes about 15 kB, a hundred whole victims 500 kB."""
_MAX_BODY_BYTES = 256 * 2**20
"""Maximum size of any request, however large the cluster is."""
_JSON = b"application/json"
_NOT_READY = b"not ready: see /readyz\n"
_log = logging.getLogger(__name__)


class TooLargeError(ValueError):
    """A body larger than a cluster of this size needs."""


class Extender:
    """Answers requests from the latest view of the fleet, without waiting for anything else.

    Attributes:
        view: the view that requests read; None until all caches are synced.
    """

    def __init__(
        self,
        fleet: Fleet,
        profiles: Profiles,
        watches: Callable[[], Iterable[WatchState]],
        metrics: ExtenderMetrics,
        wall_clock: Callable[[], float],
        *,
        labels: NodeLabels = DEFAULT_LABELS,
    ) -> None:
        """Create an extender without a view.

        Args:
            fleet: the nodes.
            profiles: finds the WorkloadProfile of a pod.
            watches: states of the watches.
            metrics: metrics of the extender.
            wall_clock: current time, s since the epoch.
            labels: how to read the labels of nodes.
        """
        self.view: FleetView | None = None
        self._class_changes = 0
        self._precomputed: tuple[bytes, FleetView, bytes] | None = None
        self._rankings = Rankings()
        self._fleet = fleet
        self._profiles = profiles
        self._watches = watches
        self._metrics = metrics
        self._wall_clock = wall_clock
        self._labels = labels

    def refresh(self) -> FleetView:
        """Replace the view by a new snapshot of the fleet."""
        self.view = self._fleet.view(self._wall_clock())
        self._class_changes = self._fleet.class_changes
        return self.view

    def app(self, others: AsgiApp) -> AsgiApp:
        """The application that kube-scheduler calls; other paths go to `others`."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            verb = scope["path"][1:]
            if verb in _VERBS:
                await self._serve(verb, scope, receive, send)
            else:
                await others(scope, receive, send)

        return app

    def debug_app(self, others: AsgiApp) -> AsgiApp:
        """The application of /debug; other paths go to `others`."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            match scope["path"]:
                case "/debug/scoring":
                    await self._debug(scope, receive, send, "GET", self._scoring)
                case "/debug/explain":
                    await self._debug(scope, receive, send, "POST", self._explain)
                case _:
                    await others(scope, receive, send)

        return app

    async def _serve(self, verb: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a verb; an error becomes a response and leaves no state behind."""
        if not await _allowed(scope, send, "POST"):
            return
        if self.view is None:
            await respond(send, 503, _NOT_READY)
            self._metrics.served(verb, 503, 0.0)
            return
        try:
            body = await read_body(receive, max_body_bytes(verb, len(self._fleet)))
        except TooLargeError as error:
            await respond(send, 413, f"{error}\n".encode())
            self._metrics.served(verb, 413, 0.0)
            return
        began_s = perf_counter()
        with span(f"extender {verb}"):
            status, answer = self._answer(verb, body)
        seconds = perf_counter() - began_s
        await respond(send, status, answer, _JSON if status == 200 else b"text/plain; charset=utf-8")
        # Counted after the response, so that the scheduler does not wait for it.
        self._metrics.served(verb, status, seconds)

    def _answer(self, verb: str, body: bytes) -> tuple[int, bytes]:
        try:
            return 200, _VERBS[verb](self, body, self._current_view())
        except wire.BadRequestError as error:
            return 400, f"/{verb}: {error}\n".encode()
        except Exception as error:
            _log.exception("request failed", extra={"verb": verb})
            problem = f"Joulie's extender failed: {type(error).__name__}: {error}"
            if verb == "filter":
                return 200, wire.filter_result(error=problem)
            return 500, f"{problem}\n".encode()

    def _current_view(self) -> FleetView:
        """The view, renewed if the class of a node has changed.

        Scores may be a little old, but a label that opens a node sends pods here as soon as its twin has changed.
        """
        if self.view is None or self._class_changes != self._fleet.class_changes:
            return self.refresh()
        return self.view

    def _filter(self, body: bytes, view: FleetView) -> bytes:
        filtered = answers.filter_nodes(body, view, self._profiles, self._labels)
        self._metrics.refused("filter", filtered.refused)
        self._metrics.refused_by_power(filtered.by_power)
        if filtered.following is not None:
            # Runs after the response has been sent.
            asyncio.get_running_loop().call_soon(self._precompute, filtered.following, view)
        return filtered.answer

    def _precompute(self, call: answers.NextCall, view: FleetView) -> None:
        """Compute the expected next answer while kube-scheduler reads the last one and runs its own plugins.

        A different request, or a newer view, is answered as if this had not happened.
        """
        self._precomputed = call.body, view, self._rankings.answer(call.pod, call.names, view)

    def _prioritize(self, body: bytes, view: FleetView) -> bytes:
        ready, self._precomputed = self._precomputed, None
        if ready is not None and ready[:2] == (body, view):
            return ready[2]
        return answers.prioritize(body, view, self._profiles, self._rankings)

    def _preempt(self, body: bytes, view: FleetView) -> bytes:
        answer, refused = answers.preempt(body, view, self._profiles)
        self._metrics.refused("preempt", refused)
        return answer

    async def _debug(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        method: str,
        answer: Callable[[bytes, FleetView], msgspec.Struct],
    ) -> None:
        if not await _allowed(scope, send, method):
            return
        if self.view is None:
            await respond(send, 503, _NOT_READY)
            return
        try:
            shown = answer(await read_body(receive, MAX_POD_BYTES), self.view)
        except (wire.BadRequestError, TooLargeError) as error:
            await respond(send, 400, f"{scope['path']}: {error}\n".encode())
            return
        await respond(send, 200, json_body(shown), _JSON)

    def _scoring(self, _body: bytes, view: FleetView) -> msgspec.Struct:
        return scoring(self._fleet, view, self._watches(), self._wall_clock())

    def _explain(self, body: bytes, view: FleetView) -> msgspec.Struct:
        pod = wire.decoded(_POD, body)
        return explanation(judge(pod, self._profiles), self._fleet, view, self._wall_clock())


_POD = msgspec.json.Decoder(Pod)
_VERBS: dict[str, Callable[[Extender, bytes, FleetView], bytes]] = {
    "filter": Extender._filter,
    "prioritize": Extender._prioritize,
    "preempt": Extender._preempt,
}


async def _allowed(scope: Scope, send: Send, method: str) -> bool:
    if scope["method"] == method:
        return True
    await respond(send, 405, f"{scope['path']} takes {method}, not {scope['method']}\n".encode())
    return False


def max_body_bytes(verb: str, nodes: int) -> int:
    """Maximum size of a request about a pod and candidates in a cluster of this many nodes, bytes."""
    return min(MAX_POD_BYTES + nodes * _MAX_CANDIDATE_BYTES[verb], _MAX_BODY_BYTES)


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """Read the whole body of a request.

    Raises:
        TooLargeError: the body is larger than `max_bytes`.
    """
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise TooLargeError(
                f"the body is larger than {max_bytes} bytes, the maximum for this cluster; set nodeCacheCapable: true"
            )
        if not message.get("more_body"):
            return b"".join(parts)
