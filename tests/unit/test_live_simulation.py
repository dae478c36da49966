"""Simulated nodes in steps: caps bite, work slows with them, gangs wait, nodes keep their history."""

from dataclasses import fields, replace

import numpy as np
import pytest

from joulie.domain.capping.measurements import Sweep
from joulie.domain.hardware import BUILTIN_CATALOGUE, CpuModel, GpuModel
from joulie.domain.power.gpu import natural_power_w
from joulie_lab.simulation.climate import Climate
from joulie_lab.simulation.gpu_response import drawn
from joulie_lab.simulation.job_response import IdleStates
from joulie_lab.simulation.live.facility import Weather
from joulie_lab.simulation.live.fleet import LiveFleet
from joulie_lab.simulation.live.jobs import Activity, RunningPod, Work, Workload
from joulie_lab.simulation.live.measured_jobs import MeasuredJob
from joulie_lab.simulation.live.nodes import FleetLoad, NodeSpec

AMBIENT_K = 295.15


def cpu_model(name: str) -> CpuModel:
    model = BUILTIN_CATALOGUE.cpu(name).model
    assert model is not None
    return model


def gpu_model(name: str) -> GpuModel:
    model = BUILTIN_CATALOGUE.gpu(name).model
    assert model is not None
    return model


CPU_NODE = NodeSpec("cpu-0", cpu_model("AMD EPYC 9965"), sockets=2, cores=384.0)
GPU_NODE = NodeSpec("gpu-0", cpu_model("AMD EPYC 9654"), 2, 192.0, gpu_model("NVIDIA H100 NVL"), 8)

SWEPT = MeasuredJob("swept", Sweep(np.array([400.0, 200.0]), np.array([1.0, 1.5]), np.array([350.0, 190.0])), seed=1)


def fleet(*specs: NodeSpec, idle_states: IdleStates = IdleStates.ALL) -> LiveFleet:
    return LiveFleet(specs, ambient_k=AMBIENT_K, idle_states=idle_states)


def run(nodes: LiveFleet, work: Workload, seconds: int) -> list[tuple[int, str]]:
    """Steps of a second; when each job was done."""
    done: dict[str, int] = {}
    for second in range(seconds):
        nodes.step(1.0, work.load(nodes), AMBIENT_K)
        for key in work.advance(nodes, 1.0):
            done.setdefault(key, second + 1)
    return [(second, key) for key, second in done.items()]


def busy(node: str, *, cpu_units: float = 1e9, gpu_units: float = 0.0, cores: float = 300.0) -> RunningPod:
    return RunningPod("a/busy", node, cores, 0.0, Activity(cpu_util=1.0), Work(cpu_units, gpu_units))


def test_an_uncapped_job_takes_the_time_that_its_units_say() -> None:
    nodes, work = fleet(CPU_NODE), Workload()
    work.put(busy("cpu-0", cpu_units=300.0 * 60.0))
    assert run(nodes, work, 120) == [(60, "a/busy")]


def test_a_cap_lowers_power_and_slows_the_work() -> None:
    free, capped = fleet(CPU_NODE), fleet(CPU_NODE)
    assert capped.cap_cpu(0, 120.0) == 120.0
    results = []
    for nodes in (free, capped):
        work = Workload()
        work.put(busy("cpu-0", cpu_units=300.0 * 60.0))
        results.append(run(nodes, work, 200)[0][0])
    assert capped.state.package_w[0] <= 2 * 120.0 * 1.001
    assert results[1] > results[0]


def test_a_cap_above_the_draw_changes_nothing() -> None:
    free, capped = fleet(CPU_NODE), fleet(CPU_NODE)
    capped.cap_cpu(0, 499.0)
    for nodes in (free, capped):
        run(nodes, Workload(), 60)
    assert capped.state.package_w[0] == pytest.approx(free.state.package_w[0])


def test_caps_are_clamped_to_what_the_device_accepts() -> None:
    nodes = fleet(GPU_NODE)
    assert nodes.cap_cpu(0, 1.0) == pytest.approx(0.2 * 360.0)
    assert nodes.cap_cpu(0, 9999.0) == 360.0
    assert nodes.cap_gpus(0, 10.0) == 200.0
    assert nodes.cap_gpus(0, None) == 400.0
    assert fleet(CPU_NODE).cap_gpus(0, 300.0) is None


def test_a_gpu_limit_slows_gpu_work_by_the_measured_curve() -> None:
    nodes, work = fleet(GPU_NODE), Workload()
    use = Activity(cpu_util=0.1, gpu_util=1.0)
    work.put(RunningPod("a/train", "gpu-0", 8.0, 4.0, use, Work(0.0, 4.0 * 100.0)))
    nodes.cap_gpus(0, 0.7 * 400.0)
    finished = run(nodes, work, 200)
    assert finished == [(109, "a/train")]  # 100 s at 0.92 of the throughput
    limited_w = nodes.gpu_device_w[0, 0]
    assert limited_w <= 280.0
    assert nodes.gpu_device_w[0, :5] == pytest.approx([*[limited_w] * 4, 6.0])


def test_each_job_has_a_response_of_its_own() -> None:
    """Two jobs alike but for their names: no curve is right for both."""
    nodes, work = fleet(GPU_NODE), Workload()
    for name in ("a", "b"):
        use = Activity(cpu_util=0.1, gpu_util=1.0, gpu_deviation=drawn(name))
        work.put(RunningPod(name, "gpu-0", 8.0, 1.0, use, Work(0.0, 100.0)))
    nodes.cap_gpus(0, 0.7 * 400.0)
    run(nodes, work, 10)
    rates = nodes.gpu_throughput[0]
    assert abs(rates[0] - rates[1]) > 0.01
    assert (rates[2:] > 0.999).all()


def test_a_limit_on_one_gpu_leaves_the_others() -> None:
    nodes, work = fleet(GPU_NODE), Workload()
    work.put(RunningPod("a/train", "gpu-0", 8.0, 4.0, Activity(gpu_util=1.0), Work(0.0, 400.0)))
    assert nodes.cap_gpus(0, 280.0, device=1) == 280.0
    run(nodes, work, 10)
    assert nodes.gpu_throughput[0, 1] < 1.0
    assert (np.delete(nodes.gpu_throughput[0], 1) == 1.0).all()


def test_a_gpu_limit_acts_on_each_gpu_by_its_own_work() -> None:
    nodes, work = fleet(GPU_NODE), Workload()
    for name, util in (("a/hard", 1.0), ("a/light", 0.4)):
        use = Activity(cpu_util=0.1, gpu_util=util)
        work.put(RunningPod(name, "gpu-0", 8.0, 2.0, use, Work(0.0, 2.0 * util * 100.0)))
    nodes.cap_gpus(0, 0.7 * 400.0)
    # The light one draws far less than the limit, however far the mean of both is above or below it.
    assert run(nodes, work, 200) == [(101, "a/light"), (109, "a/hard")]
    natural_w, light_w = float(natural_power_w(60.0, 400.0, 0.4)), nodes.gpu_device_w[0, 2]
    assert 0.97 * natural_w < light_w < natural_w
    hard_w = nodes.gpu_device_w[0, 0]
    assert hard_w <= 280.0
    assert nodes.gpu_device_w[0, :5] == pytest.approx([hard_w, hard_w, light_w, light_w, 6.0])
    assert nodes.state.gpu_w[0] == pytest.approx(float(nodes.gpu_device_w[0].sum()))


def test_pods_beyond_the_gpus_of_a_node_get_none() -> None:
    nodes, work = fleet(GPU_NODE), Workload()
    for number in range(3):
        use = Activity(gpu_util=0.5, gpu_memory_share=1.0)
        work.put(RunningPod(f"a/{number}", "gpu-0", 1.0, 3.0, use))
    load = work.load(nodes)
    assert load.gpu_busy.sum() == 8
    assert load.gpu_util.tolist() == [[0.5] * 8]
    assert load.gpu_memory_share.tolist() == [[1.0] * 8]


def test_pods_on_a_node_that_comes_back_with_fewer_gpus_are_given_others() -> None:
    work = Workload()
    for key in ("first", "second"):
        work.put(RunningPod(key, GPU_NODE.name, 1.0, 1.0, Activity(0.5, 0.9), gpu_job=SWEPT))
    work.load(fleet(GPU_NODE))
    work.remove("first")
    work.load(fleet(replace(GPU_NODE, gpus=1)))
    assert [(pod.key, device) for pod, _, device, _ in work.measured()] == [("second", 0)]


def test_throttling_to_the_floor_slows_like_the_clock() -> None:
    nodes, work = fleet(CPU_NODE), Workload()
    work.put(busy("cpu-0"))
    nodes.throttle_cpu(0, 100.0)
    run(nodes, work, 30)
    assert nodes.frequency[0] == pytest.approx(0.40, abs=1e-3)
    nodes.throttle_cpu(0, 0.0)
    run(nodes, work, 30)
    assert nodes.frequency[0] == pytest.approx(1.0, abs=1e-3)


def test_telemetry_is_averaged_and_the_cap_lags() -> None:
    nodes, work = fleet(CPU_NODE), Workload()
    work.put(busy("cpu-0"))
    run(nodes, work, 60)
    before_w = float(nodes.state.package_mean_w[0])
    nodes.cap_cpu(0, 120.0)
    nodes.step(0.5, work.load(nodes), AMBIENT_K)
    nodes.step(0.5, work.load(nodes), AMBIENT_K)
    assert 240.0 < nodes.state.package_mean_w[0] < before_w


@pytest.mark.slow
def test_a_hot_node_is_throttled() -> None:
    nodes, work = fleet(CPU_NODE), Workload()
    work.put(busy("cpu-0", cores=384.0))
    for _ in range(600):
        nodes.step(1.0, work.load(nodes), 273.15 + 75.0)
    assert nodes.frequency[0] < 1.0


def test_gangs_advance_only_while_all_members_run() -> None:
    nodes, work = fleet(CPU_NODE, GPU_NODE), Workload()
    member = {"cores": 10.0, "gpus": 0.0, "activity": Activity(1.0), "work": Work(100.0, 0.0), "gang": "g"}
    work.put(RunningPod("a/one", "cpu-0", gang_size=2, **member))  # type: ignore[arg-type]
    assert run(nodes, work, 20) == []
    work.put(RunningPod("a/two", "gpu-0", gang_size=2, **member))  # type: ignore[arg-type]
    run(nodes, work, 5)
    assert work.work_left("a/one") == Work(50.0, 0.0)
    work.remove("a/two")
    assert run(nodes, work, 20) == []
    assert work.work_left("a/one") == Work(50.0, 0.0)


def test_pods_of_unknown_nodes_wait() -> None:
    nodes, work = fleet(CPU_NODE), Workload()
    work.put(busy("elsewhere", cpu_units=1.0))
    assert run(nodes, work, 3) == []
    assert "a/busy" in work


def test_a_node_keeps_its_history_when_others_come_and_go() -> None:
    nodes, work = fleet(CPU_NODE), Workload()
    work.put(busy("cpu-0"))
    nodes.cap_cpu(0, 150.0)
    run(nodes, work, 30)
    grown = fleet(GPU_NODE, CPU_NODE)
    grown.adopt(nodes)
    assert grown.state.energy_j[1] == nodes.state.energy_j[0]
    assert grown.state.cpu_cap_w[1] == 300.0
    run(grown, work, 5)
    assert grown.load.cpu_util[1] > 0.0


def test_deep_idle_follows_the_switch() -> None:
    deep, shallow = fleet(GPU_NODE), fleet(GPU_NODE, idle_states=IdleStates.NONE)
    assert deep.state.gpu_w[0] == pytest.approx(8 * 6.0)
    assert shallow.state.gpu_w[0] == pytest.approx(8 * 60.0)


def test_energy_is_the_integral_of_power() -> None:
    nodes = fleet(GPU_NODE)
    run(nodes, Workload(), 100)
    assert nodes.state.energy_j[0] == pytest.approx(float(nodes.wall_w[0]) * 100.0)


def test_an_empty_fleet_steps() -> None:
    nodes = fleet()
    nodes.step(1.0, Workload().load(nodes), AMBIENT_K)
    assert len(FleetLoad.idle(0).cpu_util) == 0


def test_a_gpu_model_without_gpus_is_refused() -> None:
    with pytest.raises(ValueError, match="belong together"):
        NodeSpec("x", CPU_NODE.cpu, 2, 10.0, GPU_NODE.gpu, 0)


def test_slots_are_used_again() -> None:
    nodes, work = fleet(CPU_NODE), Workload()
    for number in range(500):
        work.put(RunningPod(f"a/{number}", "cpu-0", 1.0, 0.0, Activity(1.0)))
        if number >= 10:
            work.remove(f"a/{number - 10}")
    assert len(work) == 10
    np.testing.assert_allclose(work.load(nodes).cpu_util, [10.0 / 384.0])


def test_power_jumps_with_the_load_whatever_the_step() -> None:
    nodes, work = fleet(CPU_NODE), Workload()
    idle_w = float(nodes.wall_w[0])
    nodes.advance(10.0, AMBIENT_K)
    work.put(busy("cpu-0"))
    nodes.step(600.0, work.load(nodes), AMBIENT_K)
    assert nodes.state.energy_j[0] == pytest.approx(idle_w * 10.0 + float(nodes.wall_w[0]) * 600.0)


def test_a_cap_counts_by_its_way_over_a_long_step() -> None:
    long, short = fleet(CPU_NODE), fleet(CPU_NODE)
    work = Workload()
    work.put(busy("cpu-0"))
    for nodes in (long, short):
        nodes.step(60.0, work.load(nodes), AMBIENT_K)
        nodes.cap_cpu(0, 120.0)
    assert long.moving[0]
    long.advance(20.0, AMBIENT_K)
    for _ in range(400):
        short.advance(0.05, AMBIENT_K)
    assert long.state.energy_j[0] == pytest.approx(short.state.energy_j[0], rel=1e-4)
    assert long.mean_frequency[0] > long.frequency[0]
    assert not long.moving[0]
    assert long.at_cap[0]


def test_only_the_named_nodes_take_a_load() -> None:
    nodes = fleet(CPU_NODE, GPU_NODE)
    before_w = nodes.wall_w
    work = Workload()
    work.put(RunningPod("a/all", "gpu-0", 192.0, 8.0, Activity(cpu_util=1.0, gpu_util=1.0)))
    everywhere = work.load(nodes)
    load = FleetLoad(*(getattr(everywhere, item.name)[1:] for item in fields(FleetLoad)))
    nodes.set_load(load, np.array([1]))
    assert nodes.wall_w[0] == before_w[0]
    assert nodes.state.gpu_w[1] == pytest.approx(8 * 400.0)


@pytest.mark.slow
def test_a_hot_node_takes_the_same_energy_in_one_step_as_in_many() -> None:
    hot_k = 273.15 + 75.0
    long, short, work = fleet(CPU_NODE), fleet(CPU_NODE), Workload()
    work.put(busy("cpu-0", cores=384.0))
    long.step(200.0, work.load(long), hot_k)
    for _ in range(200):
        short.step(1.0, work.load(short), hot_k)
    assert long.throttled[0]
    assert long.state.energy_j[0] == pytest.approx(short.state.energy_j[0], rel=1e-3)


def test_deep_idle_of_managed_nodes_only() -> None:
    specs = (GPU_NODE, NodeSpec("other", GPU_NODE.cpu, 2, 192.0, GPU_NODE.gpu, 8))
    nodes = LiveFleet(specs, ambient_k=AMBIENT_K, idle_states=IdleStates.MANAGED, managed=[True, False])
    assert nodes.state.gpu_w.tolist() == pytest.approx([8 * 6.0, 8 * 60.0])


def test_a_gang_goes_on_without_the_member_that_is_done() -> None:
    nodes, work = fleet(CPU_NODE), Workload()
    for name, units in (("a/short", 50.0), ("a/long", 100.0)):
        work.put(RunningPod(name, "cpu-0", 10.0, 0.0, Activity(1.0), Work(units, 0.0), "g", 2))
    nodes.step(1.0, work.load(nodes), AMBIENT_K)
    assert work.next_done_s(nodes) == pytest.approx(5.0)
    assert work.advance(nodes, 5.0) == ["a/short"]
    work.remove("a/short")
    assert work.next_done_s(nodes) == pytest.approx(5.0)
    assert work.advance(nodes, 5.0) == ["a/long"]


def test_the_end_has_the_weather_of_its_own_hour() -> None:
    weather = Weather(Climate(noise_std_k=0.0), seed=1, length_s=12.0 * 3600.0)
    start_k, before_k, end_k = (weather.outdoor_k(time_s) for time_s in (0.0, 12.0 * 3600.0 - 60.0, 12.0 * 3600.0))
    assert end_k == pytest.approx(before_k, abs=0.1)
    assert abs(end_k - start_k) > 1.0
    # A simulator that runs on begins again.
    assert weather.outdoor_k(12.0 * 3600.0 + 120.0) == weather.outdoor_k(120.0)


def test_pods_keep_their_gpus_when_others_end() -> None:
    nodes, work = fleet(GPU_NODE), Workload()
    for key in ("first", "second", "third"):
        work.put(RunningPod(key, GPU_NODE.name, 1.0, 1.0, Activity(0.5, 0.9), gpu_job=SWEPT))
    work.load(nodes)
    work.remove("first")
    work.load(nodes)
    assert [(pod.key, device) for pod, _, device, _ in work.measured()] == [("second", 1), ("third", 2)]
    work.put(RunningPod("fourth", GPU_NODE.name, 1.0, 1.0, Activity(0.5, 0.9), gpu_job=SWEPT))
    work.load(nodes)
    assert {pod.key: device for pod, _, device, _ in work.measured()}["fourth"] == 0
