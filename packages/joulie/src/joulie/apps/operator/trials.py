"""Runs PowerTrials: draws them, and labels their nodes with their mode block by block.

Everything that acts on nodes follows the label joulie.io/mode, so that a trial needs no other switch: agents lift caps,
the extender stops preferring, and the plan of an observed node is only reported. Which node has which label follows
from the stored draw and the clock alone; a new leader continues where the last one stopped.

A trial of deferral is drawn here, too, and guarded; the grid controller reads the draw and holds workloads by it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence, Set
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
    WorkloadDraw,
)
from joulie.adapters.kubernetes.api.v1alpha1.trial import MAX_NODES_OF_HALF, WashoutBy
from joulie.adapters.kubernetes.errors import KubernetesError, NotFoundError
from joulie.adapters.kubernetes.events import Severity
from joulie.adapters.kubernetes.power_trials import (
    RUNNING,
    bounds_of,
    protocol_of,
    stored_protocol,
    stored_workload_protocol,
    workload_protocol_of,
)
from joulie.adapters.kubernetes.resources import NODES, POWER_TRIALS
from joulie.adapters.kubernetes.times import parse_rfc3339, rfc3339
from joulie.adapters.kubernetes.writer import write_all
from joulie.apps.operator.facts import NodeFacts
from joulie.apps.operator.leader import Leader
from joulie.apps.operator.trial_metrics import TrialMetrics
from joulie.apps.operator.trial_pods import DrawnPods, TrialPods
from joulie.domain.control import ControlledNode, Decision
from joulie.domain.mode import Mode
from joulie.domain.policy import PodPhase
from joulie.domain.quantities import SECONDS_PER_HOUR, SECONDS_PER_MINUTE
from joulie.domain.runtimes import workload_of
from joulie.domain.trial.draw import TrialNode, draw
from joulie.domain.trial.guard import EndedPod, Estimate, Harm, broken, estimates, used, workload_estimates
from joulie.domain.trial.protocol import MIN_PAIRS, Arm, Judged, Protocol
from joulie.domain.trial.washout import LONGEST, washout_by_ages_s
from joulie.domain.trial.workload_protocol import WorkloadProtocol
from joulie.domain.units import InvalidQuantityError
from joulie.program.leadership import NotLeadingError

GUARD_BROKEN = "GuardBroken"
"""Reason of a trial that its guard ended, for good: a new leader has not seen what broke the bound."""
ASSIGNING = "Assigning"
"""Reason of a trial of deferral that runs."""
LOOK_S = 10.0
"""Interval of looking at the trials, s: how late a new trial or a stop is seen."""
_MIN_PAUSE_S = 0.05
_BLOCK_MIN = 360
_WASHOUT_MIN = 60
_DAYS, _DAY_S = 28, 24 * SECONDS_PER_HOUR
_Draw = TrialProtocol | WorkloadDraw | None
_MODE_OF = {Arm.TREATMENT: Mode.ENFORCE, Arm.CONTROL: Mode.OBSERVE}

_log = logging.getLogger(__name__)


class Trials:
    """Runs the trials while this replica leads; of several that are not over, the oldest.

    Args:
        leader: this replica while it leads.
        metrics: metrics of trials.
    """

    def __init__(self, leader: Leader, metrics: TrialMetrics) -> None:
        self._client, self._view, self._settings = leader.client, leader.view, leader.settings
        self._events, self._may_write, self._now_s = leader.events, leader.may_write, leader.now_s
        self._metrics = metrics
        self._decision: Decision | None = None
        self._pods: TrialPods | None = None
        self._drawn_pods: DrawnPods | None = None
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
            if status.conditions[0].status == ConditionStatus.TRUE:
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
        stored = trial.status.protocol or trial.status.workloads
        if (over := self._over(trial, stored, running)) is not None:
            return over, {}
        try:
            if trial.spec.judges == Judged.DEFERRAL:
                return self._assigning(trial, workload_protocol_of(trial) or self._drawn_workloads(trial)), {}
            protocol = protocol_of(trial) or self._drawn(trial)
            if protocol is not None:
                return self._in_force(trial, protocol)
        except (ValueError, InvalidQuantityError) as error:
            return self._status(trial, stored, False, "Invalid", str(error)), {}
        return self._status(trial, None, False, "Waiting", "the nodes are not known yet"), {}

    def _over(self, trial: PowerTrial, stored: _Draw, running: str) -> PowerTrialStatus | None:
        """The status of a trial that was ended, or that waits for another."""
        if trial.spec.stop:
            return self._status(trial, self._cut(stored), False, "Stopped", "stopped by its spec")
        ended = next((one for one in trial.status.conditions if one.reason == GUARD_BROKEN), None)
        if ended is not None:
            return self._status(trial, stored, False, GUARD_BROKEN, ended.message)
        if running:
            return self._status(trial, stored, False, "Waiting", f"trial {running} is running")
        return None

    def _assigning(self, trial: PowerTrial, protocol: WorkloadProtocol) -> PowerTrialStatus:
        """The status of a trial of deferral."""
        now_s, stored = self._now_s(), stored_workload_protocol(protocol)
        if now_s >= protocol.end_s:
            return self._status(trial, stored, False, "Completed", "all days are over")
        if now_s < protocol.start_s:
            self._boundary_s = min(self._boundary_s, protocol.start_s)
            return self._status(trial, stored, False, "Waiting", f"starts at {stored.start_time}")
        if harm := self._harm_of_waiting(trial, protocol):
            return self._status(trial, self._cut(stored), False, GUARD_BROKEN, harm)
        self._boundary_s = min(self._boundary_s, protocol.end_s)
        day = math.floor((now_s - protocol.start_s) / _DAY_S) + 1
        return self._status(trial, stored, True, ASSIGNING, f"day {day} of {trial.spec.days or _DAYS}")

    def _cut(self, stored: _Draw) -> _Draw:
        """A draw of workloads that ends now, if it has not ended yet: the grid controller draws by it until then."""
        now_s = self._now_s()
        if not isinstance(stored, WorkloadDraw) or parse_rfc3339(stored.end_time) <= now_s:
            return stored
        return msgspec.structs.replace(stored, end_time=rfc3339(max(now_s, parse_rfc3339(stored.start_time))))

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
        if self._pods is None or self._pods.protocol != protocol:
            self._pods = TrialPods(protocol)
        return self._judged(trial, self._pods, estimates)

    def _harm_of_waiting(self, trial: PowerTrial, protocol: WorkloadProtocol) -> str:
        """As `_harm`, of a trial of deferral."""
        if self._drawn_pods is None or self._drawn_pods.protocol != protocol:
            self._drawn_pods = DrawnPods(trial.metadata.name, protocol)
        return self._judged(trial, self._drawn_pods, workload_estimates)

    def _judged(
        self,
        trial: PowerTrial,
        pods: TrialPods | DrawnPods,
        estimated: Callable[[Sequence[EndedPod]], Mapping[Harm, Estimate]],
    ) -> str:
        bounds = bounds_of(trial)
        if bounds is None:
            self._metrics.forget_guard()
            return ""
        pods.look(self._view.pods.values(), self._now_s())
        found = estimated(pods.ended)
        self._metrics.show_guard((pod.arm for pod in pods.ended), used(found, bounds))
        return broken(found, bounds, Judged(trial.spec.judges or Judged.ENFORCEMENT))

    def _drawn_workloads(self, trial: PowerTrial) -> WorkloadProtocol:
        """Draw a trial of deferral: times and a seed, from which each workload's arm follows."""
        start_s = self._start_s(trial)
        return WorkloadProtocol(start_s, start_s + (trial.spec.days or _DAYS) * _DAY_S, _seed(trial))

    def _start_s(self, trial: PowerTrial) -> float:
        start_time = trial.spec.start_time
        return float(math.floor(max(self._now_s(), 0.0 if start_time is None else parse_rfc3339(start_time))))

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
        block_s = (spec.block_minutes or _BLOCK_MIN) * SECONDS_PER_MINUTE
        return draw(
            nodes,
            start_s=self._start_s(trial),
            pairs=spec.pairs or MIN_PAIRS,
            seed=_seed(trial),
            block_s=block_s,
            washout_s=self._washout_s(trial, block_s, {node.name for node in nodes}),
        )

    def _washout_s(self, trial: PowerTrial, block_s: float, nodes: Set[str]) -> float:
        """Beginning of each block that is not measured, s: as the trial says, or by the pods that run on its nodes."""
        if trial.spec.washout == WashoutBy.AUTO:
            now_s = self._now_s()
            ages = [
                (now_s - pod.running_since_s, pod.requests.cpu_cores + pod.requests.gpus)
                for pod in self._view.pods.values()
                if pod.phase is PodPhase.RUNNING
                and pod.node_name in nodes
                and pod.running_since_s is not None
                # Pods of services do not end, so no washout would be long enough for them.
                and workload_of(pod.namespace, pod.owner.kind, pod.owner.name) is not None
            ]
            found_s = washout_by_ages_s(ages, block_s)
            if found_s is not None:
                return found_s
            return min(_WASHOUT_MIN * SECONDS_PER_MINUTE, LONGEST * block_s)
        minutes = trial.spec.washout_minutes
        return (_WASHOUT_MIN if minutes is None else minutes) * SECONDS_PER_MINUTE

    def _status(self, trial: PowerTrial, drawn: _Draw, running: bool, reason: str, message: str) -> PowerTrialStatus:
        old = next((one for one in trial.status.conditions if one.type == RUNNING), None)
        status = ConditionStatus.TRUE if running else ConditionStatus.FALSE
        since = old.last_transition_time if old is not None and old.status == status else rfc3339(self._now_s())
        condition = Condition(RUNNING, status.value, reason, since, message, trial.metadata.generation or None)
        if isinstance(drawn, WorkloadDraw):
            return PowerTrialStatus(workloads=drawn, conditions=(condition,))
        return PowerTrialStatus(protocol=drawn, conditions=(condition,))

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
    """Its own seed, or one that is the same whenever the same object is drawn."""
    if trial.spec.seed is not None:
        return trial.spec.seed
    return int.from_bytes(sha256(trial.metadata.uid.encode()).digest()[:6])
