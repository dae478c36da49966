"""The classifier's loop: profiles from annotations within seconds, from measured use each at its own moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.profiles import WorkloadKey
from joulie.adapters.kubernetes.writer import Job, write_all
from joulie.adapters.prometheus import Prometheus
from joulie.apps.operator.classifier.decide import (
    Due,
    Remembered,
    Rhythm,
    conclude,
    due,
    is_waiting,
    remember,
    status_to_write,
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
from joulie.apps.operator.classifier.write import ProfileWriter, Wanted
from joulie.apps.operator.facts import ProfileEntry
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.profiles.rules import HINTS_ONLY, METRICS_MISSING
from joulie.domain.quantities import InvalidQuantityError
from joulie.program.tracing import span

DEBOUNCE_S = 1.0
"""New workloads are gathered for this long: their pods come in flocks."""
_OWNERS_WAIT_S = 5.0
"""How long the first look waits for the workloads themselves; without them profiles go with nothing for a while."""
_WORKLOADS_A_TURN = 200
"""Workloads looked at before others get their turn on the event loop."""
_SHOWN_PROBLEMS = 3

_log = logging.getLogger(__name__)


class _Seen(NamedTuple):
    """A workload with its profile."""

    workload: Workload
    stored: ProfileEntry | None


class Classifier:
    """Keeps one WorkloadProfile for each workload with live pods. One term of leadership.

    Args:
        client: to watch and write with.
        view: pods and profiles.
        settings: of the operator.
        prometheus: to ask for use; None without one.
        metrics: to count in.
        may_write: whether this process still leads.
        now_s: s since the epoch.
    """

    def __init__(
        self,
        client: KubeClient,
        view: ClusterView,
        settings: OperatorSettings,
        prometheus: Prometheus | None,
        metrics: ClassifierMetrics,
        *,
        may_write: Callable[[], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._view = view
        self._settings = settings
        self._metrics = metrics
        self._now_s = now_s
        self._rhythm = Rhythm(settings.classify_window_s, settings.reclassify_interval_s, now_s())
        self._source = _source(settings, prometheus, metrics, now_s)
        self._responses: CapResponses | None = None
        if prometheus is not None and settings.cap_response_query:
            self._responses = CapResponses(prometheus, settings.cap_response_query, metrics)
        self._owners = Owners(client, self.pods_changed)
        self._writer = ProfileWriter(client, may_write=may_write, wrote=lambda kind: metrics.writes.labels(kind).inc())
        self._remembered: dict[WorkloadKey, Remembered] = {}
        self._touched: set[WorkloadKey] = set()
        self._wake = asyncio.Event()
        # What the API server answered to our own writes, until the watch has caught up.
        self._answers: dict[Key, ProfileEntry] = {}
        self._left_alone: set[Key] = set()

    async def run(self) -> None:
        """Classify until cancelled."""
        self._view.workload_watchers.append(self)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._owners.run())
                group.create_task(self._classify_for_ever())
        finally:
            self._view.workload_watchers.remove(self)
            self._metrics.stood_down()

    async def _classify_for_ever(self) -> None:
        try:
            async with asyncio.timeout(_OWNERS_WAIT_S):
                await self._owners.wait_synced()
        except TimeoutError:
            _log.warning("workloads cannot be listed yet: their own annotations do not count")
        clock = asyncio.get_running_loop().time
        next_s = clock()
        while True:
            try:
                if clock() >= next_s:
                    next_s = clock() + self._settings.classify_interval_s
                    await self.cycle()
                else:
                    await self.look_at_new()
            except Exception:
                _log.exception("classification failed")
            try:
                async with asyncio.timeout_at(next_s):
                    await self._wake.wait()
                    await asyncio.sleep(DEBOUNCE_S)
            except TimeoutError:
                continue

    # ---- what the view tells

    def pods_changed(self, workload: WorkloadKey) -> None:
        """Look at a workload soon."""
        self._touched.add(workload)
        self._wake.set()

    def profile_changed(self, key: Key) -> None:
        """Take note that the watch has caught up."""
        self._answers.pop(key, None)

    # ---- looking

    async def look_at_new(self) -> None:
        """Conclude from annotations where nothing is known yet, or where they changed."""
        self._wake.clear()
        touched, self._touched = self._touched, set()
        await self._conclude([seen for seen, need in await self._look(touched) if need is Due.HINTS], None)

    async def cycle(self) -> None:
        """Look at all workloads, ask for the use of those that are due, and remove profiles of those that are gone."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        self._wake.clear()
        self._touched.clear()
        workloads = self._view.ledger.workloads
        with span("classify", workloads=len(workloads)):
            if self._responses is not None:
                await self._responses.look(self._view.twins.values(), workloads, self._now_s())
            found = await self._look(list(workloads))
            await self._conclude([seen for seen, need in found if need is Due.HINTS], None)
            asked = [seen for seen, need in found if need is Due.USE]
            if asked:
                usage = await self._source.read([seen.workload for seen in asked])
                silent = usage.absent is Basis.UNAVAILABLE
                await self._conclude([seen for seen in asked if not (silent and self._is_waiting(seen))], usage)
            await self._run([partial(self._writer.delete, key, entry) for key, entry in self._leftovers()])
        for gone in self._remembered.keys() - workloads.keys():
            del self._remembered[gone]
        self._left_alone &= self._view.profiles.keys()
        self._count()
        self._metrics.cycle_seconds.observe(clock() - began_s)

    async def _look(self, keys: Iterable[WorkloadKey]) -> list[tuple[_Seen, Due]]:
        """The workloads that need something; those with somebody's own profile need nothing."""
        found: list[tuple[_Seen, Due]] = []
        now_s = self._now_s()
        for index, key in enumerate(keys):
            if index % _WORKLOADS_A_TURN == 0:
                await asyncio.sleep(0)
            seen = self._see(key)
            if seen is None:
                continue
            status = None if seen.stored is None else seen.stored.status
            need = due(seen.workload, status, self._remembered.get(key), self._rhythm, now_s)
            if need is not Due.NOTHING:
                found.append((seen, need))
        return found

    def _see(self, key: WorkloadKey) -> _Seen | None:
        """A workload with its profile; None where there is nothing to keep."""
        if self._manual(key):
            return None
        pods = self._view.ledger.workloads.get(key, {})
        workload = workload_of(key, pods.values(), self._owners.find(key))
        own = _own_key(key)
        return None if workload is None else _Seen(workload, self._answers.get(own) or self._view.profiles.get(own))

    def _is_waiting(self, seen: _Seen) -> bool:
        stored = None if seen.stored is None else seen.stored.status
        return is_waiting(seen.workload, stored, self._remembered.get(seen.workload.key))

    def _manual(self, key: WorkloadKey) -> bool:
        """Whether the workload has a profile of somebody's own, or one stands where the classifier's would."""
        in_the_way = dict(self._view.workload_profiles.of(key))
        own = _own_key(key)
        if own in self._view.profiles:
            in_the_way[own] = self._view.profiles[own]
        manual = {place for place, entry in in_the_way.items() if not entry.automatic}
        for place in manual - self._left_alone:
            _log.info("a profile of somebody's own is left alone", extra={"profile": str(place)})
        self._left_alone |= manual
        return bool(manual)

    def _leftovers(self) -> Iterable[tuple[Key, ProfileEntry]]:
        """Own profiles that nothing removes: of workloads that are gone, or that have a profile of somebody's own."""
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
            # Of what goes with its owner, Kubernetes knows better whether that is still there.
            return entry.owner[1].kind == "Pod" or not entry.owner_uids
        return gone

    # ---- concluding

    async def _conclude(self, found: Sequence[_Seen], usage: ClusterUsage | None) -> None:
        """Conclude what there is to say of workloads, and write what of it is news."""
        jobs: list[Job] = []
        for index, seen in enumerate(found):
            if index % _WORKLOADS_A_TURN == 0:
                await asyncio.sleep(0)
            try:
                wanted, remembered = self._wanted(seen, usage)
            except InvalidQuantityError as error:
                namespace, owner = seen.workload.key
                where = f"{owner.kind} {namespace}/{owner.name}"
                _log.warning("measured use is refused", extra={"workload": where, "problem": str(error)})
                continue
            if wanted.needed:
                jobs.append(partial(self._write, wanted, remembered))
            else:
                self._remembered[seen.workload.key] = remembered
        await self._run(jobs)

    def _wanted(self, seen: _Seen, usage: ClusterUsage | None) -> tuple[Wanted, Remembered]:
        """What should be stored of a workload, and what to remember once it is."""
        workload, entry = seen
        now_s = self._now_s()
        stored = None if entry is None else entry.status
        before = self._remembered.get(workload.key)
        responses = Responses() if self._responses is None else self._responses.of(workload.key)
        conclusion = conclude(workload, stored, before, usage or ClusterUsage(), self._rhythm, now_s, responses)
        status = status_to_write(conclusion, stored, self._rhythm.reclassify_s, now_s)
        remembered = remember(workload, before, conclusion, now_s, asked=usage is not None)
        return Wanted(workload, entry, status), remembered

    async def _write(self, wanted: Wanted, remembered: Remembered) -> None:
        entry = await self._writer.write(wanted)
        if entry is not None:
            self._answers[_own_key(wanted.workload.key)] = entry
            self._remembered[wanted.workload.key] = remembered

    async def _run(self, jobs: Sequence[Job]) -> None:
        failures = await write_all(jobs, concurrency=self._settings.write_concurrency)
        self._metrics.write_errors.inc(len(failures))
        for failure in failures[:_SHOWN_PROBLEMS]:
            _log.warning("profile not written", extra={"error": str(failure.error)})

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
    """Where the classifier keeps the profile of a workload."""
    namespace, owner = workload
    return Key(namespace, names.profile_name(owner.kind, owner.name))
