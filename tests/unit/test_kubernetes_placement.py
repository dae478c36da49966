"""What a pod's selector, affinity and tolerations admit."""

from typing import Any

import msgspec
import pytest

from joulie.adapters.kubernetes.api.core import PodSpec, Taint
from joulie.adapters.kubernetes.placement import placement
from joulie.domain.scheduling.node_rules import ANYWHERE

LABELS = {"disk": "fast", "cores": "64"}
GPU = Taint(key="gpu", value="yes", effect="NoSchedule")


def admits(spec: dict[str, Any], *taints: Taint, name: str = "n1") -> bool:
    return placement(msgspec.convert(spec, PodSpec))[0].admits(LABELS, name, taints)


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": rule}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def test_who_says_nothing_goes_anywhere_without_taints() -> None:
    lost = [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300}]
    assert placement(msgspec.convert({"tolerations": lost}, PodSpec))[0] is ANYWHERE
    assert admits({})
    assert not admits({}, GPU)
    assert admits({}, Taint(key="gpu", effect="PreferNoSchedule"))


@pytest.mark.parametrize(
    ("spec", "admitted"),
    [
        ({"nodeSelector": {"disk": "fast"}}, True),
        ({"nodeSelector": {"disk": "fast", "zone": "a"}}, False),
        (required(expression("disk", "In", "fast", "slow")), True),
        (required(expression("disk", "In", "slow")), False),
        (required(expression("disk", "NotIn", "slow")), True),
        (required(expression("zone", "NotIn", "a")), True),
        (required(expression("zone", "Exists")), False),
        (required(expression("zone", "DoesNotExist")), True),
        (required(expression("cores", "Gt", "63")), True),
        (required(expression("cores", "Lt", "64")), False),
        (required(expression("disk", "Gt", "1")), False),
        (required(expression("zone", "Gt", "1")), False),
        (required(expression("disk", "Near", "fast")), False),
        # Terms are alternatives; one without requirements, and none at all, match nothing.
        (required(expression("zone", "Exists"), expression("disk", "Exists")), True),
        (required({}), False),
        (required(), False),
        (required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}), True),
        (required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n10"]}]}), False),
        ({"nodeSelector": {"disk": "slow"}, **required(expression("disk", "Exists"))}, False),
    ],
)
def test_selector_and_affinity(spec: dict[str, Any], admitted: bool) -> None:
    assert admits(spec) is admitted


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "no"}, False),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"operator": "Exists"}, True),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_tolerations(toleration: dict[str, Any], tolerated: bool) -> None:
    assert admits({"tolerations": [toleration]}, GPU) is tolerated
    assert not admits({"tolerations": [toleration]}, GPU, Taint(key="own", value="x", effect="NoExecute")) or (
        toleration == {"operator": "Exists"}
    )


def test_pods_that_say_the_same_share_one_value() -> None:
    specs = [msgspec.convert({"nodeSelector": {"a": "b"}}, PodSpec) for _ in range(2)]
    assert placement(specs[0]) is placement(specs[1])
