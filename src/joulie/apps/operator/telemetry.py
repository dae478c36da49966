"""Counts in the status of TelemetryProfiles that target more than one node: how their nodes' agents fare.

An agent reports into a profile of its own node only; whoever matched many would have as many writers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.v1alpha1 import (
    ControlOutcome,
    ControlStatus,
    MatchedNodes,
    TargetScope,
    TelemetryProfile,
)
from joulie.adapters.kubernetes.cache import Cache
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import NotFoundError
from joulie.adapters.kubernetes.resources import TELEMETRY_PROFILES
from joulie.apps.operator.observe import ClusterView


class ProfileFacts(msgspec.Struct, frozen=True):
    """What is kept of a TelemetryProfile that targets more than one node.

    Attributes:
        selector: labels that its nodes have; None where it targets all in scope.
        counts: as they are stored.
    """

    selector: Mapping[str, str] | None
    counts: MatchedNodes | None


def keep_profile(profile: TelemetryProfile) -> ProfileFacts | None:
    """What the operator keeps of a TelemetryProfile; nothing of one node's own."""
    target = profile.spec.target
    if target.scope == TargetScope.NODE and target.node_name is not None:
        return None
    return ProfileFacts(target.node_selector, profile.status.nodes)


class TelemetryCounts:
    """Watches TelemetryProfiles and keeps their counts.

    Args:
        client: to watch and write with.
        view: nodes and what their agents reported.
    """

    def __init__(self, client: KubeClient, view: ClusterView) -> None:
        self._client = client
        self._view = view
        self._profiles: Cache[TelemetryProfile, ProfileFacts] = Cache(client, TELEMETRY_PROFILES, keep_profile)

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._profiles.run()

    async def publish(self) -> int:
        """Write the counts that changed. Returns how many were written."""
        written = 0
        for key, facts in list(self._profiles.objects.items()):
            counts = self._count(facts.selector)
            if counts == facts.counts:
                continue
            try:
                await self._client.apply(
                    TELEMETRY_PROFILES,
                    key.name,
                    {"status": {"nodes": counts}},
                    field_manager=names.OPERATOR_FIELD_MANAGER,
                    subresource="status",
                )
            except NotFoundError:
                continue
            written += 1
            await asyncio.sleep(0)
        return written

    def _count(self, selector: Mapping[str, str] | None) -> MatchedNodes:
        reports = [self._report(name) for name in self._matched(selector)]
        outcomes = [outcome(report) for report in reports]
        return MatchedNodes(
            matched=len(outcomes),
            applied=outcomes.count(ControlOutcome.APPLIED),
            blocked=outcomes.count(ControlOutcome.BLOCKED),
            failed=outcomes.count(ControlOutcome.ERROR),
        )

    def _matched(self, selector: Mapping[str, str] | None) -> Iterable[str]:
        wanted = None if selector is None else selector.items()
        return (
            name
            for name, facts in self._view.node_facts
            if facts.managed and (wanted is None or wanted <= facts.labels.items())
        )

    def _report(self, node: str) -> ControlStatus:
        twin = self._view.twin_of(node)
        return (twin.status.control_status if twin else None) or ControlStatus()


def outcome(report: ControlStatus) -> ControlOutcome:
    """The worst of a node's results: it counts once, and only where all went well as applied."""
    results = {part.result for part in (report.cpu, report.gpu) if part is not None}
    worst_first = (ControlOutcome.ERROR, ControlOutcome.BLOCKED, ControlOutcome.APPLIED)
    return next((one for one in worst_first if one in results), ControlOutcome.NONE)
