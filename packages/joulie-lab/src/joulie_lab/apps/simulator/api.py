"""The HTTP API of the simulator service."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from joulie.program.http import Probes, json_body, observability_app
from joulie_lab.apps.simulator.metrics import SimulatorMetrics
from joulie_lab.apps.simulator.queries import QueryError, instant_query
from joulie_lab.apps.simulator.run import Run
from joulie_lab.apps.simulator.trace_player import JobState
from joulie_lab.apps.simulator.world import UnknownNodeError

_MAX_BODY_BYTES = 64 * 1024
_ACTIONS = frozenset({"rapl.set_power_cap_watts", "dvfs.set_throttle_pct", "gpu.set_power_cap_watts"})

Handler = Callable[[Request], Awaitable[Response]]


class Api:
    """HTTP handlers of one run."""

    def __init__(self, run: Run, metrics: SimulatorMetrics, probes: Probes) -> None:
        self._run = run
        self._world = run.world
        self._player = run.player
        self._metrics = metrics
        self._probes = probes

    def app(self) -> Starlette:
        """Create the application."""
        routes = [
            Route("/telemetry", self._measured("/telemetry", self._all_telemetry)),
            Route("/telemetry/{node}", self._measured("/telemetry/{node}", self._telemetry)),
            Route("/control/{node}", self._measured("/control/{node}", self._control), methods=["POST"]),
            Route("/state/{node}", self._measured("/state/{node}", self._state)),
            Route("/run", self._measured("/run", self._progress)),
            Route("/run/start", self._measured("/run/start", self._start), methods=["POST"]),
            Route("/run/finish", self._measured("/run/finish", self._finish), methods=["POST"]),
            Route("/debug/nodes", self._measured("/debug/nodes", self._nodes)),
            Route("/debug/jobs", self._measured("/debug/jobs", self._jobs)),
            Route("/debug/events", self._measured("/debug/events", self._events)),
            Route("/debug/gpu-jobs", self._measured("/debug/gpu-jobs", self._gpu_jobs)),
            Route("/debug/demand", self._measured("/debug/demand", self._demand)),
            Route("/debug/energy", self._measured("/debug/energy", self._energy)),
            Route("/api/v1/query", self._measured("/api/v1/query", self._query), methods=["GET", "POST"]),
            Mount("/", app=observability_app(self._probes, self._metrics.registry)),
        ]
        return Starlette(routes=routes)

    def _measured(self, route: str, handler: Handler) -> Handler:
        """Count and time a route's requests; a node that is not simulated is answered with a 404 and a message."""

        async def measured(request: Request) -> Response:
            began_s = time.perf_counter()
            try:
                response = await handler(request)
            except UnknownNodeError as error:
                response = _json({"error": str(error)}, 404)
            self._metrics.requests.labels(route, request.method, str(response.status_code)).inc()
            self._metrics.request_seconds.labels(route, request.method).observe(time.perf_counter() - began_s)
            return response

        return measured

    async def _all_telemetry(self, _request: Request) -> Response:
        world = self._world
        return _json({"nodes": {name: world.telemetry(name) for name in world.node_names if world.readable(name)}})

    async def _telemetry(self, request: Request) -> Response:
        node = request.path_params["node"]
        if not self._world.readable(node):
            return _json({"error": f"the telemetry of node {node!r} is lost"}, 503)
        return _json(self._world.telemetry(node))

    async def _state(self, request: Request) -> Response:
        return _json(self._world.state(request.path_params["node"]))

    async def _control(self, request: Request) -> Response:
        node = request.path_params["node"]
        body = await _bounded_body(request)
        if body is None:
            return _json(
                {"result": "error", "message": f"request body too large: maximum {_MAX_BODY_BYTES} bytes"}, 413
            )
        try:
            fields = msgspec.json.decode(body, type=dict[str, Any])
            action = fields["action"]
        except (msgspec.MsgspecError, KeyError) as error:
            return _json(
                {"result": "error", "message": f"invalid request: expected a JSON object with an action: {error}"}, 400
            )
        if fields.get("node", node) != node:
            message = f"the body names node {fields['node']!r}, but the URL names {node!r}"
            return _json({"result": "error", "message": message}, 400)
        self._run.catch_up()
        outcome = self._world.control(node, str(action), fields)
        label = str(action) if action in _ACTIONS else "unknown"
        self._metrics.controls.labels(node, label).inc()
        self._metrics.control_actions.labels(node, label, outcome.result).inc()
        answer = {"result": outcome.result, "message": outcome.message, "state": self._world.telemetry(node)}
        return _json(answer)

    async def _progress(self, _request: Request) -> Response:
        jobs = {} if self._player is None else self._player.counts()
        return _json(
            {
                "state": self._run.state,
                "simulatedSeconds": self._world.time_s,
                "durationSeconds": self._run.duration_s,
                "jobs": {state: jobs.get(state, 0) for state in JobState},
            }
        )

    async def _start(self, request: Request) -> Response:
        self._run.start()
        return await self._progress(request)

    async def _finish(self, request: Request) -> Response:
        try:
            self._run.finish()
        except ValueError as error:
            return _json({"error": str(error)}, 409)
        return await self._progress(request)

    async def _nodes(self, _request: Request) -> Response:
        return _json({"nodes": [self._world.state(name) for name in self._world.node_names]})

    async def _jobs(self, _request: Request) -> Response:
        return _json({"jobs": [] if self._player is None else self._player.describe()})

    async def _gpu_jobs(self, _request: Request) -> Response:
        self._run.catch_up()
        return _json({"simulatedSeconds": self._world.time_s, "jobs": self._world.gpu_jobs()})

    async def _events(self, _request: Request) -> Response:
        return _json({"events": list(self._world.events)})

    async def _demand(self, _request: Request) -> Response:
        if self._world.demand is None:
            return _json({"error": "no demand is played: set SIM_DEMAND_PATH"}, 404)
        return _json(self._world.demand.to_json())

    async def _energy(self, _request: Request) -> Response:
        return _json(self._world.energy())

    async def _query(self, request: Request) -> Response:
        if request.method == "POST":
            form = parse_qs((await _bounded_body(request) or b"").decode(errors="replace"))
            query = form.get("query", [""])[0]
        else:
            query = request.query_params.get("query", "")
        try:
            return _json(instant_query(self._world, query, time.time()))
        except QueryError as error:
            return _json({"status": "error", "errorType": "bad_data", "error": str(error)}, 400)


async def _bounded_body(request: Request) -> bytes | None:
    """Read the body; None if it exceeds the maximum size."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            return None
    return body


def _json(content: Any, status: int = 200) -> Response:
    return Response(json_body(content), status, media_type="application/json")
