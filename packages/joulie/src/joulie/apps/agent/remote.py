"""Power capping over HTTP of remote nodes: simulated ones, or real ones behind a gateway.

A value is sent when it changes, and refreshed periodically in case the endpoint lost it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from joulie.adapters.control_http import ControlAction, HttpControl, HttpControlError, HttpGpu
from joulie.adapters.control_http import ControlResult as Answer
from joulie.adapters.kubernetes.api.v1alpha1 import ControlOutcome, ControlResult, GpuStatus
from joulie.adapters.kubernetes.control_reports import RESTORED, SIMULATED
from joulie.apps.agent.limits import LIFTED
from joulie.apps.agent.outcome import (
    Outcome,
    blocked,
    failed,
    format_cap,
    no_gpu,
    observed,
    observed_without_cap,
    restored,
)
from joulie.apps.agent.routing import CpuMode, Route, Routing, Via
from joulie.apps.agent.throttle import PowerReading, Throttle
from joulie.apps.agent.views import shard_of
from joulie.domain.actuation import WantedCap
from joulie.domain.dvfs import DvfsSettings
from joulie.domain.hardware import CapRange

_log = logging.getLogger(__name__)

BACKEND = "http"
_CPU, _GPU = "cpu", "gpu"
_NONE: Mapping[str, float] = {}
REFRESH_S = 300.0
"""Mean time after which an unchanged value is sent again, s: an endpoint (a restarted simulator) may lose it."""

Clients = Callable[[str | None, str | None], HttpControl]
"""Returns the client of a telemetry and a control endpoint."""
Queries = Callable[[str, Route], Awaitable[float | None]]
"""Queries Prometheus for the power of a node, W; None if unavailable."""


@dataclass(frozen=True)
class _Applied:
    """Value last applied by an endpoint, None for a lifted cap, and the limits of single GPUs beside it, W."""

    endpoint: str
    value: float | None
    at_s: float
    by_gpu: Mapping[str, float]


class RemoteNode:
    """Controls one node through its HTTP endpoints.

    Attributes:
        throttle: frequency controller, for endpoints that cannot limit power.
        mode: method that caps the CPUs now: rapl, dvfs or none.
        power_w: CPU power as last read, W; None if it was not read.
        gpus: GPUs that the endpoint limits one by one, as it last reported them.
    """

    def __init__(
        self, name: str, clients: Clients, queries: Queries, dvfs: DvfsSettings, *, simulate_only: bool = False
    ) -> None:
        self._name = name
        self._clients = clients
        self._queries = queries
        self._simulate_only = simulate_only
        # Jitter by node name, so that the nodes of a pool do not all refresh in one cycle.
        self._refresh_s = REFRESH_S * (0.75 + shard_of(name, 1000) / 2000)
        self._applied: dict[ControlAction, _Applied] = {}
        # Whether a cap may be in force, by kind of device; unknown before the first cycle.
        self._capped: dict[str, bool] = {}
        self.throttle = Throttle(dvfs)
        self.mode = "none"
        self.power_w: float | None = None
        self.gpus: tuple[HttpGpu, ...] = ()

    @property
    def gpu_statuses(self) -> tuple[GpuStatus, ...]:
        """What is reported about each GPU; who holds it is not known here."""
        return tuple(
            GpuStatus(gpu.uuid, gpu.limit_watts, gpu.default_limit_watts, gpu.min_limit_watts)
            for gpu in sorted(self.gpus, key=lambda gpu: gpu.uuid)
        )

    async def observe_cpu(
        self,
        cap: WantedCap,
        limits: CapRange | None,
        packages: int,
        routing: Routing,
        now_s: float,
        reported: ControlResult | None,
    ) -> Outcome:
        """Say what a cap would do, in observe mode; lift an earlier one, as known or `reported`. See `enforce_cpu`."""
        if self._may_hold(_CPU, reported):
            lifted = await self.enforce_cpu(LIFTED, limits, packages, routing, now_s)
            if lifted.result is not ControlOutcome.APPLIED:
                return lifted
        self._capped[_CPU], self.mode = False, "none"
        return _planned(cap, _watts(cap, limits), "each CPU package")

    async def observe_gpu(
        self,
        cap: WantedCap,
        limits: CapRange | None,
        route: Route,
        now_s: float,
        reported: ControlResult | None,
        *,
        present: bool,
    ) -> Outcome:
        """Like `observe_cpu`, for the GPUs."""
        if not present:
            return observed_without_cap("none") if cap.lifted else no_gpu()
        if self._may_hold(_GPU, reported):
            lifted = await self.enforce_gpu(LIFTED, limits, route, now_s, present=present)
            if lifted.result is not ControlOutcome.APPLIED:
                return lifted
        self._capped[_GPU] = False
        return _planned(cap, _watts(cap, limits), "each GPU")

    def _may_hold(self, kind: str, reported: ControlResult | None) -> bool:
        """Whether a cap may be in force: of this process, else of one before it, as it reported."""
        if kind in self._capped:
            return self._capped[kind]
        return (
            reported is not None
            and reported.backend == BACKEND
            and reported.result not in {ControlOutcome.OBSERVED, ControlOutcome.NONE}
            and not (reported.message or "").startswith(RESTORED)
        )

    async def enforce_cpu(
        self, cap: WantedCap, limits: CapRange | None, packages: int, routing: Routing, now_s: float
    ) -> Outcome:
        """Apply a cap to the CPUs.

        Args:
            cap: cap of each package.
            limits: cap range of one package; None if unknown.
            packages: number of packages.
            routing: endpoints of the node.
            now_s: monotonic time, s.
        """
        self._capped[_CPU] = True
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
        """Apply a cap to the GPUs; `present`: whether the node has any."""
        if not present:
            return restored("none", "the node has no GPU") if cap.lifted else no_gpu()
        self._capped[_GPU] = True
        if self._simulate_only:
            return _simulated(cap)
        common = replace(cap, by_device=())
        cap_w = _watts(common, limits)
        if cap_w is None and not common.lifted:
            return blocked(
                BACKEND, "percentage cap without a known GPU default limit: set joulie.io/hw.gpu-model on the node"
            )
        by_gpu = {gpu: limit_w for gpu, limit_w in cap.by_device if cap_w is None or limit_w < cap_w}
        problem = await self._send(ControlAction.GPU_POWER_CAP, cap_w, route, now_s, by_gpu)
        if problem is not None or not by_gpu:
            return problem or _done(common, cap_w, "each GPU")
        return self._limited(by_gpu, cap_w)

    def _limited(self, by_gpu: Mapping[str, float], cap_w: float | None) -> Outcome:
        """Outcome of limits of single GPUs, by what the endpoint reported after it took them."""
        known = {gpu.uuid for gpu in self.gpus}
        if unknown := sorted(by_gpu.keys() - known):
            return blocked(BACKEND, f"the endpoint does not limit single GPUs, or does not know {', '.join(unknown)}")
        common = "" if cap_w is None else f", {cap_w:.4g} W for the others"
        return Outcome(BACKEND, ControlOutcome.APPLIED, f"{len(by_gpu)} GPUs with limits of their own{common}")

    async def _limit(self, cap: WantedCap, limits: CapRange | None, route: Route, now_s: float) -> Outcome:
        cap_w = _watts(cap, limits)
        if cap_w is None and not cap.lifted:
            return blocked(
                BACKEND, "percentage cap without a known CPU maximum power: set joulie.io/hw.cpu-model on the node"
            )
        problem = await self._send(ControlAction.POWER_CAP, cap_w, route, now_s)
        return problem or _done(cap, cap_w, "each CPU package")

    async def _throttle(
        self, cap: WantedCap, limits: CapRange | None, packages: int, routing: Routing, now_s: float
    ) -> Outcome:
        self.mode = "dvfs"
        if cap.lifted:
            self.throttle.release()
            problem = await self._send(ControlAction.THROTTLE, 0.0, routing.cpu_control, now_s)
            return problem or restored(BACKEND, "no cap requested, the throttle is 0 %")
        measured = routing.cpu_source.provides_power
        self.power_w = await self._read_power(routing.cpu_source) if measured else None
        reading = PowerReading(self.power_w, measured, "the node's telemetry has no power")
        throttling = self.throttle.hold(cap, limits, packages, reading, now_s)
        if throttling is None:
            return blocked(BACKEND, "cap in watts by frequency needs measured power or the CPU's maximum power")
        problem = await self._send(ControlAction.THROTTLE, throttling.throttle_pct, routing.cpu_control, now_s)
        return problem or Outcome(BACKEND, throttling.result, f"frequency limited {throttling.how}")

    async def _unthrottle(self, routing: Routing, now_s: float) -> None:
        """Lift a throttle, including one of an earlier agent; an endpoint without throttling has none in force."""
        applied = self._applied.get(ControlAction.THROTTLE)
        if routing.cpu_mode is not CpuMode.AUTO or (applied is not None and applied.value == 0.0):
            return
        self.throttle.release()
        problem = await self._send(ControlAction.THROTTLE, 0.0, routing.cpu_control, now_s)
        if problem is not None and problem.result is ControlOutcome.BLOCKED:
            self._applied[ControlAction.THROTTLE] = _Applied(routing.cpu_control.endpoint, 0.0, now_s, _NONE)

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

    async def _send(
        self,
        action: ControlAction,
        value: float | None,
        route: Route,
        now_s: float,
        by_gpu: Mapping[str, float] = _NONE,
    ) -> Outcome | None:
        """Send a value unless it was applied recently; returns the outcome of a failure, None on success."""
        applied = self._applied.get(action)
        sent = (route.endpoint, value, by_gpu)
        unchanged = applied is not None and (applied.endpoint, applied.value, applied.by_gpu) == sent
        if applied and unchanged and now_s - applied.at_s < self._refresh_s:
            return None
        try:
            async with asyncio.timeout(route.timeout_s):
                client = self._clients(None, route.endpoint)
                answer = await client.control(self._name, action, **_fields(action, value, by_gpu))
        except (HttpControlError, TimeoutError) as error:
            self._applied.pop(action, None)
            return failed(BACKEND, str(error) or f"no answer from {route.endpoint} within {route.timeout_s:g} s")
        if action is ControlAction.GPU_POWER_CAP:
            self.gpus = answer.gpus
        if answer.result is Answer.APPLIED:
            self._applied[action] = _Applied(route.endpoint, value, now_s, by_gpu)
            return None
        self._applied.pop(action, None)
        result = blocked if answer.result is Answer.BLOCKED else failed
        return result(BACKEND, answer.message or f"the endpoint answered {answer.result.value} to {action.value}")


_FIELD = {
    ControlAction.POWER_CAP: "capWatts",
    ControlAction.THROTTLE: "throttlePct",
    ControlAction.GPU_POWER_CAP: "capWattsPerGpu",
}


def _fields(
    action: ControlAction, value: float | None, by_gpu: Mapping[str, float]
) -> Mapping[str, float | Mapping[str, float] | None]:
    # null lifts a cap. It is sent only if not even the base is known, since not every endpoint accepts null.
    return {_FIELD[action]: value} | ({"capWattsByGpu": by_gpu} if by_gpu else {})


def _watts(cap: WantedCap, limits: CapRange | None) -> float | None:
    """Cap to send, W; a lifted cap is the base (100 %). None if unknown."""
    if cap.lifted:
        return limits.base_w if limits else None
    return cap.in_watts(limits)


def _simulated(cap: WantedCap) -> Outcome:
    if cap.lifted:
        return restored(BACKEND, "SIMULATE_ONLY, no cap was sent")
    return blocked(BACKEND, f"{SIMULATED} sent")


def _planned(cap: WantedCap, cap_w: float | None, what: str) -> Outcome:
    if cap.lifted:
        return observed_without_cap(BACKEND)
    amount = f"{cap_w:.4g} W" if cap_w is not None else "a limit"
    return observed(BACKEND, f"{amount} for {what}{format_cap(cap)}")


def _done(cap: WantedCap, cap_w: float | None, what: str) -> Outcome:
    if cap.lifted:
        return restored(BACKEND, "no cap requested")
    return Outcome(BACKEND, ControlOutcome.APPLIED, f"{cap_w:.4g} W for {what}")
