"""The operator's control loop while it leads.

A cycle is triggered by a change of the cluster, by the time at which a node's state is due, or by the interval. It
observes the cluster as a frozen snapshot, decides, applies the decision, and reports what happened. Everything else
runs beside it: power is measured and the building read in the background, workloads are classified and rescheduled at
their own pace, and what was decided is refreshed before readers would call it stale.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.events import EventRecorder, Severity
from joulie.apps.operator.apply import Problem, Publisher
from joulie.apps.operator.classifier.controller import Classifier
from joulie.apps.operator.metrics import OperatorMetrics
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.overrides import OverrideConditions
from joulie.apps.operator.power.cluster import ClusterPower
from joulie.apps.operator.power.wiring import World
from joulie.apps.operator.rescheduler.controller import Rescheduler
from joulie.apps.operator.settings import OperatorSettings
from joulie.apps.operator.telemetry import TelemetryProfiles
from joulie.domain.control import Decision, Memory, Snapshot, Transition, TransitionResult, decide
from joulie.domain.cooling_stress import CoolingStressModel
from joulie.domain.hardware import Catalogue
from joulie.domain.policy import Policy
from joulie.program.tracing import span

DEBOUNCE_S = 1.0
"""Debounce: changes arrive in bursts, so a cycle waits this long for more of them, at most the interval."""
_REFRESH_S = 1.0
_SHOWN_PROBLEMS = 3

_log = logging.getLogger(__name__)


class ControlLoop:
    """One term of leadership. It starts without memory: where nodes are is read back from their NodeTwins.

    Args:
        settings: of the program.
        catalogue: known hardware.
        world: to measure and write with.
        view: of the cluster.
        wake: set when something changed that decisions hang on.
        metrics: to count in.
        policy: which nodes run at full power.
        cooling: cooling stress of nodes.
        may_write: whether this process leads.
        now_s: s since the epoch.
    """

    def __init__(
        self,
        settings: OperatorSettings,
        catalogue: Catalogue,
        world: World,
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
        self._policy = policy
        self._cooling = cooling
        self._now_s = now_s
        client = world.client
        self._memory = Memory()
        self._decision: Decision | None = None
        self._events = EventRecorder(client, "joulie-operator", instance=settings.identity or "", clock=now_s)
        self._telemetry = TelemetryProfiles(client, view, may_write=may_write, now_s=now_s)
        self._power = ClusterPower(settings, catalogue, world, view, self._telemetry, metrics, now_s=now_s)
        self._overrides = OverrideConditions(client, view, settings, may_write=may_write, now_s=now_s)
        self._classifier = Classifier(
            client, view, settings, world.prometheus, metrics.classifier, may_write=may_write, now_s=now_s
        )
        self._rescheduler = Rescheduler(
            client,
            view,
            settings,
            metrics.rescheduler,
            self._events,
            pod_power_w=self._power.pod_power_w,
            may_write=may_write,
            now_s=now_s,
        )
        self._publisher = Publisher(
            client,
            view,
            settings,
            may_write=may_write,
            wrote=metrics.wrote,
            now_s=now_s,
            astray=wake.set,
            advice=self._rescheduler.advice,
        )

    async def run(self) -> None:
        """Lead until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._events.run())
                group.create_task(self._refresh_for_ever())
                group.create_task(self._telemetry.run())
                if self._settings.enable_classifier:
                    group.create_task(self._classifier.run())
                group.create_task(self._rescheduler.run())
                group.create_task(self._power.watch())
                group.create_task(self._reconcile_for_ever(group))
        finally:
            self._publisher.close()

    # ---- the cycle

    async def _reconcile_for_ever(self, group: asyncio.TaskGroup) -> None:
        await self._power.first_reading()
        group.create_task(self._power.run())
        while True:
            self._wake.clear()
            await self.step()
            await self._pause()

    async def _pause(self) -> None:
        """Wait for the next step: a change, a state's own moment, or the interval."""
        wait_s = self._settings.reconcile_interval_s
        due_s = None if self._decision is None else self._decision.next_due_s
        if due_s is not None:
            wait_s = min(wait_s, max(0.0, due_s - self._now_s()))
        try:
            await asyncio.wait_for(self._wake.wait(), timeout=wait_s)
        except TimeoutError:
            return
        await asyncio.sleep(min(DEBOUNCE_S, self._settings.reconcile_interval_s))

    async def step(self) -> None:
        """One cycle: observe, decide, apply, report. A failure is logged and counted; the next cycle tries again."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            with span("reconcile", nodes=len(self._view.nodes)):
                snapshot = self._observe()
                decision = self._decide(snapshot)
                self._metrics.decide_seconds.observe(loop.time() - began_s)
                problems = await self._apply(decision)
            problems += await self._overrides.publish()
            self._report(decision, problems)
            await self._telemetry.publish(self._power.failed_by_profile)
            self._metrics.reconciles.labels("error" if problems else "success").inc()
        except Exception:
            self._metrics.reconciles.labels("error").inc()
            _log.exception("step failed")
        self._metrics.reconcile_seconds.observe(loop.time() - began_s)

    def _observe(self) -> Snapshot:
        """The cluster, its power and the building now."""
        now_s = self._now_s()
        self._memory = self._memory.without(self._view.take_replaced())
        readings, facility = self._power.readings(self._view.nodes), self._power.facility()
        return self._view.snapshot(self._memory, readings, facility, now_s)

    def _decide(self, snapshot: Snapshot) -> Decision:
        """What every node is to do; those who go on from the decision are told."""
        self._decision = decision = decide(snapshot, self._memory, self._control, self._policy, self._cooling)
        self._power.decided(decision)
        self._rescheduler.decided(decision)
        self._metrics.decided(decision)
        return decision

    async def _apply(self, decision: Decision) -> list[Problem]:
        """Write the decision, and remember it of the nodes where that went well."""
        problems = await self._publisher.publish(decision)
        failed = frozenset(problem.node for problem in problems)
        self._memory = decision.memory.published(self._memory, failed, self._now_s())
        return problems

    # ---- beside the cycle

    async def _refresh_for_ever(self) -> None:
        since_s = self._now_s()
        while True:
            await asyncio.sleep(_REFRESH_S)
            until_s = self._now_s()
            try:
                self._complain(await self._publisher.refresh(since_s, until_s))
            except Exception:
                _log.exception("refresh failed")
            since_s = until_s

    def _report(self, decision: Decision, problems: Sequence[Problem]) -> None:
        """Events, logs and counts of a step."""
        for transition in decision.transitions:
            self._tell(transition)
        mistaken, self._view.ledger.mistaken = self._view.ledger.mistaken, {}
        for pod in mistaken.values():
            regarding = ObjectReference(
                kind="Pod", name=pod.name, api_version="v1", namespace=pod.namespace, uid=pod.uid
            )
            for mistake in pod.mistakes:
                self._events.emit(regarding, "Warning", "InvalidAnnotation", mistake)
        self._complain(problems)

    def _tell(self, transition: Transition) -> None:
        severity: Severity = "Normal"
        if transition.result is TransitionResult.DEFERRED:
            reason = "DrainTimedOut" if "timed out" in transition.reason else "DrainBlocked"
            severity = "Warning" if reason == "DrainTimedOut" else "Normal"
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

    def _complain(self, problems: Sequence[Problem]) -> None:
        if not problems:
            return
        self._metrics.write_errors.inc(len(problems))
        for problem in problems[:_SHOWN_PROBLEMS]:
            _log.warning("node not written", extra={"node": problem.node, "error": str(problem.error)})
        if len(problems) > _SHOWN_PROBLEMS:
            _log.warning("more nodes not written", extra={"nodes": len(problems) - _SHOWN_PROBLEMS})
