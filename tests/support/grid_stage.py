"""A grid controller on the fake cluster, whose clock and grid a test sets."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from joulie.adapters.grid.feed import FeedLimits, GridFeed
from joulie.adapters.kubernetes.client import KubeClient, NotFoundError, RetryPolicy
from joulie.adapters.kubernetes.connection import connect
from joulie.adapters.kubernetes.resources import (
    CONFIG_MAPS,
    CRON_JOBS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    NAMESPACES,
    PODS,
    REPLICA_SETS,
)
from joulie.adapters.kubernetes.times import rfc3339
from joulie.apps.grid.controller import Controller
from joulie.apps.grid.metrics import ControllerMetrics
from joulie.apps.grid.observe import GridView
from joulie.apps.grid.runtimes import LearnedRuntimes
from joulie.apps.grid.settings import ControllerSettings
from joulie.domain.grid import names
from joulie.domain.grid.cloud_regions import CLOUD_REGIONS
from joulie.domain.grid.signals import Basis, Measure, Observation, Provenance
from joulie.ports.grid import GridSourceError
from joulie_lab.fakes.kubernetes import FakeCluster

EPOCH_S = 1_800_000_000.0
ZONE = "DE"
NS = "default"
GATES = [{"name": names.GATE}]
OWNERS = {
    "CronJob": "batch/v1", "Job": "batch/v1", "Deployment": "apps/v1", "ReplicaSet": "apps/v1",
    "StatefulSet": "apps/v1", "DaemonSet": "apps/v1",
}  # fmt: skip


class ScriptedGrid:
    """A source of one measure that says what a test lets it say; None stands for an outage."""

    name = "scripted"

    def __init__(self, stage, measure, values):
        self._stage, self.measure = stage, measure
        self.basis = Basis.AVERAGE if measure is Measure.CARBON else None
        self.values = values
        self.ahead = None
        self.period = None

    async def latest(self, zone):
        value = self.values.get(zone)
        if value is None:
            raise GridSourceError("no answer")
        return Observation(value, self._stage.now_s, Provenance("scripted", zone, self.basis), self.period)

    async def forecast(self, zone, horizon_s):
        return self.ahead

    async def history(self, zone, from_s, until_s):
        return None


class Clock:
    """What the cluster takes for the time when it creates something."""

    now_s = EPOCH_S

    def now(self):
        return datetime.fromtimestamp(self.now_s, UTC)


class Stage:
    """One cluster, one grid, and the terms of leadership that a test lets begin."""

    def __init__(self, cluster, clock, client, settings):
        self.cluster, self.clock, self.client, self.settings = cluster, clock, client, settings
        self.now_s = EPOCH_S
        self.leading = True
        self.carbon = ScriptedGrid(self, Measure.CARBON, {ZONE: 300.0, "FR": 50.0})
        self.price = ScriptedGrid(self, Measure.PRICE, {ZONE: 0.1, "FR": 0.1})
        sources = {Measure.CARBON: [self.carbon]} | (
            {Measure.PRICE: [self.price]} if settings.defaults.price_enabled else {}
        )
        self.feed = GridFeed(sources, FeedLimits(), lambda: self.now_s, zone=ZONE)
        self.feed.add_listener(lambda _measure, zone: self.term.zone_changed(zone))
        self.tasks = []
        self.watch()
        self.start()

    def runtimes_asked(self, answered, known):
        """The metrics are those of the term in office."""
        self.metrics.runtimes_asked(answered, known)

    def watch(self):
        """Watch caches, empty at first."""
        self.runtimes = LearnedRuntimes(
            self.settings.accounting_url,
            None,
            self.settings.accounting_token_file,
            self.settings.runtime_quantile,
            lambda: self.now_s,
            self.runtimes_asked,
        )
        self.view = GridView(
            self.client, self.settings.defaults, ZONE, CLOUD_REGIONS, runtimes=self.runtimes, mode=self.settings.mode
        )
        self.watching = asyncio.create_task(self.view.run())

    def start(self):
        """A new term: nothing is remembered."""
        for task in self.tasks:
            task.cancel()
        self.metrics = ControllerMetrics()
        self.term = Controller(
            self.client, self.settings, self.view, self.feed, self.metrics, asyncio.Event(),
            may_write=lambda: self.leading, now_s=lambda: self.now_s,
        )  # fmt: skip
        self.view.begin()
        self.tasks.append(asyncio.create_task(self.term.writes.run()))
        if self.term.dry is not None:
            self.tasks.append(asyncio.create_task(self.term.dry.pods.run()))

    async def look(self, passed_s=0.0):
        """Time passes, the grid is asked, one step is taken and all that it writes is written and seen."""
        self.now_s += passed_s
        await self.feed.refresh()
        await self.seen()
        await self.term.step()
        await self.term.writes.settled()
        await self.term.events.flush()
        await self.seen()

    async def seen(self):
        """The watches have caught up with the cluster."""
        listed = {}
        for pod in (await self.client.list(PODS)).items:
            if any(gate.name == names.GATE for gate in pod.spec.scheduling_gates):
                listed[pod.metadata.namespace, pod.metadata.name] = {
                    key: value for key, value in pod.metadata.annotations.items() if key.startswith(names.PREFIX)
                }
        async with asyncio.timeout(60.0):
            while listed != {
                tuple(key): {k: v for k, v in pod.asking.annotations.items() if k.startswith(names.PREFIX)}
                for key, pod in self.view.pods.items()
            }:
                await asyncio.sleep(0)

        dry = self.term.dry
        if dry is not None:
            await self.until(lambda: dry.pods.synced)
            versions = {
                (pod.metadata.namespace, pod.metadata.name): pod.status for pod in (await self.client.list(PODS)).items
            }
            await self.until(
                lambda: (
                    all(
                        (seen := dry.pods.objects.get(key)) is None
                        or (seen.ended, seen.started_s is not None)
                        == (status.phase in {"Succeeded", "Failed"}, status.start_time is not None)
                        for key, status in versions.items()
                    )
                    and set(dry.pods.objects) <= set(versions)
                )
            )

    async def until(self, condition):
        async with asyncio.timeout(60.0):
            while not (met := condition()):
                await asyncio.sleep(0)
            return met

    # ---- the cluster

    async def runs(self, name, phase="Running", *, namespace=NS):
        """What the kubelet says of a pod."""
        status = {"phase": phase}
        if phase == "Running":
            status["startTime"] = rfc3339(self.now_s)
        await self.client.patch(PODS, name, {"status": status}, namespace=namespace, subresource="status")

    async def namespace(self, name, *, policies=True, annotations=None, labels=None):
        labels = (labels or {}) | ({names.POLICIES_LABEL: names.POLICIES_ENABLED} if policies else {})
        body = {"metadata": {"name": name, "labels": labels, "annotations": annotations or {}}}
        await self.client.create(NAMESPACES, body)
        await self.until(lambda: self.view.namespace(name).uid)

    async def pod(self, name, *, namespace=NS, gates=GATES, age_s=0.0, owner=None, labels=None, annotations=None,
                  scheduler=names.SCHEDULER_NAME, **spec):  # fmt: skip
        metadata = {
            "name": name, "labels": labels or {}, "annotations": annotations or {},
        }  # fmt: skip
        if owner is not None:
            metadata["ownerReferences"] = [owner]
        body = {
            "metadata": metadata,
            "spec": {"schedulerName": scheduler, "schedulingGates": gates, "containers": [{"name": "c"}]} | spec,
        }
        created = await self._created(PODS, body, namespace, age_s)
        if gates:
            await self.seen()
        return created

    async def cron_job(self, name, **spec):
        body = {"metadata": {"name": name}, "spec": {"jobTemplate": {}, **spec}}
        created = await self._created(CRON_JOBS, body, NS, 0.0)
        counters = self.view.caches[CRON_JOBS.plural].counters
        await self.until(lambda: counters.events)
        return owner_of("CronJob", created)

    async def job(self, name, *, age_s=0.0, owner=None, labels=None, annotations=None, template=None, **spec):
        owners = [] if owner is None else [owner]
        body = {
            "metadata": {
                "name": name, "annotations": annotations or {}, "labels": labels or {}, "ownerReferences": owners,
            },
            "spec": {"suspend": False, "template": {"metadata": {"annotations": template or {}},
                     "spec": {"schedulerName": names.SCHEDULER_NAME, "containers": [{"name": "c"}]}}} | spec,
        }  # fmt: skip
        created = await self._created(JOBS, body, NS, age_s)
        await self.client.patch(
            JOBS, name, {"status": {"startTime": rfc3339(self.now_s - age_s)}}, namespace=NS, subresource="status"
        )
        await self.until(lambda: (seen := self.view.jobs.get((NS, name))) and seen.started_s is not None)
        return owner_of("Job", created)

    async def deployment(self, name, *, age_s=0.0):
        created = await self._created(DEPLOYMENTS, {"metadata": {"name": name}, "spec": {}}, NS, age_s)
        await self.until(lambda: self.view.caches[DEPLOYMENTS.plural].objects.get((NS, name)))
        return owner_of("Deployment", created)

    async def available(self, name, *, since_s, now=True):
        """What the Deployment controller says of a Deployment, and since when."""
        condition = {"type": "Available", "status": str(now), "lastTransitionTime": rfc3339(since_s)}
        status = {"status": {"replicas": 1, "availableReplicas": int(now), "conditions": [condition]}}
        counters = self.view.caches[DEPLOYMENTS.plural].counters
        seen = counters.events
        await self.client.patch(DEPLOYMENTS, name, status, namespace=NS, subresource="status")
        await self.until(lambda: counters.events > seen)

    async def restart_view(self):
        """The controller's process is another one: its caches are filled anew."""
        watching, self.watching = self.watching, None
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        self.watch()
        await self.view.wait_synced()
        self.start()

    async def replica_set(self, name, *, age_s=0.0, ready=0, owner=None):
        metadata = {"name": name, "ownerReferences": [] if owner is None else [owner]}
        created = await self._created(REPLICA_SETS, {"metadata": metadata, "spec": {}}, NS, age_s)
        await self.ready(name, ready)
        return owner_of("ReplicaSet", created)

    async def ready(self, name, ready):
        status = {"status": {"replicas": 1, "readyReplicas": ready}}
        await self.client.patch(REPLICA_SETS, name, status, namespace=NS, subresource="status")
        cache = self.view.caches[REPLICA_SETS.plural]
        await self.until(lambda: (seen := cache.objects.get((NS, name))) and seen.has_run == (ready > 0))

    async def _created(self, resource, body, namespace, age_s):
        self.clock.now_s = self.now_s - age_s
        return await self.client.create(resource, body, namespace)

    # ---- what came of it

    async def gated(self):
        """Names of the pods that have the gate."""
        pods = (await self.client.list(PODS)).items
        return sorted(
            pod.metadata.name for pod in pods if any(gate.name == names.GATE for gate in pod.spec.scheduling_gates)
        )

    async def annotations(self, name, namespace=NS):
        pod = await self.client.get(PODS, name, namespace)
        found = pod.metadata.annotations.items()
        return {key.removeprefix(names.PREFIX): value for key, value in found if key.startswith(names.PREFIX)}

    async def events(self, reason):
        return [event for event in (await self.client.list(EVENTS)).items if event.reason == reason]

    async def gating(self):
        try:
            return (await self.client.get(CONFIG_MAPS, "joulie-grid-gating", self.settings.namespace)).data
        except NotFoundError:
            return None

    def counted(self, name, **labels):
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


def owner_of(kind, found):
    return {
        "apiVersion": OWNERS[kind], "kind": kind, "name": found.metadata.name, "uid": found.metadata.uid,
        "controller": True,
    }  # fmt: skip


@asynccontextmanager
async def staged(tmp_path, **settings):
    clock = Clock()
    async with FakeCluster(now=clock.now) as cluster:
        kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
        retry = RetryPolicy(attempts=2, initial_wait_s=0.001)
        async with KubeClient(connect(kubeconfig=kubeconfig), retry=retry) as client:
            stage = Stage(cluster, clock, client, ControllerSettings(**settings))
            try:
                await stage.view.wait_synced()
                yield stage
            finally:
                for task in (stage.watching, *stage.tasks):
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)


def play(body, tmp_path, *, kind=lambda stage: stage, **settings):
    """Run a coroutine on a stage, or on what `kind` makes of it."""

    async def main():
        async with staged(tmp_path, **settings) as stage:
            await body(kind(stage))

    asyncio.run(main())
