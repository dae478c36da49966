"""The simulator service without a cluster: its world, its HTTP API, its trace player."""

import asyncio
from typing import Any

import httpx2
import numpy as np
import pytest

from joulie.adapters.kubernetes.api.core import Node, NodeStatus
from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.domain.capping.measurements import Sweep
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.program.http import Probes, Server
from joulie_lab.apps.simulator.api import Api
from joulie_lab.apps.simulator.clock import SimulatedClock
from joulie_lab.apps.simulator.cluster import simulated_node
from joulie_lab.apps.simulator.main import build_world
from joulie_lab.apps.simulator.metrics import SimulatorMetrics
from joulie_lab.apps.simulator.queries import QueryError, instant_query
from joulie_lab.apps.simulator.run import Run
from joulie_lab.apps.simulator.settings import SimulatorSettings
from joulie_lab.apps.simulator.trace_player import JobState, TracePlayer
from joulie_lab.apps.simulator.world import Place, UnknownNodeError, World
from joulie_lab.simulation.job_response import Boundness
from joulie_lab.simulation.live.jobs import Activity, RunningPod, Work, activity
from joulie_lab.simulation.live.measured_jobs import MeasuredJob, Noise
from joulie_lab.simulation.live.nodes import NodeSpec
from joulie_lab.simulation.trace import JobProfile, TraceJob


def node_spec(name: str, *, gpus: int = 0) -> NodeSpec:
    cpu = BUILTIN_CATALOGUE.cpu("AMD EPYC 9654").model
    assert cpu is not None
    gpu = BUILTIN_CATALOGUE.gpu("NVIDIA H100 NVL").model if gpus else None
    return NodeSpec(name, cpu, 2, 192.0, gpu, gpus)


def world(**settings: Any) -> World:
    made = build_world(SimulatorSettings(**settings))
    made.set_nodes({node_spec("cpu-0"): Place("r1", "z1"), node_spec("gpu-0", gpus=8): Place("r2", None)})
    return made


def job(job_id: str, submit_s: float = 0.0, **changes: Any) -> TraceJob:
    facts: dict[str, Any] = {"job_id": job_id, "workload_id": job_id, "submit_s": submit_s}
    facts |= {"requests": {"cpu": "4", "nvidia.com/gpu": "1"}, "cpu_units": 40.0}
    return TraceJob(**facts | changes)


def test_control_caps_and_reads_back() -> None:
    made = world()
    assert made.control("cpu-0", "rapl.set_power_cap_watts", {"capWatts": 200}).result == "applied"
    assert made.telemetry("cpu-0")["cpu"]["capWattsPerPackage"] == 200.0
    assert made.control("cpu-0", "rapl.set_power_cap_watts", {"capWatts": None}).result == "applied"
    assert made.telemetry("cpu-0")["cpu"]["capWattsPerPackage"] is None


@pytest.mark.parametrize(
    ("node", "action", "fields", "result", "says"),
    [
        ("cpu-0", "gpu.set_power_cap_watts", {"capWattsPerGpu": 300}, "blocked", "no GPUs"),
        ("cpu-0", "rapl.set_power_cap_watts", {}, "error", "capWatts is missing"),
        ("cpu-0", "rapl.set_power_cap_watts", {"capWatts": "200"}, "error", "number of watts"),
        ("cpu-0", "rapl.set_power_cap_watts", {"capWatts": float("nan")}, "error", "finite"),
        ("cpu-0", "dvfs.set_throttle_pct", {"throttlePct": 101}, "error", "within"),
        ("cpu-0", "reboot", {}, "error", "unknown action"),
    ],
)
def test_control_never_succeeds_silently(
    node: str, action: str, fields: dict[str, Any], result: str, says: str
) -> None:
    outcome = world().control(node, action, fields)
    assert outcome.result == result
    assert says in outcome.message


def test_an_unknown_node_is_said() -> None:
    with pytest.raises(UnknownNodeError, match="'nowhere' is not simulated"):
        world().telemetry("nowhere")


@pytest.mark.slow
def test_the_same_seed_gives_the_same_world() -> None:
    def play(seed: int) -> tuple[float, float]:
        made = world(seed=seed)
        made.put_pod(RunningPod("a/p", "gpu-0", 96.0, 4.0, Activity(0.9, 0.8)))
        for _ in range(200):
            made.step(60.0)
        return made.it_power_w, made.energy()["coolingKwh"]

    assert play(7) == play(7)
    assert play(7) != play(8)


def test_queries_answer_like_prometheus() -> None:
    made = world()
    made.step(1.0)
    answer = instant_query(made, "datacenter_total_it_power_watts", 12.5)
    assert answer["data"]["result"] == [
        {"metric": {"__name__": "datacenter_total_it_power_watts"}, "value": [12.5, repr(made.it_power_w)]}
    ]
    racks = instant_query(made, 'datacenter_rack_power_watts{rack="r2"}', 0.0)["data"]["result"]
    assert [series["metric"]["rack"] for series in racks] == ["r2"]
    zone = instant_query(made, 'datacenter_ambient_temperature_celsius{zone="z1"}', 0.0)["data"]["result"]
    assert len(zone) == 1


def test_the_work_rate_of_a_pod_falls_with_the_cap_of_its_node() -> None:
    made = world()
    made.workload.put(RunningPod("team/pod", "cpu-0", 192.0, 0.0, Activity(1.0, cpu_bound=Boundness.COMPUTE)))
    made.workload.put(RunningPod("team/gpu", "gpu-0", 8.0, 4.0, Activity(0.5, gpu_util=0.5)))
    made.workload.put(RunningPod("team/lost", "nowhere", 8.0, 0.0, Activity(1.0)))
    member = RunningPod("team/gang", "gpu-0", 8.0, 0.0, Activity(1.0), gang="g", gang_size=2)
    made.workload.put(member)
    made.step(1.0)

    def rates() -> dict[str, float]:
        series = instant_query(made, "joulie_sim_pod_work_rate", 0.0)["data"]["result"]
        assert {one["metric"]["namespace"] for one in series} == {"team"}
        return {one["metric"]["pod"]: float(one["value"][1]) for one in series}

    assert rates() == {"pod": 192.0, "gpu": 2.0, "gang": 0.0}
    assert made.control("cpu-0", "rapl.set_power_cap_watts", {"capWatts": 200}).result == "applied"
    for _ in range(60):
        made.step(1.0)
    capped = rates()
    assert capped["pod"] == pytest.approx(192.0 * made.fleet.frequency[0])
    assert capped["pod"] < 180.0
    assert capped["gpu"] == 2.0


@pytest.mark.slow
def test_memory_traffic_of_a_gpu_follows_the_steps_of_its_job() -> None:
    made = world()
    sweep = Sweep(np.array([400.0, 200.0]), np.array([1.0, 1.5]), np.array([390.0, 199.0]))
    steady = MeasuredJob("job", sweep, 1, Noise(0.0))
    made.workload.put(RunningPod("team/pod", "gpu-0", 8.0, 1.0, Activity(0.5, gpu_util=1.0), gpu_job=steady))
    metrics = SimulatorMetrics(made, lambda: 0.0).registry

    def traffic_after(seconds: int) -> list[float]:
        for _ in range(seconds):
            made.step(1.0)
        found = next(one for one in metrics.collect() if one.name == "DCGM_FI_PROF_DRAM_ACTIVE")
        return [one.value for one in found.samples]

    assert traffic_after(1) == []
    [at_full] = traffic_after(600)
    assert traffic_after(0) == [at_full]
    assert made.control("gpu-0", "gpu.set_power_cap_watts", {"capWattsPerGpu": 200}).result == "applied"
    traffic_after(60)
    [limited] = traffic_after(600)
    assert limited == pytest.approx(at_full / 1.5, rel=0.05)


@pytest.mark.parametrize("query", ["", "up", "sum(datacenter_pue)", 'datacenter_pue{zone=~"a"}'])
def test_other_queries_are_refused_with_words(query: str) -> None:
    with pytest.raises(QueryError):
        instant_query(world(), query, 0.0)


def still(made: World) -> Run:
    """A run whose time has not begun."""
    return Run(made, SimulatedClock(1.0, lambda: 0.0), None, None)


def ask(method: str, path: str, **arguments: Any) -> httpx2.Response:
    made = world()
    metrics = SimulatorMetrics(made)

    async def talk() -> httpx2.Response:
        async with (
            Server(Api(still(made), metrics, Probes()).app(), ("127.0.0.1", 0)) as server,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client,
        ):
            return await client.request(method, path, **arguments)

    return asyncio.run(talk())


def test_telemetry_over_http_has_the_documented_shape() -> None:
    answer = ask("GET", "/telemetry/gpu-0").json()
    assert answer["packagePowerWatts"] == answer["cpu"]["packagePowerWatts"]
    assert len(answer["gpu"]["devices"]) == 8
    assert answer["cpu"]["capRange"] == {"minWattsPerSocket": 72.0, "maxWattsPerSocket": 360.0}
    assert set(ask("GET", "/telemetry").json()["nodes"]) == {"cpu-0", "gpu-0"}


def test_control_over_http() -> None:
    body = {"node": "cpu-0", "action": "rapl.set_power_cap_watts", "capWatts": 216.0, "ts": "2026-02-27T00:00:00Z"}
    answer = ask("POST", "/control/cpu-0", json=body).json()
    assert answer["result"] == "applied"
    assert answer["state"]["cpu"]["capWattsPerPackage"] == 216.0


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/control/cpu-0", b"[1]", 400),
        ("/control/cpu-0", b"{", 400),
        ("/control/cpu-0", b'{"node": "gpu-0", "action": "dvfs.set_throttle_pct"}', 400),
        ("/control/nowhere", b'{"action": "dvfs.set_throttle_pct", "throttlePct": 1}', 404),
        ("/control/cpu-0", b" " * 100_000, 413),
    ],
)
def test_bad_requests_are_refused_with_words(path: str, body: bytes, status: int) -> None:
    answer = ask("POST", path, content=body)
    assert answer.status_code == status
    assert answer.json()


@pytest.mark.parametrize(
    "path", ["/state/cpu-0", "/debug/nodes", "/debug/jobs", "/debug/events", "/debug/energy", "/healthz", "/readyz"]
)
def test_every_page_answers(path: str) -> None:
    assert ask("GET", path).status_code == 200


def test_query_over_http_by_post() -> None:
    answer = ask("POST", "/api/v1/query", data={"query": "datacenter_cooling_power_watts"})
    assert answer.json()["status"] == "success"
    assert ask("GET", "/api/v1/query?query=nothing").json()["errorType"] == "bad_data"


def test_metrics_have_the_documented_names() -> None:
    text = ask("GET", "/metrics").text
    for name in ("node_cap_watts", "node_power_watts", "node_cpu_util", "node_freq_scale", "node_running_pods"):
        assert f'joulie_sim_{name}{{node="gpu-0"}}' in text


def test_jobs_are_due_in_order_and_once() -> None:
    player = TracePlayer.of([job("b", 10.0), job("a", 5.0)], "default-scheduler")
    assert [record.job.job_id for record in player.due(7.0)] == ["a"]
    assert [record.job.job_id for record in player.due(10.0)] == ["b"]
    assert player.due(1e9) == []


def test_a_job_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="duplicate job id a"):
        TracePlayer.of([job("a"), job("a")], "s")


def test_an_evicted_job_goes_on_where_it_stopped() -> None:
    player = TracePlayer.of([job("a")], "s")
    (record,) = player.due(0.0)
    player.submitted(record)
    assert player.started("default/a", "n", 3.0) is record
    assert player.lost("default/a", Work(15.0, 0.0)) is record
    (again,) = player.due(4.0)
    assert (again.pod_name, again.work) == ("a-r1", Work(15.0, 0.0))
    player.submitted(again)
    assert player.completed("default/a-r1", 9.0) is record
    assert player.lost("default/a-r1", None) is None
    assert record.state is JobState.COMPLETED
    assert player.finished


def test_pods_carry_requests_and_limits_of_devices() -> None:
    player = TracePlayer.of([job("a", annotations={"joulie.io/workload-class": "performance"})], "joulie-scheduler")
    pod = player.pod(player.due(0.0)[0])
    container = pod["spec"]["containers"][0]
    assert container["resources"]["requests"] == {"cpu": "4", "nvidia.com/gpu": "1"}
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert pod["spec"]["schedulerName"] == "joulie-scheduler"
    assert pod["metadata"]["annotations"] == {"joulie.io/workload-class": "performance"}


def test_pods_say_the_sensitivities_of_the_trace_unless_it_annotates_them_itself() -> None:
    own = {"joulie.io/gpu-sensitivity": "high"}
    player = TracePlayer.of([job("a", cpu_sensitivity="low", gpu_sensitivity="low", annotations=own)], "s")
    pod = player.pod(player.due(0.0)[0])
    assert pod["metadata"]["annotations"] == {"joulie.io/cpu-sensitivity": "low"} | own


def test_any_workload_id_makes_a_label_that_the_api_server_takes() -> None:
    for workload_id, label in (("team a: nightly run", "team-a-nightly-run"), ("x" * 62 + "-y", "x" * 62), ("-", "")):
        player = TracePlayer.of([job("a", workload_id=workload_id)], "s")
        assert player.pod(player.records["a"])["metadata"]["labels"]["sim.joulie.io/workload"] == label


def test_profiles_become_activity() -> None:
    profile = JobProfile(0.7, 0.9, 0.2, 0.1, 0.3)
    use = activity(job("a", profile=profile, cpu_class="memory_bound", gpu_class="bandwidth_bound"))
    own = Activity(0.7, 0.9, 0.2, 0.1, 0.3, Boundness.MEMORY, 1.0, use.gpu_deviation)
    assert use == own


def kube_node(labels: dict[str, str], **allocatable: str) -> Node:
    return Node(metadata=ObjectMeta(name="n", labels=labels), status=NodeStatus(allocatable=allocatable))


def test_node_identity_comes_from_labels() -> None:
    labels = {
        "joulie.io/hw.cpu-model": "AMD EPYC 9654",
        "joulie.io/hw.cpu-sockets": "2",
        "joulie.io/hw.gpu-model": "NVIDIA H100 NVL",
        "joulie.io/hw.gpu-count": "8",
        "joulie.io/rack": "r1",
    }
    node = simulated_node(kube_node(labels, cpu="192", **{"nvidia.com/gpu": "8"}), BUILTIN_CATALOGUE)
    assert node.spec is not None
    assert (node.spec.sockets, node.spec.gpus, node.spec.cores, node.place) == (2, 8, 192.0, Place("r1", None))


def test_an_unknown_cpu_is_not_guessed() -> None:
    node = simulated_node(kube_node({"joulie.io/hw.cpu-model": "Abacus 1"}, cpu="4"), BUILTIN_CATALOGUE)
    assert node.spec is None
    assert "'Abacus 1' is not in the catalogue" in node.problem
