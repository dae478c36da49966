"""The classifier's loop, which keeps one WorkloadProfile per workload.

A new workload, or one whose annotations changed, is classified from its annotations within seconds. Classification
from measured use is repeated once per reclassify interval, at a time that differs between workloads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.profiles import WorkloadKey
from joulie.adapters.kubernetes.writer import Job, write_all
from joulie.adapters.prometheus import Prometheus
from joulie.apps.operator.classifier.decide import (
    Due,
    Schedule,
    WorkloadMemory,
    conclude,
    due,
    is_waiting,
    status_to_write,
    updated_memory,
)
from joulie.apps.operator.classifier.metrics import ClassifierMetrics
from joulie.apps.operator.classifier.owners import Owners
from joulie.apps.operator.classifier.responses import CapResponses, Responses
from joulie.apps.operator.classifier.usage import (
    Basis,
    ClusterUsage,
    NoUsage,
    PrometheusUsage,
    SimulatedUsage,
    UsageSource,
)
from joulie.apps.operator.classifier.workloads import Workload, workload_of
from joulie.apps.operator.classifier.writer import DesiredProfile, ProfileWriter
from joulie.apps.operator.facts import ProfileEntry
from joulie.apps.operator.leader import Leader
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.profiles.rules import HINTS_ONLY, METRICS_MISSING
from joulie.domain.quantities import InvalidQuantityError
from joulie.program.tracing import span

DEBOUNCE_S = 1.0
"""Debounce, s: pods of new workloads arrive in bursts."""
_OWNERS_WAIT_S = 5.0
"""How long the first cycle waits for the owner caches, s; without them, new profiles have no owner reference yet."""
_WORKLOADS_PER_YIELD = 200
"""Workloads processed before yielding to the event loop."""
_SHOWN_PROBLEMS = 3

_log = logging.getLogger(__name__)


class _Candidate(NamedTuple):
    """A workload and its stored profile; None without one."""

    workload: Workload
    stored: ProfileEntry | None


class Classifier:
    """Keeps one WorkloadProfile for each workload with live pods. Created each time this replica becomes leader.

    Args:
        leader: this replica while it leads.
        prometheus: client of the Prometheus with usage metrics; None without one.
        metrics: classifier metrics.
    """

    def __init__(self, leader: Leader, prometheus: Prometheus | None, metrics: ClassifierMetrics) -> None:
        self._view, self._settings, self._now_s = leader.view, leader.settings, leader.now_s
        self._metrics = metrics
        settings = leader.settings
        self._schedule = Schedule(settings.classify_window_s, settings.reclassify_interval_s, leader.now_s())
        self._source = _source(settings, prometheus, metrics, leader.now_s)
        self._responses: CapResponses | None = None
        if prometheus is not None and settings.cap_response_query:
            self._responses = CapResponses(prometheus, settings.cap_response_query, metrics)
        self._owners = Owners(leader.client, self.pods_changed)
        self._writer = ProfileWriter(
            leader.client, may_write=leader.may_write, wrote=lambda kind: metrics.writes.labels(kind).inc()
        )
        self._remembered: dict[WorkloadKey, WorkloadMemory] = {}
        self._changed: set[WorkloadKey] = set()
        self._wake = asyncio.Event()
        # Profiles as returned by our own writes, until the watch has caught up.
        self._written: dict[Key, ProfileEntry] = {}
        self._reported_manual: set[Key] = set()

    async def run(self) -> None:
        """Classify until cancelled."""
        self._view.workload_watchers.append(self)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._owners.run())
                group.create_task(self._classify_loop())
        finally:
            self._view.workload_watchers.remove(self)
            self._metrics.stood_down()

    async def _classify_loop(self) -> None:
        try:
            async with asyncio.timeout(_OWNERS_WAIT_S):
                await self._owners.wait_synced()
        except TimeoutError:
            _log.warning("cannot list workloads yet: annotations on workload objects are ignored")
        clock = asyncio.get_running_loop().time
        next_s = clock()
        while True:
            try:
                if clock() >= next_s:
                    next_s = clock() + self._settings.classify_interval_s
                    await self.cycle()
                else:
                    await self.classify_changed()
            except Exception:
                _log.exception("classification failed")
            try:
                async with asyncio.timeout_at(next_s):
                    await self._wake.wait()
                    await asyncio.sleep(DEBOUNCE_S)
            except TimeoutError:
                continue

    # ---- changes in the cluster

    def pods_changed(self, workload: WorkloadKey) -> None:
        """Schedule a check of a workload after the debounce time."""
        self._changed.add(workload)
        self._wake.set()

    def profile_changed(self, key: Key) -> None:
        """Forget our remembered write of a profile, since the watch has caught up."""
        self._written.pop(key, None)

    # ---- finding workloads that are due

    async def classify_changed(self) -> None:
        """Classify, from annotations, workloads that are new or whose annotations changed."""
        self._wake.clear()
        touched, self._changed = self._changed, set()
        await self._conclude([seen for seen, need in await self._find_due(touched) if need is Due.HINTS], None)

    async def cycle(self) -> None:
        """Check all workloads, classify those that are due from measured use, and delete obsolete profiles."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        self._wake.clear()
        self._changed.clear()
        workloads = self._view.ledger.workloads
        with span("classify", workloads=len(workloads)):
            if self._responses is not None:
                await self._responses.update(self._view.twins.values(), workloads, self._now_s())
            found = await self._find_due(list(workloads))
            await self._conclude([seen for seen, need in found if need is Due.HINTS], None)
            asked = [seen for seen, need in found if need is Due.USE]
            if asked:
                usage = await self._source.read([seen.workload for seen in asked])
                silent = usage.absent is Basis.UNAVAILABLE
                await self._conclude([seen for seen in asked if not (silent and self._is_waiting(seen))], usage)
            await self._run_writes(
                [partial(self._writer.delete, key, entry) for key, entry in self._obsolete_profiles()]
            )
        for gone in self._remembered.keys() - workloads.keys():
            del self._remembered[gone]
        self._reported_manual &= self._view.profiles.keys()
        self._count()
        self._metrics.cycle_seconds.observe(clock() - began_s)

    async def _find_due(self, keys: Iterable[WorkloadKey]) -> list[tuple[_Candidate, Due]]:
        """The workloads that need a classification; those with a manual profile never do."""
        found: list[tuple[_Candidate, Due]] = []
        now_s = self._now_s()
        for index, key in enumerate(keys):
            if index % _WORKLOADS_PER_YIELD == 0:
                await asyncio.sleep(0)
            seen = self._candidate(key)
            if seen is None:
                continue
            status = None if seen.stored is None else seen.stored.status
            need = due(seen.workload, status, self._remembered.get(key), self._schedule, now_s)
            if need is not Due.NOTHING:
                found.append((seen, need))
        return found

    def _candidate(self, key: WorkloadKey) -> _Candidate | None:
        """A workload with its profile; None if the classifier keeps no profile for it."""
        if self._manual(key):
            return None
        pods = self._view.ledger.workloads.get(key, {})
        workload = workload_of(key, pods.values(), self._owners.find(key))
        own = _own_key(key)
        return (
            None if workload is None else _Candidate(workload, self._written.get(own) or self._view.profiles.get(own))
        )

    def _is_waiting(self, seen: _Candidate) -> bool:
        stored = None if seen.stored is None else seen.stored.status
        return is_waiting(seen.workload, stored, self._remembered.get(seen.workload.key))

    def _manual(self, key: WorkloadKey) -> bool:
        """Whether the workload has a manual profile, or a manual profile has the name that the classifier would use."""
        in_the_way = dict(self._view.workload_profiles.of(key))
        own = _own_key(key)
        if own in self._view.profiles:
            in_the_way[own] = self._view.profiles[own]
        manual = {place for place, entry in in_the_way.items() if not entry.automatic}
        for place in manual - self._reported_manual:
            _log.info("manual profile is not changed", extra={"profile": str(place)})
        self._reported_manual |= manual
        return bool(manual)

    def _obsolete_profiles(self) -> Iterable[tuple[Key, ProfileEntry]]:
        """The classifier's profiles whose workload has a manual one, or is gone without garbage collection of them."""
        for key, entry in list(self._view.profiles.items()):
            if not entry.automatic:
                continue
            superseded = any(not other.automatic for other in self._view.workload_profiles.of(entry.owner).values())
            if superseded or self._is_gone(entry):
                yield key, entry

    def _is_gone(self, entry: ProfileEntry) -> bool:
        if entry.owner in self._view.ledger.workloads:
            return False
        gone = self._owners.is_gone(entry.owner)
        if gone is None:
            # Kubernetes' garbage collector deletes profiles with an owner reference.
            return entry.owner[1].kind == "Pod" or not entry.owner_uids
        return gone

    # ---- classifying

    async def _conclude(self, found: Sequence[_Candidate], usage: ClusterUsage | None) -> None:
        """Classify workloads, and write the profiles that changed."""
        jobs: list[Job] = []
        for index, seen in enumerate(found):
            if index % _WORKLOADS_PER_YIELD == 0:
                await asyncio.sleep(0)
            try:
                wanted, remembered = self._wanted(seen, usage)
            except InvalidQuantityError as error:
                namespace, owner = seen.workload.key
                where = f"{owner.kind} {namespace}/{owner.name}"
                _log.warning("invalid measured use", extra={"workload": where, "problem": str(error)})
                continue
            if wanted.needed:
                jobs.append(partial(self._write, wanted, remembered))
            else:
                self._remembered[seen.workload.key] = remembered
        await self._run_writes(jobs)

    def _wanted(self, seen: _Candidate, usage: ClusterUsage | None) -> tuple[DesiredProfile, WorkloadMemory]:
        """The desired profile of a workload, and what to remember of it once it is stored."""
        workload, entry = seen
        now_s = self._now_s()
        stored = None if entry is None else entry.status
        before = self._remembered.get(workload.key)
        responses = Responses() if self._responses is None else self._responses.for_workload(workload.key)
        conclusion = conclude(workload, stored, before, usage or ClusterUsage(), self._schedule, now_s, responses)
        status = status_to_write(conclusion, stored, self._schedule.reclassify_s, now_s)
        remembered = updated_memory(workload, before, conclusion, now_s, asked=usage is not None)
        return DesiredProfile(workload, entry, status), remembered

    async def _write(self, wanted: DesiredProfile, remembered: WorkloadMemory) -> None:
        entry = await self._writer.write(wanted)
        if entry is not None:
            self._written[_own_key(wanted.workload.key)] = entry
            self._remembered[wanted.workload.key] = remembered

    async def _run_writes(self, jobs: Sequence[Job]) -> None:
        failures = await write_all(jobs, concurrency=self._settings.write_concurrency)
        self._metrics.write_errors.inc(len(failures))
        for failure in failures[:_SHOWN_PROBLEMS]:
            _log.warning("cannot write profile", extra={"error": str(failure.error)})

    def _count(self) -> None:
        counts = {"measured": 0, "losing": 0, "hints": 0, "manual": 0}
        for entry in self._view.profiles.values():
            counts[_result(entry)] += 1
        for result, count in counts.items():
            self._metrics.profiles.labels(result).set(count)


def _source(
    settings: OperatorSettings,
    prometheus: Prometheus | None,
    metrics: ClassifierMetrics,
    now_s: Callable[[], float],
) -> UsageSource:
    if settings.classify_simulated:
        return SimulatedUsage(settings.classify_simulated_noise_pct)
    if prometheus is None:
        return NoUsage()
    return PrometheusUsage(
        prometheus,
        settings.classify_window_s,
        settings.prometheus_window_s,
        kepler=settings.kepler_available,
        now_s=now_s if settings.classify_learned else None,
        failed=lambda exporter: metrics.query_errors.labels(exporter).inc(),
    )


def _result(entry: ProfileEntry) -> str:
    if not entry.automatic:
        return "manual"
    reason = entry.status.classification_reason or HINTS_ONLY
    if METRICS_MISSING in reason:
        return "losing"
    return "hints" if HINTS_ONLY in reason else "measured"


def _own_key(workload: WorkloadKey) -> Key:
    """Key of the profile that the classifier keeps for a workload."""
    namespace, owner = workload
    return Key(namespace, names.profile_name(owner.kind, owner.name))
