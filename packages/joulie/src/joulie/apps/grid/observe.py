"""Watch caches of the grid controller: gated pods, their owners and namespaces, and their deferral requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from joulie.adapters.kubernetes.api.core import CronJob, Deployment, Job, Namespace, Pod, ReplicaSet, StatefulSet
from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.adapters.kubernetes.cache import Cache, Key, Watching
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import (
    CRON_JOBS,
    DEPLOYMENTS,
    JOBS,
    NAMESPACES,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Resource,
)
from joulie.apps.grid.facts import (
    Asking,
    CronJobFacts,
    GatedPod,
    JobFacts,
    NamespaceFacts,
    Owner,
    ReplicasFacts,
    keep_cron_job,
    keep_deployment,
    keep_gated,
    keep_job,
    keep_namespace,
    keep_replicas,
)
from joulie.apps.grid.requests import NO_POLICY, requested
from joulie.apps.grid.runtimes import LearnedRuntimes
from joulie.domain.grid.request import GridDefaults, GridRequest
from joulie.domain.grid.zones import zone_of_node, zone_of_pod, zones_of_pod
from joulie.domain.mode import Mode, mode_of
from joulie.domain.runtimes import Workload, workload_of

_F = TypeVar("_F", bound="_Identified")
_T = TypeVar("_T")
_UNBOUND = "spec.nodeName="
"""Field selector that keeps bound pods out of the watch."""


class GridView(Watching):
    """Caches of every object that the controller reads.

    Args:
        client: Kubernetes client.
        defaults: used where neither pod nor namespace sets a value.
        zone: grid zone of pods that do not name one.
        regions: grid zones by cloud region.
        runtimes: runtimes learned from earlier runs; None to use the default for all.
        mode: mode of namespaces without a label of their own.

    Attributes:
        changed: keys of gated pods to decide again since the last step.
        jobs_changed: keys of Jobs to decide again since the last step.
    """

    def __init__(
        self,
        client: KubeClient,
        defaults: GridDefaults,
        zone: str,
        regions: Mapping[str, str],
        *,
        runtimes: LearnedRuntimes | None = None,
        mode: Mode = Mode.ENFORCE,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._mode = mode
        self.changed: set[Key] = set()
        self.jobs_changed: set[Key] = set()
        self._attended = False
        self._defaults = defaults
        self._zone = zone
        self._regions = regions
        self._runtimes = runtimes
        if runtimes is not None:
            runtimes.changed = self._runtimes_changed
        self._wake = wake
        self._by_owner: dict[str, set[Key]] = {}
        self._by_namespace: dict[str, set[Key]] = {}
        self._have_run: set[str] = set()
        self._by_controller: dict[str, set[str]] = {}
        self._pods: Cache[Pod, GatedPod] = Cache(client, PODS, keep_gated, field_selector=_UNBOUND)
        self._jobs: Cache[Job, JobFacts] = Cache(client, JOBS, keep_job)
        self._namespaces: Cache[Namespace, NamespaceFacts] = Cache(client, NAMESPACES, keep_namespace)
        self._cron_jobs: Cache[CronJob, CronJobFacts] = Cache(client, CRON_JOBS, keep_cron_job)
        self._deployments: Cache[Deployment, ReplicasFacts] = Cache(client, DEPLOYMENTS, keep_deployment)
        self._replica_sets: Cache[ReplicaSet, ReplicasFacts] = Cache(client, REPLICA_SETS, keep_replicas)
        self._stateful_sets: Cache[StatefulSet, ReplicasFacts] = Cache(client, STATEFUL_SETS, keep_replicas)
        self._pods.add_listener(self._pod_changed)
        self._jobs.add_listener(self._job_changed)
        self._namespaces.add_listener(self._namespace_changed)
        self._deployments.add_listener(self._deployment_changed)
        self._replica_sets.add_listener(self._replicas_changed)
        self._stateful_sets.add_listener(self._replicas_changed)

    @property
    def caches(self) -> Mapping[str, Cache[Any, Any]]:
        """The caches by what they hold."""
        return {
            PODS.plural: self._pods,
            JOBS.plural: self._jobs,
            NAMESPACES.plural: self._namespaces,
            CRON_JOBS.plural: self._cron_jobs,
            DEPLOYMENTS.plural: self._deployments,
            REPLICA_SETS.plural: self._replica_sets,
            STATEFUL_SETS.plural: self._stateful_sets,
        }

    def begin(self) -> None:
        """Mark every object as changed and record changes from now on: this replica starts to lead."""
        self._attended = True
        self.changed.update(self._pods.objects)
        self.jobs_changed.update(self._jobs.objects)

    def decide_again(self) -> None:
        """Mark all gated pods as changed."""
        self._note(set(self._pods.objects), set())

    def stand_by(self) -> None:
        """Stop recording changes, which would accumulate while this replica does not lead."""
        self._attended = False
        self.changed.clear()
        self.jobs_changed.clear()

    # ---- reads

    @property
    def pods(self) -> Mapping[Key, GatedPod]:
        """All pods that have the gate."""
        return self._pods.objects

    @property
    def jobs(self) -> Mapping[Key, JobFacts]:
        """All Jobs that have not ended."""
        return self._jobs.objects

    def job_of(self, key: Key, pod: GatedPod) -> JobFacts | None:
        """The Job that a pod belongs to; None where it belongs to none, or to one that is not known."""
        return _owned(self._jobs.objects, JOBS, key.namespace, pod.owner)

    def cron_job_of(self, namespace: str, job: JobFacts) -> CronJobFacts | None:
        """The CronJob that made a Job; None where none did, or it is suspended."""
        return _owned(self._cron_jobs.objects, CRON_JOBS, namespace, job.owner)

    def replicas_of(self, key: Key, pod: GatedPod) -> ReplicasFacts | None:
        """The workload that a pod belongs to; None where that is not known.

        It is a StatefulSet, a Deployment or a ReplicaSet without one. It has run if any of its ReplicaSets has, since
        the controller watches or by its status.
        """
        found = _owned(self._stateful_sets.objects, STATEFUL_SETS, key.namespace, pod.owner) or _owned(
            self._replica_sets.objects, REPLICA_SETS, key.namespace, pod.owner
        )
        if found is None:
            return None
        above = _owned(self._deployments.objects, DEPLOYMENTS, key.namespace, found.owner) or found
        uids = {found.uid} if found.owner is None else {found.uid, found.owner.uid}
        has_run = found.has_run or above.has_run or not self._have_run.isdisjoint(uids)
        return msgspec.structs.replace(above, has_run=has_run)

    def pods_of(self, owner_uid: str) -> set[Key]:
        """The gated pods of an owner."""
        return self._by_owner.get(owner_uid, set())

    def namespace(self, name: str) -> NamespaceFacts:
        """The cached facts of a namespace; empty ones if it is unknown."""
        return self._namespaces.objects.get(Key("", name), NO_POLICY)

    def observes(self, namespace: str) -> bool:
        """Whether Joulie holds nothing in a namespace, and only reports what it would hold."""
        return self.namespace(namespace).observed(self._mode)

    def has_namespace_in(self, mode: Mode) -> bool:
        """Whether a namespace may be in a mode: by the setting, or by its label."""
        return self._mode is mode or any(
            mode_of(facts.mode, self._mode) is mode for facts in self._namespaces.objects.values()
        )

    def knows_namespace(self, name: str) -> bool:
        """Whether a namespace is cached; its pods may arrive before it."""
        return Key("", name) in self._namespaces.objects

    def request(self, namespace: str, asking: Asking, owner: Owner | None) -> GridRequest:
        """The deferral request of a pod or Job, with namespace policy, learned runtimes and defaults applied."""
        request = requested(asking, owner, self.namespace(namespace), self._defaults)
        return request if self._runtimes is None else self._runtimes.apply(request, self._workload(namespace, owner))

    def top_of(self, namespace: str, owner: Owner | None) -> Owner | None:
        """The topmost owner that is known: of a Job made by a CronJob, the CronJob."""
        job = _owned(self._jobs.objects, JOBS, namespace, owner)
        return owner if job is None or job.owner is None else job.owner

    def _workload(self, namespace: str, owner: Owner | None) -> Workload | None:
        """Whose earlier runs a pod's or Job's is like; a Job made by a CronJob is the CronJob's."""
        top = self.top_of(namespace, owner)
        return None if top is None else workload_of(namespace, top.kind, top.name)

    def zone(self, request: GridRequest, asking: Asking) -> str:
        """The grid zone in which a pod will run, as far as its constraints tell."""
        return zone_of_pod(request.zone, asking.node_selector, asking.affinity, self._zone, self._regions)

    def zones(self, request: GridRequest, asking: Asking, reachable: Collection[str] = frozenset()) -> tuple[str, ...]:
        """The grid zones in which a pod may run, first the one where its data is: at least one.

        Args:
            request: its deferral request.
            asking: its constraints.
            reachable: zones of the clusters that it may be dispatched to; empty where it runs in this cluster. What it
                says does not count where it allows none of them.
        """
        allowed = zones_of_pod(request.zone, asking.node_selector, asking.affinity, self._regions)
        if reachable:
            allowed = allowed & set(reachable) or set(reachable)
        homes = (request.data_zone, self._zone, *sorted(allowed))
        home = next((zone for zone in homes if zone in allowed), self._zone)
        return (home, *sorted(allowed - {home}))

    def zone_of_cluster(self, meta: ObjectMeta) -> str:
        """The grid zone of another cluster, by the labels and annotations of the object for it; empty without any."""
        return zone_of_node(meta.labels, meta.annotations, "", "", self._regions)

    # ---- changes

    def _pod_changed(self, key: Key, old: GatedPod | None, new: GatedPod | None) -> None:
        jobs = set()
        for facts, add in ((old, False), (new, True)):
            if facts is None:
                continue
            _index(self._by_namespace, key.namespace, key, add=add)
            if facts.owner is not None:
                _index(self._by_owner, facts.owner.uid, key, add=add)
                if facts.owner.kind == JOBS.kind:
                    jobs.add(Key(key.namespace, facts.owner.name))
        self._note({key}, jobs)

    def _job_changed(self, key: Key, old: JobFacts | None, new: JobFacts | None) -> None:
        pods: set[Key] = set()
        for facts in (old, new):
            if facts is not None:
                pods |= self.pods_of(facts.uid)
        self._note(pods, {key})

    def _replicas_changed(self, _key: Key, old: ReplicasFacts | None, new: ReplicasFacts | None) -> None:
        """Remember what has run: a ReplicaSet or StatefulSet, and with a ReplicaSet the controller above it."""
        for facts, add in ((old, False), (new, True)):
            if facts is not None and facts.owner is not None:
                _index(self._by_controller, facts.owner.uid, facts.uid, add=add)
        if old is not None and (new is None or new.uid != old.uid):
            self._have_run.discard(old.uid)
            if old.owner is not None and old.owner.uid not in self._by_controller:
                self._have_run.discard(old.owner.uid)
        if new is None:
            return
        if new.has_run:
            self._have_run.add(new.uid)
            if new.owner is not None:
                self._have_run.add(new.owner.uid)
        self._note_replicas({new.uid} if new.owner is None else self._by_controller[new.owner.uid])

    def _deployment_changed(self, _key: Key, _old: ReplicasFacts | None, new: ReplicasFacts | None) -> None:
        if new is not None:
            self._note_replicas(self._by_controller.get(new.uid, set()))

    def _note_replicas(self, uids: Iterable[str]) -> None:
        """Mark the gated pods of ReplicaSets or StatefulSets for a new decision."""
        self._note(set().union(*(self.pods_of(uid) for uid in uids)), set())

    def _namespace_changed(self, key: Key, _old: NamespaceFacts | None, _new: NamespaceFacts | None) -> None:
        jobs = {job for job in self._jobs.objects if job.namespace == key.name}
        self._note(self._by_namespace.get(key.name, set()), jobs)

    def _runtimes_changed(self, workloads: set[Workload]) -> None:
        pods = {key for key, pod in self._pods.objects.items() if self._workload(key.namespace, pod.owner) in workloads}
        jobs = {
            key
            for key, job in self._jobs.objects.items()
            if self._workload(key.namespace, Owner(JOBS.kind, key.name, job.uid)) in workloads
        }
        self._note(pods, jobs)

    def _note(self, pods: set[Key], jobs: set[Key]) -> None:
        """Mark objects for a new decision."""
        if self._attended and (pods or jobs):
            self.changed |= pods
            self.jobs_changed |= jobs
            self._wake()


class _Identified(Protocol):
    @property
    def uid(self) -> str: ...


def _owned(objects: Mapping[Key, _F], resource: Resource[Any], namespace: str, owner: Owner | None) -> _F | None:
    """The cached facts of an owner of a kind; None if the owner is of another kind, or not known."""
    if owner is None or owner.kind != resource.kind:
        return None
    found = objects.get(Key(namespace, owner.name))
    return found if found is not None and found.uid == owner.uid else None


def _index(index: dict[str, set[_T]], under: str, key: _T, *, add: bool) -> None:
    if add:
        index.setdefault(under, set()).add(key)
        return
    keys = index[under]
    keys.discard(key)
    if not keys:
        del index[under]
