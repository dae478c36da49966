"""Writing decisions to the cluster as NodeTwins and node labels.

Only what differs from what is stored is written, with bounded concurrency; a failed write affects its own node only.
NodeTwins carry a timestamp that readers check, so each is refreshed once per period even if nothing changed. Refreshes
are spread over the period by a hash of the node name: a steady cluster sees no bursts and no other writes.

Cycles and refreshes write at the same time. Writes to one node take turns, and each computes what to write from the
latest decision when its turn comes: however long it was queued, it never overwrites anything newer.
"""

from __future__ import annotations

import asyncio
import hashlib
import weakref
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import msgspec

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.v1alpha1 import GpuLimit, NodeTwin, NodeTwinStatus, PlannedSleep
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import PatchKind
from joulie.adapters.kubernetes.control_reports import requests_cap
from joulie.adapters.kubernetes.errors import ConflictError, NotFoundError
from joulie.adapters.kubernetes.resources import NODE_TWINS, NODES
from joulie.adapters.kubernetes.writer import write_all
from joulie.apps.operator.comparison import NOTHING, Comparison, Need, Stored, labels_match, need_of, updated_s
from joulie.apps.operator.desired import (
    DesiredNode,
    Grounds,
    desired_node,
    node_labels,
    released,
    spec_matches,
    status_matches,
    with_timestamps,
)
from joulie.apps.operator.facts import NodeFacts
from joulie.apps.operator.leader import Leader
from joulie.apps.operator.rescheduler.advice import NO_ADVICE, Advice
from joulie.domain.capping.node_limits import PowerCeiling
from joulie.domain.control import Decision
from joulie.program.leadership import NotLeadingError

NODES_PER_YIELD = 200
"""Nodes compared before yielding to the event loop."""
_OVERDUE = 0.8
"""Age, as a share of the staleness threshold, from which a cycle refreshes a twin that the spread refreshes missed."""
_WATCH_PATIENCE_S = 5.0
"""Maximum time to wait for the watch to show what was written; labels then wait for the next cycle."""
_AGENT_FIELD = "control_status"
"""Status field that agents own."""

_NodeJob = tuple[str, Callable[[], Awaitable[None]]]
"""Node name, and a write to that node."""


class WriteKind(StrEnum):
    """Kind of write: value of the metric's ``kind`` label."""

    SPEC = "spec"
    STATUS = "status"
    REFRESH = "refresh"
    """A status of which only the timestamp is new."""
    LABELS = "labels"
    DELETE = "delete"


@dataclass(frozen=True)
class Problem:
    """A failed write to a node.

    Attributes:
        node: node name.
        error: the exception.
    """

    node: str
    error: Exception


class Publisher:
    """Writes NodeTwins and node labels.

    Args:
        leader: this replica while it leads.
        wrote: called after each write.
        on_drift: called when another client changed a spec or label that this process decides.
        advice: returns the recommendations for a node.
        gpu_limits: returns the limits of a node's single GPUs.
        ceiling: returns the upper bound of a node's caps by power budgets.
        budgets: returns the names of the power budgets in force that cover a node.
        sleep: returns how a node would sleep whose sleep is only observed.
    """

    def __init__(
        self,
        leader: Leader,
        *,
        wrote: Callable[[WriteKind], None],
        on_drift: Callable[[], None] = lambda: None,
        advice: Callable[[str], Advice] = lambda _node: NO_ADVICE,
        gpu_limits: Callable[[str], tuple[GpuLimit, ...]] = lambda _node: (),
        ceiling: Callable[[str], PowerCeiling | None] = lambda _node: None,
        budgets: Callable[[str], tuple[str, ...]] = lambda _node: (),
        sleep: Callable[[str], PlannedSleep | None] = lambda _node: None,
    ) -> None:
        self._client, self._view = leader.client, leader.view
        self._settings, self._may_write, self._now_s = leader.settings, leader.may_write, leader.now_s
        self._wrote = wrote
        self._on_drift = on_drift
        self._advice = advice
        self._gpu_limits = gpu_limits
        self._ceiling = ceiling
        self._budgets = budgets
        self._sleep = sleep
        self._decision: Decision | None = None
        self._index: dict[str, int] = {}
        self._twin_keys: dict[str, Key] = {}
        self._refreshes = _RefreshPlan((), 1.0)
        # Objects as returned by our own writes, until the watch has caught up.
        self._written: dict[Key, NodeTwin] = {}
        self._comparison = Comparison()
        self._twin_seen = asyncio.Event()
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        leader.view.watchers.append(self)

    def close(self) -> None:
        """Stop listening to changes in the cluster."""
        self._view.watchers.remove(self)

    async def publish(self, decision: Decision) -> list[Problem]:
        """Apply a decision to the cluster. Returns the nodes whose writes failed; the next cycle retries them."""
        self.adopt(decision)
        jobs: list[_NodeJob] = []
        openings: list[str] = []
        for first in range(0, len(decision.nodes), NODES_PER_YIELD):
            for wanted, need in self.needs(decision, first):
                if need.labels and wanted.accepts_performance:
                    openings.append(wanted.node)
                if any(self._before_opening(wanted, need)):
                    jobs.append((wanted.node, partial(self._write_node, wanted.node)))
            await asyncio.sleep(0)
        jobs += self._orphans()
        problems = await self._run(jobs)
        closed = {problem.node for problem in problems}
        return problems + await self._open([node for node in openings if node not in closed])

    def adopt(self, decision: Decision) -> None:
        """Compare what the watch reports with this decision from now on, and refresh by it."""
        node_names = tuple(node.node.name for node in decision.nodes)
        self._decision = decision
        if node_names != tuple(self._index):
            self._index = {name: index for index, name in enumerate(node_names)}
            self._twin_keys = {name: _twin_key(name) for name in node_names}
        self._refreshes = self._refreshes.with_nodes(node_names, self._settings.twin_staleness_s / 2.0)
        self._comparison.keep(self._index)

    def needs(self, decision: Decision, first: int) -> list[tuple[DesiredNode, Need]]:
        """What has to be written for the next `NODES_PER_YIELD` nodes of a decision, from index `first` on.

        Returns:
            Desired states, without their numbers, and what of them is to be written; nodes without any are left out.
        """
        nodes = [node.node.name for node in decision.nodes[first : first + NODES_PER_YIELD]]
        grounds = [Grounds.of(decision, index, *self._asked(node)) for index, node in enumerate(nodes, first)]
        stored = [self._stored(node) for node in nodes]
        found = self._comparison.needs(grounds, stored, decision.twin, first, **self._due())
        return [(wanted, need) for wanted, need in found if need != NOTHING]

    async def publish_nodes(self, nodes: Iterable[str]) -> list[Problem]:
        """Write these nodes at once, by the last decision and the newest ceilings; nothing before the first."""
        return await self._run([(name, partial(self._write_node, name)) for name in nodes if name in self._index])

    async def refresh(self, since_s: float, until_s: float) -> list[Problem]:
        """Refresh the timestamp of the twins whose refresh is due in ``(since_s, until_s]``.

        Does nothing if the last decision is too old to be presented as current.
        """
        decision = self._decision
        if decision is None or until_s - decision.now_s > self._settings.twin_staleness_s / 2.0:
            return []
        due = (decision.nodes[index].node.name for index in self._refreshes.due(since_s, until_s))
        return await self._run([(name, partial(self._refresh_node, name)) for name in due if self._may_refresh(name)])

    # ---- writes by other clients

    def twin_changed(self, key: Key, new: NodeTwin | None) -> None:
        """Forget our remembered write (the watch has caught up), and check whether another client changed the spec."""
        self._written.pop(key, None)
        self._twin_seen.set()
        if new is None:
            self._on_drift()
            return
        wanted = self._words(new.spec.node_name)
        if wanted is not None and not spec_matches(wanted, new):
            self._on_drift()

    def labels_changed(self, node: str, facts: NodeFacts) -> None:
        """Check whether a node's labels are still as decided."""
        wanted = self._words(node)
        if wanted is not None and not labels_match(wanted, facts):
            self._on_drift()

    def _wanted(self, node: str) -> DesiredNode | None:
        index = self._index.get(node)
        if index is None or self._decision is None:
            return None
        return desired_node(self._decision, index, *self._asked(node))

    def _words(self, node: str) -> DesiredNode | None:
        """The desired state of a node, without its numbers; it is compared with what is stored on the way."""
        index = self._index.get(node)
        if index is None or self._decision is None:
            return None
        return self._comparison.wanted(Grounds.of(self._decision, index, *self._asked(node)), self._stored(node))

    def _asked(
        self, node: str
    ) -> tuple[Advice, tuple[GpuLimit, ...], PowerCeiling | None, tuple[str, ...], PlannedSleep | None]:
        """What others than the decision ask of a node."""
        return self._advice(node), self._gpu_limits(node), self._ceiling(node), self._budgets(node), self._sleep(node)

    # ---- what to write

    def _need(self, wanted: DesiredNode) -> Need:
        return need_of(wanted, self._stored(wanted.node), **self._due())

    def _stored(self, node: str) -> Stored:
        return Stored(self._view.node(node), self._twin(node))

    def _due(self) -> dict[str, float]:
        """When a status is written whatever it says: arguments of `need_of`."""
        return {"now_s": self._now_s(), "overdue_s": _OVERDUE * self._settings.twin_staleness_s}

    def _orphans(self) -> Iterator[_NodeJob]:
        """Deletions of twins whose node is gone, and writes to nodes that are no longer selected."""
        for node, known in self._view.node_facts:
            pending = names.RESTORE_PENDING_LABEL in known.labels
            if pending and not known.managed and self._twin(node) is None:
                # Its agent, which stays until the restore is confirmed, reports in the twin.
                yield node, partial(self._release, node)
        for key, twin in self._view.twins.items():
            node = twin.spec.node_name
            facts = self._view.node(node)
            if facts is None:
                yield node, partial(self._delete, key, twin.metadata.uid)
            elif not facts.managed and key.name == names.object_name(node) and any(self._need(released(node))):
                yield node, partial(self._release, node)

    @staticmethod
    def _before_opening(wanted: DesiredNode, need: Need) -> Need:
        """What to write at once: the label that opens a node to performance pods comes last, see `_open`."""
        return need._replace(labels=False) if wanted.accepts_performance else need

    def _may_refresh(self, node: str) -> bool:
        """Whether the timestamp of a node's twin may be renewed: only if the status still agrees with the decision.

        Changes are left to the cycle.
        """
        wanted, twin = self._wanted(node), self._twin(node)
        young_s = self._settings.twin_staleness_s / 4.0
        if wanted is None or twin is None or abs(self._now_s() - updated_s(twin)) < young_s:
            return False
        return status_matches(wanted.status, twin.status)

    def _twin(self, node: str) -> NodeTwin | None:
        key = self._twin_keys.get(node) or _twin_key(node)
        return self._written.get(key) or self._view.twins.get(key)

    # ---- writing

    async def _run(self, jobs: Sequence[_NodeJob]) -> list[Problem]:
        failures = await write_all([job for _, job in jobs], concurrency=self._settings.write_concurrency)
        return [Problem(jobs[failure.index][0], failure.error) for failure in failures]

    def _turn(self, node: str) -> asyncio.Lock:
        """The lock that writes to a node take turns by; it lasts as long as somebody holds or awaits it."""
        return self._turns.setdefault(node, asyncio.Lock())

    async def _write_node(self, node: str) -> None:
        async with self._turn(node):
            wanted = self._wanted(node)
            if wanted is not None:
                await self._write(wanted, self._before_opening(wanted, self._need(wanted)))

    async def _refresh_node(self, node: str) -> None:
        async with self._turn(node):
            wanted = self._wanted(node)
            if wanted is not None and self._may_refresh(node):
                await self._apply_status(wanted, WriteKind.REFRESH)

    async def _release(self, node: str) -> None:
        async with self._turn(node):
            facts = self._view.node(node)
            if facts is not None and not facts.managed:
                wanted = released(node)
                await self._write(wanted, self._need(wanted))

    async def _open(self, nodes: Sequence[str]) -> list[Problem]:
        """Write the labels that open nodes to performance pods, once the watch shows their new twins.

        The label makes pending pods schedulable there, and the scheduler calls the extenders at once, which see twins
        when this process does. Nodes whose twins do not appear in time are left to the next cycle.
        """
        if not nodes:
            return []
        try:
            async with asyncio.timeout(_WATCH_PATIENCE_S):
                while not all(map(self._is_shown, nodes)):
                    self._twin_seen.clear()
                    await self._twin_seen.wait()
        except TimeoutError:
            self._on_drift()
        return await self._run([(node, partial(self._open_node, node)) for node in nodes if self._is_shown(node)])

    async def _open_node(self, node: str) -> None:
        async with self._turn(node):
            wanted = self._wanted(node)
            if wanted is not None and wanted.accepts_performance and self._need(wanted).labels:
                await self._label(wanted)

    def _is_shown(self, node: str) -> bool:
        """Whether the watch shows a node as open to performance pods; also if nobody has to wait for it any more."""
        wanted, twin = self._words(node), self._view.twin_of(node)
        if wanted is None or self._view.node(node) is None:
            return True
        return twin is not None and twin.status.schedulable_class == wanted.status.schedulable_class

    async def _write(self, wanted: DesiredNode, need: Need) -> None:
        """Write one node in a safe order: raise power before opening the node, close it before lowering power."""
        # A twin that does not exist yet needs its spec before its status.
        if wanted.accepts_performance or self._twin(wanted.node) is None:
            order = (WriteKind.SPEC, WriteKind.STATUS, WriteKind.LABELS)
        else:
            order = (WriteKind.LABELS, WriteKind.STATUS, WriteKind.SPEC)
        if need.pending and not (need.labels and order[0] is WriteKind.LABELS):
            await self._patch_labels(wanted.node, _pending_label(wanted))
        for kind in order:
            match kind:
                case WriteKind.SPEC if need.spec:
                    await self._apply_spec(wanted)
                case WriteKind.STATUS if need.status:
                    await self._apply_status(wanted, WriteKind.STATUS)
                case WriteKind.LABELS if need.labels:
                    await self._label(wanted, pending=need.pending and order[0] is WriteKind.LABELS)

    async def _label(self, wanted: DesiredNode, *, pending: bool = False) -> None:
        """Write a node's labels, with that of a pending restore if it has to be changed."""
        labels = node_labels(wanted, self._settings.power_profile_label, names.DRAINING_LABEL)
        await self._patch_labels(wanted.node, {**labels, **(_pending_label(wanted) if pending else {})})

    async def _patch_labels(self, node: str, labels: Mapping[str, str | None]) -> None:
        self._check_lease()
        # A merge patch removes a label whoever set it, and never recreates a deleted node (server-side apply would).
        patch = {"metadata": {"labels": labels}}
        try:
            await self._client.patch(NODES, node, patch, field_manager=names.OPERATOR_FIELD_MANAGER)
        except NotFoundError:
            return
        self._wrote(WriteKind.LABELS)

    async def _apply_spec(self, wanted: DesiredNode) -> None:
        self._check_lease()
        facts = self._view.node(wanted.node)
        if facts is None:
            return
        owner = {"apiVersion": "v1", "kind": "Node", "name": wanted.node, "uid": facts.uid}
        body = {"metadata": {"ownerReferences": [owner]}, "spec": wanted.spec}
        name = names.object_name(wanted.node)
        manager = names.OPERATOR_FIELD_MANAGER
        twin = await self._client.apply(NODE_TWINS, name, body, field_manager=manager)
        if not spec_matches(wanted, twin):
            # Server-side apply leaves fields of other managers alone: a cap added by hand would stay for ever.
            replacement = [{"op": "replace", "path": "/spec", "value": msgspec.to_builtins(wanted.spec)}]
            twin = await self._client.patch(NODE_TWINS, name, replacement, kind=PatchKind.JSON, field_manager=manager)
        self._remember_written(twin)
        self._wrote(WriteKind.SPEC)

    async def _apply_status(self, wanted: DesiredNode, kind: WriteKind) -> None:
        self._check_lease()
        name = names.object_name(wanted.node)
        stored = self._twin(wanted.node)
        status = with_timestamps(wanted.status, None if stored is None else stored.status, self._now_s())
        manager = names.OPERATOR_FIELD_MANAGER
        twin = await self._client.apply(
            NODE_TWINS, name, {"status": status}, field_manager=manager, subresource="status"
        )
        if not status_matches(wanted.status, twin.status):
            twin = await self._client.patch(
                NODE_TWINS, name, _replaced(status), field_manager=manager, subresource="status"
            )
        self._remember_written(twin)
        self._wrote(kind)

    async def _delete(self, key: Key, uid: str) -> None:
        self._check_lease()
        try:
            await self._client.delete(NODE_TWINS, key.name, uid=uid)
        except (NotFoundError, ConflictError):
            return
        self._wrote(WriteKind.DELETE)

    def _remember_written(self, twin: NodeTwin) -> None:
        self._written[Key("", twin.metadata.name)] = twin

    def _check_lease(self) -> None:
        if not self._may_write():
            raise NotLeadingError("this process no longer holds the lease: not written")


def _twin_key(node: str) -> Key:
    return Key("", names.object_name(node))


def _replaced(status: NodeTwinStatus) -> dict[str, Any]:
    """The merge patch that makes the stored status equal `status`, except for the field that the agent owns."""
    stated: Mapping[str, Any] = msgspec.to_builtins(status)
    fields = {
        field.encode_name: stated.get(field.encode_name)
        for field in msgspec.structs.fields(NodeTwinStatus)
        if field.name != _AGENT_FIELD
    }
    return {"status": fields}


def _pending_label(wanted: DesiredNode) -> Mapping[str, str | None]:
    """The label that keeps a node's agent from before the first cap until the restore is confirmed."""
    return {names.RESTORE_PENDING_LABEL: "true" if requests_cap(wanted.spec) else None}


class _RefreshPlan:
    """Refresh time of each node within a period, from a hash of its name: spread evenly, and equal for every leader."""

    def __init__(self, nodes: tuple[str, ...], period_s: float) -> None:
        self._nodes = nodes
        self._period_s = period_s
        offsets = sorted((_hash_fraction(name) * period_s, index) for index, name in enumerate(nodes))
        self._offsets_s = [offset for offset, _ in offsets]
        self._indices = [index for _, index in offsets]

    def with_nodes(self, nodes: tuple[str, ...], period_s: float) -> _RefreshPlan:
        """The plan for these nodes: this one if nodes and period are unchanged."""
        same = nodes == self._nodes and period_s == self._period_s
        return self if same else _RefreshPlan(nodes, period_s)

    def due(self, since_s: float, until_s: float) -> Iterator[int]:
        """Indices of the nodes whose refresh is due in ``(since_s, until_s]``, each once."""
        span_s = min(until_s - since_s, self._period_s)
        start_s = (until_s - span_s) % self._period_s
        end_s = start_s + span_s
        yield from self._between(start_s, min(end_s, self._period_s))
        yield from self._between(0.0, end_s - self._period_s)

    def _between(self, low_s: float, high_s: float) -> Sequence[int]:
        return self._indices[bisect_left(self._offsets_s, low_s) : bisect_left(self._offsets_s, high_s)]


def _hash_fraction(name: str) -> float:
    """Hash of a name as a fraction in [0, 1). A checksum would not do: numbered names get nearly the same value."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest()) / 2**32
