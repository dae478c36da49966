"""TelemetryProfiles: selects the effective one for each node, and writes their status.

An agent reports into a profile that names its own node only. For a profile that targets several nodes, the operator
counts the results of their agents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.v1alpha1 import (
    Condition,
    ConditionStatus,
    ControlOutcome,
    ControlStatus,
    MatchedNodes,
    Sources,
    Target,
    TelemetryProfile,
)
from joulie.adapters.kubernetes.cache import Cache
from joulie.adapters.kubernetes.errors import NotFoundError
from joulie.adapters.kubernetes.resources import TELEMETRY_PROFILES
from joulie.adapters.kubernetes.targets import specificity
from joulie.adapters.kubernetes.times import rfc3339
from joulie.apps.operator.leader import Leader

ACCEPTED_CONDITION = "Accepted"
CONFLICTING_CONDITION = "Conflicting"
SOURCE_FAILED_CONDITION = "SourceFailed"
_SHOWN_NODES = 5
"""Maximum number of nodes that a condition names; the others are counted."""
_SHOWN_CHARS = 300
_NODES_PER_YIELD = 500
"""Nodes matched before yielding to the event loop."""


class ProfileFacts(msgspec.Struct, frozen=True):
    """The cached fields of a TelemetryProfile.

    Attributes:
        target: nodes that it targets.
        sources: sources of measurements.
        counts: stored counts of nodes; None if it targets one node by name.
        conditions: stored conditions.
    """

    target: Target
    sources: Sources
    counts: MatchedNodes | None
    conditions: tuple[Condition, ...]


class Route(msgspec.Struct, frozen=True):
    """The effective TelemetryProfile of a node.

    Attributes:
        profile: name of the profile.
        named: whether it targets this one node by name.
        sources: sources of the node's measurements.
    """

    profile: str
    named: bool
    sources: Sources


class _Matching(msgspec.Struct):
    """The nodes of one profile.

    Attributes:
        nodes: those it is effective for.
        targeted: all that its target matches.
        lost: those for which an equally specific profile is effective, with that profile's name.
    """

    nodes: list[str] = msgspec.field(default_factory=list)
    targeted: list[str] = msgspec.field(default_factory=list)
    lost: dict[str, str] = msgspec.field(default_factory=dict)


def keep_profile(profile: TelemetryProfile) -> ProfileFacts:
    """Reduce a TelemetryProfile to the fields that the operator caches."""
    status = profile.status
    return ProfileFacts(profile.spec.target, profile.spec.sources or Sources(), status.nodes, status.conditions)


class TelemetryProfiles:
    """Watches TelemetryProfiles, selects the effective one for each node, and keeps their status up to date.

    Args:
        leader: this replica while it leads.

    Attributes:
        routes: the effective profile by node, as of the last `match`; nodes without one are absent.
    """

    def __init__(self, leader: Leader) -> None:
        self._client, self._view = leader.client, leader.view
        self._may_write, self._now_s = leader.may_write, leader.now_s
        self._profiles: Cache[TelemetryProfile, ProfileFacts] = Cache(leader.client, TELEMETRY_PROFILES, keep_profile)
        self._matchings: Mapping[str, _Matching] = {}
        self.routes: Mapping[str, Route] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._profiles.run()

    async def wait_synced(self) -> None:
        """Wait until all profiles have been listed once."""
        await self._profiles.wait_synced()

    async def match(self) -> None:
        """Select the effective profile of every node.

        The most specific profile wins: one that names the node, else the one with the most labels, else one for the
        whole cluster. Ties go to the first by name.
        """
        profiles = sorted((key.name, facts) for key, facts in self._profiles.objects.items())
        matchings = {name: _Matching() for name, _ in profiles}
        routes: dict[str, Route] = {}
        for count, (node, facts) in enumerate(list(self._view.node_facts) if profiles else ()):
            if count % _NODES_PER_YIELD == 0:
                await asyncio.sleep(0)
            if facts.managed:
                route = _matched(node, facts.labels, profiles, matchings)
                if route is not None:
                    routes[node] = route
        self.routes, self._matchings = routes, matchings

    async def publish(self, failed: Mapping[str, str]) -> int:
        """Write the statuses that changed. Returns the number written.

        Args:
            failed: error message by node, for nodes whose profile's source could not be read.
        """
        await self.match()
        written = 0
        for key, facts in list(self._profiles.objects.items()):
            matching = self._matchings.get(key.name)
            if matching is None:
                continue
            wanted = self._status(facts, matching, failed)
            if wanted == (facts.counts, facts.conditions) or not self._may_write():
                continue
            counts, conditions = wanted
            body = {"conditions": conditions} | ({} if counts is None else {"nodes": counts})
            try:
                await self._client.apply(
                    TELEMETRY_PROFILES,
                    key.name,
                    {"status": body},
                    field_manager=names.OPERATOR_FIELD_MANAGER,
                    subresource="status",
                )
            except NotFoundError:
                continue
            written += 1
            await asyncio.sleep(0)
        return written

    def _status(
        self, facts: ProfileFacts, matching: _Matching, failed: Mapping[str, str]
    ) -> tuple[MatchedNodes | None, tuple[Condition, ...]]:
        counts = None if facts.target.node_name is not None else self._count(matching.targeted)
        stored = {condition.type: condition for condition in facts.conditions}
        now = rfc3339(self._now_s())
        return counts, tuple(
            _since(condition, stored.get(condition.type), now) for condition in _conditions(matching, failed)
        )

    def _count(self, nodes: Iterable[str]) -> MatchedNodes:
        outcomes = [outcome(self._report(name)) for name in nodes]
        return MatchedNodes(
            matched=len(outcomes),
            applied=outcomes.count(ControlOutcome.APPLIED),
            blocked=outcomes.count(ControlOutcome.BLOCKED),
            failed=outcomes.count(ControlOutcome.ERROR),
        )

    def _report(self, node: str) -> ControlStatus:
        twin = self._view.twin_of(node)
        return (twin.status.control_status if twin else None) or ControlStatus()


def outcome(report: ControlStatus) -> ControlOutcome:
    """The worst result of a node's controls: a node counts as applied only if all its controls were applied."""
    results = {part.result for part in (report.cpu, report.gpu) if part is not None}
    worst_first = (
        ControlOutcome.ERROR,
        ControlOutcome.BLOCKED,
        ControlOutcome.UNCONFIRMED,
        ControlOutcome.OBSERVED,
        ControlOutcome.APPLIED,
    )
    return next((one for one in worst_first if one in results), ControlOutcome.NONE)


def _matched(
    node: str,
    labels: Mapping[str, str],
    profiles: Sequence[tuple[str, ProfileFacts]],
    matchings: Mapping[str, _Matching],
) -> Route | None:
    """The effective profile of a node; the node is also recorded in the matching of every profile that targets it."""
    best: tuple[int, str, ProfileFacts] | None = None
    equals: list[str] = []
    for name, facts in profiles:
        rank = specificity(facts.target, node, labels)
        if rank is None:
            continue
        matchings[name].targeted.append(node)
        if best is None or rank > best[0]:
            best, equals = (rank, name, facts), []
        elif rank == best[0]:
            equals.append(name)
    if best is None:
        return None
    _, winner, facts = best
    matchings[winner].nodes.append(node)
    for name in equals:
        matchings[name].lost[node] = winner
    return Route(winner, facts.target.node_name is not None, facts.sources)


def _conditions(matching: _Matching, failed: Mapping[str, str]) -> Iterator[Condition]:
    if matching.targeted:
        yield _condition(ACCEPTED_CONDITION, True, "Matched", "")
    else:
        yield _condition(ACCEPTED_CONDITION, False, "NoNodes", "its target matches no node in scope")
    if matching.lost:
        winners = ", ".join(sorted(set(matching.lost.values())))
        message = f"as specific as {winners}, which comes first by name, on {_shortened(matching.lost)}"
        yield _condition(CONFLICTING_CONDITION, True, "EquallySpecific", message)
    else:
        yield _condition(CONFLICTING_CONDITION, False, "None", "")
    silent = sorted(node for node in matching.nodes if node in failed)
    if silent:
        message = f"{_shortened(silent)}: {failed[silent[0]][:_SHOWN_CHARS]}"
        yield _condition(SOURCE_FAILED_CONDITION, True, "NotRead", message)
    else:
        yield _condition(SOURCE_FAILED_CONDITION, False, "None", "")


def _condition(kind: str, holds: bool, reason: str, message: str) -> Condition:
    return Condition(kind, ConditionStatus.TRUE if holds else ConditionStatus.FALSE, reason, "", message)


def _since(condition: Condition, stored: Condition | None, now: str) -> Condition:
    """The condition with the time of its last transition."""
    same = stored is not None and stored.status == condition.status
    since = stored.last_transition_time if stored is not None and same else now
    return msgspec.structs.replace(condition, last_transition_time=since)


def _shortened(nodes: Iterable[str]) -> str:
    """The first few names and the number of the others."""
    ordered = sorted(nodes)
    more = len(ordered) - _SHOWN_NODES
    return ", ".join(ordered[:_SHOWN_NODES]) + (f" and {more} more" if more > 0 else "")
