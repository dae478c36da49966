"""Hardware that nobody catalogued: what it says of itself counts, the rest is estimated, part by part."""

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joulie.adapters.cpu.cpuinfo import CpuInfo
from joulie.adapters.kubernetes.api.core import Node
from joulie.adapters.kubernetes.hardware import capacity_cpus
from joulie.apps.agent.discovery import hardware_of_host
from joulie.apps.agent.host import Observation
from joulie.apps.operator.desired import desired_node
from joulie.domain.control import ControlSettings, Memory, Snapshot, controlled_node, decide
from joulie.domain.control_caps import CapTable
from joulie.domain.control_power import SourceReadings
from joulie.domain.drain import ActiveEco
from joulie.domain.hardware import BUILTIN_CATALOGUE, CapRange, Quality
from joulie.domain.hardware.estimates import (
    COVERAGE,
    FEWEST_CORES,
    GPU_LIMITS_W,
    SMALLEST_W_PER_CORE,
    estimated_cpu_tdp,
)
from joulie.domain.hardware.resolve import ReportedHardware, resolve
from joulie.domain.policies import POLICIES
from joulie.domain.policy import DEFAULT_CAPS, Cap, ClusterSnapshot, PolicyNode, PolicySettings, Profile, ProfileCaps
from joulie.domain.power_estimate import estimate_cpu_power, estimate_gpu_power
from joulie.ports.devices import DeviceKind, PowerDevice

KNOWN_GPUS = {"joulie.io/hw.gpu-model": "NVIDIA-H100-NVL", "joulie.io/hw.gpu-count": "4"}
KNOWN_CPUS = {"joulie.io/hw.cpu-model": "AMD-EPYC-9654", "joulie.io/hw.cpu-sockets": "2"}
UNKNOWN_CPUS = {"joulie.io/hw.cpu-model": "Zilog-Z80000", "joulie.io/hw.cpu-sockets": "2"}
UNKNOWN_GPUS = {"joulie.io/hw.gpu-model": "NVIDIA-Z9000", "joulie.io/hw.gpu-count": "4"}
CPUS = st.sampled_from([{}, KNOWN_CPUS, UNKNOWN_CPUS])
GPUS = st.sampled_from([{}, KNOWN_GPUS, UNKNOWN_GPUS])
NEW_GPU = ReportedHardware(
    gpu_raw="NVIDIA Z9000 SXM", gpu_vendor="nvidia", gpu_count=8, gpu_min_w=200.0, gpu_max_w=1000.0, gpu_default_w=900.0
)


def resolved(labels, reported=None, cpus=256.0, **more):
    return resolve(reported, labels, {"cpu": cpus}, BUILTIN_CATALOGUE, **more)


@given(cpus=CPUS, gpus=GPUS)
def test_h13_neither_part_of_a_node_depends_on_the_other(cpus, gpus):
    both = resolved(cpus | gpus)
    assert both.cpu == resolved(cpus).cpu
    assert both.gpu == resolved(KNOWN_CPUS | gpus).gpu
    assert both.limits is not None


def test_h13_an_unknown_cpu_leaves_the_gpus_known():
    node = resolved(UNKNOWN_CPUS | KNOWN_GPUS)
    cpu_w, gpu_w, cores, gpus = node.limits
    assert (gpu_w, cores, gpus) == (1600.0, 128, 4)
    assert cpu_w == node.cpu.tdp_estimate.expected_w == pytest.approx(571.0, abs=1.0)
    assert (node.cpu.quality, node.cpu.cap_range) == (Quality.HEURISTIC, None)
    assert node.estimated == (
        "Zilog-Z80000 is not in the catalogue: TDP estimated from 128 cores, 571 W (189 to 828 W)",
    )


def test_h13_an_unknown_gpu_leaves_the_cpus_known():
    node = resolved(KNOWN_CPUS | UNKNOWN_GPUS, cpus=384.0)
    assert node.limits == (720.0, 1400.0, 192, 4)
    assert node.gpu.cap_range is None
    assert node.estimated == ("NVIDIA-Z9000 is not in the catalogue: limit of one estimated, 350 W (62 to 1400 W)",)


def test_h13_a_node_with_one_unknown_part_has_its_twin():
    nodes = (controlled_node("n", resolved(UNKNOWN_CPUS | KNOWN_GPUS)),)
    power = (SourceReadings.of("http", ["n"], {"n": (100.0, 900.0)}),)
    decision = decide(
        Snapshot(100.0, nodes, power=power), Memory(), ControlSettings(), POLICIES["static_partition"](PolicySettings())
    )
    assert decision.twin.scored.tolist() == [True]
    assert 0.0 < decision.twin.headroom[0] < 100.0
    known = {one.type: one for one in desired_node(decision, 0).status.conditions}["HardwareKnown"]
    assert (known.status, known.reason) == ("True", "Estimated")
    assert "Zilog-Z80000" in known.message


def test_h13_limits_that_a_device_reports_go_before_any_estimate():
    node = resolved(UNKNOWN_CPUS, ReportedHardware(sockets=2, cores=128, cpu_min_w=60.0, cpu_max_w=410.0))
    assert node.cpu.cap_range == CapRange(60.0, 410.0, 410.0)
    assert (node.cpu.tdp_estimate, node.cpu_max_w, node.estimated) == (None, 820.0, ())
    assert "limits are those that it reports" in node.cpu.caveat


def test_h13_an_estimate_is_never_a_limit_to_write():
    caps = CapTable(DEFAULT_CAPS, absolute_gpu_caps=True).of(resolved(UNKNOWN_CPUS | UNKNOWN_GPUS), Profile.ECO)
    assert (caps.cpu, caps.gpu) == (Cap(60.0), Cap(60.0))


def test_h13_the_agent_warns_of_what_it_estimates_and_of_limits_of_no_catalogue():
    info = CpuInfo("Zilog Z80000 @ 4GHz", "ZilogInside!", 2, 128, 256)
    gpu = PowerDevice("GPU-0", DeviceKind.GPU, "NVIDIA Z9000", 900.0, 200.0, 1000.0, 900.0)
    status = hardware_of_host(Observation(info, gpus=(gpu,)), BUILTIN_CATALOGUE)
    assert (status.cpu.quality, status.gpu.quality, status.quality.overall) == ("heuristic", "heuristic", "heuristic")
    assert status.cpu.cap_range is None
    assert status.gpu.cap_range_per_gpu.default_watts == 900.0
    assert status.quality.warnings == (
        "Zilog Z80000 @ 4GHz is not in the catalogue: TDP estimated from 128 cores, 571 W (189 to 828 W)",
        "NVIDIA Z9000 is not in the catalogue: its limits are those that it reports",
    )


@given(cpus=CPUS, gpus=GPUS, util=st.floats(0.0, 1.0))
def test_h13_the_power_of_unknown_parts_is_estimated_with_an_interval(cpus, gpus, util):
    for estimate in (estimate_cpu_power, estimate_gpu_power):
        found = estimate([resolved(cpus | gpus)], util, BUILTIN_CATALOGUE)
        assert 0.0 <= found.low_w[0] <= found.power_w[0] <= found.high_w[0] < np.inf


def test_h13_the_interval_of_an_estimated_tdp_holds_for_the_catalogue():
    own = [model for model in BUILTIN_CATALOGUE.cpus if not model.is_stand_in]
    models = [model for model in own if model.cores_per_socket >= FEWEST_CORES]
    estimates = [estimated_cpu_tdp(model.cores_per_socket, 1) for model in models]
    within = [one.low_w <= model.tdp_w <= one.high_w for model, one in zip(models, estimates, strict=True)]
    assert np.mean(within) >= COVERAGE
    ratios = [model.tdp_w / one.expected_w for model, one in zip(models, estimates, strict=True)]
    assert np.median(ratios) == pytest.approx(1.0, abs=0.05)
    assert min(model.tdp_w / model.cores_per_socket for model in models) >= SMALLEST_W_PER_CORE
    gpu_limits_w = [model.default_w for model in BUILTIN_CATALOGUE.gpus]
    assert (min(gpu_limits_w), max(gpu_limits_w)) == GPU_LIMITS_W


def test_h13_a_virtual_machine_has_its_part_of_the_package():
    info = CpuInfo("AMD EPYC 7R13 Processor", "AuthenticAMD", 1, 4, 8)
    package = CapRange(45.0, 225.0, 225.0)
    cpu = hardware_of_host(Observation(info, cpu_range=package), BUILTIN_CATALOGUE).cpu
    assert (cpu.model, cpu.cap_range) == ("AMD EPYC 7R13", None)
    limiter = (PowerDevice("package-0", DeviceKind.CPU_PACKAGE, None, 225.0, None, 225.0),)
    metal = hardware_of_host(Observation(info, limiter, cpu_range=package), BUILTIN_CATALOGUE).cpu
    assert metal.cap_range.max_watts_per_socket == 225.0
    reported = ReportedHardware(cpu_model=cpu.model, cpu_raw=cpu.raw_model, sockets=1, cores=4)
    for node in (resolved({}, reported, 8.0), resolved({"joulie.io/hw.cpu-model": cpu.model}, None, 8.0)):
        assert node.cpu_max_w == pytest.approx(225.0 * 4 / 48)
        busy = estimate_cpu_power([node], 1.0, BUILTIN_CATALOGUE)
        assert 0.5 * node.cpu_max_w < busy.power_w[0] <= node.cpu_max_w


def test_h13_limits_that_a_node_reports_are_its_own_whatever_cores_it_has():
    half = ReportedHardware(cpu_model="AMD EPYC 9654", sockets=1, cores=48, cpu_min_w=72.0, cpu_max_w=360.0)
    assert resolved({}, half).cpu_max_w == 360.0
    assert resolved(KNOWN_CPUS, None, 64.0).cpu_max_w == 720.0


NUMBERS = st.none() | st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, 1e-9, 1e12])
COUNTS = st.none() | st.integers(-1, 10**6)


@pytest.mark.slow
@example(reported=ReportedHardware(sockets=2, cpu_max_w=1.7e308), labels={}, cpus=8.0)
@example(reported=ReportedHardware(gpu_count=2, gpu_max_w=1.7e308), labels={}, cpus=8.0)
@given(
    reported=st.builds(
        ReportedHardware,
        cpu_model=st.sampled_from([None, "AMD EPYC 9654", "AMD EPYC 7R13", "Zilog Z80000"]),
        sockets=COUNTS,
        cores=NUMBERS,
        cpu_min_w=NUMBERS,
        cpu_max_w=NUMBERS,
        gpu_raw=st.sampled_from([None, "NVIDIA A100-SXM4-80GB", "NVIDIA Z9000"]),
        gpu_count=COUNTS,
        gpu_min_w=NUMBERS,
        gpu_max_w=NUMBERS,
        gpu_default_w=NUMBERS,
    ),
    labels=st.dictionaries(
        st.sampled_from(["joulie.io/hw.cpu-sockets", "joulie.io/hw.gpu-count", "kubernetes.io/arch"]),
        st.sampled_from(["", "0", "-1", "2", "two", "arm64", "99999999999"]),
    ),
    cpus=st.floats(0.0, 1e6),
)
def test_h13_whatever_a_node_says_its_limits_are_numbers_or_unknown(reported, labels, cpus):
    node = resolved(labels, reported, cpus)
    assert node.cpu.sockets >= 1
    assert 0.0 <= node.cpu.share <= 1.0
    if node.limits is not None:
        cpu_w, gpu_w, cores, gpus = node.limits
        assert 0.0 < cpu_w < np.inf
        assert 0.0 <= gpu_w < np.inf
        assert cores >= 1
        assert gpus >= 0


@given(cores=st.floats(1.0, 1024.0), sockets=st.sampled_from([None, 1, 2, 4]))
def test_h13_more_cores_never_draw_less(cores, sockets):
    fewer, more = estimated_cpu_tdp(cores, sockets), estimated_cpu_tdp(cores * 1.5, sockets)
    assert fewer.low_w <= fewer.expected_w <= fewer.high_w
    assert all(one <= other for one, other in zip(fewer, more, strict=True))


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_h14_any_gpu_with_a_range_is_planned_and_capped_under_every_policy(policy):
    node = controlled_node("n", resolved(UNKNOWN_CPUS, NEW_GPU))
    plan = POLICIES[policy](PolicySettings()).plan(ClusterSnapshot((node.planned,), 0, 0.0))
    caps = CapTable(DEFAULT_CAPS, absolute_gpu_caps=True).of(node.hardware, Profile.ECO, plan.caps.get("n"))
    assert 200.0 <= caps.gpu.watts < 900.0
    assert caps.gpu_percent == pytest.approx(caps.gpu.watts / 9.0)


def test_h14_a_device_without_a_range_keeps_the_administrators_caps():
    node = controlled_node("n", resolved(KNOWN_CPUS | UNKNOWN_GPUS))
    plan = POLICIES["energy_per_work"](PolicySettings()).plan(ClusterSnapshot((node.planned,), 0, 0.0))
    usual = {**DEFAULT_CAPS, Profile.ECO: ProfileCaps(Cap(60.0), Cap(70.0))}
    assert CapTable(usual).of(node.hardware, Profile.ECO, plan.caps["n"]).gpu == Cap(70.0)


def test_h14_energy_per_work_caps_a_cpu_by_the_range_that_it_reports():
    reported = ReportedHardware(cpu_raw="Zilog Z80000", sockets=2, cores=128, cpu_min_w=60.0, cpu_max_w=350.0)
    node = PolicyNode("n", "z", 50.0, resolved({}, reported))
    caps = POLICIES["energy_per_work"](PolicySettings()).plan(ClusterSnapshot((node,), 0, 0.0)).caps["n"]
    assert caps[Profile.ECO].cpu.percent < caps[Profile.PERFORMANCE].cpu.percent <= 100.0


@pytest.mark.parametrize("name", ["NVIDIA Z9000 SXM", "Z9000-SXM", "nvidia-z9000-sxm"])
def test_h14_caps_by_model_apply_to_gpus_outside_the_catalogue(name):
    usual = {**DEFAULT_CAPS, Profile.ECO: ProfileCaps(Cap(60.0), Cap(60.0), {name: 500.0, "Z9000": 300.0})}
    caps = CapTable(usual).of(resolved(UNKNOWN_CPUS, NEW_GPU), Profile.ECO)
    assert caps.gpu == Cap(watts=500.0)
    assert caps.gpu_percent == pytest.approx(500.0 / 9.0)


def test_h14_what_a_device_calls_itself_goes_before_the_catalogues_key():
    by_name = {"H100 NVL": 250.0, "H100 NVL 94GB": 300.0}
    usual = {**DEFAULT_CAPS, Profile.ECO: ProfileCaps(Cap(60.0), Cap(60.0), by_name)}
    for label, watts in (("NVIDIA-H100-NVL", 250.0), ("NVIDIA-H100-NVL-94GB", 300.0)):
        node = resolved(KNOWN_CPUS | {"joulie.io/hw.gpu-model": label, "joulie.io/hw.gpu-count": "2"})
        assert CapTable(usual).of(node, Profile.ECO).gpu == Cap(watts=watts)


@pytest.mark.parametrize("sockets", [1, 2])
@pytest.mark.parametrize("model", BUILTIN_CATALOGUE.cpus, ids=lambda model: model.key)
def test_h15_density_is_the_same_before_and_after_an_agent_reports(model, sockets):
    cores = sockets * model.cores_per_socket
    labels = {"joulie.io/hw.cpu-model": model.key, "joulie.io/hw.cpu-sockets": str(sockets)}
    reported = ReportedHardware(cpu_model=model.key, sockets=sockets, cores=cores)
    after = controlled_node("n", resolved(labels, reported, float(cores * model.threads_per_core)))
    for reserved in (0.0, 0.1, 2.0):
        threads = cores * model.threads_per_core
        before = controlled_node("n", resolved(labels, None, threads - reserved))
        assert before.planned.density == after.planned.density
    # Whoever knows no model halves the node's whole capacity, whatever it reserves.
    nameless = resolved({}, None, cores * 2 - 7.5, capacity_cpus=cores * 2.0)
    assert nameless.cpu.cores == cores


def test_h15_threads_that_are_switched_off_are_no_half_machine():
    assert resolved(KNOWN_CPUS, None, 191.5).cpu.cores == 192
    assert resolved(KNOWN_CPUS, None, 96.0).cpu.cores == 48


def test_h15_arm_has_one_thread_a_core():
    assert resolved({"kubernetes.io/arch": "arm64"}, None, 80.0).cpu.cores == 80
    assert resolved({"kubernetes.io/arch": "amd64"}, None, 80.0).cpu.cores == 40


def test_h15_capacity_counts_what_the_node_reserves():
    assert capacity_cpus(_node({"cpu": "192"})) == 192.0
    assert capacity_cpus(_node({})) is None


def _node(capacity):
    return msgspec.convert({"metadata": {"name": "n"}, "status": {"capacity": capacity}}, Node)


def test_h15_nodes_do_not_flip_when_agents_are_installed():
    """Two kinds of machines, of which one is denser: the plan before and after the first agents report is the same."""
    big = {"joulie.io/hw.cpu-model": "AMD-EPYC-9965", "joulie.io/hw.cpu-sockets": "1"}
    small = {"joulie.io/hw.cpu-model": "AMD-EPYC-9534", "joulie.io/hw.cpu-sockets": "2"}
    policy = POLICIES["static_partition"](PolicySettings(static_hp_frac=0.5))

    def planned(reports):
        nodes = tuple(
            controlled_node(name, resolved(labels, reports.get(name), threads)).planned
            for name, labels, threads in (("big", big, 384.0), ("small", small, 256.0))
        )
        return policy.plan(ClusterSnapshot(nodes, 0, 0.0)).profiles

    first = planned({})
    for reports in ({"big": _report("AMD EPYC 9965", 1, 192)}, {"small": _report("AMD EPYC 9534", 2, 128)}):
        assert planned(reports) == first


def _report(model, sockets, cores):
    return ReportedHardware(cpu_model=model, sockets=sockets, cores=cores)


def test_h13_eco_caps_of_a_node_with_an_unknown_cpu_still_count_on_its_gpus():
    nodes = (controlled_node("n", resolved(UNKNOWN_CPUS | KNOWN_GPUS)),)
    eco = POLICIES["static_partition"](PolicySettings(static_hp_frac=0.0))
    decision = decide(Snapshot(0.0, nodes), Memory({"n": ActiveEco()}), ControlSettings(), eco)
    assert (decision.nodes[0].caps.cpu_percent, decision.nodes[0].caps.gpu_percent) == (60.0, 60.0)
