"""The typed API objects: what goes over the wire, what comes back, what is refused."""

import subprocess
import sys
from enum import StrEnum

import msgspec
import pytest

from joulie.adapters.kubernetes import names, resources
from joulie.adapters.kubernetes.api import core, v1alpha1
from joulie.adapters.kubernetes.api.meta import ObjectMeta, OwnerReference
from joulie.adapters.kubernetes.resources import Resource
from joulie.adapters.kubernetes.times import parse_rfc3339, rfc3339, rfc3339_micro
from joulie.domain import drain, hardware, policy
from joulie.domain.quantities import InvalidQuantityError
from joulie.domain.resource_quantity import QuantityError, parse_quantity


def test_only_what_is_set_is_encoded() -> None:
    twin = v1alpha1.NodeTwin(
        metadata=ObjectMeta(name="node-1"),
        spec=v1alpha1.NodeTwinSpec(
            node_name="node-1",
            profile=v1alpha1.Profile.PERFORMANCE,
            scheduling=v1alpha1.Scheduling(draining=False),
        ),
    )
    assert msgspec.json.decode(msgspec.json.encode(twin)) == {
        "metadata": {"name": "node-1"},
        "spec": {"nodeName": "node-1", "profile": "performance", "scheduling": {"draining": False}},
    }


def test_field_names_with_capitals() -> None:
    status = v1alpha1.NodeTwinStatus(
        estimated_pue=1.25,
        power_measurement=v1alpha1.PowerMeasurement(power_trend_w_per_min=0.0, node_tdp_w=900.0),
        gpu_slicing_recommendation=v1alpha1.GpuSlicingRecommendation(slices_per_gpu=7),
    )
    assert msgspec.json.decode(msgspec.json.encode(status)) == {
        "estimatedPUE": 1.25,
        "powerMeasurement": {"powerTrendWPerMin": 0.0, "nodeTdpW": 900.0},
        "gpuSlicingRecommendation": {"slicesPerGPU": 7},
    }
    landmarks = v1alpha1.CpuLandmarks(min_freq_mhz=800.0, max_boost_mhz=3700.0)
    assert set(msgspec.json.decode(msgspec.json.encode(landmarks))) == {"minFreqMHz", "maxBoostMHz"}


def test_whole_watts_are_floats_and_unknown_fields_are_left_out() -> None:
    twin = msgspec.json.decode(
        b'{"metadata":{"name":"n","managedFields":[{}]},"spec":{"nodeName":"n","profile":"eco","later":{"a":1},'
        b'"cpu":{"packagePowerCapWatts":210}}}',
        type=v1alpha1.NodeTwin,
    )
    assert twin.spec.cpu is not None
    assert isinstance(twin.spec.cpu.package_power_cap_watts, float)
    assert twin.spec.cpu.package_power_cap_watts == 210.0
    assert b"later" not in msgspec.json.encode(twin)


def test_values_of_other_versions_are_read() -> None:
    """An object stored before the schema was tightened must not stop the list that it is in."""
    hardware_object = msgspec.json.decode(
        b'{"metadata":{},"spec":{"nodeName":"n"},"status":{"quality":{"overall":"partial"}}}',
        type=v1alpha1.NodeHardware,
    )
    assert hardware_object.status.quality == v1alpha1.OverallQuality(overall="partial")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_cannot_carry_are_refused(value: float) -> None:
    with pytest.raises(InvalidQuantityError, match=r"PowerMeasurement\.measured_node_power_w: must be finite"):
        v1alpha1.PowerMeasurement(measured_node_power_w=value)


@pytest.mark.parametrize(
    ("ours", "domain"),
    [(v1alpha1.Profile, policy.Profile), (v1alpha1.WorkloadClass, policy.WorkloadClass)],
)
def test_enumerations_are_those_of_the_domain(ours: type[StrEnum], domain: type[StrEnum]) -> None:
    assert {member.name: member.value for member in ours} == {member.name: member.value for member in domain}


def test_enumerations_have_the_domains_values() -> None:
    assert set(drain.SchedulableClass) < set(v1alpha1.SchedulableClass)
    assert {quality.value for quality in v1alpha1.HardwareQuality} == {quality.value for quality in hardware.Quality}
    assert set(v1alpha1.Level) < set(policy.Intensity)


def test_the_controller_is_the_owner_that_manages() -> None:
    owners = tuple(
        OwnerReference(api_version="v1", kind=kind, name="x", uid=kind, controller=kind == "Job")
        for kind in ("A", "Job")
    )
    controller = ObjectMeta(owner_references=owners).controller
    assert controller is not None
    assert controller.kind == "Job"
    assert ObjectMeta().controller is None


def test_paths() -> None:
    assert resources.PODS.path() == "/api/v1/pods"
    assert resources.PODS.path("a", "b", "eviction") == "/api/v1/namespaces/a/pods/b/eviction"
    assert (
        resources.NODE_TWINS.path(name="n.x", subresource="status") == "/apis/joulie.io/v1alpha1/nodetwins/n.x/status"
    )
    assert resources.LEASES.path("a") == "/apis/coordination.k8s.io/v1/namespaces/a/leases"
    with pytest.raises(ValueError, match="nodes have no namespace"):
        resources.NODES.path("a")
    with pytest.raises(ValueError, match="Pod 'b' needs a namespace"):
        resources.PODS.path(name="b")


def test_kinds_are_those_of_their_types() -> None:
    defined = [item for item in vars(resources).values() if isinstance(item, Resource)]
    assert len(defined) >= 15
    # Or of a type that it widens: a program may read more of a pod than the others.
    assert all(item.kind in {base.__name__ for base in item.type.__mro__} for item in defined)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("100m", 0.1),
        ("2", 2.0),
        ("2Gi", 2 * 1024.0**3),
        ("1.5k", 1500.0),
        ("1e3", 1000.0),
        ("10M", 1e7),
        ("1E3", 1000.0),
        ("1E", 1e18),
        ("5.", 5.0),
        (".5", 0.5),
        ("-1", -1.0),
        ("250u", 2.5e-4),
        (4, 4.0),
    ],
)
def test_quantities(text: str | int, number: float) -> None:
    assert parse_quantity(text) == pytest.approx(number, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["", "m", "1 Gi", "1gi", "nan", "1e", "1ee3", "0x10", "1e999", "1Ki2", "٣", float("nan")]
)
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(QuantityError, match="invalid quantity"):
        parse_quantity(text)


def test_times() -> None:
    assert rfc3339(0.9) == "1970-01-01T00:00:00Z"
    assert rfc3339_micro(1_700_000_000.0) == "2023-11-14T22:13:20.000000Z"
    assert parse_rfc3339("2023-11-14T22:13:20Z") == 1_700_000_000.0
    assert parse_rfc3339("2023-11-15T00:13:20.25+02:00") == 1_700_000_000.25
    assert parse_rfc3339("2023-11-14T22:13:20.123456789Z") == pytest.approx(1_700_000_000.123456789)
    for text in ("", "yesterday", "2023-11-14 22:13:20Z", "2023-11-14T22:13:20", "2023-13-14T22:13:20Z"):
        with pytest.raises(QuantityError, match="not RFC 3339"):
            parse_rfc3339(text)


def test_object_names() -> None:
    dotted = "ip-10-0-0-1.eu-west-1.compute.internal"
    assert names.object_name(dotted) == dotted, "spec and status of dotted nodes once had two names"
    upper, lower = names.object_name("Rack_7"), names.object_name("rack-7")
    assert lower == "rack-7"
    assert upper.startswith("rack-7-")
    assert names.object_name("a" * 300) != names.object_name("a" * 301)


@pytest.mark.usefixtures("unmeasured")
def test_the_agent_needs_no_numpy() -> None:
    """The types are part of the agent, which runs on every node."""
    code = (
        "import sys; import joulie.adapters.kubernetes.resources, joulie.adapters.kubernetes.times;"
        "print([name for name in ('numpy', 'yaml', 'pydantic', 'rich') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_nodes_without_their_images() -> None:
    node = msgspec.json.decode(
        b'{"metadata":{"name":"n","labels":{"a":"b"}},"spec":{"taints":[{"key":"k","effect":"NoSchedule"}]},'
        b'"status":{"allocatable":{"cpu":"64"},"images":[{"names":["x"]}],'
        b'"addresses":[{"type":"InternalIP","address":"10.0.0.1"}]}}',
        type=core.Node,
    )
    assert node.spec.taints == (core.Taint(key="k", effect="NoSchedule"),)
    assert node.status.allocatable == {"cpu": "64"}
    assert b"images" not in msgspec.json.encode(node)
