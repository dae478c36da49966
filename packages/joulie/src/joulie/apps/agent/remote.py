"""Power caps over HTTP, of nodes that this agent does not run on: simulated ones, or real ones behind a gateway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from joulie.adapters.control_http import ControlAction, ControlResult, HttpControl, HttpControlError
from joulie.adapters.kubernetes.api.v1alpha1 import ControlOutcome
from joulie.apps.agent.outcome import Outcome, blocked, failed, no_gpu, restored
from joulie.apps.agent.routing import CpuMode, Route, Routing, Via
from joulie.apps.agent.throttle import Throttle
from joulie.apps.agent.views import shard_of
from joulie.domain.actuation import WantedCap
from joulie.domain.dvfs import DvfsSettings
from joulie.domain.hardware import CapRange

_log = logging.getLogger(__name__)

BACKEND = "http"
REFRESH_S = 300.0
"""An endpoint may forget a cap (a simulator that was started again), so it is told anew after about this long, s."""

Clients = Callable[[str | None, str | None], HttpControl]
"""The client of a telemetry and a control endpoint."""
Queries = Callable[[str, Route], Awaitable[float | None]]
"""Asks Prometheus for the power of a node, W; None where it was not told."""


@dataclass(frozen=True)
class _Told:
    """A value that an endpoint has applied."""

    endpoint: str
    value: float | None
    at_s: float


class RemoteNode:
    """One node behind HTTP endpoints.

    Attributes:
        throttle: the frequency controller, for endpoints that cannot limit power.
        mode: how the CPUs are capped now: rapl, dvfs or none.
        power_w: power of the CPUs as last read, W; None if it was not.
    """

    def __init__(
        self, name: str, clients: Clients, queries: Queries, dvfs: DvfsSettings, *, simulate_only: bool = False
    ) -> None:
        self._name = name
        self._clients = clients
        self._queries = queries
        self._simulate_only = simulate_only
        # Spread by name, so that the nodes of a pool do not all refresh in one cycle.
        self._refresh_s = REFRESH_S * (0.75 + shard_of(name, 1000) / 2000)
        self._told: dict[ControlAction, _Told] = {}
        self.throttle = Throttle(dvfs)
        self.mode = "none"
        self.power_w: float | None = None

    async def enforce_cpu(
        self, cap: WantedCap, limits: CapRange | None, packages: int, routing: Routing, now_s: float
    ) -> Outcome:
        """Bring the CPUs to a cap.

        Args:
            cap: cap of each package.
            limits: range of one package.
            packages: number of packages.
            routing: the endpoints.
            now_s: monotonic time, s.
        """
        if self._simulate_only:
            return _simulated(cap)
        if routing.cpu_mode is CpuMode.DVFS:
            return await self._throttle(cap, limits, packages, routing, now_s)
        outcome = await self._limit(cap, limits, routing.cpu_control, now_s)
        if outcome.result is ControlOutcome.APPLIED:
            self.mode = "rapl"
            await self._unthrottle(routing, now_s)
            return outcome
        if routing.cpu_mode is CpuMode.RAPL or cap.lifted:
            self.mode = "none"
            return outcome
        throttled = await self._throttle(cap, limits, packages, routing, now_s)
        return Outcome(BACKEND, throttled.result, f"{throttled.message}; by power: {outcome.message}")

    async def enforce_gpu(
        self, cap: WantedCap, limits: CapRange | None, route: Route, now_s: float, *, present: bool
    ) -> Outcome:
        """Bring the GPUs to a cap; `present` says whether the node has any."""
        if not present:
            return restored("none", "the node has no GPU") if cap.lifted else no_gpu()
        if self._simulate_only:
            return _simulated(cap)
        cap_w = _watts(cap, limits)
        if cap_w is None and not cap.lifted:
            return blocked(
                BACKEND, "a percentage needs the GPU's default limit: set joulie.io/hw.gpu-model on the node"
            )
        problem = await self._tell(ControlAction.GPU_POWER_CAP, cap_w, route, now_s)
        return problem or _done(cap, cap_w, "each GPU")

    async def _limit(self, cap: WantedCap, limits: CapRange | None, route: Route, now_s: float) -> Outcome:
        cap_w = _watts(cap, limits)
        if cap_w is None and not cap.lifted:
            return blocked(BACKEND, "a percentage needs the CPU's maximum: set joulie.io/hw.cpu-model on the node")
        problem = await self._tell(ControlAction.POWER_CAP, cap_w, route, now_s)
        return problem or _done(cap, cap_w, "each CPU package")

    async def _throttle(
        self, cap: WantedCap, limits: CapRange | None, packages: int, routing: Routing, now_s: float
    ) -> Outcome:
        self.mode = "dvfs"
        if cap.lifted:
            self.throttle.release()
            problem = await self._tell(ControlAction.THROTTLE, 0.0, routing.cpu_control, now_s)
            return problem or restored(BACKEND, "no cap is asked for, the throttle is 0 %")
        measured = routing.cpu_source.tells_power
        self.power_w = await self._read_power(routing.cpu_source) if measured else None
        throttle_pct = self.throttle.wanted_pct(cap, limits, packages, self.power_w, now_s, measured=measured)
        if throttle_pct is None:
            return blocked(BACKEND, "a cap in watts needs measured power or the CPU's maximum to be held by frequency")
        problem = await self._tell(ControlAction.THROTTLE, throttle_pct, routing.cpu_control, now_s)
        how = "by measured power" if measured else "by a fixed share, since power cannot be measured"
        return problem or Outcome(BACKEND, ControlOutcome.APPLIED, f"frequency limited {how}")

    async def _unthrottle(self, routing: Routing, now_s: float) -> None:
        """Take back a throttle, also one of an earlier agent; an endpoint that knows none has none in force."""
        told = self._told.get(ControlAction.THROTTLE)
        if routing.cpu_mode is not CpuMode.AUTO or (told is not None and told.value == 0.0):
            return
        self.throttle.release()
        problem = await self._tell(ControlAction.THROTTLE, 0.0, routing.cpu_control, now_s)
        if problem is not None and problem.result is ControlOutcome.BLOCKED:
            self._told[ControlAction.THROTTLE] = _Told(routing.cpu_control.endpoint, 0.0, now_s)

    async def _read_power(self, source: Route) -> float | None:
        if source.via is Via.PROMETHEUS:
            return await self._queries(self._name, source)
        client = self._clients(source.endpoint, None)
        try:
            async with asyncio.timeout(source.timeout_s):
                return (await client.telemetry(self._name)).package_power_w
        except (HttpControlError, TimeoutError) as error:
            _log.warning("telemetry failed", extra={"node": self._name, "error": str(error) or "timed out"})
            return None

    async def _tell(self, action: ControlAction, value: float | None, route: Route, now_s: float) -> Outcome | None:
        """Send a value unless it was applied a short while ago; returns what went wrong, None if nothing did."""
        told = self._told.get(action)
        if told and (told.endpoint, told.value) == (route.endpoint, value) and now_s - told.at_s < self._refresh_s:
            return None
        try:
            async with asyncio.timeout(route.timeout_s):
                answer = await self._clients(None, route.endpoint).control(self._name, action, **_fields(action, value))
        except (HttpControlError, TimeoutError) as error:
            self._told.pop(action, None)
            return failed(BACKEND, str(error) or f"no answer from {route.endpoint} within {route.timeout_s:g} s")
        if answer.result is ControlResult.APPLIED:
            self._told[action] = _Told(route.endpoint, value, now_s)
            return None
        self._told.pop(action, None)
        result = blocked if answer.result is ControlResult.BLOCKED else failed
        return result(BACKEND, answer.message or f"the endpoint answered {answer.result.value} to {action.value}")


_FIELD = {
    ControlAction.POWER_CAP: "capWatts",
    ControlAction.THROTTLE: "throttlePct",
    ControlAction.GPU_POWER_CAP: "capWattsPerGpu",
}


def _fields(action: ControlAction, value: float | None) -> Mapping[str, float]:
    # A cap of null lifts: only where not even the base is known, since not every endpoint knows null.
    return {_FIELD[action]: value}  # type: ignore[dict-item]


def _watts(cap: WantedCap, limits: CapRange | None) -> float | None:
    """What to send, W: a lifted cap is the base, which is 100 %."""
    if cap.lifted:
        return limits.base_w if limits else None
    return cap.in_watts(limits)


def _simulated(cap: WantedCap) -> Outcome:
    if cap.lifted:
        return restored(BACKEND, "SIMULATE_ONLY, nothing was ever sent")
    return blocked(BACKEND, "SIMULATE_ONLY: nothing is sent")


def _done(cap: WantedCap, cap_w: float | None, what: str) -> Outcome:
    if cap.lifted:
        return restored(BACKEND, "no cap is asked for")
    return Outcome(BACKEND, ControlOutcome.APPLIED, f"{cap_w:.4g} W for {what}")
