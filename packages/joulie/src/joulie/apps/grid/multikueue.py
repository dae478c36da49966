"""Workloads of Kueue's MultiKueue run in the cluster with the least emissions.

Joulie is the external dispatcher: once nothing but MultiKueue's check is left to wait for, it nominates the clusters of
the zone that emits least now. If none of them admits the workload within a round, those of the next zone are nominated
too. Where zones cannot be compared, all connected clusters are nominated at once. A workload that is assigned to a
cluster is left alone. Whether it waits at all is decided before, over the zones of all these clusters
(`joulie.apps.grid.kueue`).

Rounds are not stored: a new leader counts the present one anew.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from joulie.adapters.kubernetes.api.kueue import AdmissionCheck, MultiKueueCluster, MultiKueueConfig
from joulie.adapters.kubernetes.api.meta import ObjectMeta, ObjectReference
from joulie.adapters.kubernetes.cache import Cache, Key, Watching
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.events import EventRecorder, Severity
from joulie.adapters.kubernetes.kueue import KueueResources
from joulie.adapters.kubernetes.multikueue import MultiKueueResources, config_of, is_connected, write_nomination
from joulie.apps.grid.kueue_answers import WorkloadFacts
from joulie.apps.grid.pending import UNKNOWN_ZONE_RETRY_S, Deferral
from joulie.domain.grid.deferral import Conditions, duration_text
from joulie.domain.grid.nomination import nominate

_PATIENCE_S = 30.0
"""Maximum time that answers wait for the first list of clusters, s."""

_log = logging.getLogger(__name__)


class NominationResult(StrEnum):
    """Which clusters were nominated."""

    BEST = "best"
    """Those of the best zone."""
    NEXT = "next"
    """More of them, since none admitted the workload within a round."""
    LOST = "lost"
    """None: those that were lost are no longer nominated."""
    ALL = "all"
    """All at once: their zones cannot be compared."""
    OTHERS = "others"
    """None by this leader: they were nominated already, by an earlier one or by another dispatcher."""
    OBSERVED = "observed"
    """None: those that would have been were only reported."""


class WorkerCluster(NamedTuple):
    """Cached facts of a MultiKueueCluster."""

    zone: str
    """Grid zone; empty if it states none."""
    connected: bool


class WorkerClusters(Watching):
    """Caches of MultiKueue's checks, configurations and worker clusters.

    Args:
        client: Kubernetes client.
        kueue: Kueue's resources.
        resources: MultiKueue's, in the same version.
        zone_of: grid zone of a cluster by its metadata; empty if it states none.
        changed: called after each change.
    """

    def __init__(
        self,
        client: KubeClient,
        kueue: KueueResources,
        resources: MultiKueueResources,
        zone_of: Callable[[ObjectMeta], str],
        changed: Callable[[], None],
    ) -> None:
        self._checks: Cache[AdmissionCheck, str] = Cache(client, kueue.checks, config_of)
        self._configs: Cache[MultiKueueConfig, tuple[str, ...]] = Cache(
            client, resources.configs, lambda config: config.spec.clusters
        )
        self._clusters: Cache[MultiKueueCluster, WorkerCluster] = Cache(
            client, resources.clusters, lambda cluster: WorkerCluster(zone_of(cluster.metadata), is_connected(cluster))
        )
        for cache in self.caches.values():
            cache.add_listener(lambda _key, _old, _new: changed())
        self._clusters.add_listener(_warn_without_zone)

    @property
    def caches(self) -> Mapping[str, Cache[Any, Any]]:
        """The caches by what they hold."""
        return {"checks": self._checks, "configs": self._configs, "clusters": self._clusters}

    async def wait_for_all(self) -> None:
        """Wait until all are listed, but not for ever: checks are answered without them."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self.wait_synced()
        except TimeoutError:
            _log.warning("worker clusters of MultiKueue are not known", extra={"problem": self.why_not_ready()})

    def dispatches(self, check: str | None) -> bool:
        """Whether a check is MultiKueue's."""
        return Key("", check or "") in self._checks.objects

    def connected(self, checks: Collection[str]) -> dict[str, str]:
        """Zone by name of the connected clusters that some checks dispatch to."""
        configs = (self._checks.objects.get(Key("", check)) for check in checks)
        names = {name for config in configs if config for name in self._configs.objects.get(Key("", config), ())}
        clusters = {name: self._clusters.objects.get(Key("", name)) for name in sorted(names)}
        return {name: one.zone for name, one in clusters.items() if one is not None and one.connected}


def _warn_without_zone(key: Key, _old: WorkerCluster | None, new: WorkerCluster | None) -> None:
    if new is not None and not new.zone:
        _log.warning(
            "MultiKueueCluster states no zone, it is nominated last: set its label joulie.io/grid-zone",
            extra={"cluster": key.name},
        )


class _Round(NamedTuple):
    """The last nomination for a workload by this leader, or one that it found."""

    since_s: float
    clusters: tuple[str, ...]


class Dispatcher:
    """Nominates worker clusters for workloads while this replica leads.

    Args:
        client: Kubernetes client for writes.
        resources: MultiKueue's resources.
        clusters: caches of the worker clusters; somebody else runs them.
        look: conditions in a zone; None while its sources have not been queried yet.
        events: event recorder.
        round_s: time that nominated clusters have to admit a workload, s.
        now_s: current time, s since the epoch.
        counted: called with the result of each nomination.
    """

    def __init__(
        self,
        client: KubeClient,
        resources: MultiKueueResources,
        clusters: WorkerClusters,
        look: Callable[[str], Conditions | None],
        events: EventRecorder,
        *,
        round_s: float,
        now_s: Callable[[], float],
        counted: Callable[[NominationResult], None],
    ) -> None:
        self._client = client
        self._resources = resources
        self.clusters = clusters
        self._look = look
        self._events = events
        self._round_s = round_s
        self._now_s = now_s
        self._counted = counted
        self._rounds: dict[str, _Round] = {}

    def keep_only(self, uids: Collection[str]) -> None:
        """Forget all workloads but these."""
        self._rounds = {uid: one for uid, one in self._rounds.items() if uid in uids}

    @property
    def size(self) -> int:
        """Number of workloads that it remembers."""
        return len(self._rounds)

    async def dispatch(
        self, key: Key, workload: WorkloadFacts, reference: ObjectReference, deferral: Deferral, *, observe: bool
    ) -> float:
        """Nominate the clusters that are due for a workload.

        Args:
            key: its key.
            workload: its cached facts.
            reference: where events go.
            deferral: its request and zones.
            observe: report what would be nominated, write nothing.

        Returns:
            Time until it has to be dispatched again, s; infinite if only a change can be a reason.

        Raises:
            KubernetesError: the nomination could not be written.
        """
        now_s = self._now_s()
        clusters = self.clusters.connected([workload.last_check or ""])
        zones = deferral.rank_now(self._look, now_s)
        if zones is None:
            return UNKNOWN_ZONE_RETRY_S
        current = self._observed(workload) if observe else self._current(workload, now_s)
        expand = now_s >= current.since_s + self._round_s and not observe
        chosen = nominate(clusters, zones, current.clusters, expand=expand)
        if set(chosen) != set(current.clusters):
            added = [name for name in chosen if name not in current.clusters]
            lost = [name for name in current.clusters if name not in chosen]
            result = _result(current, added, clusters, zones)
            if not observe:
                await write_nomination(self._client, self._resources, key, workload.version, chosen)
            self._rounds[workload.uid] = current = _Round(now_s if added else current.since_s, chosen)
            self._counted(NominationResult.OBSERVED if observe else result)
            reason = "GridWouldNominate" if observe else "GridNominated"
            kind: Severity = "Warning" if result is NominationResult.ALL else "Normal"
            self._events.emit(reference, kind, reason, self._text(added or lost, clusters, result, deferral))
        if observe or len(current.clusters) == len(clusters):
            return math.inf
        return max(current.since_s + self._round_s - now_s, UNKNOWN_ZONE_RETRY_S)

    def _observed(self, workload: WorkloadFacts) -> _Round:
        return self._rounds.get(workload.uid, _Round(-math.inf, ()))

    def _current(self, workload: WorkloadFacts, now_s: float) -> _Round:
        """The round of the clusters that are nominated; one that is over where none is."""
        if not workload.nominated:
            return _Round(-math.inf, ())
        known = self._rounds.get(workload.uid)
        if known is None or set(known.clusters) != set(workload.nominated):
            self._counted(NominationResult.OTHERS)
            known = self._rounds[workload.uid] = _Round(now_s, workload.nominated)
        return known

    def _text(
        self, names: Sequence[str], clusters: Mapping[str, str], result: NominationResult, deferral: Deferral
    ) -> str:
        """Such as ``worker-1 (FR, 45 gCO2eq/kWh): there it emits least now``."""
        if result is NominationResult.LOST:
            return f"{', '.join(names)} no longer: not connected"
        listed = ", ".join(f"{name} ({self._zone_text(clusters[name])})" for name in names)
        if result is NominationResult.BEST:
            return f"{listed}: there it emits least now"
        if result is NominationResult.NEXT:
            return f"{listed} too: no other cluster has admitted it within {duration_text(self._round_s)}"
        if not deferral.waiting.request.carbon_enabled:
            why = "carbon intensity does not count for it"
        elif self._value(deferral.zone) is None:
            why = f"carbon intensity of {deferral.zone} is not known"
        else:
            why = "none of them states its zone"
        return f"{listed}, all at once: {why}"

    def _zone_text(self, zone: str) -> str:
        value = self._value(zone) if zone else None
        return (zone or "no zone") + ("" if value is None else f", {value:g} gCO2eq/kWh")

    def _value(self, zone: str) -> float | None:
        found = self._look(zone)
        carbon = None if found is None else found.carbon
        return carbon.value if carbon is not None and carbon.known else None


def _result(
    current: _Round, added: Sequence[str], clusters: Mapping[str, str], zones: Sequence[str]
) -> NominationResult:
    if not added:
        return NominationResult.LOST
    if not clusters.keys().isdisjoint(current.clusters):
        return NominationResult.NEXT
    return NominationResult.BEST if any(clusters[name] in zones for name in added) else NominationResult.ALL
