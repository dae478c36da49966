"""Sums over pods, kept up to date pod by pod."""

from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.pods import Owner, PodFacts, ProfileFacts
from joulie.adapters.kubernetes.requests import Requests
from joulie.apps.operator.ledger import Load, PodLedger
from joulie.domain.policy import Intensity, PodPhase, PowerConstraint, WorkloadClass

OWNER = Owner("Job", "job")


def pod(name="p", node="n", phase=PodPhase.RUNNING, **more):
    fields = {"owner": OWNER, "requests": Requests(0.1, 1.0, 1.0, "NVIDIA"), **more}
    return PodFacts(namespace="ns", name=name, uid=name, phase=phase, node_name=node, **fields)


def key(facts):
    return Key(facts.namespace, facts.name)


def filled(*pods):
    ledger = PodLedger()
    for one in pods:
        ledger.pod_changed(key(one), None, one)
    return ledger


def test_pending_and_running_performance_pods_are_demand_and_bound_ones_block():
    performance = {"workload_class": WorkloadClass.PERFORMANCE}
    ledger = filled(
        pod("running", **performance),
        pod("pending", node="", phase=PodPhase.PENDING, **performance),
        pod("on-its-way", phase=PodPhase.PENDING, **performance),
        pod("done", phase=PodPhase.FINISHED, **performance),
        pod("standard"),
        pod("odd", node="m", constraint=PowerConstraint.UNKNOWN),
        pod("fixed", node="m", reschedulable=False),
    )
    assert ledger.performance_demand({"n"}) == 3
    assert ledger.blocking == {"n": 2, "m": 2}
    assert ledger.full_power == {"n": 2, "m": 1}
    assert ledger.loads["n"] == Load(200, 2000)


def test_l8_only_what_could_run_here_now_or_soon_is_demand():
    performance = {"workload_class": WorkloadClass.PERFORMANCE}
    ledger = filled(
        pod("here", **performance),
        pod("elsewhere", node="unmanaged", **performance),
        pod("gated", node="", phase=PodPhase.PENDING, gated=True, **performance),
        pod("leaving", terminating=True, **performance),
        pod("waits", node="", phase=PodPhase.PENDING, **performance),
    )
    assert ledger.performance_demand({"n"}) == 2
    assert ledger.blocking["n"] == 2, "a pod that ends needs its power to the end"


def test_l4_daemon_and_static_pods_do_not_block_drains():
    ledger = filled(
        pod("daemon", workload_class=WorkloadClass.PERFORMANCE, daemon=True),
        pod("static", reschedulable=False, static=True),
    )
    assert (ledger.blocking, ledger.full_power) == ({}, {})


def test_l14_a_node_nominated_for_a_pod_does_not_turn_eco():
    nominated = pod(node="", phase=PodPhase.PENDING, nominated_node="m", workload_class=WorkloadClass.PERFORMANCE)
    ledger = filled(nominated)
    assert (ledger.blocking, ledger.full_power) == ({"m": 1}, {"m": 1})
    bound = pod(nominated_node="m", workload_class=WorkloadClass.PERFORMANCE)
    assert ledger.pod_changed(key(bound), nominated, bound)
    assert (ledger.blocking, ledger.full_power) == ({"n": 1}, {"n": 1})


def test_what_decisions_hang_on_is_told():
    ledger = PodLedger()
    standard, performance = pod(), pod(workload_class=WorkloadClass.PERFORMANCE)
    assert not ledger.pod_changed(key(standard), None, standard)
    assert ledger.pod_changed(key(standard), standard, performance)
    assert ledger.pod_changed(key(standard), performance, None)
    assert (ledger.performance_demand({"n"}), ledger.blocking, ledger.loads) == (0, {}, {})


def test_a_profile_changes_the_pods_of_its_workload_only():
    ledger = filled(pod("a"), pod("b"), pod("c", owner=Owner("Job", "other")))
    profile = ProfileFacts(WorkloadClass.PERFORMANCE, intensity=Intensity.HIGH, confidence=0.9)
    assert ledger.profile_changed(("ns", OWNER), profile)
    assert (ledger.performance_demand({"n"}), ledger.blocking) == (4, {"n": 2})
    assert ledger.profile_changed(("ns", OWNER), None)
    assert (ledger.performance_demand({"n"}), ledger.blocking) == (0, {})
    assert not ledger.profile_changed(("ns", Owner("Job", "unknown")), profile)


def test_a_profile_weighs_only_with_enough_confidence():
    ledger = PodLedger(min_confidence=0.7)
    one = pod(workload_class=WorkloadClass.PERFORMANCE)
    ledger.pod_changed(key(one), None, one)
    for confidence, demand in ((0.69, 1), (0.7, 2)):
        ledger.profile_changed(("ns", OWNER), ProfileFacts(intensity=Intensity.HIGH, confidence=confidence))
        assert ledger.performance_demand({"n"}) == demand


def test_mistakes_are_kept_until_told_and_go_with_their_pod():
    wrong = pod(mistakes=("annotation x: ...",))
    ledger = filled(wrong)
    assert list(ledger.invalid_pods.values()) == [wrong]
    ledger.pod_changed(key(wrong), wrong, None)
    assert ledger.invalid_pods == {}
