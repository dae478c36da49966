"""The loop that lets nodes sleep.

Every ten seconds it looks at nodes and pods, decides (`joulie.domain.sleep`), carries out what the node as just read
still allows, and reports. What is written on the node is the truth; a new leader begins with it. Nodes without a power
switch rest where they are, in deep idle.

Where that is asked for, nodes with few pods are emptied: by evictions only, which disruption budgets may refuse, and
never a pod that does not say that it may be restarted.

A node that is only observed is decided about as if it were acted on, by marks that are kept in memory; its NodeTwin
says in which state it would be. One that was acted on before and no longer is, since a setting or its label changed, is
opened again, also where sleep is off.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.core import Node
from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.api.v1alpha1 import PlannedSleep
from joulie.adapters.kubernetes.api.v1alpha1.power import SleepPhase
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import PatchKind
from joulie.adapters.kubernetes.events import Severity
from joulie.adapters.kubernetes.pods import pod_facts
from joulie.adapters.kubernetes.resources import NODES, PODS
from joulie.adapters.kubernetes.sleep_marks import mark_patch, sleep_mark
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.kubernetes.writer import Job, write_all
from joulie.apps.operator.facts import boot_id, keep_node
from joulie.apps.operator.leader import Leader
from joulie.apps.operator.settings.sleep import SleepMode
from joulie.apps.operator.sleep.demand import Demand
from joulie.apps.operator.sleep.keep import Keep
from joulie.apps.operator.sleep.metrics import SleepMetrics
from joulie.apps.operator.sleep.moves import Mover
from joulie.apps.operator.sleep.nodes import Fleet, Seen, is_job, is_marked, see
from joulie.apps.operator.sleep.pods import BoundPods
from joulie.apps.operator.sleep.power import NodePower, Sleeper, Switches
from joulie.apps.operator.sleep.volumes import LocalVolumes
from joulie.domain.capping.admission import PodRoom
from joulie.domain.capping.switched import NO_BUDGETS, Switched, SwitchState, WakeRoom
from joulie.domain.hardware import Catalogue
from joulie.domain.mode import Mode
from joulie.domain.sleep.commands import Action, Command, Remembered, SleepDecision, still_holds
from joulie.domain.sleep.decide import decide
from joulie.domain.sleep.snapshot import ExpectedPods, SleepNode, SleepSnapshot
from joulie.domain.sleep.states import Asleep, Awake, SleepState, Waking, mark_of
from joulie.program.leadership import NotLeadingError

_REASONS = {
    Action.EMPTY: "Emptying",
    Action.CORDON: "ClosedToSleep",
    Action.UNCORDON: "Opened",
    Action.POWER_OFF: "Asleep",
    Action.POWER_ON: "Waking",
    Action.GIVE_UP: "DoesNotWake",
}
"""Reason of the event about each action."""
_OBSERVED = {
    Action.EMPTY: "WouldEmpty",
    Action.CORDON: "WouldCloseToSleep",
    Action.UNCORDON: "WouldOpen",
    Action.POWER_OFF: "WouldSleep",
}
"""The same where nothing is done; nodes in deep idle need not be woken."""

_log = logging.getLogger(__name__)


class _Decided(NamedTuple):
    """What one look decided.

    Attributes:
        fleet: the cluster.
        nodes: the nodes as they are, by name.
        real: what is to be done.
        observed: what would be done with the nodes that are only observed; None without any.
        expected: pods that the forecast of demand expects.
    """

    fleet: Fleet
    nodes: Mapping[str, SleepNode]
    real: SleepDecision
    observed: SleepDecision | None
    expected: tuple[ExpectedPods, ...]


class NodeSleep:
    """Lets nodes sleep while this replica leads; a new instance is made each time it becomes leader.

    Args:
        leader: this replica while it leads.
        catalogue: hardware catalogue.
        metrics: metrics of sleep.
        switches: power switches of nodes; None for none.
        wake_room: returns the room that power budgets have for nodes to wake, of the sleeping ones that it is given.
        pod_room: returns the room that power budgets have for pods that are moved.
        pod_power_w: returns the measured power of pods by UID, W.
        plan_changed: called when `planned` has changed.
    """

    def __init__(
        self,
        leader: Leader,
        catalogue: Catalogue,
        metrics: SleepMetrics,
        *,
        switches: Switches | None = None,
        wake_room: Callable[[Collection[str]], WakeRoom] = lambda _: NO_BUDGETS,
        pod_room: Callable[[], PodRoom] = PodRoom,
        pod_power_w: Callable[[], Mapping[str, float]] = dict,
        plan_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._client, self._view, self._settings = leader.client, leader.view, leader.settings
        self._events, self._may_write, self._now_s = leader.events, leader.may_write, leader.now_s
        self._catalogue = catalogue
        self._metrics = metrics
        self._wake_room, self._pod_room, self._pod_power_w = wake_room, pod_room, pod_power_w
        settings = leader.settings
        forecast, consolidation = settings.forecast, settings.consolidation
        self._sleeping = replace(settings.sleeping, consolidation=replace(consolidation, boot_s=forecast.ahead_s))
        self._pods = BoundPods()
        self._mover = Mover(leader, metrics)
        self._switched: Mapping[str, Switched] = {}
        self._volumes = LocalVolumes(leader.client)
        self._demand = Demand(leader.client, settings)
        self._power = NodePower(switches, metrics, self._still_empty, may_write=leader.may_write, now_s=leader.now_s)
        # By UID of the node: another machine of the same name has another past.
        self._memory: dict[str, Remembered] = {}
        self._virtual: dict[str, Remembered] = {}
        self._planned: Mapping[str, PlannedSleep] = {}
        self._plan_changed = plan_changed
        self._told: dict[str, str] = {}

    @property
    def switched(self) -> Mapping[str, Switched]:
        """Nodes that are off, wanted or waking, by name; one that was off and is ready now is on."""
        return {
            name: one
            for name, one in self._switched.items()
            if one.state is not SwitchState.OFF or ((facts := self._view.node(name)) is not None and not facts.ready)
        }

    def planned(self, node: str) -> PlannedSleep | None:
        """How a node would sleep that is only observed; None where it would be open to pods."""
        return self._planned.get(node)

    async def run(self) -> None:
        """Look at every interval, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                if self._settings.sleep is not SleepMode.OFF:
                    group.create_task(self._volumes.run())
                group.create_task(self._keep_looking())
        finally:
            self._metrics.stood_down()
            await self._power.aclose()

    async def _keep_looking(self) -> None:
        while True:
            try:
                # At once: until the switches have been read, power budgets count nodes that are off as if they were on.
                await self.look()
            except Exception:
                _log.exception("look at nodes that may sleep failed: they stay as they are")
            await asyncio.sleep(self._settings.sleep_interval_s)

    async def look(self) -> None:
        """Look, decide, carry out and report once.

        Raises:
            NotLeadingError: the lease was lost.
        """
        if self._settings.sleep is SleepMode.OFF and not any(is_marked(facts) for _, facts in self._view.node_facts):
            self._metrics.stood_down()
            self._switched = {}
            return
        await asyncio.to_thread(self._power.reload)
        await self._demand.load(self._now_s())
        seen = see(self._view, self._volumes.all, self._now_s())
        if self._sleeping.consolidation.max_nodes:
            profiles = self._view.workload_profiles.all_effective()
            seen = replace(seen, profiles=profiles, pod_power_w=dict(self._pod_power_w()), pod_room=self._pod_room())
        # On a large cluster this takes a good part of a second, so it runs in a thread.
        room = self._wake_room([name for name, facts in seen.facts.items() if facts.sleep_mark])
        decided = await asyncio.to_thread(self._decide, seen, room)
        await self._carry_out_all(decided)
        await self._move_all(decided)
        await self._follow_switches(decided)
        self._switched = self._count_switched(decided)
        self._virtual = {} if decided.observed is None else self._imagined(decided.fleet, decided.observed)
        planned = {} if decided.observed is None else self._plan(decided.fleet, decided.observed)
        if planned != self._planned:
            self._planned = planned
            self._plan_changed()
        removable = await self._mark_removable(decided, seen.now_s)
        if self._may_write():
            await self._demand.save(seen.now_s)
        self._report(decided, removable)

    def _decide(self, seen: Seen, room: WakeRoom) -> _Decided:
        began_s = time.monotonic()
        settings, sleeping = self._settings, self._sleeping
        empties = bool(sleeping.consolidation.max_nodes) and settings.sleep is not SleepMode.OFF
        on_node = self._pods.by_node(seen) if empties else {}
        fleet = Fleet(seen, settings, self._catalogue, self._power.switches, on_node)
        nodes = fleet.as_they_are(self._memory)
        enforced = settings.sleep is SleepMode.ENFORCE
        expected = () if settings.sleep is SleepMode.OFF else self._demand.expected(seen.pods, seen.now_s)
        back = self._demand.until_back(seen.now_s) if empties else ()
        pods, ahead = (fleet.waiting, expected) if enforced else ((), ())
        real = decide(SleepSnapshot(seen.now_s, nodes, pods, ahead, room, back, seen.pod_room), sleeping)
        observed = None
        if settings.sleep is not SleepMode.OFF and any(fleet.is_observed(node.name) for node in nodes):
            imagined = fleet.as_if_acting(self._virtual, nodes)
            snapshot = SleepSnapshot(
                seen.now_s, imagined, fleet.waiting, expected, until_back=back, pod_room=seen.pod_room
            )
            observed = decide(snapshot, sleeping)
        self._metrics.decide_seconds.observe(time.monotonic() - began_s)
        return _Decided(fleet, {node.name: node for node in nodes}, real, observed, expected)

    # ---- nodes that are acted on

    async def _carry_out_all(self, decided: _Decided) -> None:
        """Carry out the commands, and remember what became of the nodes."""
        fleet, states = decided.fleet, decided.real.states
        commanded = {command.node for command in decided.real.commands}
        memory = {
            fleet.facts[name].uid: Remembered(node.mark, states[name])
            for name, node in decided.nodes.items()
            if name not in commanded
        }
        for name in commanded:
            uid = fleet.facts[name].uid
            if uid in self._memory:
                memory[uid] = self._memory[uid]
        self._memory = memory
        jobs: list[Job] = [partial(self._carry_out, command, decided) for command in decided.real.commands]
        for failure in await write_all(jobs, concurrency=self._settings.write_concurrency):
            if isinstance(failure.error, NotLeadingError):
                raise failure.error
            self._metrics.errors.inc()
            command = decided.real.commands[failure.index]
            _log.warning(
                "node stays as it is",
                extra={"node": command.node, "action": command.action.value, "error": str(failure.error)},
            )

    async def _carry_out(self, command: Command, decided: _Decided) -> None:
        """Carry out a command if the node as just read still allows it.

        Raises:
            KubernetesError: the node cannot be read, or has changed meanwhile.
            NotLeadingError: the lease was lost.
            PowerSwitchError: the switch of a node that is to sleep does not answer.
        """
        seen, state = decided.nodes[command.node], decided.real.states[command.node]
        if command.action is Action.POWER_OFF and seen.switchable:
            await self._power.check_on(command.node)
        node = await self._read(command.node)
        facts = None if node is None else keep_node(node, self._settings)
        if node is None or facts is None:
            return
        jobs = await self._count_jobs(node) if command.action in {Action.CORDON, Action.POWER_OFF} else seen.jobs
        if not still_holds(command, seen, decided.fleet.just_read(seen, facts, jobs)):
            return
        if not self._may_write():
            raise NotLeadingError("this process no longer holds the lease: not written")
        if command.action is Action.EMPTY and (refusal := await self._mover.refusal(pod.name for pod in seen.pods)):
            self._memory[facts.uid] = Remembered(seen.mark, Awake(given_up_s=self._now_s()))
            self._tell(command._replace(reason=refusal), facts.uid, "Normal", "NotEmptied")
            return
        mark = mark_of(state)
        await self._client.patch(
            NODES,
            command.node,
            mark_patch(node, mark),
            kind=PatchKind.JSON,
            field_manager=names.SLEEP_FIELD_MANAGER,
        )
        self._memory[facts.uid] = Remembered(mark, state)
        self._metrics.done(command, Mode.ENFORCE)
        severity: Severity = "Warning" if command.action is Action.GIVE_UP else "Normal"
        self._tell(command, facts.uid, severity, _REASONS[command.action])

    async def _move_all(self, decided: _Decided) -> None:
        """Evict the pods that are to go now, from nodes that are marked as it was decided.

        Raises:
            NotLeadingError: the lease was lost.
        """
        for name in {move.node: None for move in decided.real.moves}:
            node = await self._read(name)
            if node is None or sleep_mark(node) != decided.nodes[name].mark:
                continue
            for move in decided.real.moves:
                if move.node == name:
                    await self._mover.move(move)

    async def _follow_switches(self, decided: _Decided) -> None:
        """Have the switches do what the marks want, as they are now."""
        sleepers = []
        for name, node in decided.nodes.items():
            uid = decided.fleet.facts[name].uid
            remembered = self._memory.get(uid)
            if not node.switchable or remembered is None:
                continue
            stays = isinstance(remembered.state, Asleep) and not (node.keep or node.jobs)
            if stays or isinstance(remembered.state, Waking):
                sleepers.append(Sleeper(name, uid, remembered.state))
        for uid in await self._power.follow(sleepers):
            # What was told just now is not obeyed yet: looks count from here.
            mark, state = self._memory[uid]
            if isinstance(state, Asleep):
                self._memory[uid] = Remembered(mark, replace(state, looks=0))

    def _count_switched(self, decided: _Decided) -> dict[str, Switched]:
        """What power budgets count of nodes that are not simply on."""
        found = {}
        for name, node in decided.nodes.items():
            uid = decided.fleet.facts[name].uid
            remembered = self._memory.get(uid)
            if not node.switchable or remembered is None:
                continue
            state = None
            if isinstance(remembered.state, Waking):
                state = SwitchState.WAKING
            elif isinstance(remembered.state, Asleep):
                if name in decided.real.wanted:
                    state = SwitchState.WANTED
                elif self._power.is_off(uid):
                    state = SwitchState.OFF
            if state is not None:
                found[name] = Switched(state, self._settings.sleep_standby_w)
        return found

    async def _still_empty(self, name: str, state: Asleep) -> bool:
        """Whether a node, as just read, has the mark of a state and no pods, and the boot that the mark names."""
        node = await self._read(name)
        if node is None or sleep_mark(node) != mark_of(state):
            return False
        # Told to shut down in a boot that the mark does not name, it would count as back while it is on its way down.
        return boot_id(node) == state.boot != "" and await self._count_jobs(node) == 0

    async def _read(self, name: str) -> Node | None:
        """A node from the API server; None if it is gone. A list needs no right of its own."""
        found = (await self._client.list(NODES, field_selector=f"metadata.name={name}")).items
        return found[0] if found else None

    async def _count_jobs(self, node: Node) -> int:
        pods = (await self._client.list(PODS, field_selector=f"spec.nodeName={node.metadata.name}")).items
        return sum(is_job(pod_facts(pod)) for pod in pods)

    # ---- nodes that are only observed

    def _imagined(self, fleet: Fleet, decision: SleepDecision) -> dict[str, Remembered]:
        """Say what would be done with the observed nodes; returns what they would be marked with."""
        observed = {name: facts.uid for name, facts in fleet.facts.items() if fleet.is_observed(name)}
        found = {
            uid: Remembered(mark_of(decision.states[name]), decision.states[name]) for name, uid in observed.items()
        }
        for command in decision.commands:
            if command.node in observed:
                if command.action is Action.EMPTY:
                    # Its pods stay: said once, it is left alone for a while.
                    found[observed[command.node]] = Remembered("", Awake(given_up_s=self._now_s()))
                self._metrics.done(command, Mode.OBSERVE)
                self._tell(command, observed[command.node], "Normal", _OBSERVED.get(command.action, "WouldWake"))
        return found

    def _plan(self, fleet: Fleet, decision: SleepDecision) -> dict[str, PlannedSleep]:
        """The states of sleep in which the observed nodes would be."""
        now_s, pause_s = self._now_s(), self._sleeping.consolidation.pause_s
        reasons = {command.node: command.reason for command in decision.commands}
        found = {}
        for name, state in decision.states.items():
            if not fleet.is_observed(name):
                continue
            before = self._planned.get(name)
            if not isinstance(state, Awake):
                reason = reasons.get(name) or ("" if before is None else before.reason)
                found[name] = PlannedSleep(SleepPhase[type(state).__name__.upper()], rfc3339(state.since_s), reason)
                continue
            # As long as it is left alone since its pods would have been moved, unless they have gone by themselves.
            waits = state.empty_since_s is None and abs(now_s - state.given_up_s) < pause_s
            if before is not None and before.state == SleepPhase.EMPTYING and waits:
                found[name] = before
        return found

    # ---- nodes of autoscalers

    async def _mark_removable(self, decided: _Decided, now_s: float) -> int:
        """Annotate the empty nodes that autoscalers own, and only those. Returns how many there are."""
        empty_s = self._settings.sleeping.empty_s
        jobs: list[Job] = []
        removable = 0
        for name, facts in decided.fleet.facts.items():
            state = decided.real.states[name]
            owned = name in decided.fleet.acting and decided.fleet.rules[name] is Keep.AUTOSCALER
            since_s = state.empty_since_s if owned and isinstance(state, Awake) else None
            empty = since_s is not None and now_s - since_s >= empty_s
            removable += empty
            if empty != bool(facts.removable):
                jobs.append(partial(self._annotate, name, rfc3339(since_s) if empty and since_s is not None else None))
        for failure in await write_all(jobs, concurrency=self._settings.write_concurrency):
            if isinstance(failure.error, NotLeadingError):
                raise failure.error
            self._metrics.errors.inc()
            _log.warning("node not annotated", extra={"error": str(failure.error)})
        return removable

    async def _annotate(self, node: str, since: str | None) -> None:
        if not self._may_write():
            raise NotLeadingError("this process no longer holds the lease: not written")
        body = {"metadata": {"annotations": {names.REMOVABLE_ANNOTATION: since}}}
        await self._client.patch(NODES, node, body, field_manager=names.SLEEP_FIELD_MANAGER)

    # ---- reports

    def _tell(self, command: Command, uid: str, severity: Severity, reason: str) -> None:
        regarding = ObjectReference(kind="Node", name=command.node, api_version="v1", uid=uid)
        self._events.emit(regarding, severity, reason, command.reason)
        _log.info("sleep", extra={"node": command.node, "reason": reason, "why": command.reason})

    def _report(self, decided: _Decided, removable: int) -> None:
        fleet, real = decided.fleet, decided.real
        self._metrics.show(fleet.rules.values(), removable, len(real.held))
        self._metrics.show_forecast(self._demand.days, decided.expected)
        self._metrics.show_states(Mode.ENFORCE, (real.states[name] for name in fleet.acting), len(real.ahead))
        observed: Iterable[SleepState] = ()
        ahead = 0
        if decided.observed is not None:
            ahead = sum(fleet.is_observed(name) for name in decided.observed.ahead)
            observed = (decided.observed.states[name] for name in fleet.facts if fleet.is_observed(name))
        self._metrics.show_states(Mode.OBSERVE, observed, ahead)
        self._tell_pods(real)

    def _tell_pods(self, decision: SleepDecision) -> None:
        """Tell each pod that waits because nodes sleep for which, once."""
        told: dict[str, str] = {}
        for name in decision.held:
            namespace, _, pod_name = name.partition("/")
            pod = self._view.pods.get(Key(namespace, pod_name))
            if pod is None:
                continue
            why = told[pod.uid] = decision.waits[name]
            if self._told.get(pod.uid) != why:
                regarding = ObjectReference("Pod", pod_name, "v1", namespace=namespace, uid=pod.uid)
                self._events.emit(regarding, "Normal", "WaitsForNode", why)
        self._told = told
