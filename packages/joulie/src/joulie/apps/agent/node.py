"""One node's cycle: observe, publish its hardware, enforce the caps of its NodeTwin, report."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from joulie.adapters.kubernetes.api import v1alpha1 as api
from joulie.apps.agent.discovery import found, labelled
from joulie.apps.agent.host import Host
from joulie.apps.agent.outcome import Outcome, blocked, no_gpu, restored
from joulie.apps.agent.remote import BACKEND as HTTP
from joulie.apps.agent.remote import RemoteNode
from joulie.apps.agent.reporting import Reporter
from joulie.apps.agent.routing import Route, Routing, Via
from joulie.apps.agent.throttle import Throttle
from joulie.apps.agent.views import HardwareView, NodeView, TwinView
from joulie.domain.actuation import WantedCap, cpu_range
from joulie.domain.dvfs import DvfsAction
from joulie.domain.hardware import CapRange, Catalogue
from joulie.domain.hardware.resolve import ResolvedHardware, resolve

_log = logging.getLogger(__name__)

_LIFTED = WantedCap()


@dataclass(frozen=True)
class NodeInputs:
    """What the API says about a node at the beginning of a cycle.

    Attributes:
        node: the Node, None where it is gone.
        twin: its NodeTwin; without one no cap is in force.
        hardware: its NodeHardware as stored.
        routing: its backends.
        profile: the TelemetryProfile that wants reports, None without one.
    """

    node: NodeView | None
    twin: TwinView | None
    hardware: HardwareView | None
    routing: Routing
    profile: api.TelemetryProfile | None = None


@dataclass(frozen=True)
class _Devices:
    """What enforcement over HTTP needs to know: ranges of one package and one GPU, and how many there are."""

    cpu_limits: CapRange | None
    packages: int
    gpu_limits: CapRange | None
    has_gpu: bool


class NodeAgent:
    """The agent of one node.

    Attributes:
        name: the node.
        host: its devices, where this is the machine that the agent runs on; None elsewhere.
        remote: its HTTP endpoints.
        inputs: of the last cycle.
        cpu: outcome of the last cycle for the CPUs.
        gpu: outcome of the last cycle for the GPUs.
        errors: cycles that failed, and device errors.
        actions: what the frequency controller did, by action.
        last_cycle_epoch_s: when the last cycle had measured and enforced, s since the epoch; None before the first.
    """

    def __init__(
        self,
        name: str,
        host: Host | None,
        remote: RemoteNode,
        reporter: Reporter,
        catalogue: Catalogue,
        now_epoch_s: Callable[[], float],
    ) -> None:
        self.name = name
        self.host = host
        self.remote = remote
        self.inputs: NodeInputs | None = None
        self.cpu: Outcome | None = None
        self.gpu: Outcome | None = None
        self.errors = 0
        self.actions = dict.fromkeys(DvfsAction, 0)
        self.last_cycle_epoch_s: float | None = None
        self._reporter = reporter
        self._catalogue = catalogue
        self._now_epoch_s = now_epoch_s
        self._labelled: tuple[NodeView, ResolvedHardware] | None = None

    @property
    def mode(self) -> str:
        """How the CPUs are capped, as `joulie_backend_mode` names it."""
        if self.cpu is None:
            return "none"
        return self.remote.mode if self.cpu.backend == HTTP else self.cpu.backend

    @property
    def throttle(self) -> Throttle:
        """The frequency controller in use."""
        if self.host is not None and (self.cpu is None or self.cpu.backend != HTTP):
            return self.host.cpu.throttle
        return self.remote.throttle

    @property
    def cpu_power_w(self) -> float | None:
        """Power of all CPU packages in the last cycle, W; None if it was not read."""
        seen = self.host.seen if self.host else None
        return self.remote.power_w if seen is None else seen.cpu_power.package_power_w

    @property
    def cpu_cap_w(self) -> float | None:
        """Cap of each CPU package that the NodeTwin asks for, W; None where it cannot be known."""
        if self.inputs is None or self.inputs.twin is None:
            return None
        return self.inputs.twin.cpu.in_watts(self._devices(self.inputs).cpu_limits)

    async def cycle(self, inputs: NodeInputs, now_s: float) -> None:
        """Bring the node to what the API says.

        Args:
            inputs: what the API says.
            now_s: monotonic time, s.

        Raises:
            KubernetesError: a report could not be written; limits are enforced all the same.
        """
        self.inputs = inputs
        devices, status = await self._discover(inputs, now_s)
        twin = inputs.twin or TwinView(self.name)
        self.cpu = await self._enforce_cpu(twin.cpu, devices, inputs.routing, now_s)
        self.gpu = await self._enforce_gpu(twin.gpu, devices, inputs.routing, now_s)
        self._count()
        # Before the reports: an API server that is away makes no measurement old.
        self.last_cycle_epoch_s = self._now_epoch_s()
        try:
            await self._report(inputs)
        finally:
            await self._reporter.hardware(inputs.hardware, inputs.node, status)

    async def restore(self, now_s: float) -> None:
        """Take all caps back: the agent is stopping, or the node is no longer its own."""
        inputs = self.inputs
        if inputs is None:
            # Nothing was asked for yet, but an earlier process may have left caps on this machine.
            if self.host is not None:
                await asyncio.to_thread(self.host.lift, now_s)
            return
        devices = self._devices(inputs)
        self.cpu = await self._enforce_cpu(_LIFTED, devices, inputs.routing, now_s)
        self.gpu = await self._enforce_gpu(_LIFTED, devices, inputs.routing, now_s)
        await self._report(inputs)

    async def _report(self, inputs: NodeInputs) -> None:
        if self.cpu is None or self.gpu is None or inputs.twin is None:
            return
        await self._reporter.control(inputs.twin, self.cpu, self.gpu)
        if inputs.profile is not None:
            await self._reporter.profile(inputs.profile, self.cpu, self.gpu)

    async def _discover(self, inputs: NodeInputs, now_s: float) -> tuple[_Devices, api.NodeHardwareStatus]:
        if self.host is not None:
            seen = await asyncio.to_thread(self.host.observe, now_s)
            return self._devices(inputs), found(seen, self._catalogue)
        routing = inputs.routing
        status = labelled(
            self._hardware_of(inputs.node),
            controls=(routing.cpu_control.via is Via.HTTP, routing.gpu_control.via is Via.HTTP),
            telemetry=(_measured(routing.cpu_source), _measured(routing.gpu_source)),
        )
        return self._devices(inputs), status

    def _devices(self, inputs: NodeInputs) -> _Devices:
        """What is known of the devices for enforcement over HTTP: labels, and the machine's own word before them."""
        hardware = self._hardware_of(inputs.node)
        cpu_limits = cpu_range(None, None, hardware.cpu.cap_range)
        gpu_limits = hardware.gpu.cap_range if hardware.gpu else None
        seen = self.host.seen if self.host else None
        if seen is None:
            return _Devices(cpu_limits, hardware.cpu.sockets, gpu_limits, hardware.gpu is not None)
        packages = len(seen.packages) or seen.cpu.sockets or hardware.cpu.sockets
        return _Devices(seen.cpu_range or cpu_limits, packages, gpu_limits, bool(seen.gpus) or hardware.gpu is not None)

    def _hardware_of(self, node: NodeView | None) -> ResolvedHardware:
        """What the node's labels say; computed again only when they change."""
        if node is None:
            return resolve(None, {}, {}, self._catalogue)
        if self._labelled is None or self._labelled[0] is not node:
            self._labelled = (node, resolve(None, node.labels, node.allocatable, self._catalogue))
        return self._labelled[1]

    async def _enforce_cpu(self, cap: WantedCap, devices: _Devices, routing: Routing, now_s: float) -> Outcome:
        elsewhere = routing.cpu_control.via is not Via.HOST
        if self.host is not None:
            # Also where caps go elsewhere now: what was written here before must be taken back.
            local = await asyncio.to_thread(self.host.enforce_cpu, _LIFTED if elsewhere else cap, now_s)
            if not elsewhere:
                return local
        if routing.cpu_control.via is Via.HTTP:
            return await self.remote.enforce_cpu(cap, devices.cpu_limits, devices.packages, routing, now_s)
        return _nowhere(cap, routing.cpu_control)

    async def _enforce_gpu(self, cap: WantedCap, devices: _Devices, routing: Routing, now_s: float) -> Outcome:
        elsewhere = routing.gpu_control.via is not Via.HOST
        if self.host is not None:
            local = await asyncio.to_thread(self.host.enforce_gpu, _LIFTED if elsewhere else cap)
            if not elsewhere:
                return local if devices.has_gpu or cap.lifted else no_gpu(local)
        if routing.gpu_control.via is Via.HTTP:
            return await self.remote.enforce_gpu(
                cap, devices.gpu_limits, routing.gpu_control, now_s, present=devices.has_gpu
            )
        return _nowhere(cap, routing.gpu_control)

    def _count(self) -> None:
        for outcome in (self.cpu, self.gpu):
            self.errors += outcome is not None and outcome.result is api.ControlOutcome.ERROR
        action = self.throttle.state.action
        if self.mode == "dvfs" and action is not None:
            self.actions[action] += 1


def _measured(source: Route) -> bool:
    # What this agent does not read of Prometheus, the operator does.
    return source.via in {Via.HTTP, Via.PROMETHEUS}


def _nowhere(cap: WantedCap, control: Route) -> Outcome:
    if cap.lifted:
        return restored("none", "no cap is asked for")
    if control.via is Via.NONE:
        return blocked("none", "control is switched off: its type is none")
    return blocked("none", "a pool agent has no host of its own: set control to http, with an endpoint")
