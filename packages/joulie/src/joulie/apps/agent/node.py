"""The reconcile cycle of one node: observe, enforce the caps of its NodeTwin, report results, publish NodeHardware."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from joulie.adapters.gpu.pci import NVIDIA
from joulie.adapters.kubernetes.api import v1alpha1 as api
from joulie.adapters.kubernetes.control_reports import RESTORED
from joulie.adapters.kubernetes.names import MODE_LABEL
from joulie.adapters.kubernetes.times import parse_rfc3339
from joulie.apps.agent.discovery import hardware_from_labels, hardware_of_host
from joulie.apps.agent.gpu_limits import GpuHolders, LimitLease, gpu_statuses, max_sm_clocks, with_gpu_limits
from joulie.apps.agent.gpu_thread import GpuThread
from joulie.apps.agent.host import Host
from joulie.apps.agent.limits import LIFTED
from joulie.apps.agent.outcome import Outcome, blocked, failed, no_gpu, reported_limits, restored, unconfirmed
from joulie.apps.agent.remote import BACKEND as HTTP
from joulie.apps.agent.remote import RemoteNode
from joulie.apps.agent.reporting import ControlReport, Reporter
from joulie.apps.agent.routing import Route, Routing, Via
from joulie.apps.agent.throttle import Throttle
from joulie.apps.agent.views import HardwareView, NodeView, TwinView
from joulie.domain.actuation import WantedCap, cpu_range
from joulie.domain.dvfs import DvfsAction
from joulie.domain.gpu_allocations import Holding
from joulie.domain.gpu_maintenance import gpu_hold_reason
from joulie.domain.hardware import CapRange, Catalogue
from joulie.domain.hardware.resolve import ResolvedHardware, resolve
from joulie.domain.mode import Mode, mode_of
from joulie.domain.resource_quantity import QuantityError

_log = logging.getLogger(__name__)

_GPU_PATIENCE_S = 2.0
"""Time that a cycle waits for its GPU work after the CPUs are capped, s."""

_GPU_RESTORE_S = 5.0
"""Time that an agent that stops waits for earlier GPU work to end, and for its limits to be lifted, s each."""

_GPU_LATE_S = 60.0
"""Age up to which the outcome of GPU work that ended late counts, s."""


@dataclass(frozen=True)
class NodeInputs:
    """Cached API objects of a node at the start of a cycle.

    Attributes:
        node: the Node; None if it was deleted.
        twin: its NodeTwin; None means that no cap is requested.
        hardware: its stored NodeHardware; None if there is none.
        routing: backends of the node.
        profile: the TelemetryProfile that control results are reported to; None without one.
    """

    node: NodeView | None
    twin: TwinView | None
    hardware: HardwareView | None
    routing: Routing
    profile: api.TelemetryProfile | None = None


@dataclass(frozen=True)
class _Devices:
    """Cap ranges and number of devices, as enforcement over HTTP needs them.

    Attributes:
        cpu_limits: cap range of one package; None if unknown.
        packages: number of CPU packages.
        gpu_limits: cap range of one GPU; None if unknown.
        has_gpu: whether the node has GPUs.
    """

    cpu_limits: CapRange | None
    packages: int
    gpu_limits: CapRange | None
    has_gpu: bool


@dataclass(frozen=True)
class _AskedOfGpus:
    """What a cycle asks of the host's GPUs.

    Attributes:
        cap: cap of each GPU.
        observes: whether to write nothing but earlier limits.
        held: why GPU drivers must not be used; None if they may be.
        clocks_hz: GPUs whose SM clock is to be locked, and to what, Hz.
    """

    cap: WantedCap
    observes: bool
    held: str | None
    clocks_hz: tuple[tuple[str, float], ...] = ()


class NodeAgent:
    """Reconciles one node.

    Attributes:
        name: node name.
        host: devices of the machine that the agent runs on; None for a remote node.
        remote: HTTP endpoints of the node.
        inputs: inputs of the last cycle; None before the first.
        cpu: CPU outcome of the last cycle; None before the first.
        gpu: GPU outcome of the last cycle; None before the first.
        errors: number of failed cycles and device errors.
        actions: number of frequency controller actions, by action.
        last_cycle_epoch_s: end of measuring and enforcing in the last cycle, s since the epoch; None before the first.
    """

    def __init__(
        self,
        name: str,
        host: Host | None,
        remote: RemoteNode,
        reporter: Reporter,
        catalogue: Catalogue,
        now_epoch_s: Callable[[], float],
        default_mode: Mode = Mode.ENFORCE,
        holders: GpuHolders | None = None,
        gpu_limit_lease_s: float = 300.0,
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
        self._labelled_hardware: tuple[NodeView, ResolvedHardware] | None = None
        self._gpu_thread = GpuThread()
        self._default_mode = default_mode
        self._observes = default_mode is Mode.OBSERVE
        self._holders = holders
        self._asked_for_holders = False
        self._held: Mapping[str, Holding] = {}
        self._clocks_hz: tuple[tuple[str, float], ...] = ()
        self._limit_lease = LimitLease(gpu_limit_lease_s)

    @property
    def mode(self) -> str:
        """Backend that caps the CPUs, as in the label of `joulie_backend_mode`."""
        if self.cpu is None or self._observes:
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
        """Total power of all CPU packages in the last cycle, W; None without a sample."""
        seen = self.host.observation if self.host else None
        return self.remote.power_w if seen is None else seen.cpu_power.package_power_w

    @property
    def cpu_cap_w(self) -> float | None:
        """Cap of each CPU package requested by the NodeTwin, W; None without a cap or if it cannot be computed."""
        if self.inputs is None or self.inputs.twin is None:
            return None
        return self.inputs.twin.cpu.in_watts(self._devices(self.inputs).cpu_limits)

    async def cycle(self, inputs: NodeInputs, now_s: float) -> None:
        """Reconcile the node once.

        Args:
            inputs: cached API objects of the node.
            now_s: monotonic time, s.

        Raises:
            KubernetesError: a report could not be written; the caps are enforced nevertheless.
        """
        if inputs.node is not None:  # a node that is gone keeps the mode that it had
            label = inputs.node.labels.get(MODE_LABEL)
            self._observes = mode_of(label, self._default_mode) is Mode.OBSERVE
        twin = inputs.twin or TwinView(self.name)
        if self.inputs is None and self.host is not None and twin.reported is not None:
            _recall(self.host, twin.reported)
        self.inputs = inputs
        gpu_cap = await self._gpu_cap(twin, inputs.routing, now_s)
        self._start_gpu(gpu_cap, inputs, now_s)
        if self.host is not None:
            await asyncio.to_thread(self.host.observe_cpu, now_s)
        self.cpu = await self._enforce_cpu(twin.cpu, self._devices(inputs), inputs.routing, now_s)
        self.gpu = await self._enforce_gpu(gpu_cap, inputs, now_s, _GPU_PATIENCE_S)
        if not self._asked_for_holders and inputs.routing.gpu_control.via is Via.HOST:
            # GPUs are first seen in this cycle: a report without holders would have limits of jobs withdrawn.
            await self._read_holders()
        status = self._hardware(inputs)
        self._count()
        # Before the reports: an unreachable API server does not make the measurement stale.
        self.last_cycle_epoch_s = self._now_epoch_s()
        try:
            await self._report(inputs, inputs.twin.generation if inputs.twin else None)
        finally:
            await self._reporter.hardware(inputs.hardware, inputs.node, status)

    @property
    def is_restored(self) -> bool:
        """Whether the last outcomes say that no cap is in force; also before the first cycle."""
        return all(
            outcome is None
            or outcome.result in {api.ControlOutcome.NONE, api.ControlOutcome.OBSERVED}
            or outcome.message.startswith(RESTORED)
            for outcome in (self.cpu, self.gpu)
        ) and (self.host is None or not any(clock.result for clock in self.host.gpu_clocks.values()))

    async def restore(self, now_s: float) -> None:
        """Lift all caps: the agent is stopping, or the node left its scope."""
        inputs = self.inputs
        if inputs is None:
            # No cycle ran yet, but an earlier process may have left caps on this machine.
            if self.host is not None:
                self._gpu_thread.start(partial(_lift_gpus, self.host), LIFTED, now_s)
                await asyncio.to_thread(self.host.lift_cpu, now_s)
                await self._gpu_thread.outcome(LIFTED, _GPU_RESTORE_S, now_s)
            return
        self._clocks_hz = ()
        started = self._start_gpu(LIFTED, inputs, now_s)
        self.cpu = await self._enforce_cpu(LIFTED, self._devices(inputs), inputs.routing, now_s)
        if not started and await self._gpu_thread.idle(_GPU_RESTORE_S):
            self._start_gpu(LIFTED, inputs, now_s)
        self.gpu = await self._enforce_gpu(LIFTED, inputs, now_s, _GPU_RESTORE_S)
        await self._report(inputs, None)

    async def _report(self, inputs: NodeInputs, generation: int | None) -> None:
        """Report the outcomes; `generation` is that of the NodeTwin enforced, None where none was."""
        if self.cpu is None or self.gpu is None or inputs.twin is None:
            return
        results = ControlReport(self.cpu, self.gpu, generation, self._gpu_statuses(inputs.routing))
        await self._reporter.control(inputs.twin, results)
        if inputs.profile is not None:
            await self._reporter.profile(inputs.profile, results)

    async def _gpu_cap(self, twin: TwinView, routing: Routing, now_s: float) -> WantedCap:
        """The cap of the GPUs, with the limits of single ones that are valid now."""
        via = routing.gpu_control.via
        local = self.host is not None and via is Via.HOST
        self._clocks_hz = ()
        if not local and via is not Via.HTTP:
            return twin.gpu
        if local:
            await self._read_holders()
        if not self._limit_lease.holds(twin.last_updated, now_s):
            return twin.gpu
        self._clocks_hz = max_sm_clocks(twin, self._held) if local else ()
        return with_gpu_limits(twin.gpu, twin, self._held if local else {})

    async def _read_holders(self) -> None:
        """Ask the kubelet who holds the GPUs that were seen last; nobody is asked where there are none."""
        seen = self.host.observation if self.host else None
        if self._holders is not None and seen is not None and seen.gpus:
            await self._holders.read()
            self._held = self._holders.of(seen.gpus, complete=seen.gpus_indexed)
            self._asked_for_holders = True

    def _gpu_statuses(self, routing: Routing) -> tuple[api.GpuStatus, ...]:
        if routing.gpu_control.via is Via.HTTP:
            return self.remote.gpu_statuses
        seen = self.host.observation if self.host else None
        if seen is None or self.host is None or routing.gpu_control.via is not Via.HOST:
            return ()
        return gpu_statuses(seen.gpus, self._held, self.host.gpu_records, self.host.gpu_clocks)

    def _hardware(self, inputs: NodeInputs) -> api.NodeHardwareStatus:
        """Status of the NodeHardware: the host's devices, else those of the node's labels."""
        seen = self.host.observation if self.host else None
        if seen is not None:
            return hardware_of_host(seen, self._catalogue, inputs.hardware.status.gpu if inputs.hardware else None)
        routing = inputs.routing
        return hardware_from_labels(
            self._hardware_of(inputs.node),
            controls=(routing.cpu_control.via is Via.HTTP, routing.gpu_control.via is Via.HTTP),
            telemetry=(_measured(routing.cpu_source), _measured(routing.gpu_source)),
        )

    def _devices(self, inputs: NodeInputs) -> _Devices:
        """Cap ranges and device numbers, as observed on the host where available, else from the node's labels."""
        hardware = self._hardware_of(inputs.node)
        cpu_limits = cpu_range(None, None, hardware.cpu.cap_range)
        gpu_limits = hardware.gpu.cap_range if hardware.gpu else None
        seen = self.host.observation if self.host else None
        if seen is None:
            return _Devices(cpu_limits, hardware.cpu.sockets, gpu_limits, hardware.gpu is not None)
        packages = seen.limited_sockets or seen.cpu.sockets or hardware.cpu.sockets
        has_gpu = seen.gpus_exist or hardware.gpu is not None
        return _Devices(seen.cpu_range or cpu_limits, packages, gpu_limits, has_gpu)

    def _hardware_of(self, node: NodeView | None) -> ResolvedHardware:
        """Hardware resolved from the node's labels; cached until the Node changes."""
        if node is None:
            return resolve(None, {}, {}, self._catalogue)
        if self._labelled_hardware is None or self._labelled_hardware[0] is not node:
            hardware = resolve(None, node.labels, node.allocatable, self._catalogue, capacity_cpus=node.capacity_cpus)
            self._labelled_hardware = (node, hardware)
        return self._labelled_hardware[1]

    async def _enforce_cpu(self, cap: WantedCap, devices: _Devices, routing: Routing, now_s: float) -> Outcome:
        elsewhere = routing.cpu_control.via is not Via.HOST
        if self.host is not None:
            # If control has moved to another backend, limits written here earlier must still be lifted.
            # In observe mode likewise; without earlier limits, lifting writes nothing.
            local = await asyncio.to_thread(
                self.host.enforce_cpu, LIFTED if elsewhere or self._observes else cap, now_s
            )
            if not elsewhere:
                return await asyncio.to_thread(self.host.plan_cpu, cap) if self._only_observed(local) else local
        if routing.cpu_control.via is Via.HTTP:
            if self._observes:
                return await self.remote.observe_cpu(
                    cap, devices.cpu_limits, devices.packages, routing, now_s, self._reported.cpu
                )
            return await self.remote.enforce_cpu(cap, devices.cpu_limits, devices.packages, routing, now_s)
        return _no_backend(cap, routing.cpu_control)

    def _start_gpu(self, cap: WantedCap, inputs: NodeInputs, now_s: float) -> bool:
        """Start the host's GPU work of this cycle; False if that of an earlier cycle is still running."""
        if self.host is None:
            return True
        asked = self._asked_of_gpus(cap, inputs)
        return self._gpu_thread.start(partial(_gpu_turn, self.host, asked, now_s), asked, now_s)

    def _asked_of_gpus(self, cap: WantedCap, inputs: NodeInputs) -> _AskedOfGpus:
        # If control has moved to another backend, limits written here earlier must still be lifted.
        local = cap if inputs.routing.gpu_control.via is Via.HOST else LIFTED
        held = gpu_hold_reason(inputs.node.labels) if inputs.node else None
        return _AskedOfGpus(local, self._observes, held, () if self._observes else self._clocks_hz)

    async def _enforce_gpu(self, cap: WantedCap, inputs: NodeInputs, now_s: float, patience_s: float) -> Outcome:
        control = inputs.routing.gpu_control
        if self.host is not None:
            local = await self._gpu_outcome(self._asked_of_gpus(cap, inputs), now_s, patience_s)
            if control.via is Via.HOST:
                absent = local.result is api.ControlOutcome.BLOCKED and not self._devices(inputs).has_gpu
                return no_gpu(local) if absent else local
        if control.via is Via.HTTP:
            devices = self._devices(inputs)
            if self._observes:
                return await self.remote.observe_gpu(
                    cap, devices.gpu_limits, control, now_s, self._reported.gpu, present=devices.has_gpu
                )
            return await self.remote.enforce_gpu(cap, devices.gpu_limits, control, now_s, present=devices.has_gpu)
        return _no_backend(cap, control)

    def _only_observed(self, lifted: Outcome) -> bool:
        """Whether there is nothing but to observe: in that mode, once earlier limits are lifted."""
        return self._observes and lifted.result is api.ControlOutcome.APPLIED

    @property
    def _reported(self) -> api.ControlStatus:
        """What the agent, or one before it, reported last."""
        twin = self.inputs.twin if self.inputs else None
        return (twin.reported if twin else None) or api.ControlStatus()

    async def _gpu_outcome(self, asked: _AskedOfGpus, now_s: float, patience_s: float) -> Outcome:
        backend = self.gpu.backend if self.gpu else "none"
        try:
            outcome = await self._gpu_thread.outcome(asked, patience_s, now_s - _GPU_LATE_S)
        except Exception as error:
            _log.exception("GPU work failed", extra={"node": self.name})
            return failed(backend, f"GPU work failed: {error}")
        return outcome or unconfirmed(backend, "the GPU driver has not answered yet; nothing waits for it")

    def _count(self) -> None:
        for outcome in (self.cpu, self.gpu):
            self.errors += outcome is not None and outcome.result is api.ControlOutcome.ERROR
        action = self.throttle.state.action
        if self.mode == "dvfs" and action is not None:
            self.actions[action] += 1


def _recall(host: Host, reported: api.ControlStatus) -> None:
    """Tell the host which caps the last report says are in force, which it needs if its saved limits were lost."""
    for result in (reported.cpu, reported.gpu):
        for found in reported_limits(result) if result else ():
            with suppress(QuantityError):
                host.recall(found, parse_rfc3339((result and result.updated_at) or ""))


def _gpu_turn(host: Host, asked: _AskedOfGpus, now_s: float) -> Outcome:
    """The host's GPU work of one cycle."""
    host.hold_gpus(asked.held, of=NVIDIA)  # the labels are those of its operator
    host.observe_gpu(now_s)
    outcome = host.enforce_gpu(LIFTED if asked.observes else asked.cap)
    host.enforce_clocks(dict(asked.clocks_hz))
    only_observed = asked.observes and outcome.result is api.ControlOutcome.APPLIED
    return host.plan_gpu(asked.cap) if only_observed else outcome


def _lift_gpus(host: Host) -> Outcome:
    """Lift what an earlier process may have left."""
    outcome = host.enforce_gpu(LIFTED)
    host.enforce_clocks({})
    return outcome


def _measured(source: Route) -> bool:
    # Power in Prometheus that this agent does not query is read by the operator.
    return source.via in {Via.HTTP, Via.PROMETHEUS}


def _no_backend(cap: WantedCap, control: Route) -> Outcome:
    if cap.lifted:
        return restored("none", "no cap requested")
    if control.via is Via.NONE:
        return blocked("none", "control is disabled: its type is none")
    return blocked("none", "host control is not available in pool mode: set control to http, with an endpoint")
