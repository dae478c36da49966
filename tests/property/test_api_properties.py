"""Properties of the API types: what is written is read again, and nothing that users write makes reading fail."""

import contextlib
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.api.v1alpha1 import CpuCap, NodeTwinStatus, PowerMeasurement
from joulie.adapters.kubernetes.pods import pod_facts
from joulie.adapters.kubernetes.times import parse_rfc3339, rfc3339
from joulie.domain.policy import PowerConstraint, WorkloadClass
from joulie.domain.resource_quantity import QuantityError, parse_quantity

text = st.text(max_size=20)
quantities = st.one_of(text, st.sampled_from(["100m", "2", "1Gi", "-1", "1e3"]), st.integers(), st.floats())
watts = st.one_of(st.none(), st.floats(min_value=0, max_value=1e6), st.integers(0, 10**6).map(float))


@given(watts, watts, st.floats(-1e6, 1e6))
def test_statuses_come_back(measured_w: float | None, capped_w: float | None, trend: float) -> None:
    status = NodeTwinStatus(
        power_measurement=PowerMeasurement(
            measured_node_power_w=measured_w, node_capped_power_w=capped_w, power_trend_w_per_min=trend
        )
    )
    assert msgspec.json.decode(msgspec.json.encode(status), type=NodeTwinStatus) == status


@given(st.integers(1, 10**6))
def test_whole_watts_are_the_same_number(watts: int) -> None:
    read = msgspec.json.decode(b'{"packagePowerCapWatts":%d}' % watts, type=CpuCap)
    assert read == CpuCap(package_power_cap_watts=float(watts))


@given(text)
def test_object_names_are_valid_and_stable(node: str) -> None:
    name = names.object_name(node)
    assert names.object_name(name) == name
    assert len(name) <= 253
    assert name == node or name != names.object_name(node + "x")


@given(st.text(max_size=300))
def test_quantities_are_numbers_or_refused(text: str) -> None:
    with contextlib.suppress(QuantityError):
        assert math.isfinite(parse_quantity(text))


@given(st.integers(0, 4_000_000_000))
def test_times_come_back(epoch_s: int) -> None:
    assert parse_rfc3339(rfc3339(epoch_s)) == epoch_s


resources = st.dictionaries(
    st.one_of(text, st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"])),
    quantities,
    max_size=4,
)
containers = st.lists(
    st.fixed_dictionaries(
        {"name": text, "resources": st.fixed_dictionaries({"requests": resources, "limits": resources})},
        optional={"restartPolicy": st.sampled_from(["Always", "OnFailure", ""])},
    ),
    max_size=3,
)
requirements = st.fixed_dictionaries(
    {
        "key": st.one_of(text, st.just(names.POWER_PROFILE_LABEL)),
        "operator": st.one_of(text, st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"])),
        "values": st.lists(st.one_of(text, st.sampled_from(["performance", "eco"])), max_size=2),
    }
)
pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {
                "name": text,
                "annotations": st.dictionaries(
                    st.sampled_from(
                        [
                            names.WORKLOAD_CLASS_ANNOTATION,
                            names.RESCHEDULABLE_ANNOTATION,
                            names.CPU_SENSITIVITY_ANNOTATION,
                        ]
                    ),
                    text,
                ),
            }
        ),
        "spec": st.fixed_dictionaries(
            {
                "containers": containers,
                "initContainers": containers,
                "overhead": resources,
                "affinity": st.fixed_dictionaries(
                    {
                        "nodeAffinity": st.fixed_dictionaries(
                            {
                                "requiredDuringSchedulingIgnoredDuringExecution": st.fixed_dictionaries(
                                    {
                                        "nodeSelectorTerms": st.lists(
                                            st.fixed_dictionaries(
                                                {"matchExpressions": st.lists(requirements, max_size=2)}
                                            ),
                                            max_size=2,
                                        )
                                    }
                                )
                            }
                        )
                    }
                ),
            }
        ),
    }
)


@given(pods)
def test_no_pod_makes_reading_fail(body: dict[str, Any]) -> None:
    facts = pod_facts(msgspec.convert(body, Pod))
    requests = facts.requests
    assert min(requests.cpu_cores, requests.memory_gib, requests.gpus) >= 0.0
    assert (requests.gpu_vendor is None) == (requests.gpus == 0.0)
    assert facts.constraint in PowerConstraint
    facts.view()
    facts.guarded()
    facts.demand()
    annotation = body["metadata"]["annotations"].get(names.WORKLOAD_CLASS_ANNOTATION)
    assert (facts.workload_class is None) == (annotation is None)
    if annotation not in {None, *WorkloadClass}:
        assert facts.workload_class is WorkloadClass.STANDARD


@given(containers, resources)
def test_a_container_more_never_lowers_the_requests(listed: list[dict[str, Any]], more: dict[str, Any]) -> None:
    one_more = [*listed, {"name": "more", "resources": {"requests": more}}]
    fewer, larger = (
        pod_facts(msgspec.convert({"spec": {"containers": items}}, Pod)).requests for items in (listed, one_more)
    )
    assert larger.cpu_cores == pytest.approx(max(larger.cpu_cores, fewer.cpu_cores))
    assert larger.memory_gib == pytest.approx(max(larger.memory_gib, fewer.memory_gib))
