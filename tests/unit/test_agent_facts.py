"""Settings, routing, hardware and metrics of the agent."""

from typing import Any

import pytest
from click.testing import CliRunner

from joulie.adapters.cpu.cpuinfo import CpuInfo
from joulie.adapters.kubernetes.api.core import Node, NodeStatus
from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.adapters.kubernetes.api.v1alpha1 import (
    Control,
    Controls,
    CpuCap,
    HttpControl,
    NodeTwin,
    NodeTwinSpec,
    Source,
    Sources,
    Target,
    TelemetryProfile,
    TelemetryProfileSpec,
)
from joulie.apps.agent.discovery import hardware_from_labels, hardware_of_host
from joulie.apps.agent.host import Observation
from joulie.apps.agent.main import agent
from joulie.apps.agent.metering import UNREADABLE, PowerSample
from joulie.apps.agent.routing import CpuMode, Routing, Via, choose, from_settings
from joulie.apps.agent.settings import AgentSettings
from joulie.apps.agent.views import node_view, twin_view
from joulie.domain.actuation import WantedCap
from joulie.domain.hardware import BUILTIN_CATALOGUE, CapRange
from joulie.domain.hardware.resolve import resolve
from joulie.domain.quantities import InvalidQuantityError
from joulie.ports.devices import DeviceKind, FrequencyPolicy, PowerDevice

SETTINGS = AgentSettings(node_name="n1")
XEON = CpuInfo("INTEL(R) XEON(R) GOLD 6530", "GenuineIntel", 2, 64, 128)


def profile(name: str, target: Target, control: str = "none") -> TelemetryProfile:
    spec = TelemetryProfileSpec(target=target, controls=Controls(cpu=Control(type=control)))
    return TelemetryProfile(metadata=ObjectMeta(name=name), spec=spec)


def routed(*profiles: TelemetryProfile, labels: dict[str, str] | None = None) -> Routing:
    return choose("n1", labels or {"zone": "a", "tier": "x"}, profiles, from_settings(SETTINGS))


def selecting(**labels: str) -> Target:
    return Target(scope="node", node_selector=labels)


def test_the_most_specific_profile_counts() -> None:
    everywhere = profile("a", Target(scope="cluster"))
    zone, both = profile("b", selecting(zone="a"), "host"), profile("c", selecting(zone="a", tier="x"))
    named = profile("d", Target(scope="node", node_name="n1"), "host")
    assert routed(everywhere).cpu_control.via is Via.NONE
    assert routed(everywhere, zone).cpu_control.via is Via.HOST
    assert routed(everywhere, zone, both).cpu_control.via is Via.NONE
    assert routed(everywhere, zone, both, named).cpu_control.via is Via.HOST


def test_of_equals_the_first_by_name_counts() -> None:
    profiles = [profile("b", selecting(zone="a"), "none"), profile("a", selecting(tier="x"), "host")]
    assert routed(*profiles).cpu_control.via is Via.HOST
    assert routed(*reversed(profiles)).cpu_control.via is Via.HOST


def test_profiles_of_other_nodes_do_not_count() -> None:
    others = [profile("a", Target(scope="node", node_name="n11")), profile("b", selecting(zone="b"))]
    assert routed(*others) == from_settings(SETTINGS)


def test_reports_go_to_profiles_that_name_the_node() -> None:
    assert routed(profile("a", selecting(zone="a"))).report_to is None
    assert routed(profile("a", Target(scope="node", node_name="n1"))).report_to == "a"


def test_profile_states_endpoints_and_the_rest_stays() -> None:
    http = HttpControl(endpoint="http://bmc/{node}", mode="dvfs", timeout_seconds=7)
    spec = TelemetryProfileSpec(
        target=Target(scope="cluster"),
        sources=Sources(gpu=Source(type="none")),
        controls=Controls(cpu=Control(type="http", http=http)),
    )
    routing = routed(TelemetryProfile(metadata=ObjectMeta(name="a"), spec=spec))
    assert (routing.cpu_control.endpoint, routing.cpu_control.timeout_s) == ("http://bmc/{node}", 7.0)
    assert (routing.cpu_mode, routing.gpu_source.via, routing.cpu_source.via) == (CpuMode.DVFS, Via.NONE, Via.HOST)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"node_name": None}, "NODE_NAME is required"),
        ({"cpu_control": "http"}, "TELEMETRY_CPU_CONTROL_HTTP_ENDPOINT"),
        ({"mode": "pool", "cpu_control": "http", "cpu_control_endpoint": "http://one"}, "put {node} into it"),
        ({"mode": "pool", "pool_shards": 2, "pool_shard_id": 2}, "shard 2 does not exist"),
    ],
)
def test_contradictory_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AgentSettings(**({"node_name": "n1"} | wrong))


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"AGENT_MODE": "swarm"}, "'swarm' is not one of 'daemonset', 'pool'"),
        ({"NODE_NAME": "n1", "METRICS_ADDR": "nowhere"}, "invalid address"),
        ({"NODE_NAME": "n1", "RECONCILE_INTERVAL": "soon"}, "is not a duration"),
        ({"NODE_NAME": "n1", "HARDWARE_CATALOG_PATH": "/does/not/exist.yaml"}, "cannot be read"),
    ],
)
def test_command_refuses_bad_settings_by_name(variables: dict[str, str], words: str) -> None:
    result = CliRunner().invoke(agent, env=variables)
    assert result.exit_code == 2
    assert words in result.output


def test_host_hardware() -> None:
    gpus = tuple(
        PowerDevice(f"GPU-{n}", DeviceKind.GPU, "NVIDIA H100 80GB HBM3", 700.0, 200.0, 700.0, 700.0) for n in range(8)
    )
    packages = tuple(PowerDevice(f"package-{n}", DeviceKind.CPU_PACKAGE, None, 270.0, None, 270.0) for n in range(2))
    seen = Observation(
        XEON,
        packages,
        gpus,
        (FrequencyPolicy("policy0", 0.8e9, 4.0e9, 4.0e9),),
        "intel_pstate",
        CapRange(54.0, 270.0, 270.0),
        cpu_control=True,
        gpu_control=True,
        cpu_measured=True,
    )
    status = hardware_of_host(seen, BUILTIN_CATALOGUE)
    cpu, gpu = status.cpu, status.gpu
    assert cpu is not None
    assert gpu is not None
    assert (cpu.model, cpu.vendor, cpu.total_cores, cpu.cores_per_socket) == ("Intel Xeon Gold 6530", "intel", 64, 32)
    assert cpu.landmarks is not None
    assert (cpu.landmarks.min_freq_mhz, cpu.landmarks.max_boost_mhz) == (800.0, 4000.0)
    assert (gpu.count, gpu.vendor, gpu.quality) == (8, "nvidia", "exact")
    assert gpu.slicing is not None
    assert gpu.slicing.modes == ("mig", "time-slicing")
    assert status.quality is not None
    assert status.quality.overall == "exact"


def test_worst_quality_is_the_nodes() -> None:
    gpu = PowerDevice("GPU-0", DeviceKind.GPU, "NVIDIA Something New", 300.0, 100.0, 300.0, 300.0)
    status = hardware_of_host(Observation(XEON, gpus=(gpu,)), BUILTIN_CATALOGUE)
    assert status.quality is not None
    assert status.quality.overall == "heuristic"
    assert status.gpu is not None
    assert status.gpu.vendor == "nvidia"
    silent = PowerDevice("GPU-0", DeviceKind.GPU, "NVIDIA Something New")
    status = hardware_of_host(Observation(XEON, gpus=(silent,)), BUILTIN_CATALOGUE)
    assert status.quality is not None
    assert status.quality.overall == "unavailable"


def test_mixed_gpus_and_odd_sockets_are_warned_of() -> None:
    gpus = tuple(PowerDevice(name, DeviceKind.GPU, name) for name in ("NVIDIA L40S", "NVIDIA A10"))
    packages = (PowerDevice("package-0", DeviceKind.CPU_PACKAGE),)
    status = hardware_of_host(Observation(XEON, packages, gpus), BUILTIN_CATALOGUE)
    assert status.quality is not None
    assert len(status.quality.warnings) == 2


def test_labelled_hardware() -> None:
    labels = {
        "joulie.io/hw.cpu-model": "AMD-EPYC-9654",
        "joulie.io/hw.cpu-sockets": "2",
        "joulie.io/hw.gpu-model": "NVIDIA-L40S",
        "joulie.io/hw.gpu-count": "4",
    }
    status = hardware_from_labels(
        resolve(None, labels, {}, BUILTIN_CATALOGUE), controls=(True, False), telemetry=(True, True)
    )
    cpu, gpu = status.cpu, status.gpu
    assert cpu is not None
    assert gpu is not None
    assert cpu.cap_range is not None
    # The published maximum is the base of percentages: the TDP, not the end of the configurable range.
    assert (cpu.cap_range.min_watts_per_socket, cpu.cap_range.max_watts_per_socket) == (72.0, 360.0)
    assert (gpu.count, gpu.control_available, cpu.control_available) == (4, False, True)


def twin(watts: float | None, percent: float | None) -> NodeTwin:
    cap = CpuCap(package_power_cap_watts=watts, package_power_cap_pct_of_max=percent)
    return NodeTwin(metadata=ObjectMeta(name="n1"), spec=NodeTwinSpec(node_name="n1", profile="eco", cpu=cap))


def test_twin_view() -> None:
    view = twin_view(twin(120.0, 60.0))
    assert (view.cpu, view.gpu, view.policy) == (WantedCap(120.0, 60.0), WantedCap(), "eco")


def test_impossible_cap_of_a_twin_is_refused() -> None:
    with pytest.raises(InvalidQuantityError):
        twin_view(twin(0.0, None))


def test_node_view_leaves_out_what_cannot_be_read() -> None:
    status = NodeStatus(allocatable={"cpu": "7500m", "odd": "a lot"})
    assert node_view(Node(metadata=ObjectMeta(uid="u"), status=status)).allocatable == {"cpu": 7.5}


def test_h3_package_without_a_reading_is_told_of_in_the_hardware() -> None:
    sample = PowerSample({"package-0": 150.0}, {"package-0": 5.0}, {"package-1": UNREADABLE})
    cpu = hardware_of_host(Observation(XEON, cpu_measured=True, cpu_power=sample), BUILTIN_CATALOGUE).cpu
    assert cpu is not None
    assert not cpu.telemetry_available
    assert "no CPU power: package-1: its energy counter cannot be read" in cpu.warnings
