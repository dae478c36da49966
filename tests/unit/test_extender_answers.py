import json
from functools import partial
from typing import Any

import msgspec
import pytest

from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.api.v1alpha1 import Level
from joulie.adapters.kubernetes.pods import PodFacts, ProfileFacts
from joulie.apps.extender import answers, wire
from joulie.apps.extender.explain import explanation
from joulie.apps.extender.feed import NodeLabels
from joulie.apps.extender.fleet import Fleet, FleetView
from joulie.apps.extender.judge import judge
from joulie.apps.extender.node_facts import LoadFacts, TwinFacts, TwinNumbers
from joulie.apps.extender.rankings import Rankings
from joulie.domain.accounting.profiles import GpuProfile, HardwareProfiles, Profiles
from joulie.domain.mode import Mode
from joulie.domain.policy import WorkloadClass
from joulie.domain.scoring.extender import NodeClass
from joulie.domain.scoring.marginal_energy import ScoringAim

EVERY = ["perf", "eco", "draining", "labelled-eco", "stale-eco", "unknown"]


def numbers(**changes: float) -> TwinNumbers:
    values = {
        "capped_w": 1000.0,
        "measured_w": 400.0,
        "cooling_stress_pct": 20.0,
        "headroom_score": 60.0,
        "trend_w_per_min": 0.0,
        "cpu_cap_fraction": 1.0,
        "gpu_cap_fraction": 1.0,
    }
    return TwinNumbers(**(values | changes))


@pytest.fixture
def view() -> FleetView:
    fleet = Fleet(300.0)
    fleet.set_twin("perf", TwinFacts(NodeClass.PERFORMANCE, numbers(), 1000.0))
    fleet.set_twin("eco", TwinFacts(NodeClass.ECO, numbers(cpu_cap_fraction=0.6, gpu_cap_fraction=0.6), 1000.0))
    fleet.set_twin("draining", TwinFacts(NodeClass.DRAINING, numbers(), 1000.0))
    fleet.set_twin("stale-eco", TwinFacts(NodeClass.ECO, numbers(), 100.0))
    fleet.set_label_class("labelled-eco", NodeClass.ECO)
    for name in ("perf", "eco", "draining", "stale-eco", "labelled-eco"):
        fleet.set_load(name, LoadFacts(cores=96.0, cpu_max_w=700.0, gpu_max_w=400.0))
    return fleet.view(1000.0)


def pod(annotations: dict[str, str] | None = None, owner: str = "Job", **resources: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "p",
            "namespace": "team",
            "uid": "u",
            "annotations": annotations or {},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": owner, "name": "train", "uid": "o", "controller": True}
            ],
        },
        "spec": {"containers": [{"name": "c", "resources": {"requests": resources}}]},
    }


PERFORMANCE = {"joulie.io/workload-class": "performance"}


def call(
    asked: dict[str, Any] | None, names: list[str] | None = None, nodes: list[dict[str, Any]] | None = None
) -> bytes:
    whole = None if nodes is None else {"metadata": {}, "items": nodes}
    return json.dumps({"Pod": asked, "Nodes": whole, "NodeNames": names}).encode()


def no_profile(_pod: PodFacts) -> ProfileFacts:
    return ProfileFacts()


def filtered(view: FleetView, body: bytes, profiles: answers.Profiles = no_profile) -> dict[str, Any]:
    result = json.loads(answers.filter_nodes(body, view, profiles)[0])
    assert list(result) == ["Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"]
    return dict(result)


def prioritized(view: FleetView, body: bytes, profiles: answers.Profiles = no_profile) -> dict[str, int]:
    return {entry["Host"]: entry["Score"] for entry in json.loads(answers.prioritize(body, view, profiles, Rankings()))}


def test_performance_pods_keep_off_eco_and_draining_nodes(view: FleetView) -> None:
    result = filtered(view, call(pod(PERFORMANCE), EVERY))
    assert result["NodeNames"] == ["perf", "unknown"]
    assert set(result["FailedAndUnresolvableNodes"]) == {"eco", "draining", "labelled-eco", "stale-eco"}
    assert "eco power caps" in result["FailedAndUnresolvableNodes"]["labelled-eco"]
    assert "draining" in result["FailedAndUnresolvableNodes"]["draining"]


@pytest.mark.parametrize(
    "asked",
    [
        pod(),
        pod({"joulie.io/workload-class": "standard"}),
        pod({"joulie.io/workload-class": "Performance"}),
        pod(PERFORMANCE, owner="DaemonSet"),
    ],
    ids=["default", "standard", "misspelt", "daemon"],
)
def test_other_pods_pass_everywhere(view: FleetView, asked: dict[str, Any]) -> None:
    result = filtered(view, call(asked, EVERY))
    assert (result["NodeNames"], result["FailedAndUnresolvableNodes"]) == (EVERY, {})


def test_class_from_the_profile_and_the_annotation_before_it(view: FleetView) -> None:
    seen: list[PodFacts] = []

    def performance(facts: PodFacts) -> ProfileFacts:
        seen.append(facts)
        return ProfileFacts(workload_class=WorkloadClass.PERFORMANCE)

    assert filtered(view, call(pod(), ["perf", "eco"]), performance)["NodeNames"] == ["perf"]
    standard = pod({"joulie.io/workload-class": "standard"})
    assert filtered(view, call(standard, ["perf", "eco"]), performance)["NodeNames"] == ["perf", "eco"]
    assert (seen[0].namespace, seen[0].owner.kind, seen[0].owner.name) == ("team", "Job", "train")


def test_whole_nodes_that_nobody_told_of_are_judged_by_their_labels(view: FleetView) -> None:
    nodes = [
        {"metadata": {"name": "perf"}, "status": {"odd": [1.50, "é", None]}},
        {"metadata": {"name": "new-eco", "labels": {"joulie.io/power-profile": "eco"}}},
        {"metadata": {"name": "new-draining", "labels": {"joulie.io/draining": "true"}}},
        {"metadata": {"name": "new"}},
    ]
    result = filtered(view, call(pod(PERFORMANCE), nodes=nodes))
    assert result["NodeNames"] is None
    assert result["Nodes"]["items"] == [nodes[0], nodes[3]]
    assert set(result["FailedAndUnresolvableNodes"]) == {"new-eco", "new-draining"}


def test_l5_whole_nodes_are_judged_by_the_configured_label_and_their_mode(view: FleetView) -> None:
    nodes = [
        {"metadata": {"name": "watched", "labels": {"example.org/power": "eco"}}},
        {
            "metadata": {
                "name": "other-label",
                "labels": {"joulie.io/power-profile": "eco", "joulie.io/mode": "enforce"},
            }
        },
        {"metadata": {"name": "canary", "labels": {"example.org/power": "eco", "joulie.io/mode": "enforce"}}},
    ]
    labels = NodeLabels("example.org/power", Mode.OBSERVE)
    result = json.loads(answers.filter_nodes(call(pod(PERFORMANCE), nodes=nodes), view, no_profile, labels)[0])
    assert result["Nodes"]["items"] == nodes[:2]
    assert set(result["FailedAndUnresolvableNodes"]) == {"canary"}


def test_no_candidates(view: FleetView) -> None:
    assert filtered(view, call(pod(PERFORMANCE), []))["NodeNames"] == []
    assert filtered(view, call(pod(PERFORMANCE), ["eco"]))["NodeNames"] == []
    assert answers.prioritize(call(pod(), []), view, no_profile, Rankings()) == b"[]"


def test_scores_are_whole_numbers_0_to_10_in_the_order_asked(view: FleetView) -> None:
    body = call(pod(cpu="8", memory="16Gi"), ["unknown", "eco", "perf", "unknown-2"])
    entries = json.loads(answers.prioritize(body, view, no_profile, Rankings()))
    assert [entry["Host"] for entry in entries] == ["unknown", "eco", "perf", "unknown-2"]
    assert all(type(entry["Score"]) is int and 0 <= entry["Score"] <= 10 for entry in entries)


def test_trap_nodes_without_data_are_neutral(view: FleetView) -> None:
    scores = prioritized(view, call(pod(), EVERY))
    assert scores["unknown"] == scores["stale-eco"] == scores["labelled-eco"] == 5
    assert scores["eco"] == 6


def test_trap_sidecars_init_containers_and_overhead_count(view: FleetView) -> None:
    plain = pod(cpu="8")
    heavy = pod(cpu="8")
    heavy["spec"]["initContainers"] = [
        {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "56"}}}
    ]
    heavy["spec"]["overhead"] = {"cpu": "16"}
    assert prioritized(view, call(heavy, ["perf"]))["perf"] < prioritized(view, call(plain, ["perf"]))["perf"]


def test_gpus_weigh_more_for_performance_pods(view: FleetView) -> None:
    standard = pod(**{"nvidia.com/gpu": "1"})
    performance = pod(PERFORMANCE, **{"nvidia.com/gpu": "1"})
    # 1000 - 400 - 0.65 * 400 = 340 W left, and 260 W: 0.7 * 34 + 12 = 35.8, less the pressure of 0.3 * 40; 30.2.
    assert prioritized(view, call(standard, ["perf"])) == {"perf": 2}
    assert prioritized(view, call(performance, ["perf"])) == {"perf": 3}


def test_sensitivity_from_the_annotation_over_the_profile(view: FleetView) -> None:
    def sensitive(_pod: PodFacts) -> ProfileFacts:
        return ProfileFacts(cpu_sensitivity=Level.HIGH, gpu_sensitivity=Level.HIGH)

    calm = {"joulie.io/cpu-sensitivity": "low", "joulie.io/gpu-sensitivity": "low"}
    without = prioritized(view, call(pod(), ["eco"]))["eco"]
    # Two subsystems capped to 60 %: 2 * 20 * 0.4 = 16 points.
    assert prioritized(view, call(pod(), ["eco"]), sensitive)["eco"] == without - 2
    assert prioritized(view, call(pod(calm), ["eco"]), sensitive)["eco"] == without


def test_pods_that_must_not_be_moved_shun_draining_nodes(view: FleetView) -> None:
    fixed = pod({"joulie.io/reschedulable": "false"})
    assert prioritized(view, call(fixed, ["draining"])) == {"draining": 0}


def preemption(asked: dict[str, Any], **members: Any) -> bytes:
    return json.dumps({"Pod": asked, "NodeNameToVictims": None, "NodeNameToMetaVictims": None} | members).encode()


def test_preempt_drops_forbidden_nodes_for_performance_pods_only(view: FleetView) -> None:
    victims = {name: {"Pods": [{"UID": f"{name}-1"}], "NumPDBViolations": 2} for name in EVERY}
    body = preemption(pod(PERFORMANCE), NodeNameToMetaVictims=victims)
    answer, refused = answers.preempt(body, view, no_profile)
    assert json.loads(answer) == {"NodeNameToMetaVictims": {name: victims[name] for name in ("perf", "unknown")}}
    assert refused == {NodeClass.ECO: 3, NodeClass.DRAINING: 1}
    standard, refused = answers.preempt(preemption(pod(), NodeNameToMetaVictims=victims), view, no_profile)
    assert (json.loads(standard), refused) == ({"NodeNameToMetaVictims": victims}, {})


def test_preempt_turns_whole_victims_into_uids_and_keeps_empty_lists(view: FleetView) -> None:
    whole = {
        "perf": {"Pods": [{"metadata": {"name": "v", "uid": "v-1"}, "spec": {}}], "NumPDBViolations": 1},
        "unknown": {"Pods": None, "NumPDBViolations": 0},
        "eco": {"Pods": [], "NumPDBViolations": 0},
    }
    answer, _ = answers.preempt(preemption(pod(PERFORMANCE), NodeNameToVictims=whole), view, no_profile)
    assert json.loads(answer) == {
        "NodeNameToMetaVictims": {
            "perf": {"Pods": [{"UID": "v-1"}], "NumPDBViolations": 1},
            "unknown": {"Pods": [], "NumPDBViolations": 0},
        }
    }


def test_preempt_without_candidates(view: FleetView) -> None:
    assert answers.preempt(preemption(pod()), view, no_profile)[0] == b'{"NodeNameToMetaVictims":{}}'


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "invalid JSON"),
        (b"{", "invalid JSON"),
        (b"[]", "invalid JSON"),
        (b"\xff\xfe", "invalid JSON"),
        (b'{"Pod":{},"Nodes":null,"NodeNames":null}', "neither Nodes nor NodeNames"),
        (b'{"Pod":null,"NodeNames":["a"]}', "Pod is missing"),
        (b'{"NodeNames":["a"]}', "Pod is missing"),
        (b'{"Pod":{},"NodeNames":"a"}', "NodeNames"),
        (b'{"Pod":{},"NodeNames":["a",7]}', "NodeNames"),
        (b'{"Pod":{},"Nodes":{"items":[{"metadata":{"name":7}}]}}', "metadata.name"),
        (b'{"Pod":{"spec":{"containers":7}},"NodeNames":["a"]}', "containers"),
        (b'{"Pod":' + b"[" * 100_000, "invalid JSON"),
    ],
)
def test_malformed_calls_are_refused_with_a_reason(view: FleetView, body: bytes, problem: str) -> None:
    for answer in (answers.filter_nodes, partial(answers.prioritize, rankings=Rankings())):
        with pytest.raises(wire.BadRequestError, match=problem):
            answer(body, view, no_profile)


def test_malformed_preemption_is_refused(view: FleetView) -> None:
    for body in (b"", b"{}", b'{"Pod":{},"NodeNameToMetaVictims":[]}'):
        with pytest.raises(wire.BadRequestError):
            answers.preempt(body, view, no_profile)


def test_names_that_need_escapes_survive(view: FleetView) -> None:
    odd = 'a"\\é\u2028'
    assert filtered(view, call(pod(), [odd]))["NodeNames"] == [odd]
    assert filtered(view, call(pod(PERFORMANCE), [odd]))["NodeNames"] == [odd]
    assert prioritized(view, call(pod(), [odd])) == {odd: 5}


def test_the_judged_pod_shows_its_requests() -> None:
    judged = judge(msgspec.convert(pod(cpu="500m", memory="2Gi"), Pod), no_profile)
    assert (judged.requests.cores, judged.requests.memory_gib, judged.requests.gpus) == (0.5, 2.0, 0.0)


def test_scoring_by_energy_ranks_and_explains_alike() -> None:
    fleet = Fleet(300.0, ScoringAim.ENERGY)
    for name, measured_w in (("resting", 80.0), ("working", 500.0)):
        fleet.set_twin(name, TwinFacts(NodeClass.ECO, numbers(measured_w=measured_w), 1000.0))
        fleet.set_load(name, LoadFacts(cores=96.0, cpu_max_w=700.0, gpu_max_w=400.0))
    view = fleet.view(1000.0)
    body = call(pod(cpu="8"), ["resting", "working"])
    ranked = {one["Host"]: one["Score"] for one in json.loads(answers.prioritize(body, view, no_profile, Rankings()))}
    assert ranked["working"] == 10 > ranked["resting"]
    judged = judge(msgspec.convert(pod(cpu="8"), Pod), no_profile)
    explained = {one.node: one for one in explanation(judged, fleet, view, 1000.0).nodes}
    assert {name: one.wire_score for name, one in explained.items()} == ranked
    assert explained["working"].base is None


GARDENER = "compute-gardener-scheduler.kubernetes.io/"


def powered(policies: dict[str, dict[str, str]] | None = None) -> FleetView:
    """Nodes of 96 CPUs: 440 W at full load with PUE, 4.0 kW with GPUs, and one of which nobody knows anything."""
    fleet = Fleet(300.0)
    fleet.set_load("small", LoadFacts(cores=96.0, cpu_max_w=400.0))
    fleet.set_load("gpus", LoadFacts(cores=96.0, cpu_max_w=400.0, gpu_max_w=400.0, gpus=8.0))
    fleet.set_load("bare", LoadFacts(cores=96.0))
    for namespace, annotations in (policies or {}).items():
        fleet.set_policies(namespace, annotations)
    return fleet.view(1000.0)


@pytest.mark.parametrize(
    ("annotations", "passed", "reasons"),
    [
        ({"max-power-watts": "500"}, ["small", "bare", "new"], {"max_power": 1}),
        ({"max-power-watts": "439"}, ["bare", "new"], {"max_power": 2}),
        ({"max-power-watts": "5000"}, ["small", "gpus", "bare", "new"], {}),
        ({"min-efficiency": "0.1"}, ["small", "bare", "new"], {"efficiency": 1}),
        ({"max-power-watts": "500", "min-efficiency": "0.3"}, ["bare", "new"], {"max_power": 1, "efficiency": 1}),
        ({"max-power-watts": "few", "min-efficiency": "-1"}, ["small", "gpus", "bare", "new"], {}),
    ],
)
def test_g14_a_pods_limits_of_power_and_efficiency_filter_nodes(
    annotations: dict[str, str], passed: list[str], reasons: dict[str, int]
) -> None:
    asked = pod({GARDENER + key: value for key, value in annotations.items()})
    names = ["small", "gpus", "bare", "new"]
    by_name = answers.filter_nodes(call(asked, names), powered(), no_profile)
    result = json.loads(by_name.answer)
    assert result["NodeNames"] == passed
    assert set(result["FailedAndUnresolvableNodes"]) == set(names) - set(passed)
    assert by_name.by_power == reasons
    nodes = [{"metadata": {"name": name}} for name in names]
    whole = answers.filter_nodes(call(asked, nodes=nodes), powered(), no_profile)
    assert [node["metadata"]["name"] for node in json.loads(whole.answer)["Nodes"]["items"]] == passed
    assert whole.by_power == reasons


def test_g14_nobody_is_evicted_from_a_node_beyond_the_pods_limits() -> None:
    victims = {
        name: {"Pods": [{"UID": f"{name}-1"}], "NumPDBViolations": 0} for name in ("small", "gpus", "bare", "new")
    }
    asked = pod({GARDENER + "max-power-watts": "500"})
    answer, refused = answers.preempt(preemption(asked, NodeNameToMetaVictims=victims), powered(), no_profile)
    assert list(json.loads(answer)["NodeNameToMetaVictims"]) == ["small", "bare", "new"]
    assert refused == {}


def test_g14_a_node_that_several_rules_refuse_is_told_once(view: FleetView) -> None:
    asked = pod({**PERFORMANCE, GARDENER + "max-power-watts": "500"})
    result = filtered(view, call(asked, EVERY))
    assert result["NodeNames"] == ["unknown"]
    assert set(result["FailedAndUnresolvableNodes"]) == set(EVERY) - {"unknown"}


def with_policies(**policies: str) -> FleetView:
    return powered({"team": {GARDENER + name.replace("_", "-"): text for name, text in policies.items()}})


@pytest.mark.parametrize(
    ("own", "policies", "passed"),
    [
        ({}, {"policy_max_power_watts": "500"}, ["small", "bare", "new"]),
        ({}, {"policy_min_efficiency": "0.1"}, ["small", "bare", "new"]),
        ({"max-power-watts": "5000"}, {"policy_max_power_watts": "500"}, ["small", "gpus", "bare", "new"]),
        ({"max-power-watts": "many"}, {"policy_max_power_watts": "500"}, ["small", "bare", "new"]),
        ({"min-efficiency": "0.3"}, {"policy_max_power_watts": "500"}, ["bare", "new"]),
        (
            {},
            {"policy_max_power_watts": "5000", "workload_batch_policy_max_power_watts": "500"},
            ["small", "bare", "new"],
        ),
        ({}, {"workload_service_policy_max_power_watts": "500"}, ["small", "gpus", "bare", "new"]),
        ({"skip": "true"}, {"policy_max_power_watts": "500"}, ["small", "gpus", "bare", "new"]),
        ({"skip": "true", "max-power-watts": "500"}, {}, ["small", "gpus", "bare", "new"]),
    ],
)
def test_g14_a_pods_limits_come_from_its_namespace_where_it_sets_none(
    own: dict[str, str], policies: dict[str, str], passed: list[str]
) -> None:
    names, view = ["small", "gpus", "bare", "new"], with_policies(**policies)
    asked = pod({GARDENER + key: value for key, value in own.items()})
    assert filtered(view, call(asked, names))["NodeNames"] == passed
    victims = {name: {"Pods": [], "NumPDBViolations": 0} for name in names}
    answer, _ = answers.preempt(preemption(asked, NodeNameToMetaVictims=victims), view, no_profile)
    assert list(json.loads(answer)["NodeNameToMetaVictims"]) == passed
    elsewhere = asked | {"metadata": asked["metadata"] | {"namespace": "other", "annotations": {}}}
    assert filtered(view, call(elsewhere, names))["NodeNames"] == names


def test_g14_policies_of_a_namespace_keep_no_daemon_off_its_node() -> None:
    view, names = with_policies(policy_max_power_watts="500"), ["small", "gpus"]
    assert filtered(view, call(pod(owner="DaemonSet"), names))["NodeNames"] == names
    own = pod({GARDENER + "max-power-watts": "500"}, owner="DaemonSet")
    assert filtered(view, call(own, names))["NodeNames"] == ["small"]


def test_g14_limits_of_power_refuse_no_node_in_observe_mode() -> None:
    fleet = Fleet(300.0)
    for name, enforced in (("observed", False), ("enforced", True)):
        fleet.set_load(name, LoadFacts(cores=96.0, cpu_max_w=400.0))
        fleet.set_label_class(name, NodeClass.PERFORMANCE, enforced=enforced)
    asked = pod({GARDENER + "max-power-watts": "100"})
    assert filtered(fleet.view(1000.0), call(asked, ["observed", "enforced"]))["NodeNames"] == ["observed"]


def test_g14_explanations_agree_with_the_filter_about_limits_of_power() -> None:
    fleet = Fleet(300.0)
    view = with_policies(policy_max_power_watts="500", policy_min_efficiency="much")
    judged = judge(msgspec.convert(pod(), Pod), no_profile)
    explained = explanation(judged, fleet, view, 1000.0)
    nodes = {one.node: one for one in explained.nodes}
    assert {name: one.allowed for name, one in nodes.items()} == {"small": True, "bare": True, "gpus": False}
    assert "max-power-watts" in nodes["gpus"].refusal
    assert explained.pod.mistakes == (
        f"annotation {GARDENER}policy-min-efficiency of the namespace is ignored: 'much' is not a number above 0",
    )


@pytest.mark.parametrize(
    ("workload", "limit_w", "passed"),
    [("", "690", ["n"]), ("", "689", []), ("training", "690", ["n"]), ("training", "689", []),
     ("inference", "625", ["n"]), ("inference", "624", []), ("mining", "690", ["n"]), ("mining", "689", [])],
)  # fmt: skip
def test_g14_gpus_count_by_what_the_pod_does_on_them(workload: str, limit_w: str, passed: list[str]) -> None:
    gpus = Profiles({"NVIDIA A100": GpuProfile(50.0, 300.0, {"inference": 0.5})}, longer_names=True)
    fleet = Fleet(300.0, profiles=HardwareProfiles(gpus=gpus, pue=1.4, gpu_pue=1.3))
    fleet.set_load("n", LoadFacts(96.0, 400.0, 100.0, "NVIDIA", 1.0, "NVIDIA-A100-SXM4-80GB"))
    said = {GARDENER + "max-power-watts": limit_w} | ({GARDENER + "gpu-workload-type": workload} if workload else {})
    assert filtered(fleet.view(1000.0), call(pod(said), ["n"]))["NodeNames"] == passed


def test_g14_a_nodes_own_pues_count_before_the_defaults() -> None:
    fleet = Fleet(300.0, profiles=HardwareProfiles(pue=1.4, gpu_pue=1.3))
    fleet.set_load("n", LoadFacts(96.0, 400.0, 100.0, "NVIDIA", 1.0, pue=1.0, gpu_pue=1.2))
    view = fleet.view(1000.0)
    for key, value, passed in (
        ("max-power-watts", "520", ["n"]),
        ("max-power-watts", "519", []),
        ("min-efficiency", "0.184", ["n"]),
        ("min-efficiency", "0.185", []),
    ):
        assert filtered(view, call(pod({GARDENER + key: value}), ["n"]))["NodeNames"] == passed, key + value


def test_g14_the_default_pues_are_those_of_the_hardware_profiles() -> None:
    fleet = Fleet(300.0, profiles=HardwareProfiles(pue=1.4, gpu_pue=1.3))
    fleet.set_load("n", LoadFacts(cores=96.0, cpu_max_w=400.0, gpu_max_w=100.0, gpus=1.0))
    view = fleet.view(1000.0)
    for limit_w, passed in (("690", ["n"]), ("689", [])):
        asked = pod({GARDENER + "max-power-watts": limit_w})
        assert filtered(view, call(asked, ["n"]))["NodeNames"] == passed
