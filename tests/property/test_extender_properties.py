"""What must hold for every pod and every fleet that the extender is asked about."""

import json
import math
from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.adapters.kubernetes.pods import PodFacts, ProfileFacts
from joulie.apps.extender import answers, wire
from joulie.apps.extender.fleet import Fleet, FleetView
from joulie.apps.extender.judge import Profiles
from joulie.apps.extender.node_facts import LoadFacts, TwinFacts, TwinNumbers
from joulie.apps.extender.rankings import Rankings
from joulie.domain.mode import Mode
from joulie.domain.scoring.extender import NodeClass, PodView, Sensitivity, explain, extender_score, may_run, wire_score

quick = settings(max_examples=50, deadline=None)
NOW_S = 1000.0
PERCENT = st.floats(0.0, 100.0)
NUMBERS = st.builds(
    TwinNumbers,
    capped_w=st.floats(1.0, 10_000.0),
    measured_w=st.floats(0.0, 10_000.0),
    cooling_stress_pct=PERCENT,
    headroom_score=PERCENT,
    trend_w_per_min=st.floats(-1000.0, 1000.0),
    cpu_cap_fraction=st.floats(0.0, 1.0),
    gpu_cap_fraction=st.floats(0.0, 1.0),
)
TWIN = st.builds(
    TwinFacts,
    node_class=st.sampled_from(NodeClass),
    numbers=st.none() | NUMBERS,
    updated_s=st.none() | st.sampled_from([NOW_S, NOW_S - 299.0, NOW_S - 301.0]),
)
LOAD = st.builds(LoadFacts, cores=st.none() | st.floats(1.0, 512.0), cpu_max_w=st.none() | st.floats(1.0, 2000.0))
NODES = st.lists(st.tuples(st.none() | TWIN, st.none() | st.sampled_from(NodeClass), st.none() | LOAD), max_size=12)
PODS = st.builds(
    PodView,
    performance=st.booleans(),
    reschedulable=st.none() | st.booleans(),
    daemon=st.booleans(),
    cpu_sensitivity=st.sampled_from(Sensitivity),
    gpu_sensitivity=st.sampled_from(Sensitivity),
)
CLASSES = st.sampled_from(["performance", "standard", "bogus", None])


def build(nodes: list[Any], mode: Mode = Mode.ENFORCE) -> FleetView:
    fleet = Fleet(300.0, mode=mode)
    for index, (twin, labelled, load) in enumerate(nodes):
        fleet.set_twin(f"n{index}", twin)
        fleet.set_label_class(f"n{index}", labelled)
        fleet.set_load(f"n{index}", load)
    return fleet.view(NOW_S)


def no_profile(_pod: PodFacts) -> ProfileFacts:
    return ProfileFacts()


def prioritize(body: bytes, view: FleetView, profiles: Profiles) -> bytes:
    return answers.prioritize(body, view, profiles, Rankings())


def call(workload_class: str | None, cpu: int, names: list[str]) -> bytes:
    annotations = {} if workload_class is None else {"joulie.io/workload-class": workload_class}
    container = {"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}
    pod = {"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": [container]}}
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()


@quick
@given(NODES, CLASSES, st.lists(st.sampled_from([f"n{index}" for index in range(14)]), unique=True))
def test_filter_divides_the_candidates_and_keeps_their_order(
    nodes: list[Any], workload_class: str | None, names: list[str]
) -> None:
    view = build(nodes)
    result = json.loads(answers.filter_nodes(call(workload_class, 1, names), view, no_profile)[0])
    refused = result["FailedAndUnresolvableNodes"]
    assert result["NodeNames"] == [name for name in names if name not in refused]
    assert set(refused) <= set(names)
    classes = {name: view.twins.node_class[view.roster.slots.get(name, 0)] for name in names}
    closed = {name for name, found in classes.items() if found in {NodeClass.ECO, NodeClass.DRAINING}}
    assert set(refused) == (closed if workload_class == "performance" else set())


@quick
@given(NODES, CLASSES, st.integers(0, 1000), st.lists(st.sampled_from([f"n{index}" for index in range(14)])))
def test_scores_fit_the_wire_and_come_in_the_order_asked(
    nodes: list[Any], workload_class: str | None, cpu: int, names: list[str]
) -> None:
    view = build(nodes)
    entries = json.loads(prioritize(call(workload_class, cpu, names), view, no_profile))
    assert [entry["Host"] for entry in entries] == names
    for entry in entries:
        assert type(entry["Score"]) is int
        assert 0 <= entry["Score"] <= 10
        if entry["Host"] not in view.roster.slots:
            assert entry["Score"] == 5


@quick
@given(
    NODES, CLASSES, st.integers(0, 1000), st.lists(st.sampled_from([f"n{index}" for index in range(14)]), unique=True)
)
def test_in_observe_mode_nobody_is_refused_or_preferred(
    nodes: list[Any], workload_class: str | None, cpu: int, names: list[str]
) -> None:
    view, body = build(nodes, Mode.OBSERVE), call(workload_class, cpu, names)
    result = json.loads(answers.filter_nodes(body, view, no_profile)[0])
    assert (result["NodeNames"], result["FailedAndUnresolvableNodes"]) == (names, {})
    assert {entry["Score"] for entry in json.loads(prioritize(body, view, no_profile))} <= {5}
    victims = {name: {"Pods": [{"UID": name}], "NumPDBViolations": 0} for name in names}
    preemption = json.dumps({**json.loads(body), "NodeNameToMetaVictims": victims}).encode()
    assert json.loads(answers.preempt(preemption, view, no_profile)[0]) == {"NodeNameToMetaVictims": victims}


FRESH = st.builds(TwinFacts, node_class=st.sampled_from(NodeClass), numbers=NUMBERS, updated_s=st.just(NOW_S))
CHANGES = st.lists(st.tuples(st.integers(0, 3), FRESH | st.none() | TWIN), max_size=3)
ASKED = st.tuples(st.sampled_from(["performance", None]), st.lists(st.integers(0, 4), min_size=1))


@quick
@given(st.lists(st.tuples(CHANGES, st.lists(ASKED, min_size=1, max_size=4)), max_size=8))
def test_what_is_remembered_changes_no_answer(course: list[Any]) -> None:
    fleet, rankings = Fleet(300.0), Rankings()
    for index in range(3):
        fleet.set_label_class(f"n{index}", NodeClass.UNKNOWN)
    for changes, calls in course:
        for index, twin in changes:
            fleet.set_twin(f"n{index}", twin)
        view = fleet.view(NOW_S)
        for workload_class, indices in calls:
            body = call(workload_class, 1, [f"n{index}" for index in indices])
            assert answers.prioritize(body, view, no_profile, rankings) == prioritize(body, view, no_profile)


@quick
@given(NODES, PODS, st.floats(0.0, 5000.0))
def test_terms_add_up_to_the_score(nodes: list[Any], pod: PodView, marginal_w: float) -> None:
    twins = build(nodes).twins
    marginal = np.full(twins.fresh.shape, marginal_w)
    terms = explain(pod, twins, marginal)
    np.testing.assert_array_equal(terms.score, extender_score(pod, twins, marginal))
    for slot in np.flatnonzero(twins.fresh):
        base = terms.headroom_points[slot] + terms.cooling_points[slot] - terms.trend_points[slot]
        assert math.isclose(terms.base[slot], min(max(base, 0.0), 100.0), abs_tol=1e-9)
        score = terms.base[slot] + terms.congestion_points[slot] - terms.capped_points[slot]
        expected = min(max(score, 0.0), 100.0)
        if pod.reschedulable is False and twins.node_class[slot] == NodeClass.DRAINING:
            expected = 0.0
        assert math.isclose(terms.score[slot], expected, abs_tol=1e-9)


@quick
@given(NODES, PODS, st.floats(0.0, 2000.0), st.floats(0.0, 2000.0))
def test_a_heavier_pod_never_scores_better(nodes: list[Any], pod: PodView, one_w: float, more_w: float) -> None:
    twins = build(nodes).twins
    lighter = extender_score(pod, twins, np.full(twins.fresh.shape, one_w))
    heavier = extender_score(pod, twins, np.full(twins.fresh.shape, one_w + more_w))
    assert (heavier <= lighter + 1e-9).all()


@quick
@given(NODES, PODS)
def test_the_order_of_nodes_decides_nothing(nodes: list[Any], pod: PodView) -> None:
    there, back = build(nodes), build(nodes[::-1])
    # Sums over the cluster may differ in their last bit: compare what goes out.
    np.testing.assert_allclose(there.twins.perf_pressure, back.twins.perf_pressure, rtol=0.0, atol=1e-9)
    forward = may_run(pod, there.twins.node_class)
    for index in range(len(nodes)):
        if f"n{index}" not in there.roster.slots:
            continue
        twin = back.roster.slots[f"n{len(nodes) - 1 - index}"]
        assert forward[there.roster.slots[f"n{index}"]] == may_run(pod, back.twins.node_class)[twin]


@quick
@given(st.floats(0.0, 100.0))
def test_the_wire_rounds_halves_up(score: float) -> None:
    points = int(wire_score(np.array([score]))[0])
    assert abs(points * 10.0 - score) <= 5.0 + 1e-9


@quick
@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_no_bytes_at_all_bring_it_down(body: bytes) -> None:
    view = build([])
    for answer in (answers.filter_nodes, prioritize, answers.preempt):
        with suppress(wire.BadRequestError):
            answer(body, view, no_profile)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)
CALLS = st.fixed_dictionaries(
    {
        "Pod": JSON | st.just({"metadata": {"name": "p"}}),
        "Nodes": JSON | st.fixed_dictionaries({"items": st.lists(JSON | st.just({"metadata": {"name": "n0"}}))}),
        "NodeNames": JSON | st.lists(st.text(max_size=3), max_size=3),
        "NodeNameToVictims": JSON | st.dictionaries(st.text(max_size=3), JSON, max_size=2),
        "NodeNameToMetaVictims": JSON | st.dictionaries(st.text(max_size=3), JSON, max_size=2),
    }
)


@quick
@given(CALLS)
def test_no_json_brings_it_down(message: dict[str, Any]) -> None:
    view = build([])
    body = json.dumps(message).encode()
    for answer in (answers.filter_nodes, prioritize, answers.preempt):
        with suppress(wire.BadRequestError):
            answer(body, view, no_profile)
