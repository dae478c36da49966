"""The extender's answers to what kube-scheduler v1.36.3 sent, byte for byte.

The files under extender_wire were recorded from a real kube-scheduler with nodeCacheCapable true (names) and false
(whole). Expected answers follow the Go types of k8s.io/kube-scheduler/extender/v1, which have no JSON tags.
"""

import json
from pathlib import Path

import pytest

from joulie.adapters.kubernetes.pods import PodFacts, ProfileFacts
from joulie.apps.extender import answers
from joulie.apps.extender.fleet import Fleet, FleetView
from joulie.apps.extender.node_facts import LoadFacts, TwinFacts, TwinNumbers
from joulie.apps.extender.rankings import Rankings
from joulie.domain.scoring.extender import NodeClass

RECORDED = Path(__file__).parent / "extender_wire"
ECO = b"node(s) run under eco power caps, closed to performance pods"
DRAINING = b"node(s) are draining towards eco power caps, closed to performance pods"


def recorded(name: str) -> bytes:
    return (RECORDED / f"{name}.json").read_bytes()


def no_profile(_pod: PodFacts) -> ProfileFacts:
    return ProfileFacts()


def numbers(measured_w: float) -> TwinNumbers:
    return TwinNumbers(1000.0, measured_w, 20.0, 80.0, 0.0, 1.0, 1.0)


@pytest.fixture
def fleet() -> FleetView:
    fleet = Fleet(staleness_s=300.0)
    classes = (NodeClass.PERFORMANCE, NodeClass.ECO, NodeClass.DRAINING)
    for index, node_class in enumerate(classes):
        name = f"node-{index}.example"
        fleet.set_twin(name, TwinFacts(node_class, numbers(200.0 + 300.0 * index), updated_s=1000.0))
        fleet.set_load(name, LoadFacts(cores=8.0, cpu_max_w=400.0))
    return fleet.view(now_s=1000.0)


def answered(body: bytes, fleet: FleetView) -> bytes:
    return answers.prioritize(body, fleet, no_profile, Rankings())


def test_filter_by_names(fleet: FleetView) -> None:
    answer, refused, *_ = answers.filter_nodes(recorded("filter-names"), fleet, no_profile)
    assert answer == (
        b'{"Nodes":null,"NodeNames":["node-0.example"],"FailedNodes":{},'
        b'"FailedAndUnresolvableNodes":{"node-1.example":"'
        + ECO
        + b'","node-2.example":"'
        + DRAINING
        + b'"},"Error":""}'
    )
    assert refused == {NodeClass.ECO: 1, NodeClass.DRAINING: 1}


def test_filter_of_whole_nodes_returns_them_byte_for_byte(fleet: FleetView) -> None:
    body = recorded("filter-whole")
    answer = answers.filter_nodes(body, fleet, no_profile).answer
    begin = body.index(b'{"metadata":{"name":"node-0.example"')
    end = body.index(b',{"metadata":{"name":"node-', begin)
    assert answer == (
        b'{"Nodes":{"metadata":{},"items":[' + body[begin:end] + b']},"NodeNames":null,"FailedNodes":{},'
        b'"FailedAndUnresolvableNodes":{"node-1.example":"'
        + ECO
        + b'","node-2.example":"'
        + DRAINING
        + b'"},"Error":""}'
    )


def test_trap_refusals_are_not_preemptible(fleet: FleetView) -> None:
    """FailedNodes means that preemption might help: pods would be evicted for nothing."""
    for mode in ("names", "whole"):
        answer = json.loads(answers.filter_nodes(recorded(f"filter-{mode}"), fleet, no_profile)[0])
        assert answer["FailedNodes"] == {}
        assert set(answer["FailedAndUnresolvableNodes"]) == {"node-1.example", "node-2.example"}


@pytest.mark.parametrize("mode", ["names", "whole"])
def test_prioritize(mode: str, fleet: FleetView) -> None:
    body = recorded(f"prioritize-{mode}")
    # Six of eight cores: 400 * 0.7 * 6/8 * 1.01 = 212.1 W. 0.7 * headroom + 0.15 * (100 - 20):
    # node-0 0.7 * 58.79 + 12 = 53.2, node-1 0.7 * 28.79 + 12 = 32.2, node-2 0.7 * 0 + 12 = 12.
    order = ["node-0", "node-2", "node-1"] if mode == "names" else ["node-0", "node-1", "node-2"]
    points = {"node-0": 5, "node-1": 3, "node-2": 1}
    expected = ",".join(f'{{"Host":"{name}.example","Score":{points[name]}}}' for name in order)
    assert answered(body, fleet) == f"[{expected}]".encode()


def test_the_call_that_follows_a_filter_is_foreseen_as_go_writes_it(fleet: FleetView) -> None:
    call = recorded("prioritize-names")
    following = answers.filter_nodes(call, fleet, no_profile).following
    assert following is not None
    offered, passed = b'["node-0.example","node-2.example","node-1.example"]', b'["node-0.example"]'
    assert following.body == call.replace(offered, passed)
    assert answered(following.body, fleet) == Rankings().answer(following.pod, following.names, fleet)
    standard = call.replace(b'"performance"', b'"standard"')
    unchanged = answers.filter_nodes(standard, fleet, no_profile).following
    assert unchanged is not None
    assert unchanged.body == standard
    assert answered(standard, fleet) == Rankings().answer(unchanged.pod, unchanged.names, fleet)
    assert answers.filter_nodes(recorded("prioritize-whole"), fleet, no_profile).following is None


@pytest.mark.parametrize("mode", ["names", "whole"])
def test_preempt_always_answers_with_meta_victims(mode: str, fleet: FleetView) -> None:
    body = recorded(f"preempt-{mode}")
    asked = json.loads(body)
    victims = asked["NodeNameToMetaVictims" if mode == "names" else "NodeNameToVictims"]["node-0.example"]["Pods"][0]
    uid = victims["UID"] if mode == "names" else victims["metadata"]["uid"]
    answer, refused = answers.preempt(body, fleet, no_profile)
    assert answer == (
        b'{"NodeNameToMetaVictims":{"node-0.example":{"Pods":[{"UID":"%b"}],"NumPDBViolations":0}}}' % uid.encode()
    )
    assert refused == {NodeClass.ECO: 1, NodeClass.DRAINING: 1}


def test_keys_in_any_case_as_go_reads_them(fleet: FleetView) -> None:
    exact = recorded("filter-names")
    loose = exact.replace(b'"Pod":', b'"pod":', 1).replace(b'"NodeNames":', b'"nodenames":')
    assert loose != exact
    expected = answers.filter_nodes(exact, fleet, no_profile)
    assert answers.filter_nodes(loose, fleet, no_profile)[:2] == expected[:2]
    half = exact.replace(b'"NodeNames":', b'"nodeNames":')
    assert answers.filter_nodes(half, fleet, no_profile)[:2] == expected[:2]
    preemption = recorded("preempt-names")
    loose = preemption.replace(b'"Pod":', b'"pod":', 1).replace(
        b'"NodeNameToMetaVictims":', b'"nodenametometavictims":'
    )
    assert answers.preempt(loose, fleet, no_profile) == answers.preempt(preemption, fleet, no_profile)
