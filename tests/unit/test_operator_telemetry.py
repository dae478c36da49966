"""The operator's telemetry end to end: exporters over Prometheus, TelemetryProfiles, and what comes of outages."""

import asyncio
import re
from contextlib import asynccontextmanager

import httpx2
import numpy as np
import pytest

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import KubeClient, RetryPolicy
from joulie.adapters.kubernetes.connection import connect
from joulie.adapters.kubernetes.pods import Owner, PodFacts
from joulie.adapters.kubernetes.requests import Requests
from joulie.adapters.kubernetes.resources import NODE_HARDWARES, NODE_TWINS, NODES, PODS, TELEMETRY_PROFILES
from joulie.adapters.prometheus import Prometheus
from joulie.apps.operator.loop import ControlLoop
from joulie.apps.operator.metrics import OperatorMetrics
from joulie.apps.operator.observe import ClusterView
from joulie.apps.operator.power.wiring import Clients
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.cooling_stress import linear_cooling_stress
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.policies import POLICIES
from joulie.domain.policy import PodPhase, PolicySettings
from joulie_lab.adapters.crd import custom_resource_definitions
from joulie_lab.fakes.kubernetes import FakeCluster
from support.played import played

pytestmark = pytest.mark.slow  # whole programs on the fake cluster

LABELS = {
    "joulie.io/managed": "true",
    "joulie.io/hw.cpu-model": "AMD-EPYC-9654",
    "joulie.io/hw.gpu-model": "NVIDIA-L40S",
    "joulie.io/hw.gpu-count": "1",
}
EPOCH_S = 1_800_000_000.0
ADDRESS = "http://prometheus:9090"
PENDING = PodFacts("", "", "", PodPhase.PENDING, "", Requests(), Owner("Pod", ""))


async def until(condition):
    async with asyncio.timeout(20.0):
        while not (met := condition()):
            await asyncio.sleep(0)
        return met


class Exporters:
    """What Prometheus knows: watts of each kind, of the node n; and endpoints of telemetry."""

    def __init__(self):
        self.down = False
        self.kepler_w = self.dcgm_w = self.node_exporter_w = None
        self.busy_cores = None
        self.answers = {}
        self.endpoints = {}
        self.asked = []
        self.now_s = EPOCH_S

    def handle(self, request):
        if request.url.host != "prometheus":
            return self.endpoints.get(str(request.url)) or httpx2.Response(404)
        if self.down:
            return httpx2.Response(503)
        query = httpx2.QueryParams(request.read().decode())["query"]
        self.asked.append(query)
        if query in self.answers:
            return self._answer(
                "vector",
                [{"metric": labels, "value": [self.now_s, str(value)]} for labels, value in self.answers[query]],
            )
        if not re.search(r"\[\d+s\]$", query):
            return self._answer("vector", [])
        return self._answer("matrix", list(self._histories(query)))

    def _histories(self, query):
        if "kepler_node" in query and self.kepler_w is not None:
            labels = {"zone": "package", "path": "/sys/intel-rapl:0", "node_name": "n"}
            yield self._counter("kepler_node_cpu_joules_total", self.kepler_w, labels)
        if "node_rapl" in query and self.node_exporter_w is not None:
            labels = {"index": "0", "path": "/sys/intel-rapl:0", "instance": "10.0.0.1:9100"}
            yield self._counter("node_rapl_package_joules_total", self.node_exporter_w, labels)
        if "DCGM" in query and self.dcgm_w is not None:
            labels = {"__name__": "DCGM_FI_DEV_POWER_USAGE", "Hostname": "n", "UUID": "GPU-0", "gpu": "0"}
            yield {"metric": labels, "values": [[self.now_s - 5.0, str(self.dcgm_w)]]}
        if "container_cpu" in query and self.busy_cores is not None:
            yield self._counter("container_cpu_usage_seconds_total", self.busy_cores, {"id": "/", "node": "n"})

    def _counter(self, name, rate, labels):
        values = [[self.now_s - 5.0 - 30.0 * step, str(1e6 - 30.0 * step * rate)] for step in (2, 1, 0)]
        return {"metric": {"__name__": name, **labels}, "values": values}

    @staticmethod
    def _answer(kind, result):
        return httpx2.Response(200, json={"status": "success", "data": {"resultType": kind, "result": result}})


class Stage:
    def __init__(self, client, http, exporters, settings):
        self.client, self.exporters = client, exporters
        self.metrics = OperatorMetrics()
        self.metrics.lead()
        self.view = ClusterView(client, settings, BUILTIN_CATALOGUE)
        prometheus = Prometheus(ADDRESS, http, now_s=lambda: exporters.now_s)
        self.loop = ControlLoop(
            settings, BUILTIN_CATALOGUE, Clients(client, http, prometheus), self.view, asyncio.Event(), self.metrics,
            policy=POLICIES["static_partition"](settings.policy), cooling=linear_cooling_stress,
            may_write=lambda: True, now_s=lambda: exporters.now_s,
        )  # fmt: skip

    async def round(self, passed_s=30.0):
        """Time passes, sources are read, and a step is taken. Returns the twin of n."""
        self.exporters.now_s += passed_s
        await self.loop._power.poll()
        await self.loop.step()
        return (await self.client.get(NODE_TWINS, names.object_name("n"))).status

    async def add_node(self, name="n", address="10.0.0.1", **labels):
        status = {
            "allocatable": {"cpu": "96", "nvidia.com/gpu": "1"},
            "addresses": [{"type": "InternalIP", "address": address}],
        }
        await self.client.create(NODES, {"metadata": {"name": name, "labels": LABELS | labels}, "status": status})
        await until(lambda: self.view.node(name))

    async def add_pod(self, name, cores="48", **limits):
        container = {"name": "c", "resources": {"requests": {"cpu": cores} | limits}}
        pod = {"metadata": {"name": name}, "spec": {"nodeName": "n", "containers": [container]}}
        await self.client.create(PODS, pod, "default")
        status = {"status": {"phase": "Running"}}
        await self.client.patch(PODS, name, status, namespace="default", subresource="status")
        await until(lambda: self.view.pods.get(Key("default", name), PENDING).phase is PodPhase.RUNNING)

    async def add_profile(self, name, target, **sources):
        spec = {"target": target, "sources": sources}
        await self.client.create(TELEMETRY_PROFILES, {"metadata": {"name": name}, "spec": spec})
        await until(lambda: any(key.name == name for key in self.loop._telemetry._profiles.objects))

    async def conditions(self, name):
        profile = await self.client.get(TELEMETRY_PROFILES, name)
        return {one.type: (one.status, one.reason, one.message) for one in profile.status.conditions}

    def value(self, name, **labels):
        return self.metrics.registry.get_sample_value(f"joulie_operator_{name}", labels)


@asynccontextmanager
async def staged(tmp_path, **settings):
    exporters = Exporters()
    async with (
        FakeCluster(custom_resource_definitions()) as cluster,
        httpx2.AsyncClient(transport=httpx2.MockTransport(exporters.handle)) as http,
        KubeClient(
            connect(kubeconfig=cluster.kubeconfig(tmp_path / "kubeconfig")),
            retry=RetryPolicy(attempts=2, initial_wait_s=0.001),
        ) as client,
    ):
        given = {
            "agent_pod_selector": "",
            "prometheus_address": ADDRESS,
            "policy": PolicySettings(static_hp_frac=1.0),
        } | settings
        stage = Stage(client, http, exporters, OperatorSettings(**given))
        watching = asyncio.gather(stage.view.run(), stage.loop._telemetry.run())
        try:
            await stage.view.wait_synced()
            await stage.loop._telemetry.wait_synced()
            await stage.add_node()
            yield stage
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


def play(body, tmp_path, **settings):
    async def main():
        async with staged(tmp_path, **settings) as stage:
            await body(stage)

    asyncio.run(main())


def measured(status):
    (condition,) = (one for one in status.conditions if one.type == "PowerMeasured")
    power = status.power_measurement
    return (
        None if power is None else (power.source, round(power.measured_node_power_w, 6)),
        (condition.status, condition.reason, condition.message),
    )


@played(play)
async def test_kepler_s_cpus_and_dcgm_s_gpus_make_a_node(stage):
    stage.exporters.kepler_w, stage.exporters.dcgm_w = 200.0, 80.0
    assert measured(await stage.round()) == (
        ("kepler", 280.0),
        ("True", "Fresh", "by kepler (GPUs: dcgm)"),
    )
    assert stage.value("power_source_nodes", source="kepler") == 1.0
    assert stage.value("gpu_power_source_nodes", source="dcgm") == 1.0
    assert stage.value("source_up", source="kepler") == 1.0
    assert stage.value("source_told_of", source="kepler") == 1.0


@played(play)
async def test_a_dead_prometheus_degrades_within_one_reconcile_and_comes_back(stage):
    stage.exporters.kepler_w, stage.exporters.dcgm_w = 200.0, 80.0
    await stage.round()
    stage.exporters.down = True
    # One poll that fails is no news: the last sample is young enough.
    assert measured(await stage.round())[0] == ("kepler", 280.0)
    status, condition = measured(await stage.round())
    assert status[0] == "utilization"
    assert condition == ("True", "Degraded", "kepler (GPUs: dcgm) is stale, requests stands in for it")
    assert stage.value("source_up", source="kepler") == 0.0
    assert stage.value("power_source_nodes", source="requests") == 1.0
    stage.exporters.down = False
    statuses = [measured(await stage.round())[0] for _ in range(12)]
    assert statuses[-1] == ("kepler", 280.0)
    assert stage.value("source_up", source="kepler") == 1.0


@played(play)
async def test_a_dead_prometheus_is_said_once(stage, caplog):
    stage.exporters.down = True
    for _ in range(4):
        await stage.round()
    said = [record for record in caplog.records if record.message == "source failed"]
    assert sorted(record.source for record in said) == ["cadvisor", "dcgm", "kepler", "node-exporter", "platform"]


@played(play)
async def test_a_source_that_takes_over_makes_no_trend(stage):
    stage.exporters.dcgm_w, stage.exporters.node_exporter_w = 80.0, 300.0
    await stage.round()
    await stage.round()
    stage.exporters.kepler_w = 100.0
    status = await stage.round()
    assert measured(status)[0] == ("kepler", 180.0)
    assert status.power_measurement.power_trend_w_per_min == 0.0


@played(play)
async def test_node_exporter_is_prometheus_to_the_twin_and_found_by_address(stage):
    stage.exporters.node_exporter_w, stage.exporters.dcgm_w = 300.0, 80.0
    assert measured(await stage.round())[0] == ("prometheus", 380.0)
    assert stage.value("power_source_nodes", source="node-exporter") == 1.0


@played(play)
async def test_a_node_without_sensors_is_estimated_from_how_busy_it_is(stage):
    stage.exporters.busy_cores, stage.exporters.dcgm_w = 48.0, 80.0
    busy = await stage.round()
    assert measured(busy)[1] == ("True", "Fresh", "by cadvisor (GPUs: dcgm)")
    assert busy.power_measurement.source == "utilization"
    stage.exporters.busy_cores = 1.0
    idle = await stage.round()
    assert idle.power_measurement.measured_node_power_w < busy.power_measurement.measured_node_power_w
    (item,) = stage.metrics.power.reports.latest.items("nodes", stage.exporters.now_s)
    assert item.low_w < item.power_w < item.high_w


@played(play)
async def test_trap_use_is_counted_in_logical_cpus_and_agents_report_cores(stage):
    cpu = {"model": "AMD-EPYC-9654", "sockets": 1, "totalCores": 48}
    await stage.client.create(NODE_HARDWARES, {"metadata": {"name": "n"}, "spec": {"nodeName": "n"}})
    await stage.client.patch(NODE_HARDWARES, "n", {"status": {"cpu": cpu}}, subresource="status")
    await until(lambda: stage.view.nodes[0].hardware.cpu.cores == 48.0)
    watts = []
    for cores in (48.0, 96.0):
        stage.exporters.busy_cores, stage.exporters.dcgm_w = cores, 80.0
        watts.append((await stage.round()).power_measurement.measured_node_power_w)
    assert watts[0] < 0.9 * watts[1]


@played(play)
async def test_pods_share_what_their_node_draws(stage):
    stage.exporters.kepler_w, stage.exporters.dcgm_w = 200.0, 80.0
    await stage.add_pod("a")
    await stage.add_pod("b", "24", **{"nvidia.com/gpu": "1"})
    await stage.round()
    await stage.round()
    shares = stage.metrics.power.reports.latest.shares
    parts = shares.idle_w + shares.system_w
    np.testing.assert_allclose(parts[0] + np.nansum(shares.pod_cpu_w) + np.nansum(shares.pod_gpu_w), 280.0)
    _, answer = stage.metrics.power.reports.answer({"kind": ["pods"]}, stage.exporters.now_s)
    found = {item.name: item for item in answer["items"]}
    assert found["a"].energy_j == pytest.approx(30.0 * found["a"].power_w, rel=1e-3)
    assert found["b"].gpu_w == 80.0
    assert found["a"].gpu_w is None


ONE = {"scope": "node", "nodeName": "n"}
POOL = {"scope": "node", "nodeSelector": {"pool": "x"}}
ALL = {"scope": "cluster"}


def http(endpoint):
    return {"type": "http", "http": {"endpoint": endpoint}}


def query(text, address=ADDRESS):
    return {"type": "prometheus", "prometheus": {"address": address, "query": text}}


@played(play)
async def test_a_profile_says_where_a_node_is_read(stage):
    stage.exporters.kepler_w, stage.exporters.dcgm_w = 200.0, 80.0
    stage.exporters.endpoints["http://bmc/n"] = httpx2.Response(200, json={"packagePowerWatts": 111})
    stage.exporters.answers['gpu_watts{node="n"}'] = [({}, 30.0), ({}, 3.0)]
    await stage.add_profile("mine", ONE, cpu=http("http://bmc/{node}"), gpu=query('gpu_watts{node="{node}"}'))
    assert measured(await stage.round()) == (
        ("http", 144.0),
        ("True", "Fresh", "by profile-http (GPUs: profile-prometheus)"),
    )
    assert (await stage.conditions("mine"))["Accepted"] == ("True", "Matched", "")
    assert (await stage.conditions("mine"))["SourceFailed"][0] == "False"


@played(play)
async def test_the_most_specific_profile_counts_and_ties_are_told(stage):
    stage.exporters.dcgm_w = 80.0
    for watts, name, target in ((100, "all", ALL), (200, "a-pool", POOL), (300, "b-pool", POOL), (400, "own", ONE)):
        stage.exporters.answers[f"w{watts}"] = [({"node": "n"}, watts)]
        await stage.add_profile(name, target, cpu=query(f"w{watts}"))
    await stage.client.patch(NODES, "n", {"metadata": {"labels": {"pool": "x"}}})
    await until(lambda: stage.view.node("n").labels.get("pool"))
    assert measured(await stage.round())[0] == ("prometheus", 480.0)
    await stage.client.delete(TELEMETRY_PROFILES, "own")
    await until(lambda: len(stage.loop._telemetry._profiles.objects) == 3)
    assert measured(await stage.round())[0] == ("prometheus", 280.0)
    assert (await stage.conditions("b-pool"))["Conflicting"] == (
        "True",
        "EquallySpecific",
        "as specific as a-pool, which comes first by name, on n",
    )
    assert (await stage.conditions("a-pool"))["Conflicting"][0] == "False"
    assert (await stage.conditions("all"))["Conflicting"][0] == "False"


@played(play, static_power_w=500.0)
async def test_none_means_that_nobody_may_say_anything(stage):
    stage.exporters.kepler_w, stage.exporters.dcgm_w, stage.exporters.busy_cores = 200.0, 80.0, 3.0
    await stage.add_profile("blind", ONE, cpu={"type": "none"})
    assert measured(await stage.round()) == (None, ("False", "Missing", "no source has ever measured it"))


@played(play)
async def test_host_means_agents_and_what_is_estimated_in_their_place(stage):
    stage.exporters.kepler_w, stage.exporters.dcgm_w = 200.0, 80.0
    await stage.add_profile("host", ALL, cpu={"type": "host"})
    assert measured(await stage.round())[1][2] == "by requests (GPUs: dcgm)"


@played(play)
async def test_a_source_of_a_profile_that_fails_is_told_and_a_model_stands_in(stage):
    stage.exporters.dcgm_w = 80.0
    await stage.add_profile("mine", ONE, cpu=http("http://bmc/{node}"))
    assert measured(await stage.round())[1] == ("True", "Fresh", "by requests (GPUs: dcgm)")
    failed = (await stage.conditions("mine"))["SourceFailed"]
    assert failed[:2] == ("True", "NotRead")
    assert "404" in failed[2]
    assert failed[2].startswith("n: ")


@pytest.mark.parametrize("others", [False, True])
@played(play)
async def test_a_source_of_a_profile_that_dies_gives_way_within_one_reconcile(stage, others):
    stage.exporters.dcgm_w = 80.0
    for name in ("n", "n-1") if others else ("n",):
        stage.exporters.endpoints[f"http://bmc/{name}"] = httpx2.Response(200, json={"packagePowerWatts": 111})
    if others:
        await stage.add_node("n-1", "10.0.0.2")
    await stage.add_profile("mine", ALL, cpu=http("http://bmc/{node}"))
    assert measured(await stage.round())[0] == ("http", 191.0)
    del stage.exporters.endpoints["http://bmc/n"]
    assert measured(await stage.round())[0] == ("http", 191.0)
    assert measured(await stage.round())[1] == (
        "True",
        "Degraded",
        "profile-http (GPUs: dcgm) is stale, requests (GPUs: dcgm) stands in for it",
    )
    assert stage.value("source_up", source="profile-http") == float(others)


@played(play)
async def test_nodes_whose_queries_read_the_same_share_one(stage):
    await stage.add_node("n-1", "10.0.0.2")
    stage.exporters.answers["watts"] = [({"node": "n"}, 10.0), ({"node": "n-1"}, 20.0), ({}, 99.0)]
    await stage.add_profile("all", ALL, cpu=query("watts"), gpu=query("watts"))
    assert measured(await stage.round())[0] == ("prometheus", 20.0)
    assert stage.exporters.asked.count("watts") == 1


@played(play)
async def test_trap_one_series_without_a_name_is_not_the_power_of_every_node(stage):
    stage.exporters.dcgm_w = 80.0
    stage.exporters.answers["sum(watts)"] = [({}, 5000.0)]
    await stage.add_profile("all", ALL, cpu=query("sum(watts)"))
    assert measured(await stage.round())[1][2] == "by requests (GPUs: dcgm)"
    assert (await stage.conditions("all"))["SourceFailed"] == (
        "True",
        "NotRead",
        "n: 'sum(watts)': no series is about the node",
    )
    # Of one node's own profile, there is nobody else that it could be about.
    await stage.add_profile("own", ONE, cpu=query("sum(watts)"))
    assert measured(await stage.round())[0] == ("prometheus", 5080.0)


@played(play)
async def test_the_air_at_a_node_goes_before_that_of_its_zone(stage):
    stage.exporters.kepler_w, stage.exporters.dcgm_w = 200.0, 80.0
    stage.exporters.answers["inlet_c"] = [({"node": "n"}, 40.0), ({"node": "n"}, 44.0)]
    cool = await stage.round()
    await stage.add_profile("air", ALL, context=query("inlet_c"))
    warm = await stage.round()
    assert stage.loop._power.facility().node_ambient_k == {"n": pytest.approx(315.15)}
    assert warm.predicted_cooling_stress_score > cool.predicted_cooling_stress_score


@played(play)
async def test_a_profile_for_nobody_says_so(stage):
    await stage.add_profile("lost", POOL, cpu={"type": "host"})
    await stage.round()
    assert (await stage.conditions("lost"))["Accepted"] == (
        "False",
        "NoNodes",
        "its target matches no node in scope",
    )


@played(play)
async def test_trap_one_query_an_exporter_however_many_pods(stage):
    stage.exporters.kepler_w = 200.0
    for number in range(5):
        await stage.add_pod(f"p{number}", "1")
    await stage.round()
    few = len(stage.exporters.asked)
    for number in range(5, 25):
        await stage.add_pod(f"p{number}", "1")
    stage.exporters.asked.clear()
    await stage.round()
    assert len(stage.exporters.asked) == few


def test_without_prometheus_nobody_is_asked(tmp_path):
    async def body(stage):
        stage.exporters.kepler_w = 200.0
        loop = stage.loop
        assert {source.name for source in loop._power._feed.sources} == {"profile-http", "profile-prometheus", "http"}

    async def main():
        async with staged(
            tmp_path, telemetry_http_endpoint="http://sim/telemetry", sources=("http", "requests")
        ) as stage:
            await body(stage)

    asyncio.run(main())
