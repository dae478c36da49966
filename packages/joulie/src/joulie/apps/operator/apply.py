"""Decisions into the cluster: only what differs from what is stored, few writes at a time, one node's failure its own.

What a twin says is kept young by a trickle of refreshes, each node at its own moment within the period, so that a
steady cluster sees no bursts and no other write.
"""

from __future__ import annotations

import asyncio
import hashlib
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

import msgspec

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.v1alpha1 import NodeTwin, NodeTwinStatus
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import KubeClient, PatchKind
from joulie.adapters.kubernetes.errors import ConflictError, NotFoundError
from joulie.adapters.kubernetes.resources import NODE_TWINS, NODES
from joulie.adapters.kubernetes.times import parse_rfc3339
from joulie.adapters.kubernetes.writer import write_all
from joulie.apps.operator.desired import Desired, desired, label_patch, near, released, spec_matches, stamped
from joulie.apps.operator.facts import NodeFacts
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.rescheduler.advice import NO_ADVICE, Advice
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.control import Decision
from joulie.domain.resource_quantity import QuantityError

_NODES_A_TURN = 200
"""Nodes compared before others get their turn on the event loop."""
_OVERDUE = 0.8
"""Share of the staleness threshold from which a step refreshes a twin that the trickle missed."""
_HEARD_S = 0.5
"""Time for a changed twin to arrive at the extenders, whose views are a tenth of a second old at most."""
_AGENTS_FIELD = "control_status"

_NodeJob = tuple[str, Callable[[], Awaitable[None]]]
"""A node, and a write to it."""


class WriteKind(StrEnum):
    """What is written, as the metric names it."""

    SPEC = "spec"
    STATUS = "status"
    REFRESH = "refresh"
    """A status that says nothing new but its age."""
    LABELS = "labels"
    DELETE = "delete"


class NotLeadingError(RuntimeError):
    """The lease was lost: nothing may be written any more."""


class _Need(NamedTuple):
    """What of a node has to be written."""

    labels: bool
    spec: bool
    status: bool


@dataclass(frozen=True)
class Problem:
    """A node whose writes failed.

    Attributes:
        node: its name.
        error: what happened.
    """

    node: str
    error: Exception


class Publisher:
    """Writes NodeTwins and node labels.

    Args:
        client: to write with.
        view: what is stored.
        settings: labels, staleness, concurrency.
        may_write: whether this process still leads; asked before every write.
        wrote: called after each write.
        now_s: s since the epoch.
        astray: called when somebody else changed a spec or a label that this process decides on.
        advice: what is recommended for a node.
    """

    def __init__(
        self,
        client: KubeClient,
        view: ClusterView,
        settings: OperatorSettings,
        *,
        may_write: Callable[[], bool],
        wrote: Callable[[WriteKind], None],
        now_s: Callable[[], float],
        astray: Callable[[], None] = lambda: None,
        advice: Callable[[str], Advice] = lambda _node: NO_ADVICE,
    ) -> None:
        self._client = client
        self._view = view
        self._settings = settings
        self._may_write = may_write
        self._wrote = wrote
        self._now_s = now_s
        self._astray = astray
        self._advice = advice
        self._decision: Decision | None = None
        self._index: dict[str, int] = {}
        self._refreshes = _RefreshPlan((), 1.0)
        # What the API server answered to our own writes, until the watch has caught up.
        self._answers: dict[Key, NodeTwin] = {}
        view.watchers.append(self)

    def close(self) -> None:
        """Stop listening to the cluster."""
        self._view.watchers.remove(self)

    async def publish(self, decision: Decision) -> list[Problem]:
        """Bring the cluster in line with a decision. Returns the nodes where that failed; the next step tries again."""
        node_names = tuple(node.node.name for node in decision.nodes)
        self._decision = decision
        self._index = {name: index for index, name in enumerate(node_names)}
        self._refreshes = self._refreshes.over(node_names, self._settings.twin_staleness_s / 2.0)
        jobs: list[_NodeJob] = []
        openings: list[_NodeJob] = []
        for index in range(len(decision.nodes)):
            wanted = self._desired(decision, index)
            need = self._need(wanted)
            if need.labels and wanted.opens:
                openings.append((wanted.node, partial(self._label, wanted)))
                need = need._replace(labels=False)
            if any(need):
                jobs.append((wanted.node, partial(self._write, wanted, need)))
            if index % _NODES_A_TURN == 0:
                await asyncio.sleep(0)
        jobs += self._leftovers()
        problems = await self._run(jobs)
        if openings:
            # The label wakes pods that wait for this node, and the scheduler asks the extender at once: it must know.
            await asyncio.sleep(_HEARD_S)
            closed = {problem.node for problem in problems}
            problems += await self._run([job for job in openings if job[0] not in closed])
        return problems

    async def refresh(self, since_s: float, until_s: float) -> list[Problem]:
        """Rewrite the age of the twins whose moment lies within a span of time.

        Does nothing where the last decision is too old to be called news.
        """
        decision = self._decision
        if decision is None or until_s - decision.now_s > self._settings.twin_staleness_s / 2.0:
            return []
        jobs: list[_NodeJob] = []
        for index in self._refreshes.due(since_s, until_s):
            name = decision.nodes[index].node.name
            twin = self._twin(name)
            if twin is None or self._age_s(twin) < self._settings.twin_staleness_s / 4.0:
                continue
            wanted = self._desired(decision, index)
            # Only what was already agreed with is called young again; news are the step's business.
            if near(wanted.status, twin.status):
                jobs.append((name, partial(self._apply_status, wanted, WriteKind.REFRESH)))
        return await self._run(jobs)

    # ---- what others write

    def twin_changed(self, key: Key, new: NodeTwin | None) -> None:
        """Take note that the watch has caught up, and look whether somebody else has written."""
        self._answers.pop(key, None)
        if new is None:
            self._astray()
            return
        wanted = self._wanted(new.spec.node_name)
        if wanted is not None and not spec_matches(wanted, new):
            self._astray()

    def labels_changed(self, node: str, facts: NodeFacts) -> None:
        """Look whether a node's labels are still as decided."""
        wanted = self._wanted(node)
        if wanted is not None and not _labels_match(wanted, facts):
            self._astray()

    def _wanted(self, node: str) -> Desired | None:
        index = self._index.get(node)
        return None if index is None or self._decision is None else self._desired(self._decision, index)

    def _desired(self, decision: Decision, index: int) -> Desired:
        return desired(decision, index, self._advice(decision.nodes[index].node.name))

    # ---- what to write

    def _need(self, wanted: Desired) -> _Need:
        facts = self._view.node(wanted.node)
        if facts is None:
            return _Need(False, False, False)
        labels = not _labels_match(wanted, facts)
        twin = self._twin(wanted.node)
        if twin is None:
            return _Need(labels, True, True)
        spec = not spec_matches(wanted, twin) or not _owned_by(twin, facts.uid)
        overdue = facts.managed and self._age_s(twin) >= _OVERDUE * self._settings.twin_staleness_s
        return _Need(labels, spec, overdue or not near(wanted.status, twin.status))

    def _leftovers(self) -> Iterator[_NodeJob]:
        """Twins of nodes that are gone, and of those that nobody selects any more."""
        for key, twin in self._view.twins.items():
            node = twin.spec.node_name
            facts = self._view.node(node)
            if facts is None:
                yield node, partial(self._delete, key, twin.metadata.uid)
            elif not facts.managed and key.name == names.object_name(node):
                wanted = released(node)
                need = self._need(wanted)
                if any(need):
                    yield node, partial(self._write, wanted, need)

    def _twin(self, node: str) -> NodeTwin | None:
        return self._answers.get(Key("", names.object_name(node))) or self._view.twin_of(node)

    def _age_s(self, twin: NodeTwin) -> float:
        """Seconds since a twin was last written; endless where it does not say."""
        try:
            return self._now_s() - parse_rfc3339(twin.status.last_updated or "")
        except QuantityError:
            return float("inf")

    # ---- writing

    async def _run(self, jobs: Sequence[_NodeJob]) -> list[Problem]:
        failures = await write_all([job for _, job in jobs], concurrency=self._settings.write_concurrency)
        return [Problem(jobs[failure.index][0], failure.error) for failure in failures]

    async def _write(self, wanted: Desired, need: _Need) -> None:
        """Write one node: power before the word that opens it, the word that closes it before its power goes."""
        # The status of a twin that does not exist yet has to wait for its spec.
        if wanted.opens or self._twin(wanted.node) is None:
            order = (WriteKind.SPEC, WriteKind.STATUS, WriteKind.LABELS)
        else:
            order = (WriteKind.LABELS, WriteKind.STATUS, WriteKind.SPEC)
        for kind in order:
            match kind:
                case WriteKind.SPEC if need.spec:
                    await self._apply_spec(wanted)
                case WriteKind.STATUS if need.status:
                    await self._apply_status(wanted, WriteKind.STATUS)
                case WriteKind.LABELS if need.labels:
                    await self._label(wanted)

    async def _label(self, wanted: Desired) -> None:
        self._check_lease()
        # A merge patch: it removes whoever set the label, and never brings a deleted node back as a ghost.
        patch = label_patch(wanted, self._settings.power_profile_label, names.DRAINING_LABEL)
        try:
            await self._client.patch(NODES, wanted.node, patch, field_manager=names.OPERATOR_FIELD_MANAGER)
        except NotFoundError:
            return
        self._wrote(WriteKind.LABELS)

    async def _apply_spec(self, wanted: Desired) -> None:
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
            # Applying leaves alone what others added: a cap edited in by hand would win for ever.
            replacement = [{"op": "replace", "path": "/spec", "value": msgspec.to_builtins(wanted.spec)}]
            twin = await self._client.patch(NODE_TWINS, name, replacement, kind=PatchKind.JSON, field_manager=manager)
        self._took(twin)
        self._wrote(WriteKind.SPEC)

    async def _apply_status(self, wanted: Desired, kind: WriteKind) -> None:
        self._check_lease()
        name = names.object_name(wanted.node)
        stored = self._twin(wanted.node)
        status = stamped(wanted.status, None if stored is None else stored.status, self._now_s())
        manager = names.OPERATOR_FIELD_MANAGER
        twin = await self._client.apply(
            NODE_TWINS, name, {"status": status}, field_manager=manager, subresource="status"
        )
        if not near(wanted.status, twin.status):
            twin = await self._client.patch(
                NODE_TWINS, name, _replaced(status), field_manager=manager, subresource="status"
            )
        self._took(twin)
        self._wrote(kind)

    async def _delete(self, key: Key, uid: str) -> None:
        self._check_lease()
        try:
            await self._client.delete(NODE_TWINS, key.name, uid=uid)
        except (NotFoundError, ConflictError):
            return
        self._wrote(WriteKind.DELETE)

    def _took(self, twin: NodeTwin) -> None:
        self._answers[Key("", twin.metadata.name)] = twin

    def _check_lease(self) -> None:
        if not self._may_write():
            raise NotLeadingError("this process does not lead any more: not written")


def _replaced(status: NodeTwinStatus) -> dict[str, Any]:
    """The merge patch that leaves exactly `status`, but for what the agent writes."""
    stated: Mapping[str, Any] = msgspec.to_builtins(status)
    fields = {
        field.encode_name: stated.get(field.encode_name)
        for field in msgspec.structs.fields(NodeTwinStatus)
        if field.name != _AGENTS_FIELD
    }
    return {"status": fields}


def _labels_match(wanted: Desired, facts: NodeFacts) -> bool:
    return (facts.profile_label, facts.draining_label) == (wanted.profile_label, wanted.draining_label)


def _owned_by(twin: NodeTwin, node_uid: str) -> bool:
    return any(owner.uid == node_uid for owner in twin.metadata.owner_references)


class _RefreshPlan:
    """Each node's own moment within a period, by its name: spread evenly, and the same for every leader."""

    def __init__(self, nodes: tuple[str, ...], period_s: float) -> None:
        self._nodes = nodes
        self._period_s = period_s
        moments = sorted((_share(name) * period_s, index) for index, name in enumerate(nodes))
        self._moments_s = [moment for moment, _ in moments]
        self._indices = [index for _, index in moments]

    def over(self, nodes: tuple[str, ...], period_s: float) -> _RefreshPlan:
        """A plan of these nodes; this one where they are the same."""
        same = nodes == self._nodes and period_s == self._period_s
        return self if same else _RefreshPlan(nodes, period_s)

    def due(self, since_s: float, until_s: float) -> Iterator[int]:
        """Indices of the nodes whose moment lies in ``(since, until]``, each once."""
        span_s = min(until_s - since_s, self._period_s)
        start_s = (until_s - span_s) % self._period_s
        end_s = start_s + span_s
        yield from self._between(start_s, min(end_s, self._period_s))
        yield from self._between(0.0, end_s - self._period_s)

    def _between(self, low_s: float, high_s: float) -> Sequence[int]:
        return self._indices[bisect_left(self._moments_s, low_s) : bisect_left(self._moments_s, high_s)]


def _share(name: str) -> float:
    """A number in [0, 1) of a name's own. A checksum would not do: of names that count up it is much the same."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest()) / 2**32
