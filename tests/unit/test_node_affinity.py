from typing import Any

import pytest

from joulie.domain.scheduling.node_rules import NodeAffinityError, NodeRules

LABELS = {"gpu": "H100", "gpus": "8", "zone": "a"}


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def label(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("term", "admitted"),
    [
        (label("gpu", "In", "A100", "H100"), True),
        (label("gpu", "In", "A100"), False),
        (label("none", "In", "x"), False),
        (label("gpu", "NotIn", "H100"), False),
        (label("none", "NotIn", "x"), True),
        (label("gpu", "Exists"), True),
        (label("none", "Exists"), False),
        (label("gpu", "DoesNotExist"), False),
        (label("none", "DoesNotExist"), True),
        (label("gpus", "Gt", "4"), True),
        (label("gpus", "Gt", "8"), False),
        (label("gpus", "Lt", "9"), True),
        (label("gpu", "Gt", "1"), False),
        (label("none", "Lt", "1"), False),
        ({}, False),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-1"]}]}, False),
    ],
)
def test_a_term(term: dict[str, Any], admitted: bool) -> None:
    assert NodeRules.parse({}, required(term)).admits(LABELS, "node-1") is admitted


def test_one_term_is_enough_but_all_of_it_and_the_selector_are_needed() -> None:
    both = {
        "matchExpressions": [*label("gpu", "Exists")["matchExpressions"], *label("zone", "In", "b")["matchExpressions"]]
    }
    assert not NodeRules.parse({}, required(both)).admits(LABELS)
    either = required(both, label("zone", "In", "a"))
    assert NodeRules.parse({}, either).admits(LABELS)
    assert NodeRules.parse({"gpus": "8"}, either).admits(LABELS)
    assert not NodeRules.parse({"gpus": "4"}, either).admits(LABELS)


def test_labels_that_may_change_are_taken_to_hold() -> None:
    rules = NodeRules.parse({"zone": "b"}, required(label("gpu", "In", "H100")))
    assert not rules.admits(LABELS)
    assert rules.admits(LABELS, ignoring={"zone"}.__contains__)
    assert not rules.admits({**LABELS, "gpu": "T4"}, ignoring={"zone"}.__contains__)


def test_preferences_are_no_rules() -> None:
    preferred = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]},
        "podAffinity": {},
    }
    assert NodeRules.parse({}, preferred).unrestricted
    assert NodeRules.parse({}, None).unrestricted
    assert not NodeRules.parse({}, required({})).unrestricted


@pytest.mark.parametrize(
    ("affinity", "says"),
    [
        ({"nodeAffinity": []}, "must be a mapping"),
        (required(), "nodeSelectorTerms: is empty"),
        (required(label("gpu", "Is", "x")), "operator 'Is'"),
        (required(label("gpu", "In")), "In with 0 values"),
        (required(label("gpu", "Exists", "x")), "Exists with 1 values"),
        (required(label("gpu", "Gt", "many")), "one whole number"),
        (required(label("gpu", "Lt", "9" * 5000)), "one whole number"),
        (required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a", "b"]}]}), "one name"),
        (required(label("", "Exists")), "without a key"),
        (required({"matchExpressions": [{"key": "a", "operator": "In", "values": [1]}]}), "must be text"),
        (required({"matchFields": [{"key": "spec", "operator": "In", "values": ["x"]}]}), "metadata.name"),
        (required({"matchExpressions": "x"}), "must be a list"),
    ],
)
def test_what_kubernetes_would_not_take_is_refused(affinity: dict[str, Any], says: str) -> None:
    with pytest.raises(NodeAffinityError, match=says):
        NodeRules.parse({}, affinity)
