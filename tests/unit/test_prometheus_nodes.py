"""Which node a series is about, by the labels that exporters and Prometheus really give it."""

import pytest

from joulie.adapters.prometheus.nodes import NodeIndex

INDEX = NodeIndex.from_aliases(
    {
        "node-1": ["10.0.0.1", "fd00::1", "node-1.example.com"],
        "node-10": ["10.0.0.10", "node-10.example.com"],
        "ip-10-0-0-2.eu-west-1.compute.internal": ["10.0.0.2", "ip-10-0-0-2"],
    }
)


@pytest.mark.parametrize(
    ("labels", "node"),
    [
        ({"node": "node-1"}, "node-1"),
        ({"node_name": "node-10"}, "node-10"),
        ({"instance": "10.0.0.10:9100"}, "node-10"),
        ({"instance": "10.0.0.10"}, "node-10"),
        ({"instance": "[fd00::1]:9400"}, "node-1"),
        ({"instance": "node-1.example.com:9100"}, "node-1"),
        ({"instance": "node-1:9100"}, "node-1"),
        ({"instance": "10.0.0.9:9102", "exported_instance": "node-1"}, "node-1"),
        ({"Hostname": "ip-10-0-0-2", "instance": "10.244.3.7:9400"}, "ip-10-0-0-2.eu-west-1.compute.internal"),
        ({"nodename": "ip-10-0-0-2.eu-west-1.compute.internal"}, "ip-10-0-0-2.eu-west-1.compute.internal"),
        ({"node": "", "kubernetes_node": "node-1"}, "node-1"),
        ({"node": "somewhere else", "instance": "10.0.0.1:9100"}, "node-1"),
        ({}, None),
        ({"node": "node-2"}, None),
        ({"node": "NODE-1"}, None),
        ({"job": "node-1"}, None),
        ({"instance": "10.0.0.1:9100:9100"}, None),
        ({"instance": "x" * 100_000}, None),
    ],
)
def test_the_node_of_a_series(labels, node):
    assert INDEX.node_of(labels) == node


@pytest.mark.parametrize("name", ["node-1", "node-10", "node-100", "node", "ode-1", "node-1.other.com"])
def test_trap_node_1_is_not_node_10(name):
    assert INDEX.node_of({"node": name}) == (name if name in ("node-1", "node-10") else None)


def test_a_name_beats_an_alias_of_a_better_label():
    assert INDEX.node_of({"node": "10.0.0.1", "instance": "node-10:9100"}) == "node-10"


def test_an_alias_that_two_nodes_share_is_neither():
    index = NodeIndex.from_aliases({"a": ["10.0.0.1", "host"], "b": ["10.0.0.2", "host"]})
    assert index.node_of({"node": "host"}) is None
    assert index.node_of({"node": "10.0.0.2"}) == "b"


def test_a_name_of_a_node_is_no_alias_of_another():
    index = NodeIndex.from_aliases({"a": ["b"], "b": []})
    assert index.node_of({"node": "b"}) == "b"
