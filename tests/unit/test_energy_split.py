from pathlib import Path

import numpy as np
import pytest

from joulie.domain.actuation import cpu_range
from joulie.domain.control import ControlSettings, Memory, Snapshot, controlled_node, decide
from joulie.domain.drain import DrainSettings
from joulie.domain.energy_split import EnergyBounds, GpuPower, cpu_choice, gpu_choice, split_caps
from joulie.domain.hardware import BUILTIN_CATALOGUE, CapRange
from joulie.domain.hardware.resolve import ReportedHardware, resolve
from joulie.domain.policies import POLICIES
from joulie.domain.policy import ClusterSnapshot, PolicyNode, PolicySettings, Profile
from joulie.domain.power.cpu import CpuPower
from joulie.domain.power.gpu import natural_power_w, operate_gpu

NVL = BUILTIN_CATALOGUE.gpu("NVIDIA H100 NVL").model
EPYC = BUILTIN_CATALOGUE.cpu("AMD EPYC 9654").model
NVL_POWER = GpuPower(NVL.idle_w, NVL.default_w)
EPYC_PAIR = CpuPower.of(EPYC, 2)
WIDE = CapRange(40.0, 400.0, 400.0)
MEDIAN = EnergyBounds(gpu_util_low=0.4, gpu_util_high=0.6, count_spread=False)


def hardware(cpu="AMD-EPYC-9654", gpu=None, gpus=8):
    labels = {"joulie.io/hw.cpu-model": cpu, "joulie.io/hw.cpu-sockets": "2"}
    if gpu is not None:
        labels |= {"joulie.io/hw.gpu-model": gpu, "joulie.io/hw.gpu-count": str(gpus)}
    limits = cpu_range(None, None, BUILTIN_CATALOGUE.cpu(cpu).model.cap_range)
    reported = ReportedHardware(cpu_min_w=limits.min_w, cpu_max_w=limits.base_w)
    return resolve(reported, labels, {"cpu": 192.0}, BUILTIN_CATALOGUE)


CPU_NODE, NVL_NODE, W7900_NODE = hardware(), hardware(gpu="NVIDIA-H100-NVL"), hardware(gpu="AMD-Radeon-Pro-W7900")


@pytest.mark.parametrize("bound", [1.02, 1.15, 1.5])
@pytest.mark.parametrize("spread", [True, False])
def test_a_gpu_cap_keeps_the_bound_for_95_of_100_jobs(bound, spread):
    choice = gpu_choice(NVL_POWER, WIDE, bound, EnergyBounds(gpu_util_low=0.4, gpu_util_high=0.7, count_spread=spread))
    # Jobs drawn anew, not those that the choice was made with.
    rng = np.random.default_rng(5)
    utils = rng.uniform(0.4, 0.7, 40_000)
    rates = operate_gpu(NVL.idle_w, NVL.default_w, utils, choice.percent * 4.0).throughput
    sigmas = rng.standard_normal(utils.size) / 1.2816 if spread else np.zeros(utils.size)
    below, above = rates.median - rates.p10, rates.p90 - rates.median
    rate = np.clip(rates.median + sigmas * np.where(sigmas < 0.0, below, above), 0.01, 1.0)
    assert np.quantile(1.0 / rate, 0.95) <= bound * 1.01
    assert np.quantile(1.0 / rate, 0.95) == pytest.approx(choice.slowdown, abs=0.03)


def test_no_cap_that_keeps_the_bound_saves_more():
    choice = gpu_choice(NVL_POWER, WIDE, 1.15, MEDIAN)
    utils = 0.4 + 0.2 * (np.arange(20) + 0.5) / 20
    natural_w = natural_power_w(NVL.idle_w, NVL.default_w, utils)
    for percent in range(10, 101):
        state = operate_gpu(NVL.idle_w, NVL.default_w, utils, percent * 4.0)
        energy = (state.power_w / state.throughput.median).mean() / natural_w.mean()
        slowdown = np.quantile(1.0 / state.throughput.median, 0.95)
        assert slowdown > 1.15 or energy >= choice.energy_per_work - 1e-9


def test_a_looser_bound_caps_deeper_and_stops_where_energy_rises_again():
    percents = [gpu_choice(NVL_POWER, WIDE, bound, MEDIAN).percent for bound in (1.0, 1.02, 1.15, 2.0, 10.0)]
    assert percents == sorted(percents, reverse=True)
    assert percents[0] > percents[2]
    # Far below 60 % of the natural power work takes so much longer that it costs more.
    assert percents[-1] * 4.0 > 0.5 * natural_power_w(NVL.idle_w, NVL.default_w, 0.6)


def test_a_device_that_cannot_be_capped_that_far_is_capped_as_far_as_it_can():
    assert gpu_choice(NVL_POWER, CapRange(350.0, 400.0, 400.0), 1.15, EnergyBounds()).percent >= 87.5
    assert gpu_choice(NVL_POWER, CapRange(400.0, 400.0, 400.0), 1.15, EnergyBounds()).percent == 100.0


@pytest.mark.parametrize("bound", [1.02, 1.15])
def test_a_cpu_cap_keeps_the_bound_at_full_load(bound):
    limits = cpu_range(None, None, EPYC.cap_range)
    choice = cpu_choice(EPYC_PAIR, 2, limits, bound)
    state = EPYC_PAIR.operate(1.0, choice.percent / 100.0 * limits.base_w * 2)
    assert 1.0 / state.frequency <= bound + 1e-9
    assert 1.0 / EPYC_PAIR.operate(1.0, (choice.percent - 1.0) / 100.0 * limits.base_w * 2).frequency > bound


def test_cpus_beside_gpus_do_not_use_up_the_slowdown_of_the_gpus():
    policy = POLICIES["energy_per_work"](PolicySettings())
    nodes = (PolicyNode("cpu", "cpu", 50.0, CPU_NODE), PolicyNode("gpu", "gpu", 60.0, NVL_NODE))
    caps = policy.plan(ClusterSnapshot(nodes, 0, 0.0)).caps
    assert caps["cpu"][Profile.ECO].cpu.percent < caps["cpu"][Profile.PERFORMANCE].cpu.percent
    assert caps["gpu"][Profile.ECO].cpu == caps["gpu"][Profile.PERFORMANCE].cpu
    assert caps["gpu"][Profile.ECO].gpu.percent < caps["gpu"][Profile.PERFORMANCE].gpu.percent <= 100.0


@pytest.mark.parametrize("gpu", ["NVIDIA-H100-NVL", "NVIDIA-L40S", "AMD-Instinct-MI300X", "AMD-Radeon-Pro-W7900"])
def test_the_bound_holds_for_work_that_waits_for_both_cpus_and_gpus(gpu):
    bounds = EnergyBounds(gpu_util_low=0.4, gpu_util_high=0.64)
    chosen = split_caps(hardware(gpu=gpu), BUILTIN_CATALOGUE, bounds)
    limits = cpu_range(None, None, EPYC.cap_range)
    for caps, bound in ((chosen.performance, 1.02), (chosen.eco, 1.15)):
        clock = EPYC_PAIR.operate(1.0, caps.cpu.percent / 100.0 * limits.base_w * 2).frequency
        assert caps.gpu.slowdown / clock <= bound + 1e-9


def test_caps_are_chosen_once_for_equal_hardware(monkeypatch):
    asked = []
    monkeypatch.setattr("joulie.domain.policies.split_caps", lambda *args: asked.append(args[0]) or split_caps(*args))
    policy = POLICIES["energy_per_work"](PolicySettings())
    for _ in range(3):
        # As a caller makes them that shares no objects: new ones every time, which may lie where others lay.
        nodes = tuple(PolicyNode(f"n{number}", "gpu", 50.0, hardware(gpu="NVIDIA-L40S")) for number in range(3))
        caps = policy.plan(ClusterSnapshot(nodes, 0, 0.0)).caps
        assert len({str(caps[node.name]) for node in nodes}) == 1
    assert len(asked) == 1
    policy.plan(ClusterSnapshot((PolicyNode("n", "cpu", 50.0, CPU_NODE),), 0, 0.0))
    policy.plan(ClusterSnapshot(nodes, 0, 0.0))
    assert asked == [nodes[0].hardware, CPU_NODE, nodes[0].hardware]


def plan(groups, demand=0, **settings):
    nodes = tuple(
        PolicyNode(f"{name}-{index}", name, density, found)
        for name, density, found, count in groups
        for index in range(count)
    )
    made = POLICIES["energy_per_work"](PolicySettings(**settings)).plan(ClusterSnapshot(nodes, demand, 0.0))
    assert set(made.profiles) == {node.name for node in nodes}
    high = [name for name, profile in made.profiles.items() if profile is Profile.PERFORMANCE]
    return {name: sum(node.startswith(name) for node in high) for name, *_ in groups}


def test_every_kind_of_node_gets_its_share_of_the_performance_nodes():
    groups = [("cpu", 90.0, CPU_NODE, 10), ("nvl", 80.0, NVL_NODE, 20), ("amd", 70.0, W7900_NODE, 10)]
    assert plan(groups, queue_hp_base_frac=0.5) == {"cpu": 5, "nvl": 10, "amd": 5}
    assert sum(plan(groups, demand=300, queue_hp_base_frac=0.0).values()) == 30
    assert sum(plan(groups, demand=3000).values()) == 40


def test_one_of_each_family_comes_before_the_shares():
    groups = [("cpu", 90.0, CPU_NODE, 1), ("nvl", 80.0, NVL_NODE, 30), ("amd", 70.0, W7900_NODE, 1)]
    assert plan(groups, queue_hp_base_frac=0.0, queue_hp_min=3) == {"cpu": 1, "nvl": 1, "amd": 1}


def test_within_a_kind_performance_nodes_are_those_that_eco_caps_save_least_on():
    # Same vendor: the W7900's least limit leaves nothing to save at these loads, the MI300X' leaves much.
    groups = [("mi300x", 90.0, hardware(gpu="AMD-Instinct-MI300X"), 4), ("w7900", 10.0, W7900_NODE, 4)]
    assert plan(groups, queue_hp_base_frac=0.5, energy=MEDIAN) == {"mi300x": 1, "w7900": 3}


def test_unknown_hardware_keeps_the_administrators_caps():
    nodes = (PolicyNode("a", "unknown", 50.0), PolicyNode("b", "cpu", 40.0, CPU_NODE))
    made = POLICIES["energy_per_work"](PolicySettings()).plan(ClusterSnapshot(nodes, 0, 0.0))
    assert set(made.caps) == {"b"}


def test_caps_deepen_only_after_the_drain():
    policy = POLICIES["energy_per_work"](PolicySettings(queue_hp_base_frac=0.0, queue_hp_min=0))
    settings = ControlSettings(drain=DrainSettings(settling_s=30.0))
    nodes = (controlled_node("n", NVL_NODE),)
    caps = policy.plan(ClusterSnapshot((nodes[0].planned,), 0, 0.0)).caps["n"]

    def step(now_s, memory, blocking):
        return decide(Snapshot(now_s, nodes, 0, {"n": blocking} if blocking else {}), memory, settings, policy)

    held = step(0.0, Memory(), 1)
    assert held.nodes[0].draining
    assert held.nodes[0].caps.gpu == caps[Profile.PERFORMANCE].gpu
    quiet = step(60.0, held.memory, 0)
    done = step(120.0, quiet.memory, 0)
    assert done.nodes[0].caps.gpu == caps[Profile.ECO].gpu
    assert done.nodes[0].caps.gpu_percent < held.nodes[0].caps.gpu_percent


def test_what_is_no_bound_is_refused():
    for wrong in ({"standard_slowdown": 0.9}, {"gpu_util_low": 0.8, "gpu_util_high": 0.5}, {"gpu_util_high": 1.2}):
        with pytest.raises(ValueError):
            EnergyBounds(**wrong)


def test_the_page_tells_the_caps_that_are_chosen():
    page = (Path(__file__).parents[2] / "docs/concepts/energy-per-work.md").read_text(encoding="utf-8")
    models = ("NVIDIA-H100-NVL", "NVIDIA-H100-80GB-HBM3", "NVIDIA-L40S", "AMD-Instinct-MI300X", "AMD-Radeon-Pro-W7900")
    chosen = [split_caps(hardware(gpu=gpu), BUILTIN_CATALOGUE, EnergyBounds()) for gpu in models]
    ((performance, eco),) = {(caps.performance.gpu.percent, caps.eco.gpu.percent) for caps in chosen}
    told = f"get {performance:.0f} % of their default limit on performance nodes and {eco:.0f} % on eco nodes"
    assert told in " ".join(page.split())
