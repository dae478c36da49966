"""Runs PowerTrials: draws them, and labels their nodes with their mode block by block.

Everything that acts on nodes follows the label joulie.io/mode, so that a trial needs no other switch: agents lift caps,
the extender stops preferring, and the plan of an observed node is only reported. Which node has which label follows
from the stored draw and the clock alone; a new leader continues where the last one stopped.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256

import msgspec

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.api.v1alpha1 import (
    Condition,
    ConditionStatus,
    PowerTrial,
    PowerTrialStatus,
    TrialProtocol,
)
from joulie.adapters.kubernetes.api.v1alpha1.trial import MAX_NODES_OF_HALF
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError, NotFoundError
from joulie.adapters.kubernetes.events import EventRecorder, Severity
from joulie.adapters.kubernetes.power_trials import RUNNING, bounds_of, protocol_of, stored_protocol
from joulie.adapters.kubernetes.resources import NODES, POWER_TRIALS
from joulie.adapters.kubernetes.times import parse_rfc3339, rfc3339
from joulie.adapters.kubernetes.writer import write_all
from joulie.apps.operator.facts import NodeFacts
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.settings import OperatorSettings
from joulie.apps.operator.trial_metrics import TrialMetrics
from joulie.apps.operator.trial_pods import TrialPods
from joulie.domain.control import ControlledNode, Decision
from joulie.domain.mode import Mode
from joulie.domain.quantities import SECONDS_PER_MINUTE
from joulie.domain.trial.draw import TrialNode, draw
from joulie.domain.trial.guard import broken, estimates, used
from joulie.domain.trial.protocol import MIN_PAIRS, Arm, Protocol
from joulie.domain.units import InvalidQuantityError
from joulie.program.leadership import NotLeadingError

GUARD_BROKEN = "GuardBroken"
"""Reason of a trial that its guard ended, for good: a new leader has not seen what broke the bound."""
LOOK_S = 10.0
"""Interval of looking at the trials, s: how late a new trial or a stop is seen."""
_MIN_PAUSE_S = 0.05
_BLOCK_MIN = 360
_WASHOUT_MIN = 60
_MODE_OF = {Arm.TREATMENT: Mode.ENFORCE, Arm.CONTROL: Mode.OBSERVE}

_log = logging.getLogger(__name__)


class Trials:
    """Runs the trials while this replica leads; of several that are not over, the oldest.

    Args:
        client: Kubernetes client.
        view: cached view of the nodes.
        settings: write concurrency.
        events: recorder of events on trials.
        metrics: metrics of trials.
        may_write: whether this process still holds the lease; checked before every write.
        now_s: current time, s since the epoch.
    """

    def __init__(
        self,
        client: KubeClient,
        view: ClusterView,
        settings: OperatorSettings,
        events: EventRecorder,
        metrics: TrialMetrics,
        *,
        may_write: Callable[[], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._client = client
        self._view = view
        self._settings = settings
        self._events = events
        self._metrics = metrics
        self._may_write = may_write
        self._now_s = now_s
        self._decision: Decision | None = None
        self._pods: TrialPods | None = None
        self._boundary_s = math.inf

    def decided(self, decision: Decision) -> None:
        """Take the latest decision: nodes are matched by their power in it."""
        self._decision = decision

    async def run(self) -> None:
        """Look at the trials every few seconds and when a block begins, until cancelled."""
        while True:
            await asyncio.sleep(self.pause_s())
            try:
                await self.look()
            except KubernetesError as error:
                _log.warning("trials not run", extra={"error": str(error)})
            except Exception:
                _log.exception("trials not run")

    def pause_s(self) -> float:
        """Time until the next look, s: a block that begins earlier is not left to the regular look."""
        until_s = self._boundary_s - self._now_s()
        return max(until_s, _MIN_PAUSE_S) if 0.0 < until_s < LOOK_S else LOOK_S

    async def look(self) -> None:
        """Draw trials that are new, label nodes as the block in force says, and report the course.

        Raises:
            KubernetesError: the trials cannot be read, or a status cannot be written.
            NotLeadingError: the lease was lost.
        """
        trials = await self._trials()
        self._boundary_s = math.inf
        arms: Mapping[str, Arm] = {}
        running, block, blocks = "", 0, 0
        reasons = []
        for trial in sorted(trials, key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.name)):
            status, wanted = self._course(trial, running)
            if wanted:
                running, arms, block = trial.metadata.name, wanted, status.block or 0
                blocks = 0 if status.protocol is None else 2 * len(status.protocol.order)
            reasons.append(status.conditions[0].reason)
            await self._report(trial, status)
        self._metrics.show(reasons, block, blocks, arms)
        await self._label(running, arms)

    async def _trials(self) -> Sequence[PowerTrial]:
        try:
            return (await self._client.list(POWER_TRIALS)).items
        except NotFoundError:  # the definition is not installed
            return ()

    # ---- one trial

    def _course(self, trial: PowerTrial, running: str) -> tuple[PowerTrialStatus, Mapping[str, Arm]]:
        """A trial's status, and the arms of its nodes while one of its blocks is in force."""
        if trial.spec.stop:
            return self._status(trial, trial.status.protocol, False, "Stopped", "stopped by its spec"), {}
        ended = next((one for one in trial.status.conditions if one.reason == GUARD_BROKEN), None)
        if ended is not None:
            return self._status(trial, trial.status.protocol, False, GUARD_BROKEN, ended.message), {}
        if running:
            return self._status(trial, trial.status.protocol, False, "Waiting", f"trial {running} is running"), {}
        try:
            protocol = protocol_of(trial) or self._drawn(trial)
            if protocol is not None:
                return self._in_force(trial, protocol)
        except (ValueError, InvalidQuantityError) as error:
            return self._status(trial, trial.status.protocol, False, "Invalid", str(error)), {}
        return self._status(trial, None, False, "Waiting", "the nodes are not known yet"), {}

    def _in_force(self, trial: PowerTrial, protocol: Protocol) -> tuple[PowerTrialStatus, Mapping[str, Arm]]:
        now_s, stored = self._now_s(), stored_protocol(protocol)
        block = protocol.block_at(now_s)
        if block is None:
            if now_s >= protocol.end_s:
                return self._status(trial, stored, False, "Completed", "all blocks are over"), {}
            self._boundary_s = min(self._boundary_s, protocol.start_s)
            return self._status(trial, stored, False, "Waiting", f"starts at {stored.start_time}"), {}
        if harm := self._harm(trial, protocol):
            return self._status(trial, stored, False, GUARD_BROKEN, harm), {}
        self._boundary_s = min(self._boundary_s, block.end_s)
        status = self._status(trial, stored, True, "InBlock", f"block {block.index + 1} of {2 * len(protocol.order)}")
        status = msgspec.structs.replace(status, block=block.index + 1, treated=block.treated.value)
        return status, protocol.arms_at(now_s)

    def _harm(self, trial: PowerTrial, protocol: Protocol) -> str:
        """Which bound of the guard is broken, in words; empty if none is.

        Raises:
            InvalidQuantityError: a bound is out of range.
        """
        bounds = bounds_of(trial)
        if bounds is None:
            self._metrics.forget_guard()
            return ""
        if self._pods is None or self._pods.protocol != protocol:
            self._pods = TrialPods(protocol)
        self._pods.look(self._view.pods.values(), self._now_s())
        found = estimates(self._pods.ended)
        self._metrics.show_guard((pod.arm for pod in self._pods.ended), used(found, bounds))
        return broken(found, bounds)

    def _drawn(self, trial: PowerTrial) -> Protocol | None:
        """Draw a trial from the nodes as they are now; None without a decision, which says how loaded they are."""
        decision, spec = self._decision, trial.spec
        if decision is None:
            return None
        nodes = [
            TrialNode(one.node.name, _hardware(one.node), float(power_w))
            for one, power_w in zip(decision.nodes, decision.power.power_w, strict=True)
            if (facts := self._view.node(one.node.name)) is not None and _takes_part(trial, facts)
        ]
        if len(nodes) > 2 * MAX_NODES_OF_HALF:
            limit = 2 * MAX_NODES_OF_HALF
            raise InvalidQuantityError("nodes", f"select at most {limit} by nodeSelector, it selects {len(nodes)}")
        start_s = 0.0 if spec.start_time is None else parse_rfc3339(spec.start_time)
        return draw(
            nodes,
            start_s=math.floor(max(self._now_s(), start_s)),
            pairs=spec.pairs or MIN_PAIRS,
            seed=_seed(trial) if spec.seed is None else spec.seed,
            block_s=(spec.block_minutes or _BLOCK_MIN) * SECONDS_PER_MINUTE,
            washout_s=(_WASHOUT_MIN if spec.washout_minutes is None else spec.washout_minutes) * SECONDS_PER_MINUTE,
        )

    def _status(
        self, trial: PowerTrial, protocol: TrialProtocol | None, running: bool, reason: str, message: str
    ) -> PowerTrialStatus:
        old = next((one for one in trial.status.conditions if one.type == RUNNING), None)
        status = ConditionStatus.TRUE if running else ConditionStatus.FALSE
        since = old.last_transition_time if old is not None and old.status == status else rfc3339(self._now_s())
        condition = Condition(RUNNING, status.value, reason, since, message, trial.metadata.generation or None)
        return PowerTrialStatus(protocol=protocol, conditions=(condition,))

    async def _report(self, trial: PowerTrial, status: PowerTrialStatus) -> None:
        if status == trial.status:
            return
        self._check_lease()
        await self._client.apply(
            POWER_TRIALS,
            trial.metadata.name,
            {"status": status},
            field_manager=names.TRIAL_FIELD_MANAGER,
            subresource="status",
        )
        condition = status.conditions[0]
        _log.info("trial", extra={"trial": trial.metadata.name, "reason": condition.reason, "why": condition.message})
        if condition.reason != next((one.reason for one in trial.status.conditions), None):
            regarding = ObjectReference(
                POWER_TRIALS.kind, trial.metadata.name, POWER_TRIALS.api_version, uid=trial.metadata.uid
            )
            severity: Severity = "Warning" if condition.reason in ("Invalid", GUARD_BROKEN) else "Normal"
            self._events.emit(regarding, severity, f"Trial{condition.reason}", condition.message)

    # ---- nodes

    async def _label(self, trial: str, arms: Mapping[str, Arm]) -> None:
        """Label the nodes of the running trial, and take the labels from those of every other."""
        changes: list[tuple[str, dict[str, str | None]]] = []
        for node, facts in self._view.node_facts:
            has = facts.labels.get(names.TRIAL_LABEL)
            if node in arms:
                if has is None and names.MODE_LABEL in facts.labels:
                    continue  # somebody took it out of the trial
                wanted: dict[str, str | None] = {
                    names.MODE_LABEL: _MODE_OF[arms[node]].value,
                    names.TRIAL_LABEL: trial,
                }
                if {key: facts.labels.get(key) for key in wanted} != wanted:
                    changes.append((node, wanted))
            elif has is not None:
                changes.append((node, {names.MODE_LABEL: None, names.TRIAL_LABEL: None}))
        jobs = [partial(self._patch, node, labels) for node, labels in changes]
        failures = await write_all(jobs, concurrency=self._settings.write_concurrency)
        for failure in failures:
            _log.warning("node not labelled", extra={"node": changes[failure.index][0], "error": str(failure.error)})

    async def _patch(self, node: str, labels: Mapping[str, str | None]) -> None:
        self._check_lease()
        try:
            await self._client.patch(
                NODES, node, {"metadata": {"labels": labels}}, field_manager=names.TRIAL_FIELD_MANAGER
            )
        except NotFoundError:
            return

    def _check_lease(self) -> None:
        if not self._may_write():
            raise NotLeadingError("this process no longer holds the lease: not written")


def _takes_part(trial: PowerTrial, facts: NodeFacts) -> bool:
    if not facts.eligible or names.MODE_LABEL in facts.labels:
        return False
    return all(facts.labels.get(key) == value for key, value in trial.spec.node_selector.items())


def _hardware(node: ControlledNode) -> str:
    """What both halves must have alike."""
    *_, cores, gpus = node.limits
    return f"{node.hardware.family}, {cores:g} cores, {gpus:g} GPUs"


def _seed(trial: PowerTrial) -> int:
    """A seed that is the same whenever the same object is drawn."""
    return int.from_bytes(sha256(trial.metadata.uid.encode()).digest()[:6])
