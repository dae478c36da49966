"""The classifier against the fake cluster and a Prometheus whose answers a test writes, with a clock of its own."""

import asyncio
import itertools
import json
import ssl
from collections import Counter
from contextlib import asynccontextmanager
from urllib.parse import parse_qs

import httpx2
import pytest
import stamina
from prometheus_client import CollectorRegistry

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.client import KubeClient, NotFoundError, RetryPolicy
from joulie.adapters.kubernetes.connection import connect
from joulie.adapters.kubernetes.pods import Owner
from joulie.adapters.kubernetes.resources import (
    CRON_JOBS,
    DEPLOYMENTS,
    JOBS,
    NODE_TWINS,
    PODS,
    REPLICA_SETS,
    WORKLOAD_PROFILES,
)
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.prometheus import Prometheus
from joulie.apps.operator.classifier import controller
from joulie.apps.operator.classifier.controller import Classifier
from joulie.apps.operator.classifier.metrics import ClassifierMetrics
from joulie.apps.operator.leader import Leader
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie_lab.adapters.crd import custom_resource_definitions
from joulie_lab.fakes.kubernetes import FakeCluster
from support.played import played

pytestmark = pytest.mark.slow  # whole programs on the fake cluster

EPOCH_S = 1_800_000_000.0
WINDOW_S, PERIOD_S = 600.0, 900.0
GIB = 1024.0**3


@pytest.fixture(autouse=True)
def no_waits():
    with stamina.set_testing(True, attempts=2, cap=True):
        yield


async def until(condition):
    async with asyncio.timeout(20.0):
        while not (met := condition()):
            await asyncio.sleep(0)
        return met


class Metrics:
    """A Prometheus: values by metric and pod; it counts the queries, and may be down."""

    def __init__(self):
        self.values = {}
        self.courses = {}
        self.queries = self.ranges = 0
        self.down = False

    def set(self, metric, pod, value, **labels):
        self.values.setdefault(metric, {})[pod] = (value, labels)

    def use(self, pod, *, cores, gib=None):
        self.set("container_cpu_usage_seconds_total", pod, cores)
        if gib is not None:
            self.set("container_memory_working_set_bytes", pod, gib * GIB)

    def gpu(self, pod, util_pct, uuid="GPU-0"):
        self.set("DCGM_FI_DEV_GPU_UTIL", pod, util_pct, UUID=uuid, gpu="0")

    def __call__(self, request):
        if self.down:
            raise httpx2.ConnectError("refused")
        self.queries += 1
        form = {key: values[0] for key, values in parse_qs(request.content.decode()).items()}
        query = form["query"]
        if request.url.path.endswith("query_range"):
            return self._course(query, float(form["start"]), float(form["end"]), float(form["step"]))
        if query.startswith("up "):
            found = {}
        else:
            found = next((pods for metric, pods in self.values.items() if metric in query), {})
        result = [
            {"metric": {"namespace": "default", "pod": pod, **labels}, "value": [EPOCH_S, str(value)]}
            for pod, (value, labels) in found.items()
        ]
        answer = {"status": "success", "data": {"resultType": "vector", "result": result}}
        return httpx2.Response(200, content=json.dumps(answer).encode())

    def _course(self, query, start_s, end_s, step_s):
        """By metric and pod, a function of the time."""
        self.ranges += 1
        found = next((pods for metric, pods in self.courses.items() if metric in query), {})
        times_s = [start_s + step_s * index for index in range(int((end_s - start_s) / step_s + 0.5) + 1)]
        result = [
            {
                "metric": {"namespace": "default", "pod": pod, "UUID": f"GPU-{pod}"},
                "values": [[at, str(value(at))] for at in times_s],
            }
            for pod, value in found.items()
        ]
        answer = {"status": "success", "data": {"resultType": "matrix", "result": result}}
        return httpx2.Response(200, content=json.dumps(answer).encode())


class Stage:
    """A classifier that looks when it is told to."""

    def __init__(self, cluster, client, settings, prometheus):
        self.cluster, self.client, self.settings, self.prometheus = cluster, client, settings, prometheus
        self.now_s = EPOCH_S
        self.leading = True
        self.view = ClusterView(client, settings, BUILTIN_CATALOGUE)
        self.classifier = None
        self.tasks = [asyncio.create_task(self.view.run())]

    async def start(self):
        """A new term: nothing is remembered."""
        await self.view.wait_synced()
        if self.classifier is not None:
            self.view.workload_watchers.remove(self.classifier)
        self.metrics = ClassifierMetrics(CollectorRegistry())
        self.classifier = Classifier(
            Leader(self.client, self.view, self.settings, None, lambda: self.leading, lambda: self.now_s),
            self.prometheus, self.metrics,
        )  # fmt: skip
        self.view.workload_watchers.append(self.classifier)
        self.tasks.append(asyncio.create_task(self.classifier._owners.run()))
        await self.classifier._owners.wait_synced()

    async def cycle(self, passed_s=0.0):
        """One look at everything; gives what it wrote."""
        return await self._look(self.classifier.cycle, passed_s)

    async def classify_changed(self):
        return await self._look(self.classifier.classify_changed, 0.0)

    async def _look(self, look, passed_s):
        self.now_s += passed_s
        before = self.writes()
        await look()
        if written := self.writes() - before:
            await self.caught_up()
        return written

    async def caught_up(self):
        stored = {item.metadata.name: item.metadata.uid for item in (await self.client.list(WORKLOAD_PROFILES)).items}
        await until(lambda: {key.name: entry.uid for key, entry in self.view.profiles.items()} == stored)
        for item in (await self.client.list(WORKLOAD_PROFILES)).items:
            await until(
                lambda item=item: any(
                    entry.status == item.status and entry.node_name == item.spec.node_name
                    for key, entry in self.view.profiles.items()
                    if key.name == item.metadata.name
                )
            )

    def writes(self):
        return Counter(
            {
                sample.labels["kind"]: int(sample.value)
                for family in self.metrics.writes.collect()
                for sample in family.samples
                if sample.name.endswith("_total")
            }
        )

    async def add_pod(self, name, *, owner=None, node="n1", age_s=0.0, phase="Running", labels=None, **more):
        """A pod that has run for so long already."""
        annotations = {f"joulie.io/{key.replace('_', '-')}": value for key, value in more.pop("said", {}).items()}
        resources = more.pop("resources", {"requests": {"cpu": "2", "memory": "4Gi"}})
        meta = {"name": name, "annotations": annotations | more.pop("annotations", {}), "labels": labels or {}}
        if owner is not None:
            meta["ownerReferences"] = [owner]
        spec = {"nodeName": node, "containers": [{"name": "c", "resources": resources}]}
        status = {"phase": phase}
        if phase == "Running":
            status["startTime"] = rfc3339(self.now_s - age_s)
        await self.client.create(PODS, {"metadata": meta, "spec": spec}, "default")
        await self.set_status(name, **status)

    async def set_status(self, name, **status):
        await self.client.patch(PODS, name, {"status": status}, namespace="default", subresource="status")
        await until(
            lambda: (pod := self.pod(name)) is not None and (pod.running_since_s is None) != ("startTime" in status)
        )

    def pod(self, name):
        found = (pods for pods in self.view.ledger.workloads.values())
        return next((pod for pods in found for pod in pods.values() if pod.name == name), None)

    async def remove_pod(self, name):
        await self.client.delete(PODS, name, "default", grace_s=0)
        await until(lambda: self.pod(name) is None)

    async def cap(self, node, *, cpu_pct=100.0, gpu_pct=100.0):
        """The operator states caps."""
        twin = {"spec": {"nodeName": node, "profile": "eco"}}
        await self.client.apply(NODE_TWINS, node, twin, field_manager="joulie-operator")
        caps = {"cpuPct": cpu_pct, "gpuPct": gpu_pct}
        status = {"status": {"schedulableClass": "eco", "effectiveCapState": caps}}
        await self.client.patch(NODE_TWINS, node, status, subresource="status")
        await until(
            lambda: (
                (twin := self.view.twin_of(node)) is not None
                and twin.status.effective_cap_state is not None
                and (twin.status.effective_cap_state.cpu_pct, twin.status.effective_cap_state.gpu_pct)
                == (cpu_pct, gpu_pct)
            )
        )

    async def profile(self, name):
        return await self.client.get(WORKLOAD_PROFILES, name, "default")


def controlled_by(created, kind, api_version):
    return {
        "apiVersion": api_version, "kind": kind, "name": created.metadata.name, "uid": created.metadata.uid,
        "controller": True,
    }  # fmt: skip


def measured(profile):
    (condition,) = profile.status.conditions
    assert condition.type == "Measured"
    return condition.status, condition.reason


@asynccontextmanager
async def staged(tmp_path, metrics, **settings):
    async with FakeCluster(custom_resource_definitions()) as cluster:
        kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
        retry = RetryPolicy(attempts=2, initial_wait_s=0.001)
        async with (
            KubeClient(connect(kubeconfig=kubeconfig), retry=retry) as client,
            httpx2.AsyncClient(transport=httpx2.MockTransport(metrics)) as http,
        ):
            own = OperatorSettings(
                agent_pod_selector="", classify_window_s=WINDOW_S, reclassify_interval_s=PERIOD_S, **settings
            )
            clock = lambda: stage.now_s  # noqa: E731
            prometheus = None if metrics is None else Prometheus("http://prometheus:9090", http, now_s=clock)
            stage = Stage(cluster, client, own, prometheus)
            stage.scripted = metrics
            await stage.start()
            try:
                yield stage
            finally:
                for task in stage.tasks:
                    task.cancel()
                await asyncio.gather(*stage.tasks, return_exceptions=True)


def play(body, tmp_path, *, metrics=True, **settings):
    async def main():
        async with staged(tmp_path, Metrics() if metrics else None, **settings) as stage:
            await body(stage)

    asyncio.run(main())


@played(play)
async def test_a_new_workload_gets_its_profile_from_hints_and_then_no_write(stage):
    await stage.add_pod("train", said={"workload_class": "performance", "reschedulable": "false"})
    assert await stage.classify_changed() == {"create": 1, "status": 1}
    profile = await stage.profile("pod-train")
    status = profile.status
    assert profile.spec.workload_ref.kind == "Pod"
    assert (status.criticality.workload_class, status.migratability.reschedulable) == ("performance", False)
    assert (status.classification_reason, status.confidence) == ("hints only (no metrics available)", 0.3)
    assert (status.cpu, status.gpu) == (None, None)
    assert measured(profile) == ("False", "HintsOnly")
    assert stage.scripted.queries == 0
    for _ in range(3):
        assert await stage.cycle(30.0) == {}


@played(play)
async def test_refined_from_metrics_after_the_window_in_place(stage):
    await stage.add_pod("train")
    await stage.cycle()
    uid = (await stage.profile("pod-train")).metadata.uid
    stage.scripted.use("train", cores=1.8, gib=1.0)
    assert await stage.cycle(WINDOW_S - 10.0) == {}
    assert stage.scripted.queries == 0
    assert await stage.cycle(20.0) == {"status": 1}
    profile = await stage.profile("pod-train")
    assert profile.metadata.uid == uid
    assert profile.status.classification_reason == (
        "cpu-intensity=high (util 90%≥75%); cpu-bound=compute, cap-sensitivity=high (util 90%>70%)"
    )
    assert (profile.status.confidence, profile.status.cpu.cap_sensitivity) == (0.5, "high")
    assert measured(profile) == ("True", "Measured")
    # 3 points are noise, 10 are not.
    stage.scripted.use("train", cores=1.86, gib=1.0)
    assert await stage.cycle(PERIOD_S) == {}
    stage.scripted.use("train", cores=2.0, gib=1.0)
    assert await stage.cycle(PERIOD_S) == {"status": 1}
    assert (await stage.profile("pod-train")).status.cpu.avg_utilization_pct == 100.0


@played(play)
async def test_the_seed_s_example_to_the_letter(stage):
    gpu = {"requests": {"cpu": "4", "memory": "10Gi"}, "limits": {"memory": "10Gi", "nvidia.com/gpu": "1"}}
    await stage.add_pod("llm", age_s=WINDOW_S, resources=gpu, said={"reschedulable": "true"})
    stage.scripted.use("llm", cores=1.8, gib=6.8)
    stage.scripted.gpu("llm", 92.0)
    for part, watts in (("package", 50.0), ("dram", 25.0), ("gpu", 300.0)):
        stage.scripted.set(f"kepler_container_{part}_joules_total", "llm", watts)
    assert await stage.cycle() == {"create": 1, "status": 1}
    status = (await stage.profile("pod-llm")).status
    assert status.classification_reason == (
        "cpu-intensity=medium (util 45%); cpu-bound=memory (mem-pressure 68%>50%); gpu-intensity=high (util 92%≥70%)"
    )
    assert (status.cpu.intensity, status.cpu.bound, status.cpu.cap_sensitivity) == ("medium", "memory", "low")
    assert (status.gpu.intensity, status.gpu.bound, status.gpu.cap_sensitivity) == ("high", "compute", "high")
    assert (status.cpu.avg_utilization_pct, status.gpu.avg_utilization_pct) == (45.0, 92.0)
    assert (status.confidence, status.migratability.reschedulable) == (0.85, True)


@played(play)
async def test_confidence_falls_step_by_step_while_metrics_are_missing_and_comes_back(stage):
    await stage.add_pod("train", age_s=WINDOW_S)
    stage.scripted.use("train", cores=1.8, gib=1.0)
    for part, watts in (("package", 50.0), ("dram", 40.0)):
        stage.scripted.set(f"kepler_container_{part}_joules_total", "train", watts)
    await stage.cycle()
    assert (await stage.profile("pod-train")).status.confidence == 0.7
    kept, stage.scripted.values = stage.scripted.values, {}
    seen = []
    for _ in range(60):  # an hour and a half
        written = await stage.cycle(90.0)
        assert written in ({}, {"status": 1})
        if written:
            profile = await stage.profile("pod-train")
            assert profile.status.cpu.bound == "memory"
            assert "metrics missing (last values kept)" in profile.status.classification_reason
            seen.append((stage.now_s - EPOCH_S, profile.status.confidence, *measured(profile)))
    assert [confidence for _, confidence, *_ in seen] == [0.6, 0.5, 0.4, 0.3]
    assert [condition for *_, condition, _ in seen] == ["False"] * 4
    assert {reason for *_, reason in seen} == {"NoMetrics"}
    gaps = [later[0] - earlier[0] for earlier, later in zip([(0.0,), *seen], seen, strict=False)]
    assert all(PERIOD_S <= gap <= 2 * PERIOD_S for gap in gaps)
    stage.scripted.values = kept
    assert await stage.cycle(30.0) == {"status": 1}
    profile = await stage.profile("pod-train")
    assert (profile.status.confidence, *measured(profile)) == (0.7, "True", "Measured")
    assert "metrics missing" not in profile.status.classification_reason


@played(play)
async def test_trap_a_dead_prometheus_turns_nothing_into_hints(stage):
    await stage.add_pod("train", age_s=WINDOW_S)
    await stage.add_pod("late")
    stage.scripted.use("train", cores=1.8, gib=1.0)
    await stage.cycle()
    before = (await stage.profile("pod-train")).status
    stage.scripted.down = True
    for _ in range(29):  # not yet a step
        await stage.cycle(30.0)
    assert (await stage.profile("pod-train")).status == before
    assert measured(await stage.profile("pod-late")) == ("False", "PrometheusUnavailable")
    # A new leader knows nothing of the outage, and does not take all of it off at once.
    await stage.start()
    total = Counter()
    for _ in range(10):
        total += await stage.cycle(30.0)
    assert total == {}
    stage.scripted.use("late", cores=0.1)
    stage.scripted.down = False
    for _ in range(12):  # the breaker asks again after five minutes at the latest
        await stage.cycle(30.0)
    assert measured(await stage.profile("pod-late")) == ("True", "Measured")


@played(play)
async def test_trap_gpus_that_nobody_measures_any_more_are_not_idle(stage):
    gpu = {"requests": {"cpu": "2"}, "limits": {"nvidia.com/gpu": "1"}}
    await stage.add_pod("train", age_s=WINDOW_S, resources=gpu)
    stage.scripted.use("train", cores=0.2)
    stage.scripted.gpu("train", 95.0)
    await stage.cycle()
    del stage.scripted.values["DCGM_FI_DEV_GPU_UTIL"]
    await stage.cycle(PERIOD_S)
    await stage.cycle(30.0)
    status = (await stage.profile("pod-train")).status
    assert (status.gpu.intensity, status.gpu.cap_sensitivity) == ("high", "high")
    assert status.confidence < 0.5
    # CPU alone is taken for what it is once nothing is left of the confidence.
    for _ in range(10):
        await stage.cycle(PERIOD_S)
    status = (await stage.profile("pod-train")).status
    assert (status.confidence, status.gpu) == (0.5, None)


@played(play)
async def test_a_deployment_is_one_workload_through_its_replica_sets(stage):
    meta = {"name": "web", "annotations": {names.WORKLOAD_CLASS_ANNOTATION: "performance"}}
    deployment = await stage.client.create(DEPLOYMENTS, {"metadata": meta}, "default")
    await until(lambda: stage.classifier._owners.find(("default", Owner("Deployment", "web"))))
    for generation, age_s in (("aaa", 2 * WINDOW_S), ("bbb", 10.0)):
        replicas = await stage.client.create(REPLICA_SETS, {"metadata": {"name": f"web-{generation}"}}, "default")
        for index in range(2):
            name = f"web-{generation}-{index}"
            await stage.add_pod(
                name, owner=controlled_by(replicas, "ReplicaSet", "apps/v1"), age_s=age_s, node=f"n{index}",
                labels={"pod-template-hash": generation},
            )  # fmt: skip
            # The young pods' start says nothing of the workload.
            stage.scripted.use(name, cores=1.0 if generation == "aaa" else 0.0, gib=1.0)
    assert await stage.cycle() == {"create": 1, "status": 1}
    profile = await stage.profile("deployment-web")
    assert [owner.uid for owner in profile.metadata.owner_references] == [deployment.metadata.uid]
    assert (profile.spec.workload_ref.kind, profile.spec.workload_ref.name) == ("Deployment", "web")
    assert profile.status.cpu.avg_utilization_pct == 50.0
    assert profile.spec.node_name is None
    # An annotation of the Deployment, which restarts no pod, and then of a pod, which wins.
    assert (profile.status.criticality.workload_class, profile.status.confidence) == ("performance", 0.65)
    for index in range(2):
        await stage.remove_pod(f"web-aaa-{index}")
    said = {"metadata": {"annotations": {names.WORKLOAD_CLASS_ANNOTATION: "standard"}}}
    await stage.client.patch(PODS, "web-bbb-0", said, namespace="default")
    await until(lambda: stage.pod("web-bbb-0").workload_class is not None)
    assert await stage.cycle(30.0) == {"status": 1}
    assert (await stage.profile("deployment-web")).status.criticality.workload_class == "standard"
    await stage.client.delete(DEPLOYMENTS, "web", "default")
    with pytest.raises(NotFoundError):
        await stage.profile("deployment-web")


@played(play)
async def test_runs_of_a_cron_job_share_a_profile_that_outlives_them(stage):
    cron = await stage.client.create(CRON_JOBS, {"metadata": {"name": "nightly"}}, "default")
    await until(lambda: stage.classifier._owners.find(("default", Owner("CronJob", "nightly"))))

    async def run(name, **more):
        # The fake cluster's own clock says when a pod was created, and the name has to fit.
        owner = {"kind": "CronJob", "apiVersion": "batch/v1", "name": "nightly", "uid": cron.metadata.uid}
        job = await stage.client.create(
            JOBS, {"metadata": {"name": name, "ownerReferences": [{**owner, "controller": True}]}}, "default"
        )
        await stage.add_pod(f"{name}-x", owner=controlled_by(job, "Job", "batch/v1"), **more)

    minute = int(stage.cluster.api._now().timestamp() // 60)
    await run(f"nightly-{minute}", age_s=WINDOW_S)
    stage.scripted.use(f"nightly-{minute}-x", cores=2.0, gib=1.0)
    assert await stage.cycle() == {"create": 1, "status": 1}
    profile = await stage.profile("cronjob-nightly")
    assert [owner.uid for owner in profile.metadata.owner_references] == [cron.metadata.uid]
    await stage.client.delete(JOBS, f"nightly-{minute}", "default")
    await stage.remove_pod(f"nightly-{minute}-x")
    for _ in range(10):
        assert await stage.cycle(PERIOD_S) == {}
    # The next run starts with what was learned, and its first minutes without metrics take nothing away.
    await run(f"nightly-{minute - 1}")
    assert await stage.classify_changed() == {}
    assert await stage.cycle(PERIOD_S / 2) == {}
    # A number that is a date is no minute.
    await run("nightly-20260101")
    assert await stage.classify_changed() == {"create": 1, "status": 1}
    assert (await stage.profile("job-nightly-20260101")).spec.workload_ref.kind == "Job"


@played(play)
async def test_somebody_s_own_profile_is_never_touched(stage):
    for place, pod in (("mine", "train"), ("pod-other", "unrelated")):
        reference = {"kind": "Pod", "name": pod, "namespace": "default"}
        await stage.client.create(
            WORKLOAD_PROFILES, {"metadata": {"name": place}, "spec": {"workloadRef": reference}}, "default"
        )
    await until(lambda: len(stage.view.profiles) == 2)
    await stage.add_pod("train", age_s=WINDOW_S)
    await stage.add_pod("other", age_s=WINDOW_S)  # its profile's place is taken
    stage.scripted.use("train", cores=2.0, gib=1.0)
    before = (await stage.client.list(WORKLOAD_PROFILES)).items
    assert await stage.cycle() == {}
    assert (await stage.client.list(WORKLOAD_PROFILES)).items == before
    assert stage.metrics.profiles.labels("manual")._value.get() == 2


@played(play)
async def test_an_own_profile_gives_way_to_somebody_s_and_comes_back(stage):
    await stage.add_pod("train")
    await stage.cycle()
    reference = {"kind": "Pod", "name": "train", "namespace": "default"}
    status = {"criticality": {"class": "performance"}, "confidence": 1}
    mine = {"metadata": {"name": "mine"}, "spec": {"workloadRef": reference}}
    await stage.client.create(WORKLOAD_PROFILES, mine, "default")
    await stage.client.patch(WORKLOAD_PROFILES, "mine", {"status": status}, namespace="default", subresource="status")
    await stage.caught_up()
    assert sum(stage.view.ledger.demand.values()) == 1
    assert await stage.cycle(30.0) == {"delete": 1}
    assert [item.metadata.name for item in (await stage.client.list(WORKLOAD_PROFILES)).items] == ["mine"]
    assert sum(stage.view.ledger.demand.values()) == 1
    await stage.client.delete(WORKLOAD_PROFILES, "mine", "default")
    await stage.caught_up()
    assert sum(stage.view.ledger.demand.values()) == 0
    assert await stage.cycle(30.0) == {"create": 1, "status": 1}


@played(play)
async def test_a_profile_that_is_taken_over_is_somebody_s_own(stage):
    await stage.add_pod("train")
    await stage.cycle()
    await stage.client.patch(
        WORKLOAD_PROFILES, "pod-train", {"metadata": {"labels": {names.MANAGED_BY_LABEL: None}}},
        namespace="default",
    )  # fmt: skip
    await until(lambda: not next(iter(stage.view.profiles.values())).automatic)
    stage.scripted.use("train", cores=2.0, gib=1.0)
    assert await stage.cycle(WINDOW_S) == {}


@played(play)
async def test_profiles_that_go_with_nothing_are_swept(stage):
    # A ReplicaSet of a Deployment that nobody can see any more: the profile has nobody to go with.
    replicas = await stage.client.create(REPLICA_SETS, {"metadata": {"name": "web-aaa"}}, "default")
    await stage.add_pod(
        "web-aaa-0",
        owner=controlled_by(replicas, "ReplicaSet", "apps/v1"),
        labels={"pod-template-hash": "aaa"},
    )
    await stage.cycle()
    profile = await stage.profile("deployment-web")
    assert profile.metadata.owner_references == ()
    assert await stage.cycle(30.0) == {}
    await stage.remove_pod("web-aaa-0")
    assert await stage.cycle(30.0) == {"delete": 1}
    # One that is scaled to nothing keeps its profile.
    await stage.client.create(DEPLOYMENTS, {"metadata": {"name": "web"}}, "default")
    await until(lambda: stage.classifier._owners.find(("default", Owner("Deployment", "web"))))
    await stage.add_pod(
        "web-aaa-0",
        owner=controlled_by(replicas, "ReplicaSet", "apps/v1"),
        labels={"pod-template-hash": "aaa"},
    )
    await stage.cycle(30.0)
    await stage.remove_pod("web-aaa-0")
    assert await stage.cycle(PERIOD_S) == {}


@played(play)
async def test_the_profile_of_a_bare_pod_goes_with_it(stage):
    await stage.add_pod("train")
    await stage.cycle()
    assert (await stage.profile("pod-train")).spec.node_name == "n1"
    await stage.remove_pod("train")
    with pytest.raises(NotFoundError):
        await stage.profile("pod-train")
    await stage.caught_up()
    assert await stage.cycle(30.0) == {}
    # A pod of the same name is another workload.
    await stage.add_pod("train")
    assert await stage.classify_changed() == {"create": 1, "status": 1}


@played(play)
async def test_trap_a_profile_that_is_gone_is_not_brought_back_as_a_ghost(stage):
    await stage.add_pod("train")
    await stage.cycle()
    stage.scripted.use("train", cores=2.0, gib=1.0)
    stage.cluster.delay_watches(3600.0)  # the view does not hear of it
    await stage.client.delete(PODS, "train", "default", grace_s=0)
    stage.now_s += WINDOW_S
    await stage.classifier.cycle()
    assert (await stage.client.list(WORKLOAD_PROFILES)).items == []
    assert stage.metrics.write_errors._value.get() == 0.0
    stage.cluster.delay_watches(0.0)


@played(play)
async def test_finished_and_static_pods_get_no_profile(stage):
    await stage.add_pod("done", phase="Succeeded")
    node = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u", "controller": True}
    await stage.add_pod("kube-proxy-n1", owner=node, age_s=WINDOW_S)
    assert await stage.cycle() == {}


@played(play)
async def test_annotations_take_effect_within_a_cycle(stage):
    await stage.add_pod("train", age_s=WINDOW_S)
    stage.scripted.use("train", cores=1.8, gib=1.0)
    await stage.cycle()
    said = {"metadata": {"annotations": {names.CPU_SENSITIVITY_ANNOTATION: "low"}}}
    await stage.client.patch(PODS, "train", said, namespace="default")
    await until(lambda: stage.pod("train").cpu_sensitivity is not None)
    assert stage.classifier._wake.is_set()
    assert await stage.cycle(30.0) == {"status": 1}
    status = (await stage.profile("pod-train")).status
    assert (status.cpu.cap_sensitivity, status.confidence) == ("low", 0.65)
    assert status.classification_reason.endswith("cpu-cap-sensitivity=low (annotation override)")


@played(play)
async def test_a_measured_profile_is_written_for_its_age_at_least_every_fourth_time(stage):
    await stage.add_pod("train", age_s=WINDOW_S)
    stage.scripted.use("train", cores=1.8, gib=1.0)
    await stage.cycle()
    times = [stage.now_s - EPOCH_S for _ in range(240) if await stage.cycle(60.0)]
    gaps = [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]
    assert len(times) >= 2
    assert all(4 * PERIOD_S <= gap <= 5 * PERIOD_S + 60.0 for gap in gaps)


@played(play)
async def test_another_leader_repeats_nothing(stage):
    await stage.add_pod("train", age_s=WINDOW_S)
    await stage.add_pod("new")
    stage.scripted.use("train", cores=1.8, gib=1.0)
    await stage.cycle()
    await stage.start()
    assert await stage.cycle(1.0) == {}
    stage.leading = False
    await stage.add_pod("later")
    assert await stage.cycle(1.0) == {}
    assert stage.metrics.write_errors._value.get() == 1.0


@played(play)
async def test_a_write_that_fails_is_tried_again(stage):
    await stage.add_pod("train", age_s=WINDOW_S)
    stage.scripted.use("train", cores=1.8, gib=1.0)
    stage.cluster.fail_next(2, 500, path="workloadprofiles/pod-train/status")
    assert await stage.cycle() == {"create": 1}
    assert (await stage.profile("pod-train")).status.confidence is None
    assert await stage.cycle(30.0) == {"status": 1}
    assert (await stage.profile("pod-train")).status.confidence == 0.5


@played(play, classify_simulated=True)
async def test_simulated_use_counts_as_measured_where_it_is_asked_for(stage):
    annotations = {names.SIM_CPU_UTIL_PCT_ANNOTATION: "95", names.SIM_MEMORY_PRESSURE_PCT_ANNOTATION: "20"}
    await stage.add_pod("train", age_s=WINDOW_S, annotations=annotations)
    await stage.add_pod("silent", age_s=WINDOW_S)
    await stage.cycle()
    profile = await stage.profile("pod-train")
    assert profile.status.cpu.cap_sensitivity == "high"
    assert measured(profile) == ("True", "Simulated")
    assert measured(await stage.profile("pod-silent")) == ("False", "HintsOnly")
    assert stage.scripted.queries == 0


@played(play, metrics=False)
async def test_without_prometheus_hints_are_written_once(stage):
    await stage.add_pod("train", age_s=WINDOW_S)
    assert await stage.cycle() == {"create": 1, "status": 1}
    for _ in range(8):
        assert await stage.cycle(PERIOD_S) == {}
    assert measured(await stage.profile("pod-train")) == ("False", "HintsOnly")


@played(play)
async def test_many_workloads_take_a_handful_of_queries(stage):
    pods = [f"job-{index}" for index in range(100)]
    for name in pods:
        await stage.add_pod(name, age_s=WINDOW_S)
        stage.scripted.use(name, cores=1.8, gib=1.0)
    assert await stage.cycle() == {"create": 100, "status": 100}
    assert stage.scripted.queries <= 12
    assert stage.metrics.profiles.labels("measured")._value.get() == 100
    # Spread over the period from here on: no cycle has to look at all of them.
    due = [
        len([need for _, need in await stage.classifier._find_due(list(stage.view.ledger.workloads))])
        for stage.now_s in (EPOCH_S + 90.0 * part for part in range(1, 11))
    ]
    assert due == sorted(due)
    assert due[-1] == 100
    assert max(later - earlier for earlier, later in itertools.pairwise([0, *due])) <= 25


def test_it_runs_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(controller, "DEBOUNCE_S", 0.0)

    async def body(stage):
        stage.view.workload_watchers.clear()
        stage.cluster.fail_next(1000, 403, path="/deployments")
        monkeypatch.setattr(controller, "_OWNERS_WAIT_S", 0.01)
        classifier = Classifier(
            Leader(stage.client, stage.view, stage.settings, None, lambda: True, lambda: stage.now_s),
            stage.prometheus, stage.metrics,
        )  # fmt: skip
        running = asyncio.create_task(classifier.run())
        await until(lambda: stage.view.workload_watchers)
        await stage.add_pod("new")
        await until(lambda: stage.view.profiles)
        # Without the right to see Deployments their pods are still one workload.
        replicas = await stage.client.create(REPLICA_SETS, {"metadata": {"name": "web-aaa"}}, "default")
        await stage.add_pod(
            "web-aaa-0",
            owner=controlled_by(replicas, "ReplicaSet", "apps/v1"),
            labels={"pod-template-hash": "aaa"},
            age_s=WINDOW_S,
        )
        stage.scripted.use("web-aaa-0", cores=1.8, gib=1.0)
        await until(lambda: any(entry.status.confidence == 0.5 for entry in stage.view.profiles.values()))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert stage.view.workload_watchers == []
        stage.view.workload_watchers.append(stage.classifier)

    play(body, tmp_path, classify_interval_s=1.0)


@played(play)
async def test_a_cycle_that_fails_does_not_end_it(stage, monkeypatch, caplog):
    async def broken():
        raise ssl.SSLError("unexpected")

    monkeypatch.setattr(stage.classifier, "cycle", broken)
    task = asyncio.create_task(stage.classifier._classify_loop())
    await until(lambda: "classification failed" in caplog.text)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@played(play)
async def test_an_annotation_of_a_workload_that_cannot_be_read_is_told_once(stage, caplog):
    meta = {"name": "web", "annotations": {names.RESCHEDULABLE_ANNOTATION: "perhaps"}}
    await stage.client.create(DEPLOYMENTS, {"metadata": meta}, "default")
    web = ("default", Owner("Deployment", "web"))
    await until(lambda: stage.classifier._owners.find(web))
    await stage.client.patch(
        DEPLOYMENTS, "web", {"metadata": {"annotations": {names.CPU_SENSITIVITY_ANNOTATION: "low"}}},
        namespace="default",
    )  # fmt: skip
    await until(lambda: stage.classifier._owners.find(web).hints.cpu_sensitivity)
    (record,) = (one for one in caplog.records if "perhaps" in one.message)
    assert record.workload == "Deployment default/web"


GPU_POD = {"requests": {"cpu": "4", "memory": "10Gi"}, "limits": {"nvidia.com/gpu": "1"}}


@pytest.mark.parametrize(("learned", "asked"), [(True, 3), (False, 0)])
def test_the_course_of_use_refines_profiles_where_it_is_wanted(tmp_path, learned, asked):
    async def body(stage):
        for name, said in (("free", {}), ("said", {"gpu_sensitivity": "high"})):
            await stage.add_pod(name, age_s=WINDOW_S, resources=GPU_POD, said=said)
            stage.scripted.use(name, cores=0.8)
            stage.scripted.gpu(name, 60.0, uuid=f"GPU-{name}")
            stage.scripted.set("DCGM_FI_DEV_MEM_COPY_UTIL", name, 20.0, UUID=f"GPU-{name}", gpu="0")
        stage.scripted.courses = {
            "container_cpu_usage_seconds_total": dict.fromkeys(("free", "said"), lambda _: 0.8),
            "DCGM_FI_DEV_GPU_UTIL": dict.fromkeys(("free", "said"), lambda _: 60.0),
        }
        await stage.cycle()
        free, said = [(await stage.profile(f"pod-{name}")).status for name in ("free", "said")]
        assert said.gpu.cap_sensitivity == "high"
        assert "learned: gpu-cap-sensitivity" not in said.classification_reason
        assert free.gpu.cap_sensitivity == ("low" if learned else "medium")
        shown = "learned: gpu-cap-sensitivity=low (gpu-busy 60%≤75%, gpu-peak 60%≤73%, mem-activity 20%>1%)"
        assert free.classification_reason.endswith(shown) == learned
        assert free.confidence == 0.5
        assert stage.scripted.ranges == asked

    play(body, tmp_path, classify_learned=learned)


@played(play, cap_response_query="work")
async def test_cap_sensitivity_is_measured_where_a_cap_changes(stage):
    for name, node, said in (
        ("slows", "n1", {}),
        ("annotated", "n1", {"cpu_sensitivity": "low"}),
        ("far", "n2", {}),
    ):
        await stage.add_pod(name, age_s=WINDOW_S, node=node, said=said)
        stage.scripted.use(name, cores=0.5)
    changes_s = stage.now_s + 630.0
    stage.scripted.courses["work"] = {
        name: lambda at, name=name: 100.0 if at < changes_s or name == "far" else 70.0
        for name in ("slows", "annotated", "far")
    }
    await stage.cap("n1")
    await stage.cap("n2")
    await stage.cycle()
    for _ in range(21):
        await stage.cycle(30.0)
    await stage.cap("n1", cpu_pct=60.0)
    assert stage.now_s == changes_s
    for _ in range(60):
        await stage.cycle(30.0)
    assert stage.scripted.ranges == 1, "one query for all that changed together"
    slows, annotated, far = [(await stage.profile(f"pod-{name}")).status for name in ("slows", "annotated", "far")]
    assert slows.cpu.cap_sensitivity == "high"
    assert slows.classification_reason.endswith(
        "cpu-cap-sensitivity=high (measured slowdown 0.75 [0.75, 0.75] per cap depth)"
    )
    assert annotated.cpu.cap_sensitivity == "low"
    assert "measured" not in annotated.classification_reason + far.classification_reason
    await stage.remove_pod("slows")
    await stage.cycle(30.0)
    assert {key[1].name for key in stage.classifier._responses._kept} == {"annotated"}


@played(play, cap_response_query="work")
async def test_trap_a_throughput_query_that_fails_ends_nothing(stage):
    await stage.add_pod("web", age_s=WINDOW_S)
    stage.scripted.use("web", cores=1.8, gib=1.0)
    await stage.cap("n1")
    await stage.cycle()
    await stage.cap("n1", cpu_pct=60.0)
    await stage.cycle(30.0)
    stage.scripted.down = True
    await stage.cycle(1000.0)
    assert stage.metrics.query_errors.labels("cap-response")._value.get() == 1
    assert (await stage.profile("pod-web")).status.cpu.cap_sensitivity == "high"
