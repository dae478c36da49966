"""The operator on a real control plane with a real Prometheus: power of nodes and pods, and profiles of workloads.

Nothing runs on these nodes: what Prometheus scrapes are replay exporters, whose scripts say what must come out.
"""

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from joulie.adapters.kubernetes import names
from joulie_lab.control_plane import LocalControlPlane, wait_for
from support.exporters import Container, Counter, Exporters, Gpu, Machine, ScriptedPod, Zone, install, kepler_old
from support.loop import CPU_ONLY, PATIENCE_S, Family, Json, Loop, Program, node
from support.prometheus_server import INTERVAL_S, PrometheusServer

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

GPU_NODE = Family("AMD-EPYC-9654", 2, 192, 1536, "NVIDIA-H100-NVL", 2)
GIB = float(2**30)

RECONCILE_S = 2.0
POLL_S = 1.0
WINDOW_S = 4.0
CLASSIFY_WINDOW_S = 8.0
NEAR = 0.05

METERED, METER_W = "cpu-e", 345.0
"""A node, and what a meter of the site's own says of it."""
IT_RAMP_W_PER_S = 50.0

STATEFUL_SETS = "/apis/apps/v1/namespaces/default/statefulsets"
TELEMETRY_PROFILES = "/apis/joulie.io/v1alpha1/telemetryprofiles"
PROFILES = "/apis/joulie.io/v1alpha1/namespaces/default/workloadprofiles"


@dataclass(frozen=True)
class Workload:
    """A StatefulSet of one pod, and what its pod uses by the exporters' scripts.

    Attributes:
        cores: requested.
        memory_gib: limit and request.
    """

    name: str
    node: str
    cores: int
    memory_gib: int
    used: Container
    annotations: Mapping[str, str]
    gpus: int = 0

    @property
    def pod(self) -> str:
        return f"{self.name}-0"

    @property
    def script(self) -> ScriptedPod:
        return ScriptedPod("default", self.pod, [self.used])

    @property
    def manifest(self) -> Json:
        wanted = {"cpu": str(self.cores), "memory": f"{self.memory_gib}Gi"}
        limits = {"memory": wanted["memory"]}
        if self.gpus:
            limits["nvidia.com/gpu"] = str(self.gpus)
        labels = {"app": self.name}
        container = {"name": "main", "image": "none", "resources": {"requests": wanted, "limits": limits}}
        spec = {"containers": [container], "nodeSelector": {"kubernetes.io/hostname": self.node}}
        template = {"metadata": {"labels": labels, "annotations": dict(self.annotations)}, "spec": spec}
        selector = {"matchLabels": labels}
        return {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": self.name},
            "spec": {"replicas": 1, "serviceName": self.name, "selector": selector, "template": template},
        }


# The seed's own example: 45 % of the CPU, 68 % of the memory, 92 % of the GPU.
TRAINING = Workload(
    "llm-training", "gpu-a", 10, 100,
    Container(cores=4.53, memory_bytes=68.0 * GIB, cpu_w=80.0, dram_w=10.0, gpu_w=230.0),
    {names.RESCHEDULABLE_ANNOTATION: "true"}, gpus=1,
)  # fmt: skip
STREAM = Workload("stream", "cpu-a", 10, 64, Container(cores=9.0, cpu_w=55.0, dram_w=45.0), {})
SOLVER = Workload("solver", "cpu-b", 20, 64, Container(cores=18.06), {})
PINNED = Workload("pinned", "cpu-c", 10, 64, Container(cores=9.03), {names.CPU_SENSITIVITY_ANNOTATION: "low"})
SILENT = Workload("silent", "cpu-d", 10, 64, Container(cores=5.0), {})
WORKLOADS = (TRAINING, STREAM, SOLVER, PINNED, SILENT)

EXPORTERS = {
    "gpu-a": {"kepler", "node-exporter", "nvidia-dcgm-exporter", "kubelet"},
    "gpu-b": {"node-exporter", "nvidia-dcgm-exporter", "kubelet"},
    "cpu-a": {"kepler", "node-exporter", "kubelet"},
    "cpu-b": {"node-exporter", "kubelet"},
    "cpu-c": {"kubelet"},
    "cpu-d": set[str](),
    METERED: set[str](),
}


def machines() -> dict[str, Machine]:
    gpus = [
        Gpu("GPU-aaaaaaaa", 60.0, 230.0, util_pct=92, mem_copy_util_pct=30, holders=[("default", TRAINING.pod)]),
        Gpu("GPU-bbbbbbbb", 60.0, 0.0),
    ]
    others = [Gpu("GPU-cccccccc", 60.0, 140.0), Gpu("GPU-dddddddd", 60.0, 0.0)]
    shape: dict[str, dict[str, Any]] = {
        "gpu-a": {"packages": [Zone(90.0, 110.0), Zone(90.0, 60.0)], "dram": [Zone(12.0, 10.0)], "gpus": gpus},
        "gpu-b": {"packages": [Zone(90.0, 20.0), Zone(90.0, 0.0)], "gpus": others},
        "cpu-a": {"packages": [Zone(120.0, 100.0), Zone(120.0, 80.0)], "dram": [Zone(10.0, 50.0)]},
        "cpu-b": {"packages": [Zone(120.0, 150.0), Zone(120.0, 0.0)], "has_mmio": True},
        "cpu-c": {"packages": []},
        "cpu-d": {"packages": []},
        METERED: {"packages": []},
    }
    return {
        name: Machine(name, f"10.0.1.{number}", **parts, pods=[one.script for one in WORKLOADS if one.node == name])
        for number, (name, parts) in enumerate(shape.items(), 1)
    }


def hostile() -> str:
    """What claims to be of a node that nobody measures, of unknown nodes, and of pods that never were."""
    seconds = time.monotonic()  # noqa: TID251 - a counter's own clock
    huge = "x" * 1_000_000

    def energy(node_name: str, zone: str, value: str) -> str:
        return f'kepler_node_cpu_joules_total{{node_name="{node_name}",path="/{zone}",zone="{zone}"}} {value}\n'

    lines = [energy(f"unknown-{number}", "package", f"{100.0 * seconds:f}") for number in range(1000)]
    lines += [energy("cpu-d", "package-0", "NaN"), energy("cpu-d", "package-1", f"{1e9 * seconds:f}")]
    lines += [energy("cpu-d", "package-2", f"-{seconds:f}"), energy(huge, "package", f"{seconds:f}")]
    pod = f'kepler_pod_cpu_joules_total{{pod_name="{huge}",pod_namespace="default",state="running",zone="package"}}'
    return "".join([*lines, f"{pod} {seconds:f}\n"])


def building(it: Counter) -> str:
    """Meters of the site's own."""
    return (
        "datacenter_ambient_temperature_celsius 27.5\n"
        f"datacenter_total_it_power_watts {it.read():f}\n"
        "datacenter_cooling_power_watts 30000\n"
        'rack_meter_watts{rack="r1"} 5400\n'
        f'node_meter_watts{{host="{METERED}"}} {METER_W:g}\n'
    )


def meter_profile(address: str) -> Json:
    """The TelemetryProfile of the node that the site's own meter measures."""
    query = {"address": address, "query": 'node_meter_watts{host="{node}"}'}
    return {
        "apiVersion": "joulie.io/v1alpha1",
        "kind": "TelemetryProfile",
        "metadata": {"name": "metered"},
        "spec": {
            "target": {"scope": "node", "nodeName": METERED},
            "sources": {"cpu": {"type": "prometheus", "prometheus": query}},
        },
    }


@dataclass(frozen=True)
class Site:
    """All of it."""

    loop: Loop
    operator: Program
    server: PrometheusServer
    machines: Mapping[str, Machine]

    def measured(self) -> dict[str, tuple[str, float]]:
        """Source and power of each node by its NodeTwin."""
        found = {}
        for name, twin in self.loop.twins().items():
            power = twin.get("status", {}).get("powerMeasurement", {})
            found[name] = power.get("source", ""), power.get("measuredNodePowerW", 0.0)
        return found

    def sources(self) -> dict[str, str]:
        """Source of each node's power by its NodeTwin."""
        return {name: source for name, (source, _) in self.measured().items()}

    def power(self, kind: str) -> dict[str, Json]:
        """What /debug/power says, by name."""
        return {item["name"]: item for item in self.operator.get(f"/debug/power?kind={kind}")["items"]}

    def profile(self, workload: Workload) -> Json:
        """Status of the WorkloadProfile of a workload, {} where there is none."""
        found = self.loop.get(f"{PROFILES}/statefulset-{workload.name}") or {}
        return dict(found.get("status", {}))

    def concluded(self, workload: Workload) -> Json:
        """What the WorkloadProfile of a workload concludes, without when and whether it could be measured again."""
        return {key: value for key, value in self.profile(workload).items() if key not in ("lastUpdated", "conditions")}


SOURCES = {
    "gpu-a": "kepler",
    "gpu-b": "prometheus",
    "cpu-a": "kepler",
    "cpu-b": "prometheus",
    "cpu-c": "utilization",
    "cpu-d": "utilization",
    METERED: "prometheus",
}


MEASURED = ("gpu-a", "gpu-b", "cpu-a", "cpu-b")


@pytest.fixture(scope="module")
def site(
    plane: LocalControlPlane, prometheus_program: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    server = PrometheusServer(prometheus_program, tmp_path_factory.mktemp("prometheus"))
    scripted = machines()
    with Exporters() as exporters:
        jobs = install(exporters, list(scripted.values()))
        exporters.pages["/cpu-a/kepler"] = partial(kepler_old, scripted["cpu-a"])
        wanted = {f"/{machine}/{job}" for machine, present in EXPORTERS.items() for job in present}
        for job in jobs:
            targets = job["static_configs"]
            job["static_configs"] = [one for one in targets if one["labels"]["__metrics_path__"] in wanted]
        exporters.pages |= {"/hostile": hostile, "/building": partial(building, Counter(IT_RAMP_W_PER_S, start=1e5))}
        others = [exporters.job("hostile", {"/hostile": {}}), exporters.job("building", {"/building": {}})]
        server.start([*jobs, *others], wait=False)
        try:
            loop = Loop(plane)
            plane.create_nodes(_node(machine) for machine in scripted.values())
            for workload in WORKLOADS:
                plane.request("POST", STATEFUL_SETS, workload.manifest)
            plane.request("POST", TELEMETRY_PROFILES, meter_profile(server.address))
            server.wait_until_up()
            server.wait_for_samples("up", int(CLASSIFY_WINDOW_S / INTERVAL_S))
            operator = loop.start_operator(
                RECONCILE_INTERVAL=f"{RECONCILE_S:g}s",
                POWER_POLL_INTERVAL=f"{POLL_S:g}s",
                POWER_STALE_AFTER="20s",
                TELEMETRY_HTTP_ENDPOINT="",
                PROMETHEUS_ADDRESS=server.address,
                PROMETHEUS_WINDOW=f"{WINDOW_S:g}s",
                PROMETHEUS_TIMEOUT="1s",
                CLASSIFY_INTERVAL="1s",
                CLASSIFY_METRICS_WINDOW=f"{CLASSIFY_WINDOW_S:g}s",
                RECLASSIFY_INTERVAL="60s",
                ENABLE_FACILITY_METRICS="true",
                FACILITY_PROMETHEUS_ADDRESS=server.address,
                FACILITY_POLL_INTERVAL="1s",
                FACILITY_RACK_POWER_METRIC_TEMPLATE='rack_meter_watts{rack="%s"}',
            )
            yield Site(loop, operator, server, scripted)
        finally:
            server.process.kill()


def _node(machine: Machine) -> Json:
    created = node(machine.name, GPU_NODE if machine.gpus else CPU_ONLY, labels={names.RACK_LABEL: "r1"})
    created["status"]["addresses"] = [
        {"type": "InternalIP", "address": machine.address},
        {"type": "Hostname", "address": machine.name},
    ]
    return created


@pytest.fixture
def measured_site(site: Site) -> Site:
    """The site once every node is measured by the best source that it has, for a full window."""
    await_measured(site)
    return site


def await_measured(site: Site, timeout_s: float = PATIENCE_S) -> None:
    def measured() -> bool:
        site.loop.raise_if_any_ended()
        found = site.measured()
        assert {name: source for name, (source, _) in found.items()} == SOURCES
        for name in MEASURED:
            machine = site.machines[name]
            assert found[name][1] == pytest.approx(machine.cpu_w + machine.gpu_w, rel=NEAR), name
        return True

    wait_for(measured, timeout_s, "every node is measured")


# -- power


def test_power_of_nodes_says_what_it_is_and_where_it_comes_from(measured_site: Site) -> None:
    """DCGM completes Kepler; RAPL over MMIO is no second package; what cannot be measured is estimated."""

    def told() -> bool:
        return _say_where_power_comes_from(measured_site.power("nodes"), measured_site.loop.twin("gpu-b"))

    wait_for(told, PATIENCE_S, "power and its sources")


def _say_where_power_comes_from(items: Mapping[str, Json], twin: Json) -> bool:
    for name, cpu_w, gpu_w in (
        ("gpu-a", 350.0, 350.0),
        ("gpu-b", 200.0, 260.0),
        ("cpu-a", 420.0, 0.0),
        ("cpu-b", 390.0, 0.0),
    ):
        assert items[name]["cpuW"] == pytest.approx(cpu_w, rel=NEAR)
        assert items[name].get("gpuW", 0.0) == pytest.approx(gpu_w, rel=1e-3)
        assert items[name]["powerW"] == pytest.approx(items[name]["cpuW"] + gpu_w, rel=1e-3)
    assert {name: item["source"] for name, item in items.items()} == {
        "gpu-a": "kepler",
        "gpu-b": "node-exporter+dcgm",
        "cpu-a": "kepler",
        "cpu-b": "node-exporter",
        "cpu-c": "cadvisor",
        "cpu-d": "requests",
        METERED: "profile-prometheus",
    }
    assert items[METERED]["powerW"] == pytest.approx(METER_W)
    for name in ("cpu-c", "cpu-d"):
        item = items[name]
        assert 0.0 < item["lowW"] < item["powerW"] < item["highW"]
    assert {item["quality"] for item in items.values()} == {"fresh"}
    (sourced,) = [one for one in twin["status"]["conditions"] if one["type"] == "PowerMeasured"]
    assert sourced["status"] == "True"
    assert "node-exporter" in sourced["message"]
    assert "dcgm" in sourced["message"]
    return True


def test_power_of_pods_and_the_rest_is_the_power_of_their_node(measured_site: Site) -> None:
    def conserved() -> bool:
        since = measured_site.power("nodes")
        pods = measured_site.power("pods")
        assert measured_site.power("nodes") == {
            name: item | {"ageS": found["ageS"]}
            for (name, item), found in zip(since.items(), since.values(), strict=True)
        }, "a poll came in between"
        for name, item in since.items():
            drawn_w = sum(pod["powerW"] for pod in pods.values() if pod["node"] == name)
            assert drawn_w + item["idleW"] + item["systemW"] == pytest.approx(item["powerW"], abs=0.01), name
            assert min(drawn_w, item["idleW"], item["systemW"]) >= 0.0
        return True

    wait_for(conserved, PATIENCE_S, "pods, system and idle power add up to that of each node")

    def weighed() -> bool:
        pods = measured_site.power("pods")
        assert {name: pod["weightSource"] for name, pod in pods.items()} == {
            TRAINING.pod: "kepler",
            STREAM.pod: "kepler",
            SOLVER.pod: "cadvisor",
            PINNED.pod: "cadvisor",
            SILENT.pod: "requests",
        }
        # The GPU that it holds, all of it, and nothing of the other one.
        assert pods[TRAINING.pod]["gpuW"] == pytest.approx(290.0, rel=1e-3)
        assert 0.0 < pods[TRAINING.pod]["cpuW"] <= 350.0
        return True

    wait_for(weighed, PATIENCE_S, "each pod's power has its source")


def test_energy_goes_up_with_power(measured_site: Site) -> None:
    first = measured_site.power("nodes")["cpu-b"]
    started_s = time.monotonic()  # noqa: TID251 - real programs run in real time

    def later() -> Json:
        item = measured_site.power("nodes")["cpu-b"]
        return item if item["energyJ"] > first["energyJ"] + 390.0 * 3.0 else {}

    assert wait_for(later, PATIENCE_S, "three seconds' energy")
    took_s = time.monotonic() - started_s  # noqa: TID251 - as above
    assert took_s > 3.0 - 2.0 * POLL_S


def test_hostile_expositions_are_counted_and_harm_nobody(measured_site: Site) -> None:
    def counted() -> bool:
        rejected = partial(measured_site.operator.metric, "joulie_operator_source_rejected_series", source="kepler")
        return rejected(reason="unknown-node") >= 1001 and rejected(reason="absurd") >= 1

    wait_for(counted, PATIENCE_S, "the operator says what it left out")
    await_measured(measured_site)
    assert not any("xxxx" in name for name in measured_site.power("pods"))


def test_the_building_is_measured(measured_site: Site) -> None:
    def facility(name: str, **labels: str) -> float:
        return measured_site.operator.metric(f"joulie_operator_facility_{name}", **labels)

    def told() -> bool:
        assert facility("ambient_celsius") == pytest.approx(27.5)
        assert facility("cooling_power_watts") == 30_000.0
        assert facility("it_power_watts") > 1e5
        assert facility("pue") == pytest.approx(1.0 + 30_000.0 / facility("it_power_watts"), rel=1e-2)
        assert facility("rack_power_watts", rack="r1") == 5400.0
        assert facility("it_power_ramp_watts_per_minute") == pytest.approx(60.0 * IT_RAMP_W_PER_S, rel=2 * NEAR)
        return True

    wait_for(told, PATIENCE_S, "the building's gauges")


# -- profiles


def test_profiles_give_the_reasons_of_the_seed(site: Site) -> None:
    """To the letter, but for the last digit of a ratio of two counters that are read one after the other."""
    wanted = {
        TRAINING.name: "cpu-intensity=medium (util 45%); cpu-bound=memory (mem-pressure 68%>50%); "
        "gpu-intensity=high (util 92%≥70%)",
        STREAM.name: "cpu-intensity=high (util 90%≥75%); cpu-bound=compute, cap-sensitivity=high (util 90%>70%); "
        "kepler override: cpu-bound=memory (mem-energy ratio 0.45>0.40)",
        SOLVER.name: "cpu-intensity=high (util 90%≥75%); cpu-bound=compute, cap-sensitivity=high (util 90%>70%)",
        PINNED.name: "cpu-intensity=high (util 90%≥75%); cpu-bound=compute, cap-sensitivity=high (util 90%>70%); "
        "cpu-cap-sensitivity=low (annotation override)",
        SILENT.name: "hints only (no metrics available)",
    }

    def said() -> bool:
        site.loop.raise_if_any_ended()
        reasons = {one.name: site.concluded(one).get("classificationReason", "") for one in WORKLOADS}
        assert {name: re.sub(r"ratio 0\.4[346]", "ratio 0.45", reason) for name, reason in reasons.items()} == wanted
        return True

    wait_for(said, PATIENCE_S, "every profile has its reason")


def test_the_profile_of_the_seed_is_that_of_the_seed(site: Site) -> None:
    def measured() -> Json:
        status = site.profile(TRAINING)
        return status if status.get("confidence", 0.0) > 0.5 else {}

    status = wait_for(measured, PATIENCE_S, "the training job is measured")
    assert status["criticality"] == {"class": "standard"}
    assert status["migratability"] == {"reschedulable": True}
    assert status["cpu"] == {
        "intensity": "medium",
        "bound": "memory",
        "avgUtilizationPct": pytest.approx(45.0, abs=1.0),
        "capSensitivity": "low",
    }
    assert status["gpu"] == {
        "intensity": "high",
        "bound": "compute",
        "avgUtilizationPct": pytest.approx(92.0),
        "capSensitivity": "high",
    }
    assert status["confidence"] == pytest.approx(0.85)
    (condition,) = status["conditions"]
    assert (condition["type"], condition["status"]) == ("Measured", "True")


# -- what goes wrong


def test_trap_a_counter_that_starts_again_is_never_seen_in_a_twin(measured_site: Site) -> None:
    site = measured_site
    recording = site.loop.record("nodetwins")
    for zone in site.machines["cpu-a"].packages:
        zone.restart_kepler()
    used = site.machines["cpu-a"].pods[0].containers[0]
    used.package.restart()
    used.dram.restart()
    for zone in site.machines["cpu-b"].packages:
        zone.rapl.restart()
    expected_w = {"cpu-a": 420.0, "cpu-b": 390.0}
    until_s = time.monotonic() + WINDOW_S + 2.0 * RECONCILE_S  # noqa: TID251 - real programs run in real time
    while time.monotonic() < until_s:  # noqa: TID251 - as above
        for name, power_w in expected_w.items():
            item = site.power("nodes")[name]
            assert item["powerW"] == pytest.approx(power_w, rel=2 * NEAR)
            assert item["ageS"] < 3.0 * RECONCILE_S, "it should have been read all the time"
        for item in site.power("pods").values():
            assert 0.0 <= item["powerW"] <= 800.0
        time.sleep(POLL_S / 2)
    for name, power_w in expected_w.items():
        told = [
            seen.object["status"]["powerMeasurement"]["measuredNodePowerW"]
            for seen in recording.seen(name)
            if seen.object.get("status", {}).get("powerMeasurement")
        ]
        assert told == [pytest.approx(power_w, rel=2 * NEAR)] * len(told)
    recording.stop()


def test_a_dead_prometheus_costs_one_reconcile_and_no_more(measured_site: Site) -> None:
    """The next source takes over, the loop goes on at its pace, what was classified stays. Later all is as before.

    First it is frozen, which costs every query its whole time, then it is killed.
    """
    site = measured_site
    before = {one.name: site.concluded(one) for one in WORKLOADS}
    steps = partial(site.operator.metric, "joulie_operator_reconciles_total", result="success")
    up = partial(site.operator.metric, "joulie_operator_source_up", source="kepler")
    site.server.process.pause()
    went_s, first_steps = time.monotonic(), steps()  # noqa: TID251 - real programs run in real time
    try:
        wait_for(lambda: set(site.sources().values()) == {"utilization"}, PATIENCE_S, "every node is estimated")
        took_s = time.monotonic() - went_s  # noqa: TID251 - as above
        # 2 s where nothing else runs. A poll, its query's time and a step at most, and what a busy machine adds.
        assert took_s < POLL_S + 1.0 + RECONCILE_S + 12.0, f"it took {took_s:.1f} s"
        wait_for(lambda: up() == 0.0, PATIENCE_S, "the source is told to be down")
        site.server.process.kill()
        wait_for(lambda: steps() >= first_steps + 4, 4 * RECONCILE_S + 30.0, "steps go on")
        assert {one.name: site.concluded(one) for one in WORKLOADS} == before, "profiles are kept"
    finally:
        site.server.process.kill()
        site.server.start()
    # Its breaker tries again half a minute after it opened, or a minute later where that was too early.
    await_measured(site, timeout_s=2 * PATIENCE_S)
    wait_for(lambda: up() == 1.0, PATIENCE_S, "the source is told to be up")
    reasons = {one.name: site.concluded(one)["classificationReason"] for one in WORKLOADS}
    assert reasons == {name: status["classificationReason"] for name, status in before.items()}
