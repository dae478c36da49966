"""The loop that keeps PowerBudgets.

Every two seconds it looks at all budgets and nodes, decides the limits (`domain.capping.budgets`), has those that
changed written at once, and reports. What it decides are ceilings: the caps of a node are those of its policy, where
they are lower. A new leader finds the limits in force in the NodeTwins.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.api.v1alpha1 import PowerBudget, PowerBudgetStatus
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.errors import ApiError, KubernetesError, NotFoundError
from joulie.adapters.kubernetes.events import Severity
from joulie.adapters.kubernetes.resources import POWER_BUDGETS
from joulie.adapters.kubernetes.times import time_or_none
from joulie.adapters.openadr import OpenAdr
from joulie.adapters.prometheus import Prometheus
from joulie.apps.operator.budgets.events import POLL_S, BudgetEvents
from joulie.apps.operator.budgets.metrics import PowerBudgetMetrics
from joulie.apps.operator.budgets.nodes import LimitsOfNodes
from joulie.apps.operator.budgets.status import ENFORCED, INVALID, status_matches, status_of, told
from joulie.apps.operator.budgets.stored import StoredBudget, budgets_in_force
from joulie.apps.operator.leader import Leader
from joulie.domain.capping.admission import UNLIMITED_ROOM, PodRoom, room_for_pods
from joulie.domain.capping.budgets import RESPONSE_S, Budget, BudgetMemory, BudgetNodes, decide_budgets
from joulie.domain.capping.budgets import BudgetDecision as Decision
from joulie.domain.capping.node_limits import NodeLimits, PowerCeiling
from joulie.domain.capping.switched import NO_BUDGETS, UNKNOWN_ROOM, Switched, WakeRoom, wake_room, with_switched
from joulie.domain.control import ControlledNode
from joulie.domain.control_power import SourceReadings, choose_power
from joulie.program.leadership import NotLeadingError

_REFRESH_S = 60.0
"""Age at which a status is written again, although nothing changed, s."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Decided:
    """A decision, and what it was made upon.

    Attributes:
        budgets: in force, by name.
        as_if_on: all nodes as if they were on.
        switched: what was counted of nodes that are off or waking, by name.
        nodes: all nodes, with what was counted of those.
        decision: upon `budgets` and `nodes`.
        rooms_w: what budgets have left for pods, W, by name; those that hold none back are absent.
        covering: names of the budgets in force that cover each node.
    """

    budgets: Mapping[str, Budget]
    as_if_on: BudgetNodes
    switched: Mapping[str, Switched]
    nodes: BudgetNodes
    decision: Decision
    rooms_w: Mapping[str, float]
    covering: Mapping[str, tuple[str, ...]]

    def wake_room(self, asleep: Collection[str]) -> WakeRoom:
        """The room that the decision left for nodes to wake: what is wanted since has none yet."""
        return wake_room(asleep, self.as_if_on, self.switched, list(self.budgets.values()), self.decision)

    def pod_room(self) -> PodRoom:
        """The room for pods that are moved; none under a budget that curtails."""
        limited = self.nodes.steerable & (self.decision.limit_w < self.nodes.full_w)
        left_w = {
            name: 0.0 if limited[self.budgets[name].nodes].any() else room_w for name, room_w in self.rooms_w.items()
        }
        return PodRoom(left_w, self.covering)


class _NoBudgets:
    """No budget is in force, and no limit of one is left in the NodeTwins."""

    def pod_room(self) -> PodRoom:
        """Pods may go where they like."""
        return UNLIMITED_ROOM

    def wake_room(self, asleep: Collection[str]) -> WakeRoom:
        """Nodes may wake as they like."""
        del asleep
        return NO_BUDGETS


class PowerBudgets:
    """Keeps PowerBudgets while this replica leads; a new instance is made each time it becomes leader.

    Args:
        leader: this replica while it leads.
        metrics: metrics of power budgets.
        readings: returns the power readings of nodes, most trusted first.
        publish: writes the limits of these nodes at once, and says which could not be written.
        switched: returns the nodes that are off or waking.
        prometheus: Prometheus that has the signals that budgets follow, and their power of past days; None without.
        openadr: client of a VTN whose events reduce budgets; None without.
    """

    def __init__(
        self,
        leader: Leader,
        metrics: PowerBudgetMetrics,
        *,
        readings: Callable[[tuple[ControlledNode, ...]], Sequence[SourceReadings]],
        publish: Callable[[Iterable[str]], Awaitable[Collection[str]]],
        switched: Callable[[], Mapping[str, Switched]] = dict,
        prometheus: Prometheus | None = None,
        openadr: OpenAdr | None = None,
    ) -> None:
        self._client, self._view, self._settings = leader.client, leader.view, leader.settings
        self._events, self._may_write, self._now_s = leader.events, leader.may_write, leader.now_s
        self._metrics = metrics
        self._readings = readings
        self._publish = publish
        self._switched = switched
        self._limits = LimitsOfNodes(self._view, self._settings.power_budget_other_pct / 100.0)
        self._asked: dict[str, PowerCeiling | None] = {}
        self._unwritten: frozenset[str] = frozenset()
        self._covering: Mapping[str, tuple[str, ...]] = {}
        self._memory: Mapping[str, BudgetMemory] = {}
        self._demand_response = BudgetEvents(prometheus, openadr, self._settings, self._now_s)
        self._stored: Mapping[str, StoredBudget] = {}
        self._decided: _Decided | _NoBudgets | None = None
        """By the last look; None before the first one, and after one that failed."""

    @property
    def ceilings(self) -> Mapping[str, PowerCeiling]:
        """Upper bounds of the caps of nodes; nodes without any are absent."""
        return {node: ceiling for node, ceiling in self._asked.items() if ceiling is not None}

    @property
    def rack_limits_w(self) -> Mapping[str, float]:
        """Power capacity of racks that have a budget of their own, W: the lowest."""
        found: dict[str, float] = {}
        for name, one in self._stored.items():
            stored = self._view.power_budgets.get(Key("", name))
            if stored is not None and list(stored.spec.node_selector) == [names.RACK_LABEL]:
                rack = stored.spec.node_selector[names.RACK_LABEL]
                found[rack] = min(one.budget.limit_w, found.get(rack, one.budget.limit_w))
        return found

    def of_node(self, node: str) -> PowerCeiling | None:
        """Upper bound of a node's caps."""
        return self._asked.get(node)

    def covering(self, node: str) -> tuple[str, ...]:
        """Names of the budgets in force that cover a node."""
        return self._covering.get(node, ())

    def wake_room(self, asleep: Collection[str]) -> WakeRoom:
        """The room that the last decision left for nodes to wake.

        Args:
            asleep: names of the nodes that sleep.
        """
        if self._decided is None:
            return UNKNOWN_ROOM if self._view.power_budgets else NO_BUDGETS
        return self._decided.wake_room(asleep)

    def pod_room(self) -> PodRoom:
        """The room that the last decision left for pods that are moved."""
        if self._decided is None:
            return PodRoom(known=not self._view.power_budgets)
        return self._decided.pod_room()

    async def run(self) -> None:
        """Keep the budgets until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._poll())
            group.create_task(self._keep())

    async def _poll(self) -> None:
        while True:
            stored = {key.name: one for key, one in self._view.power_budgets.items()}
            try:
                await self._demand_response.poll(stored, self._stored)
            except Exception:
                _log.exception("signals and events of power budgets not read")
            await asyncio.sleep(POLL_S)

    async def _keep(self) -> None:
        try:
            while True:
                await asyncio.sleep(self._settings.power_budget_interval_s)
                try:
                    await self.look()
                except KubernetesError as error:
                    _log.warning("power budgets not reported", extra={"error": str(error)})
                except Exception:
                    _log.exception("power budgets not decided: the limits in force stay")
        finally:
            self._metrics.stood_down()

    def begin(self) -> None:
        """Decide before the first cycle, which writes it; what it fails to write is written by the next look."""
        self._unwritten = frozenset(self.decide())

    async def look(self) -> None:
        """Decide once, have the limits that changed written, and report.

        Raises:
            KubernetesError: a status cannot be written.
            NotLeadingError: the lease was lost.
        """
        unwritten = self._unwritten.union(self.decide())
        if unwritten:
            # Those that fail are written in the next look: the operator's own cycle may be a minute away.
            self._unwritten = unwritten
            self._unwritten = frozenset(await self._publish(unwritten))
        await self._report()

    def decide(self) -> Sequence[str]:
        """Decide the ceilings of all nodes. Returns the nodes whose ceiling or whose budgets changed."""
        began_s = time.monotonic()
        now_s = self._now_s()
        self._decided = None
        self._stored = budgets_in_force(self._view, self._demand_response.signal, now_s, self._demand_response.asked)
        budgets = {name: one.budget for name, one in self._stored.items()}
        if not budgets and not self._asked:
            self._decided, self._covering = _NoBudgets(), {}
            self._metrics.stood_down()
            return ()
        nodes = self._view.nodes
        readings = self._readings(nodes)
        power = choose_power(readings, len(nodes), now_s, self._settings.power_stale_s)
        response_s = min((one.response_s for one in budgets.values()), default=RESPONSE_S)
        as_if_on, limits = self._limits.look(nodes, self._asked, power, response_s, now_s, readings)
        switched = self._switched()
        seen = with_switched(as_if_on, switched)
        decision = decide_budgets(now_s, seen, list(budgets.values()), self._memory)
        self._memory = decision.memory
        rooms_w = room_for_pods(seen, list(budgets.values()))
        covering = _covering(budgets, seen)
        self._decided = _Decided(budgets, as_if_on, switched, seen, decision, rooms_w, covering)
        self._demand_response.sampled(self._stored, decision.outcomes)
        before, covered = self._asked, self._covering
        self._asked = self._ceilings(budgets, seen, limits, decision)
        self._covering = covering
        self._metrics.show(self._stored, seen, decision.outcomes, rooms_w, now_s)
        self._metrics.decide_seconds.observe(time.monotonic() - began_s)
        return [
            node
            for node in before.keys() | self._asked.keys() | covered.keys() | self._covering.keys()
            if before.get(node) != self._asked.get(node) or covered.get(node) != self._covering.get(node)
        ]

    def _ceilings(
        self,
        budgets: Mapping[str, Budget],
        nodes: BudgetNodes,
        limits: Sequence[NodeLimits | None],
        decision: Decision,
    ) -> dict[str, PowerCeiling | None]:
        """Ceilings of the nodes that a budget in force covers; one that does not answer keeps what it was asked."""
        covered = {index for one in budgets.values() if one.enforced for index in one.nodes.tolist()}
        found: dict[str, PowerCeiling | None] = {}
        for index in sorted(covered):
            name, node = nodes.names[index], limits[index]
            if nodes.steerable[index] and node is not None:
                found[name] = node.ceiling(float(decision.limit_w[index]))
            elif name in self._asked or node is None:
                found[name] = self._asked.get(name)
            else:  # a leader before this one asked it
                found[name] = node.as_before
        return found

    # ---- reports

    async def _report(self) -> None:
        decided, now_s = self._decided, self._now_s()
        if not isinstance(decided, _Decided):
            return
        for key, stored in list(self._view.power_budgets.items()):
            budget = decided.budgets.get(key.name)
            if budget is None:
                continue
            one, room_w = self._stored[key.name], decided.rooms_w.get(key.name)
            status = status_of(
                stored, budget, decided.decision.outcomes[key.name], decided.nodes, now_s, room_w, one.invalid
            )
            achieved = self._demand_response.statuses(stored, one)
            status = msgspec.structs.replace(status, limit_reason=one.limit.reason, reductions=achieved)
            updated_s = time_or_none(stored.status.last_updated)
            fresh = updated_s is not None and 0.0 <= now_s - updated_s < _REFRESH_S
            if not (fresh and status_matches(status, stored.status)):
                await self._write_if_accepted(stored, status)

    async def _write_if_accepted(self, stored: PowerBudget, status: PowerBudgetStatus) -> None:
        """Write a status. One that is refused is tried again at the next look, and costs no other its own."""
        try:
            await self._write(stored, status)
        except ApiError as error:
            if error.status >= HTTPStatus.TOO_MANY_REQUESTS:  # the others would fail as well, each after a while
                raise
            what = {"budget": stored.metadata.name, "error": str(error)}
            _log.warning("power budget not reported", extra=what)

    async def _write(self, stored: PowerBudget, status: PowerBudgetStatus) -> None:
        if not self._may_write():
            raise NotLeadingError("this process no longer holds the lease: not written")
        name, manager = stored.metadata.name, names.POWER_BUDGET_FIELD_MANAGER
        body = {"metadata": {"uid": stored.metadata.uid}, "status": status}
        try:
            await self._client.apply(POWER_BUDGETS, name, body, field_manager=manager, subresource="status")
        except NotFoundError:
            return
        new, old = (
            next((one for one in conditions if one.type == ENFORCED), None)
            for conditions in (status.conditions, stored.status.conditions)
        )
        if new is not None and (old is None or told(old) != told(new)):
            severity: Severity = "Warning" if new.reason in {"Infeasible", INVALID} else "Normal"
            level = logging.WARNING if severity == "Warning" else logging.INFO
            _log.log(level, "power budget", extra={"budget": name, "reason": new.reason, "why": new.message})
            regarding = ObjectReference(POWER_BUDGETS.kind, name, POWER_BUDGETS.api_version, uid=stored.metadata.uid)
            self._events.emit(regarding, severity, f"PowerBudget{new.reason}", new.message)


def _covering(budgets: Mapping[str, Budget], nodes: BudgetNodes) -> dict[str, tuple[str, ...]]:
    """Names of the budgets in force that cover each node, in order; nodes without any are absent."""
    found: dict[int, list[str]] = {}
    for name, budget in sorted(budgets.items()):
        for index in budget.nodes.tolist() if budget.enforced else ():
            found.setdefault(index, []).append(name)
    return {nodes.names[index]: tuple(names_) for index, names_ in found.items()}
