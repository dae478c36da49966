"""The operator's control loop, run while this replica leads.

A cycle is triggered by a change in the cluster, by the time at which a node's state is due to change, or by the
reconcile interval. It takes a frozen snapshot of the cluster, decides, applies the decision, and reports the result.
Background tasks run beside it: power sources and facility sensors are polled, workloads are classified and rescheduled
at intervals of their own, and NodeTwins are refreshed before readers would treat them as stale.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.events import EventRecorder, Severity
from joulie.adapters.openadr import OpenAdr
from joulie.adapters.power_switches.file import SwitchFile
from joulie.apps.operator.apply import Problem, Publisher
from joulie.apps.operator.budgets.controller import PowerBudgets
from joulie.apps.operator.classifier.controller import Classifier
from joulie.apps.operator.fallback import CoolingWithFallback, PolicyWithFallback
from joulie.apps.operator.leader import Leader
from joulie.apps.operator.limits.controller import GpuLimits
from joulie.apps.operator.limits.range_labels import RangeLabels
from joulie.apps.operator.metrics import OperatorMetrics
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.overrides import OverrideConditions
from joulie.apps.operator.power.cluster import ClusterPower
from joulie.apps.operator.power.wiring import Clients
from joulie.apps.operator.rescheduler.controller import Rescheduler
from joulie.apps.operator.settings import OperatorSettings
from joulie.apps.operator.sleep.controller import NodeSleep
from joulie.apps.operator.telemetry import TelemetryProfiles
from joulie.apps.operator.trials import Trials
from joulie.collector import spare_what_lives_long
from joulie.domain.control import Decision, Memory, Snapshot, Transition, TransitionResult, decide
from joulie.domain.cooling_stress import CoolingStressModel
from joulie.domain.drain import ActiveEco, DrainingPerformance
from joulie.domain.hardware import Catalogue
from joulie.domain.policy import Policy
from joulie.program.tracing import span
from joulie.waiting import set_within

DEBOUNCE_S = 1.0
"""Debounce, s: changes arrive in bursts, so a cycle waits this long for more of them (at most the interval)."""
_REFRESH_S = 1.0
_SHOWN_PROBLEMS = 3
_WOULD = {ActiveEco.__name__: "WouldCap", DrainingPerformance.__name__: "WouldDrain"}
"""Reason of an event about a node in observe mode, by the state that it would be in."""

_log = logging.getLogger(__name__)


class ControlLoop:
    """Runs control cycles while this replica leads; a new instance is made each time it becomes leader.

    It starts without memory: the state of nodes is restored from their NodeTwins.

    Args:
        settings: operator settings.
        catalogue: hardware catalogue.
        clients: Kubernetes, HTTP and Prometheus clients.
        view: cached view of the cluster.
        wake: set when something changed that a decision depends on.
        metrics: operator metrics.
        policy: policy that chooses the nodes that run at full power.
        cooling: model of the cooling stress of nodes.
        may_write: whether this process still holds the lease.
        now_s: current time, s since the epoch.
    """

    def __init__(
        self,
        settings: OperatorSettings,
        catalogue: Catalogue,
        clients: Clients,
        view: ClusterView,
        wake: asyncio.Event,
        metrics: OperatorMetrics,
        *,
        policy: Policy,
        cooling: CoolingStressModel,
        may_write: Callable[[], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._control = settings.control
        self._view = view
        self._wake = wake
        self._metrics = metrics
        self._policy = PolicyWithFallback(policy, settings.policy, metrics.plugin_failures.labels("policy").inc)
        self._cooling = CoolingWithFallback(cooling, metrics.plugin_failures.labels("cooling").inc)
        self._now_s = now_s
        client = clients.client
        self._memory = Memory()
        self._decision: Decision | None = None
        self._events = EventRecorder(client, "joulie-operator", instance=settings.identity or "", clock=now_s)
        leader = Leader(client, view, settings, self._events, may_write, now_s)
        self._telemetry = TelemetryProfiles(leader)
        self._power = ClusterPower(settings, catalogue, clients, view, self._telemetry, metrics.power, now_s=now_s)
        self._overrides = OverrideConditions(leader)
        self._range_labels = RangeLabels(leader)
        self._classifier = Classifier(leader, clients.prometheus, metrics.classifier)
        self._rescheduler = Rescheduler(leader, metrics.rescheduler, pod_power_w=self._power.pod_power_w)
        self._trials = Trials(leader, metrics.trials)
        self._sleep = NodeSleep(
            leader,
            catalogue,
            metrics.sleep,
            switches=_switches(settings),
            wake_room=lambda asleep: self._budgets.wake_room(asleep),  # noqa: PLW0108 (made below)
            pod_room=lambda: self._budgets.pod_room(),  # noqa: PLW0108
            pod_power_w=self._power.pod_power_w,
            plan_changed=wake.set,
        )
        self._budgets = PowerBudgets(
            leader,
            metrics.budgets,
            readings=self._power.readings,
            publish=self._publish_nodes,
            switched=lambda: self._sleep.switched,
            prometheus=clients.prometheus,
            openadr=_vtn(settings, clients, now_s),
        )
        self._gpu_limits: GpuLimits | None = None
        if settings.limits_jobs and clients.prometheus is not None:
            self._gpu_limits = GpuLimits(
                leader,
                clients.prometheus,
                lambda: self._power.index,
                metrics.gpu_limits,
                wake.set,
                self._budgets.of_node,
            )
        self._publisher = Publisher(
            leader,
            wrote=metrics.wrote,
            on_drift=wake.set,
            advice=self._rescheduler.advice,
            gpu_limits=self._gpu_limits.of_node if self._gpu_limits is not None else lambda _node: (),
            ceiling=self._budgets.of_node,
            budgets=self._budgets.covering,
            sleep=self._sleep.planned,
        )

    async def run(self) -> None:
        """Run the control loop and its background tasks until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._events.run())
                group.create_task(self._refresh_loop())
                group.create_task(self._telemetry.run())
                if self._settings.enable_classifier:
                    group.create_task(self._classifier.run())
                group.create_task(self._rescheduler.run())
                group.create_task(self._trials.run())
                group.create_task(self._sleep.run())
                if self._gpu_limits is not None:
                    group.create_task(self._gpu_limits.run())
                group.create_task(self._power.watch())
                group.create_task(self._reconcile_loop(group))
        finally:
            self._publisher.close()

    # ---- the cycle

    async def _reconcile_loop(self, group: asyncio.TaskGroup) -> None:
        await self._power.first_reading()
        group.create_task(self._power.run())
        # Before the first cycle, which would otherwise lift the ceilings of the leader before.
        self._budgets.begin()
        group.create_task(self._budgets.run())
        self._wake.clear()
        await self.step()
        # What cycles keep from one to the next: decisions, desired states and their comparisons.
        spare_what_lives_long()
        while True:
            await self._pause()
            self._wake.clear()
            await self.step()

    async def _pause(self) -> None:
        """Wait until the next cycle: after a change, when a node's state is due to change, or after the interval."""
        wait_s = self._settings.reconcile_interval_s
        due_s = None if self._decision is None else self._decision.next_due_s
        if due_s is not None:
            wait_s = min(wait_s, max(0.0, due_s - self._now_s()))
        if await set_within(self._wake, wait_s):
            await asyncio.sleep(min(DEBOUNCE_S, self._settings.reconcile_interval_s))

    async def step(self) -> None:
        """Run one cycle: observe, decide, apply, report. A failure is logged and counted; the next cycle retries."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            with span("reconcile", nodes=len(self._view.nodes)):
                snapshot = self._observe()
                decision = self._decide(snapshot)
                self._metrics.decide_seconds.observe(loop.time() - began_s)
                problems = await self._apply(decision)
            problems += await self._overrides.publish()
            problems += await self._range_labels.publish()
            self._report(decision, problems)
            await self._telemetry.publish(self._power.failed_by_profile)
            self._metrics.reconciles.labels("error" if problems else "success").inc()
        except Exception:
            self._metrics.reconciles.labels("error").inc()
            _log.exception("step failed")
        self._metrics.reconcile_seconds.observe(loop.time() - began_s)

    def _observe(self) -> Snapshot:
        """Take a snapshot of the cluster, with the latest power and facility readings."""
        now_s = self._now_s()
        self._memory = self._memory.without(self._view.take_replaced())
        readings, facility = self._power.readings(self._view.nodes), self._power.facility()
        snapshot = self._view.snapshot(self._memory, readings, facility, now_s)
        return replace(snapshot, ceilings=self._budgets.ceilings)

    def _decide(self, snapshot: Snapshot) -> Decision:
        """Decide every node's state and caps, and pass the decision on to power, rescheduler and metrics."""
        racks_w = {**self._control.rack_capacity_w, **self._budgets.rack_limits_w}
        control = replace(self._control, rack_capacity_w=racks_w)
        self._decision = decision = decide(snapshot, self._memory, control, self._policy, self._cooling)
        self._power.decided(decision)
        self._rescheduler.decided(decision)
        self._trials.decided(decision)
        if self._gpu_limits is not None:
            self._gpu_limits.decided(decision)
        self._metrics.decided(decision)
        return decision

    async def _apply(self, decision: Decision) -> list[Problem]:
        """Write the decision, and remember it for the nodes whose writes succeeded."""
        problems = await self._publisher.publish(decision)
        failed = frozenset(problem.node for problem in problems)
        self._memory = decision.memory.published(self._memory, failed, self._now_s())
        return problems

    # ---- beside the cycle

    async def _publish_nodes(self, nodes: Iterable[str]) -> Collection[str]:
        """Write these nodes, whose ceilings changed, at once, and decide them anew soon.

        Returns those that could not be written.
        """
        nodes = tuple(nodes)
        if self._gpu_limits is not None:
            self._gpu_limits.bounded(nodes)
        problems = await self._publisher.publish_nodes(nodes)
        self._report_problems(problems)
        self._wake.set()
        return {problem.node for problem in problems}

    async def _refresh_loop(self) -> None:
        since_s = self._now_s()
        while True:
            await asyncio.sleep(_REFRESH_S)
            until_s = self._now_s()
            try:
                self._report_problems(await self._publisher.refresh(since_s, until_s))
            except Exception:
                _log.exception("refresh failed")
            since_s = until_s

    def _report(self, decision: Decision, problems: Sequence[Problem]) -> None:
        """Emit the events, logs and metrics of a cycle."""
        for transition in decision.transitions:
            self._report_transition(transition)
        invalid_pods, self._view.ledger.invalid_pods = self._view.ledger.invalid_pods, {}
        for pod in invalid_pods.values():
            for mistake in pod.mistakes:
                self._events.emit(pod.reference, "Warning", "InvalidAnnotation", mistake)
        self._report_problems(problems)

    def _report_transition(self, transition: Transition) -> None:
        severity: Severity = "Normal"
        if transition.result is TransitionResult.OBSERVED:
            reason = _WOULD.get(transition.to_state, "WouldLift")
        elif transition.result is TransitionResult.DEFERRED:
            reason = "DrainTimedOut" if "timed out" in transition.reason else "DrainBlocked"
            severity = "Warning" if reason == "DrainTimedOut" else "Normal"
        elif (transition.from_state, transition.to_state) == (ActiveEco.__name__, DrainingPerformance.__name__):
            # Pods that need full power reached a node that was closed to them.
            reason, severity = "CapsLifted", "Warning"
        else:
            reason = "PowerStateChanged"
        facts = self._view.node(transition.node)
        regarding = ObjectReference(kind="Node", name=transition.node, api_version="v1", uid=facts.uid if facts else "")
        message = f"{transition.from_state} -> {transition.to_state}: {transition.reason}"
        self._events.emit(regarding, severity, reason, message)
        _log.info(
            "transition",
            extra={
                "node": transition.node,
                "from_state": transition.from_state,
                "to_state": transition.to_state,
                "result": transition.result.value,
                "reason": transition.reason,
            },
        )

    def _report_problems(self, problems: Sequence[Problem]) -> None:
        if not problems:
            return
        self._metrics.write_errors.inc(len(problems))
        for problem in problems[:_SHOWN_PROBLEMS]:
            _log.warning("cannot write node", extra={"node": problem.node, "error": str(problem.error)})
        if len(problems) > _SHOWN_PROBLEMS:
            _log.warning("cannot write more nodes", extra={"nodes": len(problems) - _SHOWN_PROBLEMS})


def _switches(settings: OperatorSettings) -> SwitchFile | None:
    """The power switches in the settings."""
    return None if settings.sleep_switches is None else SwitchFile(settings.sleep_switches, settings.sleep_switches_ca)


def _vtn(settings: OperatorSettings, clients: Clients, now_s: Callable[[], float]) -> OpenAdr | None:
    """The client of the VTN in the settings."""
    if not settings.openadr_url:
        return None
    return OpenAdr(
        settings.openadr_url,
        settings.openadr_program,
        clients.http,
        now_s,
        settings.openadr_token_url,
        settings.openadr_client_id,
        settings.openadr_secret_file,
    )
