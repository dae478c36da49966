"""Hardware profiles, who a node is, and the power of its pods."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.adapters.hardware_profiles import HardwareProfilesError, load_hardware_profiles, parse_hardware_profiles
from joulie.domain.accounting.identity import (
    CPU_MODEL_LABEL,
    DEFAULT_MEMORY,
    GPU_MODEL_LABEL,
    NodeFacts,
    NodePower,
    PowerRange,
    PowerSettings,
    Source,
    node_power,
    parse_power_range,
)
from joulie.domain.accounting.power import NodeLoads, PodLoads, pod_powers
from joulie.domain.accounting.profiles import CpuProfile, GpuProfile, MemProfile, Profiles, Scaling, label_form
from joulie.domain.hardware.resolve import ReportedHardware

XEON = "Intel(R) Xeon(R) Platinum 8275CL"
SEED = """\
defaultPUE: 1.1
defaultGPUPUE: 1.15
cpuProfiles:
  "Intel(R) Xeon(R) Platinum 8275CL":
    idlePower: 10.5
    maxPower: 120.0
  "Intel(R) Core(TM) i5-6500 CPU @ 3.20GHz":
    idlePower: 5.0
    maxPower: 65.0
  "Intel(R) Xeon(R) Platinum 8175M":
    idlePower: 10.0
    maxPower: 115.0
    numCores: 24
    baseFrequencyGHz: 2.5
    powerScaling: "quadratic"
    frequencyRangeGHz:
      min: 1.2
      max: 3.5
gpuProfiles:
  "NVIDIA A100":
    idlePower: 25.0
    maxPower: 400.0
    workloadTypes:
      inference: 0.6
      training: 1.0
      rendering: 0.9
memProfiles:
  "DDR4-2666 ECC":
    idlePowerPerGB: 0.125
    maxPowerPerGB: 0.375
    baseIdlePower: 1.0
cloudInstanceMapping:
  aws:
    "m5.large":
      cpuModel: "Intel(R) Xeon(R) Platinum 8175M"
      memoryType: "DDR4-2666 ECC"
      numCPUs: 2
      # in MB
      totalMemory: 8192
"""


@pytest.fixture
def seed():
    return parse_hardware_profiles(SEED, "profiles.yaml")


def test_the_file_of_the_seed_is_read_as_it_is(seed):
    assert seed.problems == ()
    assert (seed.pue, seed.gpu_pue) == (1.1, 1.15)
    assert seed.cpus.find(XEON) == CpuProfile(10.5, 120.0)
    assert seed.cpus.find("Intel(R) Xeon(R) Platinum 8175M") == CpuProfile(10.0, 115.0, 24, 2.5e9, Scaling.QUADRATIC)
    assert seed.gpus.find("NVIDIA A100") == GpuProfile(
        25.0, 400.0, {"inference": 0.6, "training": 1.0, "rendering": 0.9}
    )
    assert seed.memories.find("DDR4-2666 ECC") == MemProfile(0.125, 0.375, 1.0)
    assert (seed.instances["aws"]["m5.large"].cpus, seed.instances["aws"]["m5.large"].memory_gb) == (2, 8.192)


def test_a_bad_entry_is_reported_with_its_line_and_the_rest_counts():
    text = """\
defaultPUE: 0.5
cpuProfiles:
  good: {idlePower: 5, maxPower: 50}
  good: {idlePower: 6, maxPower: 60}
  words: {idlePower: "5 W", maxPower: 50}
  falling: {idlePower: 50, maxPower: 5}
  nothing:
  endless: {idlePower: .nan, maxPower: .inf}
  odd: {idlePower: 5, maxPower: 50, colour: green}
  scaled: {idlePower: 5, maxPower: 50, powerScaling: exponential}
gpuProfiles: [1, 2]
memoryProfiles: {}
"""
    found = parse_hardware_profiles(text, "p.yaml")
    assert found.cpus.by_name == {"good": CpuProfile(5, 50), "odd": CpuProfile(5, 50)}
    assert found.pue == 1.1
    lines = [int(problem.split(":")[1]) for problem in found.problems]
    assert lines == [1, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert found.problems[2] == (
        "p.yaml:5: cpuProfiles.words: Expected `float`, got `str` - at `$.idlePower`; entry ignored"
    )
    assert found.problems[6] == "p.yaml:9: cpuProfiles.odd.colour is unknown"


@pytest.mark.parametrize("text", ["a: [", "a: *b", "\t"])
def test_a_file_that_is_no_yaml_is_refused_with_its_line(text):
    with pytest.raises(HardwareProfilesError, match=r"^p\.yaml:1: not YAML: "):
        parse_hardware_profiles(text, "p.yaml")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(HardwareProfilesError, match="cannot be read"):
        load_hardware_profiles(Path(tmp_path / "absent.yaml"))


@pytest.mark.parametrize(
    "name",
    [XEON, "Intel-Xeon-Platinum-8275CL", "Intel(R) Xeon(R) Platinum 8275CL CPU @ 3.00GHz", label_form(XEON)],
)
def test_a_model_is_found_by_its_raw_name_and_by_its_label(seed, name):
    assert seed.cpus.find(name) == CpuProfile(10.5, 120.0)


def test_models_are_never_found_by_substring(seed):
    for name in ("8275CL", "Platinum", "Intel(R) Xeon(R) Platinum 8275C", "Intel(R) Xeon(R) CPU @ 2.20GHz", ""):
        assert seed.cpus.find(name) is None


def test_a_gpu_is_found_by_the_product_name_of_the_gpu_operator(seed):
    assert seed.gpus.find("NVIDIA-A100-SXM4-80GB") is not None
    assert seed.gpus.find("NVIDIA-A1000") is None
    profiles = Profiles({"NVIDIA L40": 1, "NVIDIA H100": 2, "NVIDIA H100 NVL": 3}, longer_names=True)
    assert profiles.find("NVIDIA-L40S") is None
    assert profiles.find("NVIDIA-H100-NVL") == 3
    assert profiles.find("NVIDIA-H100-PCIe") == 2


@given(st.text(max_size=120))
def test_the_label_form_is_a_label_value_and_its_own_label_form(raw):
    label = label_form(raw)
    assert len(label) <= 63
    assert not label or (label[0].isalnum() and label[-1].isalnum())
    assert label_form(label) == label
    assert all(character.isascii() and (character.isalnum() or character in "-_.") for character in label)


SETTINGS = PowerSettings(PowerRange(100, 400), {"node-1": PowerRange(50, 300)})


def test_the_best_source_names_the_hardware(seed):
    instance = {"node.kubernetes.io/instance-type": "m5.large"}
    reported = ReportedHardware(cpu_raw="Intel(R) Core(TM) i5-6500 CPU @ 3.20GHz", cores=4, sockets=1)
    labelled = {**instance, CPU_MODEL_LABEL: label_form(XEON)}
    annotated = {CPU_MODEL_LABEL: "Intel(R) Core(TM) i5-6500 CPU @ 3.20GHz"}
    cases = [
        (NodeFacts("node-1", labelled, annotated, "aws:///x", 4), 65.0, Source.LABELS),
        (NodeFacts("node-1", labelled, {}, "aws:///x", 48, reported=reported), 120.0, Source.LABELS),
        (NodeFacts("node-1", instance, {}, "aws:///x", 48, reported=reported), 115.0, Source.INSTANCE_TYPE),
        (NodeFacts("node-1", {}, {}, "", 4, reported=reported), 65.0, Source.NODE_HARDWARE),
        (NodeFacts("node-1", {}, {}, "", 4), 300.0, Source.NODE_CONFIG),
        (NodeFacts("node-2", {}, {}, "", 4), 400.0, Source.DEFAULT),
    ]
    for facts, max_w, source in cases:
        found = node_power(facts, seed, SETTINGS)
        assert (found.cpu_max_w, found.cpu_source) == (max_w, source)


def test_a_name_that_nobody_knows_leaves_the_answer_to_the_next_source(seed):
    facts = NodeFacts("node-1", {CPU_MODEL_LABEL: "Zilog-Z80", "node.kubernetes.io/instance-type": "m5.large"})
    assert node_power(facts, seed, SETTINGS).cpu_source is Source.INSTANCE_TYPE
    assert node_power(NodeFacts("n", {CPU_MODEL_LABEL: "Zilog-Z80"}), seed, SETTINGS).cpu_source is Source.DEFAULT


def test_joulies_catalogue_knows_models_that_the_file_does_not(seed):
    found = node_power(
        NodeFacts("n", {}, {CPU_MODEL_LABEL: "AMD EPYC 9654 96-Core Processor"}, "", 384), seed, SETTINGS
    )
    assert found.cpu_source is Source.LABELS
    assert 0 < found.cpu_idle_w < found.cpu_max_w
    one = node_power(NodeFacts("n", {}, {CPU_MODEL_LABEL: "AMD EPYC 9654"}, "", 192), seed, SETTINGS)
    assert found.cpu_max_w == pytest.approx(2 * one.cpu_max_w)
    gpu = node_power(
        NodeFacts("n", {"nvidia.com/gpu.product": "NVIDIA-H100-NVL"}, allocatable_gpus={"nvidia.com/gpu": 2}),
        seed,
        SETTINGS,
    )
    assert (gpu.gpus, gpu.gpu_source) == (2, Source.LABELS)


def test_a_virtual_machine_has_its_share_of_the_package_not_all_of_it(seed):
    facts = NodeFacts("n", {"node.kubernetes.io/instance-type": "m5.large"}, {}, "aws:///eu/i-1", 2, 8.0)
    found = node_power(facts, seed, SETTINGS)
    assert (found.cpu_idle_w, found.cpu_max_w) == (pytest.approx(10 * 2 / 48), pytest.approx(115 * 2 / 48))
    assert found.memory == MemProfile(0.125, 0.375, 1.0)


def test_an_instance_type_is_of_its_own_provider(seed):
    facts = NodeFacts("n", {"node.kubernetes.io/instance-type": "m5.large"}, {}, "azure:///x", 2)
    assert node_power(facts, seed, SETTINGS).cpu_source is Source.DEFAULT


def test_watts_of_the_settings_are_of_the_whole_node(seed):
    found = node_power(NodeFacts("node-1", memory_gb=64), seed, SETTINGS)
    assert (found.cpu_idle_w, found.memory.idle_w_per_gb) == (50, 0)
    assert node_power(NodeFacts("n", {CPU_MODEL_LABEL: XEON}), seed, SETTINGS).memory == DEFAULT_MEMORY


def test_gpus_that_nobody_knows_draw_what_such_devices_do(seed):
    found = node_power(NodeFacts("n", allocatable_gpus={"nvidia.com/gpu": 4}), seed, SETTINGS)
    assert (found.gpus, found.gpu_source) == (4, Source.DEFAULT)
    assert found.gpu is not None
    assert 0 < found.gpu.idle_w < found.gpu.max_w


def test_a_node_annotated_to_have_no_gpu_has_none(seed):
    found = node_power(NodeFacts("n", {}, {GPU_MODEL_LABEL: "none"}), seed, SETTINGS)
    assert (found.gpus, found.gpu, found.gpu_source) == (0, None, None)


def test_trap_nodes_matched_by_substring(seed):
    for name in ("node-10", "node", "anode-1", "node-1.example"):
        assert node_power(NodeFacts(name), seed, SETTINGS).cpu_source is Source.DEFAULT
    dashes = PowerSettings(by_node={"ip_10_0_0_1_internal": PowerRange(1, 2)})
    assert node_power(NodeFacts("ip-10-0-0-1.internal"), seed, dashes).cpu_source is Source.NODE_CONFIG


def test_power_ranges_are_read_as_the_seed_writes_them():
    assert parse_power_range("idle:50,max:300") == PowerRange(50, 300)
    assert parse_power_range(" max: 300.5 , idle: 0 ") == PowerRange(0, 300.5)
    for text in ("", "50,300", "idle:50", "idle:50,max:300,max:4", "idle:-1,max:3", "idle:nan,max:3", "idle:5,max:3"):
        with pytest.raises(ValueError):
            parse_power_range(text)


NO_MEMORY = MemProfile(0.0, 0.0)


def node(cores=10.0, idle_w=50.0, max_w=250.0, memory=NO_MEMORY, memory_gb=0.0, gpus=0, gpu=None, **fields):
    base_hz, scaling = fields.get("base_hz"), fields.get("scaling", Scaling.LINEAR)
    return NodePower(cores, idle_w, max_w, memory_gb, memory, gpus, gpu, base_hz, scaling, Source.LABELS, None)


def loads(count, **fields):
    values = {
        "node": np.zeros(count, dtype=np.int64),
        "cpu_cores": np.zeros(count),
        "requested_cores": np.zeros(count),
        "memory_gb": np.zeros(count),
        "requested_gb": np.zeros(count),
        "gpus": np.zeros(count),
        "gpu_util": np.full(count, np.nan),
        "gpu_share": np.ones(count),
    }
    return PodLoads(**(values | {name: np.array(value, dtype=values[name].dtype) for name, value in fields.items()}))


def idle_nodes(count=1):
    return NodeLoads(np.full(count, np.nan), np.full(count, np.nan))


def test_trap_the_whole_nodes_idle_power_charged_to_each_pod():
    found = pod_powers([node()], idle_nodes(), loads(3, requested_cores=[2, 2, 1]))
    assert found.cpu_idle_w.tolist() == [10, 10, 5]
    assert found.node_cpu_w.tolist() == [25]
    nobody = pod_powers([node()], idle_nodes(), loads(2))
    assert nobody.cpu_w.tolist() == [0, 0]
    assert nobody.node_cpu_w.tolist() == [50]


def test_requests_above_the_node_share_its_idle_power_and_no_more():
    found = pod_powers([node(cores=4)], idle_nodes(), loads(2, requested_cores=[6, 2]))
    assert found.cpu_idle_w.tolist() == pytest.approx([37.5, 12.5])


def test_power_above_idle_follows_utilisation_and_is_shared_by_use():
    found = pod_powers([node()], idle_nodes(), loads(2, cpu_cores=[4, 1]))
    busy_w = 200 * 0.5**1.4
    assert found.cpu_w.tolist() == pytest.approx([busy_w * 0.8, busy_w * 0.2])
    with_system = pod_powers([node()], NodeLoads(np.array([10.0]), np.array([np.nan])), loads(2, cpu_cores=[4, 1]))
    assert with_system.cpu_w.tolist() == pytest.approx([80, 20])
    assert with_system.node_cpu_w.tolist() == pytest.approx([150])


def test_what_a_pod_uses_is_what_it_requests_where_nobody_measures_it():
    found = pod_powers([node()], idle_nodes(), loads(1, cpu_cores=[np.nan], requested_cores=[5]))
    assert found.cpu_w.tolist() == pytest.approx([25 + 200 * 0.5**1.4])


@pytest.mark.parametrize(
    ("scaling", "share"), [(Scaling.LINEAR, 0.5), (Scaling.QUADRATIC, 0.25), (Scaling.CUBIC, 0.125)]
)
def test_a_slower_cpu_draws_less_above_idle(scaling, share):
    nodes = [node(base_hz=3e9, scaling=scaling)]
    slow = pod_powers(nodes, NodeLoads(np.array([np.nan]), np.array([1.5e9])), loads(1, cpu_cores=[10]))
    assert slow.cpu_w.tolist() == pytest.approx([200 * share])
    for frequency_hz in (4e9, math.nan, 0.0):
        full = pod_powers(nodes, NodeLoads(np.array([np.nan]), np.array([frequency_hz])), loads(1, cpu_cores=[10]))
        assert full.cpu_w.tolist() == pytest.approx([200])


def test_trap_all_gpus_of_the_node_charged_to_each_gpu_pod():
    nodes = [node(gpus=8, gpu=GpuProfile(25, 400, {"inference": 0.6}))]
    pods = loads(3, gpus=[1, 2, 0], gpu_util=[0.5, 1.0, 1.0], gpu_share=[1.0, 0.6, 1.0])
    found = pod_powers(nodes, idle_nodes(), pods)
    assert found.gpu_w.tolist() == pytest.approx([25 + 375 * 0.5, 2 * 240, 0])
    assert found.node_gpu_w.tolist() == [5 * 25]


def test_gpus_that_are_shared_in_time_are_not_drawn_twice():
    nodes = [node(gpus=1, gpu=GpuProfile(20, 100))]
    found = pod_powers(nodes, idle_nodes(), loads(4, gpus=[1, 1, 1, 1]))
    assert found.gpu_w.sum() == pytest.approx(100)
    assert found.node_gpu_w.tolist() == [0]


def test_memory_is_shared_by_request_when_idle_and_by_use_when_used():
    nodes = [node(memory=MemProfile(0.1, 0.3, 1.0), memory_gb=100)]
    found = pod_powers(nodes, idle_nodes(), loads(2, memory_gb=[10, 30], requested_gb=[20, 0]))
    assert found.mem_w.tolist() == pytest.approx([11 * 0.2 + 2, 6])
    assert found.mem_idle_w.tolist() == pytest.approx([2.2, 0])
    assert found.node_mem_w.tolist() == pytest.approx([8.8])


_amount = st.floats(0, 1e3)


@pytest.mark.slow
@settings(max_examples=50)
@given(data=st.data(), n_nodes=st.integers(1, 4), n_pods=st.integers(0, 8))
def test_nothing_is_drawn_twice_and_nothing_is_lost(data, n_nodes, n_pods):
    draw = data.draw
    nodes = [
        node(
            cores=draw(st.sampled_from([0.0, 2.0, 64.0])),
            idle_w=draw(st.floats(0, 200)),
            max_w=200 + draw(st.floats(0, 800)),
            memory=MemProfile(0.1, 0.3, 1.0),
            memory_gb=draw(st.sampled_from([0.0, 16.0, 512.0])),
            gpus=draw(st.integers(0, 8)),
            gpu=draw(st.sampled_from([None, GpuProfile(25, 400)])),
        )
        for _ in range(n_nodes)
    ]

    def column(values):
        return draw(st.lists(values, min_size=n_pods, max_size=n_pods))

    pods = loads(
        n_pods,
        node=column(st.integers(0, n_nodes - 1)),
        cpu_cores=column(_amount | st.just(math.nan)),
        requested_cores=column(_amount),
        memory_gb=column(_amount | st.just(math.nan)),
        requested_gb=column(_amount),
        gpus=column(st.floats(0, 8)),
        gpu_util=column(st.floats(0, 1) | st.just(math.nan)),
        gpu_share=column(st.floats(0.1, 1)),
    )
    busy = NodeLoads(
        np.array(draw(st.lists(_amount | st.just(math.nan), min_size=n_nodes, max_size=n_nodes))),
        np.full(n_nodes, np.nan),
    )
    found = pod_powers(nodes, busy, pods)
    for powers in (found.cpu_w, found.mem_w, found.gpu_w, found.node_cpu_w, found.node_mem_w, found.node_gpu_w):
        assert np.isfinite(powers).all()
        assert (powers >= 0).all()
    for index, one in enumerate(nodes):
        own = pods.node == index
        assert found.cpu_idle_w[own].sum() <= one.cpu_idle_w * (1 + 1e-12)
        drawn_w = found.cpu_w[own].sum() + found.node_cpu_w[index]
        assert one.cpu_idle_w * (1 - 1e-9) <= drawn_w <= one.cpu_max_w * (1 + 1e-9)
        gpu_w = found.gpu_w[own].sum() + found.node_gpu_w[index]
        assert gpu_w <= (one.gpus * 400 if one.gpu else 0) * (1 + 1e-9)
