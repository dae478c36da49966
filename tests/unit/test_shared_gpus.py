"""SCORING=frugal: what is left of each GPU of a cluster, and the openb benchmark's score on it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.pods import ProfileFacts
from joulie.apps.extender import answers
from joulie.apps.extender.explain import explanation
from joulie.apps.extender.fleet import Fleet
from joulie.apps.extender.judge import judge, sharing_pod
from joulie.apps.extender.node_facts import LoadFacts
from joulie.apps.extender.rankings import Rankings
from joulie.domain.mode import Mode
from joulie.domain.scoring.extender import NodeClass
from joulie.domain.scoring.fragmentation import (
    ANY_MODEL,
    POWER_WEIGHT_MILLI_PER_W,
    GpuRequest,
    NodeKind,
    Outlook,
    TypicalPods,
    joulie_placement,
    lean_cpu_milli_per_gpu,
    node_power_w,
    potential_milli,
)
from joulie.domain.scoring.marginal_energy import ScoringAim
from joulie.domain.scoring.marginal_placement import cheapest
from joulie.domain.scoring.shared_gpus import (
    MAX_REMEMBERED_PODS,
    GpuDemand,
    NodeState,
    Scores,
    SharedGpus,
    SharedNode,
    SharingPod,
    gpus_left,
)
from joulie.domain.scoring.sharing import SOCKET_IDLE_W, SOCKET_LIMIT_W, take
from joulie_lab.adapters.published.openb import GPU_POWER
from joulie_lab.benchmarks.gpu_sharing.arrivals import arrivals, sample
from joulie_lab.benchmarks.gpu_sharing.kernel import NOWHERE
from joulie_lab.benchmarks.gpu_sharing.play import Setup, place
from joulie_lab.benchmarks.gpu_sharing.policies import JOULIE_FRUGAL, POLICIES

NODE = SharedNode.of(96, 360.0, 72.0, 2, 30.0, 150.0)
HALF = GpuDemand(1, 500)
PREFIX = "alibabacloud.com/gpu-"


def pod(demand: GpuDemand | None = HALF, node: str = "a", name: str = "p", cpu_milli: int = 4000) -> SharingPod:
    return SharingPod(node, name, cpu_milli, demand)


def outlook(weight: float = 0.5) -> Outlook:
    kinds = [(4000, 1, 300, ANY_MODEL, 0.5), (8000, 1, 1000, ANY_MODEL, 0.3), (4000, 0, 0, ANY_MODEL, 0.2)]
    return Outlook(TypicalPods(*map(np.array, zip(*kinds, strict=True))), 12_000.0, weight)


# ---- what is left


def test_whose_gpus_are_known_comes_first_and_parts_fill_the_fullest() -> None:
    pods = [pod(GpuDemand(1, 300)), pod(HALF), pod(GpuDemand(1, 600, given=(1,)))]
    assert gpus_left(2, pods) == ([500, 100], "")
    assert gpus_left(3, [pod(GpuDemand(2, 1000)), pod(HALF), pod(HALF)]) == ([0, 0, 0], "")
    assert gpus_left(0, [pod(GpuDemand())]) == ([], "")


@pytest.mark.parametrize(
    ("pods", "why"),
    [
        ([pod(None, name="ns/odd")], "the GPUs of pod ns/odd cannot be counted"),
        ([pod(GpuDemand(3, 1000), name="ns/big")], "pod ns/big does not fit its GPUs beside the others"),
        ([pod(HALF)] * 4 + [pod(HALF, name="ns/last")], "pod ns/last does not fit its GPUs beside the others"),
        ([pod(GpuDemand(1, 10, given=(2,)), name="ns/far")], "pod ns/far has GPU 2, which has no room for it"),
        ([pod(GpuDemand(1, 600, given=(0,)))] * 2, "pod p has GPU 0, which has no room for it"),
    ],
)
def test_pods_that_do_not_add_up_are_named(pods: list[SharingPod], why: str) -> None:
    assert gpus_left(2, pods)[1] == why


DEMANDS = st.one_of(
    st.builds(lambda milli: GpuDemand(1, milli), st.integers(1, 1000)),
    st.builds(lambda gpus: GpuDemand(gpus, 1000), st.integers(1, 3)),
    st.builds(lambda milli, gpu: GpuDemand(1, milli, given=(gpu,)), st.integers(1, 1000), st.integers(0, 4)),
    st.just(GpuDemand()),
)


@pytest.mark.slow
@given(n_gpus=st.integers(0, 4), demands=st.lists(DEMANDS, max_size=12))
def test_what_is_left_and_what_is_held_is_what_there_is(n_gpus: int, demands: list[GpuDemand]) -> None:
    left, problem = gpus_left(n_gpus, [pod(demand) for demand in demands])
    assert all(0 <= milli <= 1000 for milli in left)
    if not problem:
        assert sum(left) + sum(demand.gpus * demand.gpu_milli for demand in demands) == 1000 * n_gpus


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("xyz"), st.one_of(st.none(), DEMANDS)), max_size=30)
)
def test_pods_that_come_move_and_go_leave_the_sum_of_those_that_stay(changes: list[tuple[str, str, Any]]) -> None:
    shared, there = SharedGpus(), dict[str, SharingPod]()
    for name in "xyz":
        shared.set_node(name, NODE)
    for key, node, demand in changes:
        shared.state(node)
        if demand is None:
            there.pop(key, None)
            shared.set_pod(key, None)
        else:
            there[key] = pod(demand, node, key)
            shared.set_pod(key, there[key])
    anew = SharedGpus()
    for name in "xyz":
        anew.set_node(name, NODE)
    for key, one in there.items():
        anew.set_pod(key, one)
    cpu = {node: 96_000 - 4000 * sum(one.node == node for one in there.values()) for node in "xyz"}
    for node in "xyz":
        state, problem = shared.state(node)
        assert (state is None) == bool(problem)
        assert state is None or state.cpu_left_milli == cpu[node]
        if all(one.demand is not None and (one.demand.given or not one.demand.gpus) for one in there.values()):
            assert shared.state(node)[0] == anew.state(node)[0]


# ---- the score


@given(
    left=st.lists(st.integers(0, 1000), min_size=1, max_size=8),
    cpu_left=st.integers(0, 96_000),
    request=st.builds(GpuRequest, st.integers(0, 96_000), st.just(1), st.integers(1, 999)),
)
def test_a_part_goes_to_the_gpu_with_the_fewest_steps(left: list[int], cpu_left: int, request: GpuRequest) -> None:
    """By trying every GPU with the potential and power that the score is made of."""
    kind, look = NodeKind(96_000, ANY_MODEL, 30.0, 150.0, 15.0, 120.0), outlook()
    before_milli, before_w = potential_milli(cpu_left, left, kind.model, look), node_power_w(cpu_left, left, kind)
    expected = {}
    for gpu, milli in enumerate(left):
        if milli >= request.gpu_milli:
            after, cpu = [*left], cpu_left - request.cpu_milli
            after[gpu] -= request.gpu_milli
            added_milli = potential_milli(cpu, after, kind.model, look) - before_milli
            added_w = node_power_w(cpu, after, kind) - before_w
            expected[gpu] = (int(np.floor(-(added_milli + 0.5 * added_w) / 60.0)), added_w)
    found = joulie_placement(cpu_left, left, list(left), kind, request, look, before_milli, before_w)
    if expected:
        steps, added_w, gpu = found
        assert steps == max(one for one, _ in expected.values())
        assert expected[gpu] == (steps, added_w)


@given(
    nodes=st.lists(st.lists(st.integers(0, 1000), max_size=4), min_size=1, max_size=5),
    requests=st.lists(st.builds(GpuRequest, st.integers(0, 9000), st.just(1), st.integers(1, 1000)), max_size=3),
)
def test_states_are_judged_once_and_for_all_alike(nodes: list[list[int]], requests: list[GpuRequest]) -> None:
    scores, anew = Scores(outlook()), Scores(outlook())
    numbers = np.array([scores.number(NodeState(NODE.kind, 50_000, tuple(left))) for left in nodes])
    for request in [*requests, *requests]:
        costs = scores.costs(request, np.append(numbers, -1))
        assert np.isnan(costs[-1])
        assert costs[:-1].tolist() == [
            anew.costs(request, np.array([anew.number(NodeState(NODE.kind, 50_000, tuple(left)))]))[0] for left in nodes
        ]
        assert [bool(np.isinf(cost)) for cost in costs[:-1]] == [
            all(milli < request.gpu_milli for milli in left) for left in nodes
        ]


def test_typical_pods_are_learned_as_they_come_and_old_ones_count_half() -> None:
    shared = SharedGpus()
    shared.set_node("a", NODE)
    first = shared.view({"a": 1}, 2, "roster").scores
    assert shared.view({"a": 1}, 2, "roster").scores is first
    shared.set_pod(0, pod())
    assert shared.view({"a": 1}, 2, "roster").scores is not first
    for key in range(1, 11):
        shared.set_pod(key, pod(GpuDemand()))
    learned = shared.view({"a": 1}, 2, "roster").scores
    shared.set_pod("one more", pod())
    assert shared.view({"a": 1}, 2, "roster").scores is learned, "one pod in eleven does not change what is typical"
    for key in range(MAX_REMEMBERED_PODS):
        shared.set_pod("same key", pod(HALF, name=str(key)))
        shared.set_pod("same key", None)
    assert sum(shared._seen.values()) < MAX_REMEMBERED_PODS


def test_of_equal_costs_the_node_with_frugal_gpus_comes_first_then_the_first_by_name() -> None:
    shared = SharedGpus()
    strong = SharedNode.of(96, 360.0, 72.0, 2, 30.0, 300.0)
    for name, node in (("c", NODE), ("a", strong), ("b", NODE), ("d", SharedNode.of(96, 360.0, 72.0, 0, 0.0, 300.0))):
        shared.set_node(name, node)
    slots = {"a": 1, "b": 2, "c": 3, "d": 4, "unknown": 5}
    ranks = shared.view(slots, 6, "roster").ranks
    assert sorted(slots, key=lambda name: ranks[slots[name]]) == ["d", "b", "c", "a", "unknown"]


# ---- what pods say


def kube_pod(
    name: str = "p",
    *,
    node: str = "",
    cpu: str = "4",
    claims: bool = False,
    gpus: dict[str, str] | None = None,
    **said: str,
) -> dict[str, Any]:
    resources = {"requests": {"cpu": cpu, **(gpus or {})}}
    spec: dict[str, Any] = {"containers": [{"name": "main", "resources": resources}], "nodeName": node}
    if claims:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "mine"}]
    annotations = {PREFIX + key: text for key, text in said.items()}
    return {"metadata": {"name": name, "namespace": "ns", "annotations": annotations}, "spec": spec}


def decoded(given: dict[str, Any]) -> Pod:
    return msgspec.convert(given, Pod)


def no_profile(_facts: object) -> ProfileFacts:
    return ProfileFacts()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (kube_pod(), GpuDemand()),
        (kube_pod(milli="460"), GpuDemand(1, 460, stated=True)),
        (kube_pod(milli="460", count="1", index="3"), GpuDemand(1, 460, stated=True, given=(3,))),
        (kube_pod(milli="1000", count="3", index="2-3-4"), GpuDemand(3, 1000, stated=True, given=(2, 3, 4))),
        (kube_pod(gpus={"nvidia.com/gpu": "8"}), GpuDemand(8, 1000)),
        (kube_pod(gpus={"nvidia.com/gpu": "1"}, index="5"), GpuDemand(1, 1000, given=(5,))),
        (kube_pod(gpus={"nvidia.com/mig-1g.5gb": "1"}), GpuDemand(1, 142)),
        (kube_pod(gpus={"nvidia.com/mig-3g.20gb": "2"}), GpuDemand(1, 857)),
        (kube_pod(gpus={"nvidia.com/mig-7g.80gb": "1"}), GpuDemand(1, 1000)),
    ],
)
def test_what_pods_ask_for(given: dict[str, Any], expected: GpuDemand) -> None:
    judged = judge(decoded(given), no_profile)
    assert judged.demand == expected
    assert judged.uncounted == ()


@pytest.mark.parametrize(
    ("given", "mistake"),
    [
        (
            kube_pod(milli="half"),
            "annotation alibabacloud.com/gpu-milli: 'half' is not a number of 1 to 1000 thousandths",
        ),
        (kube_pod(milli="0"), "'0' is not a number of 1 to 1000"),
        (kube_pod(milli="-5"), "'-5' is not a number of 1 to 1000"),
        (kube_pod(milli="1001"), "'1001' is not a number of 1 to 1000"),
        (kube_pod(milli="٣"), "is not a number of 1 to 1000"),
        (kube_pod(milli="500", count="2"), "'500' is a part of each of 2 GPUs, of which only one is shared"),
        (kube_pod(milli="500", count="no"), "annotation alibabacloud.com/gpu-count: 'no' is not a number of GPUs"),
        (kube_pod(milli="500", count="0"), "'0' is not a number of GPUs"),
        (
            kube_pod(gpus={"nvidia.com/mig-3g.20gb": "3"}),
            "requests for 1.28571 GPUs are neither a part of one nor whole",
        ),
        (kube_pod(claims=True), "GPUs of ResourceClaims are not counted"),
    ],
)
def test_what_cannot_be_counted_is_reported_and_never_nothing(given: dict[str, Any], mistake: str) -> None:
    judged = judge(decoded(given), no_profile)
    assert judged.demand is None
    assert mistake in " ".join(judged.uncounted)
    shared = SharedGpus()
    shared.set_node("a", NODE)
    shared.set_pod("p", sharing_pod(decoded(given | {"spec": given["spec"] | {"nodeName": "a"}})))
    assert shared.state("a") == (None, "the GPUs of pod ns/p cannot be counted")


@pytest.mark.parametrize("index", ["", "x", "1-", "0-1", "1,2", "9" * 5000])
def test_an_index_that_names_other_gpus_is_reported_and_the_demand_counts(index: str) -> None:
    judged = judge(decoded(kube_pod(milli="460", index=index)), no_profile)
    assert judged.demand == GpuDemand(1, 460, stated=True)
    assert "gpu-index" in judged.uncounted[0]
    assert len(judged.uncounted[0]) < 250


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["milli", "count", "index"]), st.text(max_size=8), min_size=1))
def test_no_annotation_breaks_a_loop(said: dict[str, str]) -> None:
    judged = judge(decoded(kube_pod(**said)), no_profile)
    assert judged.demand is None or 0 <= judged.demand.gpu_milli <= 1000


# ---- in the extender

T4 = LoadFacts(cores=96.0, cpu_max_w=360.0, gpu_max_w=70.0, gpus=2.0, gpu_idle_w=20.0)
V100 = LoadFacts(cores=96.0, cpu_max_w=360.0, gpu_max_w=300.0, gpus=2.0, gpu_idle_w=60.0)


def fleet_of(*pods: dict[str, Any], mode: Mode = Mode.ENFORCE, **loads: LoadFacts) -> Fleet:
    shared = SharedGpus()
    fleet = Fleet(300.0, ScoringAim.FRUGAL, mode, shared=shared)
    for name, load in loads.items():
        fleet.set_load(name, load)
        fleet.set_label_class(name, NodeClass.UNKNOWN)
    for one in pods:
        shared.set_pod(one["metadata"]["name"], sharing_pod(decoded(one)))
    return fleet


def ask(verb: str, given: dict[str, Any], names: list[str], fleet: Fleet) -> Any:
    body = json.dumps({"Pod": given, "Nodes": None, "NodeNames": names}).encode()
    if verb == "filter":
        return json.loads(answers.filter_nodes(body, fleet.view(0.0), no_profile).answer)
    scored = json.loads(answers.prioritize(body, fleet.view(0.0), no_profile, Rankings()))
    return {one["Host"]: one["Score"] for one in scored}


def test_frugal_gpus_fill_first_and_of_equal_nodes_the_first_by_name() -> None:
    fleet = fleet_of(strong=V100, thrifty=T4, another=T4)
    found = ask("prioritize", kube_pod(milli="500"), ["strong", "thrifty", "another", "unknown"], fleet)
    assert found == {"strong": 0, "thrifty": 9, "another": 10, "unknown": 5}
    assert ask("prioritize", kube_pod(milli="500"), ["strong", "thrifty"], fleet) == {"strong": 0, "thrifty": 10}


def test_a_part_goes_where_a_part_is_taken_already() -> None:
    fleet = fleet_of(kube_pod("held", node="thrifty", milli="500"), another=T4, thrifty=T4)
    assert ask("prioritize", kube_pod(milli="500"), ["another", "thrifty"], fleet)["thrifty"] == 10


def test_nodes_without_room_on_one_gpu_are_refused_though_their_sum_would_do() -> None:
    held = [kube_pod(f"held-{gpu}", node="a", milli="600", index=str(gpu)) for gpu in "01"]
    fleet = fleet_of(*held, a=T4, b=T4)
    found = ask("filter", kube_pod(milli="500"), ["a", "b", "c"], fleet)
    assert found["NodeNames"] == ["b", "c"]
    assert found["FailedAndUnresolvableNodes"] == {"a": "no GPU of the node has as much left as the pod's gpu-milli"}
    assert ask("filter", kube_pod(milli="400"), ["a", "b"], fleet)["NodeNames"] == ["a", "b"]
    assert ask("filter", kube_pod(milli="nonsense"), ["a", "b"], fleet)["NodeNames"] == ["a", "b"]
    assert ask("filter", kube_pod(gpus={"nvidia.com/gpu": "2"}), ["a"], fleet)["NodeNames"] == ["a"], (
        "kube-scheduler counts whole GPUs itself"
    )
    whole = {"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}
    body = json.dumps({"Pod": kube_pod(milli="500"), "Nodes": {"items": whole}, "NodeNames": None}).encode()
    result = answers.filter_nodes(body, fleet.view(0.0), no_profile)
    assert [one["metadata"]["name"] for one in json.loads(result.answer)["Nodes"]["items"]] == ["b"]
    victims = {"Pod": kube_pod(milli="500"), "NodeNameToMetaVictims": {"a": {"Pods": []}, "b": {"Pods": []}}}
    answer, _ = answers.preempt(json.dumps(victims).encode(), fleet.view(0.0), no_profile)
    assert list(json.loads(answer)["NodeNameToMetaVictims"]) == ["b"]


def test_nodes_that_cannot_be_judged_are_open_and_say_why() -> None:
    fleet = fleet_of(
        kube_pod("odd", node="typo", milli="half"),
        typo=T4,
        single=LoadFacts(cores=96.0, cpu_max_w=360.0, gpu_max_w=100.0, gpus=2.0, gpu_instances=7),
        known=T4,
    )
    asked = kube_pod(milli="900")
    assert ask("filter", asked, ["typo", "single", "known"], fleet)["NodeNames"] == ["typo", "single", "known"]
    assert ask("prioritize", asked, ["typo", "single", "known"], fleet) == {"typo": 5, "single": 5, "known": 10}
    shown = explanation(judge(decoded(asked), no_profile), fleet, fleet.view(0.0), 0.0)
    why = {one.node: one.why_neutral for one in shown.nodes}
    assert why == {"known": "", "typo": "the GPUs of pod ns/odd cannot be counted", "single": "its GPUs are not known"}
    steps = {one.node: one.cost_steps for one in shown.nodes}
    assert steps["known"] is not None
    assert steps["typo"] is None
    odd = judge(decoded(kube_pod(milli="half")), no_profile)
    assert "gpu-milli" in explanation(odd, fleet, fleet.view(0.0), 0.0).pod.mistakes[0]
    assert explanation(odd, Fleet(300.0), Fleet(300.0).view(0.0), 0.0).pod.mistakes == ()


def test_nodes_in_observe_mode_are_open_and_neutral() -> None:
    held = [kube_pod(f"held-{gpu}", node="a", milli="600", index=str(gpu)) for gpu in "01"]
    fleet = fleet_of(*held, mode=Mode.OBSERVE, a=T4)
    assert ask("filter", kube_pod(milli="500"), ["a"], fleet)["NodeNames"] == ["a"]
    assert ask("prioritize", kube_pod(milli="500"), ["a"], fleet) == {"a": 5}
    fleet.set_label_class("a", NodeClass.UNKNOWN, enforced=True)
    assert ask("filter", kube_pod(milli="500"), ["a"], fleet)["NodeNames"] == []


def test_a_deleted_node_is_forgotten_and_pods_without_gpus_spare_gpu_nodes() -> None:
    fleet = fleet_of(a=T4, b=LoadFacts(cores=96.0, cpu_max_w=360.0))
    assert ask("prioritize", kube_pod(cpu="40"), ["a", "b"], fleet)["b"] == 10
    fleet.set_load("b", None)
    assert ask("prioritize", kube_pod(cpu="40"), ["a", "b"], fleet) == {"a": 10, "b": 5}


# ---- beside the benchmark


@pytest.mark.slow
def test_the_benchmarks_compiled_loop_and_the_extender_choose_the_same_nodes() -> None:
    """A whole run that overfills a cluster: the kernel always takes the cheapest node of the product."""
    nodes, pods = sample(7)
    nodes = nodes.of(np.array([0, 1, 26, 27, 58, 64, 65, 68]))
    setup = Setup.of(nodes, pods)
    arriving = arrivals(pods, nodes, seed=2)
    course = place(setup, POLICIES[JOULIE_FRUGAL], arriving)
    power = [list(GPU_POWER.values())[model] for model in nodes.model[arriving.node_order]]
    order = arriving.node_order[np.argsort([one.limit_w - one.idle_w for one in power], kind="stable")]
    nodes = nodes.of(order)
    look = Outlook(setup.typical, lean_cpu_milli_per_gpu(nodes.cpu_milli, nodes.gpus), POWER_WEIGHT_MILLI_PER_W)
    kinds = [
        NodeKind(int(cpu_milli), ANY_MODEL, *list(GPU_POWER.values())[model], SOCKET_IDLE_W, SOCKET_LIMIT_W)
        for cpu_milli, model in zip(nodes.cpu_milli, nodes.model, strict=True)
    ]
    states = [
        NodeState(kind, kind.cpu_milli, (1000,) * int(gpus)) for kind, gpus in zip(kinds, nodes.gpus, strict=True)
    ]
    memory = nodes.memory_mib.copy()
    scores, found = Scores(look), []
    for index in arriving.pods:
        request = GpuRequest(int(pods.cpu_milli[index]), int(pods.gpus[index]), int(pods.gpu_milli[index]))
        costs = scores.costs(request, np.array([scores.number(state) for state in states]))
        cpu_left = np.array([state.cpu_left_milli for state in states])
        costs[(cpu_left < request.cpu_milli) | (memory < pods.memory_mib[index])] = np.inf  # kube-scheduler's part
        best = next(cheapest(costs, np.arange(len(states)), 1), NOWHERE)
        found.append(best)
        if best != NOWHERE:
            state = states[best]
            left = list(state.gpu_left)
            before = potential_milli(state.cpu_left_milli, left, ANY_MODEL, look)
            before_w = node_power_w(state.cpu_left_milli, left, state.kind)
            work = list(left)
            _, _, gpu = joulie_placement(state.cpu_left_milli, left, work, state.kind, request, look, before, before_w)
            take(left, request.gpus, request.gpu_milli, gpu)
            states[best] = NodeState(state.kind, state.cpu_left_milli - request.cpu_milli, tuple(left))
            memory[best] -= pods.memory_mib[index]
    assert found == course.node.tolist()
    assert NOWHERE in found, "the cluster is overfilled"
